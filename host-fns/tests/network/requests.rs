//! What is sent, and what cannot be.

use std::sync::{Arc, Mutex};

use fumehood_guest_abi::FetchErrorKind::{Denied, Invalid};
use fumehood_guest_abi::{FetchBody, FetchRedirect};
use fumehood_host_fns::{Outcome, Phase};

use crate::support::{Net, PUBLIC, get, ok, read_request, response};

/// Heads and bodies of requests.
type Seen = Arc<Mutex<Vec<(String, Vec<u8>)>>>;

fn seen(net: &Net) -> Seen {
    let seen = Seen::default();
    let log = Arc::clone(&seen);
    net.serve(&format!("{PUBLIC}:80"), move |mut stream| {
        use std::io::Write as _;
        while let Some(request) = read_request(&mut stream) {
            log.lock().unwrap().push(request);
            if stream.write_all(&ok("done")).is_err() {
                return;
            }
        }
    });
    net.name("api.test", &[&[PUBLIC]]);
    seen
}

#[test]
fn the_bytes_sent_are_those_that_were_decided() {
    let net = Net::new();
    let seen = seen(&net);
    let mut guest = net.guest(&["api.test:80"]);
    let mut start = get("http://API.test/%7euser/x?q=a+b&c=%20#part");
    start.headers = vec![("X-One".to_owned(), "caf\u{e9}".to_owned())];
    let response = guest.send(&start, &[]).unwrap();
    assert_eq!((response.head.status, response.text().as_str()), (200, "done"));
    assert_eq!(response.head.url, "http://api.test/~user/x?q=a+b&c=%20");
    let (head, _) = seen.lock().unwrap()[0].clone();
    let mut lines = head.lines();
    assert_eq!(lines.next(), Some("GET /~user/x?q=a+b&c=%20 HTTP/1.1"));
    assert!(head.contains("host: api.test\r\n"), "{head}");
    assert!(head.contains("accept-encoding: gzip, br, zstd\r\n"), "{head}");
    assert!(head.contains("user-agent: fumehood/"), "{head}");
    let records = guest.audit.records();
    let phases: Vec<_> = records.iter().map(|record| (record.operation, record.phase)).collect();
    assert_eq!(phases, [("fetch", Phase::Intent), ("fetch", Phase::Outcome(Outcome::Done))]);
    // The query may hold what must not be kept.
    assert_eq!(records[0].target.to_string(), "GET http://api.test/~user/x");
    assert_eq!(records[1].bytes_in, 4);
    assert!(records[1].digest.is_some());
}

#[test]
fn bodies_are_sent_whole_and_in_pieces() {
    let net = Net::new();
    let seen = seen(&net);
    let mut guest = net.guest(&["api.test:80"]);
    let mut start = get("http://api.test/");
    start.method = "POST".to_owned();
    start.body = FetchBody::Bytes;
    guest.send(&start, b"whole").unwrap();
    start.body = FetchBody::Stream { length: Some(6) };
    let id = guest.start(&start, &[]).unwrap();
    guest.write(id, b"pie", false).unwrap();
    guest.write(id, b"ces", true).unwrap();
    guest.finish(id).unwrap();
    let bodies: Vec<_> = seen.lock().unwrap().iter().map(|(_, body)| body.clone()).collect();
    assert_eq!(bodies, [b"whole".to_vec(), b"pieces".to_vec()]);
    let intent = guest.audit.records()[0].clone();
    assert_eq!((intent.bytes_out, intent.digest.is_some()), (5, true));
}

#[test]
fn a_body_of_another_length_than_announced_is_not_a_request() {
    let net = Net::new();
    let seen = seen(&net);
    for pieces in [&[&b"abc"[..]][..], &[&b"abcdefg"[..]][..]] {
        let mut guest = net.guest(&["api.test:80"]);
        let mut start = get("http://api.test/");
        start.method = "PUT".to_owned();
        start.body = FetchBody::Stream { length: Some(6) };
        let id = guest.start(&start, &[]).unwrap();
        for piece in pieces {
            let _ = guest.write(id, piece, false);
        }
        let _ = guest.write(id, b"", true);
        assert!(guest.finish(id).is_err());
    }
    assert!(seen.lock().unwrap().is_empty());
}

