//! The same deterministic run twice is the same, wherever and whenever: its
//! digest proves it. What is not the same has another digest, or none.
//!
//! `tests/determinism/NAME.py` are cells, each about one way in which a run
//! could learn of its host; every one of them runs on two host directories
//! that hold the same files and have nothing else in common.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fumehood::{
    Determinism, Engine, Limits, Outcome, OutcomeKind, Progress, Sandbox, SandboxBuilder, Script,
};
use libtest_mimic::{Failed, Trial};
use serde_json::Value;

use crate::random_programs::{self, Program};
use crate::support::{
    cache_directory, command_binary, ending, read, root, run, sandbox, stems, tests,
};

type Checked = Result<(), Failed>;

/// All cases.
pub fn trials() -> Vec<Trial> {
    let case =
        |name: &str, check: fn() -> Checked| Trial::test(format!("deterministic::{name}"), check);
    let mut trials = vec![
        case("random_programs_are_the_same_twice", random_programs_are_the_same_twice),
        case("every_input_is_in_the_digest", every_input_is_in_the_digest),
        case("only_what_was_seen_of_a_directory_counts", only_what_was_seen_counts),
        case("a_run_that_a_clock_or_a_cancel_ended_has_no_digest", clocks_and_cancels),
        case("fuel_ends_a_run_and_is_reported", fuel_ends_a_run),
        case("other_runs_are_not_touched_by_the_mode", other_runs_are_not_touched),
        case("settings_out_of_range_are_refused", settings_out_of_range),
        case("the_command_has_the_digest_of_the_library", the_command),
    ];
    for name in stems(&tests("determinism"), "py") {
        trials.push(Trial::test(format!("deterministic::cell::{name}"), move || same_cell(&name)));
    }
    trials
}

/// Limits that no load of the machine reaches.
fn patient() -> Limits {
    let hour = Duration::from_secs(3600);
    Limits { wall: hour, cpu: hour, ..Limits::default() }
}

fn deterministic(settings: Determinism) -> SandboxBuilder {
    sandbox().limits(patient()).deterministic(settings)
}

fn seeded(seed: u64) -> Determinism {
    Determinism { seed, ..Determinism::default() }
}

fn digest(outcome: &Outcome) -> Result<&str, Failed> {
    match &outcome.digest {
        Some(digest) if digest.len() == 64 => Ok(digest),
        other => Err(format!("the digest is {other:?}: {}", ending(outcome)).into()),
    }
}

/// Two host directories with the same names, contents and links, and nothing
/// else in common.
struct Places {
    read: [tempfile::TempDir; 2],
    write: [tempfile::TempDir; 2],
    elsewhere: tempfile::TempDir,
}

/// Names and contents of what the guest sees at `/data`.
const FILES: [(&str, &str); 9] = [
    ("a.txt", "first"),
    ("B.txt", "second"),
    ("c", "third"),
    ("sub/x.csv", "1,2\n3,4\n"),
    ("sub/y.csv", "5,6\n"),
    ("sub/deep/z", "zzz"),
    ("\u{e9}.txt", "accent"),
    (".hidden", "hidden"),
    ("10", "ten"),
];

impl Places {
    fn new() -> std::io::Result<Self> {
        let both = |prefix: &str| -> std::io::Result<[tempfile::TempDir; 2]> {
            let make = |name: &str| tempfile::Builder::new().prefix(name).tempdir();
            Ok([make(prefix)?, make(&format!("another-{prefix}-with-a-longer-name"))?])
        };
        let elsewhere = tempfile::tempdir()?;
        let places = Self { read: both("data")?, write: both("out")?, elsewhere };
        let [first, second] = &places.read;
        fill(first.path(), FILES.iter().copied(), 1_000_000_000)?;
        // Files that came and went leave other inode numbers, other lengths of
        // the directory and another order in it.
        for number in 0..300 {
            std::fs::write(second.path().join(format!("gone-{number}")), "")?;
        }
        fill(second.path(), FILES.iter().rev().copied(), 1_600_000_000)?;
        for number in 0..300 {
            std::fs::remove_file(second.path().join(format!("gone-{number}")))?;
        }
        // A second name outside the mount.
        std::fs::hard_link(second.path().join("c"), places.elsewhere.path().join("c"))?;
        Ok(places)
    }

    fn mount(&self, which: usize, builder: SandboxBuilder) -> SandboxBuilder {
        builder
            .mount_read_only("/data", self.read[which].path())
            .mount_read_write("/out", self.write[which].path())
    }
}

