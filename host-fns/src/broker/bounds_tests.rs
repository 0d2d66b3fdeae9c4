//! What many or long requests may hold: names, randomness, time, nesting.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fumehood_guest_abi::{ToolErrorKind, ToolStarted};
use serde_json::{Value, json};

use super::tools_tests::{call, guest_with, kind, running, start, wait};
use crate::broker::{MAX_LISTED_ENTRIES, Refusal, StopReason};
use crate::call::{HostCall, MAX_TRANSFER_BYTES};
use crate::environment::{RandomFailed, RandomSource, SimpleWaiter};
use crate::errno::Errno;
use crate::seeded::{Purpose, SeededRandom};
use crate::testing::{DIRECTORY, Guest, R};
use crate::tools::testing::{Gate, Threads, tool};
use crate::tools::{ToolFuture, ToolSet, take_apart};

#[test]
fn the_names_of_all_open_directories_have_a_bound() {
    const NAMES: usize = 4000;
    let mut guest = Guest::new();
    for number in 0..NAMES {
        guest.put(&format!("/tmp/{number}"), b"").unwrap();
    }
    let list = |guest: &mut Guest, fd, cookie| {
        let mut into = [0; 64];
        guest.size(HostCall::FdReaddir { fd, into: &mut into, cookie })
    };
    let most = MAX_LISTED_ENTRIES / (NAMES + 2);
    let open: Vec<u32> = (0..=most).map(|_| guest.open("/tmp", DIRECTORY, R).unwrap()).collect();
    let (last, others) = open.split_last().unwrap();
    for fd in others {
        assert_eq!(list(&mut guest, *fd, 0), Ok(64));
    }
    assert_eq!(list(&mut guest, *last, 0), Err(Errno::Nomem));
    // Listed anew, it takes the place of what it was.
    assert_eq!(list(&mut guest, others[0], 0), Ok(64));
    assert_eq!(list(&mut guest, *last, 0), Err(Errno::Nomem));
    guest.close(others[0]).unwrap();
    assert_eq!(list(&mut guest, *last, 0), Ok(64));
    assert_eq!(list(&mut guest, others[1], 2), Ok(64));
    // Going back gives the names back, too.
    let state = guest.broker.snapshot();
    guest.close(others[1]).unwrap();
    guest.broker.restore(state);
    let fresh = guest.open("/tmp", DIRECTORY, R).unwrap();
    assert_eq!(list(&mut guest, fresh, 0), Err(Errno::Nomem));
    assert_eq!(list(&mut guest, *last, 2), Ok(64));
}

/// Counts what it is asked for.
struct Counted(SeededRandom, AtomicU64);

impl RandomSource for Counted {
    fn fill(&self, into: &mut [u8]) -> Result<(), RandomFailed> {
        self.1.fetch_add(into.len() as u64, Ordering::Relaxed);
        self.0.fill(into)
    }
}

#[test]
fn a_long_fill_of_randomness_is_the_same_in_pieces_and_can_be_interrupted() {
    let source = || Arc::new(Counted(SeededRandom::new(1, Purpose::Guest), AtomicU64::new(0)));
    let (given, waiter) = (source(), Arc::new(SimpleWaiter::default()));
    let mut guest = Guest::with(|config| {
        config.random = Arc::<Counted>::clone(&given);
        config.waiter = Arc::<SimpleWaiter>::clone(&waiter);
    });
    let mut bytes = vec![0; 3 * MAX_TRANSFER_BYTES + 5];
    guest.call(HostCall::Random { into: &mut bytes }).unwrap();
    let mut whole = vec![0; bytes.len()];
    source().fill(&mut whole).unwrap();
    assert!(bytes == whole);
    let before = given.1.load(Ordering::Relaxed);
    waiter.interrupt();
    let stopped = guest.broker.dispatch(HostCall::Random { into: &mut bytes });
    assert_eq!(stopped, Err(Refusal::Stop(StopReason::Interrupted)));
    let filled = given.1.load(Ordering::Relaxed) - before;
    assert_eq!(filled, MAX_TRANSFER_BYTES as u64);
    let usage = guest.broker.report().usage;
    assert_eq!(usage.bytes_in, (whole.len() + MAX_TRANSFER_BYTES) as u64);
}

/// Its time is 20 ms, and it ends when the gate is open.
fn late(gate: &Arc<Gate>, held: &Arc<()>) -> ToolSet {
    let (gate, held) = (Arc::clone(gate), Arc::clone(held));
    let gated = move |arguments| -> ToolFuture {
        let (gate, held) = (Arc::clone(&gate), Arc::clone(&held));
        Box::pin(async move {
            gate.passed().await;
            drop(held);
            Ok(arguments)
        })
    };
    let blocks = |_| -> ToolFuture {
        Box::pin(async {
            std::thread::sleep(Duration::from_millis(60));
            Ok(json!(1))
        })
    };
    let mut set = ToolSet::new();
    let brief = Duration::from_millis(20);
    set.add(tool("late", gated).timeout(brief)).unwrap();
    set.add(tool("blocks", blocks).timeout(brief)).unwrap();
    set
}

#[test]
fn a_call_whose_time_is_over_is_stopped_and_a_late_value_is_none() {
    let (gate, held) = (Arc::new(Gate::default()), Arc::new(()));
    let set = Arc::new(late(&gate, &held));
    let (mut guest, _) = guest_with(|config| {
        config.tools = set;
        config.executor = Some(Threads::start());
    });
    let over = || std::thread::sleep(Duration::from_millis(60));
    // The set, this test and the call that runs.
    let stopped = running(&mut guest, "late");
    assert_eq!(Arc::strong_count(&held), 3);
    over();
    guest.call(HostCall::ClockTime { clock: 0 }).unwrap();
    assert_eq!(Arc::strong_count(&held), 2, "any host call stops it");
    let ended = wait(&mut guest, None);
    assert_eq!(ended.len(), 1);
    assert_eq!((ended[0].id, kind(&ended[0].reply)), (stopped, ToolErrorKind::TimedOut));
    // It ends after its time and before anything looks.
    let id = running(&mut guest, "late");
    over();
    gate.open();
    over();
    let ended = wait(&mut guest, None);
    assert_eq!((ended[0].id, kind(&ended[0].reply)), (id, ToolErrorKind::TimedOut));
    assert_eq!(kind(&call(&mut guest, "blocks", "{}")), ToolErrorKind::TimedOut);
    match start(&mut guest, "blocks", "{}") {
        ToolStarted::Ended(reply) => assert_eq!(kind(&reply), ToolErrorKind::TimedOut),
        other => panic!("{other:?}"),
    }
}

#[test]
fn arguments_that_nest_without_end_are_refused_on_a_small_stack() {
    let (mut guest, _) = guest_with(|_| {});
    let small = std::thread::Builder::new().stack_size(256 << 10);
    let thread = small.spawn(move || {
        let deep = (0..100_000).fold(Value::Null, |inner, _| Value::Array(vec![inner]));
        let kinds = ["echo", "no_such_tool"]
            .map(|name| guest.broker.call_tool(name, &deep).map(drop).map_err(|error| error.kind));
        take_apart(deep);
        kinds
    });
    let kinds = thread.unwrap().join().unwrap();
    assert_eq!(kinds, [Err(Some(ToolErrorKind::Arguments)); 2]);
}
