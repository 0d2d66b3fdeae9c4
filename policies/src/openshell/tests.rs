//! Vectors of OpenShell's own engine, and what is refused.

use crate::network::NetRequest;
use crate::policy::{Policy, Verdict};
use crate::text::PolicyFile;

fn policy(yaml: &str) -> Policy {
    let file =
        PolicyFile::parse_openshell(yaml, "policy.yaml").unwrap_or_else(|error| panic!("{error}"));
    Policy::combine(Some(&file), &crate::Flags::default(), None).unwrap().policy
}

fn allowed(policy: &Policy, method: &str, url: &str) -> bool {
    let request = NetRequest::parse(method, url).unwrap_or_else(|error| panic!("{url}: {error}"));
    policy.decide_network(&request).decision.verdict == Verdict::Allow
}

fn problems(yaml: &str) -> Vec<String> {
    match PolicyFile::parse_openshell(yaml, "p") {
        Ok(_) => Vec::new(),
        Err(errors) => errors.to_string().lines().map(str::to_owned).collect(),
    }
}

fn endpoint(fields: &str) -> String {
    format!(
        "version: 1\nnetwork_policies:\n  api:\n    name: api\n    endpoints:\n      - {{host: api.example.com, port: 443{fields}}}\n"
    )
}

fn rule(method: &str, path: &str) -> Policy {
    policy(&endpoint(&format!(
        ", protocol: rest, rules: [{{allow: {{method: '{method}', path: '{path}'}}}}]"
    )))
}

#[test]
fn path_vectors() {
    for (pattern, path, want) in [
        ("/repos/*/issues", "/repos/acme/issues", true),
        ("/repos/*/issues", "/repos/acme/x/issues", false),
        ("/repos/*", "/repos/a/b", false),
        ("/repos/**", "/repos/a/b", true),
        ("/repos/**", "/repos/", true),
        ("/repos/**", "/repos", false),
        ("**", "/anything/at/all", true),
        ("**", "/", true),
        ("/api/*", "/api/a", true),
        ("/api/*", "/api/a/b", false),
    ] {
        let policy = rule("GET", pattern);
        let url = format!("https://api.example.com{path}");
        assert_eq!(allowed(&policy, "GET", &url), want, "{pattern} {path}");
    }
    // What these mean there cannot be said here.
    for pattern in ["*", "/a?c", "/v[0-9]/x", "/v[!0]/x"] {
        let yaml = endpoint(&format!(", rules: [{{allow: {{method: GET, path: '{pattern}'}}}}]"));
        assert_eq!(problems(&yaml).len(), 1, "{pattern}");
    }
    let selected = policy(&endpoint(", path: '/api/*'"));
    assert!(allowed(&selected, "POST", "https://api.example.com/api/a"));
    assert!(!allowed(&selected, "POST", "https://api.example.com/api/a/b"));
}

#[test]
fn method_vectors() {
    for (rule_method, method, want) in [
        ("GET", "GET", true),
        ("GET", "HEAD", true),
        ("HEAD", "GET", false),
        ("HEAD", "HEAD", true),
        ("get", "GET", true),
        ("*", "DELETE", true),
        ("POST", "GET", false),
    ] {
        let policy = rule(rule_method, "**");
        assert_eq!(
            allowed(&policy, method, "https://api.example.com/"),
            want,
            "{rule_method} {method}"
        );
    }
    for (access, allowed_methods) in [
        ("read-only", "GET HEAD OPTIONS"),
        ("read-write", "GET HEAD OPTIONS POST PUT PATCH"),
        ("full", "GET HEAD OPTIONS POST PUT PATCH DELETE"),
    ] {
        let policy = policy(&endpoint(&format!(", protocol: rest, access: {access}")));
        for method in crate::METHODS {
            let want = allowed_methods.split(' ').any(|known| known == *method);
            assert_eq!(
                allowed(&policy, method, "https://api.example.com/"),
                want,
                "{access} {method}"
            );
        }
    }
}

#[test]
fn host_vectors() {
    for (pattern, host, want) in [
        ("*.example.com", "a.example.com", true),
        ("*.example.com", "a.b.example.com", false),
        ("*.example.com", "example.com", false),
        ("**.example.com", "a.b.example.com", true),
        ("**.example.com", "example.com", false),
        ("API.Example.com", "api.example.com", true),
    ] {
        let policy = policy(&format!(
            "version: 1\nnetwork_policies: {{a: {{endpoints: [{{host: '{pattern}', ports: [443, 8443]}}], binaries: ['/**']}}}}\n"
        ));
        for port in ["", ":8443"] {
            let url = format!("https://{host}{port}/");
            assert_eq!(allowed(&policy, "GET", &url), want, "{pattern} {url}");
        }
        assert!(!allowed(&policy, "GET", &format!("https://{host}:444/")));
    }
    // Stars inside names have no counterpart.
    for pattern in ["*-x.example.com", "*.s3.*.example.com", "*", "*.com"] {
        let yaml = format!(
            "version: 1\nnetwork_policies: {{a: {{endpoints: [{{host: '{pattern}', port: 443}}]}}}}\n"
        );
        assert_eq!(problems(&yaml).len(), 1, "{pattern}");
    }
}

