//! S, H: runs beside and after each other, faults of the host, and its clocks.
//!
//! Invariant: no run learns anything of another, and a fault of one is of that
//! one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fumehood::{Clock, OutcomeKind, RandomSource, Sandbox, Script};
use fumehood_host_fns::{OsRandom, RandomFailed, SystemClock};

use crate::harness::{Attack, Attempt, Expected, Observed, Setting, World, machine, run_in};

use super::engine::cancel_one;

fn sandbox(world: &World<'_>, setting: &Setting) -> Result<Sandbox, Observed> {
    world.sandbox(setting).map_err(Observed::broken)
}

fn after_each_other() -> Vec<Attack> {
    let pollute = "import os, sys, builtins, json, random, time\nbuiltins.leak = 1\nleak = 2\nsys.modules['leak'] = sys\njson.leak = 3\nos.environ['LEAK'] = '4'\nos.makedirs('/tmp/leak')\nos.chdir('/tmp/leak')\nopen('/tmp/leak/file', 'w').write('5')\nsys.path.insert(0, '/tmp/leak')\nopen('/tmp/leak/leaked.py', 'w').write('x = 6')\nrandom.seed(7)\nsys.setrecursionlimit(500)\nsys.stdout.write('')\nprint('polluted')";
    let look = "import os, sys, builtins, json\nfound = []\nfor name, there in (('builtins', hasattr(builtins, 'leak')), ('globals', 'leak' in globals()), ('modules', 'leak' in sys.modules), ('json', hasattr(json, 'leak')), ('environ', 'LEAK' in os.environ), ('files', os.path.exists('/tmp/leak')), ('cwd', os.getcwd() != '/work'), ('path', '/tmp/leak' in sys.path), ('limit', sys.getrecursionlimit() == 500)):\n    if there:\n        found.append(name)\nprint(found)";
    let random = "import random, uuid, secrets, os\nprint(random.random(), uuid.uuid4(), secrets.token_hex(), os.urandom(8).hex(), random.getrandbits(64), hash(object()) and '')";
    let random_code = random.to_owned();
    vec![
        Attack::host("S-13", "a run finds nothing of the run before it in the same sandbox", move |world, setting| {
            let sandbox = match sandbox(world, setting) {
                Ok(sandbox) => sandbox,
                Err(observed) => return observed,
            };
            let first = run_in(&sandbox, setting.limits.wall, pollute);
            let rounds = (0..8).map(|_| run_in(&sandbox, setting.limits.wall, look));
            let rounds: Vec<_> = rounds.collect();
            let clean = rounds.iter().all(|ran| ran.outcome.stdout_text() == "[]\n");
            let first_text = first.outcome.stdout_text();
            Observed::fact(format!("{} then clean: {clean}", first_text.trim())).seen([first]).seen(rounds)
        })
        .control(
            Attempt::Cell(format!("{pollute}\n{look}")),
            Expected::Harmless("polluted\n['builtins', 'globals', 'modules', 'json', 'environ', 'files', 'cwd', 'path', 'limit']"),
        )
        .expect(Expected::Harmless("polluted then clean: true"), "every run starts from the same image and an empty tree"),
        Attack::host("S-13b", "a run after a trap finds nothing of the run that trapped", move |world, setting| {
            let sandbox = match sandbox(world, setting) {
                Ok(sandbox) => sandbox,
                Err(observed) => return observed,
            };
            let trap = format!("{pollute}\nwhile True: pass");
            let first = run_in(&sandbox, setting.limits.wall, &*trap);
            let second = run_in(&sandbox, setting.limits.wall, look);
            let text = second.outcome.stdout_text();
            Observed::fact(format!("{} then {}", first.outcome.kind.as_str(), text.trim())).seen([first, second])
        })
        .with(Setting::default().wall_ms(1000))
        .no_control("S-13 has the same control in the same setting")
        .expect(Expected::Harmless("timeout then []"), "the store of a trapped run is thrown away"),
        Attack::host("S-13c", "memory that a run wrote is zero or the image again in the next", |world, setting| {
            let sandbox = match sandbox(world, setting) {
                Ok(sandbox) => sandbox,
                Err(observed) => return observed,
            };
            let fill = "marker = b'leak' + b'age-marker-'\nkept = [marker * 10_000 for _ in range(200)]\nprint(len(kept))";
            let first = run_in(&sandbox, setting.limits.wall, fill);
            // Fresh memory comes zeroed: a new large object holds no marker.
            let hunt = "marker = b'leak' + b'age-marker-'\nfound = 0\nfor n in range(200):\n    block = bytearray(200_000)\n    found += block.count(b'age-marker')\nprint(found)";
            let second = run_in(&sandbox, setting.limits.wall, hunt);
            Observed::fact(format!("{} kept, {} found", first.outcome.stdout_text().trim(), second.outcome.stdout_text().trim())).seen([first, second])
        })
        .control_cell("block = bytearray(b'age-marker') * 3\nprint(block.count(b'age-marker'))", "3")
        .expect(Expected::Harmless("200 kept, 0 found"), "a recycled slot is reset to the image, else it is not reused"),
        Attack::host("S-14", "two instances of one image never draw the same random values", move |world, setting| {
            let sandbox = match sandbox(world, setting) {
                Ok(sandbox) => sandbox,
                Err(observed) => return observed,
            };
            let runs: Vec<_> = (0..20).map(|_| run_in(&sandbox, setting.limits.wall, &*random_code)).collect();
            let mut values: Vec<_> = runs.iter().flat_map(|ran| {
                ran.outcome.stdout_text().split_whitespace().map(str::to_owned).collect::<Vec<_>>()
            }).collect();
            let all = values.len();
            values.sort();
            values.dedup();
            Observed::fact(format!("{all} values, {} different", values.len())).seen(runs)
        })
        .control_cell("import random\nrandom.seed(1)\na = random.random()\nrandom.seed(1)\nprint(a == random.random())", "True")
        .expect(Expected::Harmless("100 values, 100 different"), "every instance is seeded from the host before its first cell"),
    ]
}

