//! W: interruption, the stack, and compiled code.
//!
//! Invariant: whatever a guest does, its caller has a typed answer soon after
//! the deadline, and compiled code comes only from files that can be trusted.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use fumehood::{Engine, OutcomeKind, Progress, Sandbox, Script};

use crate::harness::wat::Program;
use crate::harness::{Attack, Attempt, Capability, Expected, Observed, Setting, World, machine};

fn interruption() -> Vec<Attack> {
    let soon = || Setting::default().wall_ms(300);
    let stopped = || Expected::Ends(&["timeout"]);
    let honest = || Program::repeat(1000, "");
    let attack = |id, property, program: Program| {
        Attack::module(id, property, program).with(soon()).control_module(honest()).alone().expect(
            stopped(),
            "loops and function entries check the epoch, and the epoch callback the deadline",
        )
    };
    vec![
        attack("W-28", "filling the whole memory again and again is interrupted", Program::new("(loop $l (memory.fill %0 %1 %134217728) (br $l))").pages(2048)),
        attack("W-28b", "copying the whole memory again and again is interrupted", Program::new("(loop $l (memory.copy %1 %0 %134217727) (br $l))").pages(2048)),
        attack("W-28c", "a loop without a call is interrupted", Program::new("(loop $l (br $l))")),
        attack("W-28d", "two functions that call each other in a loop are interrupted",
            Program::new("(loop $l (call $a) (br $l))").functions("(func $a (call $b)) (func $b)")),
        attack("W-28e", "asking for random bytes in a loop is interrupted",
            Program::new("(loop $l (drop (call $random_get %65536 %1024)) (br $l))")),
        attack("W-29", "a start function that never ends is interrupted too",
            Program::new("").functions("(func $forever (loop $l (br $l))) (start $forever)")),
        Attack::module("W-29b", "a start function reaches no memory through the host",
            Program::new("").functions("(func $early (if (i32.eqz (call $random_get %0 %16)) (then unreachable))) (start $early)"))
            .control_module(Program::new("(call $must (call $random_get %0 %16))"))
            .expect(Expected::Harmless(""), "before instantiation is done the host knows no memory, and every address is out of range"),
        Attack::module("W-38", "recursion without end is a typed end and not the host's own",
            Program::new("(call $down)").functions("(func $down (call $down) (call $down))"))
            .control_module(Program::new("(call $down %1000)").functions(
                "(func $down (param i32) (if (local.get 0) (then (call $down (i32.sub (local.get 0) %1)))))"))
            .expect(Expected::Ends(&["stack_exhausted"]), "the guest has a stack limit of its own below that of its thread"),
        Attack::module("W-38b", "recursion through a host call without end is a typed end",
            Program::new("(call $down)").functions("(func $down (drop (call $sched_yield)) (call $down) (call $down))"))
            .control_module(Program::new("(drop (call $sched_yield))"))
            .expect(Expected::Ends(&["stack_exhausted"]), "host functions run in the room that is kept for them"),
        Attack::module("R-02d", "a module cannot grow its memory beyond the limit",
            Program::new("(call $unless (i32.eq (memory.grow %65000) %-1) %1) (call $unless (i32.eq (memory.grow %4096) %-1) %2)"))
            .control_module(Program::new("(call $unless (i32.ne (memory.grow %16) %-1) %1)"))
            .about_memory()
            .expect(Expected::Harmless(""), "the limiter refuses the growth and the module is told"),
        Attack::module("R-02e", "a table does not grow without bound",
            Program::new("(call $unless (i32.eq (table.grow $t (ref.null func) %100000000) %-1) %1)").functions("(table $t 1 funcref)"))
            .control_module(Program::new("(call $unless (i32.ne (table.grow $t (ref.null func) %100) %-1) %1)").functions("(table $t 1 funcref)"))
            .expect(Expected::Harmless(""), "tables are limited like memory"),
    ]
}

/// Copies the compiled code of the shared engine into a cache of the world.
fn copied_cache(world: &World<'_>) -> Result<(PathBuf, String), Observed> {
    let broken = |why: &str| Observed::broken(why.to_owned());
    if let Err(error) = world.stage().engine() {
        return Err(Observed::broken(error));
    }
    let Ok(Some((directory, name))) = fumehood::cache_location(false) else {
        return Err(broken("there is no cache of compiled code on this machine"));
    };
    let Some(code) = machine::read_bytes(&directory.join(&name)) else {
        return Err(broken("the cache holds no compiled code"));
    };
    let cache = world.path("cache");
    let written = machine::make_directory(&cache)
        .and_then(|()| set_mode(&cache, 0o700))
        .and_then(|()| machine::write(&cache.join(&name), code))
        .and_then(|()| set_mode(&cache.join(&name), 0o600));
    match written {
        Ok(()) => Ok((cache, name)),
        Err(error) => Err(Observed::broken(error.to_string())),
    }
}

