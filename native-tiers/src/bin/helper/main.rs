//! `fumehood-helper`: starts one command inside a boundary and ends everything
//! that came of it.
//!
//! What: it is started by a native tier with a socket as its standard input,
//! over which it gets what to run (see `fumehood_native_tiers::protocol`). It
//! is not meant to be started by hand.
//!
//! The processes of one run, with namespaces: this one stays outside and waits
//! for the socket; its child is the first process of the new process namespace
//! and makes the file system; the child of that one puts the boundary around
//! itself and becomes the command. Without namespaces the first two are one.
//!
//! Invariant: one thread; nothing of the environment is read; what cannot be
//! enforced is told as missing and nothing is started.

#[cfg(target_os = "linux")]
mod attempts;
#[cfg(target_os = "linux")]
mod boundary;
#[cfg(target_os = "linux")]
mod raw;
#[cfg(target_os = "linux")]
mod rules;
#[cfg(target_os = "linux")]
mod seccomp;
#[cfg(target_os = "linux")]
mod supervise;
#[cfg(target_os = "linux")]
mod view;
#[cfg(target_os = "linux")]
mod watch;

use std::process::ExitCode;

/// The helper could not do its work.
const FAILED: u8 = 70;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    match supervise::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fumehood-helper: {error}; it is started by a native tier, not by hand");
            ExitCode::from(FAILED)
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    eprintln!("fumehood-helper: only Linux has what it enforces; use another tier");
    ExitCode::from(FAILED)
}
