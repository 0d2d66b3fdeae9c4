//! The sections about the network, secrets, native tiers, and the examples.
//!
//! Invariant: as in [`super::section`]: what is not understood is reported.

use std::sync::Arc;

use super::section::{At, Section, quoted};
use super::sections::{action, each, identifier, required_texts};
use super::{BashSection, Example, NativeSection, SecretBinding};
use crate::address::AddressGrant;
use crate::glob::PathGlob;
use crate::host::{HostPattern, shown};
use crate::network::{METHODS, MethodPreset};
use crate::policy::Verdict;
use crate::question::Question;
use crate::rules::Action;
use crate::rules::net::NetRule;
use crate::tool::is_tool_name;

const VERDICTS: &[(&str, Verdict)] =
    &[("allow", Verdict::Allow), ("deny", Verdict::Deny), ("ask", Verdict::Ask)];

/// Tiers that `[native] tiers` can name.
pub(crate) const NATIVE_TIERS: &[&str] = &["landlock", "docker", "seatbelt", "process"];
/// Guarantees that `[native] guarantees` can name.
pub(crate) const NATIVE_GUARANTEES: &[&str] = &[
    "files",
    "system-calls",
    "network",
    "process-tree",
    "pid-view",
    "private-mounts",
    "tree-memory",
];

pub(super) fn network(root: &Section<'_>) -> Option<Vec<NetRule>> {
    const KEYS: &[&str] = &[
        "id",
        "action",
        "hosts",
        "ports",
        "access",
        "methods",
        "paths",
        "secrets",
        "max_bytes",
        "private",
        "max_requests",
        "max_total_bytes",
    ];
    root.has("net").then(|| root.tables("net", KEYS).iter().filter_map(net_rule).collect())
}

fn hosts(section: &Section<'_>) -> Option<Vec<HostPattern>> {
    let texts = required_texts(
        section,
        "hosts",
        "name at least one host, such as hosts = [\"api.example.com\"]",
    )?;
    let parse = |text: &At<String>| {
        HostPattern::parse(&text.value).map_err(|error| (error.to_string(), error.remedy()))
    };
    Some(each(section, "hosts", &texts, parse))
}

fn net_rule(section: &Section<'_>) -> Option<NetRule> {
    let id = identifier(section);
    let action = action(section)?;
    let hosts = hosts(section);
    let narrow = action != Action::Deny;
    let ports_are_usual = !section.has("ports");
    let ports = if section.has("ports") { Some(ports(section)) } else { narrow.then(|| vec![443]) };
    let methods = methods(section, narrow);
    let paths = section.texts("paths").map(|texts| {
        let parse = |text: &At<String>| {
            PathGlob::parse_url(&text.value).map_err(|error| {
                (format!("`paths` has \"{}\": {error}", shown(&text.value)), error.remedy())
            })
        };
        each(section, "paths", &texts, parse)
    });
    let secrets = section.texts("secrets").unwrap_or_default();
    let bound = |key| section.integer(key).map(|number| number.value);
    let (max_bytes, max_requests, max_total_bytes) =
        (bound("max_bytes"), bound("max_requests"), bound("max_total_bytes"));
    let private = section.flag("private").unwrap_or(false);
    let bounded = max_bytes.or(max_requests).or(max_total_bytes).is_some();
    if action == Action::Deny && (bounded || private || !secrets.is_empty()) {
        section.problem(
            &section.span,
            "action",
            "a rule that denies has `secrets`, `private` or a bound",
            "remove them or the denial",
        );
    }
    let mut secrets: Vec<Arc<str>> =
        secrets.into_iter().map(|name| Arc::from(name.value)).collect();
    secrets.sort_unstable();
    Some(NetRule {
        id: id?,
        action,
        hosts: hosts?,
        https_only: narrow && ports_are_usual,
        ports,
        methods,
        paths,
        secrets,
        max_bytes,
        addresses: if private { AddressGrant::Private } else { AddressGrant::Public },
        max_requests,
        max_total_bytes,
        line: section.line(),
    })
}

/// What `access` or `methods` say; GET if neither is there.
fn methods(section: &Section<'_>, narrow: bool) -> Option<Vec<&'static str>> {
    if section.has("access") {
        let access = section.choice("access", &MethodPreset::ALL);
        if section.has("methods") {
            let message = "a rule has both `access` and `methods`";
            section.problem(&section.span, "methods", message, "keep one of them");
        }
        return access.map_or(Some(Vec::new()), MethodPreset::methods);
    }
    if !section.has("methods") {
        return narrow.then(|| vec!["GET"]);
    }
    let texts = section.texts("methods").unwrap_or_default();
    match texts.as_slice() {
        [only] if only.value == "*" => None,
        _ => Some(each(section, "methods", &texts, |text| method(&text.value))),
    }
}

fn method(written: &str) -> Result<&'static str, (String, String)> {
    let known = METHODS.iter().find(|known| **known == written).copied();
    known.ok_or_else(|| {
        (
            format!("`methods` has \"{}\"", shown(written)),
            format!("write \"*\" alone or of {}", quoted(METHODS)),
        )
    })
}