fn set_mode(path: &Path, mode: u32) -> std::io::Result<()> {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
}

/// Ends a build that began to compile: what is asked is whether it would.
struct WouldCompile;

/// What an engine that keeps its code in `cache` does with what is there.
fn verdict_on_cache(cache: &Path) -> Observed {
    let complaints = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&complaints);
    let builder =
        Engine::builder().cache_directory(cache).on_progress(move |progress| match progress {
            Progress::CacheUnusable { reason, .. } => {
                heard.lock().unwrap_or_else(PoisonError::into_inner).push(reason);
            }
            // Compiling takes long and shows nothing more.
            Progress::Compiling if !machine::is_full() => {
                std::panic::resume_unwind(Box::new(WouldCompile))
            }
            _ => {}
        });
    let built = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| builder.build()));
    let complaints = complaints.lock().unwrap_or_else(PoisonError::into_inner).join("; ");
    match built {
        Ok(Ok(_)) if complaints.is_empty() => Observed::fact("used"),
        Ok(Err(error)) => Observed::broken(error.to_string()),
        _ => Observed::refused(complaints),
    }
}

fn cache() -> Vec<Attack> {
    fn attack(
        id: &'static str,
        property: &'static str,
        names: &'static [&'static str],
        spoil: fn(&Path, &Path) -> std::io::Result<PathBuf>,
    ) -> Attack {
        Attack::host(id, property, move |world, _| match copied_cache(world) {
            Ok((cache, name)) => match spoil(&cache, &cache.join(&name)) {
                Ok(cache) => verdict_on_cache(&cache),
                Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                    Observed::waiting(Capability::OtherUsers)
                }
                Err(error) => Observed::broken(error.to_string()),
            },
            Err(observed) => observed,
        })
        .control(
            Attempt::Host(Arc::new(|world, _| match copied_cache(world) {
                Ok((cache, _)) => verdict_on_cache(&cache),
                Err(observed) => observed,
            })),
            Expected::Harmless("used"),
        )
        .expect(
            Expected::Refused(names),
            "code is mapped only from a file whose owner, mode and footer were checked on its descriptor",
        )
    }
    vec![
        attack(
            "W-34",
            "compiled code is not taken from a directory that others can write",
            &["0700"],
            |cache, _| set_mode(cache, 0o777).map(|()| cache.to_owned()),
        ),
        attack(
            "W-34b",
            "compiled code is not taken through a symbolic link",
            &["symbolic link"],
            |cache, _| {
                let link = cache.with_extension("link");
                std::os::unix::fs::symlink(cache, &link).map(|()| link)
            },
        ),
        attack(
            "W-34c",
            "compiled code that others can write is not used",
            &["write"],
            |cache, file| set_mode(file, 0o666).map(|()| cache.to_owned()),
        ),
        attack(
            "W-34d",
            "compiled code behind a symbolic link is not used",
            &["symbolic link"],
            |cache, file| {
                let aside = cache.join("aside");
                machine::rename(file, &aside)?;
                std::os::unix::fs::symlink(&aside, file).map(|()| cache.to_owned())
            },
        ),
        attack(
            "W-34e",
            "compiled code that is cut short is not used",
            &["cut short"],
            |cache, file| {
                let mut code = machine::read_bytes(file).unwrap_or_default();
                code.truncate(code.len() / 2);
                machine::write(file, code).map(|()| cache.to_owned())
            },
        ),
        attack(
            "W-34f",
            "compiled code of another engine or guest is not used",
            &["another"],
            |cache, file| {
                let mut code = machine::read_bytes(file).unwrap_or_default();
                let footer = b"\"engine\":\"";
                let at = code.windows(footer.len()).rposition(|window| window == footer);
                if let Some(digit) = at.and_then(|at| code.get_mut(at.saturating_add(footer.len())))
                {
                    *digit = if *digit == b'0' { b'1' } else { b'0' };
                }
                machine::write(file, code).map(|()| cache.to_owned())
            },
        ),
        attack(
            "W-34g",
            "compiled code that belongs to somebody else is not used",
            &["another user"],
            |cache, file| match std::os::unix::fs::chown(file, Some(65_534), None) {
                Ok(()) => Ok(cache.to_owned()),
                Err(error) => Err(error),
            },
        ),
        Attack::host(
            "W-35",
            "replacing the compiled code of a running engine does not disturb it",
            |world, setting| {
                let (cache, name) = match copied_cache(world) {
                    Ok(found) => found,
                    Err(observed) => return observed,
                };
                let engine = match Engine::builder().cache_directory(&cache).build() {
                    Ok(engine) => engine,
                    Err(error) => return Observed::broken(error.to_string()),
                };
                let replaced = machine::write(&cache.join("new"), b"something else")
                    .and_then(|()| machine::rename(&cache.join("new"), &cache.join(&name)));
                if let Err(error) = replaced {
                    return Observed::broken(error.to_string());
                }
                match Sandbox::builder().engine(engine).limits(setting.limits.clone()).build() {
                    Ok(sandbox) => Observed::run(crate::harness::run_in(
                        &sandbox,
                        setting.limits.wall,
                        "import json, re, decimal; print(json.dumps(str(decimal.Decimal(1))))",
                    )),
                    Err(error) => Observed::broken(error.to_string()),
                }
            },
        )
        .control(
            Attempt::Host(Arc::new(|world, _| match copied_cache(world) {
                Ok((cache, _)) => verdict_on_cache(&cache),
                Err(observed) => observed,
            })),
            Expected::Harmless("used"),
        )
        .expect(
            Expected::Harmless("\"1\""),
            "files are replaced by renaming, and a mapped one stays as it was",
        ),
    ]
}

