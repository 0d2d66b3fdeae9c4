//! `cargo xtask fuzz`: runs the fuzzers of `fuzz/`, two at a time.
//!
//! Invariant: the committed corpora are only read; what a run finds worth
//! keeping is in `fuzz/work`, and what breaks a target in `fuzz/artifacts`.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::PoisonError;

use anyhow::{Context, bail};

const USAGE: &str = "usage: cargo xtask fuzz [--seconds N] [TARGET]...";
/// How many run beside each other.
const AT_A_TIME: usize = 2;
/// How long each target runs unless it is said otherwise, in seconds.
const SECONDS: u32 = 600;

/// Runs the named fuzzers, or all; the answer is whether none found anything.
///
/// # Errors
/// When an argument is unknown, or cargo-fuzz or its compiler is missing.
pub(crate) fn run(args: &[String]) -> anyhow::Result<bool> {
    let root = super::root();
    let all = targets(&root)?;
    let mut seconds = SECONDS;
    let mut wanted = Vec::new();
    let mut args = args.iter();
    while let Some(argument) = args.next() {
        if argument == "--seconds" {
            seconds = args.next().and_then(|number| number.parse().ok()).context(USAGE)?;
        } else if all.contains(argument) {
            wanted.push(argument.clone());
        } else {
            bail!("{USAGE}; the targets are {}", all.join(", "));
        }
    }
    if wanted.is_empty() {
        wanted = all;
    }
    let built = fuzz(&root).arg("build").status();
    if !built.is_ok_and(|status| status.success()) {
        bail!(
            "the fuzzers were not built; they need `cargo install cargo-fuzz --locked` and \
             `rustup toolchain install nightly`"
        );
    }
    wanted.reverse();
    let waiting = Mutex::new(wanted);
    let broken = Mutex::new(Vec::new());
    let work = || {
        loop {
            let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let Some(name) = next else { return Ok(()) };
            if !one(&root, &name, seconds)? {
                broken.lock().unwrap_or_else(PoisonError::into_inner).push(name);
            }
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_A_TIME).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| match worker.join() {
            Ok(done) => done,
            Err(_) => bail!("a fuzzer's thread failed"),
        })
    })?;
    let broken = broken.into_inner().unwrap_or_else(PoisonError::into_inner);
    for name in &broken {
        println!(
            "{name}: found something; fuzz/work/{name}.log has it, its input is in fuzz/artifacts"
        );
    }
    Ok(broken.is_empty())
}

fn targets(root: &Path) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(root.join("fuzz/fuzz_targets"))? {
        let path = entry?.path();
        names.extend(path.file_stem().and_then(|stem| stem.to_str()).map(str::to_owned));
    }
    names.sort();
    Ok(names)
}

fn fuzz(root: &Path) -> Command {
    let mut command = Command::new("cargo");
    command.args(["+nightly", "fuzz"]).current_dir(root).stdin(Stdio::null());
    command
}

/// Runs one fuzzer; the answer is whether it found nothing.
fn one(root: &Path, name: &str, seconds: u32) -> anyhow::Result<bool> {
    let found = root.join("fuzz/work").join(name);
    std::fs::create_dir_all(&found)?;
    let log = File::create(root.join(format!("fuzz/work/{name}.log")))?;
    println!("{name}: {seconds} s");
    let status = fuzz(root)
        .args(["run", name])
        .arg(&found)
        .arg(root.join("fuzz/corpus").join(name))
        .args(["--", "-timeout=20", "-rss_limit_mb=2048", "-max_len=8192", "-print_final_stats=1"])
        .arg(format!("-max_total_time={seconds}"))
        .stdout(log.try_clone()?)
        .stderr(log)
        .status()
        .context("cannot start cargo")?;
    Ok(status.success())
}
