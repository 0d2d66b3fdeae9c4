//! Many requests at once, and being stopped.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fumehood_guest_abi::{
    FetchHandle, FetchRead, FetchReply, ToolEnded, ToolReply, ToolWait, decode, encode, fetch_op,
    op, unframe,
};
use fumehood_host_fns::{HostCall, Refusal, SimpleWaiter, StopReason};

use crate::support::{Guest, Net, PUBLIC, flags, get, ok, read_request};

fn wait(guest: &mut Guest, timeout: Option<Duration>) -> Vec<(u64, FetchReply, Vec<u8>)> {
    let timeout_ns = timeout.map(|timeout| u64::try_from(timeout.as_nanos()).unwrap());
    let response = guest.call(op::TOOL_WAIT, &encode(&ToolWait { timeout_ns }).unwrap()).unwrap();
    let ended: Vec<ToolEnded> = decode(&response).unwrap();
    ended
        .into_iter()
        .map(|ended| match ended.reply {
            ToolReply::Value(value) => {
                let (text, bytes) = unframe(&value).unwrap();
                (ended.id, serde_json::from_slice(text).unwrap(), bytes.to_vec())
            }
            other => panic!("{other:?}"),
        })
        .collect()
}

#[test]
fn requests_go_on_side_by_side() {
    let net = Net::new();
    net.name("a.test", &[&[PUBLIC]]);
    net.serve(&format!("{PUBLIC}:80"), |mut stream| {
        use std::io::Write as _;
        while let Some((head, _)) = read_request(&mut stream) {
            std::thread::sleep(Duration::from_millis(200));
            if stream.write_all(&ok(head.split(' ').nth(1).unwrap())).is_err() {
                return;
            }
        }
    });
    let mut guest = net.guest(&["a.test:80"]);
    let started = Instant::now();
    // What each number waits for: the request, and whether its head came.
    let mut waits: BTreeMap<u64, (u64, bool)> = BTreeMap::new();
    let mut bodies: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    let mut next: Vec<(u64, bool)> = Vec::new();
    for number in 0..50 {
        let id = guest.start(&get(&format!("http://a.test/{number}")), &[]).unwrap();
        bodies.insert(id, Vec::new());
        next.push((id, false));
    }
    let mut left = 50;
    while left > 0 {
        let mut answers = Vec::new();
        for (id, headed) in next.drain(..) {
            let (reply, bytes) = if headed {
                guest.operate(fetch_op::FETCH_READ, &FetchRead { id, max: 100, wait: false }, &[])
            } else {
                guest.operate(fetch_op::FETCH_HEAD, &FetchHandle { id, wait: false }, &[])
            };
            match reply {
                FetchReply::Pending { id: number } => {
                    waits.insert(number, (id, headed));
                }
                reply => answers.push((id, reply, bytes)),
            }
        }
        if answers.is_empty() {
            for (number, reply, bytes) in wait(&mut guest, None) {
                answers.push((waits.remove(&number).unwrap().0, reply, bytes));
            }
        }
        for (id, reply, bytes) in answers {
            match reply {
                FetchReply::Head(_) => next.push((id, true)),
                FetchReply::Data { end: false } => {
                    bodies.get_mut(&id).unwrap().extend(bytes);
                    next.push((id, true));
                }
                FetchReply::Data { end: true } => {
                    guest.close(id);
                    left -= 1;
                }
                other => panic!("{other:?}"),
            }
        }
    }
    assert!(started.elapsed() < Duration::from_secs(8), "{:?}", started.elapsed());
    let mut texts: Vec<String> =
        bodies.into_values().map(|body| String::from_utf8(body).unwrap()).collect();
    texts.sort();
    let mut want: Vec<String> = (0..50).map(|number| format!("/{number}")).collect();
    want.sort();
    assert_eq!(texts, want);
    assert!(wait(&mut guest, None).is_empty());
}

#[test]
fn waiting_has_an_end_and_a_closed_request_is_never_told_of() {
    let net = Net::new();
    net.name("a.test", &[&[PUBLIC]]);
    net.serve(&format!("{PUBLIC}:80"), |_stream| std::thread::sleep(Duration::from_secs(3)));
    let mut guest = net.guest(&["a.test:80"]);
    let id = guest.start(&get("http://a.test/"), &[]).unwrap();
    let handle = FetchHandle { id, wait: false };
    let (reply, _) = guest.operate(fetch_op::FETCH_HEAD, &handle, &[]);
    assert!(matches!(reply, FetchReply::Pending { .. }));
    assert!(wait(&mut guest, Some(Duration::from_millis(50))).is_empty());
    guest.close(id);
    assert!(wait(&mut guest, None).is_empty());
}

#[test]
fn a_run_that_is_stopped_stops_while_it_waits() {
    let net = Net::new();
    net.name("a.test", &[&[PUBLIC]]);
    net.serve(&format!("{PUBLIC}:80"), |_stream| std::thread::sleep(Duration::from_secs(5)));
    let waiter = Arc::new(SimpleWaiter::default());
    let given = Arc::clone(&waiter);
    let mut guest = net.guest_with(flags(&["a.test:80"]), |config| config.waiter = given);
    let id = guest.start(&get("http://a.test/"), &[]).unwrap();
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        waiter.interrupt();
    });
    let text = serde_json::to_vec(&FetchHandle { id, wait: true }).unwrap();
    let request = fumehood_guest_abi::frame(&text, &[]).unwrap();
    let started = Instant::now();
    let call =
        HostCall::Brokered { op: fetch_op::FETCH_HEAD, request: &request, response: &mut [0; 64] };
    let stopped = guest.broker.dispatch(call);
    assert_eq!(stopped, Err(Refusal::Stop(StopReason::Interrupted)));
    assert!(started.elapsed() < Duration::from_secs(2));
}

#[test]
fn odd_records_are_refused_and_harm_nothing() {
    let net = Net::new();
    let mut guest = net.guest(&["a.test:80"]);
    for operation in fetch_op::FETCH_START..=fetch_op::FETCH_CLOSE {
        for request in [
            &b""[..],
            b"\xff\xff\xff\xff",
            b"\x02\0\0\0{}",
            b"\x04\0\0\0null",
            b"\x0a\0\0\0{\"id\":true}",
            b"\x09\0\0\0{\"id\": 99",
        ] {
            assert!(
                guest.call(operation, request).is_err_and(|code| code == -2),
                "{operation} {request:?}"
            );
        }
    }
    for (record, want) in [
        (serde_json::json!({"id": 99}), "unknown"),
        (serde_json::json!({"id": 99, "max": u64::MAX}), "unknown"),
        (serde_json::json!({"id": 99, "end": true}), "unknown"),
    ] {
        let operation = if record.get("max").is_some() {
            fetch_op::FETCH_READ
        } else if record.get("end").is_some() {
            fetch_op::FETCH_WRITE
        } else {
            fetch_op::FETCH_HEAD
        };
        let (reply, _) = guest.operate(operation, &record, &[]);
        assert!(format!("{reply:?}").to_lowercase().contains(want), "{reply:?}");
    }
}