#[test]
fn what_two_parsers_could_read_differently_is_no_request() {
    let net = Net::new();
    net.name("api.test", &[&[PUBLIC]]);
    let mut guest = net.guest(&["api.test", "api.test:80"]);
    for url in [
        "https://api.test@evil.test/",
        "https://evil.test\\@api.test",
        "https://api.test%2f@evil.test",
        "https://%61pi.test/",
        "https://[::1].api.test/",
        "https://api.test\0.evil.test/",
        "https://evil.test\0.api.test/",
        "https://api.test/a\r\nHost: evil.test",
        "https://api .test/",
        "https://api\t.test/",
        "https://ａpi.test/",
        "https://api。test/",
        "http://2130706433/",
        "http://0x7f000001/",
        "http://0177.0.0.1/",
        "http://0251.254.169.254/",
        "http://0x7f.1/",
        "http://127.1/",
        "http://0/",
        "http://[::ffff:127.0.0.1]/",
        "http://[::ffff:7f00:1]/",
        "http://[0:0:0:0:0:ffff:a9fe:a9fe]/",
        "http://[fe80::1%25eth0]/",
        "https://api.test/v1/../admin",
        "https://api.test/v1/%2e%2e/admin",
        "https://api.test//v1",
        "https://api.test/v1;x",
        "https://api.test/v1%2Fx",
        "file:///etc/passwd",
        "gopher://api.test/",
        "https:api.test",
        "",
    ] {
        assert_eq!(guest.get(url).unwrap_err().0, Invalid, "{url:?}");
    }
    for url in [
        "http://127.0.0.1/",
        "http://0.0.0.0/",
        "http://[::1]/",
        "http://[::127.0.0.1]/",
        "http://[64:ff9b::7f00:1]/",
        "http://[2002:7f00:1::]/",
        "http://[2001:0:4136:e378:8000:63bf:3fff:fdd2]/",
        "http://255.255.255.255/",
        "https://evil.test#api.test",
    ] {
        let got = guest.get(url).unwrap_err().0;
        assert!(matches!(got, Denied | Invalid), "{url}: {got:?}");
    }
    for method in ["get", "GET\t", "TRACE", "CONNECT", "FETCH", "", "GET / HTTP/1.1\r\nX: y"] {
        let mut start = get("https://api.test/");
        start.method = method.to_owned();
        assert_eq!(guest.send(&start, &[]).unwrap_err().0, Invalid, "{method:?}");
    }
    assert!(net.names.asked().is_empty() && net.dialled().is_empty());
}

#[test]
fn what_is_no_request_is_a_denial_that_is_recorded() {
    let net = Net::new();
    net.name("api.test", &[&[PUBLIC]]);
    let mut guest = net.guest(&["api.test"]);
    let mut start = get("https://api.test/");
    for (method, url, header, rule, target) in [
        ("GET", "http://2130706433/", "", "url", "GET http://2130706433/"),
        ("GET", "https://u:s3cret@api.test/", "", "url", "GET https://…@api.test/"),
        (
            "GET",
            "https://api.test/v1/../admin?s3cret",
            "",
            "url",
            "GET https://api.test/v1/../admin",
        ),
        ("TRACE", "https://api.test/", "", "method", "? https://api.test/"),
        ("GET", "https://api.test/", "b\r\nHost: evil.test", "header", "GET https://api.test/"),
    ] {
        (start.method, start.url) = (method.to_owned(), url.to_owned());
        start.headers = match header {
            "" => Vec::new(),
            value => vec![("X-A".to_owned(), value.to_owned())],
        };
        for _ in 0..3 {
            assert_eq!(guest.send(&start, &[]).unwrap_err().0, Invalid, "{url}");
        }
        let report = guest.report();
        let [denial] = &report.denials[..] else { panic!("{url}: {:?}", report.denials) };
        assert_eq!((denial.rule.as_str(), denial.target.as_str()), (rule, target));
        assert_eq!(denial.count, 3, "{url}");
        assert!(!format!("{denial:?}").contains("s3cret"), "{denial:?}");
    }
    // Recorded once each, and the repetitions as a sum.
    let records = guest.audit.records();
    let intents = records.iter().filter(|record| record.phase == Phase::Intent);
    let intents: Vec<_> = intents.map(|record| record.rule.to_string()).collect();
    assert_eq!(intents, ["url", "url", "url", "method", "header"]);
    let again = |phase| phase == Phase::Sum { count: 2, failed: 2 };
    assert_eq!(records.iter().filter(|record| again(record.phase)).count(), 5);
    assert!(net.names.asked().is_empty() && net.dialled().is_empty());
}

#[test]
fn headers_that_frame_redirect_or_upgrade_are_denied() {
    let net = Net::new();
    let seen = seen(&net);
    let mut guest = net.guest(&["api.test:80"]);
    for (name, value, kind) in [
        ("Host", "evil.test", Denied),
        ("Content-Length", "5", Denied),
        ("Transfer-Encoding", "chunked", Denied),
        ("Connection", "Upgrade", Denied),
        ("Upgrade", "websocket", Denied),
        ("Sec-WebSocket-Key", "x", Denied),
        ("X-HTTP-Method-Override", "DELETE", Denied),
        ("Proxy-Authorization", "x", Denied),
        ("Expect", "100-continue", Denied),
        ("X-Original-URL", "/admin", Denied),
        ("X-A\r\nHost", "evil.test", Invalid),
        ("X-A", "b\r\nHost: evil.test", Invalid),
        ("X-A", "b\0c", Invalid),
        ("X A", "b", Invalid),
    ] {
        let mut start = get("http://api.test/");
        start.headers = vec![(name.to_owned(), value.to_owned())];
        assert_eq!(guest.send(&start, &[]).unwrap_err().0, kind, "{name}");
    }
    assert!(seen.lock().unwrap().is_empty());
    assert_eq!(guest.denied_by(), ["header"]);
}

