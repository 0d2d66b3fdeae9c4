//! Every way a cell can end in the middle, and what is left of it.

use std::sync::Arc;
use std::time::Duration;

use fumehood::{
    Limits, OutcomeKind, OutputSink, Script, Session, SessionError, Stream, TimeoutClock,
};

use crate::support::{
    cancelled, engine, engines, patient, rolled_back, sandbox, session, trap, value,
};

/// Changes memory, a global, a class, an open file and the tree.
const CHANGE: &str = "x = 2\nC.n = 2\nf.write('two')\nf.flush()\nopen('/tmp/new', 'w').write('x')";
const LOOK: &str = "x, C.n, f.tell(), open('/tmp/f').read(), __import__('os').listdir('/tmp')";

fn prepared(limits: Limits) -> Session {
    let session = sandbox().limits(limits).build().unwrap().session();
    value(&session, "x = 1\nclass C: n = 1\nf = open('/tmp/f', 'w')\nf.write('one')\nf.flush()");
    assert_eq!(value(&session, LOOK), "(1, 1, 3, 'one', ['f'])");
    session
}

fn ends(session: &Session, ending: &str) -> OutcomeKind {
    let outcome = rolled_back(session, format!("{CHANGE}\nprint('out')\n{ending}"));
    assert_eq!(outcome.stdout_text(), "out\n");
    assert_eq!(value(session, LOOK), "(1, 1, 3, 'one', ['f'])", "{ending}");
    outcome.kind
}

#[test]
fn every_kind_of_trap_leaves_the_session_as_it_was() {
    let session = prepared(patient());
    assert_eq!(ends(&session, "import os\nos._exit(9)"), OutcomeKind::Exit);
    let deep = "d = 1\nfor _ in range(200_000): d = (d,)\nhash(d)";
    assert_eq!(ends(&session, deep), OutcomeKind::StackExhausted);
    assert_eq!(cancelled(&session, CHANGE).kind, OutcomeKind::Cancelled);
    assert_eq!(value(&session, LOOK), "(1, 1, 3, 'one', ['f'])");

    let small = prepared(Limits { memory_bytes: 64 << 20, ..patient() });
    let hungry = "kept, n = {}, 0\nwhile True:\n    kept[n] = [n]\n    n += 1";
    let outcome = small.exec(format!("{CHANGE}\n{hungry}")).wait();
    // Python may get its `MemoryError`; then the cell has ended by itself.
    if outcome.rolled_back {
        assert_eq!(outcome.kind, OutcomeKind::MemoryLimit);
        assert_eq!(value(&small, LOOK), "(1, 1, 3, 'one', ['f'])");
    } else {
        assert_eq!(outcome.kind, OutcomeKind::ScriptError);
        assert_eq!(value(&small, "x"), "2");
    }

    let wall = Duration::from_secs(2);
    let timed = prepared(Limits { wall, ..patient() });
    let kind = ends(&timed, "while True: pass");
    assert_eq!(kind, OutcomeKind::Timeout { clock: TimeoutClock::Wall });
    let kind = ends(&timed, "import time\ntime.sleep(3600)");
    assert_eq!(kind, OutcomeKind::Timeout { clock: TimeoutClock::Wall });
    let cpu = prepared(Limits { cpu: Duration::from_millis(700), ..patient() });
    let kind = ends(&cpu, "while True: pass");
    assert_eq!(kind, OutcomeKind::Timeout { clock: TimeoutClock::Cpu });
}

struct Panics;

impl OutputSink for Panics {
    fn write(&self, _stream: Stream, _bytes: &[u8]) {
        panic!("injected");
    }
}

#[test]
fn a_panic_of_the_host_ends_the_cell_and_not_the_session() {
    let session = prepared(patient());
    let cell = Script::cell(format!("{CHANGE}\nprint('boom')")).output_sink(Arc::new(Panics));
    let outcome = session.exec(cell).wait();
    assert!(matches!(outcome.kind, OutcomeKind::SandboxFault { .. }), "{outcome:?}");
    assert!(outcome.rolled_back);
    assert_eq!(value(&session, LOOK), "(1, 1, 3, 'one', ['f'])");
}

