//! `cargo xtask test`: everything that this machine allows, and a word on what
//! it did not.
//!
//! Invariant: with `CI=true` a program that tests need and that is missing is
//! installed, and one that cannot be is a failure; without it, it leaves a line
//! that names the command to get it. Only what the network does not give (the
//! list of advisories) may be left out in CI too, and is said to be.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, bail};

use crate::engine::Engine;
use crate::reports::Reports;

/// One part of the test run.
struct Step {
    name: &'static str,
    /// Arguments after `cargo`.
    cargo: &'static [&'static str],
    /// What must be there first.
    needs: &'static [Need],
    /// Only with `--full`.
    slow: bool,
    /// With the few attempts of every day, also with `--full`.
    few: bool,
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

/// Something of the host's system that some tests use.
struct Package {
    shows: Shows,
    /// Debian's name.
    name: &'static str,
    /// Only with `--full`.
    slow: bool,
}

/// What a package is recognised by.
enum Shows {
    /// A program that answers `--version`.
    Program(&'static str),
    /// A file.
    File(&'static str),
}

impl Package {
    const fn program(program: &'static str, name: &'static str) -> Self {
        Self { shows: Shows::Program(program), name, slow: false }
    }

    const fn slow(self) -> Self {
        Self { slow: true, ..self }
    }

    fn is_there(&self) -> bool {
        match self.shows {
            Shows::Program(program) => succeeds(&[program, "--version"]),
            Shows::File(path) => Path::new(path).is_file(),
        }
    }

    fn shown(&self) -> &'static str {
        match self.shows {
            Shows::Program(shown) | Shows::File(shown) => shown,
        }
    }
}

const PACKAGES: &[Package] = &[
    Package::program("setpriv", "util-linux"),
    Package::program("unshare", "util-linux"),
    Package::program("python3", "python3"),
    Package {
        shows: Shows::File("/usr/lib/python3.11/test/test_json/__init__.py"),
        name: "libpython3.11-testsuite",
        slow: false,
    },
    Package::program("bwrap", "bubblewrap").slow(),
    Package::program("dockerd", "docker.io").slow(),
];

/// Cargo features that a default build lacks and that are tested all the same.
const EXTRA: &str = "fumehood-cli/otlp";

const STEPS: &[Step] = &[
    Step {
        name: "format",
        cargo: &["fmt", "--all", "--check"],
        needs: &[],
        slow: false,
        few: false,
    },
    Step {
        name: "binary",
        cargo: &["build", "--release", "--bins", "--features", EXTRA],
        needs: &[],
        slow: false,
        few: false,
    },
    // The tests after it build the command without the feature again.
    Step {
        name: "eval attacks",
        cargo: &[
            "run",
            "--release",
            "--bin",
            "fumehood",
            "--features",
            "fumehood-cli/eval",
            "--",
            "eval",
            "attacks",
            "--tier",
            "landlock",
        ],
        needs: &[],
        slow: true,
        few: false,
    },
    Step {
        name: "tests",
        cargo: &["test", "--release", "--workspace", "--no-fail-fast", "--features", EXTRA],
        needs: &[],
        slow: false,
        few: false,
    },
    Step {
        name: "the helper without defences",
        cargo: &[
            "build",
            "--release",
            "--workspace",
            "--features",
            WEAKEN,
            "--bin",
            "fumehood-helper-weakened",
        ],
        needs: &[],
        slow: true,
        few: false,
    },
    Step {
        name: "defences left out",
        cargo: &["test", "--release", "--workspace", "--features", WEAKEN, "--test", "weaken"],
        needs: &[],
        slow: true,
        few: true,
    },
    Step {
        name: "lints",
        cargo: &[
            "clippy",
            "--release",
            "--workspace",
            "--all-targets",
            "--features",
            EXTRA,
            "--quiet",
            "--",
            "--deny",
            "warnings",
        ],
        needs: &[],
        slow: true,
        few: false,
    },
    Step {
        name: "documentation",
        cargo: &["doc", "--release", "--workspace", "--no-deps", "--quiet"],
        needs: &[],
        slow: true,
        few: false,
    },
    Step {
        name: "dependencies",
        cargo: &["deny", "--locked", "check", "bans", "licenses", "sources"],
        needs: &[DENY],
        slow: true,
        few: false,
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
        few: false,
    },
    Step {
        name: "advisories",
        cargo: &["deny", "--offline", "check", "advisories"],
        needs: &[DENY, ADVISORIES],
        slow: true,
        few: false,
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
        few: false,
    },
];

/// The helper and the attacks of a build whose defences can be left out.
const WEAKEN: &str = "fumehood-tests/weaken";

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
    let mut left_out = packages(in_ci, full)?;
    let mut failed = Vec::new();
    let mut passed = 0_u32;
    let mut reports = Reports::default();
    eprintln!("== tidy");
    let tidy = super::tidy::run()?;
    if tidy {
        passed += 1
    } else {
        failed.push("tidy")
    }
    let promised = std::env::var_os("FUMEHOOD_TEST_DOCKER").is_some();
    let there = promised || succeeds(&["docker", "info"]);
    let engine = (!there && in_ci && full).then(Engine::start).transpose()?;
    if !there && engine.is_none() {
        left_out.push(
            "the docker tier: apt-get install docker.io, start dockerd, and set \
             FUMEHOOD_TEST_DOCKER=1"
                .to_owned(),
        );
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
        let mut cargo = command("cargo");
        if let Some(engine) = &engine {
            cargo.env("DOCKER_HOST", engine.host()).env("FUMEHOOD_TEST_DOCKER", "1");
        }
        cargo
            .args(step.cargo)
            .env("FUMEHOOD_TEST_FULL", if full && !step.few { "1" } else { "0" })
            .env("RUSTDOCFLAGS", "--deny warnings");
        let success = if in_ci {
            reports.follow(&mut cargo, std::io::stdout())
        } else {
            succeeded(&mut cargo)
        };
        let success = success.with_context(|| format!("cannot run cargo for {}", step.name))?;
        eprintln!("== {} took {:.0} s", step.name, start.elapsed().as_secs_f64());
        if success { passed += 1 } else { failed.push(step.name) }
    }
    reports.repeat();
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
fn packages(in_ci: bool, full: bool) -> anyhow::Result<Vec<String>> {
    let wanted = || PACKAGES.iter().filter(|package| full || !package.slow);
    let missing = || wanted().filter(|package| !package.is_there());
    if in_ci && missing().next().is_some() {
        let mut wanted: Vec<_> = missing().map(|package| package.name).collect();
        wanted.dedup();
        must_succeed(command("apt-get").args(["update", "-qq"]), "apt-get update")?;
        let mut install = command("apt-get");
        install.args(["install", "-y", "-qq"]).args(&wanted);
        must_succeed(
            install.env("DEBIAN_FRONTEND", "noninteractive"),
            &format!("apt-get install {}", wanted.join(" ")),
        )?;
        if let Some(package) = missing().next() {
            bail!("`{}` is missing although {} is installed", package.shown(), package.name);
        }
    }
    Ok(missing()
        .map(|package| {
            let (shown, name) = (package.shown(), package.name);
            format!("tests that need `{shown}`: apt-get install {name}")
        })
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

fn succeeded(command: &mut Command) -> std::io::Result<bool> {
    command.status().map(|status| status.success())
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
