//! `fumehood-helper` of a build in which defences can be left out, under a name
//! of its own, so that it is never taken for the one that is shipped.
//!
//! Invariant: built only with the feature `weaken`; everything but its name is
//! that of `main.rs`.
#![cfg(target_os = "linux")]

mod attempts;
mod boundary;
mod raw;
mod rules;
mod seccomp;
mod supervise;
mod view;
mod watch;

use std::process::ExitCode;

fn main() -> ExitCode {
    match supervise::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fumehood-helper-weakened: {error}; only the test of the scoreboard uses it");
            ExitCode::FAILURE
        }
    }
}