#[test]
fn no_budget_goes_up_again() {
    let limits = |host_calls| {
        let mut limits = patient();
        limits.broker.host_calls = host_calls;
        limits
    };
    let session = sandbox().limits(limits(50_000)).build().unwrap().session();
    let used = |session: &Session| {
        let usage = session.usage().wait().unwrap();
        usage.budgets.iter().find(|(budget, ..)| budget.name() == "host_calls").unwrap().1
    };
    let spend = "import os\nfor _ in range(2000): os.path.exists('/tmp')";
    let mut last = 0;
    let mut grows = |session: &Session| {
        let now = used(session);
        assert!(now > last, "{now} after {last}");
        last = now;
    };
    value(&session, spend);
    grows(&session);
    let kept = session.checkpoint().wait().unwrap();
    rolled_back(&session, trap(spend));
    grows(&session);
    value(&session, spend);
    session.undo(1).wait().unwrap();
    grows(&session);
    value(&session, spend);
    session.restore(kept).wait().unwrap();
    grows(&session);
    let child = session.fork().wait().unwrap();
    value(&child, spend);
    grows(&session);
    // Child and parent use up one budget; then both have none.
    let name = "host_calls".to_owned();
    let exhausted = OutcomeKind::BudgetExceeded { name };
    let outcome = child.exec("import os\nwhile True: os.path.exists('/tmp')").wait();
    assert_eq!((outcome.kind, outcome.rolled_back), (exhausted.clone(), true));
    let outcome = session.exec("import os\nos.path.exists('/tmp')").wait();
    assert_eq!(outcome.kind, exhausted);
    assert!(session.undo(1).wait().is_ok());
    assert_eq!(session.exec("import os\nos.path.exists('/tmp')").wait().kind, exhausted);
}

#[test]
fn what_left_the_sandbox_stays_and_is_listed() {
    for engine in engines() {
        let host = tempfile::tempdir().unwrap();
        std::fs::write(host.path().join("old"), "old").unwrap();
        let sandbox = sandbox().engine(engine).mount_read_write("/data", host.path());
        let session = sandbox.build().unwrap().session();
        value(&session, "import os\nlog = open('/data/log', 'a')");
        let change = "open('/data/new', 'w').write('new')\nopen('/tmp/inside', 'w').write('x')\n\
            os.remove('/data/old')\nlog.write('line')\nlog.flush()";
        let outcome = rolled_back(&session, trap(change));
        let effects: Vec<_> = outcome
            .effects
            .iter()
            .map(|effect| format!("{} {}", effect.operation, effect.target))
            .collect();
        for expected in [
            "fs.create /data/new",
            "fs.remove /data/old",
            "fs.stream /data/new",
            "fs.stream /data/log",
        ] {
            assert!(effects.iter().any(|effect| effect == expected), "{expected}: {effects:?}");
        }
        assert!(effects.iter().all(|effect| !effect.contains("/tmp/inside")), "{effects:?}");
        assert_eq!(outcome.files.created, ["/data/new"]);
        assert_eq!(outcome.files.deleted, ["/data/old"]);
        assert_eq!(std::fs::read_to_string(host.path().join("new")).unwrap(), "new");
        assert_eq!(std::fs::read_to_string(host.path().join("log")).unwrap(), "line");
        assert_eq!(value(&session, "os.path.exists('/tmp/inside'), log.tell()"), "(False, 0)");
    }
}