fn beside_each_other() -> Vec<Attack> {
    vec![
        Attack::host("W-37c", "cancelling one of two hundred Python sandboxes ends exactly that one", |world, setting| {
            match sandbox(world, setting) {
                Ok(sandbox) => cancel_one(&sandbox, 200, &Script::cell("import time\nend = time.monotonic() + 1\nwhile time.monotonic() < end:\n    time.sleep(0.05)\nprint('done')")),
                Err(observed) => observed,
            }
        })
        .with(Setting::default().wall_ms(60_000).limit(|limits| limits.cpu = Duration::from_secs(60)))
        .control_cell("print('done')", "done")
        .about_memory()
        .expect(Expected::Harmless("199 done, exactly the right one cancelled: true"), "a cancel flag belongs to one run"),
        Attack::host("R-01j", "a spinning guest delays no timer of a one-thread async runtime", |world, setting| {
            let sandbox = match sandbox(world, setting) {
                Ok(sandbox) => sandbox,
                Err(observed) => return observed,
            };
            let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_time().build() else {
                return Observed::broken("no async runtime");
            };
            let (late, outcome) = runtime.block_on(async {
                let spinning = sandbox.run("while True: pass");
                let canceller = spinning.canceller();
                let start = machine::now();
                let mut late = Duration::ZERO;
                for tick in 1..=20_u32 {
                    let due = Duration::from_millis(10) * tick;
                    tokio::time::sleep(due.saturating_sub(start.elapsed())).await;
                    late = late.max(start.elapsed().saturating_sub(due));
                }
                canceller.cancel();
                (late, spinning.await)
            });
            let on_time = late < Duration::from_millis(200);
            Observed::fact(format!("{}, timers on time: {on_time}", outcome.kind.as_str()))
                .note(format!("latest timer {:.1} ms late", late.as_secs_f64() * 1000.0))
        })
        .control_cell("print('done')", "done")
        .alone()
        .expect(Expected::Harmless("cancelled, timers on time: true"), "guests run on threads of their own"),
        Attack::host("R-01k", "a future that is dropped stops its guest", |world, setting| {
            let sandbox = match sandbox(world, setting) {
                Ok(sandbox) => sandbox,
                Err(observed) => return observed,
            };
            let written = Arc::new(AtomicU64::new(0));
            let counter = Arc::clone(&written);
            let script = Script::cell("import sys\nwhile True:\n    sys.stdout.write('x\\n')")
                .on_output(move |_, _| { counter.fetch_add(1, Ordering::SeqCst); });
            let run = sandbox.run(script);
            std::thread::sleep(Duration::from_millis(100));
            drop(run);
            std::thread::sleep(Duration::from_millis(200));
            let at = written.load(Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(200));
            let later = written.load(Ordering::SeqCst).saturating_sub(at);
            Observed::fact(format!("wrote: {}, wrote after it was dropped: {}", at > 0, later > 0))
        })
        .with(Setting::default().limit(|limits| limits.broker.output_bytes = u64::MAX >> 1))
        .control_cell("print('done')", "done")
        .alone()
        .expect(Expected::Harmless("wrote: true, wrote after it was dropped: false"), "dropping a run cancels it"),
        Attack::host("R-01l", "a bomb beside other runs changes none of their results", |world, setting| {
            let sandbox = match sandbox(world, setting) {
                Ok(sandbox) => sandbox,
                Err(observed) => return observed,
            };
            let neighbour = || sandbox.run("import hashlib\nh = b''\nfor n in range(20_000):\n    h = hashlib.sha256(h + str(n).encode()).digest()\nprint(h.hex())");
            let before = neighbour().wait().stdout_text();
            let bombs = ["while True: pass", "k = []\nwhile True: k.append(bytes(1_000_000))", "def f(): f()\nimport sys\nsys.setrecursionlimit(10**6)\nf()", "while True: print('x' * 10_000)"];
            let running: Vec<_> = bombs.iter().map(|bomb| (sandbox.run(*bomb), neighbour())).collect();
            let same = running.into_iter().all(|(bomb, neighbour)| {
                let same = neighbour.wait().stdout_text() == before;
                bomb.canceller().cancel();
                let _ = bomb.wait();
                same
            });
            Observed::fact(format!("computed: {}, the same beside the bombs: {same}", before.len() == 65))
        })
        .with(Setting::default().wall_ms(60_000).limit(|limits| limits.cpu = Duration::from_secs(60)))
        .control_cell("print('done')", "done")
        .about_memory()
        .expect(Expected::Harmless("computed: true, the same beside the bombs: true"), "runs share nothing that one of them could use up"),
    ]
}

