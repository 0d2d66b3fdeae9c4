//! The sections about files, variables, tools and budgets.
//!
//! Invariant: as in [`super::section`]: what is not understood is reported.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;
use toml::de::DeValue;

use super::section::{At, Section, quoted, suggestion};
use super::{EnvironmentSection, FlagMode, FsSection, MountDeclaration, PolicyFile, effects};
use crate::budget::{BUDGET_NUMBERS, BudgetPreset, BudgetSettings};
use crate::environment::EnvRequest;
use crate::glob::PathGlob;
use crate::host::shown;
use crate::path::GuestPath;
use crate::policy::Access;
use crate::rules::Action;
use crate::rules::constraint::{ArgumentConstraint, Check, Pattern, compare};
use crate::rules::fs::{FS_OPERATIONS, FsOperations, FsRule};
use crate::rules::tools::ToolRule;
use crate::tool::{MAX_TOOL_NAME_BYTES, is_tool_name};
use crate::wildcard::Wildcard;

/// Ids that name decisions no rule of a policy makes.
const RESERVED_IDS: &[&str] = &[
    "memory",
    "default-deny",
    "budget",
    "audit",
    "registered",
    "env",
    "bash",
    "stream",
    "address",
    "redirect",
    "header",
    "url",
    "method",
];
const ACTIONS: &[(&str, Action)] =
    &[("allow", Action::Allow), ("deny", Action::Deny), ("ask", Action::Ask)];
const MODES: &[(&str, FlagMode)] = &[("narrow", FlagMode::Narrow), ("extend", FlagMode::Extend)];
const MEMORY: &[(&str, Option<Access>)] = &[
    ("read-write", Some(Access::ReadWrite)),
    ("read-only", Some(Access::ReadOnly)),
    ("none", None),
];
const ACCESS: &[(&str, Access)] =
    &[("read-only", Access::ReadOnly), ("read-write", Access::ReadWrite)];

/// Longest time a request may wait for an approver, in seconds.
const MAX_ASK_TTL_S: u64 = 24 * 60 * 60;

/// Reads every section.
pub(super) fn read(root: &Section<'_>, name: &str) -> PolicyFile {
    if !root.has("version") {
        root.problem(&(0..0), "version", "the text has no `version`", "begin it with version = 1");
    }
    if let Some(version) = root.integer("version").filter(|version| version.value != 1) {
        let message = format!("version {} is not known to this build", version.value);
        root.problem(&version.span, "version", message, "write version = 1");
    }
    PolicyFile {
        name: name.to_owned(),
        flags: root.choice("flags", MODES).unwrap_or_default(),
        fs: root.table("fs", &["memory", "mounts", "rules"]).map(|section| files(&section)),
        net: effects::network(root),
        environment: root.table("env", &["set", "allow"]).map(|section| environment(&section)),
        secrets: effects::secrets(root),
        bash: effects::bash(root),
        tools: root.table("tools", &["rules"]).map(|section| tools(&section)),
        budget: budget(root),
        ask_ttl_ms: ask(root),
        native: effects::native(root),
        examples: effects::examples(root),
    }
}

pub(super) fn action(section: &Section<'_>) -> Option<Action> {
    if section.has("action") { section.choice("action", ACTIONS) } else { Some(Action::Allow) }
}

/// The id of a rule.
pub(super) fn identifier(section: &Section<'_>) -> Option<Arc<str>> {
    let id = section.required_text("id", "give it an id of its own; denials will show it")?;
    if RESERVED_IDS.contains(&id.value.as_str()) {
        section.problem(
            &id.span,
            "id",
            format!("the id \"{}\" is the broker's own", id.value),
            "choose another",
        );
        return None;
    }
    if !is_tool_name(&id.value) {
        let message = format!("\"{}\" is not an id", shown(&id.value));
        section.problem(
            &id.span,
            "id",
            message,
            "use at most 64 letters, digits, `_`, `-` and `.`",
        );
        return None;
    }
    Some(Arc::from(id.value))
}

/// Every text of a list that a parser accepts; the others are reported.
pub(super) fn each<T>(
    section: &Section<'_>,
    key: &str,
    texts: &[At<String>],
    parse: impl Fn(&At<String>) -> Result<T, (String, String)>,
) -> Vec<T> {
    let mut parsed = Vec::with_capacity(texts.len());
    for text in texts {
        match parse(text) {
            Ok(value) => parsed.push(value),
            Err((message, remedy)) => section.problem(&text.span, key, message, remedy),
        }
    }
    parsed
}

