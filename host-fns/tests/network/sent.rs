//! What is connected to and sent is what was decided, whatever the URL.

use std::cell::RefCell;

use fumehood_guest_abi::FetchErrorKind;
use fumehood_policies::NetRequest;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

use crate::support::{Net, OTHER, PUBLIC, flags, ok};

#[test]
fn host_port_and_path_on_the_wire_are_those_of_the_decision() {
    let net = Net::new();
    net.name("a.test", &[&[PUBLIC]]);
    net.name("b.test", &[&[OTHER]]);
    for at in [format!("{PUBLIC}:80"), format!("{PUBLIC}:8080"), format!("{OTHER}:80")] {
        // Each connection carries one request, so that each is dialled.
        net.serve(&at, |mut stream| {
            use std::io::Write as _;
            if let Some((head, _)) = crate::support::read_request(&mut stream) {
                let _ = stream.write_all(&ok(&head));
            }
        });
    }
    let policy = flags(&["a.test:80", "a.test:8080", "b.test:80"]);
    let limits = fumehood_host_fns::Limits { requests: 10_000, ..Default::default() };
    let guest = RefCell::new(net.guest_with(policy, |config| config.limits = limits));
    let parts = (
        "(a|b|A|xa)\\.test\\.?|a%2etest|a\\.test@b\\.test|\\[::1\\]|127\\.1|a\\.test\\\\@b\\.test",
        "(:80|:8080|:0|:)?",
        "(/[a-c~.;%'\"{}| 2eF\\\\]{0,3}){0,3}",
        "(\\?[a-c&=%#\"<>{}|^`' ]{0,5})?(#[a-c/@]{0,3})?",
    );
    let mut runner =
        TestRunner::new(Config { cases: 1500, failure_persistence: None, ..Config::default() });
    let mut answered = 0_u32;
    let count = RefCell::new(&mut answered);
    let result = runner.run(&parts, |(host, port, path, query)| {
        let url = format!("http://{host}{port}{path}{query}");
        let decided = NetRequest::parse("GET", &url);
        let dialled = net.dialled().len();
        let got = guest.borrow_mut().get(&url);
        let fail = |why: &str| Err(TestCaseError::fail(format!("{url}: {why} {got:?}")));
        match (&decided, &got) {
            (Err(_), Err((FetchErrorKind::Invalid, _))) => {}
            (Ok(_), Err((FetchErrorKind::Denied, _))) => {
                if net.dialled().len() != dialled {
                    return fail("dialled although denied");
                }
            }
            (Ok(request), Ok(response)) => {
                let request = request.get();
                let head = response.text();
                let line = format!("GET {} HTTP/1.1", request.path_and_query());
                if head.lines().next() != Some(line.as_str()) {
                    return fail("another request line");
                }
                if !head.contains(&format!("\r\nhost: {}\r\n", request.authority())) {
                    return fail("another host");
                }
                let address = if request.host.to_string() == "a.test" { PUBLIC } else { OTHER };
                if net.dialled().last() != Some(&format!("{address}:{}", request.port)) {
                    return fail("another address");
                }
                **count.borrow_mut() += 1;
            }
            _ => return fail("decided and carried out differently"),
        }
        Ok(())
    });
    result.unwrap();
    assert!(answered >= 20, "{answered} requests were answered");
}
