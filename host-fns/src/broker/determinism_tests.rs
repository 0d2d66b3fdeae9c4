//! What a guest sees in deterministic mode.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "tests"
)]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fumehood_guest_abi::{
    ToolEnded, ToolErrorKind, ToolReply, ToolStarted, ToolWait, decode, encode, op,
};
use fumehood_policies::Access;

use super::tools_tests::{call_record, guest_with, operate};
use crate::broker::BrokerConfig;
use crate::call::{Event, HostAnswer, HostCall, Subscription};
use crate::environment::{Clock, RandomSource};
use crate::fs::HostMount;
use crate::seeded::{Purpose, SeededRandom};
use crate::testing::{Guest, R, W};
use crate::virtual_clock::{VirtualClock, VirtualWaiter};

const START: u64 = 1_735_689_600_000_000_000;

fn deterministic(config: &mut BrokerConfig) {
    let clock = Arc::new(VirtualClock::starting_at(START));
    config.waiter = Arc::new(VirtualWaiter::new(Arc::clone(&clock), Arc::clone(&config.waiter)));
    config.clock = clock as Arc<dyn Clock>;
    config.random = Arc::new(SeededRandom::new(5, Purpose::Guest)) as Arc<dyn RandomSource>;
    config.deterministic_from_ns = Some(START);
}

fn mounted(host: &Path) -> Guest {
    Guest::with(|config| {
        deterministic(config);
        config.mounts.push(HostMount::open("/m", host, Access::ReadWrite, false).unwrap());
    })
}

#[test]
fn host_files_show_nothing_of_their_host() {
    let look = |names: &[&str]| {
        let host = tempfile::tempdir().unwrap();
        for name in names {
            std::fs::write(host.path().join(name), name).unwrap();
        }
        std::fs::hard_link(host.path().join("a"), host.path().join("z")).unwrap();
        let mut guest = mounted(host.path());
        let listed = guest.list("/m").unwrap();
        let before: Vec<_> =
            listed.iter().map(|name| guest.stat(&format!("/m/{name}"), true)).collect();
        let root = guest.stat("/m", true).unwrap();
        guest.put("/m/new", b"xyz").unwrap();
        guest.rename("/m/a", "/m/moved").unwrap();
        let fd = guest.open("/m/b", 0, R | W).unwrap();
        guest.write(fd, b"more").unwrap();
        let open = guest.call(HostCall::FdFilestatGet { fd }).unwrap();
        let named = guest.stat("/m/b", true).unwrap();
        assert_eq!(open, HostAnswer::Filestat(named));
        assert!(named.modified_ns > START);
        let new = guest.stat("/m/new", true).unwrap();
        assert_eq!((new.links, new.size), (1, 3));
        let moved = guest.stat("/m/moved", true).unwrap();
        assert_eq!(moved.inode, before[0].unwrap().inode);
        (listed, before, root, named, new, moved)
    };
    let first = look(&["a", "b", "c"]);
    assert_eq!(first, look(&["c", "b", "a"]));
    assert!(first.1.iter().all(|stat| stat.unwrap().modified_ns == START));
}

#[test]
fn a_sleep_is_over_at_once_and_passes() {
    let mut guest = Guest::with(deterministic);
    let hour = 3_600_000_000_000;
    let time = |guest: &mut Guest| match guest.call(HostCall::ClockTime { clock: 0 }).unwrap() {
        HostAnswer::Time(time) => time,
        other => panic!("{other:?}"),
    };
    let before = time(&mut guest);
    let sleep = |userdata, timeout_ns| Subscription::Clock {
        userdata,
        clock: 1,
        timeout_ns,
        absolute: false,
    };
    let subscriptions = vec![sleep(1, 2 * hour), sleep(2, hour), sleep(3, hour)];
    let events = guest.call(HostCall::Poll { subscriptions }).unwrap();
    let ended = |userdata| Event { userdata, result: Ok(0), kind: 0 };
    assert_eq!(events, HostAnswer::Events(vec![ended(2), ended(3)]));
    let passed = time(&mut guest) - before;
    assert!((hour..hour + 1_000_000).contains(&passed), "{passed}");
}

fn start(guest: &mut Guest, name: &str, arguments: &str) -> ToolStarted {
    let request = call_record(name, arguments.as_bytes());
    decode(&operate(guest, op::TOOL_START, &request).unwrap()).unwrap()
}

fn wait(guest: &mut Guest, timeout_ns: Option<u64>) -> Vec<ToolEnded> {
    let request = encode(&ToolWait { timeout_ns }).unwrap();
    decode(&operate(guest, op::TOOL_WAIT, &request).unwrap()).unwrap()
}

#[test]
fn started_calls_end_in_the_order_in_which_they_were_started() {
    for round in 0..20_u64 {
        let (mut guest, gate) = guest_with(deterministic);
        // The first ends last, and the second has ended before it is asked for.
        assert_eq!(start(&mut guest, "gated", r#"{"a": 1}"#), ToolStarted::Running { id: 1 });
        assert_eq!(start(&mut guest, "echo", r#"{"a": 2}"#), ToolStarted::Running { id: 2 });
        assert_eq!(start(&mut guest, "short", r#"{"a": 3}"#), ToolStarted::Running { id: 3 });
        let opener = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(round % 7));
            gate.open();
        });
        // The time that is given does not end a wait: calls take no time.
        for (id, timeout) in [(1, Some(0)), (2, None), (3, Some(1))] {
            let value = format!(r#"{{"a":{id}}}"#).into_bytes();
            let ended = ToolEnded { id, reply: ToolReply::Value(value) };
            assert_eq!(wait(&mut guest, timeout), [ended]);
        }
        opener.join().unwrap();
        // With nothing to wait for, the time passes.
        let second = 1_000_000_000;
        assert_eq!(wait(&mut guest, Some(second)), []);
        let time = guest.call(HostCall::ClockTime { clock: 1 }).unwrap();
        assert!(matches!(time, HostAnswer::Time(time) if time >= second), "{time:?}");
        assert!(!guest.broker.time_limit_fired());
    }
}

#[test]
fn a_time_limit_of_a_tool_is_remembered() {
    let (mut guest, _gate) = guest_with(deterministic);
    assert_eq!(start(&mut guest, "brief", "{}"), ToolStarted::Running { id: 1 });
    let ended = wait(&mut guest, None);
    let timed_out = |reply: &ToolReply| {
        matches!(reply, ToolReply::Raised { kind: ToolErrorKind::TimedOut, .. })
    };
    assert!(timed_out(&ended[0].reply), "{ended:?}");
    assert!(guest.broker.time_limit_fired());

    let (mut guest, _gate) = guest_with(deterministic);
    let reply = operate(&mut guest, op::TOOL_CALL, &call_record("brief", b"{}")).unwrap();
    assert!(timed_out(&decode(&reply).unwrap()));
    assert!(guest.broker.time_limit_fired());
}