fn ports(section: &Section<'_>) -> Vec<u16> {
    let Some(value) = section.get("ports") else { return Vec::new() };
    let toml::de::DeValue::Array(items) = value.get_ref() else {
        section.wrong_type(value, "ports", "a list such as [443]");
        return Vec::new();
    };
    if items.is_empty() {
        section.problem(
            &value.span(),
            "ports",
            "`ports` is empty, so it would match nothing",
            "name at least one, or remove the key",
        );
    }
    let mut ports = Vec::new();
    for item in items.iter() {
        let port = match item.get_ref() {
            toml::de::DeValue::Integer(number) => {
                u16::from_str_radix(number.as_str(), number.radix()).ok()
            }
            _ => None,
        };
        match port.filter(|port| *port != 0) {
            Some(port) => ports.push(port),
            None => section.problem(
                &item.span(),
                "ports",
                "`ports` has what is not a port",
                "write numbers from 1 to 65535",
            ),
        }
    }
    ports.sort_unstable();
    ports.dedup();
    ports
}

pub(super) fn secrets(root: &Section<'_>) -> Option<Vec<SecretBinding>> {
    let entries = root.has("secrets").then(|| root.entries("secrets"))?;
    let mut bindings = Vec::new();
    for (name, value) in entries {
        let key = format!("secrets.{}", shown(&name.value));
        let toml::de::DeValue::Table(table) = value.get_ref() else {
            root.wrong_type(value, &key, "a table: [secrets.NAME]");
            continue;
        };
        let known = &["from", "hosts", "slot"];
        let section = Section::new(
            root.report,
            table,
            name.span.clone(),
            format!("[{key}]"),
            key.clone(),
            known,
        );
        if !is_tool_name(&name.value) {
            root.problem(
                &name.span,
                &key,
                format!("\"{}\" is not a name", shown(&name.value)),
                "use at most 64 letters, digits, `_`, `-` and `.`",
            );
        }
        let source = |text: &str| {
            text.strip_prefix("env:")
                .or(text.strip_prefix("vault:"))
                .is_some_and(|rest| !rest.is_empty())
        };
        let slot = |text: &str| {
            let named =
                ["header:", "query:", "json:/"].iter().find_map(|prefix| text.strip_prefix(prefix));
            text == "basic" || named.is_some_and(|rest| !rest.is_empty())
        };
        let from = checked(&section, "from", source, "write \"env:NAME\" or \"vault:NAME\"");
        let slot = checked(
            &section,
            "slot",
            slot,
            "write \"header:NAME\", \"basic\", \"query:NAME\" or \"json:/POINTER\"",
        );
        if let (Some(from), Some(slot), Some(hosts)) = (from, slot, hosts(&section)) {
            bindings.push(SecretBinding {
                name: Arc::from(name.value.as_str()),
                from,
                hosts,
                slot,
                line: section.line(),
            });
        }
    }
    Some(bindings)
}

fn checked(
    section: &Section<'_>,
    key: &str,
    good: impl Fn(&str) -> bool,
    remedy: &str,
) -> Option<String> {
    let text = section.required_text(key, remedy)?;
    if good(&text.value) {
        return Some(text.value);
    }
    section.problem(&text.span, key, format!("`{key}` is \"{}\"", shown(&text.value)), remedy);
    None
}

pub(super) fn bash(root: &Section<'_>) -> Option<BashSection> {
    let section = root.table("bash", &["action"])?;
    action(&section).map(|action| BashSection { action })
}

pub(super) fn native(root: &Section<'_>) -> Option<NativeSection> {
    let section = root.table("native", &["tiers", "guarantees"])?;
    let words = |key: &str, known: &'static [&'static str]| {
        let texts = section.texts(key).unwrap_or_default();
        let choices: Vec<(&'static str, &'static str)> =
            known.iter().map(|name| (*name, *name)).collect();
        let words =
            texts.iter().filter_map(|text| section.word(text, key, &choices)).map(str::to_owned);
        words.collect::<Vec<_>>()
    };
    let native = NativeSection {
        tiers: words("tiers", NATIVE_TIERS),
        guarantees: words("guarantees", NATIVE_GUARANTEES),
    };
    if native.tiers.len() > 1 && native.tiers.iter().any(|tier| tier == "process") {
        let message = "`tiers` names \"process\", which is no boundary, beside others";
        section.problem(&section.span, "tiers", message, "name it alone, or not at all");
    }
    Some(native)
}

pub(super) fn examples(root: &Section<'_>) -> Vec<Example> {
    let sections = root.tables("example", &["request", "expect"]);
    sections.iter().filter_map(example).collect()
}

fn example(section: &Section<'_>) -> Option<Example> {
    let request =
        section.required_text("request", "write one such as request = \"fs.read /work/x\"");
    let parsed = request.and_then(|request| match Question::parse(&request.value) {
        Ok(question) => Some((request, question)),
        Err(error) => {
            section.problem(&request.span, "request", error.to_string(), error.remedy());
            None
        }
    });
    if !section.has("expect") {
        section.missing("expect", "write \"allow\", \"deny\" or \"ask\"");
    }
    let expect = section.choice("expect", VERDICTS);
    let (request, question) = parsed?;
    let line = section.report.line(&request.span);
    Some(Example { request: request.value, question, expect: expect?, line })
}
