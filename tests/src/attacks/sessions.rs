//! S, R: what one cell, session or fork could leave to another, and what a
//! cell that uses everything leaves of its session.
//!
//! Invariant: after every cell that ended in the middle the session is as it
//! was before it, and no budget has come back.

use fumehood::policy::PolicyFile;
use fumehood::{Outcome, Session};

use crate::harness::{Attack, Attempt, Expected, Observed, Ran, Setting, World, machine};

fn session(world: &World<'_>, setting: &Setting) -> Result<Session, Observed> {
    world.sandbox(setting).map(|sandbox| sandbox.session()).map_err(Observed::broken)
}

fn exec(session: &Session, setting: &Setting, code: &str) -> Ran {
    let start = machine::now();
    let outcome = session.exec(code).wait();
    Ran { outcome, took: start.elapsed(), wall: setting.limits.wall }
}

fn value(outcome: &Outcome) -> String {
    outcome.result.repr.clone().unwrap_or_else(|| outcome.kind.as_str().to_owned())
}

/// Runs the code in a session that holds something, and looks what is left.
fn in_session(
    id: &'static str,
    property: &'static str,
    code: &'static str,
    setting: Setting,
    expected: &'static str,
) -> Attack {
    Attack::host(id, property, move |world, setting| {
        let session = match session(world, setting) {
            Ok(session) => session,
            Err(observed) => return observed,
        };
        let before =
            exec(&session, setting, "x, kept = 1, [1, 2, 3]\nopen('/tmp/f', 'w').write('one')");
        let spoil =
            "x = 2\nkept.clear()\nopen('/tmp/f', 'w').write('two')\nopen('/tmp/g', 'w').close()";
        let attacked = exec(&session, setting, &format!("{spoil}\n{code}"));
        let after = exec(
            &session,
            setting,
            "import os\nx, kept, open('/tmp/f').read(), os.listdir('/tmp')",
        );
        let outcome = &attacked.outcome;
        let fact = format!(
            "{}, rolled back: {}, then {}",
            outcome.kind.as_str(),
            outcome.rolled_back,
            value(&after.outcome)
        );
        Observed::fact(fact).seen([before, attacked, after])
    })
    .with(setting)
    .control_cell("x = 1\nprint(x)", "1")
    .alone()
    .expect(
        Expected::Harmless(expected),
        "a cell that traps is undone from the checkpoint before it",
    )
}

const LEFT: &str = "then (1, [1, 2, 3], 'one', ['f'])";

fn exhausted() -> Vec<Attack> {
    let wall = || Setting::default().wall_ms(1500);
    let timeout = "timeout, rolled back: true, then (1, [1, 2, 3], 'one', ['f'])";
    debug_assert!(timeout.ends_with(LEFT));
    vec![
        in_session(
            "R-01m",
            "a loop that never ends leaves its session as it was",
            "while True: pass",
            wall(),
            timeout,
        ),
        in_session(
            "R-01p",
            "a sleep beyond the deadline leaves its session as it was",
            "import time\ntime.sleep(3600)",
            wall(),
            timeout,
        ),
        in_session(
            "R-04h",
            "a power that no machine can hold leaves its session as it was",
            "10**10**8",
            wall(),
            timeout,
        ),
        in_session(
            "R-05c",
            "an exploding regular expression leaves its session as it was",
            "import re\nre.match('(a+)+$', 'a' * 100_000 + 'b')",
            wall(),
            timeout,
        ),
        in_session(
            "R-07i",
            "a text that uses up the stack leaves its session as it was",
            "d = 1\nfor _ in range(200_000): d = (d,)\nhash(d)",
            Setting::default(),
            "stack_exhausted, rolled back: true, then (1, [1, 2, 3], 'one', ['f'])",
        ),
        in_session(
            "R-11e",
            "code that uses up the host calls leaves its session as it was and without any",
            "import os\nwhile True: os.path.exists('/tmp')",
            Setting::default().limit(|limits| limits.broker.host_calls = 5000),
            "budget_exceeded, rolled back: true, then budget_exceeded",
        ),
        in_session(
            "R-01o",
            "an exit in the middle of the interpreter leaves its session as it was",
            "import os\nos._exit(0)",
            Setting::default(),
            "exit, rolled back: true, then (1, [1, 2, 3], 'one', ['f'])",
        ),
        Attack::host(
            "R-02k",
            "a cell that takes all memory gives it back and leaves its session as it was",
            |world, setting| {
                let session = match session(world, setting) {
                    Ok(session) => session,
                    Err(observed) => return observed,
                };
                let before = exec(&session, setting, "x = 1");
                let hungry = "x = 2\nkept, n = {}, 0\nwhile True:\n    kept[n] = [n]\n    n += 1";
                let attacked = exec(&session, setting, hungry);
                let after = exec(&session, setting, "x");
                // Python may get its MemoryError; then the cell ended by itself.
                let expected = if attacked.outcome.rolled_back { "1" } else { "2" };
                let consistent = value(&after.outcome) == expected;
                Observed::fact(format!("consistent: {consistent}"))
                    .note(attacked.outcome.kind.as_str())
                    .seen([before, attacked, after])
            },
        )
        .with(Setting::default().limit(|limits| limits.memory_bytes = 80 << 20))
        .control_cell("x = 1\nprint(x)", "1")
        .about_memory()
        .expect(
            Expected::Harmless("consistent: true"),
            "memory that a cell took is the checkpoint's again",
        ),
    ]
}

