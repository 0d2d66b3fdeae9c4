//! What a session sees of time, whatever it goes back to; and deterministic
//! sessions.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use fumehood::{
    AuditRecord, AuditSink, Determinism, ExecutionEvent, MemorySink, OutcomeKind, Session,
};
use fumehood_host_fns::AuditUnavailable;

use crate::support::{rolled_back, sandbox, trap, value};

/// Panics once, outside of any call of the guest, when it is told to.
#[derive(Default)]
struct Fragile {
    armed: AtomicBool,
    kept: MemorySink,
}

impl AuditSink for Fragile {
    fn record(&self, record: AuditRecord) -> Result<(), AuditUnavailable> {
        assert!(!self.armed.swap(false, Ordering::Relaxed), "injected");
        self.kept.record(record)
    }
}

#[test]
fn the_monotonic_clock_goes_on_over_forks_rollbacks_and_panics() {
    let sink = Arc::new(Fragile::default());
    let heard = Arc::new(Mutex::new(Vec::new()));
    let into = Arc::clone(&heard);
    let observer = move |event: &ExecutionEvent| into.lock().unwrap().push(event.outcome);
    let sandbox = sandbox().audit(Arc::<Fragile>::clone(&sink)).observer(Arc::new(observer));
    let session = sandbox.build().unwrap().session();
    let goes_on = |session: &Session| {
        assert_eq!(value(session, "time.monotonic() >= t"), "True");
    };
    value(&session, "import time\ntime.sleep(0.3)\nt = time.monotonic()");
    let kept = session.checkpoint().wait().unwrap();
    let child = session.fork().wait().unwrap();
    goes_on(&child);
    value(&child, "t = time.monotonic()");
    goes_on(&child.fork().wait().unwrap());
    rolled_back(&session, trap("time.sleep(0.1)"));
    goes_on(&session);
    session.restore(kept).wait().unwrap();
    goes_on(&session);

    sink.armed.store(true, Ordering::Relaxed);
    let outcome = session.exec("t = 1e9").wait();
    assert!(matches!(outcome.kind, OutcomeKind::SandboxFault { .. }), "{outcome:?}");
    assert_eq!(heard.lock().unwrap().last(), Some(&"sandbox_fault"));
    goes_on(&session);
}

/// What a deterministic session and its forks see, and the digest of each cell.
fn deterministic_life() -> Vec<(String, String)> {
    let sandbox = sandbox().deterministic(Determinism::default()).build().unwrap();
    let parent = sandbox.session();
    let mut told = Vec::new();
    let mut cell = |session: &Session, code: &str| {
        let outcome = session.exec(code).wait();
        assert_eq!(outcome.kind, OutcomeKind::Completed, "{code}: {outcome:?}");
        told.push((outcome.result.repr.unwrap_or_default(), outcome.digest.unwrap()));
    };
    let look = "time.monotonic() >= t + 3600, time.monotonic(), time.time(), random.random(), \
                uuid.uuid4().hex, open('/tmp/f').read()";
    cell(
        &parent,
        "import random, time, uuid\nt = time.monotonic()\nopen('/tmp/f', 'w').write('p')",
    );
    cell(&parent, "time.sleep(3600)");
    let kept = parent.checkpoint().wait().unwrap();
    let child = parent.fork().wait().unwrap();
    cell(&child, look);
    cell(&child, "open('/tmp/f', 'w').write('c')");
    cell(&child.fork().wait().unwrap(), look);
    cell(&parent, look);
    parent.undo(1).wait().unwrap();
    cell(&parent, look);
    parent.restore(kept).wait().unwrap();
    cell(&parent, look);
    told
}

#[test]
fn a_deterministic_session_and_its_forks_live_the_same_life_twice() {
    let told = deterministic_life();
    let looks: Vec<_> = told.iter().filter(|(seen, _)| seen.starts_with('(')).collect();
    assert_eq!(looks.len(), 5);
    for (seen, _) in looks {
        assert!(seen.starts_with("(True, "), "the clock went back: {seen}");
    }
    assert_eq!(deterministic_life(), told);
}
