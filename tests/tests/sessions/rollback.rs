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
