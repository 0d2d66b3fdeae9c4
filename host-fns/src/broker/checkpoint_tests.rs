//! What a session keeps from cell to cell, and what it lists as done.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::panic, reason = "tests")]

use std::sync::Arc;
use std::time::Duration;

use fumehood_policies::Access;

use crate::broker::MemoryFile;
use crate::call::{HostAnswer, HostCall};
use crate::environment::NoStreaming;
use crate::lasting::LastingEffect;
use crate::meter::Budget;
use crate::testing::*;
use crate::virtual_clock::VirtualClock;

fn effect(operation: &str, target: &str, count: u64) -> LastingEffect {
    LastingEffect { operation: operation.to_owned(), target: target.to_owned(), count }
}

#[test]
fn every_cell_has_an_input_of_its_own() {
    let mut guest = Guest::with(|config| config.stdin = Arc::from(b"first".as_slice()));
    assert_eq!(guest.read(0, 3).unwrap(), b"fir");
    guest.broker.begin_cell(Arc::from(b"second".as_slice()), Arc::new(NoStreaming));
    assert_eq!(guest.read(0, 9).unwrap(), b"second");
    guest.broker.begin_cell(Arc::from([].as_slice()), Arc::new(NoStreaming));
    assert_eq!(guest.read(0, 9).unwrap(), b"");
}

#[test]
fn what_left_the_sandbox_is_listed_also_after_a_rollback() {
    let host = tempfile::tempdir().unwrap();
    std::fs::write(host.path().join("old"), b"x").unwrap();
    let mut guest = Guest::mounted(host.path(), Access::ReadWrite);
    let before = guest.open("/m/open", CREATE, R | W).unwrap();
    guest.broker.report();
    let state = guest.broker.snapshot();
    let inside = guest.open("/tmp/inside", CREATE, R | W).unwrap();
    guest.write(inside, b"x").unwrap();
    guest.open("/m/old", 0, R).unwrap();
    guest.write(before, b"more").unwrap();
    let new = guest.open("/m/new", CREATE, R | W).unwrap();
    guest.write(new, b"x").unwrap();
    guest.close(new).unwrap();
    guest.call(HostCall::PathUnlinkFile { dir: ROOT, path: b"m/old" }).unwrap();
    let used = guest.broker.meter().used(Budget::HostCalls);
    guest.broker.restore(state);
    assert_eq!(guest.broker.meter().used(Budget::HostCalls), used);
    let report = guest.broker.report();
    assert_eq!(
        report.effects,
        [
            effect("fs.create", "/m/new", 1),
            effect("fs.remove", "/m/old", 1),
            effect("fs.stream", "/m/new", 1),
            effect("fs.stream", "/m/open", 1),
        ]
    );
    assert_eq!(report.files.created, ["/m/new"]);
    assert_eq!(report.files.deleted, ["/m/old"]);
    assert_eq!(report.files.modified, ["/m/open"]);
    assert_eq!(guest.broker.report().effects, []);
}

#[test]
fn beyond_the_limit_effects_are_counted() {
    let host = tempfile::tempdir().unwrap();
    let mount = crate::HostMount::open("/m", host.path(), Access::ReadWrite, false).unwrap();
    let mut guest = Guest::with(|config| {
        config.mounts.push(mount);
        config.limits.effects_kept = 2;
    });
    for name in ["/m/a", "/m/b", "/m/c", "/m/a"] {
        let fd = guest.open(name, CREATE, R | W).unwrap();
        guest.close(fd).unwrap();
    }
    let report = guest.broker.report();
    assert_eq!((report.effects.len(), report.effects_not_listed), (2, 1));
    assert_eq!(report.effects.first(), Some(&effect("fs.create", "/m/a", 2)));
}

#[test]
fn the_files_in_memory_are_listed_in_order_and_bounded() {
    let mut guest = Guest::new();
    for (name, text) in [("/work/b", "xx"), ("/tmp/a\n", "y"), ("/z", "")] {
        let fd = guest.open(name, CREATE, R | W).unwrap();
        guest.write(fd, text.as_bytes()).unwrap();
    }
    let file = |path: &str, bytes| MemoryFile { path: path.to_owned(), bytes };
    let all = vec![file("/tmp/a\\u{a}", 1), file("/work/b", 2), file("/z", 0)];
    assert_eq!(guest.broker.memory_files(10), (all.clone(), false));
    assert_eq!(guest.broker.memory_files(3), (all.clone(), false));
    assert_eq!(guest.broker.memory_files(2), (all.get(..2).unwrap().to_vec(), true));
}

#[test]
fn files_that_a_state_alone_holds_are_counted() {
    let mut guest = Guest::new();
    let fd = guest.open("/tmp/f", CREATE, R | W).unwrap();
    guest.write(fd, &vec![1; 300_000]).unwrap();
    let first = guest.broker.snapshot();
    assert_eq!(first.bytes_beyond(&guest.broker.snapshot()), 0);
    // Another file leaves this one shared; writing to it copies a part of it.
    let other = guest.open("/tmp/g", CREATE, R | W).unwrap();
    guest.write(other, b"x").unwrap();
    let second = guest.broker.snapshot();
    assert!(first.bytes_beyond(&second) < 10_000, "{}", first.bytes_beyond(&second));
    guest.call(HostCall::PathUnlinkFile { dir: ROOT, path: b"tmp/f" }).unwrap();
    guest.close(fd).unwrap();
    let third = guest.broker.snapshot();
    let alone = second.bytes_beyond(&third);
    assert!((300_000..700_000).contains(&alone), "{alone}");
    assert!(third.bytes_beyond(&second) < 10_000);
    guest.broker.pending = Some(bytes::Bytes::from(vec![0; 5000]));
    let fourth = guest.broker.snapshot();
    assert_eq!(fourth.bytes_beyond(&fourth.clone()), 0);
    assert_eq!(fourth.bytes_beyond(&third), 5000);
}

#[test]
fn the_monotonic_clock_of_another_broker_goes_on_from_the_state() {
    const HOUR: u64 = 3_600_000_000_000;
    let clock = || Arc::new(VirtualClock::starting_at(0));
    let now = |guest: &mut Guest| match guest.call(HostCall::ClockTime { clock: 1 }).unwrap() {
        HostAnswer::Time(now) => now,
        other => panic!("{other:?}"),
    };
    let of_parent = clock();
    let mut parent = Guest::with(|config| config.clock = of_parent.clone());
    of_parent.advance(Duration::from_nanos(HOUR));
    let seen = now(&mut parent);
    assert!(seen >= HOUR);
    let state = parent.broker.snapshot();
    let mut child = Guest::with(|config| config.clock = clock());
    assert!(now(&mut child) < HOUR);
    child.broker.restore(state.clone());
    let first = now(&mut child);
    assert!((seen..seen + 100_000).contains(&first), "{first} after {seen}");
    // Going back in the same broker moves nothing.
    of_parent.advance(Duration::from_nanos(HOUR));
    let later = now(&mut parent);
    parent.broker.restore(state);
    let after = now(&mut parent);
    assert!((later..later + 100_000).contains(&after), "{after} after {later}");
}
