//! What the tests share: engines, sandboxes, and how an outcome is compared.

use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use fumehood::{Engine, Limits, Outcome, Sandbox, SandboxBuilder, Script, Session};

fn builder() -> fumehood::EngineBuilder {
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("code-cache");
    Engine::builder().cache_directory(cache)
}

/// The engine of most tests.
pub fn engine() -> Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    ENGINE.get_or_init(|| builder().build().expect("the engine starts")).clone()
}

/// An engine that is told nothing about changed pages.
pub fn plain_engine() -> Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    // Not at the same time as the other, so that one of them finds the code.
    engine();
    ENGINE.get_or_init(|| builder().plain_memory().build().expect("the engine starts")).clone()
}

/// Both kinds of engine.
pub fn engines() -> [Engine; 2] {
    [engine(), plain_engine()]
}

/// Limits that a loaded machine does not reach by itself.
pub fn patient() -> Limits {
    let wall = Duration::from_secs(120);
    Limits { wall, cpu: wall, memory_bytes: 192 << 20, ..Limits::default() }
}

pub fn sandbox() -> SandboxBuilder {
    Sandbox::builder().engine(engine()).limits(patient())
}

pub fn session() -> Session {
    sandbox().build().unwrap().session()
}

/// Runs a cell that has to complete and gives the `repr` of its value.
pub fn value(session: &Session, cell: &str) -> String {
    let outcome = session.exec(cell).wait();
    assert_eq!(outcome.kind.as_str(), "completed", "{cell}: {outcome:?}");
    assert!(!outcome.rolled_back);
    outcome.result.repr.unwrap_or_default()
}

/// Runs a cell that has to be rolled back.
pub fn rolled_back(session: &Session, cell: impl Into<Script>) -> Outcome {
    let outcome = session.exec(cell).wait();
    assert!(outcome.rolled_back, "{outcome:?}");
    outcome
}

/// A cell that ends in the middle of the interpreter's work.
pub fn trap(body: &str) -> String {
    format!("{body}\nimport os\nos._exit(3)")
}

/// Runs a cell that says it is ready and goes on for ever, and cancels it then.
pub fn cancelled(session: &Session, body: &str) -> Outcome {
    let (sender, receiver) = std::sync::mpsc::channel();
    let code = format!("{body}\nprint('ready')\nwhile True: pass");
    let run = session.exec(Script::cell(code).on_output(move |_, _| {
        let _ = sender.send(());
    }));
    receiver.recv().unwrap();
    run.canceller().cancel();
    run.wait()
}

/// What a program's user sees of a cell.
pub fn seen(outcome: &Outcome) -> String {
    format!(
        "{} {} {:?} {:?} {:?} {:?} {:?}",
        outcome.kind.as_str(),
        outcome.exit_code,
        outcome.stdout_text(),
        outcome.stderr_text(),
        outcome.result,
        outcome.error,
        outcome.files,
    )
}
