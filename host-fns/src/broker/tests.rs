//! Streams, waiting, operations, snapshots, budgets and the audit.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "tests"
)]

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fumehood_guest_abi::{CallError, Display, encode, op};

use crate::audit::{AuditRecord, Outcome, Phase};
use crate::broker::{BrokerConfig, Refusal, SetupError, StopReason};
use crate::call::{Event, FileType, HostAnswer, HostCall, Subscription};
use crate::environment::{OutputSink, SimpleWaiter, Stream};
use crate::errno::Errno;
use crate::testing::*;

#[derive(Default)]
struct Collect(Mutex<Vec<u8>>);

impl OutputSink for Collect {
    fn write(&self, _stream: Stream, bytes: &[u8]) {
        self.0.lock().unwrap().extend_from_slice(bytes);
    }
}

#[test]
fn output_is_capped_counted_and_streamed() {
    let sink = Arc::new(Collect::default());
    let mut guest = Guest::with(|config: &mut BrokerConfig| {
        config.output = Arc::<Collect>::clone(&sink);
        config.limits.output_bytes = 10;
    });
    for _ in 0..5 {
        assert_eq!(guest.write(1, b"abc"), Ok(3));
        assert_eq!(guest.write(2, b"e"), Ok(1));
        assert_eq!(guest.write(1, b""), Ok(0));
    }
    let report = guest.broker.report();
    assert_eq!((report.stdout.as_slice(), report.dropped_stdout), (b"abcabcabca".as_slice(), 5));
    assert_eq!((report.stderr.as_slice(), report.dropped_stderr), (b"eeeee".as_slice(), 0));
    assert_eq!(sink.0.lock().unwrap().len(), 15);
    assert_eq!(report.usage.bytes_out, 20);
    assert_eq!(guest.broker.report().stdout, b"");
}

#[test]
fn standard_streams_are_no_terminal_and_do_not_seek() {
    let mut guest = Guest::with(|config| config.stdin = Arc::from(b"input".as_slice()));
    for fd in 0..3 {
        assert_eq!(guest.seek(fd, 0, 1), Err(Errno::Spipe));
        match guest.call(HostCall::FdFdstatGet { fd }) {
            Ok(HostAnswer::Fdstat(stat)) => assert_eq!(stat.file_type, FileType::Unknown),
            other => panic!("{other:?}"),
        }
        assert!(guest.call(HostCall::FdFilestatGet { fd }).is_ok());
    }
    assert_eq!(guest.read(0, 3).unwrap(), b"inp");
    let state = guest.broker.snapshot();
    assert_eq!(guest.read(0, 9).unwrap(), b"ut");
    assert_eq!(guest.read(0, 9).unwrap(), b"");
    guest.broker.restore(state);
    assert_eq!(guest.read(0, 9).unwrap(), b"ut");
    assert_eq!(guest.write(0, b"x"), Err(Errno::Badf));
    assert_eq!(guest.read(1, 1), Err(Errno::Badf));
    assert_eq!(guest.call(HostCall::FdPrestatGet { fd: 3 }), Ok(HostAnswer::Size(1)));
    assert_eq!(guest.call(HostCall::FdPrestatGet { fd: 1 }), Err(Errno::Badf));
    assert_eq!(guest.call(HostCall::FdPrestatGet { fd: 4 }), Err(Errno::Badf));
}

#[test]
fn seeking_is_checked() {
    let mut guest = Guest::new();
    let fd = guest.open("/tmp/f", CREATE, R | W).unwrap();
    guest.write(fd, b"0123456789").unwrap();
    assert_eq!(guest.seek(fd, -3, 2), Ok(7));
    assert_eq!(guest.seek(fd, -8, 1), Err(Errno::Inval));
    assert_eq!(guest.seek(fd, i64::MAX, 0), Ok(i64::MAX as u64));
    assert_eq!(guest.seek(fd, 1, 1), Err(Errno::Inval));
    assert_eq!(guest.seek(fd, 0, 3), Err(Errno::Inval));
    assert_eq!(guest.write(fd, b"x"), Err(Errno::Fbig));
    assert_eq!(guest.read(fd, 1).unwrap(), b"");
    let offset = u64::MAX;
    assert_eq!(guest.size(HostCall::FdPread { fd, into: &mut [0], offset }), Err(Errno::Inval));
    assert_eq!(guest.size(HostCall::FdPwrite { fd, data: b"x", offset }), Err(Errno::Inval));
}

