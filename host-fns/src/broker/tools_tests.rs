//! Calls of tools: what the guest gets, what is recorded and what is bounded.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "tests"
)]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fumehood_guest_abi::{
    CallError, ToolCall, ToolEnded, ToolErrorKind, ToolName, ToolReply, ToolSearch, ToolStarted,
    ToolSummary, ToolWait, decode, encode, op,
};
use fumehood_policies::{Flags, Policy, PolicyFile};
use serde_json::{Value, json};

use crate::audit::{AuditRecord, Outcome, Payload, Phase};
use crate::broker::{BrokerConfig, Refusal, StopReason};
use crate::call::{HostAnswer, HostCall};
use crate::environment::SimpleWaiter;
use crate::meter::{Budget, SharedMeter};
use crate::testing::Guest;
use crate::tools::testing::{Gate, Threads, tool, tools};
use crate::tools::{Tool, ToolFuture, ToolSet};

/// Arguments, a guest with tools, and the gate of the tool `gated`.
pub(super) fn guest_with(change: impl FnOnce(&mut BrokerConfig)) -> (Guest, Arc<Gate>) {
    let gate = Arc::new(Gate::default());
    let set = Arc::new(tools(&gate));
    let guest = Guest::with(|config| {
        config.tools = set;
        config.executor = Some(Threads::start());
        change(config);
    });
    (guest, gate)
}

/// One brokered operation with a buffer that is too small, then `TAKE`.
pub(super) fn operate(guest: &mut Guest, number: u32, request: &[u8]) -> Result<Vec<u8>, Refusal> {
    let mut buffer = vec![0; 64];
    let mut op = number;
    loop {
        let call = HostCall::Brokered { op, request, response: &mut buffer };
        let length = match guest.broker.dispatch(call)? {
            HostAnswer::Brokered(length) => length,
            other => panic!("{other:?}"),
        };
        let length = usize::try_from(length).unwrap_or_else(|_| panic!("code {length}"));
        if length <= buffer.len() {
            buffer.truncate(length);
            return Ok(buffer);
        }
        (buffer, op) = (vec![0; length], op::TAKE);
    }
}

fn raw(guest: &mut Guest, op: u32, request: &[u8]) -> i64 {
    match guest.call(HostCall::Brokered { op, request, response: &mut [] }) {
        Ok(HostAnswer::Brokered(result)) => result,
        other => panic!("{other:?}"),
    }
}

pub(super) fn call_record(name: &str, arguments: &[u8]) -> Vec<u8> {
    encode(&ToolCall { name: name.to_owned(), arguments: arguments.to_vec() }).unwrap()
}

pub(super) fn call(guest: &mut Guest, name: &str, arguments: &str) -> ToolReply {
    let request = call_record(name, arguments.as_bytes());
    decode(&operate(guest, op::TOOL_CALL, &request).unwrap()).unwrap()
}

fn stopped(guest: &mut Guest, number: u32, name: &str) -> StopReason {
    match operate(guest, number, &call_record(name, b"{}")) {
        Err(Refusal::Stop(reason)) => reason,
        other => panic!("{other:?}"),
    }
}

pub(super) fn start(guest: &mut Guest, name: &str, arguments: &str) -> ToolStarted {
    let request = call_record(name, arguments.as_bytes());
    decode(&operate(guest, op::TOOL_START, &request).unwrap()).unwrap()
}

pub(super) fn running(guest: &mut Guest, name: &str) -> u64 {
    match start(guest, name, "{}") {
        ToolStarted::Running { id } => id,
        other => panic!("{other:?}"),
    }
}

pub(super) fn wait(guest: &mut Guest, timeout: Option<Duration>) -> Vec<ToolEnded> {
    let timeout_ns = timeout.map(|timeout| u64::try_from(timeout.as_nanos()).unwrap());
    let request = encode(&ToolWait { timeout_ns }).unwrap();
    decode(&operate(guest, op::TOOL_WAIT, &request).unwrap()).unwrap()
}

pub(super) fn kind(reply: &ToolReply) -> ToolErrorKind {
    match reply {
        ToolReply::Raised { kind, .. } => *kind,
        ToolReply::Value(_) => panic!("a value"),
    }
}

fn message(reply: &ToolReply) -> &str {
    match reply {
        ToolReply::Raised { message, .. } => message,
        ToolReply::Value(_) => panic!("a value"),
    }
}

