//! From OpenShell's fields to rules of ours.
//!
//! Invariant: every rule made here lets through at most what its source lets
//! through there.

use std::sync::Arc;

use super::schema::{At, Document, Endpoint, Filesystem, NetworkRule, Refused, Request};
use super::{place, problem};
use crate::address::AddressGrant;
use crate::glob::PathGlob;
use crate::host::{HostPattern, shown};
use crate::network::{METHODS, MethodPreset};
use crate::path::GuestPath;
use crate::policy::Access;
use crate::rules::Action;
use crate::rules::net::NetRule;
use crate::text::problem::Problem;
use crate::text::{FsSection, MountDeclaration, PolicyFile};

const DROP: &str = "remove it, or run this policy with OpenShell";
/// What every guest has of its own, and what it may do there.
const OWN: &[(&str, Access)] = &[
    ("/tmp", Access::ReadWrite),
    ("/dev/null", Access::ReadWrite),
    ("/dev/urandom", Access::ReadOnly),
];

#[derive(Default)]
struct Problems(Vec<Problem>);

impl Problems {
    fn add<T>(&mut self, at: &At<T>, key: &str, message: String, remedy: impl Into<String>) {
        self.0.push(problem(place(&at.referenced), key, message, remedy));
    }

    fn refuse(&mut self, key: &str, field: &Refused) {
        if let Some(at) = field {
            self.add(at, key, format!("`{key}` cannot be honoured here"), DROP);
        }
    }

    fn refuse_true(&mut self, key: &str, field: Option<&At<bool>>) {
        if let Some(at) = field.filter(|at| at.value) {
            self.add(at, key, format!("`{key}` cannot be honoured here"), DROP);
        }
    }

    /// A word that must be one of a few.
    fn word(&mut self, key: &str, field: Option<&At<String>>, accepted: &[&str], why: &str) {
        if let Some(at) = field.filter(|at| !accepted.contains(&at.value.as_str())) {
            let message = format!("`{key}: {}` cannot be honoured here: {why}", shown(&at.value));
            self.add(at, key, message, DROP);
        }
    }
}

pub(super) fn file(document: Document, name: &str) -> Result<PolicyFile, Vec<Problem>> {
    let mut problems = Problems::default();
    if document.version.value != 1 {
        let message = format!("version {} is not known", document.version.value);
        problems.add(&document.version, "version", message, "write version: 1");
    }
    problems.refuse("process", &document.process);
    problems.refuse("network_middlewares", &document.network_middlewares);
    if let Some(landlock) = &document.landlock {
        let why = "a guarantee that is missing is always refused";
        let field = landlock.compatibility.as_ref();
        problems.word("landlock.compatibility", field, &["hard_requirement"], why);
    }
    let mut rules = Vec::new();
    for (key, rule) in &document.network_policies {
        network_rule(key, &rule.value, &mut rules, &mut problems);
    }
    let mounts = document.filesystem_policy.as_ref().map(|fs| mounts(fs, &mut problems));
    if !problems.0.is_empty() {
        problems.0.sort_by_key(|problem| (problem.line, problem.column));
        return Err(problems.0);
    }
    Ok(PolicyFile {
        name: name.to_owned(),
        net: Some(rules),
        fs: mounts.map(|mounts| FsSection { mounts, ..FsSection::default() }),
        ..PolicyFile::default()
    })
}

fn mounts(fs: &Filesystem, problems: &mut Problems) -> Vec<MountDeclaration> {
    if let Some(at) = fs.include_workdir.as_ref().filter(|at| at.value) {
        let message = "`include_workdir` names no directory".to_owned();
        let remedy = "write false and give the directory with --mount";
        problems.add(at, "filesystem_policy.include_workdir", message, remedy);
    }
    let lists = [
        ("read_only", &fs.read_only, Access::ReadOnly),
        ("read_write", &fs.read_write, Access::ReadWrite),
    ];
    let mut mounts = Vec::new();
    for (key, list, access) in lists {
        for (index, written) in list.iter().enumerate() {
            if let Some((own, has)) = OWN.iter().find(|(own, _)| *own == written.value) {
                if *has != access {
                    own_problem(key, own, *has, written, problems);
                }
                continue;
            }
            let parsed = GuestPath::parse(&GuestPath::root(), written.value.as_bytes());
            let at = parsed.map(|found| found.path).ok().filter(|at| {
                written.value.starts_with('/')
                    && at.as_bytes() == written.value.as_bytes()
                    && !at.is_root()
            });
            let special = ["/proc", "/sys", "/dev"].iter().any(|top| {
                written
                    .value
                    .strip_prefix(top)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            });
            match at {
                Some(at) if !special => mounts.push(MountDeclaration {
                    id: Arc::from(format!("openshell-{key}-{index}").replace('_', "-")),
                    at,
                    host: written.value.clone(),
                    access,
                    line: place(&written.referenced).0,
                }),
                _ => {
                    let message = format!(
                        "`{key}` has \"{}\", which cannot be a mount",
                        shown(&written.value)
                    );
                    problems.add(
                        written,
                        key,
                        message,
                        "remove it, or write an absolute path in its shortest form",
                    );
                }
            }
        }
    }
    mounts
}

