//! `cargo xtask test`: everything that this machine allows, and a word on what
//! it did not.
//!
//! Invariant: with `CI=true` a program that tests need and that is missing is a
//! failure; without it, it leaves a line that names the command to get it. The
//! dependency check runs where `cargo deny` is installed.

use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, bail};

/// One part of the test run.
struct Step {
    name: &'static str,
    /// Arguments after `cargo`.
    cargo: &'static [&'static str],
    /// What must be there first.
    needs: Option<Tool>,
    /// Only with `--full`.
    slow: bool,
}

/// A program that is not part of the Rust toolchain.
#[derive(Clone, Copy)]
struct Tool {
    /// Arguments that succeed where it is installed.
    probe: &'static [&'static str],
    /// The command that installs it.
    install: &'static [&'static str],
}

const DENY: Tool = Tool {
    probe: &["cargo", "deny", "--version"],
    install: &["cargo", "install", "cargo-deny", "--locked"],
};

/// The programs of the host that some tests start; Debian's package names.
const PACKAGES: &[(&str, &str)] =
    &[("setpriv", "util-linux"), ("unshare", "util-linux"), ("python3", "python3")];

const STEPS: &[Step] = &[
    Step { name: "format", cargo: &["fmt", "--all", "--check"], needs: None, slow: false },
    Step { name: "binary", cargo: &["build", "--release", "--bins"], needs: None, slow: false },
    Step {
        name: "tests",
        cargo: &["test", "--release", "--workspace", "--no-fail-fast"],
        needs: None,
        slow: false,
    },
    Step {
        name: "lints",
        cargo: &[
            "clippy",
            "--release",
            "--workspace",
            "--all-targets",
            "--quiet",
            "--",
            "--deny",
            "warnings",
        ],
        needs: None,
        slow: true,
    },
    Step {
        name: "documentation",
        cargo: &["doc", "--release", "--workspace", "--no-deps", "--quiet"],
        needs: None,
        slow: true,
    },
    Step {
        name: "dependencies",
        cargo: &["deny", "--offline", "check", "bans", "licenses", "sources"],
        needs: Some(DENY),
        slow: true,
    },
];

/// Runs the steps; the answer is whether all of them passed.
///
/// # Errors
/// When an argument is unknown or a step cannot be started.
pub(crate) fn run(args: &[String]) -> anyhow::Result<bool> {
    let full = match args {
        [] => false,
        [flag] if flag == "--full" => true,
        _ => bail!("`cargo xtask test` takes --full and nothing else"),
    };
    let in_ci = std::env::var_os("CI").is_some_and(|value| value == "true");
    let mut failed = Vec::new();
    let mut left_out = Vec::new();
    let mut passed = 0_u32;
    for command in missing_packages() {
        if in_ci {
            bail!("`{}` is missing; CI installs it before the tests", command.0);
        }
        left_out.push(format!("tests that need `{}`: apt-get install {}", command.0, command.1));
    }
    eprintln!("== tidy");
    let tidy = super::tidy::run()?;
    if tidy {
        passed += 1
    } else {
        failed.push("tidy")
    }
    for step in STEPS {
        if step.slow && !full {
            left_out.push(format!("{}: cargo xtask test --full", step.name));
            continue;
        }
        if let Some(tool) = step.needs
            && !succeeds(tool.probe)
        {
            left_out.push(format!("{}: {}", step.name, tool.install.join(" ")));
            continue;
        }
        eprintln!("== {}", step.name);
        let start = Instant::now();
        let status = Command::new("cargo")
            .args(step.cargo)
            .current_dir(super::root())
            .env("FUMEHOOD_TEST_FULL", if full { "1" } else { "0" })
            .env("RUSTDOCFLAGS", "--deny warnings")
            .status()
            .with_context(|| format!("cannot start cargo for {}", step.name))?;
        eprintln!("== {} took {:.0} s", step.name, start.elapsed().as_secs_f64());
        if status.success() { passed += 1 } else { failed.push(step.name) }
    }
    summarise(passed, &failed, &left_out);
    Ok(failed.is_empty())
}

fn summarise(passed: u32, failed: &[&str], left_out: &[String]) {
    if !left_out.is_empty() {
        println!("Not run here, and the command that runs it:");
        for line in left_out {
            println!("  {line}");
        }
    }
    for name in failed {
        println!("Failed: {name}");
    }
    println!("steps: {passed} passed, {} failed", failed.len());
}

fn missing_packages() -> impl Iterator<Item = &'static (&'static str, &'static str)> {
    PACKAGES.iter().filter(|(program, _)| !succeeds(&[program, "--version"]))
}

fn succeeds(command: &[&str]) -> bool {
    let Some((program, args)) = command.split_first() else { return false };
    Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .current_dir(super::root())
        .status()
        .is_ok_and(|status| status.success())
}
