//! Random sequences of files, tools, faults, panics and drops: every decided
//! effect has exactly one intent and one outcome, and no budget is lost or
//! negative.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fumehood_guest_abi::{ToolWait, encode, op};
use fumehood_policies::Verdict;
use proptest::prelude::*;

use super::tools_tests::{call_record, operate};
use crate::audit::{AuditNumbers, AuditRecord, AuditSink, AuditUnavailable, Outcome, Phase};
use crate::broker::{Broker, BrokerConfig, BrokerState, Refusal, StopReason};
use crate::call::HostCall;
use crate::environment::{Clock, SimpleWaiter, SystemClock};
use crate::limits::Limits;
use crate::meter::{Budget, SharedMeter};
use crate::testing::*;
use crate::tools::testing::{Gate, Threads, tools};

/// Takes intents while there is room, and every outcome.
#[derive(Default)]
struct Sink {
    records: Mutex<Vec<AuditRecord>>,
    room: AtomicU64,
    /// Of the session, so shared by its brokers.
    numbers: AuditNumbers,
}

impl AuditSink for Sink {
    fn record(&self, record: AuditRecord) -> Result<(), AuditUnavailable> {
        let intent = record.phase == Phase::Intent;
        let room = self.room.load(Ordering::Relaxed);
        if intent && room == 0 {
            return Err(AuditUnavailable("full"));
        }
        self.room.fetch_sub(u64::from(intent), Ordering::Relaxed);
        self.records.lock().unwrap().push(record);
        Ok(())
    }
}

/// A clock that panics when it is told to, in the middle of whatever reads it.
struct BrokenClock(SystemClock, AtomicU64);

impl Clock for BrokenClock {
    fn wall_ns(&self) -> u64 {
        if self.1.fetch_sub(1, Ordering::Relaxed) == 1 {
            resume_unwind(Box::new("the clock is broken"));
        }
        self.0.wall_ns()
    }

    fn monotonic_ns(&self) -> u64 {
        self.0.monotonic_ns()
    }
}

#[derive(Clone, Debug)]
enum Step {
    Put(u8),
    Remove(u8),
    Directory(u8),
    Look(u8),
    Write(u8, u16),
    Call(usize),
    Start(usize),
    Wait,
    Cancel(u64),
    OpenGate,
    Report,
    Snapshot,
    Restore,
    BreakClock(u8),
    BreakExecutor(usize),
    Fill(u8),
    NewBroker,
    Interrupt,
}

const TOOLS: [&str; 8] =
    ["echo", "fail", "brief", "panic", "late_panic", "short", "gated", "no_such_tool"];

fn step() -> impl Strategy<Value = Step> {
    let small = || 0..4_u8;
    prop_oneof![
        3 => small().prop_map(Step::Put),
        1 => small().prop_map(Step::Remove),
        1 => small().prop_map(Step::Directory),
        1 => small().prop_map(Step::Look),
        2 => (small(), any::<u16>()).prop_map(|(name, length)| Step::Write(name, length)),
        4 => (0..TOOLS.len()).prop_map(Step::Call),
        5 => (0..TOOLS.len()).prop_map(Step::Start),
        3 => Just(Step::Wait),
        2 => (0..20_u64).prop_map(Step::Cancel),
        1 => Just(Step::OpenGate),
        1 => Just(Step::Report),
        1 => Just(Step::Snapshot),
        1 => Just(Step::Restore),
        1 => small().prop_map(Step::BreakClock),
        2 => (1..4_usize).prop_map(Step::BreakExecutor),
        1 => (0..60_u8).prop_map(Step::Fill),
        1 => Just(Step::NewBroker),
        1 => Just(Step::Interrupt),
    ]
}

struct World {
    sink: Arc<Sink>,
    clock: Arc<BrokenClock>,
    meter: SharedMeter,
    gate: Arc<Gate>,
    threads: Arc<Threads>,
    waiter: Arc<SimpleWaiter>,
    guest: Guest,
    state: Option<BrokerState>,
}