fn between() -> Vec<Attack> {
    let draws = "import random, uuid, secrets, os\n[random.random(), uuid.uuid4().hex, secrets.token_hex(), os.urandom(8).hex(), random.getrandbits(64)]";
    vec![
        Attack::host("S-14b", "two sessions and two forks never draw the same random values", move |world, setting| {
            let (first, second) = match (session(world, setting), session(world, setting)) {
                (Ok(first), Ok(second)) => (first, second),
                (Err(observed), _) | (_, Err(observed)) => return observed,
            };
            let warm = exec(&first, setting, draws);
            let (Ok(left), Ok(right)) = (first.fork().wait(), first.fork().wait()) else {
                return Observed::broken("no fork");
            };
            let mut ran = vec![warm];
            for session in [&first, &second, &left, &right] {
                ran.push(exec(session, setting, &format!("{draws}\nimport os\nos._exit(1)")));
                ran.push(exec(session, setting, draws));
            }
            let texts: Vec<_> = ran.iter().filter_map(|ran| ran.outcome.result.repr.clone()).collect();
            let mut values: Vec<_> =
                texts.iter().flat_map(|text| text.trim_matches(['[', ']']).split(", ")).collect();
            let all = values.len();
            values.sort_unstable();
            values.dedup();
            Observed::fact(format!("{all} values, {} different", values.len())).seen(ran)
        })
        .control_cell("import random\nrandom.seed(1)\na = random.random()\nrandom.seed(1)\nprint(a == random.random())", "True")
        .expect(Expected::Harmless("25 values, 25 different"), "a session is seeded from the host, and so is a fork before its first cell"),
        Attack::host("S-13d", "a session finds nothing of another in the same sandbox, alive or ended", |world, setting| {
            let sandbox = match world.sandbox(setting) {
                Ok(sandbox) => sandbox,
                Err(error) => return Observed::broken(error),
            };
            let (first, second) = (sandbox.session(), sandbox.session());
            let pollute = "import builtins, os, sys, json\nbuiltins.leak = json.leak = leak = 1\nsys.modules['leak'] = sys\nos.environ['LEAK'] = '1'\nos.makedirs('/tmp/leak')\nos.chdir('/tmp/leak')\nkept = [b'leak' + b'age-marker-' * 1000 for _ in range(500)]\nsys.path.insert(0, '/tmp/leak')";
            let look = "import builtins, os, sys, json\nblock = bytearray(2_000_000)\n[hasattr(builtins, 'leak'), hasattr(json, 'leak'), 'leak' in globals(), 'leak' in sys.modules, 'LEAK' in os.environ, os.path.exists('/tmp/leak'), os.getcwd() != '/work', '/tmp/leak' in sys.path, block.count(b'age-marker') > 0]";
            let mut ran = vec![exec(&second, setting, "1"), exec(&first, setting, pollute)];
            ran.push(exec(&second, setting, look));
            drop(first);
            ran.push(exec(&second, setting, look));
            ran.push(exec(&sandbox.session(), setting, look));
            let clean = ran.iter().skip(2).all(|ran| !value(&ran.outcome).contains("True"));
            let looked = ran.iter().skip(2).all(|ran| value(&ran.outcome).contains("False"));
            Observed::fact(format!("clean: {}", clean && looked)).seen(ran)
        })
        .control_cell("import builtins\nbuiltins.leak = 1\nprint(hasattr(builtins, 'leak'))", "True")
        .expect(Expected::Harmless("clean: true"), "every session has an instance and a tree of its own"),
        Attack::host("S-13e", "nothing of a cell that was taken back is found again", |world, setting| {
            let session = match session(world, setting) {
                Ok(session) => session,
                Err(observed) => return observed,
            };
            let marker = "marker = b'taken-' + b'back-marker'\n";
            let keep = format!("{marker}kept = [marker * 3000 for _ in range(300)]\ndel marker\nlen(kept)");
            let hunt = "found = 0\nfor _ in range(60):\n    found += bytearray(300_000).count(b'taken-back')\nfound, 'kept' in globals()";
            let mut ran = vec![exec(&session, setting, "x = 1"), exec(&session, setting, &keep)];
            if session.undo(1).wait().is_err() {
                return Observed::broken("no undo");
            }
            ran.push(exec(&session, setting, hunt));
            let trapped = format!("{keep}\nimport os\nos._exit(1)");
            ran.push(exec(&session, setting, &trapped));
            ran.push(exec(&session, setting, hunt));
            let found: Vec<_> = ran.iter().skip(1).step_by(1).map(|ran| value(&ran.outcome)).collect();
            Observed::fact(found.join(" ")).seen(ran)
        })
        .control_cell("block = bytearray(b'taken-back') * 3\nprint(block.count(b'taken-back'))", "3")
        .expect(Expected::Harmless("300 (0, False) exit (0, False)"), "going back writes every page that differs"),
        Attack::host("S-02", "going back or forking gives no budget back", |world, setting| {
            let session = match session(world, setting) {
                Ok(session) => session,
                Err(observed) => return observed,
            };
            let spend = "import os\nfor _ in range(600): os.path.exists('/tmp')\n'spent'";
            let mut ran = vec![exec(&session, setting, "x = 1")];
            let Ok(kept) = session.checkpoint().wait() else { return Observed::broken("no checkpoint") };
            let mut told = Vec::new();
            for round in 0..40 {
                let ended = exec(&session, setting, spend);
                told.push(value(&ended.outcome));
                ran.push(ended);
                let back = match round % 3 {
                    0 => session.undo(1).wait(),
                    1 => session.restore(kept).wait(),
                    _ => Ok(()),
                };
                if back.is_err() && round < 2 {
                    return Observed::broken("no way back");
                }
            }
            let child = session.fork().wait().map(|child| exec(&child, setting, spend));
            let of_child = child.as_ref().map_or("none".to_owned(), |ran| value(&ran.outcome));
            let spent = told.iter().filter(|value| *value == "'spent'").count();
            let last = told.last().cloned().unwrap_or_default();
            Observed::fact(format!("some spent: {}, at last {last}, fork {of_child}", spent > 0 && spent < 39))
                .seen(ran)
                .seen(child)
        })
        .with(Setting::default().limit(|limits| limits.broker.host_calls = 12_000))
        .control(
            Attempt::Cell("import os\nfor _ in range(600): os.path.exists('/tmp')\nprint('spent')".to_owned()),
            Expected::Harmless("spent"),
        )
        .expect(
            Expected::Harmless("some spent: true, at last budget_exceeded, fork budget_exceeded"),
            "the meter is outside what goes back, and forks share it",
        ),
    ]
}