/// What a guest has of its own is as it is: neither less nor more can be had.
fn own_problem(key: &str, own: &str, has: Access, written: &At<String>, problems: &mut Problems) {
    let (is, list) = match has {
        Access::ReadOnly => ("only read", "read_only"),
        Access::ReadWrite => ("written as well", "read_write"),
    };
    let message = format!("`{key}` has \"{own}\", which every guest has of its own and is {is}");
    problems.add(written, key, message, format!("remove it, or write it under `{list}`"));
}

fn network_rule(key: &str, rule: &NetworkRule, rules: &mut Vec<NetRule>, problems: &mut Problems) {
    if let Some(binaries) = &rule.binaries {
        // No binary runs here; only "any" means the same in both places.
        let any = binaries.value.iter().any(|binary| binary.pattern() == "/**");
        if !any {
            let message = "`binaries` names programs, and there are none here".to_owned();
            let remedy = "remove it, or write binaries: [{path: \"/**\"}]";
            problems.add(binaries, "binaries", message, remedy);
        }
    }
    let name = rule.name.as_deref().unwrap_or(key);
    for (index, endpoint) in rule.endpoints.iter().enumerate() {
        let place = Place { name: identifier(name), index, line: place(&endpoint.referenced).0 };
        endpoint_rules(&place, endpoint, rules, problems);
    }
}

/// Where an endpoint stands, for the ids of its rules.
struct Place {
    name: String,
    index: usize,
    line: usize,
}

fn identifier(name: &str) -> String {
    let letter = |letter: char| {
        let plain = letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.');
        if plain { letter } else { '-' }
    };
    name.chars().take(40).map(letter).collect()
}

fn refuse_fields(endpoint: &Endpoint, problems: &mut Problems) {
    for (key, field) in [
        ("allowed_ips", &endpoint.allowed_ips),
        ("credential_signing", &endpoint.credential_signing),
        ("signing_service", &endpoint.signing_service),
        ("signing_region", &endpoint.signing_region),
        ("credential_binding", &endpoint.credential_binding),
        ("graphql_body_cap", &endpoint.graphql_body_cap),
        ("json_rpc_body_cap", &endpoint.json_rpc_body_cap),
    ] {
        problems.refuse(key, field);
    }
    for (key, field) in [
        ("allow_encoded_slash", &endpoint.allow_encoded_slash),
        ("websocket_credential_rewrite", &endpoint.websocket_credential_rewrite),
        ("request_body_credential_rewrite", &endpoint.request_body_credential_rewrite),
        ("allow_uninspected_credentials", &endpoint.allow_uninspected_credentials),
    ] {
        problems.refuse_true(key, field.as_ref());
    }
    problems.word("protocol", endpoint.protocol.as_ref(), &["rest"], "requests are http and https");
    problems.word("enforcement", endpoint.enforcement.as_ref(), &["enforce"], "rules are enforced");
    problems.word("tls", endpoint.tls.as_ref(), &["terminate"], "requests are made by the broker");
}

fn ports(endpoint: &Endpoint, problems: &mut Problems) -> Vec<u16> {
    let one = endpoint.port.iter().map(|port| port.value);
    let many = endpoint.ports.iter().flat_map(|ports| ports.value.iter().copied());
    let mut ports = Vec::new();
    for written in one.chain(many) {
        match u16::try_from(written).ok().filter(|port| *port != 0) {
            Some(port) => ports.push(port),
            None => problems.add(
                &endpoint.host,
                "ports",
                format!("{written} is not a port"),
                "write 1 to 65535",
            ),
        }
    }
    if endpoint.port.is_none() && ports.is_empty() {
        let message = "the endpoint has no port".to_owned();
        problems.add(&endpoint.host, "port", message, "write one, such as port: 443");
    }
    ports.sort_unstable();
    ports.dedup();
    ports
}