#[test]
fn undo_and_restore_go_back_as_far_as_they_say() {
    let session = session();
    for n in 0..40 {
        value(&session, &format!("n = {n}"));
        rolled_back(&session, trap("n = -1"));
    }
    let usage = session.usage().wait().unwrap();
    assert_eq!((usage.cells, usage.rolled_back, usage.checkpoints), (80, 40, 32));
    assert!(matches!(session.undo(33).wait(), Err(SessionError::NotSoFar { asked: 33, kept: 32 })));
    session.undo(0).wait().unwrap();
    assert_eq!(value(&session, "n"), "39");
    session.undo(2).wait().unwrap();
    assert_eq!(value(&session, "n"), "38");
    session.undo(1).wait().unwrap();
    let kept = session.checkpoint().wait().unwrap();
    value(&session, "n = 'later'");
    session.restore(kept).wait().unwrap();
    assert_eq!(value(&session, "n"), "38");
    session.undo(2).wait().unwrap();
    assert_eq!(value(&session, "n"), "37");
    session.restore(kept).wait().unwrap();
    for n in 0..40 {
        value(&session, &format!("n = {n}"));
    }
    assert!(matches!(session.restore(kept).wait(), Err(SessionError::UnknownCheckpoint(_))));
    assert_eq!(value(&session, "n"), "39");
}

#[test]
fn a_large_session_keeps_few_checkpoints_and_can_still_be_rolled_back() {
    let session = session();
    value(&session, "data = bytearray(24_000_000)");
    for n in 0..6 {
        // Every byte is new, so that each checkpoint is a copy of its own.
        value(&session, &format!("data = bytearray([{n}]) * 24_000_000\nn = {n}"));
    }
    let usage = session.usage().wait().unwrap();
    assert!(usage.checkpoint_bytes <= fumehood::MAX_CHECKPOINT_BYTES as u64, "{usage:?}");
    assert!(usage.checkpoints < 6, "{usage:?}");
    rolled_back(&session, trap("data[:] = bytes(24_000_000)\nn = -1"));
    assert_eq!(value(&session, "n, data[0], data[-1], len(set(data))"), "(5, 5, 5, 1)");
    session.undo(1).wait().unwrap();
    session.undo(1).wait().unwrap();
    assert_eq!(value(&session, "n, data[0], data[-1], len(set(data))"), "(4, 4, 4, 1)");
}

#[test]
fn checkpoints_count_the_files_in_memory_that_they_alone_hold() {
    let session = session();
    let usage = || session.usage().wait().unwrap();
    let rewrite = |n: u32| {
        let body = "with open('/tmp/f', 'wb') as f:\n    for _ in range(200): f.write(chunk)";
        value(&session, &format!("n, chunk = {n}, bytes([{n}]) * 100_000\n{body}"))
    };
    rewrite(0);
    let first = session.checkpoint().wait().unwrap();
    let before = usage().checkpoint_bytes;
    rewrite(1);
    let grown = usage().checkpoint_bytes - before;
    assert!((20_000_000..30_000_000).contains(&grown), "{grown} more bytes");
    // Cells that leave the file alone share it.
    value(&session, "m = 1");
    let after = usage().checkpoint_bytes - before;
    assert!(after < grown + 5_000_000, "{after} more bytes");
    for n in 2..8 {
        rewrite(n);
        let usage = usage();
        assert!(usage.checkpoint_bytes <= fumehood::MAX_CHECKPOINT_BYTES as u64, "{usage:?}");
    }
    let kept = usage().checkpoints;
    assert!((1..=4).contains(&kept), "{kept} checkpoints");
    let refused = session.restore(first).wait();
    assert!(matches!(refused, Err(SessionError::UnknownCheckpoint(id)) if id == first));
    let refused = session.undo(kept + 1).wait();
    assert!(matches!(refused, Err(SessionError::NotSoFar { .. })), "{refused:?}");
    session.undo(1).wait().unwrap();
    assert_eq!(value(&session, "n, open('/tmp/f', 'rb').read(1)[0]"), "(6, 6)");
}

#[test]
fn a_checkpoint_of_one_session_is_unknown_to_every_other() {
    let parent = session();
    value(&parent, "n = 'parent'");
    let child = parent.fork().wait().unwrap();
    value(&child, "n = 'child'");
    let of_parent = parent.checkpoint().wait().unwrap();
    let of_child = child.checkpoint().wait().unwrap();
    for (session, foreign) in [(&parent, of_child), (&child, of_parent)] {
        let refused = session.restore(foreign).wait();
        assert!(matches!(refused, Err(SessionError::UnknownCheckpoint(id)) if id == foreign));
    }
    child.restore(of_child).wait().unwrap();
    assert_eq!(value(&child, "n"), "'child'");
}