/// A list that must be there.
pub(super) fn required_texts(
    section: &Section<'_>,
    key: &str,
    remedy: &str,
) -> Option<Vec<At<String>>> {
    if !section.has(key) {
        section.missing(key, remedy);
    }
    section.texts(key)
}

fn files(section: &Section<'_>) -> FsSection {
    let memory = section.choice("memory", MEMORY);
    let mounts = section.tables("mounts", &["id", "at", "host", "access"]);
    let rules = section.tables("rules", &["id", "action", "paths", "operations"]);
    FsSection {
        memory,
        mounts: mounts.iter().filter_map(mount).collect(),
        rules: rules.iter().filter_map(fs_rule).collect(),
    }
}

fn mount(section: &Section<'_>) -> Option<MountDeclaration> {
    let id = identifier(section);
    let at =
        section.required_text("at", "say where the guest sees it, such as at = \"/work/data\"");
    let at = at.and_then(|at| mount_point(section, &at));
    let host = section
        .required_text("host", "name the directory of the host, such as host = \"/srv/data\"");
    let host = host.and_then(|host| host_directory(section, &host));
    let access = if section.has("access") {
        section.choice("access", ACCESS)
    } else {
        Some(Access::ReadOnly)
    };
    Some(MountDeclaration { id: id?, at: at?, host: host?, access: access?, line: section.line() })
}

fn mount_point(section: &Section<'_>, at: &At<String>) -> Option<GuestPath> {
    let parsed = GuestPath::parse(&GuestPath::root(), at.value.as_bytes());
    let path = match parsed {
        Ok(found) => found.path,
        Err(error) => {
            section.problem(
                &at.span,
                "at",
                format!("`at` is not a path: {error}"),
                "write one such as \"/work/data\"",
            );
            return None;
        }
    };
    if path.as_bytes() != at.value.as_bytes() {
        let message = format!("`at` is \"{}\", which is `{path}`", shown(&at.value));
        section.problem(&at.span, "at", message, format!("write \"{path}\" if it is meant"));
        return None;
    }
    Some(path)
}

fn host_directory(section: &Section<'_>, host: &At<String>) -> Option<String> {
    let text = &host.value;
    let odd = text.len() > 1
        && text.split('/').skip(1).any(|component| matches!(component, "" | "." | ".."));
    if !text.starts_with('/') || odd || text.contains('\0') {
        let message = format!("`host` is \"{}\"", shown(text));
        section.problem(
            &host.span,
            "host",
            message,
            "write an absolute path in its shortest form, without `.`, `..` and a final slash",
        );
        return None;
    }
    Some(text.clone())
}

fn fs_rule(section: &Section<'_>) -> Option<FsRule> {
    let id = identifier(section);
    let action = action(section);
    let texts =
        required_texts(section, "paths", "name at least one path pattern, such as \"/work/**\"");
    let parse = |text: &At<String>| {
        PathGlob::parse(&text.value).map_err(|error| {
            (format!("`paths` has \"{}\": {error}", shown(&text.value)), error.remedy())
        })
    };
    let paths = texts.map(|texts| each(section, "paths", &texts, parse));
    let operations = section.texts("operations").map(|texts| {
        let parse = |text: &At<String>| {
            FsOperations::named(&text.value).ok_or_else(|| unknown_operation(&text.value))
        };
        each(section, "operations", &texts, parse)
            .into_iter()
            .fold(FsOperations::NONE, FsOperations::with)
    });
    let operations = if section.has("operations") { operations } else { Some(FsOperations::ALL) };
    Some(FsRule {
        id: id?,
        action: action?,
        paths: paths?,
        operations: operations?,
        line: section.line(),
    })
}

fn unknown_operation(written: &str) -> (String, String) {
    let message = format!("`operations` has \"{}\"", shown(written));
    if let Some(rest) =
        written.strip_prefix("fs.").filter(|rest| FsOperations::named(rest).is_some())
    {
        return (message, format!("write \"{rest}\", without `fs.`"));
    }
    let remedy = suggestion(written, &FS_OPERATIONS).map_or_else(
        || format!("write \"read\", \"write\" or of {}", quoted(&FS_OPERATIONS)),
        |known| format!("did you mean \"{known}\"?"),
    );
    (message, remedy)
}

