//! The native Python that the processor bench compares with.
#![allow(clippy::disallowed_methods, reason = "this module starts the Python that the user named")]

use std::path::Path;
use std::process::{Command, Stdio};

use crate::error::CliError;

/// Runs a program and returns what it printed.
///
/// # Errors
/// One sentence.
pub(super) fn run(python: &Path, program: &Path) -> Result<String, CliError> {
    let output =
        Command::new(python).arg(program).stdin(Stdio::null()).output().map_err(|error| {
            CliError::usage(format!(
                "`{}` cannot be started ({error}); name a Python with --native",
                python.display()
            ))
        })?;
    if !output.status.success() {
        return Err(CliError::cannot_tell(format!(
            "`{}` failed on {} ({}); run it yourself to see why",
            python.display(),
            program.display(),
            output.status
        )));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
