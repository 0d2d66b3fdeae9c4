//! W, S: fuel, and what code can learn of its host where it must learn nothing.
//!
//! Invariant: in deterministic mode a run that ends at all ends by what it did,
//! and two runs that did the same are the same.

use std::sync::Arc;
use std::time::Duration;

use fumehood::{Clock, Determinism, OutcomeKind, RandomSource, SandboxBuilder, Script};
use fumehood_host_fns::RandomFailed;

use crate::harness::wat::Program;
use crate::harness::{Attack, Attempt, Expected, Observed, Ran, Setting, World, run_in};

/// Enough for a short Python program.
const SOME_FUEL: u64 = 500_000_000;

/// Time for a loaded machine: what ends these runs is fuel.
fn patient() -> Setting {
    Setting::default().wall_ms(120_000).limit(|limits| limits.cpu = Duration::from_secs(120))
}

fn with_fuel(fuel: u64) -> Determinism {
    Determinism { fuel, ..Determinism::default() }
}

fn ran(
    builder: SandboxBuilder,
    settings: Determinism,
    setting: &Setting,
    script: impl Into<Script>,
) -> Result<Ran, Observed> {
    let sandbox = builder.deterministic(settings).build();
    let sandbox = sandbox.map_err(|error| Observed::broken(error.to_string()))?;
    Ok(run_in(&sandbox, setting.limits.wall, script))
}

fn python(
    world: &World<'_>,
    setting: &Setting,
    settings: Determinism,
    code: &str,
) -> Result<Ran, Observed> {
    ran(world.builder(setting).map_err(Observed::broken)?, settings, setting, code)
}

fn module(builder: &SandboxBuilder, setting: &Setting, fuel: u64) -> Result<Ran, Observed> {
    ran(builder.clone(), with_fuel(fuel), setting, Script::new(""))
}