fn endpoint_rules(
    at: &Place,
    endpoint: &At<Endpoint>,
    rules: &mut Vec<NetRule>,
    problems: &mut Problems,
) {
    let endpoint = &endpoint.value;
    refuse_fields(endpoint, problems);
    let host = match HostPattern::parse(&endpoint.host.value.to_ascii_lowercase()) {
        Ok(host) => host,
        Err(error) => {
            problems.add(&endpoint.host, "host", error.to_string(), error.remedy());
            return;
        }
    };
    let base = NetRule {
        id: Arc::from(""),
        action: Action::Allow,
        hosts: vec![host],
        ports: Some(ports(endpoint, problems)),
        https_only: false,
        methods: None,
        paths: endpoint.path.as_ref().and_then(|path| paths(path, problems)),
        secrets: Vec::new(),
        max_bytes: None,
        addresses: AddressGrant::Public,
        max_requests: None,
        max_total_bytes: None,
        line: at.line,
    };
    let mut push = |kind: &str, number: usize, rule: NetRule| {
        let id = Arc::from(format!("{}-{}-{kind}{number}", at.name, at.index));
        rules.push(NetRule { id, ..rule });
    };
    for (number, written) in endpoint.deny_rules.iter().flat_map(|rules| &rules.value).enumerate() {
        let (methods, paths) = request(&written.value, problems);
        let rule = NetRule { action: Action::Deny, methods, paths, ..base.clone() };
        push("deny", number, rule);
    }
    match (&endpoint.access, &endpoint.rules) {
        (Some(access), Some(_)) => {
            let message = "an endpoint has both `access` and `rules`".to_owned();
            problems.add(access, "access", message, "keep one of them");
        }
        (Some(access), None) => {
            let preset = MethodPreset::ALL.iter().find(|(name, _)| *name == access.value);
            match preset {
                Some((_, preset)) => {
                    push("access", 0, NetRule { methods: preset.methods(), ..base.clone() })
                }
                None => problems.add(
                    access,
                    "access",
                    format!("`access` is \"{}\"", shown(&access.value)),
                    "write read-only, read-write or full",
                ),
            }
        }
        (None, Some(written)) => {
            if let Some(path) = &endpoint.path {
                let message = "an endpoint has both `path` and `rules`".to_owned();
                problems.add(path, "path", message, "write the path in the rules alone");
            }
            if written.value.is_empty() {
                let message = "`rules` is empty, so it would match nothing".to_owned();
                problems.add(written, "rules", message, "remove the endpoint");
            }
            for (number, written) in written.value.iter().enumerate() {
                let (methods, paths) = request(&written.value.allow, problems);
                push("allow", number, NetRule { methods, paths, ..base.clone() });
            }
        }
        (None, None) => push("all", 0, base.clone()),
    }
    if let Some(empty) = endpoint.deny_rules.as_ref().filter(|rules| rules.value.is_empty()) {
        let message = "`deny_rules` is empty".to_owned();
        problems.add(empty, "deny_rules", message, "remove it");
    }
}

type Methods = Option<Vec<&'static str>>;

fn request(written: &Request, problems: &mut Problems) -> (Methods, Option<Vec<PathGlob>>) {
    for (key, field) in [
        ("query", &written.query),
        ("operation_type", &written.operation_type),
        ("operation_name", &written.operation_name),
        ("fields", &written.fields),
        ("tool", &written.tool),
    ] {
        problems.refuse(key, field);
    }
    let methods = written.method.as_ref().and_then(|at| {
        if at.value == "*" {
            return None;
        }
        let upper = at.value.to_ascii_uppercase();
        let known = METHODS.iter().find(|known| **known == upper).copied();
        if known.is_none() {
            let message = format!("`method` is \"{}\"", shown(&at.value));
            problems.add(at, "method", message, "write * or an HTTP method");
        }
        Some(known.into_iter().collect())
    });
    (methods, written.path.as_ref().and_then(|path| paths(path, problems)))
}

/// A path pattern; `**` is every path.
fn paths(at: &At<String>, problems: &mut Problems) -> Option<Vec<PathGlob>> {
    if at.value == "**" {
        return None;
    }
    match PathGlob::parse_url(&at.value) {
        Ok(pattern) => Some(vec![pattern]),
        Err(error) => {
            let message = format!("`path` is \"{}\": {error}", shown(&at.value));
            problems.add(at, "path", message, error.remedy());
            Some(Vec::new())
        }
    }
}
