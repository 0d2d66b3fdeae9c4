//! `cargo xtask test`: everything that this machine allows, and a word on what
//! it did not.
//!
//! Invariant: with `CI=true` a program that tests need and that is missing is
//! installed, and one that cannot be is a failure; without it, it leaves a line
//! that names the command to get it. Only what the network does not give (the
//! list of advisories) may be left out in CI too, and is said to be.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, bail};

/// One part of the test run.
struct Step {
    name: &'static str,
    /// Arguments after `cargo`.
    cargo: &'static [&'static str],
    /// What must be there first.
    needs: &'static [Need],
    /// Only with `--full`.
    slow: bool,
}

/// What a step cannot do without.
enum Need {
    /// A program that is not part of the Rust toolchain.
    Tool {
        /// Arguments that succeed where it is installed.
        probe: &'static [&'static str],
        /// The command that installs it.
        install: &'static [&'static str],
    },
    /// Something from outside that may be out of reach.
    Fetched {
        /// The command that gets it.
        fetch: &'static [&'static str],
        /// What to do where it fails.
        otherwise: &'static str,
    },
}

const DENY: Need = Need::Tool {
    probe: &["cargo", "deny", "--version"],
    install: &["cargo", "install", "cargo-deny", "--version", "0.20.2", "--locked"],
};

const ADVISORIES: Need = Need::Fetched {
    fetch: &["cargo", "deny", "fetch", "db"],
    otherwise: "its database cannot be fetched from here; run `cargo deny check advisories` \
                where it can",
};

/// The programs of the host that some tests start; Debian's package names.
const PACKAGES: &[(&str, &str)] =
    &[("setpriv", "util-linux"), ("unshare", "util-linux"), ("python3", "python3")];

const STEPS: &[Step] = &[
    Step { name: "format", cargo: &["fmt", "--all", "--check"], needs: &[], slow: false },
    Step { name: "binary", cargo: &["build", "--release", "--bins"], needs: &[], slow: false },
    Step {
        name: "tests",
        cargo: &["test", "--release", "--workspace", "--no-fail-fast"],
        needs: &[],
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
        needs: &[],
        slow: true,
    },
    Step {
        name: "documentation",
        cargo: &["doc", "--release", "--workspace", "--no-deps", "--quiet"],
        needs: &[],
        slow: true,
    },
    Step {
        name: "dependencies",
        cargo: &["deny", "--locked", "check", "bans", "licenses", "sources"],
        needs: &[DENY],
        slow: true,
    },
    Step {
        name: "dependencies of the guest",
        cargo: &[
            "deny",
            "--locked",
            "--config",
            "deny.toml",
            "--manifest-path",
            "guest/Cargo.toml",
            "check",
            "bans",
            "licenses",
            "sources",
        ],
        needs: &[DENY],
        slow: true,
    },
    Step {
        name: "advisories",
        cargo: &["deny", "--offline", "check", "advisories"],
        needs: &[DENY, ADVISORIES],
        slow: true,
    },
    Step {
        name: "advisories of the guest",
        cargo: &[
            "deny",
            "--offline",
            "--config",
            "deny.toml",
            "--manifest-path",
            "guest/Cargo.toml",
            "check",
            "advisories",
        ],
        needs: &[DENY, ADVISORIES],
        slow: true,
    },
];

/// Runs the steps; the answer is whether all of them passed.
///
/// # Errors
/// When an argument is unknown, a step cannot be started, or something is
/// missing in CI and cannot be installed.
pub(crate) fn run(args: &[String]) -> anyhow::Result<bool> {
    let full = match args {
        [] => false,
        [flag] if flag == "--full" => true,
        _ => bail!("`cargo xtask test` takes --full and nothing else"),
    };
    let in_ci = std::env::var_os("CI").is_some_and(|value| value == "true");
    let mut left_out = packages(in_ci)?;
    let mut failed = Vec::new();
    let mut passed = 0_u32;
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
        if let Some(missing) = unmet(step, in_ci)? {
            eprintln!("== {} NOT RUN: {missing}", step.name);
            left_out.push(format!("{}: {missing}", step.name));
            continue;
        }
        eprintln!("== {}", step.name);
        let start = Instant::now();
        let status = command("cargo")
            .args(step.cargo)
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

/// What a step lacks; in CI its tools are installed instead.
fn unmet(step: &Step, in_ci: bool) -> anyhow::Result<Option<String>> {
    for need in step.needs {
        match need {
            Need::Tool { probe, .. } if succeeds(probe) => {}
            Need::Tool { install, .. } if !in_ci => return Ok(Some(install.join(" "))),
            Need::Tool { probe, install } => {
                // Beside the build, so that nothing of the user's is changed.
                let root = super::root().join("target/tools");
                let start = Instant::now();
                must_succeed(command_of(install)?.arg("--root").arg(root), &install.join(" "))?;
                eprintln!("== {} took {:.0} s", install.join(" "), start.elapsed().as_secs_f64());
                if !succeeds(probe) {
                    bail!("`{}` does not work after it was installed", probe.join(" "));
                }
            }
            Need::Fetched { fetch, otherwise } => {
                if !succeeds(fetch) {
                    return Ok(Some((*otherwise).to_owned()));
                }
            }
        }
    }
    Ok(None)
}

/// The lines for tests whose programs are missing; in CI they are installed.
fn packages(in_ci: bool) -> anyhow::Result<Vec<String>> {
    let missing = || PACKAGES.iter().filter(|(program, _)| !succeeds(&[program, "--version"]));
    if in_ci && missing().next().is_some() {
        let mut wanted: Vec<_> = missing().map(|(_, package)| *package).collect();
        wanted.dedup();
        must_succeed(command("apt-get").args(["update", "-qq"]), "apt-get update")?;
        let mut install = command("apt-get");
        install.args(["install", "-y", "-qq"]).args(&wanted);
        must_succeed(
            install.env("DEBIAN_FRONTEND", "noninteractive"),
            &format!("apt-get install {}", wanted.join(" ")),
        )?;
        if let Some((program, package)) = missing().next() {
            bail!("`{program}` is missing although {package} is installed");
        }
    }
    Ok(missing()
        .map(|(program, package)| format!("tests that need `{program}`: apt-get install {package}"))
        .collect())
}

/// A command in the root of the repository that finds the tools installed by
/// a run in CI.
fn command(program: &str) -> Command {
    let tools = super::root().join("target/tools/bin");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places: Vec<PathBuf> = std::env::split_paths(&path).chain([tools]).collect();
    let mut command = Command::new(program);
    command.current_dir(super::root());
    if let Ok(joined) = std::env::join_paths(places) {
        command.env("PATH", joined);
    }
    command
}

fn command_of(words: &[&str]) -> anyhow::Result<Command> {
    let (program, args) = words.split_first().context("an empty command")?;
    let mut command = command(program);
    command.args(args);
    Ok(command)
}

fn must_succeed(command: &mut Command, shown: &str) -> anyhow::Result<()> {
    let status = command.status().with_context(|| format!("cannot start `{shown}`"))?;
    if !status.success() {
        bail!("`{shown}` failed, and CI needs what it installs");
    }
    Ok(())
}

fn succeeds(words: &[&str]) -> bool {
    let Ok(mut command) = command_of(words) else { return false };
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}