fn fill<'f>(
    directory: &Path,
    files: impl Iterator<Item = (&'f str, &'f str)>,
    modified: u64,
) -> std::io::Result<()> {
    for (name, contents) in files {
        let path = directory.join(name);
        std::fs::create_dir_all(path.parent().unwrap_or(directory))?;
        std::fs::write(&path, contents)?;
        let time = UNIX_EPOCH + Duration::from_secs(modified);
        std::fs::File::options().write(true).open(&path)?.set_modified(time)?;
    }
    symlink("sub/x.csv", directory.join("link"))
}

/// Keeps every core busy until it is dropped.
struct Load {
    stop: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Load {
    fn new() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let spin = || {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })
        };
        let threads = (0..4).map(|_| spin()).collect();
        Self { stop, threads }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Runs on both places, the second time under load.
fn twice(script: &Script, settings: Determinism) -> Result<[Outcome; 2], Failed> {
    let places = Places::new()?;
    let first = run(places.mount(0, deterministic(settings)), script.clone())?;
    let _load = Load::new();
    let second = run(places.mount(1, deterministic(settings)), script.clone())?;
    Ok([first, second])
}

fn same(outcomes: &[Outcome; 2]) -> Checked {
    let [first, second] = outcomes;
    let visible = |outcome: &Outcome| {
        let mut json = outcome.to_json();
        for differs in ["usage", "session"] {
            json[differs] = Value::Null;
        }
        json
    };
    let (left, right) = (visible(first), visible(second));
    if left != right {
        return Err(format!("two runs differ:\n{left:#}\n{right:#}").into());
    }
    if first.usage.fuel != second.usage.fuel {
        let (left, right) = (first.usage.fuel, second.usage.fuel);
        return Err(format!("two runs used {left:?} and {right:?} fuel").into());
    }
    digest(first).map(drop)
}

fn same_cell(name: &str) -> Checked {
    let source = read(&tests("determinism").join(format!("{name}.py")));
    let outcomes = twice(&Script::cell(source).stdin("one\ntwo\n"), seeded(3))?;
    same(&outcomes)?;
    match outcomes[0].kind {
        OutcomeKind::Completed => Ok(()),
        _ => Err(ending(&outcomes[0]).into()),
    }
}

fn random_programs_are_the_same_twice() -> Checked {
    let full = std::env::var("FUMEHOOD_TEST_FULL").is_ok_and(|value| value == "1");
    let places = Places::new()?;
    random_programs::check(if full { 200 } else { 24 }, |program| {
        check_random(&places, program)
            .map_err(|failed| failed.message().unwrap_or("it differs").to_owned())
    })
    .map_err(Failed::from)
}

fn check_random(places: &Places, program: &Program) -> Checked {
    let go = |which: usize, seed| -> Result<Outcome, Failed> {
        for place in &places.write {
            for entry in std::fs::read_dir(place.path())? {
                std::fs::remove_file(entry?.path())?;
            }
        }
        let script = Script::cell(program.source.clone()).stdin("one\ntwo\n").args(["x"]);
        Ok(run(places.mount(which, deterministic(seeded(seed))), script)?)
    };
    let outcomes = [go(0, 1)?, go(1, 1)?];
    same(&outcomes)?;
    if program.draws {
        let other = go(0, 2)?;
        if other.stdout == outcomes[0].stdout || digest(&other)? == digest(&outcomes[0])? {
            return Err(format!("another seed gives the same: {}", other.stdout_text()).into());
        }
    }
    Ok(())
}

fn every_input_is_in_the_digest() -> Checked {
    let base = || Script::new("import sys; print('out')").stdin("in").args(["a"]);
    let of = |builder: SandboxBuilder, script: Script| -> Result<String, Failed> {
        digest(&run(builder, script)?).map(str::to_owned)
    };
    let plain = || deterministic(Determinism::default());
    let reference = of(plain(), base())?;
    let inputs = serde_json::json!({ "x": 1 });
    let empty = tempfile::tempdir()?;
    let settings = Determinism::default();
    let later = settings.time + Duration::from_nanos(1000);
    let less = Limits { memory_bytes: 300 << 20, ..patient() };
    let others = [
        ("code", of(plain(), Script::new("import sys; print('out') ").stdin("in").args(["a"]))?),
        ("mode", of(plain(), Script::cell("import sys; print('out')").stdin("in").args(["a"]))?),
        ("stdin", of(plain(), base().stdin("other"))?),
        ("argument", of(plain(), base().args(["b"]))?),
        ("filename", of(plain(), base().filename("<other>"))?),
        ("inputs", of(plain(), base().inputs(inputs.as_object().ok_or("no object")?))?),
        ("import path", of(plain(), base().import_from("/work"))?),
        ("environment", of(plain().env("A", "1"), base())?),
        ("policy", of(plain().mount_read_only("/m", empty.path()), base())?),
        ("memory", of(sandbox().limits(less).deterministic(settings), base())?),
        ("seed", of(deterministic(seeded(1)), base())?),
        ("time", of(deterministic(Determinism { time: later, ..settings }), base())?),
        ("fuel", of(deterministic(Determinism { fuel: settings.fuel - 1, ..settings }), base())?),
    ];
    if of(plain(), base())? != reference {
        return Err("the same run has another digest".into());
    }
    for (at, (name, digest)) in others.iter().enumerate() {
        if *digest == reference {
            return Err(format!("another {name} has the same digest").into());
        }
        if let Some((twin, _)) = others[..at].iter().find(|(_, other)| other == digest) {
            return Err(format!("another {name} has the digest of another {twin}").into());
        }
    }
    Ok(())
}

