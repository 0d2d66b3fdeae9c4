//! Commands of the native tier: what the guest gets, what is recorded and what
//! is bounded.
#![allow(clippy::unwrap_used, clippy::panic, clippy::disallowed_methods, reason = "tests")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use fumehood_guest_abi::{BashCall, BashErrorKind, BashReply, BashResult, decode, encode, op};
use fumehood_policies::{Flags, Policy, PolicyFile, Verdict};

use crate::audit::{AuditRecord, Outcome, Payload, Phase};
use crate::broker::tools_tests::operate;
use crate::broker::{BrokerConfig, NativeSession, Refusal, StopReason};
use crate::environment::SimpleWaiter;
use crate::native::testing::FakeTier;
use crate::native::{Guarantee, NativeTier};
use crate::testing::Guest;

fn policy(action: &str) -> Policy {
    let text = format!("version = 1\n[bash]\naction = \"{action}\"\n");
    let file = PolicyFile::parse(&text, "test").unwrap();
    Policy::combine(Some(&file), &Flags::default(), None).unwrap().policy
}

fn guest_with(change: impl FnOnce(&mut BrokerConfig)) -> (Guest, Arc<FakeTier>) {
    let tier = Arc::new(FakeTier::default());
    let shared: Arc<dyn NativeTier> = Arc::<FakeTier>::clone(&tier);
    let guest = Guest::with(|config| {
        config.policy = Some(policy("allow"));
        config.native = Some(NativeSession::new(shared));
        change(config);
    });
    (guest, tier)
}

fn call(command: &str) -> BashCall {
    BashCall { command: command.to_owned(), ..BashCall::default() }
}

fn reply(guest: &mut Guest, call: &BashCall) -> BashReply {
    decode(&operate(guest, op::BASH_RUN, &encode(call).unwrap()).unwrap()).unwrap()
}

fn ended(guest: &mut Guest, call: &BashCall) -> BashResult {
    match reply(guest, call) {
        BashReply::Ended(result) => result,
        other => panic!("{other:?}"),
    }
}

fn raised(guest: &mut Guest, call: &BashCall) -> (BashErrorKind, String) {
    match reply(guest, call) {
        BashReply::Raised { kind, message } => (kind, message),
        other => panic!("{other:?}"),
    }
}

fn stopped(guest: &mut Guest, command: &str) -> StopReason {
    match operate(guest, op::BASH_RUN, &encode(&call(command)).unwrap()) {
        Err(Refusal::Stop(reason)) => reason,
        other => panic!("{other:?}"),
    }
}

fn of_bash(guest: &Guest) -> Vec<AuditRecord> {
    guest.audit.records().into_iter().filter(|r| r.operation == "bash.run").collect()
}

#[test]
fn a_command_is_decided_recorded_run_and_answered() {
    let (mut guest, tier) = guest_with(|_| {});
    let result = ended(&mut guest, &call("echo hello"));
    assert_eq!((result.exit_code, result.stdout.as_slice()), (0, b"hello".as_slice()));
    assert_eq!((result.tier.as_str(), result.controls), ("fake", vec!["none".to_owned()]));
    assert_eq!(tier.last().argv, ["/bin/sh", "-c", "echo hello"]);
    let records = of_bash(&guest);
    let [intent, outcome] = records.as_slice() else { panic!("{records:?}") };
    assert_eq!((intent.phase, outcome.phase), (Phase::Intent, Phase::Outcome(Outcome::Done)));
    assert_eq!(intent.target.to_string(), "echo hello");
    assert_eq!(intent.digest, Payload::of(b"echo hello").digest);
    assert_eq!((&*intent.rule, outcome.bytes_in), ("bash", 5));
    assert_eq!(ended(&mut guest, &call("nothing")).exit_code, 127);
}

