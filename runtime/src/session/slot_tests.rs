//! Every kind of end leaves a memory that equals the image, byte for byte.

use std::time::Duration;

use fumehood_host_fns::{OutputSink, Stream};

use crate::engine::Engine;
use crate::limits::Limits;
use crate::memory::MemoryPath;
use crate::pool::Pool;
use crate::sandbox::Sandbox;
use crate::script::Script;

/// Ends of a run or a session that are looked at.
const ENDS: usize = 2000;

/// Leaves marks all over the memory and grows it.
const CANARY: &str = "kept = [b'canary-%d' % n * 50 for n in range(300)]\nprint('ready')\n";

struct Panics;

impl OutputSink for Panics {
    fn write(&self, _stream: Stream, _bytes: &[u8]) {
        std::panic::resume_unwind(Box::new("injected"));
    }
}

fn code(end: &str) -> String {
    format!("{CANARY}{end}")
}

/// Kinds of ends that are quick, and all kinds.
const QUICK: usize = 11;
const KINDS: usize = 14;

/// With much of everything, with little time, and with little memory.
struct Sandboxes {
    ample: Sandbox,
    hurried: Sandbox,
    cramped: Sandbox,
}

impl Sandboxes {
    fn new(engine: &Engine) -> Self {
        let long = Duration::from_secs(100);
        let builder = || Sandbox::builder().engine(engine.clone());
        let little = Limits { memory_bytes: 64 << 20, wall: long, cpu: long, ..Limits::default() };
        Self {
            ample: builder().timeout(long).build().unwrap(),
            hurried: builder().timeout(Duration::from_millis(100)).build().unwrap(),
            cramped: builder().limits(little).build().unwrap(),
        }
    }
}

/// Ends one run or session in the `kind`-th way.
fn end(sandboxes: &Sandboxes, kind: usize) -> &'static str {
    let Sandboxes { ample: sandbox, hurried, cramped } = sandboxes;
    let run = |end: &str| sandbox.run(code(end)).wait().kind;
    match kind {
        0 => run("1 + 1").as_str(),
        1 => run("1 / 0").as_str(),
        2 => run("import sys\nsys.exit(3)").as_str(),
        3 => run("import os\nos._exit(3)").as_str(),
        4 => run("d = 1\nfor _ in range(200_000): d = (d,)\nhash(d)").as_str(),
        5 => run("more = bytearray(9_000_000)\nimport os\nos._exit(1)").as_str(),
        6 => {
            // Dropped while it is inside a host call.
            let (sender, ready) = std::sync::mpsc::channel();
            let script = Script::cell(code("import time\ntime.sleep(60)"));
            let run = sandbox.run(script.on_output(move |_, _| {
                let _ = sender.send(());
            }));
            ready.recv().unwrap();
            drop(run);
            "dropped"
        }
        7 => {
            let (sender, ready) = std::sync::mpsc::channel();
            let script = Script::cell(code("while True: pass"));
            let run = sandbox.run(script.on_output(move |_, _| {
                let _ = sender.send(());
            }));
            ready.recv().unwrap();
            run.canceller().cancel();
            run.wait().kind.as_str()
        }
        8 => {
            let script = Script::cell(code("")).output_sink(std::sync::Arc::new(Panics));
            sandbox.run(script).wait().kind.as_str()
        }
        9 => {
            let session = sandbox.session();
            let _ = session.exec(code("x = 1")).wait();
            let child = session.fork().wait().unwrap();
            let _ = session.exec(code("import os\nos._exit(1)")).wait();
            drop(session);
            let _ = child.exec(code("big = bytearray(3_000_000)")).wait();
            child.undo(1).wait().unwrap();
            "session"
        }
        10 => {
            let pool = Pool::new(sandbox).threads(2);
            drop(pool.run_many([code("1"), code("import os\nos._exit(1)")]).unwrap().wait());
            "pool"
        }
        11 => hurried.run(code("while True: pass")).wait().kind.as_str(),
        12 => {
            // An allocator that is refused memory aborts, or Python says so.
            let hungry = "kept, n = {}, 0\nwhile True:\n    kept[n] = [n]\n    n += 1";
            cramped.run(code(hungry)).wait().kind.as_str()
        }
        _ => {
            // Growth is refused and the program goes on.
            let refused =
                "try: bytearray(900_000_000)\nexcept MemoryError: more = bytearray(9_000)";
            let session = cramped.session();
            let _ = session.exec(code(refused)).wait();
            let _ = session.exec("import os\nmore = bytearray(2_000_000)\nos._exit(1)").wait();
            "refused growth"
        }
    }
}

#[test]
fn every_end_leaves_a_slot_that_equals_the_image() {
    let engine = Engine::shared().unwrap();
    let sandboxes = Sandboxes::new(&engine);
    let slots = engine.inner().slots.as_ref().unwrap();
    let mut seen = std::collections::BTreeMap::new();
    for at in 0..ENDS {
        let kinds = if at < 6 * KINDS { KINDS } else { QUICK };
        let kind = end(&sandboxes, at % kinds);
        *seen.entry(kind).or_insert(0) += 1;
        assert!(slots.last_equals_image(), "after end {at}, {kind}");
    }
    assert!(slots.all_equal_image());
    for kind in [
        "completed",
        "script_error",
        "exit",
        "stack_exhausted",
        "cancelled",
        "sandbox_fault",
        "timeout",
        "refused growth",
    ] {
        assert!(seen.contains_key(kind), "{kind} is not among {seen:?}");
    }
    if MemoryPath::available() == MemoryPath::RecycledSlots {
        assert!(slots.count() > 0, "nothing was recycled");
    }
}