/// More than an engine keeps an instance for.
const OTHERS: usize = 70;

/// Fills memory with holes and lets the session wait until it has given its
/// instance up.
fn churned(world: &World<'_>, setting: &Setting) -> Result<Observed, Observed> {
    let sandbox = world.sandbox(setting).map_err(Observed::broken)?;
    let session = sandbox.session();
    let churn = "import random\nrandom.seed(1)\nheld = {}\nfor n in range(50_000):\n    held[random.randrange(500)] = bytes(random.randrange(20_000))\nlen(held)";
    let churned = exec(&session, setting, churn);
    let others: Vec<Session> = (0..OTHERS).map(|_| sandbox.session()).collect();
    let run_others = others.iter().all(|other| value(&exec(other, setting, "1").outcome) == "1");
    let after = exec(&session, setting, "len(held), all(map(len, held.values()))");
    let usage = session.usage().wait().map_err(|_| Observed::broken("no usage"))?;
    let most = setting.limits.memory_bytes;
    let within = usage.memory_bytes <= most && churned.outcome.usage.peak_memory_bytes <= most;
    let (first, then) = (value(&churned.outcome), value(&after.outcome));
    let fact = format!("{first}, within: {within}, others: {run_others}, then {then}");
    Ok(Observed::fact(fact).seen([churned, after]))
}