fn environment(section: &Section<'_>) -> EnvironmentSection {
    let check = |key: &str, name: &At<String>| {
        let good = EnvRequest::parse(&name.value).is_ok();
        if !good {
            let message = format!("\"{}\" is not the name of a variable", shown(&name.value));
            section.problem(&name.span, key, message, "use 1 to 255 bytes without `=` and NUL");
        }
        good
    };
    let mut environment = EnvironmentSection::default();
    for (name, value) in section.entries("set") {
        match value.get_ref() {
            DeValue::String(text) if !text.contains('\0') => {
                if check("set", &name) {
                    environment.set.insert(name.value, text.to_string());
                }
            }
            _ => section.wrong_type(value, "set", "a string in quotes, without NUL"),
        }
    }
    let allow = section.texts("allow").unwrap_or_default();
    environment.allow = allow
        .into_iter()
        .filter(|name| check("allow", name))
        .map(|name| name.value)
        .collect::<BTreeSet<_>>();
    environment
}

fn tools(section: &Section<'_>) -> Vec<ToolRule> {
    const KEYS: &[&str] = &[
        "id",
        "action",
        "tools",
        "max_calls",
        "max_request_bytes",
        "max_response_bytes",
        "arguments",
    ];
    section.tables("rules", KEYS).iter().filter_map(tool_rule).collect()
}

fn tool_rule(section: &Section<'_>) -> Option<ToolRule> {
    let id = identifier(section);
    let action = action(section);
    let texts =
        required_texts(section, "tools", "name at least one tool, such as tools = [\"search_*\"]");
    let names = texts.map(|texts| each(section, "tools", &texts, |text| tool_pattern(&text.value)));
    let sections =
        section.tables("arguments", &["pointer", "equals", "min", "max", "pattern", "one_of"]);
    let arguments: Vec<_> = sections.iter().filter_map(argument).collect();
    let bound = |key| section.integer(key).map(|number| number.value);
    let rule = ToolRule {
        id: id?,
        action: action?,
        tools: names?,
        arguments,
        max_calls: bound("max_calls"),
        max_request_bytes: bound("max_request_bytes"),
        max_response_bytes: bound("max_response_bytes"),
        line: section.line(),
    };
    if rule.action == Action::Deny && !rule.obligations().is_empty() {
        section.problem(
            &section.span,
            "action",
            format!("rule \"{}\" denies and has bounds", rule.id),
            "remove the bounds or the denial",
        );
    }
    Some(rule)
}

fn tool_pattern(text: &str) -> Result<Wildcard, (String, String)> {
    let pattern = Wildcard::new(text);
    let plain = text.replace('*', "x");
    if text.len() > MAX_TOOL_NAME_BYTES || !is_tool_name(&plain) {
        let remedy = "use at most 64 letters, digits, `_`, `-`, `.` and `*`".to_owned();
        return Err((format!("\"{}\" can match no tool", shown(text)), remedy));
    }
    Ok(pattern)
}

fn argument(section: &Section<'_>) -> Option<ArgumentConstraint> {
    let pointer =
        section.required_text("pointer", "say which argument, such as pointer = \"/amount\"");
    let pointer = pointer.and_then(|pointer| json_pointer(section, &pointer));
    let kinds = ["equals", "pattern", "one_of"].iter().filter(|key| section.has(key)).count();
    let range = section.has("min") || section.has("max");
    if kinds.saturating_add(usize::from(range)) != 1 {
        let message = "a constraint has exactly one of equals, min and max, pattern, one_of";
        section.problem(&section.span, "", message, "write one constraint each; all must hold");
        return None;
    }
    let check = if range {
        range_check(section)
    } else if section.has("pattern") {
        let text = section.text("pattern");
        text.and_then(|text| pattern_check(section, &text))
    } else if section.has("equals") {
        section.json("equals").map(Check::Equals)
    } else {
        match section.json("one_of") {
            Some(Value::Array(values)) if !values.is_empty() => Some(Check::OneOf(values)),
            Some(_) => {
                section.problem(
                    &section.span,
                    "one_of",
                    "`one_of` is not a list with entries",
                    "write one_of = [\"a\", \"b\"]",
                );
                None
            }
            None => None,
        }
    };
    Some(ArgumentConstraint { pointer: pointer?, check: check? })
}