fn host_attack(
    id: &'static str,
    property: &'static str,
    attempt: impl Fn(&World<'_>, &Setting) -> Result<Observed, Observed> + Send + Sync + 'static,
) -> Attack {
    Attack::host(id, property, move |world, setting| match attempt(world, setting) {
        Ok(observed) | Err(observed) => observed,
    })
    .with(patient())
}

/// How often a module calls its host.
fn calls(times: u32) -> Program {
    Program::repeat(times, "(drop (call $sched_yield))")
}

/// Settings with a module that calls its host.
fn calling(world: &World<'_>, setting: &Setting, times: u32) -> Result<SandboxBuilder, Observed> {
    world.program_builder(&calls(times), setting).map_err(Observed::broken)
}

/// The fuel that a module uses, and its run.
fn fuel_of(world: &World<'_>, setting: &Setting, times: u32) -> Result<(u64, Ran), Observed> {
    let ran = module(&calling(world, setting, times)?, setting, SOME_FUEL)?;
    let used = ran.outcome.usage.fuel.ok_or_else(|| Observed::broken("no fuel is reported"))?;
    Ok((used, ran))
}

fn fuel() -> Vec<Attack> {
    vec![
        host_attack(
            "W-40",
            "fuel that ends around a host call is a typed end, and the call costs once",
            |world, setting| {
                let mut seen = Vec::new();
                let mut used = Vec::new();
                for times in [100, 200, 300] {
                    let (fuel, ran) = fuel_of(world, setting, times)?;
                    used.push(fuel);
                    seen.push(ran);
                }
                let same_price = matches!(*used, [a, b, c] if b - a == c - b && b > a);
                // Every amount up to what the module needs, whatever it is just doing.
                let most = used.first().copied().unwrap_or(0);
                let mut typed = true;
                let builder = calling(world, setting, 100)?;
                for fuel in (1..40).chain([most / 2, most / 10 * 9]) {
                    let ran = module(&builder, setting, fuel)?;
                    typed &= ran.outcome.kind == OutcomeKind::FuelExhausted
                        && ran.outcome.exit_code == 123
                        && ran.outcome.usage.fuel == Some(fuel);
                    seen.push(ran);
                }
                Ok(Observed::fact(format!("same price {same_price}, typed {typed}")).seen(seen))
            },
        )
        .control(Attempt::Module(calls(100)), Expected::Harmless(""))
        .expect(
            Expected::Harmless("same price true, typed true"),
            "fuel is counted by guest code alone, and checked in every loop and function",
        ),
        host_attack("W-40b", "a loop that never ends uses up its fuel", |world, setting| {
            let ran = python(world, setting, with_fuel(SOME_FUEL), "while True: pass")?;
            let fuel = ran.outcome.usage.fuel;
            let ended = format!("{} {}", ran.outcome.kind.as_str(), fuel == Some(SOME_FUEL));
            Ok(Observed::fact(ended).seen([ran]))
        })
        .control_cell("print(sum(range(10)))", "45")
        .expect(
            Expected::Harmless("fuel_exhausted true"),
            "compiled code counts fuel in every loop and function",
        ),
        host_attack(
            "W-40c",
            "code that swallows every exception and waits without end uses up its fuel",
            |world, setting| {
                let code = "import time\nwhile True:\n    try:\n        time.sleep(3600)\n    except BaseException:\n        pass";
                let ran = python(world, setting, with_fuel(SOME_FUEL), code)?;
                Ok(Observed::fact(ran.outcome.kind.as_str()).seen([ran]))
            },
        )
        .control_cell("import time\ntime.sleep(0.01)\nprint('slept')", "slept")
        .expect(
            Expected::Harmless("fuel_exhausted"),
            "a virtual sleep takes no time, and the loop around it counts fuel",
        ),
        host_attack(
            "W-40d",
            "the wall clock ends a deterministic run too, which then proves nothing",
            |world, setting| {
                let setting = Setting { limits: setting.limits.clone(), mounts: false }.wall_ms(400);
                let ran = python(world, &setting, with_fuel(u64::MAX), "while True: pass")?;
                let digest = ran.outcome.digest.is_some();
                let ended = format!("{} digest {digest}", ran.outcome.kind.as_str());
                Ok(Observed::fact(ended).seen([ran]))
            },
        )
        .control_cell("print(1)", "1")
        .alone()
        .expect(
            Expected::Harmless("timeout digest false"),
            "code that counts fuel checks the epoch too",
        ),
    ]
}

/// A clock and a random source of the host that must not be asked.
struct Forbidden;

impl Clock for Forbidden {
    fn wall_ns(&self) -> u64 {
        panic!("the host's clock was read")
    }

    fn monotonic_ns(&self) -> u64 {
        panic!("the host's clock was read")
    }
}

impl RandomSource for Forbidden {
    fn fill(&self, _into: &mut [u8]) -> Result<(), RandomFailed> {
        panic!("the host's randomness was asked for")
    }
}

const LOOKS_EVERYWHERE: &str = "import time, datetime, random, uuid, secrets, os, threading\nt = time.time()\ntime.sleep(5)\nos.makedirs('/work/d')\nopen('/work/d/f', 'w').write('x')\nthreading.Thread(target=time.monotonic).start()\nstat = os.stat('/work/d/f')\nprint(time.time() - t >= 5, datetime.datetime.now().year, random.random(), uuid.uuid4(), secrets.token_hex(8), os.urandom(4).hex(), stat.st_mtime, stat.st_ino)";

fn host_time() -> Vec<Attack> {
    vec![
        host_attack(
            "S-14d",
            "a deterministic run reads no clock and no randomness of its host",
            |world, setting| {
                let builder = world.builder(setting).map_err(Observed::broken)?;
                let builder = builder.clock(Arc::new(Forbidden)).random(Arc::new(Forbidden));
                let ran = ran(builder, Determinism::default(), setting, LOOKS_EVERYWHERE)?;
                let year = ran.outcome.stdout_text().starts_with("True 2025 ");
                let digest = ran.outcome.digest.is_some();
                Ok(Observed::fact(format!("year {year}, digest {digest}")).seen([ran]))
            },
        )
        .control_cell(
            "import time\nprint(time.time() > 1_750_000_000)",
            "True",
        )
        .expect(
            Expected::Harmless("year true, digest true"),
            "the broker is given a virtual clock and a seeded source, and knows no other",
        ),
        host_attack(
            "S-14e",
            "two deterministic sandboxes draw the same values, and another seed draws others",
            |world, setting| {
                let code = "import random, uuid, secrets, os, tempfile\nprint(random.random(), uuid.uuid4(), secrets.token_hex(), os.urandom(8).hex(), tempfile.mkstemp()[1], {'a', 'b', 'c'}, hash('x'))";
                let mut seen = Vec::new();
                for seed in [7, 7, 8] {
                    let settings = Determinism { seed, ..Determinism::default() };
                    seen.push(python(world, setting, settings, code)?);
                }
                let texts: Vec<_> = seen.iter().map(|ran| ran.outcome.stdout_text()).collect();
                let digests: Vec<_> = seen.iter().map(|ran| ran.outcome.digest.clone()).collect();
                let same = matches!(&*texts, [a, b, c] if a == b && b != c && !a.is_empty());
                let proven = matches!(&*digests, [Some(a), Some(b), Some(c)] if a == b && b != c);
                Ok(Observed::fact(format!("same {same}, proven {proven}")).seen(seen))
            },
        )
        .no_control("S-14 shows that the same draws differ where nothing is seeded")
        .expect(
            Expected::Harmless("same true, proven true"),
            "every random byte is the key stream of the seed",
        ),
    ]
}

pub(super) fn all() -> Vec<Attack> {
    let mut all = fuel();
    all.extend(host_time());
    all
}