#[test]
fn readdir_cuts_where_the_buffer_ends() {
    let mut guest = Guest::new();
    let names: Vec<String> = (0..50).map(|n| format!("name-{n:03}")).collect();
    for name in &names {
        guest.put(&format!("/tmp/{name}"), b"").unwrap();
    }
    for length in [33, 34, 57, 100, 4096] {
        assert_eq!(guest.list_with("/tmp", length).unwrap(), names, "{length}");
    }
    let fd = guest.open("/tmp", DIRECTORY, R).unwrap();
    for length in [0, 1, 23, 24] {
        let mut into = vec![7; length];
        assert_eq!(guest.size(HostCall::FdReaddir { fd, into: &mut into, cookie: 0 }), Ok(length));
        assert!(into.iter().skip(21).all(|padding| *padding == 0));
    }
    let mut into = [0; 64];
    assert_eq!(guest.size(HostCall::FdReaddir { fd, into: &mut into, cookie: u64::MAX }), Ok(0));
    guest.unlink("/tmp/name-000").unwrap();
    let stable = guest.size(HostCall::FdReaddir { fd, into: &mut into, cookie: 2 }).unwrap();
    assert_eq!((&into[24..32], stable), (b"name-000".as_slice(), 64));
    let fresh = guest.size(HostCall::FdReaddir { fd, into: &mut into, cookie: 0 }).unwrap();
    assert_eq!((&into[24..25], fresh), (b".".as_slice(), 64));
}

#[test]
fn listings_are_limited() {
    let mut guest = Guest::limited(|limits| limits.directory_entries = 3);
    for name in ["a", "b", "c", "d"] {
        guest.put(&format!("/tmp/{name}"), b"").unwrap();
    }
    assert_eq!(guest.list("/tmp"), Err(Errno::Overflow));
}

