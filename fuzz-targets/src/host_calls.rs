//! Host calls with arbitrary numbers, bytes and records.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use fumehood_guest_abi::{fetch_op, op};
use fumehood_host_fns::{
    Broker, BrokerConfig, Clock, HostCall, MemorySink, Phase, RandomFailed, RandomSource, Refusal,
    SetTime, Subscription, Tool, ToolFuture, ToolSet, WaitResult, Waiter, Wake,
};
use fumehood_policies::Verdict;
use serde_json::json;

/// Most calls of one input, and most bytes of a buffer.
const MAX_CALLS: usize = 256;
const MAX_BUFFER: usize = 4096;
/// Bound on what the run keeps of its output.
const OUTPUT_BYTES: u64 = 10_000;

/// Time stands still and nothing waits, so that an input is one run.
struct Still;

impl Clock for Still {
    fn wall_ns(&self) -> u64 {
        1_700_000_000_000_000_000
    }
    fn monotonic_ns(&self) -> u64 {
        0
    }
}

impl RandomSource for Still {
    fn fill(&self, into: &mut [u8]) -> Result<(), RandomFailed> {
        into.fill(4);
        Ok(())
    }
}

impl Waiter for Still {
    fn wait(&self, _: Duration) -> WaitResult {
        WaitResult::Elapsed
    }
    fn park(&self, _: Duration) -> Wake {
        Wake::Elapsed
    }
    fn waker(&self) -> Waker {
        Waker::noop().clone()
    }
}

/// Reads numbers and byte strings from the input until it is empty.
struct Bytes<'d>(&'d [u8]);

impl<'d> Bytes<'d> {
    fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => 0,
        }
    }

    /// Mostly small, sometimes anything.
    fn number(&mut self) -> u64 {
        match self.byte() {
            byte @ 0..=0xef => u64::from(byte % 48),
            0xf0..=0xf7 => (0..8).fold(0, |number, _| (number << 8) | u64::from(self.byte())),
            byte => u64::MAX - u64::from(byte & 7),
        }
    }

    fn small(&mut self) -> u32 {
        u32::try_from(self.number()).unwrap_or(u32::MAX)
    }

    fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    /// Up to 255 bytes, with a first byte for their number.
    fn string(&mut self) -> &'d [u8] {
        let length = usize::from(self.byte()).min(self.0.len());
        let (taken, rest) = self.0.split_at(length);
        self.0 = rest;
        taken
    }

    fn time(&mut self) -> SetTime {
        match self.byte() % 3 {
            0 => SetTime::Keep,
            1 => SetTime::Now,
            _ => SetTime::To(self.number()),
        }
    }
}

fn tools() -> ToolSet {
    let mut set = ToolSet::new();
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
    let echo = |arguments| -> ToolFuture { Box::pin(async move { Ok(arguments) }) };
    let fail = |_| -> ToolFuture { Box::pin(async { Err("no".into()) }) };
    for tool in
        [Tool::new("echo", "Echo.", schema.clone(), echo), Tool::new("fail", "", schema, fail)]
    {
        let added = tool.map(|tool| set.add(tool));
        assert!(matches!(added, Ok(Ok(()))), "{added:?}");
    }
    set
}

/// Every operation, and one number that is none. The first ten are their own
/// numbers, as the kept inputs have them.
const OPERATIONS: [u32; 18] = [
    op::TAKE,
    op::NOOP,
    op::DISPLAY,
    op::TOOL_LIST,
    op::TOOL_CALL,
    op::TOOL_START,
    op::TOOL_WAIT,
    op::TOOL_CANCEL,
    op::TOOL_SEARCH,
    op::TOOL_DESCRIBE,
    op::BASH_RUN,
    op::BASH_TIER,
    fetch_op::FETCH_START,
    fetch_op::FETCH_WRITE,
    fetch_op::FETCH_HEAD,
    fetch_op::FETCH_READ,
    fetch_op::FETCH_CLOSE,
    u32::MAX,
];

fn operation(byte: u8) -> u32 {
    let index = usize::from(byte) % OPERATIONS.len();
    OPERATIONS.get(index).copied().unwrap_or(u32::MAX)
}