fn only_what_was_seen_counts() -> Checked {
    let place = tempfile::tempdir()?;
    let write = |name: &str, contents: &str| std::fs::write(place.path().join(name), contents);
    let of = |code: &str| -> Result<String, Failed> {
        let builder = deterministic(Determinism::default()).mount_read_only("/m", place.path());
        let outcome = run(builder, code)?;
        if outcome.kind != OutcomeKind::Completed {
            return Err(ending(&outcome).into());
        }
        digest(&outcome).map(str::to_owned)
    };
    let (reads, lists, sizes) = (
        "open('/m/a').read() and None",
        "import os; os.listdir('/m') and None",
        "import os; os.stat('/m/a') and None",
    );
    write("a", "seen")?;
    write("b", "not seen")?;
    let before = [of(reads)?, of(lists)?, of(sizes)?];
    write("b", "something else")?;
    assert_eq!([of(reads)?, of(lists)?, of(sizes)?], before, "a file that was not read counts");
    // As long as before: only the content differs.
    write("a", "SEEN")?;
    let content = [of(reads)?, of(lists)?, of(sizes)?];
    assert_ne!(content[0], before[0], "the content that was read does not count");
    assert_eq!(content[1..], before[1..], "the content that was not read counts");
    write("a", "longer")?;
    assert_ne!(of(sizes)?, before[2], "the size that was seen does not count");
    write("c", "new")?;
    assert_ne!(of(lists)?, before[1], "the names that were seen do not count");
    assert_eq!(of(sizes)?, of(sizes)?);
    Ok(())
}

fn clocks_and_cancels() -> Checked {
    let forever = Determinism { fuel: u64::MAX, ..Determinism::default() };
    let soon = |limits: Limits| sandbox().limits(limits).deterministic(forever);
    let short = Duration::from_millis(300);
    let wall = run(soon(Limits { wall: short, ..patient() }), "while True: pass")?;
    let cpu = run(soon(Limits { cpu: short, ..patient() }), "while True: pass")?;
    let sandbox = deterministic(forever).build()?;
    let running = sandbox.run("while True: pass");
    let canceller = running.canceller();
    std::thread::sleep(Duration::from_millis(100));
    canceller.cancel();
    let cancelled = running.wait();
    let kinds = [&wall, &cpu, &cancelled].map(|outcome| outcome.kind.as_str());
    assert_eq!(kinds, ["timeout", "timeout", "cancelled"]);
    for outcome in [wall, cpu, cancelled] {
        assert_eq!(outcome.digest, None, "{}", outcome.kind.as_str());
    }
    Ok(())
}

fn fuel_ends_a_run() -> Checked {
    let settings = Determinism { fuel: 300_000_000, ..Determinism::default() };
    let looping = || {
        run(
            deterministic(settings),
            "n = 0\nwhile True:\n    n += 1\n    if n % 1000 == 0: print(n)",
        )
    };
    let outcomes = [looping()?, looping()?];
    same(&outcomes)?;
    let outcome = &outcomes[0];
    assert_eq!((outcome.kind.as_str(), outcome.exit_code), ("fuel_exhausted", 123));
    assert_eq!(outcome.usage.fuel, Some(settings.fuel));
    assert!(outcome.stdout.starts_with(b"1000\n2000\n"), "{}", outcome.stdout_text());
    // Enough is enough, and costs the same each time.
    let used = |code: &str| -> Result<u64, Failed> {
        let outcome = run(deterministic(Determinism::default()), code)?;
        outcome.usage.fuel.ok_or_else(|| ending(&outcome).into())
    };
    let (few, many) = (used("sum(range(10))")?, used("sum(range(100_000))")?);
    assert!(few > 0 && many > few + 100_000, "{few} {many}");
    assert_eq!(used("sum(range(10))")?, few);
    Ok(())
}