/// Panics once the run has begun.
struct PanickingRandom(AtomicU64);

impl RandomSource for PanickingRandom {
    fn fill(&self, into: &mut [u8]) -> Result<(), RandomFailed> {
        // The first calls make ids and the seed, before the guest starts.
        if self.0.fetch_add(1, Ordering::SeqCst) >= 8 {
            panic!("canary-panic-text of the host");
        }
        OsRandom.fill(into)
    }
}

/// Fails once the run has begun.
struct FailingRandom(AtomicU64);

impl RandomSource for FailingRandom {
    fn fill(&self, into: &mut [u8]) -> Result<(), RandomFailed> {
        if self.0.fetch_add(1, Ordering::SeqCst) >= 8 {
            Err(RandomFailed)
        } else {
            OsRandom.fill(into)
        }
    }
}

/// A wall clock that jumps by years at every reading.
struct JumpingClock(SystemClock, AtomicU64);

impl Clock for JumpingClock {
    fn wall_ns(&self) -> u64 {
        let jump = self.1.fetch_add(1, Ordering::SeqCst);
        if jump.is_multiple_of(2) { 0 } else { 4_000_000_000_000_000_000 }
    }
    fn monotonic_ns(&self) -> u64 {
        self.0.monotonic_ns()
    }
}

const MUCH_RANDOMNESS: &str = "import os\nfor n in range(100):\n    os.urandom(8)\nprint('done')";

