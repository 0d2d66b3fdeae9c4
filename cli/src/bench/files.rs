//! `bench files`: reading a mount against the native Python, and a large
//! project: starting on it in each strategy, and bringing changes back.
#![allow(clippy::disallowed_methods, reason = "this module makes the files that it measures")]

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fumehood::native::NativeSession;
use fumehood::policy::{BudgetPreset, BudgetSettings};
use fumehood::project::{Project, SyncMode, SyncOptions};
use fumehood::records::Home;
use fumehood::{Engine, Sandbox, Script};
use fumehood_native_tiers::TierName;
use serde_json::json;

use super::clock::Stopwatch;
use super::{check, median, milliseconds, native, show};
use crate::args::BenchCommon;
use crate::error::CliError;
use crate::native::{TierArgs, allowed};
use crate::progress;

/// Files that are read one by one.
const SMALL_FILES: u32 = 2000;
/// Bytes of each.
const SMALL_BYTES: usize = 2000;
/// Bytes of the file that is streamed, in pieces of a MiB.
const LARGE_MIB: usize = 500;
/// Files of the project.
const PROJECT_FILES: u32 = 50_000;
/// Files of one of its directories.
const PER_DIRECTORY: u32 = 100;
/// Files that are changed before a sync.
const CHANGED_FILES: u32 = 100;
/// Longest that one program may take.
const PATIENCE: Duration = Duration::from_secs(600);

/// Prints the seconds of both, by the program's own clock.
const PROGRAM: &str = "
import time
start = time.perf_counter()
total = 0
for n in range(SMALL):
    with open(f'{ROOT}/small/{n}.txt') as file:
        total += len(file.read())
small = time.perf_counter() - start
start = time.perf_counter()
with open(f'{ROOT}/large.bin', 'rb') as file:
    while piece := file.read(1 << 20):
        total += len(piece)
large = time.perf_counter() - start
print('RESULT', total, small, large)
";

fn failed(error: &dyn std::fmt::Display) -> CliError {
    CliError::cannot_tell(format!(
        "the bench cannot use temporary files ({error}); set TMPDIR to a directory with 1 GiB of space"
    ))
}

pub(super) fn run(rounds: u32, python: &Path, common: &BenchCommon) -> Result<i32, CliError> {
    let place = tempfile::tempdir().map_err(|error| failed(&error))?;
    prepare(place.path()).map_err(|error| failed(&error))?;
    let engine = progress::engine(common.compiled.as_deref()).build()?;
    let read = reading(rounds, python, place.path(), &engine)?;
    let work = projects(rounds, place.path(), &engine)?;
    let native = in_tiers(rounds, place.path())?;
    show(
        common.json,
        &json!({
            "bench": "files",
            "small_files_ratio": read.small,
            "stream_ratio": read.large,
            "start_ms": work.start,
            "start_empty_ms": work.start_empty,
            "sync_ms": work.sync,
            "kernel_start_ms": native.kernel,
            "kernel_start_empty_ms": native.empty,
            "materialised_start_ms": native.copied,
            "rounds": rounds,
            "small_files": SMALL_FILES,
            "stream_mib": LARGE_MIB,
            "project_files": PROJECT_FILES,
            "changed_files": CHANGED_FILES,
        }),
        &format!(
            "{SMALL_FILES} small files from a mount    {:.2} times native Python\n{LARGE_MIB} MiB \
             from a mount              {:.2} times native Python\na run on {PROJECT_FILES} files \
             \u{20}          {:.1} ms ({:.1} ms without a project)\nbringing {CHANGED_FILES} changed \
             files back   {:.1} ms\na command on them, overlay         {}\n\
             a command on them, copied          {}   (medians of {rounds})\n",
            read.small,
            read.large,
            work.start,
            work.start_empty,
            work.sync,
            told(native.kernel, native.empty),
            told(native.copied, native.empty),
        ),
    );
    Ok(0)
}

/// A figure that this machine may not have.
fn told(figure: Option<f64>, empty: Option<f64>) -> String {
    match (figure, empty) {
        (Some(ms), Some(empty)) => format!("{ms:.1} ms ({empty:.1} ms without a project)"),
        _ => "not here: `fumehood doctor` says why".to_owned(),
    }
}

fn prepare(root: &Path) -> io::Result<()> {
    fs::create_dir(root.join("small"))?;
    for number in 0..SMALL_FILES {
        fs::write(root.join(format!("small/{number}.txt")), "x".repeat(SMALL_BYTES))?;
    }
    let mut large = File::create(root.join("large.bin"))?;
    let piece = vec![7; 1 << 20];
    (0..LARGE_MIB).try_for_each(|_| large.write_all(&piece))?;
    for number in 0..PROJECT_FILES {
        let directory = root.join(format!("project/{}", number / PER_DIRECTORY));
        if number % PER_DIRECTORY == 0 {
            fs::create_dir_all(&directory)?;
        }
        fs::write(directory.join(format!("{number}.py")), format!("x = {number}\n"))?;
    }
    Ok(())
}

fn budget() -> BudgetSettings {
    BudgetSettings {
        cpu_ms: Some(u64::try_from(PATIENCE.as_millis()).unwrap_or(u64::MAX)),
        read_bytes: Some(1 << 40),
        ..BudgetPreset::Large.into()
    }
}

struct Reading {
    small: f64,
    large: f64,
}