/// Takes longer than the time limit and its grace for output of some kind.
struct Blocks(Duration);

impl OutputSink for Blocks {
    fn write(&self, _stream: Stream, bytes: &[u8]) {
        if bytes.starts_with(b"block") {
            std::thread::sleep(self.0);
        }
    }
}

#[test]
fn what_an_abandoned_cell_did_and_was_denied_is_in_the_next_outcome() {
    let wall = Duration::from_secs(2);
    let [data, kept] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let sandbox = sandbox().limits(Limits { wall, ..patient() });
    let sandbox = sandbox.mount_read_write("/data", data.path());
    let session = sandbox.mount_read_only("/kept", kept.path()).build().unwrap().session();
    value(&session, "x = 1");
    let code = "x = 2\nopen('/data/new', 'w').write('new')\ntry: open('/kept/no', 'w')\n\
        except OSError: pass\nprint('block', flush=True)\nwhile True: pass";
    let sink = Arc::new(Blocks(wall + Duration::from_secs(3)));
    let abandoned = session.exec(Script::cell(code).output_sink(sink)).wait();
    assert_eq!(abandoned.kind, OutcomeKind::Timeout { clock: TimeoutClock::Wall });
    assert!(abandoned.rolled_back && abandoned.effects.is_empty(), "{abandoned:?}");
    let next = session.exec("x").wait();
    assert_eq!(next.result.repr.as_deref(), Some("1"), "{next:?}");
    let created = |effect: &fumehood::LastingEffect| effect.operation == "fs.create";
    assert!(next.effects.iter().any(created), "{next:?}");
    assert!(next.denials.iter().any(|denial| denial.target.contains("/kept/no")), "{next:?}");
    let later = session.exec("x").wait();
    assert!(later.effects.is_empty() && later.denials.is_empty(), "{later:?}");
}

#[test]
fn code_in_place_of_the_kernels_own_does_not_hold_a_fork_for_ever() {
    let wall = Duration::from_secs(2);
    let session = sandbox().limits(Limits { wall, ..patient() }).build().unwrap().session();
    let replace =
        "import _fumehood_kernel as k\ndef loop(*_):\n    while True: pass\nk.reseed = loop";
    value(&session, replace);
    let child = session.fork().wait().unwrap();
    let error = child.checkpoint().wait().unwrap_err();
    assert_eq!(error.code(), "session_unavailable", "{error}");
    assert!(child.fork().wait().is_err());
    let outcome = child.exec("1").wait();
    assert_eq!(outcome.kind, OutcomeKind::Timeout { clock: TimeoutClock::Wall });
    assert_eq!(value(&session, "1 + 1"), "2");
}

#[test]
fn a_session_that_was_grown_and_killed_is_small_again() {
    let session = session();
    value(&session, "x = 1");
    let before = session.usage().wait().unwrap().memory_bytes;
    rolled_back(&session, trap("junk = bytearray(40_000_000)"));
    assert_eq!(session.usage().wait().unwrap().memory_bytes, before);
    value(&session, "junk = bytearray(40_000_000)");
    session.undo(1).wait().unwrap();
    assert_eq!(session.usage().wait().unwrap().memory_bytes, before);
}

#[test]
fn a_script_that_is_refused_changes_nothing() {
    let limits = Limits { source_bytes: 100, ..patient() };
    let session = fumehood::Sandbox::builder().engine(engine()).limits(limits).build().unwrap();
    let session = session.session();
    value(&session, "x = 1");
    let outcome = session.exec("x = 2 ".repeat(100)).wait();
    assert!(matches!(outcome.kind, OutcomeKind::Refused { .. }));
    assert!(!outcome.rolled_back);
    assert_eq!(value(&session, "x"), "1");
}