#[test]
fn what_no_policy_allows_does_not_reach_the_tier() {
    for text in ["deny", "ask"] {
        let (mut guest, tier) = guest_with(|config| config.policy = Some(policy(text)));
        let (kind, message) = raised(&mut guest, &call("echo hello"));
        assert_eq!(kind, BashErrorKind::Denied, "{message}");
        assert!(message.contains("do not retry") && message.contains("operator"), "{message}");
        assert!(tier.seen.lock().unwrap().is_empty());
        let denials = guest.broker.report().denials;
        assert_eq!((denials.len(), denials[0].operation.as_str()), (1, "bash.run"));
    }
    let (mut guest, tier) = guest_with(|config| config.policy = None);
    assert_eq!(raised(&mut guest, &call("echo hello")).0, BashErrorKind::Denied);
    assert_eq!(of_bash(&guest)[0].verdict, Verdict::Deny);
    assert!(tier.seen.lock().unwrap().is_empty());
}

#[test]
fn without_a_tier_or_a_guarantee_nothing_runs_and_it_is_named() {
    let (mut guest, _) = guest_with(|config| config.native = None);
    let (kind, message) = raised(&mut guest, &call("echo hello"));
    assert!(kind == BashErrorKind::Unavailable && message.contains("native tier"), "{message}");
    assert_eq!(operate(&mut guest, op::BASH_TIER, &[]).unwrap(), encode(&"").unwrap());

    let broken = Arc::new(FakeTier { missing: Some("helper"), ..FakeTier::default() });
    let shared: Arc<dyn NativeTier> = Arc::<FakeTier>::clone(&broken);
    let (mut guest, _) = guest_with(|config| config.native = Some(NativeSession::new(shared)));
    let (kind, message) = raised(&mut guest, &call("echo hello"));
    assert!(kind == BashErrorKind::Unavailable && message.contains("helper"), "{message}");
    assert!(broken.seen.lock().unwrap().is_empty() && of_bash(&guest).is_empty());

    let (mut guest, tier) = guest_with(|config| {
        let native = config.native.as_mut().unwrap();
        native.required = vec![Guarantee::TreeMemory];
    });
    let (_, message) = raised(&mut guest, &call("echo hello"));
    assert!(message.contains("tree-memory") && tier.seen.lock().unwrap().is_empty(), "{message}");
}

#[test]
fn calls_that_make_no_sense_are_refused_before_anything_is_recorded() {
    let (mut guest, tier) = guest_with(|_| {});
    let bad = [
        call(""),
        call("a\0b"),
        call(&"x".repeat(200_000)),
        BashCall { timeout_ms: Some(0), ..call("echo x") },
        BashCall { cwd: Some("relative".to_owned()), ..call("echo x") },
        BashCall { cwd: Some("/a\0".to_owned()), ..call("echo x") },
        BashCall { env: vec![("LD_PRELOAD".to_owned(), "/x".to_owned())], ..call("echo x") },
        BashCall { env: vec![("A=B".to_owned(), "x".to_owned())], ..call("echo x") },
    ];
    for bad in bad {
        assert_eq!(raised(&mut guest, &bad).0, BashErrorKind::Arguments);
    }
    assert!(tier.seen.lock().unwrap().is_empty() && of_bash(&guest).is_empty());
}

#[test]
fn the_least_of_all_times_binds_in_both_directions() {
    let (mut guest, tier) =
        guest_with(|config| config.native.as_mut().unwrap().timeout = Duration::from_secs(2));
    for (asked, held) in [(None, 2000), (Some(100), 100), (Some(60_000), 2000)] {
        let result = ended(&mut guest, &BashCall { timeout_ms: asked, ..call("echo x") });
        assert_eq!((result.timeout_ms, tier.last().timeout.as_millis()), (held, held.into()));
    }
    assert!(!guest.broker.time_limit_fired());
    let result = ended(&mut guest, &BashCall { timeout_ms: Some(20), ..call("sleep") });
    assert!(result.timed_out && result.exit_code == -9);
    assert!(guest.broker.time_limit_fired());
    assert_eq!(result.stdout, b"part");
    let last = of_bash(&guest).pop().unwrap();
    assert_eq!(last.phase, Phase::Outcome(Outcome::TimedOut));
}

