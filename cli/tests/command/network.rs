//! The network on the command line: what is refused before anything runs, and
//! rules that are proposed for what was denied.
use serde_json::Value;

use crate::support::Place;

#[test]
fn what_cannot_be_allowed_is_refused_by_name() {
    let place = Place::new();
    std::fs::write(place.path("not.pem"), "not a certificate").unwrap();
    for args in [
        &["--allow", "https://a.example"][..],
        &["--allow", "a.example/x"],
        &["--allow", "*"],
        &["--allow", "*.com"],
        &["--allow", "a.example:0"],
        &["--allow", "127.1"],
        &["--allow", "0.0.0.0"],
        &["--allow", ""],
        &["--allow-private", "a b.example"],
        &["--proxy", "proxy:3128"],
        &["--allow", "a.example", "--proxy", "127.0.0.1:1"],
        &["--allow", "a.example", "--ca-file", "missing.pem"],
        &["--allow", "a.example", "--ca-file", "not.pem"],
    ] {
        let args: Vec<&str> = ["run", "-c", "print(1)"].iter().chain(args).copied().collect();
        let ran = place.run(&args);
        assert_eq!((ran.code, ran.stdout.as_str()), (64, ""), "{args:?}: {}", ran.stderr);
        assert_eq!(ran.stderr.lines().count(), 1, "{args:?}: {}", ran.stderr);
    }
}

#[test]
fn what_a_policy_cannot_mean_is_refused_by_line_and_name() {
    let place = Place::new();
    for (rule, parts) in [
        ("hosts = \"a.example\"", &["p.toml:4:", "hosts", "list"][..]),
        ("hosts = [\"https://a.example\"]", &["p.toml:4:", "https://a.example"]),
        ("hosts = [\"a.example/x\"]", &["p.toml:4:", "a.example/x"]),
        ("hosts = [\"*\"]", &["p.toml:4:", "*"]),
        ("hosts = [\"a.*.example\"]", &["p.toml:4:", "a.*.example"]),
        ("hosts = [\"*.co.uk\"]", &["p.toml:4:", "co.uk"]),
        ("hosts = [\"a.example\"]\nports = [0]", &["p.toml:5:", "ports"]),
        ("hosts = [\"a.example\"]\nports = 443", &["p.toml:5:", "ports"]),
        ("hosts = [\"a.example\"]\nmethods = \"GET\"", &["p.toml:5:", "methods"]),
        ("hosts = [\"a.example\"]\nmethods = [\"get\"]", &["p.toml:5:", "get"]),
        ("hosts = [\"a.example\"]\npaths = [\"v1\"]", &["p.toml:5:", "v1"]),
        ("hosts = [\"a.example\"]\nport = [443]", &["p.toml:5:", "port"]),
    ] {
        let text = format!("version = 1\n[[net]]\nid = \"n\"\n{rule}\n");
        std::fs::write(place.path("p.toml"), text).unwrap();
        let ran = place.run(&["run", "--policy", "p.toml", "-c", "print(1)"]);
        assert_eq!((ran.code, ran.stdout.as_str()), (64, ""), "{rule}: {}", ran.stderr);
        for part in parts {
            assert!(ran.stderr.contains(part), "{rule}: {part}: {}", ran.stderr);
        }
    }
}

/// What each library raises for a denied request, and the sentence in it.
const DENIED: &str = r#"
import http.client, urllib.error, urllib.request, requests, asyncio

def by_connection():
    connection = http.client.HTTPSConnection("denied.example")
    connection.request("GET", "/x")
    connection.getresponse()

def tell(name, expected, call):
    try:
        call()
    except expected as error:
        text = str(error)
        said = all(part in text for part in ("denied by policy (rule default-deny)", "not a network fault", "do not retry"))
        print(name, type(error).__name__, said)

tell("urllib", urllib.error.URLError, lambda: urllib.request.urlopen("https://denied.example/x"))
tell("http.client", OSError, by_connection)
tell("requests", requests.ConnectionError, lambda: requests.get("https://denied.example/x"))
tell("fetch", PermissionError, lambda: asyncio.run(fetch("https://denied.example/x")))
"#;

#[test]
fn a_denied_request_raises_what_its_library_raises_and_says_that_it_is_policy() {
    let place = Place::new();
    let ran = place.run(&["run", "--no-record", "--json", "-c", DENIED]);
    assert_eq!(ran.code, 0, "{} {}", ran.stdout, ran.stderr);
    let result: Value = serde_json::from_str(&ran.stdout).unwrap();
    let names: Vec<_> = result["stdout"].as_str().unwrap().lines().collect();
    assert_eq!(names.len(), 4, "{names:?}");
    assert!(names[0].starts_with("urllib URLError") && names[2].starts_with("requests "));
    assert!(names.iter().all(|line| line.ends_with(" True")), "{names:?}");
    // The code swallowed them all; the result has them.
    let denials = result["denials"].as_array().unwrap();
    assert_eq!(denials.len(), 1, "{denials:?}");
    assert_eq!(denials[0]["operation"], "fetch");
    assert_eq!(denials[0]["target"], "GET https://denied.example/x");
    assert_eq!(denials[0]["rule"], "default-deny");
    assert_eq!(denials[0]["count"], 4);
    assert!(denials[0]["hint"].as_str().unwrap().contains("`--allow denied.example`"));
}