/// Neither the result nor the cost: no other code is compiled or loaded.
fn other_runs_are_not_touched() -> Checked {
    let outcome = run(sandbox(), "1 + 1")?;
    assert_eq!((outcome.digest, outcome.usage.fuel), (None, None));
    assert!(!outcome.controls.iter().any(|name| name == "fuel_limit"));
    let outcome = run(deterministic(Determinism::default()), "1 + 1")?;
    assert!(outcome.controls.iter().any(|name| name == "fuel_limit"));

    // A cache with the code of plain runs alone.
    let Some((_, plain)) = fumehood::cache_location(false)? else {
        return Err("there is no cache".into());
    };
    let own = tempfile::tempdir()?;
    let cache = own.path().join("cache");
    std::fs::DirBuilder::new().create(&cache)?;
    let mode = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode;
    std::fs::set_permissions(&cache, mode(0o700))?;
    std::fs::copy(cache_directory().join(&plain), cache.join(&plain))?;
    std::fs::set_permissions(cache.join(&plain), mode(0o600))?;
    let compiled = Arc::new(AtomicBool::new(false));
    let heard = Arc::clone(&compiled);
    let engine = Engine::builder()
        .cache_directory(&cache)
        .on_progress(move |progress| {
            if progress == Progress::Compiling {
                heard.store(true, Ordering::Relaxed);
            }
        })
        .build()?;
    let outcome = run(Sandbox::builder().engine(engine), "1 + 1")?;
    assert_eq!(outcome.result.repr.as_deref(), Some("2"));
    assert!(!compiled.load(Ordering::Relaxed), "a plain run compiled something");
    assert_eq!(std::fs::read_dir(&cache)?.count(), 1);
    Ok(())
}

fn settings_out_of_range() -> Checked {
    let settings = Determinism::default();
    for (settings, named) in [
        (Determinism { fuel: 0, ..settings }, "fuel"),
        (Determinism { time: UNIX_EPOCH - Duration::from_secs(1), ..settings }, "time"),
        (
            Determinism { time: SystemTime::UNIX_EPOCH + Duration::from_secs(8 << 30), ..settings },
            "time",
        ),
    ] {
        match sandbox().deterministic(settings).build() {
            Ok(_) => return Err(format!("{settings:?} was accepted").into()),
            Err(error) => assert!(error.to_string().contains(named), "{error}"),
        }
    }
    Ok(())
}

/// In another directory, with another environment, under load, through the
/// command: the same run has the same digest.
fn the_command() -> Checked {
    const CODE: &str = "import random, uuid, time, os\nprint(random.random(), uuid.uuid4(), time.time(), sorted(os.environ), os.getcwd())";
    let places = Places::new()?;
    let go = |which: usize, options: &[&str]| -> Result<Value, Failed> {
        let mount = format!("/data={}", places.read[which].path().display());
        let mut command = Command::new(command_binary()?);
        command.args(["run", "--json", "-c", CODE, "--timeout", "3600", "--mount", &mount]);
        command.args(options).env("FUMEHOOD_CACHE_DIR", cache_directory());
        match which {
            0 => command.current_dir(root()),
            _ => command
                .current_dir(places.write[1].path())
                .env("TZ", "Asia/Tokyo")
                .env("USER", "someone-else")
                .env("LANG", "tr_TR.UTF-8")
                .env("HOME", places.write[1].path()),
        };
        let output = command.output()?;
        let error = String::from_utf8_lossy(&output.stderr);
        serde_json::from_slice(&output.stdout).map_err(|_| format!("no JSON: {error}").into())
    };
    let options = [
        "--deterministic",
        "--seed",
        "9",
        "--time",
        "2030-02-03T04:05:06Z",
        "--fuel",
        "9000000000",
    ];
    let first = go(0, &options)?;
    let second = {
        let _load = Load::new();
        go(1, &options)?
    };
    assert!(first["digest"].is_string(), "{first:#}");
    assert_eq!(first["digest"], second["digest"], "{first:#}\n{second:#}");
    assert_eq!(first["stdout"], second["stdout"]);
    assert!(first["usage"]["fuel"].is_u64(), "{first:#}");
    assert_eq!(go(0, &[])?["digest"], Value::Null);
    let settings = Determinism {
        seed: 9,
        time: UNIX_EPOCH + Duration::from_secs(1_896_321_906),
        fuel: 9_000_000_000,
    };
    let script = Script::new(CODE).filename("<string>").import_from("/work");
    let builder = deterministic(settings).mount_read_only("/data", places.read[0].path());
    assert_eq!(
        first["digest"],
        Value::from(digest(&run(builder, script)?)?),
        "the library differs"
    );
    // The options of the mode need the mode.
    for option in [["--seed", "1"], ["--time", "2030-02-03T04:05:06Z"], ["--fuel", "1"]] {
        let output =
            Command::new(command_binary()?).args(["run", "-c", "1"]).args(option).output()?;
        assert_eq!(output.status.code(), Some(64), "{option:?}");
    }
    Ok(())
}