/// Seconds of both from a program's last line.
fn seconds(text: &str) -> Option<(f64, f64)> {
    let mut words = text.lines().last()?.strip_prefix("RESULT ")?.split(' ').skip(1);
    Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
}

/// Both sides in turn; the first round warms up.
fn reading(rounds: u32, python: &Path, root: &Path, engine: &Engine) -> Result<Reading, CliError> {
    let none = || CliError::cannot_tell("a program of the bench gave no figures; run it again");
    let program = |at: &str| format!("SMALL, ROOT = {SMALL_FILES}, {at:?}\n{PROGRAM}");
    let outside = root.join("program.py");
    fs::write(&outside, program(&root.to_string_lossy())).map_err(|error| failed(&error))?;
    let (mut small, mut large) = (Vec::new(), Vec::new());
    for _ in 0..=rounds {
        let theirs = seconds(&native::run(python, &outside)?).ok_or_else(none)?;
        let sandbox = Sandbox::builder()
            .engine(engine.clone())
            .budget(budget())
            .timeout(PATIENCE)
            .mount_read_only("/m", root)
            .build()?;
        let outcome = sandbox.run(Script::new(program("/m"))).wait();
        check(&outcome)?;
        let ours = seconds(&outcome.stdout_text()).ok_or_else(none)?;
        small.push(ours.0 / theirs.0);
        large.push(ours.1 / theirs.1);
    }
    Ok(Reading { small: median(small.split_off(1)), large: median(large.split_off(1)) })
}

struct Work {
    start: f64,
    start_empty: f64,
    sync: f64,
}

fn projects(rounds: u32, root: &Path, engine: &Engine) -> Result<Work, CliError> {
    let home = Home::open(&root.join("home"), true).map_err(|error| failed(&error.detail()))?;
    let home = Arc::new(home);
    let builder = || Sandbox::builder().engine(engine.clone()).budget(budget()).timeout(PATIENCE);
    let (mut start, mut start_empty, mut sync) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=rounds {
        let clock = Stopwatch::start();
        check(&builder().build()?.run(Script::new("pass")).wait())?;
        start_empty.push(milliseconds(clock.elapsed()));
        let project = Project::new(root.join("project"), Arc::clone(&home));
        let clock = Stopwatch::start();
        let sandbox = builder().project(project.sync(SyncMode::OnDemand)).build()?;
        check(&sandbox.run(Script::new("pass")).wait())?;
        start.push(milliseconds(clock.elapsed()));
        let step = PROJECT_FILES / CHANGED_FILES;
        let code = format!(
            "for n in range(0, {PROJECT_FILES}, {step}):\n    with open(f'{{n // {PER_DIRECTORY}}}/{{n}}.py', 'w') as file:\n        file.write(f'x = {{n}} + {round}\\n')"
        );
        check(&sandbox.run(Script::new(code)).wait())?;
        let attached = sandbox.project().ok_or_else(|| failed(&"there is no project"))?;
        let clock = Stopwatch::start();
        let report = attached.sync(&SyncOptions::default());
        sync.push(milliseconds(clock.elapsed()));
        let report = report.map_err(|error| failed(&error))?;
        if report.is_none_or(|report| report.updated.count() != u64::from(CHANGED_FILES)) {
            return Err(failed(&"not every change was brought back"));
        }
    }
    let after_first = |mut values: Vec<f64>| median(values.split_off(1));
    Ok(Work {
        start: after_first(start),
        start_empty: after_first(start_empty),
        sync: after_first(sync),
    })
}

/// Milliseconds of a command that does nothing, from the sandbox's making to the
/// command's end; none where this machine has not that strategy.
#[derive(Default)]
struct InTiers {
    empty: Option<f64>,
    kernel: Option<f64>,
    copied: Option<f64>,
}

fn in_tiers(rounds: u32, root: &Path) -> Result<InTiers, CliError> {
    let tier = |name| {
        let tier = TierArgs { tier: Some(name), image: None, helper: None };
        tier.prepared().ok()
    };
    let home = Home::open(&root.join("home"), true).map_err(|error| failed(&error.detail()))?;
    let home = Arc::new(home);
    let mut figures = InTiers::default();
    let strategies = [
        (TierName::Landlock, None, &mut figures.empty),
        (TierName::Landlock, Some("kernel"), &mut figures.kernel),
        (TierName::Process, Some("materialised"), &mut figures.copied),
    ];
    for (name, strategy, figure) in strategies {
        let Some(tier) = tier(name) else { continue };
        let mut all = Vec::new();
        for _ in 0..=rounds {
            let clock = Stopwatch::start();
            let mut sandbox = Sandbox::builder().policy(allowed()?).timeout(PATIENCE);
            if strategy.is_some() {
                let project = Project::new(root.join("project"), Arc::clone(&home));
                sandbox = sandbox.project(project.sync(SyncMode::OnDemand));
            }
            let sandbox = sandbox.native_only(NativeSession::new(Arc::clone(&tier))).build()?;
            let outcome = sandbox.run_command("true", Vec::new(), None).wait();
            check(&outcome)?;
            // A machine without overlays copies in this tier too.
            if outcome.project.as_ref().map(|project| project.strategy) == strategy {
                all.push(milliseconds(clock.elapsed()));
            }
        }
        if all.len() > 1 {
            *figure = Some(median(all.split_off(1)));
        }
    }
    Ok(figures)
}