fn range_check(section: &Section<'_>) -> Option<Check> {
    let (min, max) = (section.number("min"), section.number("max"));
    if (section.has("min") && min.is_none()) || (section.has("max") && max.is_none()) {
        return None;
    }
    let crossed = min
        .as_ref()
        .zip(max.as_ref())
        .is_some_and(|(min, max)| compare(min, max).is_none_or(std::cmp::Ordering::is_gt));
    if crossed {
        section.problem(
            &section.span,
            "min",
            "`min` is more than `max`, so no value is accepted",
            "exchange them",
        );
        return None;
    }
    Some(Check::Range { min, max })
}

fn pattern_check(section: &Section<'_>, text: &At<String>) -> Option<Check> {
    match Pattern::new(&text.value) {
        Ok(pattern) => Some(Check::Pattern(pattern)),
        Err(error) => {
            let remedy = "write a regular expression in the syntax of the Rust crate `regex`, which has no look-around";
            section.problem(
                &text.span,
                "pattern",
                format!("`pattern` cannot be used: {}", shown(&error)),
                remedy,
            );
            None
        }
    }
}

fn json_pointer(section: &Section<'_>, pointer: &At<String>) -> Option<String> {
    let text = &pointer.value;
    let tildes = text.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']));
    if !text.starts_with('/') || !tildes {
        let message = format!("`pointer` is \"{}\"", shown(text));
        section.problem(
            &pointer.span,
            "pointer",
            message,
            "write a JSON pointer such as \"/customer/id\"; ~1 is a slash, ~0 a tilde",
        );
        return None;
    }
    Some(text.clone())
}

fn budget(root: &Section<'_>) -> BudgetSettings {
    const KEYS: [&str; BUDGET_NUMBERS.len() + 2] = {
        let mut keys = ["preset"; BUDGET_NUMBERS.len() + 2];
        let mut index = 0;
        #[allow(clippy::indexing_slicing)] // evaluated by the compiler
        while index < BUDGET_NUMBERS.len() {
            keys[index + 2] = BUDGET_NUMBERS[index].key;
            index += 1;
        }
        #[allow(clippy::indexing_slicing)]
        {
            keys[1] = "tool_calls";
        }
        keys
    };
    const KNOWN: &[&str] = &KEYS;
    let mut settings = BudgetSettings::default();
    let Some(section) = root.table("budget", KNOWN) else { return settings };
    settings.preset = section.choice("preset", &BudgetPreset::ALL);
    for number in BUDGET_NUMBERS {
        let Some(value) = section.scaled(number.key, number.scale) else { continue };
        if (number.least..=number.most).contains(&value.value) {
            settings.set(number.key, value.value);
        } else {
            let (least, most) =
                (in_unit(number.least, number.scale), in_unit(number.most, number.scale));
            section.problem(
                &value.span,
                number.key,
                format!("`{}` is out of range", number.key),
                format!("write {least} to {most}"),
            );
        }
    }
    for (tool, value) in section.entries("tool_calls") {
        let calls = match value.get_ref() {
            DeValue::Integer(calls) => u64::from_str_radix(calls.as_str(), calls.radix()).ok(),
            _ => None,
        };
        match calls {
            Some(calls) if is_tool_name(&tool.value) => {
                settings.tool_calls.insert(tool.value, calls);
            }
            _ => {
                let message = format!("`tool_calls` has \"{}\"", shown(&tool.value));
                section.problem(&tool.span, "tool_calls", message, "write the name of a tool = a whole number; patterns are for max_calls of a rule");
            }
        }
    }
    settings
}

fn in_unit(value: u64, scale: u64) -> String {
    if value.is_multiple_of(scale) {
        return (value / scale).to_string();
    }
    #[allow(clippy::cast_precision_loss)]
    let fraction = value as f64 / scale as f64;
    fraction.to_string()
}

fn ask(root: &Section<'_>) -> Option<u64> {
    let section = root.table("ask", &["ttl_s"])?;
    let ttl = section.scaled("ttl_s", 1000)?;
    let most = MAX_ASK_TTL_S.saturating_mul(1000);
    if !(1..=most).contains(&ttl.value) {
        let message = "`ttl_s` is out of range";
        section.problem(
            &ttl.span,
            "ttl_s",
            message,
            format!("write 0.001 to {MAX_ASK_TTL_S} seconds"),
        );
        return None;
    }
    Some(ttl.value)
}