#[test]
fn a_command_that_its_tier_does_not_end_in_time_is_a_timeout_all_the_same() {
    let (mut guest, _) = guest_with(|_| {});
    let started = Instant::now();
    let result = ended(&mut guest, &BashCall { timeout_ms: Some(20), ..call("stuck") });
    assert!(started.elapsed() < Duration::from_secs(30));
    assert!(result.timed_out, "it was told as cancelled");
    assert_eq!((result.exit_code, result.stdout.as_slice()), (-9, b"part".as_slice()));
    let last = of_bash(&guest).pop().unwrap();
    assert_eq!(last.phase, Phase::Outcome(Outcome::TimedOut));
}

#[test]
fn the_end_of_the_run_ends_the_command() {
    let waiter = Arc::new(SimpleWaiter::default());
    let shared = Arc::<SimpleWaiter>::clone(&waiter);
    let (mut guest, _) = guest_with(|config| config.waiter = shared);
    let started = Instant::now();
    let reason = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            waiter.interrupt();
        });
        stopped(&mut guest, "sleep")
    });
    assert_eq!(reason, StopReason::Interrupted);
    assert!(started.elapsed() < Duration::from_secs(30));
    let last = of_bash(&guest).pop().unwrap();
    assert_eq!(last.phase, Phase::Outcome(Outcome::Cancelled));
}

#[test]
fn failures_of_the_tier_tell_the_guest_nothing_of_the_host() {
    let (mut guest, _) = guest_with(|_| {});
    let (kind, message) = raised(&mut guest, &call("fail"));
    assert!(kind == BashErrorKind::Failed && !message.contains("secret"), "{message}");
    match stopped(&mut guest, "panic") {
        StopReason::Fault(reference) => assert!(!reference.contains("secret"), "{reference}"),
        other => panic!("{other:?}"),
    }
    let last = of_bash(&guest).pop().unwrap();
    assert_eq!(last.phase, Phase::Outcome(Outcome::Unknown));
    assert_eq!(ended(&mut guest, &call("echo x")).exit_code, 0);
}

#[test]
fn output_fits_the_response_and_the_rest_is_counted() {
    let (mut guest, _) = guest_with(|config| {
        config.native.as_mut().unwrap().limits.output_bytes = u64::MAX;
    });
    let result = ended(&mut guest, &call("flood"));
    assert!(result.stdout.len() > 4 << 20 && result.stderr.len() > 4 << 20);
    assert_eq!(result.stdout.len() as u64 + result.dropped_stdout, 40 << 20);
    assert_eq!(result.stderr.len() as u64 + result.dropped_stderr, 40 << 20);
}

#[test]
fn commands_count_as_calls() {
    let (mut guest, tier) = guest_with(|config| {
        config.limits.tool_calls_by_name.insert("bash".to_owned(), 2);
    });
    for _ in 0..2 {
        ended(&mut guest, &call("echo x"));
    }
    let (kind, message) = raised(&mut guest, &call("echo x"));
    assert!(kind == BashErrorKind::Denied && message.contains("is used up"), "{message}");
    assert_eq!(tier.seen.lock().unwrap().len(), 2);
}

#[test]
fn variables_and_input_reach_the_tier() {
    let (mut guest, tier) = guest_with(|_| {});
    let env = vec![("A".to_owned(), "1".to_owned())];
    let cwd = Some("/work/x".to_owned());
    let stdin = b"text".to_vec();
    ended(&mut guest, &BashCall { env, cwd, stdin, ..call("echo x") });
    let seen = tier.last();
    assert_eq!(seen.variables.iter().collect::<Vec<_>>(), [("A", "1")]);
    assert_eq!((seen.cwd.as_str(), &*seen.stdin), ("/work/x", b"text".as_slice()));
}