#[test]
fn flags_do_not_widen_a_policy() {
    let place = Place::new();
    let policy = "version = 1\n[[net]]\nid = \"n\"\nhosts = [\"a.example\"]\n";
    std::fs::write(place.path("policy.toml"), policy).unwrap();
    let run = |host: &str| {
        place.run(&["run", "--policy", "policy.toml", "--allow", host, "-c", "print(1)"])
    };
    assert_eq!(run("a.example").stdout, "1\n");
    let refused = run("b.example");
    assert_eq!((refused.code, refused.stdout.as_str()), (64, ""));
    assert!(refused.stderr.contains("does not let requests go to `b.example`"));
}

#[test]
fn denied_requests_become_drafts_and_one_is_approved() {
    let place = Place::new();
    let file = |name: &str| place.path(name);
    std::fs::write(file("policy.toml"), "version = 1\n").unwrap();
    let denials = serde_json::json!({"denials": [
        {"operation": "fetch", "target": "GET https://api.example.com/v1/x", "rule": "default-deny", "count": 3},
        {"operation": "fetch", "target": "GET http://10.0.0.5:5432/", "rule": "default-deny", "count": 1},
        {"operation": "fs.read", "target": "/etc/passwd", "rule": "default-deny", "count": 1},
    ]});
    std::fs::write(file("result.json"), denials.to_string()).unwrap();
    let drafts = place.run(&["policy", "draft", "policy.toml", "result.json", "--json"]);
    assert_eq!(drafts.code, 0, "{}", drafts.stderr);
    let drafts: Value = serde_json::from_str(&drafts.stdout).unwrap();
    let drafts = drafts["drafts"].as_array().unwrap();
    assert_eq!(drafts.len(), 2);
    let public =
        drafts.iter().find(|draft| draft["text"].as_str().unwrap().contains("api.")).unwrap();
    let (id, token) = (public["id"].as_str().unwrap(), public["token"].as_str().unwrap());
    let approve = |token: &str| {
        let args = ["policy", "approve", "policy.toml", "result.json", id, "--token", token];
        place.run(&[&args[..], &["--into", "policy.toml"]].concat())
    };
    let stale = approve("0");
    assert_eq!(stale.code, 1);
    assert!(stale.stderr.contains("stale"), "{}", stale.stderr);
    assert_eq!(approve(token).code, 0);
    let explained = place.run(&[
        "policy",
        "explain",
        "policy.toml",
        "net GET https://api.example.com/v1/x",
        "--json",
    ]);
    let explained: Value = serde_json::from_str(&explained.stdout).unwrap();
    assert_eq!(explained["verdict"], "allow");
    // The policy is another one now, so the token is of nothing.
    assert_eq!(approve(token).code, 1);
    let other = drafts.iter().find(|draft| draft["id"] != id).unwrap();
    let other_id = other["id"].as_str().unwrap();
    let decide = |args: &[&str]| {
        let named = ["policy.toml", "result.json", other_id];
        place.run(&[&["policy", args[0]][..], &named, &args[1..]].concat())
    };
    // The policy has changed: the token has to be looked at again.
    let again = place.run(&["policy", "draft", "policy.toml", "result.json", "--json"]);
    let again: Value = serde_json::from_str(&again.stdout).unwrap();
    let other = again["drafts"].as_array().unwrap().iter().find(|draft| draft["id"] == other_id);
    let token = other.unwrap()["token"].as_str().unwrap();
    let rejected = decide(&["reject", "--reason", "an internal\u{1b}[2J address"]);
    assert_eq!(rejected.code, 0, "{}", rejected.stderr);
    let late = decide(&["approve", "--token", token, "--into", "policy.toml"]);
    assert_eq!(late.code, 1);
    assert!(late.stderr.contains("was rejected before; nothing was changed"), "{}", late.stderr);
    assert_eq!(decide(&["reject", "--reason", "again"]).code, 1);
    let text = std::fs::read_to_string(file("policy.toml")).unwrap();
    assert!(!text.contains("10.0.0.5"), "{text}");
    let listed = place.run(&["policy", "draft", "policy.toml", "result.json"]);
    assert_eq!(listed.code, 1, "{}", listed.stdout);
    assert!(listed.stdout.contains("# rejected: an internal") && !listed.stdout.contains('\u{1b}'));
    // Of many who decide at the same time, one is the first.
    std::fs::remove_file(file("result.json.decisions")).unwrap();
    let codes: Vec<i32> = std::thread::scope(|scope| {
        let reject = || decide(&["reject", "--reason", "no"]).code;
        let all: Vec<_> = (0..6).map(|_| scope.spawn(reject)).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert_eq!(codes.iter().filter(|code| **code == 0).count(), 1, "{codes:?}");
}

#[test]
fn openshells_policies_are_read_and_refused_by_line() {
    let place = Place::new();
    let write = |text: &str| std::fs::write(place.path("p.yaml"), text).unwrap();
    write(
        "version: 1\nnetwork_policies:\n  a:\n    endpoints:\n      - {host: a.example, port: 443, access: read-only}\n",
    );
    let explained =
        place.run(&["policy", "explain", "p.yaml", "net GET https://a.example/", "--json"]);
    let explained: Value = serde_json::from_str(&explained.stdout).unwrap();
    assert_eq!(explained["verdict"], "allow");
    write("version: 1\nprocess: {run_as_user: sandbox}\n");
    let refused = place.run(&["run", "--policy", "p.yaml", "-c", "print(1)"]);
    assert_eq!(refused.code, 64);
    assert!(
        refused.stderr.contains("p.yaml:2: `process` cannot be honoured here"),
        "{}",
        refused.stderr
    );
}
