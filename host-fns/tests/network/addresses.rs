//! Which addresses a name may lead to.

use fumehood_guest_abi::FetchErrorKind::{Connect, Denied, Name};

use crate::support::{Net, OTHER, PUBLIC, flags, get, ok};

#[test]
fn a_name_that_leads_inside_is_denied_by_class() {
    let net = Net::new();
    for (name, answer, class) in [
        ("ten.test", "10.0.0.5", "private"),
        ("loop.test", "127.0.0.1", "loopback"),
        ("zero.test", "0.0.0.0", "not a host's"),
        ("meta.test", "169.254.169.254", "cloud metadata"),
        ("azure.test", "168.63.129.16", "cloud metadata"),
        ("ali.test", "100.100.100.200", "cloud metadata"),
        ("cgnat.test", "100.64.0.1", "shared"),
        ("six.test", "::1", "loopback"),
        ("mapped.test", "::ffff:127.0.0.1", "loopback"),
        ("compat.test", "::7f00:1", "embedding"),
        ("nat64.test", "64:ff9b::7f00:1", "loopback"),
        ("sixtofour.test", "2002:7f00:1::1", "embedding"),
        ("teredo.test", "2001:0:7f00:1::", "embedding"),
        ("ula.test", "fd00:ec2::254", "cloud metadata"),
        ("local.test", "fd12:3456::1", "unique-local"),
        ("doc.test", "192.0.2.1", "documentation"),
        ("bench.test", "198.18.0.1", "benchmarking"),
        ("multi.test", "224.0.0.1", "not a host's"),
    ] {
        net.name(name, &[&[answer]]);
        let mut guest = net.guest(&[name]);
        let (kind, message) = guest.get(&format!("https://{name}/")).unwrap_err();
        assert_eq!(kind, Denied, "{name}");
        for part in
            ["denied by policy (rule address)", class, "not a network fault", "do not retry"]
        {
            assert!(message.contains(part), "{name}: {message}");
        }
        assert!(!message.contains(answer), "{message}");
        let report = guest.report();
        assert_eq!(report.denials.len(), 1);
        assert_eq!(report.denials[0].rule, "address");
        assert_eq!(report.denials[0].target, format!("GET https://{name}/"));
        assert_eq!(
            report.denials[0].hint.contains("--allow-private"),
            matches!(class, "private" | "shared" | "unique-local"),
            "{name}: {}",
            report.denials[0].hint
        );
    }
    assert!(net.dialled().is_empty(), "{:?}", net.dialled());
}

#[test]
fn names_like_those_of_metadata_services_are_judged_by_their_address() {
    let net = Net::new();
    for name in ["10.0.0.1.nip.test", "metadata.google.internal", "instance-data.test"] {
        net.name(name, &[&["169.254.169.254"]]);
        assert_eq!(net.guest(&[name]).kind(&format!("https://{name}/")), Err(Denied));
    }
    assert!(net.dialled().is_empty());
}

#[test]
fn an_alias_is_judged_by_where_it_ends() {
    let net = Net::new();
    net.name("api.test", &[&["internal.corp.test", "10.0.0.5"]]);
    assert_eq!(net.guest(&["api.test"]).kind("https://api.test/"), Err(Denied));
    net.name("cdn.test", &[&["edge.cdn.test", PUBLIC]]);
    net.answer(&format!("{PUBLIC}:8080"), |_| ok("edge"));
    assert_eq!(net.guest(&["cdn.test:8080"]).kind("http://cdn.test:8080/"), Ok("edge".to_owned()));
}

#[test]
fn of_mixed_answers_only_the_public_ones_are_dialled() {
    let net = Net::new();
    net.name("mixed.test", &[&["10.0.0.5", "127.0.0.1", PUBLIC]]);
    net.answer(&format!("{PUBLIC}:80"), |_| ok("public"));
    net.answer("10.0.0.5:80", |_| ok("private"));
    net.answer("127.0.0.1:80", |_| ok("loopback"));
    let mut guest = net.guest(&["mixed.test:80"]);
    assert_eq!(guest.kind("http://mixed.test/"), Ok("public".to_owned()));
    assert_eq!(net.dialled(), [format!("{PUBLIC}:80")]);
}

#[test]
fn a_name_that_changes_its_mind_is_judged_each_time() {
    let net = Net::new();
    net.name("rebind.test", &[&[PUBLIC], &["127.0.0.1"], &["169.254.169.254"]]);
    // The connection is not kept, so that the next request looks again.
    let once =
        |_: &str| b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok".to_vec();
    net.answer(&format!("{PUBLIC}:80"), once);
    net.answer("127.0.0.1:80", |_| ok("inside"));
    net.answer("169.254.169.254:80", |_| ok("inside"));
    let mut guest = net.guest(&["rebind.test:80"]);
    assert_eq!(guest.kind("http://rebind.test/"), Ok("ok".to_owned()));
    assert_eq!(guest.kind("http://rebind.test/"), Err(Denied));
    assert_eq!(guest.kind("http://rebind.test/"), Err(Denied));
    assert_eq!(net.dialled(), [format!("{PUBLIC}:80")]);
}