/// A run of host calls.
///
/// Properties: no call panics or moves more than it was given room for; what
/// the run keeps is bounded; every recorded intent has one outcome, and every
/// outcome its intent.
pub fn host_calls(data: &[u8]) {
    let audit = Arc::new(MemorySink::default());
    let mut config = BrokerConfig::new("fuzz");
    config.audit = Arc::<MemorySink>::clone(&audit);
    config.clock = Arc::new(Still);
    config.random = Arc::new(Still);
    config.waiter = Arc::new(Still);
    config.tools = Arc::new(tools());
    config.stdin = Arc::from(b"some input\n".as_slice());
    config.limits.output_bytes = OUTPUT_BYTES;
    config.limits.memory_file_bytes = 1 << 20;
    config.limits.max_file_bytes = 1 << 20;
    config.limits.memory_inodes = 1000;
    let Ok(mut broker) = Broker::new(config) else { panic!("the broker is set up") };
    let mut input = Bytes(data);
    for _ in 0..MAX_CALLS {
        if input.0.is_empty() {
            break;
        }
        if input.byte() == 0xff {
            let state = broker.snapshot();
            broker.restore(state);
            continue;
        }
        match one(&mut broker, &mut input) {
            Ok(_) | Err(Refusal::Errno(_)) => {}
            Err(Refusal::Stop(_)) => break,
        }
    }
    let report = broker.report();
    assert!(report.stdout.len() as u64 <= OUTPUT_BYTES);
    assert!(report.stderr.len() as u64 <= OUTPUT_BYTES);
    drop(broker);
    assert_eq!(audit.dropped(), 0);
    let mut open = BTreeMap::new();
    for record in audit.records() {
        match record.phase {
            // A refusal is an intent alone.
            Phase::Intent if record.verdict != Verdict::Allow => {}
            Phase::Intent => {
                let before = open.insert(record.call, record.operation);
                assert_eq!(before, None, "two intents");
            }
            Phase::Outcome(_) => {
                let intent = open.remove(&record.call);
                assert_eq!(intent, Some(record.operation), "an outcome without its intent");
            }
            Phase::Sum { .. } => {}
        }
    }
    assert!(open.is_empty(), "intents without an outcome: {open:?}");
}

fn one(
    broker: &mut Broker,
    input: &mut Bytes<'_>,
) -> Result<fumehood_host_fns::HostAnswer, Refusal> {
    use HostCall as C;
    let mut buffer = [0; MAX_BUFFER];
    let which = input.byte();
    let (fd, dir) = (input.small(), 3 + u32::from(input.byte() % 8 == 7));
    let room = input.small() as usize % (MAX_BUFFER + 1);
    let into = buffer.get_mut(..room).unwrap_or_default();
    let call = match which % 36 {
        0 => C::ClockResolution { clock: fd },
        1 => C::ClockTime { clock: fd },
        2 => C::Random { into },
        3 => C::Yield,
        4 => C::Poll { subscriptions: subscriptions(input) },
        5 => C::FdAdvise { fd, offset: input.number(), len: input.number(), advice: input.byte() },
        6 => C::FdAllocate { fd, offset: input.number(), len: input.number() },
        7 => C::FdClose { fd },
        8 => C::FdFdstatGet { fd },
        9 => C::FdFdstatSetFlags { fd, flags: u16::from(input.byte()) },
        10 => C::FdFilestatGet { fd },
        11 => C::FdFilestatSetSize { fd, size: input.number() },
        12 => C::FdFilestatSetTimes { fd, accessed: input.time(), modified: input.time() },
        13 => C::FdPrestatGet { fd },
        14 => C::FdPrestatDirName { fd, into },
        15 => C::FdRead { fd, into },
        16 => C::FdPread { fd, into, offset: input.number() },
        17 => C::FdReaddir { fd, into, cookie: input.number() },
        18 => C::FdRenumber { from: fd, to: input.small() },
        19 => C::FdSeek { fd, delta: input.number().cast_signed(), whence: input.byte() % 4 },
        20 => C::FdSync { fd, data_only: input.flag() },
        21 => C::FdTell { fd },
        22 => C::FdWrite { fd, data: input.string() },
        23 => C::FdPwrite { fd, offset: input.number(), data: input.string() },
        24 => C::PathCreateDirectory { dir, path: input.string() },
        25 => C::PathFilestatGet { dir, follow: input.flag(), path: input.string() },
        26 => C::PathFilestatSetTimes {
            dir,
            follow: input.flag(),
            accessed: input.time(),
            modified: input.time(),
            path: input.string(),
        },
        27 => C::PathLink {
            old_dir: dir,
            follow: input.flag(),
            old: input.string(),
            new_dir: dir,
            new: input.string(),
        },
        28 => C::PathOpen {
            dir,
            follow: input.flag(),
            open_flags: u16::from(input.byte() % 20),
            rights_base: input.number(),
            rights_inheriting: input.number(),
            fd_flags: u16::from(input.byte() % 40),
            path: input.string(),
        },
        29 => C::PathReadlink { dir, path: input.string(), into },
        30 => C::PathRemoveDirectory { dir, path: input.string() },
        31 => {
            C::PathRename { old_dir: dir, old: input.string(), new_dir: dir, new: input.string() }
        }
        32 => C::PathSymlink { target: input.string(), dir, path: input.string() },
        33 => C::PathUnlinkFile { dir, path: input.string() },
        _ => C::Brokered { op: operation(input.byte()), request: input.string(), response: into },
    };
    broker.dispatch(call)
}

fn subscriptions(input: &mut Bytes<'_>) -> Vec<Subscription> {
    let count = input.byte() % 70;
    let each = |_| {
        let userdata = input.number();
        match input.byte() % 3 {
            0 => Subscription::Clock {
                userdata,
                clock: input.small(),
                timeout_ns: input.number(),
                absolute: input.flag(),
            },
            1 => Subscription::Read { userdata, fd: input.small() },
            _ => Subscription::Write { userdata, fd: input.small() },
        }
    };
    (0..count).map(each).collect()
}