#[test]
fn clocks_are_coarse() {
    let mut guest = Guest::new();
    for clock in 0..6 {
        match guest.call(HostCall::ClockTime { clock }) {
            Ok(HostAnswer::Time(now)) if clock < 4 => assert_eq!(now % 1000, 0),
            Err(Errno::Inval) if clock >= 4 => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(guest.call(HostCall::ClockResolution { clock: 1 }), Ok(HostAnswer::Time(1000)));
}

fn timer(userdata: u64, timeout: Duration) -> Subscription {
    let timeout_ns = u64::try_from(timeout.as_nanos()).unwrap();
    Subscription::Clock { userdata, clock: 1, timeout_ns, absolute: false }
}

#[test]
fn poll_waits_for_the_earliest_timer_only() {
    let mut guest = Guest::new();
    let start = Instant::now();
    let subscriptions =
        vec![timer(1, Duration::from_millis(20)), timer(2, Duration::from_secs(600))];
    let event = |userdata, result, kind| Event { userdata, result, kind };
    assert_eq!(
        guest.call(HostCall::Poll { subscriptions }),
        Ok(HostAnswer::Events(vec![event(1, Ok(0), 0)]))
    );
    assert!(
        start.elapsed() >= Duration::from_millis(20) && start.elapsed() < Duration::from_secs(60)
    );
    let subscriptions = vec![
        timer(1, Duration::from_secs(600)),
        Subscription::Read { userdata: 2, fd: 0 },
        Subscription::Write { userdata: 3, fd: 1 },
        Subscription::Read { userdata: 4, fd: 99 },
        Subscription::Clock { userdata: 5, clock: 9, timeout_ns: 0, absolute: false },
        Subscription::Clock { userdata: 6, clock: 0, timeout_ns: 5, absolute: true },
    ];
    let want = vec![
        event(2, Ok(0), 1),
        event(3, Ok(1 << 16), 2),
        event(4, Err(Errno::Badf), 1),
        event(5, Err(Errno::Inval), 0),
        event(6, Ok(0), 0),
    ];
    assert_eq!(guest.call(HostCall::Poll { subscriptions }), Ok(HostAnswer::Events(want)));
    assert_eq!(guest.call(HostCall::Poll { subscriptions: vec![] }), Err(Errno::Inval));
    let subscriptions = vec![timer(0, Duration::ZERO); 65];
    assert_eq!(guest.call(HostCall::Poll { subscriptions }), Err(Errno::Inval));
}

#[test]
fn a_wait_is_interrupted() {
    let waiter = Arc::new(SimpleWaiter::default());
    let mut guest = Guest::with(|config| config.waiter = Arc::<SimpleWaiter>::clone(&waiter));
    std::thread::scope(|scope| {
        scope.spawn(|| waiter.interrupt());
        let subscriptions = vec![timer(1, Duration::from_nanos(u64::MAX))];
        let stopped = guest.broker.dispatch(HostCall::Poll { subscriptions });
        assert_eq!(stopped, Err(Refusal::Stop(StopReason::Interrupted)));
    });
    assert_eq!(guest.broker.dispatch(HostCall::Yield), Err(Refusal::Stop(StopReason::Interrupted)));
}

#[test]
fn used_up_budgets_end_or_deny() {
    let mut guest = Guest::limited(|limits| {
        limits.host_calls = 20;
        limits.random_bytes = 40;
        limits.read_bytes = 3;
    });
    guest.put("/tmp/f", b"12345").unwrap();
    let fd = guest.open("/tmp/f", 0, R).unwrap();
    assert_eq!(guest.read(fd, 9).unwrap(), b"123");
    for _ in 0..3 {
        assert_eq!(guest.read(fd, 9), Err(Errno::Acces));
    }
    assert!(guest.call(HostCall::Random { into: &mut [0; 30] }).is_ok());
    let random = guest.broker.dispatch(HostCall::Random { into: &mut [0; 30] });
    assert_eq!(random, Err(Refusal::Stop(StopReason::BudgetExceeded { name: "random_bytes" })));
    let state = guest.broker.snapshot();
    let subscriptions = vec![timer(1, Duration::ZERO); 9];
    assert!(guest.call(HostCall::Poll { subscriptions }).is_ok());
    let exhausted = Err(Refusal::Stop(StopReason::HostCallsExhausted));
    assert_eq!(guest.broker.dispatch(HostCall::Yield), exhausted);
    guest.broker.restore(state);
    assert_eq!(guest.broker.dispatch(HostCall::Yield), exhausted);
    let denials = guest.broker.report().denials;
    assert_eq!((denials.len(), denials[0].count, denials[0].rule.as_str()), (2, 3, "budget"));
}

#[test]
fn denials_are_counted_and_limited() {
    let mount = tempfile::tempdir().unwrap();
    let mut guest = Guest::with(|config| {
        config.mounts.push(
            crate::HostMount::open("/m", mount.path(), crate::Access::ReadOnly, false).unwrap(),
        );
        config.limits.denials_kept = 2;
    });
    for _ in 0..10 {
        for name in ["/m/a", "/m/b", "/m/c"] {
            assert_eq!(guest.mkdir(name), Err(Errno::Rofs));
        }
    }
    let report = guest.broker.report();
    assert_eq!(report.denials.iter().map(|denial| denial.count).collect::<Vec<_>>(), [10, 10]);
    assert_eq!(report.denials_not_listed, 10);
    assert_eq!(report.denials[0].target, "/m/a");
}

#[test]
fn descriptors_are_limited_before_anything_is_made() {
    let mut guest = Guest::limited(|limits| limits.descriptors = 5);
    assert_eq!(guest.open("/tmp/a", CREATE, W), Ok(4));
    assert_eq!(guest.open("/tmp/b", CREATE, W), Err(Errno::Mfile));
    assert_eq!(guest.list_of_tmp(), ["a"]);
}

impl Guest {
    fn list_of_tmp(&mut self) -> Vec<String> {
        self.close(4).unwrap();
        self.list("/tmp").unwrap()
    }
}

fn brokered(guest: &mut Guest, op: u32, request: &[u8], response: &mut [u8]) -> i64 {
    match guest.call(HostCall::Brokered { op, request, response }) {
        Ok(HostAnswer::Brokered(result)) => result,
        other => panic!("{other:?}"),
    }
}

#[test]
fn operations_are_measured_before_they_are_parsed() {
    let mut guest = Guest::limited(|limits| {
        limits.display_bytes = 100;
        limits.displays = 1;
        limits.request_bytes = 1000;
    });
    let display = |mime: &str, length| {
        encode(&Display { mime: mime.to_owned(), bytes: vec![1; length] }).unwrap()
    };
    assert_eq!(brokered(&mut guest, op::NOOP, b"", &mut []), 0);
    assert_eq!(brokered(&mut guest, op::TAKE, b"", &mut []), CallError::NothingPending as i64);
    assert_eq!(brokered(&mut guest, 77, b"", &mut []), CallError::UnknownOperation as i64);
    assert_eq!(brokered(&mut guest, op::NOOP, &[0; 1001], &mut []), CallError::TooLarge as i64);
    assert_eq!(brokered(&mut guest, op::DISPLAY, &[255; 9], &mut []), CallError::Malformed as i64);
    assert_eq!(
        brokered(&mut guest, op::DISPLAY, &display("text/x", 1), &mut []),
        CallError::Malformed as i64
    );
    assert_eq!(
        brokered(&mut guest, op::DISPLAY, &display("text/plain", 101), &mut []),
        CallError::TooLarge as i64
    );
    assert_eq!(brokered(&mut guest, op::DISPLAY, &display("text/plain", 100), &mut []), 0);
    assert_eq!(
        brokered(&mut guest, op::DISPLAY, &display("text/plain", 1), &mut []),
        CallError::Denied as i64
    );
    let report = guest.broker.report();
    assert_eq!((report.displays.len(), report.denials.len()), (1, 1));
    assert_eq!(brokered(&mut guest, op::DISPLAY, &display("image/png", 1), &mut []), 0);
}

#[test]
fn a_large_response_waits_to_be_taken() {
    let mut guest = Guest::new();
    guest.broker.pending = Some(bytes::Bytes::from_static(b"response"));
    assert_eq!(brokered(&mut guest, op::TAKE, b"", &mut [0; 3]), 8);
    let mut buffer = [0; 9];
    assert_eq!(brokered(&mut guest, op::TAKE, b"", &mut buffer), 8);
    assert_eq!(&buffer, b"response\0");
    assert_eq!(brokered(&mut guest, op::TAKE, b"", &mut []), CallError::NothingPending as i64);
}

#[test]
fn restore_takes_memory_and_descriptors_back_and_host_files_not() {
    let mount = tempfile::tempdir().unwrap();
    let mut guest = Guest::mounted(mount.path(), crate::Access::ReadWrite);
    guest.put("/tmp/f", b"before").unwrap();
    let fd = guest.open("/tmp/f", 0, R).unwrap();
    guest.broker.report();
    let state = guest.broker.snapshot();
    guest.put("/tmp/f", b"after").unwrap();
    guest.put("/m/host", b"stays").unwrap();
    guest.close(fd).unwrap();
    guest.unlink("/tmp/f").unwrap();
    for _ in 0..2 {
        guest.broker.restore(state.clone());
        assert_eq!(guest.read(fd, 9).unwrap(), b"before");
        assert_eq!(guest.get("/tmp/f").unwrap(), b"before");
    }
    assert_eq!(guest.get("/m/host").unwrap(), b"stays");
    let files = guest.broker.report().files;
    assert_eq!(
        (files.created, files.modified.len(), files.deleted.len()),
        (vec!["/m/host".to_owned()], 0, 0)
    );
}

#[test]
fn files_are_placed_and_setup_errors_are_named() {
    let mut guest =
        Guest::with(|config| config.files.push((path("/work/sub/main.py"), b"print()".to_vec())));
    assert_eq!(guest.get("/work/sub/main.py").unwrap(), b"print()");
    assert!(guest.broker.report().files.created.is_empty());
    let fails = |change: fn(&mut BrokerConfig)| {
        let mut config = BrokerConfig::new("test");
        change(&mut config);
        crate::Broker::new(config).err().map(|error: SetupError| error.code())
    };
    assert_eq!(fails(|config| config.files.push((path("/tmp"), vec![]))), Some("setup_file"));
    assert_eq!(
        fails(|config| {
            config.files.push((path("/tmp/f"), vec![0; 9]));
            config.limits.memory_file_bytes = 8;
        }),
        Some("setup_file")
    );
    let unused =
        crate::Policy::builder().mount("x", path("/x"), crate::Access::ReadOnly).build().unwrap();
    let mut config = BrokerConfig::new("test");
    config.policy = Some(unused);
    assert_eq!(
        crate::Broker::new(config).err().map(|error| error.code()),
        Some("setup_rule_without_mount")
    );
}

fn effects(records: &[AuditRecord]) -> Vec<(&'static str, Phase)> {
    records.iter().map(|record| (record.operation, record.phase)).collect()
}

#[test]
fn every_decided_effect_has_one_intent_and_one_outcome() {
    let mount = tempfile::tempdir().unwrap();
    let mut guest = Guest::mounted(mount.path(), crate::Access::ReadWrite);
    guest.put("/m/f", b"data").unwrap();
    guest.symlink("f", "/m/s").unwrap();
    guest.get("/m/s").unwrap();
    let _ = guest.get("/m/none");
    let _ = guest.rename("/m/f", "/tmp/f");
    let _ = guest.stat("/m/f", true);
    let _ = guest.stat("/m/none", true);
    guest.broker.report();
    let records = guest.audit.records();
    let done = Phase::Outcome(Outcome::Done);
    let stream = Phase::Sum { count: 1, failed: 0 };
    assert_eq!(
        effects(&records),
        [
            ("fs.create", Phase::Intent),
            ("fs.create", done),
            ("fs.stream", stream),
            ("fs.symlink", Phase::Intent),
            ("fs.symlink", done),
            ("fs.read", Phase::Intent),
            ("fs.read", Phase::Outcome(Outcome::Redirected)),
            ("fs.read", Phase::Intent),
            ("fs.read", done),
            ("fs.stream", stream),
            ("fs.read", Phase::Intent),
            ("fs.read", Phase::Outcome(Outcome::Failed(Errno::Noent))),
            ("fs.rename", Phase::Intent),
            ("fs.rename", Phase::Outcome(Outcome::Failed(Errno::Xdev))),
            ("fs.metadata", Phase::Sum { count: 2, failed: 1 }),
        ]
    );
    assert!(records.iter().zip(1..).all(|(record, sequence)| record.sequence == sequence));
    assert_eq!(records[2].bytes_out, 4);
    assert_eq!(records[8].target.to_string(), "/m/f");
    for pair in records.chunks(2).take(1) {
        assert_eq!(pair[0].call, pair[1].call);
    }
}

#[test]
fn a_broker_can_move_between_threads() {
    fn send<T: Send>() {}
    fn share<T: Send + Sync>() {}
    send::<crate::Broker>();
    share::<crate::BrokerState>();
}

#[test]
fn renumbering_closes_what_it_replaces() {
    let mut guest = Guest::new();
    let before = guest.broker.memory_used();
    let fd = guest.open("/tmp/a", CREATE, W).unwrap();
    let other = guest.open("/tmp/b", CREATE, W).unwrap();
    guest.unlink("/tmp/b").unwrap();
    for (from, to, want) in [
        (3, 3, Ok(())),
        (3, 99, Err(Errno::Badf)),
        (99, 3, Err(Errno::Badf)),
        (fd, 3, Err(Errno::Notsup)),
    ] {
        assert_eq!(guest.call(HostCall::FdRenumber { from, to }).map(drop), want);
    }
    guest.write(fd, b"x").unwrap();
    assert!(guest.call(HostCall::FdRenumber { from: fd, to: other }).is_ok());
    assert_eq!(guest.write(fd, b"x"), Err(Errno::Badf));
    assert_eq!(guest.write(other, b"y"), Ok(1));
    assert_eq!(guest.get("/tmp/a").unwrap(), b"xy");
    guest.unlink("/tmp/a").unwrap();
    guest.close(other).unwrap();
    assert_eq!(guest.broker.memory_used(), before);
    let out = guest.open("/tmp/out", CREATE, W).unwrap();
    assert!(guest.call(HostCall::FdRenumber { from: out, to: 1 }).is_ok());
    guest.write(1, b"redirected").unwrap();
    assert_eq!(guest.get("/tmp/out").unwrap(), b"redirected");
}

#[test]
fn a_million_small_appends_stay_small() {
    let mut guest = Guest::limited(|limits| limits.written_bytes = 100_000);
    let fd = guest.open("/tmp/f", CREATE, W).unwrap();
    let written = (0..200_000).take_while(|_| guest.write(fd, b"x").is_ok()).count();
    assert_eq!(written, 100_000);
    guest.broker.report();
    assert!(guest.audit.records().len() < 10);
}
