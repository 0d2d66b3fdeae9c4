//! `cargo xtask guest | test | tidy | fuzz`: the project's own chores.
//!
//! Invariant: a chore that could not do its work says so and fails or names the
//! one command that would make it work; none passes in silence.
#![allow(clippy::disallowed_methods, reason = "chores run programs and read the source tree")]

mod engine;
mod fuzz;
mod guest;
mod reports;
mod test;
mod tidy;

use std::path::PathBuf;
use std::process::ExitCode;

const USAGE: &str = "\
Usage: cargo xtask <chore>

  guest [--setup | --check | --quick]
                              build the Python guest into guest/dist
  test [--full]               run the tests; --full adds the slow suites
  tidy                        check what no compiler checks
  fuzz [--seconds N] [TARGET] run the fuzzers of fuzz/, two at a time";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let rest = args.get(1..).unwrap_or_default();
    let done = match args.first().map(String::as_str) {
        Some("guest") => guest::run(rest).map(|()| true),
        Some("test") => test::run(rest),
        Some("fuzz") => fuzz::run(rest),
        Some("tidy") if rest.is_empty() => tidy::run(),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(64);
        }
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The folder of the workspace.
pub(crate) fn root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.parent().map(PathBuf::from).unwrap_or(here)
}
