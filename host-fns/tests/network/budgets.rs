//! Budgets of sessions, hosts and rules.

use fumehood_guest_abi::FetchBody;
use fumehood_guest_abi::FetchErrorKind::Denied;
use fumehood_host_fns::{Budget, Limits};

use crate::support::{Net, PUBLIC, flags, get, ok};

fn net() -> Net {
    let net = Net::new();
    for name in ["a.test", "b.test", "c.test"] {
        net.name(name, &[&[PUBLIC]]);
    }
    net.answer(&format!("{PUBLIC}:80"), |_| ok("0123456789"));
    net
}

const RULE: &str = "[[net]]\nid = \"n\"\nhosts = [\"a.test\", \"b.test\", \"c.test\"]\nports = [80]\naccess = \"full\"\n";

#[test]
fn requests_and_hosts_are_counted_for_the_session() {
    let net = net();
    let mut guest =
        net.guest_with_policy(&format!("[budget]\nrequests = 4\ndistinct_hosts = 2\n{RULE}"));
    assert!(guest.get("http://a.test/").is_ok());
    assert!(guest.get("http://b.test/").is_ok());
    let (kind, message) = guest.get("http://c.test/").unwrap_err();
    assert!(kind == Denied && message.contains("`distinct_hosts` is used up"), "{message}");
    assert!(guest.get("http://a.test/").is_ok());
    assert!(guest.get("http://a.test/").is_ok());
    let (kind, message) = guest.get("http://a.test/").unwrap_err();
    assert!(kind == Denied && message.contains("`requests` is used up"), "{message}");
    assert_eq!(guest.denied_by(), ["budget", "budget"]);
    assert!(!net.names.asked().contains(&"c.test".to_owned()));
}

#[test]
fn an_exhausted_budget_stays_exhausted_in_the_next_run() {
    let net = net();
    let policy = flags(&["a.test:80"]);
    let limits = Limits { requests: 1, ..Limits::default() };
    let mut first = net.guest_with(policy.clone(), |config| config.limits = limits.clone());
    assert!(first.get("http://a.test/").is_ok());
    first.report();
    let meter = first.meter.clone();
    let mut second = net.guest_with(policy, |config| {
        config.limits = limits.clone();
        config.meter = Some(meter);
    });
    assert_eq!(second.get("http://a.test/").unwrap_err().0, Denied);
}

#[test]
fn single_hosts_have_budgets_of_their_own() {
    let net = net();
    let mut guest = net.guest_with_policy(&format!("{RULE}max_requests = 2\n"));
    for host in ["a.test", "b.test"] {
        let url = format!("http://{host}/");
        assert!(guest.get(&url).is_ok() && guest.get(&url).is_ok());
        let (kind, message) = guest.get(&url).unwrap_err();
        assert!(kind == Denied && message.contains("max_requests of rule n"), "{message}");
    }
    let mut guest = net.guest_with_policy(&format!("{RULE}max_total_bytes = 25\n"));
    let mut start = get("http://a.test/");
    start.method = "POST".to_owned();
    start.body = FetchBody::Bytes;
    assert!(guest.send(&start, b"01234").is_ok());
    let (kind, message) = guest.send(&start, b"01234").unwrap_err();
    assert!(kind == Denied && message.contains("max_total_bytes of rule n"), "{message}");
    assert!(guest.get("http://b.test/").is_ok());
}

#[test]
fn bytes_up_are_paid_before_anything_is_sent() {
    let net = net();
    let mut guest = net.guest_with_policy(&format!("[budget]\nbytes_up = 10\n{RULE}"));
    let mut start = get("http://a.test/");
    start.method = "PUT".to_owned();
    start.body = FetchBody::Bytes;
    assert!(guest.send(&start, b"0123456").is_ok());
    let dialled = net.dialled().len();
    assert_eq!(guest.send(&start, b"0123456").unwrap_err().0, Denied);
    assert_eq!((guest.meter.used(Budget::BytesUp), net.dialled().len()), (7, dialled));
}

#[test]
fn open_requests_are_bounded_and_end_with_the_run() {
    let net = net();
    net.serve(&format!("{PUBLIC}:80"), |_stream| {
        std::thread::sleep(std::time::Duration::from_secs(3))
    });
    let mut guest = net.guest_with(flags(&["a.test:80"]), |config| config.limits.requests_open = 3);
    let started: Vec<_> =
        (0..3).map(|_| guest.start(&get("http://a.test/"), &[]).unwrap()).collect();
    assert_eq!(guest.start(&get("http://a.test/"), &[]).unwrap_err().0, Denied);
    guest.close(started[0]);
    assert!(guest.start(&get("http://a.test/"), &[]).is_ok());
    guest.report();
    let outcomes = guest
        .audit
        .records()
        .iter()
        .filter(|record| {
            record.phase == fumehood_host_fns::Phase::Outcome(fumehood_host_fns::Outcome::Cancelled)
        })
        .count();
    assert_eq!(outcomes, 4);
    let (kind, _) = guest.head(started[1]).unwrap_err();
    assert_eq!(kind, fumehood_guest_abi::FetchErrorKind::Unknown);
}

#[test]
fn equal_denials_are_one_with_a_count() {
    let net = net();
    let mut guest = net.guest(&["a.test:80"]);
    for number in 0..1000 {
        assert!(guest.get(&format!("https://evil.test/x?{number}")).is_err());
    }
    let mut start = get("https://evil.test/x");
    start.method = "POST".to_owned();
    assert!(guest.send(&start, &[]).is_err());
    let report = guest.report();
    let denials: Vec<_> = report.denials.iter().map(|d| (d.target.as_str(), d.count)).collect();
    assert_eq!(denials, [("GET https://evil.test/x", 1000), ("POST https://evil.test/x", 1)]);
    assert!(report.denials[0].hint.contains("--allow evil.test"));
}