fn limits() -> Limits {
    Limits {
        tool_calls_total: 30,
        tool_calls_by_name: [("echo".to_owned(), 4), ("gated".to_owned(), 5)].into(),
        tool_calls_in_flight: 4,
        created_entries: 12,
        written_bytes: 100_000,
        denials: 40,
        ..Limits::default()
    }
}

impl World {
    fn new() -> Self {
        let sink = Arc::new(Sink::default());
        sink.room.store(1000, Ordering::Relaxed);
        let clock = Arc::new(BrokenClock(SystemClock::new(), AtomicU64::new(u64::MAX)));
        let (gate, threads) = (Arc::default(), Threads::start());
        let (meter, waiter) = (SharedMeter::new(&limits()), Arc::default());
        let guest = Self::guest(&sink, &clock, &meter, &gate, &threads, &waiter);
        Self { sink, clock, meter, gate, threads, waiter, guest, state: None }
    }

    fn guest(
        sink: &Arc<Sink>,
        clock: &Arc<BrokenClock>,
        meter: &SharedMeter,
        gate: &Arc<Gate>,
        threads: &Arc<Threads>,
        waiter: &Arc<SimpleWaiter>,
    ) -> Guest {
        let mut config = BrokerConfig::new("test");
        config.limits = limits();
        config.audit = Arc::<Sink>::clone(sink);
        config.audit_numbers = sink.numbers.clone();
        config.clock = Arc::<BrokenClock>::clone(clock);
        config.meter = Some(meter.clone());
        config.tools = Arc::new(tools(gate));
        config.executor = Some(Arc::<Threads>::clone(threads));
        config.waiter = Arc::<SimpleWaiter>::clone(waiter);
        Guest { broker: Broker::new(config).unwrap(), audit: Arc::default() }
    }

    fn renew(&mut self) {
        let Self { sink, clock, meter, gate, threads, .. } = &*self;
        let waiter = Arc::default();
        let guest = Self::guest(sink, clock, meter, gate, threads, &waiter);
        (self.guest, self.waiter, self.state) = (guest, waiter, None);
    }

    /// Whether the run has to end.
    fn tool(&mut self, number: u32, request: &[u8]) -> bool {
        matches!(operate(&mut self.guest, number, request), Err(Refusal::Stop(_)))
    }

    fn put(&mut self, name: u8, length: u16) -> bool {
        let raw = format!("/tmp/{name}");
        let path = raw.as_bytes();
        let open = HostCall::PathOpen {
            dir: ROOT,
            follow: true,
            path,
            open_flags: CREATE,
            rights_base: W,
            rights_inheriting: 0,
            fd_flags: 0,
        };
        let stopped = |refusal| matches!(refusal, Refusal::Stop(StopReason::BudgetExceeded { .. }));
        let fd = match self.guest.broker.dispatch(open) {
            Ok(crate::call::HostAnswer::Descriptor(fd)) => fd,
            Ok(other) => panic!("{other:?}"),
            Err(refusal) => return stopped(refusal),
        };
        let data = vec![1; usize::from(length)];
        let written = self.guest.broker.dispatch(HostCall::FdWrite { fd, data: &data });
        let closed = self.guest.broker.dispatch(HostCall::FdClose { fd });
        written.err().is_some_and(stopped) || closed.err().is_some_and(stopped)
    }

    fn path_call(&mut self, name: u8, call: impl FnOnce(&[u8]) -> HostCall<'_>) -> bool {
        let path = format!("/tmp/{name}");
        matches!(self.guest.broker.dispatch(call(path.as_bytes())), Err(Refusal::Stop(_)))
    }

