//! Every hop is a request of its own.

use std::sync::{Arc, Mutex};

use fumehood_guest_abi::FetchBody;
use fumehood_guest_abi::FetchErrorKind::{Denied, Redirect};
use fumehood_host_fns::{Budget, Outcome, Phase};

use crate::support::{Net, OTHER, PUBLIC, get, ok, response};

fn to(location: &str) -> Vec<u8> {
    response("302 Found", &format!("Location: {location}\r\n"), b"")
}

fn path(head: &str) -> &str {
    head.split(' ').nth(1).unwrap_or_default()
}

#[test]
fn a_chain_is_followed_and_each_hop_recorded() {
    let net = Net::new();
    net.name("a.test", &[&[PUBLIC]]);
    net.name("b.test", &[&[OTHER]]);
    net.answer(&format!("{PUBLIC}:80"), |head| match path(head) {
        "/1" => to("/2"),
        _ => to("http://b.test/3"),
    });
    net.answer(&format!("{OTHER}:80"), |_| ok("end"));
    let mut guest = net.guest(&["a.test:80", "b.test:80"]);
    let response = guest.get("http://a.test/1").unwrap();
    assert_eq!((response.text().as_str(), response.head.url.as_str()), ("end", "http://b.test/3"));
    let hops: Vec<_> =
        response.head.hops.iter().map(|hop| (hop.status, hop.url.as_str())).collect();
    assert_eq!(hops, [(302, "http://a.test/1"), (302, "http://a.test/2")]);
    let outcomes: Vec<_> =
        guest.audit.records().iter().map(|record| (record.call, record.phase)).collect();
    assert_eq!(
        outcomes,
        [
            (1, Phase::Intent),
            (1, Phase::Outcome(Outcome::Redirected)),
            (2, Phase::Intent),
            (2, Phase::Outcome(Outcome::Redirected)),
            (3, Phase::Intent),
            (3, Phase::Outcome(Outcome::Done)),
        ]
    );
    assert_eq!(guest.meter.used(Budget::Requests), 3);
}

#[test]
fn a_redirect_out_of_the_policy_is_denied_before_it_is_looked_up() {
    let net = Net::new();
    net.name("a.test", &[&[PUBLIC]]);
    for (location, kind) in [
        ("http://evil.test/", Denied),
        ("http://169.254.169.254/latest/meta-data/", Denied),
        ("http://127.0.0.1/", Denied),
        ("//evil.test/x", Denied),
        ("http://a.test:81/", Denied),
        ("http://2852039166/", Redirect),
        ("http://[::ffff:169.254.169.254]/", Redirect),
        ("http://a.test@evil.test/", Redirect),
        ("file:///etc/passwd", Redirect),
        ("http://a.test/v1/../x", Redirect),
    ] {
        net.answer(&format!("{PUBLIC}:80"), move |_| to(location));
        let mut guest = net.guest(&["a.test:80"]);
        let (got, message) = guest.get("http://a.test/").unwrap_err();
        assert_eq!(got, kind, "{location}: {message}");
        // What is no request is a denial too, by a rule of its own.
        let denied = guest.denied_by();
        assert_eq!(denied.len(), 1, "{location}: {denied:?}");
        assert_eq!(denied[0] == "url", kind == Redirect, "{location}: {denied:?}");
    }
    assert!(net.names.asked().iter().all(|name| name == "a.test"), "{:?}", net.names.asked());
    assert!(net.dialled().iter().all(|at| *at == format!("{PUBLIC}:80")));
}

#[test]
fn a_redirect_to_a_name_that_leads_inside_is_denied() {
    let net = Net::new();
    net.name("a.test", &[&[PUBLIC]]);
    net.name("b.test", &[&["169.254.169.254"]]);
    net.answer(&format!("{PUBLIC}:80"), |_| to("http://b.test/"));
    let mut guest = net.guest(&["a.test:80", "b.test:80"]);
    assert_eq!(guest.kind("http://a.test/"), Err(Denied));
    assert_eq!(guest.denied_by(), ["address"]);
}

