use super::*;
use crate::combine::Flags;
use crate::network::NetRequest;
use crate::policy::{Policy, Verdict};

fn grants(list: &[(&str, bool)]) -> Vec<HostGrant> {
    list.iter().map(|(text, private)| HostGrant::parse(text, *private).unwrap()).collect()
}

fn policy(list: &[(&str, bool)]) -> Policy {
    let flags = Flags { allow: grants(list), ..Flags::default() };
    Policy::combine(None, &flags, None).unwrap().policy
}

fn decide(policy: &Policy, method: &str, url: &str) -> crate::layer::Ruling {
    policy.decide_network(&NetRequest::parse(method, url).unwrap())
}

#[test]
fn a_grant_is_a_host_and_a_port() {
    let policy =
        policy(&[("api.example.com", false), ("b.example:8080", false), ("[::1]:9", false)]);
    for (method, url, want) in [
        ("GET", "https://api.example.com/", true),
        ("DELETE", "https://api.example.com/x", true),
        ("GET", "http://api.example.com/", false),
        ("GET", "http://api.example.com:443/", false),
        ("GET", "https://api.example.com:8443/", false),
        ("GET", "http://b.example:8080/", true),
        ("GET", "https://b.example:8080/", true),
        ("GET", "https://b.example/", false),
        ("GET", "http://[::1]:9/", true),
        ("GET", "https://example.com/", false),
        ("GET", "https://x.api.example.com/", false),
    ] {
        let decided = decide(&policy, method, url).decision;
        assert_eq!(decided.verdict == Verdict::Allow, want, "{method} {url}");
        if !want {
            assert!(decided.reason.contains("not a fault"), "{}", decided.reason);
            assert!(!decided.hint.is_empty());
        }
    }
}

#[test]
fn hints_say_what_to_ask_for() {
    let policy = policy(&[("api.example.com", false)]);
    let hint = |url| decide(&policy, "GET", url).decision.hint.into_owned();
    assert_eq!(
        hint("https://b.example:8443/"),
        "the operator could allow it with `--allow b.example:8443` or in [[net]]"
    );
    assert_eq!(
        hint("https://b.example/"),
        "the operator could allow it with `--allow b.example` or in [[net]]"
    );
    assert_eq!(
        hint("http://api.example.com/"),
        "rule `allow:api.example.com` allows this host but not this scheme and port; the operator could widen that rule"
    );
    assert_eq!(hint("http://0.0.0.0/"), "no operator can allow it: it is the address of no host");
}

#[test]
fn what_is_no_host_and_port_is_refused() {
    for (text, code) in [
        ("", "allow_host"),
        ("*", "allow_host"),
        ("*.com", "allow_host"),
        ("https://a.example", "allow_extra"),
        ("a.example/x", "allow_extra"),
        ("user@a.example", "allow_extra"),
        ("a.example:0", "allow_port"),
        ("a.example:", "allow_port"),
        ("a.example:65536", "allow_port"),
        ("a.example:+80", "allow_port"),
        ("a.example:80:80", "allow_port"),
        ("a.example:443 ", "allow_port"),
        ("::1", "allow_port"),
        ("[::1]x", "allow_host"),
        ("[::1%eth0]", "allow_host"),
        ("127.1", "allow_host"),
        ("2130706433", "allow_host"),
        ("0x7f000001", "allow_host"),
        ("0177.0.0.1", "allow_host"),
        ("[::ffff:127.0.0.1]", "allow_host"),
        ("0.0.0.0", "allow_never"),
        ("255.255.255.255:80", "allow_never"),
        ("[ff02::1]", "allow_never"),
    ] {
        let error = HostGrant::parse(text, false).map_err(|error| (error.code(), error.remedy()));
        assert_eq!(error.as_ref().map_err(|(code, _)| *code), Err(code), "{text}");
        assert!(error.is_err_and(|(_, remedy)| !remedy.is_empty()));
    }
}

#[test]
fn companions_are_shown_and_have_the_port_of_their_host() {
    let service = HostName::from_reversed("com.github").unwrap().to_string();
    let list = [(service.as_str(), false), ("a.example", false)];
    let shown = granted_hosts(&grants(&list));
    assert_eq!(shown.len(), 6);
    assert_eq!(shown.iter().filter(|host| host.companion_of.is_some()).count(), 4);
    let with_port = format!("{service}:8443");
    let policy = policy(&[(with_port.as_str(), true)]);
    let api = HostName::from_reversed("com.github.api").unwrap();
    let ruling = decide(&policy, "POST", &format!("https://{api}:8443/x"));
    assert_eq!(ruling.decision.verdict, Verdict::Allow);
    assert_eq!(ruling.obligations.addresses(), AddressGrant::Public);
    assert_eq!(decide(&policy, "GET", &format!("https://{api}/")).decision.verdict, Verdict::Deny);
    // Every entry of the table is in the form that is matched.
    for (service, others) in COMPANIONS {
        for name in others.iter().chain([service]) {
            let host = HostName::from_reversed(name).unwrap_or_else(|| panic!("{name}"));
            assert_eq!(HostName::parse(&host.to_string()), Ok(host));
        }
    }
}

#[test]
fn a_private_grant_is_kept_beside_a_public_one() {
    for list in [
        [("a.example", false), ("a.example", true)],
        [("a.example", true), ("a.example", false)],
        [("**.b.a.example", false), ("x.b.a.example", true)],
    ] {
        let host = list.iter().find(|(_, private)| *private).map(|(host, _)| *host).unwrap();
        let ruling = decide(&policy(&list), "GET", &format!("https://{host}/"));
        assert_eq!(ruling.obligations.addresses(), AddressGrant::Private, "{list:?}");
    }
    let ruling = decide(&policy(&[("a.example", false)]), "GET", "https://a.example/");
    assert_eq!(ruling.obligations.addresses(), AddressGrant::Public);
}

#[test]
fn a_file_decides_whether_flags_may_add() {
    let parse = |mode: &str, rule: &str| {
        let text = format!("version = 1\nflags = \"{mode}\"\n[[net]]\nid = \"n\"\n{rule}\n");
        crate::PolicyFile::parse(&text, "p.toml").unwrap()
    };
    let combine = |file: &crate::PolicyFile, list: &[(&str, bool)]| {
        let flags = Flags { allow: grants(list), ..Flags::default() };
        Policy::combine(Some(file), &flags, None)
    };
    let file = parse("narrow", "hosts = [\"**.example.com\"]");
    assert!(combine(&file, &[("a.example.com", false)]).is_ok());
    for refused in [("b.example", false), ("a.example.com:8443", false), ("a.example.com", true)] {
        let error = combine(&file, &[refused]).unwrap_err();
        assert!(error.to_string().contains("flags = \"extend\""), "{error}");
    }
    let file = parse("extend", "action = \"deny\"\nhosts = [\"a.example\"]");
    let policy = combine(&file, &[("a.example", false), ("b.example", false)]).unwrap().policy;
    assert_eq!(decide(&policy, "GET", "https://a.example/").decision.verdict, Verdict::Deny);
    assert_eq!(decide(&policy, "GET", "https://b.example/").decision.verdict, Verdict::Allow);
}