/// Starts `count` runs of `script`, cancels one of them, and counts kinds.
pub(super) fn cancel_one(sandbox: &Sandbox, count: usize, script: &Script) -> Observed {
    let victim = count / 3;
    let start = machine::now();
    let runs: Vec<_> = (0..count).map(|_| sandbox.run(script.clone())).collect();
    let Some(canceller) = runs.get(victim).map(fumehood::Run::canceller) else {
        return Observed::broken("no run");
    };
    let started = start.elapsed();
    std::thread::sleep(std::time::Duration::from_millis(200));
    canceller.cancel();
    let outcomes: Vec<_> = runs.into_iter().map(fumehood::Run::wait).collect();
    let completed = outcomes
        .iter()
        .filter(|outcome| {
            outcome.kind == OutcomeKind::Completed && outcome.stdout_text().trim() == "done"
        })
        .count();
    let cancelled: Vec<_> = outcomes
        .iter()
        .enumerate()
        .filter(|(_, outcome)| outcome.kind == OutcomeKind::Cancelled)
        .map(|(at, _)| at)
        .collect();
    let others = outcomes
        .iter()
        .find(|outcome| !matches!(outcome.kind, OutcomeKind::Completed | OutcomeKind::Cancelled));
    let other = others.map_or(String::new(), |outcome| format!(", one {:?}", outcome.kind));
    let right = cancelled == [victim];
    Observed::fact(format!("{completed} done, exactly the right one cancelled: {right}{other}"))
        .note(format!("{count} started in {:.0} ms", started.as_secs_f64() * 1000.0))
}

fn concurrency() -> Vec<Attack> {
    // Sleeps for a second and a half, then says that it is done.
    let sleeper = Program::new(
        "(i64.store %65536 %L7) (i64.store %65544 %L0) (i32.store %65552 %1)
         (i64.store %65560 %L3000000000) (i64.store %65568 %L0) (i64.store %65576 %L0)
         (call $must (call $poll_oneoff %65536 %131072 %1 %80)) (call $print @\"done\")",
    );
    let spinner = Program::new(
        "(call $must (call $clock_time_get %1 %L0 %65536))
         (loop $l (call $must (call $clock_time_get %1 %L0 %65544))
           (br_if $l (i64.lt_u (i64.sub (i64.load %65544) (i64.load %65536)) %L3000000000)))
         (call $print @\"done\")",
    );
    let attack = |id, property, program: Program, count: usize, expected| {
        let alone = program.clone();
        Attack::host(id, property, move |world, setting| {
            match world.program_sandbox(&program, setting) {
                Ok(sandbox) => cancel_one(&sandbox, count, &Script::new("")),
                Err(error) => Observed::broken(error),
            }
        })
        .with(Setting::default().wall_ms(60_000).limit(|limits| limits.broker.host_calls = 1 << 40))
        .control(Attempt::Module(alone), Expected::Harmless("done"))
        .about_memory()
        .expect(
            Expected::Harmless(expected),
            "a cancel flag belongs to one run, and the epoch callback asks for it alone",
        )
    };
    vec![
        attack(
            "W-37",
            "cancelling one of a thousand sandboxes ends exactly that one",
            sleeper,
            1000,
            "999 done, exactly the right one cancelled: true",
        ),
        attack(
            "W-37b",
            "cancelling one of two hundred spinning sandboxes ends exactly that one",
            spinner,
            200,
            "199 done, exactly the right one cancelled: true",
        ),
    ]
}

/// Every attack of this kind.
pub(super) fn all() -> Vec<Attack> {
    let mut all = interruption();
    all.extend(cache());
    all.extend(concurrency());
    all
}
