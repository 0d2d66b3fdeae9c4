//! A second process with canaries in its environment.
//!
//! What: whoever runs the attacks starts itself once more with a home
//! directory, a user name and variables that occur nowhere else, so that any
//! detail of the host in any output is found.
#![allow(
    clippy::disallowed_methods,
    reason = "this module is the adapter that starts the second process"
)]

use std::process::{Command, ExitStatus};

use super::machine::{NETRC, PROXY_VARIABLES};

/// Set in the second process.
pub const STARTED: &str = "FUMEHOOD_ATTACK_CANARY";

/// Runs the same program with the same arguments in that environment, and waits
/// for it. `None` in the second process itself.
///
/// # Errors
/// The system's reason.
pub fn start_again() -> std::io::Result<Option<ExitStatus>> {
    if std::env::var_os(STARTED).is_some() {
        return Ok(None);
    }
    let home = tempfile::Builder::new().prefix("canary-home-directory-").tempdir()?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(std::env::args_os().skip(1));
    if let Ok(Some((directory, _))) = fumehood::cache_location(false) {
        command.env("FUMEHOOD_CACHE_DIR", directory);
    }
    std::fs::write(home.path().join(".netrc"), NETRC)?;
    command
        .envs(PROXY_VARIABLES.iter().copied())
        .env("HOME", home.path())
        .env("USER", "canary-host-user")
        .env("LOGNAME", "canary-host-user")
        .env(STARTED, "canary-host-variable");
    command.status().map(Some)
}