#[test]
fn connections_are_kept_and_replaced() {
    let net = Net::new();
    let seen = seen(&net);
    let mut guest = net.guest(&["api.test:80"]);
    for _ in 0..5 {
        assert_eq!(guest.kind("http://api.test/"), Ok("done".to_owned()));
    }
    assert_eq!((net.dialled().len(), seen.lock().unwrap().len()), (1, 5));
    // A server that closes without a word.
    let closing = Net::new();
    closing.name("api.test", &[&[PUBLIC]]);
    closing.serve(&format!("{PUBLIC}:80"), |mut stream| {
        use std::io::Write as _;
        let _ = read_request(&mut stream);
        let _ = stream.write_all(&ok("once"));
    });
    let mut guest = closing.guest(&["api.test:80"]);
    for _ in 0..3 {
        assert_eq!(guest.kind("http://api.test/"), Ok("once".to_owned()));
    }
}

#[test]
fn requests_go_through_the_operators_proxy_by_address() {
    let net = Net::new();
    net.name("api.test", &[&[PUBLIC]]);
    net.name("inside.test", &[&["10.0.0.5"]]);
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let log = Arc::clone(&asked);
    let proxy = net.serve("203.0.113.9:3128", move |mut stream| {
        use std::io::Write as _;
        let Some((head, _)) = read_request(&mut stream) else { return };
        log.lock().unwrap().push(head);
        stream.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").unwrap();
        let Some((head, _)) = read_request(&mut stream) else { return };
        log.lock().unwrap().push(head);
        stream.write_all(&ok("through")).unwrap();
    });
    let mut options = net.options();
    options.proxy = Some(fumehood_host_fns::Proxy {
        address: proxy,
        authorization: Some("Basic eDp5".to_owned()),
    });
    let policy = crate::support::flags(&["api.test:80", "inside.test:80"]);
    let mut guest = net.guest_with_options(policy, options, |_| {});
    assert_eq!(guest.kind("http://api.test/x"), Ok("through".to_owned()));
    assert_eq!(guest.kind("http://inside.test/x"), Err(Denied));
    let asked = asked.lock().unwrap();
    assert!(asked[0].starts_with(&format!("CONNECT {PUBLIC}:80 HTTP/1.1\r\n")), "{}", asked[0]);
    assert!(asked[0].to_ascii_lowercase().contains("proxy-authorization: basic edp5"));
    assert!(asked[1].starts_with("GET /x HTTP/1.1\r\n") && !asked[1].contains("eDp5"));
    assert_eq!(asked.len(), 2);
}

#[test]
fn a_proxy_or_certificate_that_cannot_be_used_is_refused_at_the_start() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let code = |change: &dyn Fn(&mut fumehood_host_fns::EgressOptions)| {
        let mut options = fumehood_host_fns::EgressOptions::default();
        change(&mut options);
        fumehood_host_fns::HttpEgress::new(options).err().map(|error| error.code())
    };
    let proxy = fumehood_host_fns::Proxy { address: closed, authorization: None };
    assert_eq!(code(&|options| options.proxy = Some(proxy.clone())), Some("egress_proxy"));
    for pem in
        ["not a certificate", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
    {
        let change = |options: &mut fumehood_host_fns::EgressOptions| {
            options.extra_certificates = pem.as_bytes().to_vec();
        };
        assert_eq!(code(&change), Some("egress_certificates"));
    }
    assert_eq!(code(&|_| {}), None);
}

#[test]
fn manual_redirects_and_odd_statuses_are_answers() {
    let net = Net::new();
    net.name("api.test", &[&[PUBLIC]]);
    net.answer(&format!("{PUBLIC}:80"), |head| {
        if head.starts_with("GET /moved") {
            response(
                "302 Over There",
                "Location: /there\r\nX-Double: a\r\nX-Double: b\r\n",
                b"moved",
            )
        } else {
            response("404 Not Found", "", b"nothing")
        }
    });
    let mut guest = net.guest(&["api.test:80"]);
    let mut start = get("http://api.test/moved");
    start.redirect = FetchRedirect::Manual;
    let response = guest.send(&start, &[]).unwrap();
    assert_eq!((response.head.status, response.text().as_str()), (302, "moved"));
    assert_eq!(response.head.reason, "Over There");
    assert_eq!(response.header("location"), Some("/there"));
    let double: Vec<_> =
        response.head.headers.iter().filter(|(name, _)| name == "x-double").collect();
    assert_eq!(double.len(), 2);
    let response = guest.send(&get("http://api.test/x"), &[]).unwrap();
    assert_eq!((response.head.status, response.text().as_str()), (404, "nothing"));
}
