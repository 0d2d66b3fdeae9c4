//! Cells of one session: namespace, order, streams, randomness, forks.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use fumehood::{OutcomeKind, Pool, Script};

use crate::support::{cancelled, engines, rolled_back, sandbox, session, trap, value};

const DRAWS: &str = "import random, uuid, secrets, os\n[random.random(), random.getrandbits(64), \
    uuid.uuid4().hex, secrets.token_hex(), os.urandom(8).hex(), random.Random().random()]";

#[test]
fn cells_share_one_namespace_and_the_last_value() {
    let session = session();
    value(&session, "def double(x): return x * 2");
    assert_eq!(value(&session, "double(21)"), "42");
    assert_eq!(value(&session, "_ + 1"), "43");
    let failed = session.exec("kept = 5\n1 / 0").wait();
    assert_eq!((failed.kind, failed.rolled_back), (OutcomeKind::ScriptError, false));
    assert_eq!(value(&session, "kept"), "5");
    let left = session.exec("import sys\nkept = 6\nsys.exit(7)").wait();
    assert_eq!((left.kind, left.exit_code, left.rolled_back), (OutcomeKind::Exit, 7, false));
    assert_eq!(value(&session, "kept"), "6");
}

#[test]
fn what_is_asked_first_is_done_first() {
    let session = session();
    value(&session, "seen = []");
    let runs: Vec<_> =
        (0..100).map(|at| session.exec(format!("seen.append({at})\nlen(seen)"))).collect();
    let kept = session.checkpoint();
    let after = session.exec("seen.clear()");
    for (at, run) in runs.into_iter().enumerate() {
        assert_eq!(run.wait().result.repr, Some((at + 1).to_string()));
    }
    assert!(after.wait().is_success());
    session.restore(kept.wait().unwrap()).wait().unwrap();
    assert_eq!(value(&session, "seen == list(range(100))"), "True");
}

#[test]
fn every_cell_has_its_own_input_and_output() {
    let session = session();
    let told = Arc::new(Mutex::new(Vec::new()));
    for name in ["a", "b"] {
        let told = Arc::clone(&told);
        let cell = Script::cell("print(input())").stdin(format!("{name}\n"));
        let outcome = session
            .exec(cell.on_output(move |_, bytes| {
                told.lock().unwrap().push((name, String::from_utf8_lossy(bytes).into_owned()));
            }))
            .wait();
        assert_eq!(outcome.stdout_text(), format!("{name}\n"));
    }
    let told = told.lock().unwrap();
    assert!(told.iter().all(|(name, text)| text.trim().is_empty() || text.trim() == *name));
    assert_eq!(session.exec("x = 1").wait().stdout, b"");
}

#[test]
fn a_receiver_of_output_is_let_go_when_its_cell_has_ended() {
    let session = session();
    for cell in ["print('a')".to_owned(), trap("print('a')")] {
        let (sender, receiver) = std::sync::mpsc::channel();
        let outcome = session
            .exec(Script::cell(cell).on_output(move |_, bytes| {
                let _ = sender.send(bytes.to_vec());
            }))
            .wait();
        // Ends because the sender is gone.
        let received: Vec<u8> = receiver.into_iter().flatten().collect();
        assert_eq!(received, outcome.stdout);
    }
}

#[test]
fn a_cancelled_cell_stops_and_the_next_ones_run() {
    let session = session();
    value(&session, "n = 1");
    let outcome = cancelled(&session, "n = 2");
    assert_eq!((outcome.kind, outcome.rolled_back), (OutcomeKind::Cancelled, true));
    let waiting = session.exec("n = 3");
    let canceller = waiting.canceller();
    canceller.cancel();
    let outcome = waiting.wait();
    // It may have run before it was cancelled, but never in part.
    assert!(matches!(outcome.kind, OutcomeKind::Cancelled | OutcomeKind::Completed));
    canceller.cancel();
    let expected = if outcome.kind == OutcomeKind::Completed { "3" } else { "1" };
    assert_eq!(value(&session, "n"), expected);
    drop(session.exec("n = 4\nwhile True: pass"));
    assert_eq!(value(&session, "n"), expected);
}

#[test]
fn sessions_and_forks_never_draw_the_same_random_values() {
    for engine in engines() {
        let sandbox = sandbox().engine(engine).build().unwrap();
        let (first, second) = (sandbox.session(), sandbox.session());
        value(&first, "import random\ngenerator = random.Random()\nchosen = random.Random(5)");
        let forks = [first.fork().wait().unwrap(), first.fork().wait().unwrap()];
        let grandchild = forks[0].fork().wait().unwrap();
        let draws = format!("{DRAWS} + [globals().get('generator', random).random()]");
        let mut seen = BTreeSet::new();
        let mut all = 0;
        for session in [&first, &second, &forks[0], &forks[1], &grandchild] {
            // A rollback must not bring the parent's seeds back.
            rolled_back(session, trap(DRAWS));
            for _ in 0..2 {
                let drawn = value(session, &draws);
                for word in drawn.trim_matches(['[', ']']).split(", ") {
                    seen.insert(word.to_owned());
                    all += 1;
                }
            }
        }
        assert_eq!((seen.len(), all), (70, 70));
        let chosen: BTreeSet<_> = [&first, &forks[0], &forks[1]]
            .map(|session| value(session, "chosen.random()"))
            .into_iter()
            .collect();
        assert_eq!(chosen.len(), 1, "a seed that the program chose is kept by forks");
    }
}