fn value(text: &str) -> ToolReply {
    ToolReply::Value(text.as_bytes().to_vec())
}

fn phases(records: &[AuditRecord]) -> Vec<(u64, Phase)> {
    records.iter().map(|record| (record.call, record.phase)).collect()
}

fn outcomes(guest: &Guest) -> Vec<Outcome> {
    let outcome = |record: &AuditRecord| match record.phase {
        Phase::Outcome(outcome) => Some(outcome),
        _ => None,
    };
    guest.audit.records().iter().filter_map(outcome).collect()
}

pub(super) fn policy(text: &str) -> Policy {
    let file = PolicyFile::parse(text, "test").unwrap();
    Policy::combine(Some(&file), &Flags::default(), None).unwrap().policy
}

#[test]
fn a_call_gives_its_value_and_is_recorded_without_payload() {
    let (mut guest, _) = guest_with(|_| {});
    assert_eq!(
        call(&mut guest, "echo", r#"{"a": 1, "text": "x"}"#),
        value(r#"{"a":1,"text":"x"}"#)
    );
    let report = guest.broker.report();
    assert_eq!((report.usage.tool_calls, report.denials.len()), (1, 0));
    let records = guest.audit.records();
    assert_eq!(phases(&records), [(1, Phase::Intent), (1, Phase::Outcome(Outcome::Done))]);
    let (intent, outcome) = (&records[0], &records[1]);
    assert_eq!((intent.operation, intent.target.to_string().as_str()), ("tool.call", "echo"));
    assert_eq!(&*intent.rule, fumehood_policies::REGISTERED_RULE);
    let asked = Payload::of(br#"{"a": 1, "text": "x"}"#);
    assert_eq!((intent.bytes_out, intent.bytes_in, intent.digest), (21, 0, asked.digest));
    let given = Payload::of(br#"{"a":1,"text":"x"}"#);
    assert_eq!((outcome.bytes_out, outcome.bytes_in, outcome.digest), (0, 18, given.digest));
    assert_eq!(intent.policy.generation, 1);
    assert_eq!(intent.policy.digest, Policy::builder().build().unwrap().digest());
}

#[test]
fn arguments_that_do_not_fit_are_not_recorded_as_executed() {
    let (mut guest, _) = guest_with(|_| {});
    let many = format!(r#"{{"b": [{}]}}"#, vec!["1"; 1_000_001].join(","));
    let deep = format!(r#"{{"b": {}{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
    for (arguments, want, part) in [
        (r#"{"a": "x"}"#, ToolErrorKind::Arguments, "at /a"),
        (r#"{"a": 1, "a": 2}"#, ToolErrorKind::Arguments, "twice"),
        (r#"{"text": "\ud800"}"#, ToolErrorKind::Arguments, "surrogate"),
        (r#"{"a": NaN}"#, ToolErrorKind::Arguments, "not JSON"),
        ("[]", ToolErrorKind::Arguments, "one JSON object"),
        ("", ToolErrorKind::Arguments, "not JSON"),
        (deep.as_str(), ToolErrorKind::Arguments, "deeper than 64"),
        (many.as_str(), ToolErrorKind::TooLarge, "1000000 values"),
    ] {
        let reply = call(&mut guest, "echo", arguments);
        assert_eq!(kind(&reply), want, "{part}");
        assert!(message(&reply).contains(part), "{}", message(&reply));
    }
    let long = format!("no\n{}", "x".repeat(1 << 20));
    let reply = call(&mut guest, &long, "{}");
    assert_eq!(kind(&reply), ToolErrorKind::Unknown);
    assert!(message(&reply).len() < 200 && !message(&reply).contains('\n'));
    assert!(guest.audit.records().is_empty());
    assert_eq!(guest.broker.report().usage.tool_calls, 0);
}

#[test]
fn a_request_is_measured_before_it_is_parsed() {
    let (mut guest, _) = guest_with(|_| {});
    let huge = vec![b' '; 100 << 20];
    let started = Instant::now();
    for number in [op::TOOL_CALL, op::TOOL_START, op::TOOL_WAIT, op::TOOL_SEARCH] {
        assert_eq!(raw(&mut guest, number, &huge), CallError::TooLarge as i64);
        assert_eq!(raw(&mut guest, number, &[255; 40]), CallError::Malformed as i64);
    }
    assert!(started.elapsed() < Duration::from_secs(1));
}

#[test]
fn rules_deny_and_their_limits_bind() {
    let text = r#"
version = 1
[[tools.rules]]
id = "twice"
tools = ["echo"]
max_calls = 2
max_request_bytes = 40
max_response_bytes = 20
[[tools.rules]]
id = "never"
action = "deny"
tools = ["fail"]
[[tools.rules]]
id = "approve"
action = "ask"
tools = ["short"]
"#;
    let (mut guest, _) = guest_with(|config| config.policy = Some(policy(text)));
    for (name, rule) in [("fail", "never"), ("short", "approve"), ("panic", "default-deny")] {
        let reply = call(&mut guest, name, "{}");
        assert_eq!(kind(&reply), ToolErrorKind::Denied);
        for part in [rule, "not a fault", "do not retry", " The operator could "] {
            assert!(message(&reply).contains(part), "{}", message(&reply));
        }
    }
    let large = format!(r#"{{"text": "{}"}}"#, "x".repeat(40));
    assert_eq!(kind(&call(&mut guest, "echo", &large)), ToolErrorKind::Denied);
    assert_eq!(call(&mut guest, "echo", "{}"), value("{}"));
    let reply = call(&mut guest, "echo", r#"{"text": "0123456789abcdef"}"#);
    assert_eq!(kind(&reply), ToolErrorKind::TooLarge);
    let reply = call(&mut guest, "echo", "{}");
    assert!(message(&reply).contains("max_calls of rule twice"), "{}", message(&reply));
    let denials = guest.broker.report().denials;
    let rules: Vec<_> = denials.iter().map(|denial| denial.rule.as_str()).collect();
    assert_eq!(rules, ["never", "approve", "default-deny", "twice", "budget"]);
    assert_eq!(denials[0].target, "fail");
    assert_eq!(outcomes(&guest), [Outcome::Done, Outcome::TooLarge]);
}

#[test]
fn budgets_bind_by_name_and_in_total_across_brokers() {
    let limits = crate::Limits {
        tool_calls_total: 5,
        tool_calls_by_name: [("echo".to_owned(), 3)].into(),
        ..crate::Limits::default()
    };
    let meter = SharedMeter::new(&limits);
    let shared = || guest_with(|config| config.meter = Some(meter.clone())).0;
    let (mut first, mut second) = (shared(), shared());
    for _ in 0..2 {
        assert_eq!(call(&mut first, "echo", "{}"), value("{}"));
    }
    assert_eq!(call(&mut second, "echo", "{}"), value("{}"));
    let reply = call(&mut second, "echo", "{}");
    assert_eq!(kind(&reply), ToolErrorKind::Denied);
    assert!(message(&reply).contains("tool_calls.echo"));
    assert_eq!(kind(&call(&mut second, "fail", "{}")), ToolErrorKind::Failed);
    assert_eq!(kind(&call(&mut first, "fail", "{}")), ToolErrorKind::Failed);
    assert!(message(&call(&mut first, "fail", "{}")).contains("`tool_calls_total` is used up"));
    assert_eq!((meter.left(Budget::ToolCalls), meter.tool_calls_left("echo")), (0, Some(0)));
    assert_eq!(second.broker.report().denials[0].rule, "budget");
}

#[test]
fn a_failure_shows_its_message_and_no_source() {
    let (mut guest, _) = guest_with(|_| {});
    let reply = call(&mut guest, "fail", "{}");
    assert_eq!((kind(&reply), message(&reply)), (ToolErrorKind::Failed, "no luck"));
    let mut set = ToolSet::new();
    let long = |_| -> ToolFuture { Box::pin(async { Err("é".repeat(1 << 20).into()) }) };
    set.add(tool("long", long)).unwrap();
    let mut guest = Guest::with(|config| config.tools = Arc::new(set));
    assert_eq!(message(&call(&mut guest, "long", "{}")).len(), 4096);
    assert_eq!(outcomes(&guest), [Outcome::ToolError]);
}

#[test]
fn a_call_that_never_ends_times_out_or_is_interrupted() {
    let waiter = Arc::new(SimpleWaiter::default());
    let (mut guest, _) = guest_with(|config| config.waiter = Arc::<SimpleWaiter>::clone(&waiter));
    let reply = call(&mut guest, "brief", "{}");
    assert_eq!(kind(&reply), ToolErrorKind::TimedOut);
    assert_eq!(call(&mut guest, "short", "{}"), value("{}"));
    let id = running(&mut guest, "brief");
    let ended = wait(&mut guest, None);
    assert_eq!((ended[0].id, kind(&ended[0].reply)), (id, ToolErrorKind::TimedOut));
    running(&mut guest, "forever");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(10));
            waiter.interrupt();
        });
        assert_eq!(stopped(&mut guest, op::TOOL_CALL, "forever"), StopReason::Interrupted);
    });
    let request = encode(&ToolWait { timeout_ns: None }).unwrap();
    let stop = operate(&mut guest, op::TOOL_WAIT, &request);
    assert_eq!(stop, Err(Refusal::Stop(StopReason::Interrupted)));
    guest.broker.report();
    use Outcome as O;
    assert_eq!(outcomes(&guest), [O::TimedOut, O::Done, O::TimedOut, O::Cancelled, O::Cancelled]);
}

#[test]
fn a_panic_ends_the_session_without_detail() {
    let (mut guest, _) = guest_with(|_| {});
    for number in [op::TOOL_CALL, op::TOOL_START] {
        match stopped(&mut guest, number, "panic") {
            StopReason::Fault(reference) => assert!(reference.starts_with("tool-fault-")),
            other => panic!("{other:?}"),
        }
    }
    running(&mut guest, "late_panic");
    let request = encode(&ToolWait { timeout_ns: None }).unwrap();
    match operate(&mut guest, op::TOOL_WAIT, &request) {
        Err(Refusal::Stop(StopReason::Fault(reference))) => assert!(!reference.contains("secret")),
        other => panic!("{other:?}"),
    }
    assert_eq!(outcomes(&guest), [Outcome::Unknown; 3]);
    assert_eq!(call(&mut guest, "echo", "{}"), value("{}"));
}

#[test]
fn ten_thousand_started_calls_complete() {
    let (mut guest, gate) = guest_with(|_| {});
    let started: BTreeSet<u64> = (0..10_000).map(|_| running(&mut guest, "gated")).collect();
    assert_eq!(started.len(), 10_000);
    match start(&mut guest, "gated", "{}") {
        ToolStarted::Ended(reply) => assert!(message(&reply).contains("tool_calls_in_flight")),
        other => panic!("{other:?}"),
    }
    assert_eq!(wait(&mut guest, Some(Duration::ZERO)), []);
    let opened = Instant::now();
    gate.open();
    let mut ended = BTreeSet::new();
    while ended.len() < started.len() {
        for one in wait(&mut guest, None) {
            assert_eq!(one.reply, value("{}"));
            assert!(ended.insert(one.id));
        }
    }
    println!("10 000 calls completed in {:?}", opened.elapsed());
    assert_eq!(ended, started);
    assert_eq!(wait(&mut guest, None), []);
    assert_eq!(guest.broker.report().usage.tool_calls, 10_000);
}

#[test]
fn a_started_call_can_be_given_up() {
    let (mut guest, gate) = guest_with(|_| {});
    let (given_up, kept) = (running(&mut guest, "gated"), running(&mut guest, "gated"));
    for id in [given_up, given_up, 999] {
        assert_eq!(raw(&mut guest, op::TOOL_CANCEL, &encode(&id).unwrap()), 0);
    }
    gate.open();
    let ended = wait(&mut guest, None);
    assert_eq!(ended, [ToolEnded { id: kept, reply: value("{}") }]);
    assert_eq!(start(&mut guest, "echo", "{}"), ToolStarted::Ended(value("{}")));
    let state = guest.broker.snapshot();
    running(&mut guest, "forever");
    guest.broker.restore(state);
    assert_eq!(wait(&mut guest, Some(Duration::from_millis(1))), []);
    running(&mut guest, "forever");
    let audit = Arc::clone(&guest.audit);
    drop(guest);
    use Outcome as O;
    let ended: Vec<_> = audit.records().iter().map(|record| record.phase).collect();
    let ended: Vec<_> = ended.into_iter().filter(|phase| *phase != Phase::Intent).collect();
    let want = [O::Cancelled, O::Done, O::Done, O::Cancelled, O::Cancelled];
    assert_eq!(ended, want.map(Phase::Outcome));
}

#[test]
fn without_an_executor_a_started_call_is_waited_for() {
    let (mut guest, _) = guest_with(|config| config.executor = None);
    assert_eq!(start(&mut guest, "short", "{}"), ToolStarted::Ended(value("{}")));
    match start(&mut guest, "brief", "{}") {
        ToolStarted::Ended(reply) => assert_eq!(kind(&reply), ToolErrorKind::TimedOut),
        other => panic!("{other:?}"),
    }
}

/// A tool whose result has `bytes` bytes and a little more.
fn large(name: &str, bytes: usize, pending: bool) -> Tool {
    tool(name, move |_| {
        Box::pin(async move {
            if pending {
                crate::tools::testing::after(Duration::from_millis(1)).await;
            }
            // Shared text could not be told from a value of that size.
            Ok(Value::Array(vec![json!("x".repeat(1 << 16)); bytes >> 16]))
        })
    })
}

#[test]
fn large_results_are_bounded() {
    let mut set = ToolSet::new();
    set.add(large("gigabyte", 1 << 30, false)).unwrap();
    set.add(large("fits", 15 << 20, false)).unwrap();
    set.add(large("later", 10 << 20, true)).unwrap();
    let mut guest = Guest::with(|config| {
        config.tools = Arc::new(set);
        config.executor = Some(Threads::start());
        config.limits.tool_waiting_bytes = 25 << 20;
    });
    assert_eq!(kind(&call(&mut guest, "gigabyte", "{}")), ToolErrorKind::TooLarge);
    assert!(
        matches!(call(&mut guest, "fits", "{}"), ToolReply::Value(json) if json.len() > 15 << 20)
    );
    for _ in 0..4 {
        running(&mut guest, "later");
    }
    std::thread::sleep(Duration::from_millis(300));
    let (mut values, mut too_large, mut batches) = (0, 0, 0);
    while values + too_large < 4 {
        batches += 1;
        for ended in wait(&mut guest, None) {
            match ended.reply {
                ToolReply::Value(json) => values += usize::from(json.len() > 10 << 20),
                reply => too_large += usize::from(kind(&reply) == ToolErrorKind::TooLarge),
            }
        }
    }
    // One value fits a response, so at least one response for each.
    assert!(values >= 2 && batches >= values, "{values} {too_large} {batches}");
    // Arguments count too.
    let mut set = ToolSet::new();
    set.add(tool("forever", |_| Box::pin(std::future::pending()))).unwrap();
    let mut guest = Guest::with(|config| {
        config.tools = Arc::new(set);
        config.executor = Some(Threads::start());
        config.limits.tool_waiting_bytes = 100;
    });
    let text = format!(r#"{{"text": "{}"}}"#, "x".repeat(40));
    assert!(matches!(start(&mut guest, "forever", &text), ToolStarted::Running { .. }));
    match start(&mut guest, "forever", &text) {
        ToolStarted::Ended(reply) => assert!(message(&reply).contains("tool_waiting_bytes")),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_catalogue_is_listed_searched_and_described() {
    let (mut guest, _) = guest_with(|_| {});
    let names: Vec<ToolName> = decode(&operate(&mut guest, op::TOOL_LIST, &[]).unwrap()).unwrap();
    assert_eq!((names.len(), names[1].name.as_str()), (8, "echo"));
    assert_eq!(names[1].parameters, ["a", "text"]);
    let search = encode(&ToolSearch { query: "late".to_owned(), limit: 5 }).unwrap();
    let found: Vec<ToolSummary> =
        decode(&operate(&mut guest, op::TOOL_SEARCH, &search).unwrap()).unwrap();
    assert_eq!((found.len(), found[0].name.as_str()), (1, "late_panic"));
    let name = encode(&"echo").unwrap();
    let text = operate(&mut guest, op::TOOL_DESCRIBE, &name).unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&text).unwrap()["name"], "echo");
    assert_eq!(operate(&mut guest, op::TOOL_DESCRIBE, &encode(&"none").unwrap()).unwrap(), b"");
    let mut config = BrokerConfig::new("test");
    config.tools = Arc::new(tools(&Arc::new(Gate::default())));
    config.limits.request_bytes = 20;
    let error = crate::Broker::new(config).err().unwrap();
    assert_eq!(error.code(), "setup_tool_list");
}

#[test]
fn denials_are_summed_and_end_the_run_when_used_up() {
    let text = "version = 1\n[tools]\n";
    let (mut guest, _) = guest_with(|config| {
        config.policy = Some(policy(text));
        config.limits.denials = 10_000;
    });
    for _ in 0..10_000 {
        assert_eq!(kind(&call(&mut guest, "echo", "{}")), ToolErrorKind::Denied);
    }
    let name = "denials";
    assert_eq!(stopped(&mut guest, op::TOOL_CALL, "echo"), StopReason::BudgetExceeded { name });
    assert_eq!(guest.broker.report().denials[0].count, 10_001);
    let records = guest.audit.records();
    let sum = Phase::Sum { count: 10_000, failed: 10_000 };
    assert_eq!(records.iter().map(|record| record.phase).collect::<Vec<_>>(), [Phase::Intent, sum]);
}

/// `cargo test --release -- --ignored --nocapture costs`
#[test]
#[ignore = "measures"]
fn costs() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let mut set = ToolSet::new();
    let add = move |arguments: Value| -> ToolFuture {
        counted.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            let number = |name: &str| arguments.get(name).and_then(Value::as_i64).unwrap_or(0);
            Ok(json!(number("a") + number("b")))
        })
    };
    let schema = json!({
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
        "additionalProperties": false,
    });
    set.add(Tool::new("add", "Adds.", schema, add).unwrap()).unwrap();
    let set = Arc::new(set);
    let mut guest = Guest::with(|config| {
        config.tools = Arc::clone(&set);
        config.executor = Some(Threads::start());
        config.limits.tool_calls_total = u64::MAX;
    });
    let request = call_record("add", br#"{"a":1,"b":2}"#);
    let measure = |what: &str, each: &mut dyn FnMut()| {
        let rounds = (0..7).map(|_| {
            let started = Instant::now();
            (0..20_000).for_each(|_| each());
            started.elapsed() / 20_000
        });
        println!("{what}: {:?}", rounds.min().unwrap());
    };
    let mut response = [0; 64];
    let mut dispatch = |guest: &mut Guest, op, request: &[u8]| {
        guest.broker.dispatch(HostCall::Brokered { op, request, response: &mut response }).unwrap()
    };
    measure("no-op", &mut || drop(dispatch(&mut guest, op::NOOP, &[])));
    measure("tool call", &mut || drop(dispatch(&mut guest, op::TOOL_CALL, &request)));
    measure("tool start", &mut || drop(dispatch(&mut guest, op::TOOL_START, &request)));
    assert_eq!(calls.load(Ordering::Relaxed), 280_000);
    let fd = guest.open("/tmp/f", 1, 64).unwrap();
    measure("one-byte write", &mut || {
        guest.broker.dispatch(HostCall::FdSeek { fd, delta: 0, whence: 0 }).unwrap();
        guest.broker.dispatch(HostCall::FdWrite { fd, data: b"x" }).unwrap();
    });
    measure("new broker", &mut || {
        let mut config = BrokerConfig::new("test");
        config.tools = Arc::clone(&set);
        drop(crate::Broker::new(config).unwrap());
    });
    let policy = Policy::builder().build().unwrap();
    measure("policy digest", &mut || {
        std::hint::black_box(policy.digest());
    });
    let mount = tempfile::tempdir().unwrap();
    std::fs::write(mount.path().join("f"), [7; 4096]).unwrap();
    let mut guest = Guest::mounted(mount.path(), crate::Access::ReadOnly);
    let dir =
        cap_std::fs::Dir::open_ambient_dir(mount.path(), cap_std::ambient_authority()).unwrap();
    let mut buffer = vec![0; 4096];
    measure("cap-std open+read+close", &mut || {
        let mut file = dir.open("f").unwrap();
        std::io::Read::read_exact(&mut file, &mut buffer).unwrap();
    });
    measure("brokered open+read+close", &mut || {
        let fd = guest.open("/m/f", 0, 2).unwrap();
        let mut into = [0; 4096];
        guest.size(HostCall::FdRead { fd, into: &mut into }).unwrap();
        guest.close(fd).unwrap();
    });
}