/// Lets everything be done but in one directory.
const STRICTER: &str = "version = 1\nflags = \"extend\"\n[[fs.rules]]\nid = \"rest\"\npaths = [\"/**\"]\n[[fs.rules]]\nid = \"closed\"\naction = \"deny\"\npaths = [\"/rw/**\"]\n";

/// Goes back to a state with an open file that the policy no longer allows.
fn stricter(world: &World<'_>, setting: &Setting) -> Result<Observed, Observed> {
    let sandbox = world.sandbox(setting).map_err(Observed::broken)?;
    let session = sandbox.session();
    let open = "import os\nopen('/rw/held', 'w').write('text')\nfd = os.open('/rw/held', os.O_RDONLY)\ndef attempt(do):\n    try:\n        do()\n        return 'done'\n    except OSError as error:\n        return type(error).__name__";
    let look = "[attempt(lambda: os.read(fd, 4)), attempt(lambda: open('/rw/held').close())]";
    let mut ran = vec![exec(&session, setting, open), exec(&session, setting, look)];
    let kept = session.checkpoint().wait().map_err(|_| Observed::broken("no checkpoint"))?;
    let policy = PolicyFile::parse(STRICTER, "policy");
    let policy = policy.map_err(|error| Observed::broken(error.to_string()))?;
    let replaced = sandbox.replace_policy(&policy);
    replaced.map_err(|error| Observed::broken(error.to_string()))?;
    session.restore(kept).wait().map_err(|_| Observed::broken("no way back"))?;
    ran.push(exec(&session, setting, look));
    let told: Vec<_> = ran.iter().skip(1).map(|ran| value(&ran.outcome)).collect();
    Ok(Observed::fact(told.join(" then ")).seen(ran))
}

fn later() -> Vec<Attack> {
    vec![
        Attack::host(
            "R-14",
            "a session that filled its memory with holes is within its limit, also once it waits",
            |world, setting| churned(world, setting).unwrap_or_else(|observed| observed),
        )
        .control_cell("print(len({1: bytes(10)}))", "1")
        .alone()
        .expect(
            Expected::AnyOf(vec![
                Expected::Harmless("500, within: true, others: true, then (500, True)"),
                Expected::Harmless("memory_limit, within: true, others: true, then script_error"),
            ]),
            "memory is counted at its full size, and a session that waits keeps its state only",
        ),
        Attack::host(
            "S-05",
            "going back under a stricter policy gives back nothing that it denies",
            |world, setting| stricter(world, setting).unwrap_or_else(|observed| observed),
        )
        .with(Setting::mounted())
        .control_cell("open('/rw/new', 'w').close()\nprint('made')", "made")
        .expect(
            Expected::Harmless("['done', 'done'] then ['OSError', 'PermissionError']"),
            "open files are decided again when a state is gone back to",
        ),
    ]
}

/// All of them.
pub(super) fn all() -> Vec<Attack> {
    let mut all = exhausted();
    all.extend(between());
    all.extend(later());
    all
}