fn faults() -> Vec<Attack> {
    let with_random = |id, property, random: fn() -> Arc<dyn RandomSource>, reason| {
        Attack::host(id, property, move |world, setting| {
            let built = world.builder(setting).map(|builder| builder.random(random()).build());
            let Ok(Ok(sandbox)) = built else { return Observed::broken("no sandbox") };
            let ran = run_in(&sandbox, setting.limits.wall, &*format!("try:\n    exec({MUCH_RANDOMNESS:?})\nexcept BaseException as error:\n    print('guest saw', error)"));
            let told = ran.outcome.to_json().to_string().contains("canary-panic-text");
            let fault = matches!(ran.outcome.kind, OutcomeKind::SandboxFault { .. });
            Observed::fact(format!("fault: {fault}, told: {told}, output: {:?}", ran.outcome.stdout_text())).seen([ran])
        })
        .control_cell(MUCH_RANDOMNESS, "done")
        .expect(Expected::Harmless("fault: true, told: false, output: \"\""), reason)
    };
    vec![
        with_random("H-25", "a panic in a host function ends that run alone and is not shown", || Arc::new(PanickingRandom(AtomicU64::new(0))), "a panic is caught at the boundary and becomes a reference into the log").panics(),
        with_random("H-25b", "a source of randomness that fails ends the run and gives nothing weaker", || Arc::new(FailingRandom(AtomicU64::new(0))), "no program may go on without the randomness it asked for"),
        Attack::host("S-20", "a wall clock that jumps by years ends no run early", |world, setting| {
            let clock = Arc::new(JumpingClock(SystemClock::new(), AtomicU64::new(0)));
            let built = world.builder(setting).map(|builder| builder.clock(clock).build());
            let Ok(Ok(sandbox)) = built else { return Observed::broken("no sandbox") };
            let code = "import time\nseen = {int(time.time()) > 10**9 for _ in range(10)}\ntime.sleep(0.05)\nprint(sorted(seen))";
            Observed::run(run_in(&sandbox, setting.limits.wall, code))
        })
        .control_cell("import time\nprint({time.time() > 10**9})", "{True}")
        .expect(Expected::Harmless("[False, True]"), "deadlines and waits are measured on the monotonic clock"),
        Attack::host("H-28", "ten thousand equal denials are one line with a number", |world, setting| {
            let ran = world.cell(setting, "n = 0\nfor _ in range(10_000):\n    try:\n        open('/ro/file.txt', 'w')\n    except OSError:\n        n += 1\nprint(n)");
            let Some(last) = ran.ran.last() else { return ran };
            let denials: Vec<_> = last.outcome.denials.iter().map(|denial| denial.count).collect();
            Observed::fact(format!("{} {denials:?}", last.outcome.stdout_text().trim())).seen(ran.ran.clone())
        })
        .with(Setting::mounted())
        .control_cell("with open('/rw/file.txt', 'w') as file:\n    print(file.write('x'))", "1")
        .expect(Expected::Harmless("10000 [10000]"), "equal denials are counted in one"),
        Attack::host("H-28b", "ten thousand different denials stay a bounded list", |world, setting| {
            let ran = world.cell(setting, "n = 0\nfor i in range(10_000):\n    try:\n        open(f'/ro/{i}', 'w')\n    except OSError:\n        n += 1\nprint(n)");
            let Some(last) = ran.ran.last() else { return ran };
            let bounded = last.outcome.denials.len() <= setting.limits.broker.denials_kept as usize;
            Observed::fact(format!("{} bounded: {bounded}", last.outcome.stdout_text().trim())).seen(ran.ran.clone())
        })
        .with(Setting::mounted())
        .control(Attempt::Cell("try:\n    open('/ro/x', 'w')\nexcept OSError:\n    pass".to_owned()), Expected::Denied { rule: "mount:/ro" })
        .about_memory()
        .expect(Expected::Harmless("10000 bounded: true"), "the list of denials has a limit"),
    ]
}

/// Every attack of this kind.
pub(super) fn all() -> Vec<Attack> {
    let mut all = after_each_other();
    all.extend(beside_each_other());
    all.extend(faults());
    all
}
