//! Every execution is answered in time, and its observer hears of it, whatever
//! the host's own functions do.
#![allow(clippy::disallowed_methods, reason = "these tests make files and measure time")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use fumehood::{
    Engine, ExecutionEvent, Limits, NotListed, Observer, OutcomeKind, Pool, Sandbox,
    SandboxBuilder, Script, TimeoutClock,
};
use serde_json::json;

/// How long the tool `stuck` blocks the thread that calls it.
const STUCK: Duration = Duration::from_secs(6);
/// Well before that, and long after what is promised.
const SOON: Duration = Duration::from_secs(4);
const WALL: OutcomeKind = OutcomeKind::Timeout { clock: TimeoutClock::Wall };

type Heard = Arc<Mutex<Vec<(String, &'static str)>>>;

/// Settings with the engine that all tests share.
fn builder() -> SandboxBuilder {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    let engine = ENGINE.get_or_init(|| {
        let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("code-cache");
        Engine::builder().cache_directory(cache).build().unwrap()
    });
    Sandbox::builder().engine(engine.clone())
}

/// With a tool that blocks the guest's thread.
fn with_stuck() -> SandboxBuilder {
    let schema = json!({"description": "Blocks.", "type": "object"});
    builder().tool("stuck", schema, |_| {
        std::thread::sleep(STUCK);
        std::future::ready(Ok(json!(null)))
    })
}

/// Remembers session and outcome of every execution.
fn listener() -> (Arc<dyn Observer>, Heard) {
    let heard = Heard::default();
    let into = Arc::clone(&heard);
    let observer: Arc<dyn Observer> = Arc::new(move |event: &ExecutionEvent| {
        into.lock().unwrap().push((event.session.clone(), event.outcome));
    });
    (observer, heard)
}

#[test]
fn a_slow_observer_holds_up_no_other_run() {
    // Compiles, if it has to, outside the measured time.
    assert!(builder().build().unwrap().run("1").wait().is_success());
    let slow = |_: &ExecutionEvent| std::thread::sleep(STUCK);
    let sandbox = with_stuck().observer(Arc::new(slow)).timeout(Duration::from_millis(200));
    let sandbox = sandbox.build().unwrap();
    let stuck = sandbox.run(Script::new("stuck()"));
    // Its observer is asked 700 ms after the start, in the middle of this one.
    let start = Instant::now();
    let other = builder().timeout(Duration::from_secs(2)).build().unwrap();
    let outcome = other.run(Script::new("while True: pass")).wait();
    assert_eq!(outcome.kind, WALL);
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    drop(stuck);
}

#[test]
fn a_cancel_is_answered_while_the_host_is_stuck() {
    let (observer, heard) = listener();
    let sandbox = with_stuck().observer(observer).build().unwrap();
    let run = sandbox.run(Script::new("stuck()"));
    std::thread::sleep(Duration::from_secs(1));
    let start = Instant::now();
    run.canceller().cancel();
    assert_eq!(run.wait().kind, OutcomeKind::Cancelled);
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    let session = sandbox.session();
    let cell = session.exec("stuck()");
    std::thread::sleep(Duration::from_secs(1));
    let start = Instant::now();
    cell.canceller().cancel();
    let outcome = cell.wait();
    assert_eq!((outcome.kind, outcome.rolled_back), (OutcomeKind::Cancelled, true));
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    let heard: Vec<_> = heard.lock().unwrap().iter().map(|(_, outcome)| *outcome).collect();
    assert_eq!(heard, ["cancelled", "cancelled"]);
}

#[test]
fn programs_of_a_pool_are_observed_once_each_and_none_holds_up_the_others() {
    let (observer, heard) = listener();
    let sandbox = with_stuck().observer(observer).timeout(Duration::from_millis(1500));
    let sandbox = sandbox.build().unwrap();
    let start = Instant::now();
    let programs = ["6 * 7", "stuck()", "1 / 0", "8 * 8"].map(Script::cell);
    let outcomes = Pool::new(&sandbox).threads(1).run_many(programs).unwrap().wait();
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    let kinds: Vec<_> = outcomes.iter().map(|outcome| outcome.kind.as_str()).collect();
    assert_eq!(kinds, ["completed", "timeout", "script_error", "completed"]);
    assert_eq!(outcomes[3].result.repr.as_deref(), Some("64"));
    // The late return of the one that was stuck is no second execution.
    std::thread::sleep(STUCK.saturating_sub(start.elapsed()) + Duration::from_secs(1));
    let mut told = heard.lock().unwrap().clone();
    told.sort();
    let mut wanted: Vec<_> =
        outcomes.iter().map(|outcome| (outcome.session.clone(), outcome.kind.as_str())).collect();
    wanted.sort();
    assert_eq!(told, wanted);
}

#[test]
fn a_pool_of_nothing_and_one_that_is_cancelled_are_answered() {
    let (observer, heard) = listener();
    let sandbox = with_stuck().observer(observer).build().unwrap();
    let pool = Pool::new(&sandbox).threads(1);
    assert!(pool.run_many(Vec::<Script>::new()).unwrap().wait().is_empty());
    let run = pool.run_many(["stuck()", "1", "2"]).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    let start = Instant::now();
    run.cancel();
    let outcomes = run.wait();
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    assert_eq!(outcomes.len(), 3);
    assert!(outcomes.iter().all(|outcome| outcome.kind == OutcomeKind::Cancelled));
    assert_eq!(heard.lock().unwrap().len(), 3);
}

#[test]
fn what_is_in_no_list_of_a_result_is_counted() {
    let place = tempfile::tempdir().unwrap();
    let mut limits = Limits::default();
    limits.broker.denials_kept = 2;
    limits.broker.changes_kept = 3;
    let sandbox = builder().limits(limits).mount_read_only("/data", place.path()).build().unwrap();
    let code = "for n in range(5):\n    open(f'/work/{n}', 'w').close()\n    \
                try:\n        open(f'/data/{n}', 'w')\n    except OSError:\n        pass";
    let outcome = sandbox.run(Script::new(code)).wait();
    assert_eq!(outcome.kind, OutcomeKind::Completed, "{:?}", outcome.error);
    assert_eq!((outcome.denials.len(), outcome.files.created.len()), (2, 3));
    let NotListed { denials, effects, files } = outcome.not_listed;
    assert!(denials == 3 && effects == 0 && files >= 2, "{:?}", outcome.not_listed);
    let json = outcome.to_json();
    let counted = json!({ "denials": denials, "effects": effects, "files": files });
    assert_eq!(json["not_listed"], counted);
    assert!(sandbox.run("1").wait().to_json().get("not_listed").is_none());
}