#[test]
fn forks_differ_from_then_on_and_share_what_was() {
    for engine in engines() {
        let parent = sandbox().engine(engine).build().unwrap().session();
        value(&parent, "data = bytearray(6_000_000)\ndata[5] = 1\nopen('/tmp/f', 'w').write('p')");
        let child = parent.fork().wait().unwrap();
        value(&child, "data[5] = 2\nopen('/tmp/f', 'w').write('child')\nmine = 1");
        value(&parent, "data[6] = 3");
        let look = "data[5], data[6], open('/tmp/f').read(), 'mine' in globals()";
        assert_eq!(value(&parent, look), "(1, 3, 'p', False)");
        assert_eq!(value(&child, look), "(2, 0, 'child', True)");
        drop(parent);
        assert_eq!(value(&child, look), "(2, 0, 'child', True)");
        assert!(child.undo(5).wait().is_err(), "checkpoints are not inherited");
    }
}

#[test]
fn a_fork_without_effects_reaches_nothing_but_memory() {
    let host = tempfile::tempdir().unwrap();
    std::fs::write(host.path().join("f"), "host").unwrap();
    let sandbox = sandbox().mount_read_write("/work/m", host.path()).build().unwrap();
    let parent = sandbox.session();
    // What looking at an object can run.
    let cell = "class Trap:\n    def __dir__(self):\n        open('/work/m/g', 'w').write('mine')\n        return ['a']\nx = Trap()\nopen('/work/m/f').read()";
    assert_eq!(value(&parent, cell), "'host'");
    let child = parent.fork_without_effects().wait().unwrap();
    let grandchild = child.fork().wait().unwrap();
    for fork in [&child, &grandchild] {
        for code in ["dir(x)", "open('/work/m/f').read()", "import os\nos.remove('/work/m/f')"] {
            let outcome = fork.exec(code).wait();
            assert_eq!(outcome.kind, OutcomeKind::ScriptError, "{code}: {outcome:?}");
            assert!(!outcome.denials.is_empty(), "{code}: {outcome:?}");
        }
        assert_eq!(value(fork, "open('/tmp/f', 'w').write('abc')"), "3");
    }
    assert!(!host.path().join("g").exists());
    assert_eq!(value(&parent, "dir(x), open('/work/m/f').read()"), "(['a'], 'host')");
    assert!(host.path().join("g").exists());
}

#[test]
fn a_pool_runs_every_program_alone_and_in_order() {
    let sandbox = sandbox().build().unwrap();
    let pool = Pool::new(&sandbox).threads(3);
    let programs = (0..60).map(|at| match at % 6 {
        5 => format!("leak = {at}\nimport os\nos._exit({at})"),
        4 => "raise KeyError('x')".to_owned(),
        _ => format!("before = 'leak' in globals()\nleak = {at}\nbefore, leak"),
    });
    let outcomes = pool.run_many(programs).unwrap().wait();
    assert_eq!(outcomes.len(), 60);
    let mut ids = BTreeSet::new();
    for (at, outcome) in outcomes.iter().enumerate() {
        ids.insert(outcome.session.clone());
        match at % 6 {
            5 => assert_eq!((&outcome.kind, outcome.exit_code), (&OutcomeKind::Exit, at as i32)),
            4 => assert_eq!(outcome.kind, OutcomeKind::ScriptError),
            _ => assert_eq!(outcome.result.repr, Some(format!("(False, {at})"))),
        }
    }
    assert_eq!(ids.len(), 60);
    assert!(pool.run_many(Vec::<Script>::new()).unwrap().wait().is_empty());
    let stopped = pool.run_many((0..20).map(|_| "while True: pass")).unwrap();
    stopped.cancel();
    let outcomes = stopped.wait();
    assert_eq!(outcomes.len(), 20);
    assert!(outcomes.iter().all(|outcome| outcome.kind == OutcomeKind::Cancelled));
}

#[test]
fn a_thousand_sessions_live_at_once_without_a_thread_each() {
    let sandbox = sandbox().build().unwrap();
    let count = if fumehood_tests::harness::machine::is_full() { 1000 } else { 200 };
    let sessions: Vec<_> = (0..count).map(|_| sandbox.session()).collect();
    for (at, session) in sessions.iter().enumerate() {
        value(
            session,
            &format!(
                "mine = {at}\nf = open('/tmp/f', 'w')\nf.write(str(mine))\nf.flush()\n\
             g = (n for n in range(mine, mine + 9))\nnext(g)"
            ),
        );
    }
    for (at, session) in sessions.iter().enumerate().step_by(7) {
        // Most of them have given their instance up meanwhile.
        let found = value(session, "mine, next(g), f.tell(), open('/tmp/f').read()");
        assert_eq!(found, format!("({at}, {}, {}, '{at}')", at + 1, at.to_string().len()));
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let threads = status.lines().find_map(|line| line.strip_prefix("Threads:"));
    if let Some(threads) = threads.and_then(|threads| threads.trim().parse::<usize>().ok()) {
        assert!(threads < 150, "{threads} threads");
    }
}