#[test]
fn a_private_grant_reaches_private_networks_and_nothing_else() {
    let net = Net::new();
    for (name, answer, want) in [
        ("db.test", "10.0.0.5", true),
        ("ula.test", "fd12::5", true),
        ("cgnat.test", "100.64.0.5", true),
        ("loop.test", "127.0.0.1", false),
        ("link.test", "169.254.1.1", false),
        ("meta.test", "100.100.100.200", false),
        ("awssix.test", "fd00:ec2::254", false),
    ] {
        net.name(name, &[&[answer]]);
        let at =
            if answer.contains(':') { format!("[{answer}]:80") } else { format!("{answer}:80") };
        net.answer(&at, |_| ok("inside"));
        let private = format!("private:{name}:80");
        let url = format!("http://{name}/");
        assert_eq!(net.guest(&[&private]).kind(&url).is_ok(), want, "{name}");
        assert_eq!(net.guest(&[&format!("{name}:80")]).kind(&url), Err(Denied), "{name}");
    }
}

#[test]
fn a_written_address_is_a_grant_of_exactly_that_address() {
    let net = Net::new();
    net.answer("127.0.0.1:8080", |_| ok("here"));
    net.answer("127.0.0.2:8080", |_| ok("there"));
    let mut guest = net.guest(&["127.0.0.1:8080"]);
    assert_eq!(guest.kind("http://127.0.0.1:8080/"), Ok("here".to_owned()));
    for url in [
        "http://127.0.0.2:8080/",
        "http://127.0.0.1:8081/",
        "http://localhost:8080/",
        "http://[::1]:8080/",
    ] {
        assert_eq!(guest.kind(url), Err(Denied), "{url}");
    }
    // A name that leads to the granted address is not the granted address.
    net.name("sneaky.test", &[&["127.0.0.1"]]);
    let mut guest = net.guest(&["127.0.0.1:8080", "sneaky.test:8080"]);
    assert_eq!(guest.kind("http://sneaky.test:8080/"), Err(Denied));
    assert!(net.names.asked().iter().all(|name| name == "sneaky.test"));
}

#[test]
fn a_denied_name_is_never_looked_up() {
    let net = Net::new();
    net.name("allowed.test", &[&[PUBLIC]]);
    net.answer(&format!("{PUBLIC}:80"), |_| ok("ok"));
    let mut guest = net.guest(&["allowed.test:80"]);
    for url in [
        "http://denied.test/",
        "http://mzxw6ytboi.evil.test/",
        "https://allowed.test/",
        "http://allowed.test:81/",
        "http://evilallowed.test/",
        "http://allowed.test.evil.test/",
        "http://api-allowed.test/",
    ] {
        assert_eq!(guest.kind(url), Err(Denied), "{url}");
    }
    assert!(net.names.asked().is_empty(), "{:?}", net.names.asked());
    // The same guest looks up what it may.
    assert_eq!(guest.kind("http://allowed.test/"), Ok("ok".to_owned()));
    assert!(net.names.asked().iter().all(|name| name == "allowed.test"));
    assert!(!net.names.asked().is_empty());
}

#[test]
fn a_method_or_path_outside_the_rule_is_not_looked_up_either() {
    let net = Net::new();
    net.name("api.test", &[&[PUBLIC]]);
    let mut guest = net
        .guest_with_policy("[[net]]\nid = \"n\"\nhosts = [\"api.test\"]\npaths = [\"/v1/**\"]\n");
    for (method, path) in
        [("DELETE", "/v1/x"), ("POST", "/v1/x"), ("GET", "/admin"), ("GET", "/V1/x")]
    {
        let mut start = get(&format!("https://api.test{path}"));
        start.method = method.to_owned();
        assert_eq!(guest.send(&start, &[]).unwrap_err().0, Denied, "{method} {path}");
    }
    assert!(net.names.asked().is_empty());
}

#[test]
fn servers_of_this_program_are_never_reached() {
    let net = Net::new();
    let at = net.answer("127.0.0.1:9", |_| ok("admin"));
    net.map(&at.to_string(), at);
    let grant = at.to_string();
    let url = format!("http://{at}/");
    let policy = || flags(&[grant.as_str()]);
    assert_eq!(net.guest_with(policy(), |_| {}).kind(&url), Ok("admin".to_owned()));
    for own in [at, std::net::SocketAddr::from(([0, 0, 0, 0], at.port()))] {
        let mut options = net.options();
        options.own_addresses.push(own);
        let mut guest = net.guest_with_options(policy(), options, |_| {});
        let (kind, message) = guest.get(&url).unwrap_err();
        assert_eq!(kind, Denied);
        assert!(message.contains("own program"), "{message}");
    }
}

#[test]
fn a_name_without_address_is_a_fault_and_no_denial() {
    let net = Net::new();
    let mut guest = net.guest(&["nowhere.test", "closed.test"]);
    let (kind, message) = guest.get("https://nowhere.test/").unwrap_err();
    assert_eq!(kind, Name);
    assert!(message.contains("nowhere.test") && !message.contains("policy"), "{message}");
    net.name("closed.test", &[&[OTHER]]);
    let (kind, message) = guest.get("https://closed.test/").unwrap_err();
    assert_eq!(kind, Connect);
    assert!(!message.contains(OTHER), "{message}");
    assert!(guest.report().denials.is_empty());
}