#[test]
fn deny_vectors() {
    for allow in ["access: full", "rules: [{allow: {method: '*', path: '**'}}]"] {
        let policy = policy(&endpoint(&format!(
            ", {allow}, deny_rules: [{{method: DELETE}}, {{method: POST, path: '/admin/**'}}]"
        )));
        assert!(allowed(&policy, "GET", "https://api.example.com/admin/x"));
        assert!(allowed(&policy, "POST", "https://api.example.com/x"));
        assert!(!allowed(&policy, "POST", "https://api.example.com/admin/x"));
        assert!(!allowed(&policy, "DELETE", "https://api.example.com/x"));
    }
    let nothing = policy("version: 1\n");
    assert!(!allowed(&nothing, "GET", "https://api.example.com/"));
}

#[test]
fn what_cannot_be_honoured_is_named_with_its_line() {
    for field in [
        "enforcement: audit",
        "protocol: tcp",
        "protocol: websocket",
        "protocol: graphql",
        "protocol: sql",
        "tls: skip",
        "allowed_ips: ['10.0.0.0/8']",
        "allow_encoded_slash: true",
        "websocket_credential_rewrite: true",
        "request_body_credential_rewrite: true",
        "allow_uninspected_credentials: true",
        "credential_signing: sigv4",
        "credential_binding: {provider: x}",
        "rules: []",
        "deny_rules: []",
        "access: read-only, rules: [{allow: {method: GET}}]",
        "access: some",
        "rules: [{allow: {method: GET, query: {a: b}}}]",
        "rules: [{allow: {method: FETCH}}]",
        "unknown_field: 1",
        "port: 0",
    ] {
        let yaml = if field.starts_with("port") {
            endpoint("").replace("port: 443", field)
        } else {
            endpoint(&format!(", {field}"))
        };
        let found = problems(&yaml);
        assert!(
            found.len() == 1 && found.iter().all(|line| line.starts_with("p:6: ")),
            "{field}: {found:?}"
        );
    }
    for text in [
        "version: 2\n",
        "process: {run_as_user: sandbox}\nversion: 1\n",
        "network_middlewares: []\nversion: 1\n",
        "landlock: {compatibility: best_effort}\nversion: 1\n",
        "filesystem_policy: {include_workdir: true}\nversion: 1\n",
        "filesystem_policy: {read_only: [/proc]}\nversion: 1\n",
        "filesystem_policy: {read_only: [/a/../b]}\nversion: 1\n",
        "filesystem_policy: {read_write: [/]}\nversion: 1\n",
        "network_policies: {a: {endpoints: [{host: a.example, port: 443}], binaries: []}}\nversion: 1\n",
        "network_policies: {a: {endpoints: [{host: a.example, port: 443}], binaries: [{path: /usr/bin/curl}]}}\nversion: 1\n",
        "network_policies: {a: {endpoints: [{host: a.example}]}}\nversion: 1\n",
        "versoin: 1\n",
        "version: 1\nversion: 1\n",
        "version: 1\n<<: {process: {}}\n",
        "[]",
        "",
    ] {
        assert_eq!(problems(text).len(), 1, "{text}: {:?}", problems(text));
    }
}

#[test]
fn mounts_are_at_their_own_path() {
    let file = PolicyFile::parse_openshell(
        "version: 1\nlandlock: {compatibility: hard_requirement}\nfilesystem_policy:\n  include_workdir: false\n  read_only: [/srv/data]\n  read_write: [/tmp, /dev/null, /srv/out]\n",
        "p",
    )
    .unwrap();
    let mounts: Vec<_> =
        file.mounts().iter().map(|mount| (mount.host.as_str(), mount.access)).collect();
    use crate::Access::{ReadOnly, ReadWrite};
    assert_eq!(mounts, [("/srv/data", ReadOnly), ("/srv/out", ReadWrite)]);
}

#[test]
fn what_a_guest_has_of_its_own_is_refused_where_it_means_something_else() {
    for (key, path, want) in [
        ("read_only", "/tmp", false),
        ("read_only", "/dev/null", false),
        ("read_only", "/dev/urandom", true),
        ("read_write", "/tmp", true),
        ("read_write", "/dev/null", true),
        ("read_write", "/dev/urandom", false),
    ] {
        let found = problems(&format!("version: 1\nfilesystem_policy:\n  {key}: [{path}]\n"));
        assert_eq!(found.is_empty(), want, "{key} {path}: {found:?}");
        assert!(want || (found.len() == 1 && found[0].starts_with("p:3: ")), "{found:?}");
    }
}

#[test]
fn a_text_that_grows_when_it_is_read_is_refused() {
    let mut yaml = "version: 1\nprocess:\n  a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..9 {
        let before = format!("*a{}", level - 1);
        let list = [before.as_str(); 10].join(", ");
        yaml.push_str(&format!("  a{level}: &a{level} [{list}]\n"));
    }
    let found = problems(&yaml);
    assert!(found.len() == 1 && !found.iter().any(|line| line.contains("honoured")), "{found:?}");
    assert_eq!(problems(&"#".repeat(super::MAX_OPENSHELL_BYTES + 1)).len(), 1);
}