#[test]
fn a_circle_ends() {
    let net = Net::new();
    net.name("a.test", &[&[PUBLIC]]);
    net.answer(&format!("{PUBLIC}:80"), |_| to("/again"));
    let mut guest = net.guest(&["a.test:80"]);
    assert_eq!(guest.kind("http://a.test/"), Err(Redirect));
    assert_eq!(guest.meter.used(Budget::Requests), 21);
}

#[test]
fn redirects_count_as_requests() {
    let net = Net::new();
    net.name("a.test", &[&[PUBLIC]]);
    net.answer(&format!("{PUBLIC}:80"), |_| to("/again"));
    let mut guest = net.guest_with_policy(
        "[budget]\nrequests = 3\n[[net]]\nid = \"n\"\nhosts = [\"a.test\"]\nports = [80]\n",
    );
    let (kind, message) = guest.get("http://a.test/").unwrap_err();
    assert_eq!(kind, Denied);
    assert!(message.contains("`requests` is used up"), "{message}");
}

#[test]
fn credentials_do_not_follow_to_another_origin() {
    let net = Net::new();
    net.name("a.test", &[&[PUBLIC]]);
    net.name("b.test", &[&[OTHER]]);
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    net.answer(&format!("{PUBLIC}:80"), |head| match path(head) {
        "/same" => to("/final"),
        "/final" => ok(head),
        _ => to("http://b.test/"),
    });
    let log = Arc::clone(&seen);
    net.answer(&format!("{OTHER}:80"), move |head| {
        log.lock().unwrap().push(head.to_ascii_lowercase());
        ok("")
    });
    let mut guest = net.guest(&["a.test:80", "b.test:80"]);
    let headers = ["Authorization", "Cookie", "X-Api-Key", "X-Plain"];
    let mut start = get("http://a.test/cross");
    start.headers = headers.iter().map(|name| ((*name).to_owned(), "s3cret".to_owned())).collect();
    guest.send(&start, &[]).unwrap();
    let head = seen.lock().unwrap()[0].clone();
    assert!(
        !head.contains("authorization") && !head.contains("cookie") && !head.contains("api-key")
    );
    assert_eq!(head.matches("s3cret").count(), 1, "{head}");
    start.url = "http://a.test/same".to_owned();
    let same = guest.send(&start, &[]).unwrap();
    assert_eq!(same.text().matches("s3cret").count(), 4);
}

#[test]
fn methods_and_bodies_follow_as_the_standard_says() {
    let net = Net::new();
    net.name("a.test", &[&[PUBLIC]]);
    net.serve(&format!("{PUBLIC}:80"), |mut stream| {
        use std::io::Write as _;
        while let Some((head, body)) = crate::support::read_request(&mut stream) {
            let status = path(&head).trim_start_matches('/').to_owned();
            let answer = if status == "end" {
                ok(&format!(
                    "{} {}",
                    head.split(' ').next().unwrap(),
                    String::from_utf8(body).unwrap()
                ))
            } else {
                response(&format!("{status} X"), "Location: /end\r\n", b"")
            };
            if stream.write_all(&answer).is_err() {
                return;
            }
        }
    });
    let mut guest = net.guest(&["a.test:80"]);
    for (status, method, want) in [
        ("301", "POST", "GET "),
        ("302", "POST", "GET "),
        ("303", "PUT", "GET "),
        ("307", "POST", "POST body"),
        ("308", "PUT", "PUT body"),
        ("301", "PUT", "PUT body"),
    ] {
        let mut start = get(&format!("http://a.test/{status}"));
        start.method = method.to_owned();
        start.body = FetchBody::Bytes;
        assert_eq!(guest.send(&start, b"body").unwrap().text(), want, "{status} {method}");
    }
    let mut start = get("http://a.test/307");
    start.method = "POST".to_owned();
    start.body = FetchBody::Stream { length: Some(4) };
    let id = guest.start(&start, &[]).unwrap();
    guest.write(id, b"body", true).unwrap();
    assert_eq!(guest.finish(id).unwrap_err().0, Redirect);
}