    fn carry_out(&mut self, step: &Step) -> bool {
        match *step {
            Step::Put(name) => self.put(name, 3),
            Step::Write(name, length) => self.put(name, length),
            Step::Remove(name) => {
                self.path_call(name, |path| HostCall::PathUnlinkFile { dir: ROOT, path })
            }
            Step::Directory(name) => {
                self.path_call(name, |path| HostCall::PathCreateDirectory { dir: ROOT, path })
            }
            Step::Look(name) => self.path_call(name, |path| HostCall::PathFilestatGet {
                dir: ROOT,
                follow: true,
                path,
            }),
            // What only the gate or the end can end is not waited for.
            Step::Call(tool) if TOOLS[tool] == "gated" => false,
            Step::Call(tool) => self.tool(op::TOOL_CALL, &call_record(TOOLS[tool], b"{}")),
            Step::Start(tool) => self.tool(op::TOOL_START, &call_record(TOOLS[tool], b"{}")),
            Step::Wait => {
                let timeout_ns = Some(2_000_000);
                self.tool(op::TOOL_WAIT, &encode(&ToolWait { timeout_ns }).unwrap())
            }
            Step::Cancel(id) => self.tool(op::TOOL_CANCEL, &encode(&id).unwrap()),
            Step::OpenGate => {
                self.gate.open();
                false
            }
            Step::Report => {
                self.guest.broker.report();
                false
            }
            Step::Snapshot => {
                self.state = Some(self.guest.broker.snapshot());
                false
            }
            Step::Restore => {
                if let Some(state) = self.state.clone() {
                    self.guest.broker.restore(state);
                }
                false
            }
            Step::BreakClock(after) => {
                self.clock.1.store(u64::from(after) + 1, Ordering::Relaxed);
                false
            }
            Step::BreakExecutor(after) => {
                self.threads.broken.store(after, Ordering::Relaxed);
                false
            }
            Step::Fill(room) => {
                self.sink.room.store(u64::from(room), Ordering::Relaxed);
                false
            }
            Step::NewBroker => {
                self.clock.1.store(u64::MAX, Ordering::Relaxed);
                self.renew();
                false
            }
            Step::Interrupt => {
                self.waiter.interrupt();
                false
            }
        }
    }
}

fn check(world: World) -> Result<(), TestCaseError> {
    let World { sink, meter, guest, .. } = world;
    drop(guest);
    let mut open: BTreeMap<u64, &'static str> = BTreeMap::new();
    let (mut last, mut tool_calls, mut created) = (0, 0, 0);
    let records = sink.records.lock().unwrap();
    for record in records.iter() {
        prop_assert!(record.sequence > last);
        last = record.sequence;
        let key = record.call;
        match record.phase {
            Phase::Intent if record.verdict == Verdict::Allow => {
                tool_calls += u64::from(record.operation == "tool.call");
                prop_assert_eq!(open.insert(key, record.operation), None);
            }
            Phase::Outcome(outcome) => {
                prop_assert_eq!(open.remove(&key), Some(record.operation));
                created += u64::from(
                    record.operation == "fs.create_directory" && outcome == Outcome::Done,
                );
            }
            _ => {}
        }
    }
    prop_assert!(open.is_empty(), "no outcome: {open:?}");
    prop_assert_eq!(meter.used(Budget::ToolCalls), tool_calls);
    prop_assert!(meter.used(Budget::ToolCalls) <= 30);
    prop_assert!(meter.used(Budget::CreatedEntries) >= created);
    prop_assert!(meter.used(Budget::CreatedEntries) <= 12);
    prop_assert!(meter.used(Budget::WrittenBytes) <= 100_000);
    prop_assert!(meter.used(Budget::Denials) <= 40);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(250))]
    #[test]
    fn every_effect_has_one_intent_and_one_outcome(
        steps in proptest::collection::vec(step(), 1..60),
    ) {
        let mut world = World::new();
        let mut used = [0; Budget::ALL.len()];
        for step in &steps {
            let done = catch_unwind(AssertUnwindSafe(|| world.carry_out(step)));
            // A run that was stopped or panicked is over.
            if done.unwrap_or(true) {
                world.clock.1.store(u64::MAX, Ordering::Relaxed);
                world.renew();
            }
            for (at, budget) in Budget::ALL.into_iter().enumerate() {
                let now = world.meter.used(budget);
                prop_assert!(now >= used[at], "{budget:?} went down");
                used[at] = now;
            }
        }
        check(world)?;
    }
}

#[test]
fn what_runs_elsewhere_cannot_outlive_its_record() {
    let mut world = World::new();
    for _ in 0..4 {
        assert!(!world.carry_out(&Step::Start(6)));
    }
    world.renew();
    world.gate.open();
    std::thread::sleep(Duration::from_millis(20));
    check(world).unwrap();
}
