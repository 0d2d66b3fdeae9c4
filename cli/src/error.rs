//! Why a command did not do what it was asked.
//!
//! Invariant: a message says what happened and, after a semicolon, what to do.

use fumehood::network::EgressSetupError;
use fumehood::policy::{CombineErrors, PolicyErrors};
use fumehood::project::WorkspaceError;
use fumehood::{BuildError, EngineError};

/// Bad arguments, bad input or a bad configuration.
pub(crate) const USAGE: i32 = 64;
/// The tier, a guarantee or the engine is not available.
pub(crate) const REFUSED: i32 = 66;
/// A command that runs no guest found something bad.
pub(crate) const BAD_FINDING: i32 = 1;
/// A command that runs no guest cannot tell.
pub(crate) const CANNOT_TELL: i32 = 2;

/// An error as the user sees it.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct CliError {
    /// The process's exit code.
    pub(crate) exit_code: i32,
    /// One sentence.
    pub(crate) message: String,
    /// Further ones, of a policy with several problems.
    pub(crate) more: Vec<String>,
}

impl CliError {
    /// Nothing was run because of what the user gave.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { exit_code: USAGE, message: message.into(), more: Vec::new() }
    }

    /// Nothing was run because something is missing.
    pub(crate) fn refused(message: impl Into<String>) -> Self {
        Self { exit_code: REFUSED, message: message.into(), more: Vec::new() }
    }

    /// Nothing was run, for as many reasons as there are lines.
    fn usage_of_lines(text: &str) -> Self {
        let mut lines = text.lines().map(str::to_owned);
        let message = lines.next().unwrap_or_default();
        Self { exit_code: USAGE, message, more: lines.collect() }
    }

    /// The command gives no answer.
    pub(crate) fn cannot_tell(message: impl Into<String>) -> Self {
        Self { exit_code: CANNOT_TELL, message: message.into(), more: Vec::new() }
    }

    /// The same, of a command that runs no program of a user's: what is not
    /// available there means that it cannot tell.
    pub(crate) fn without_a_program(mut self) -> Self {
        if self.exit_code == REFUSED {
            self.exit_code = CANNOT_TELL;
        }
        self
    }
}

impl From<EngineError> for CliError {
    fn from(error: EngineError) -> Self {
        let advice = match &error {
            EngineError::Compiled { .. } => "; `fumehood cache build --out FILE` makes a new one",
            EngineError::Thread(_) => "; raise the limit on processes and try again",
            EngineError::Guest(_) => "; install fumehood again",
            _ => "",
        };
        Self::refused(format!("{error}{advice}"))
    }
}

impl From<PolicyErrors> for CliError {
    fn from(errors: PolicyErrors) -> Self {
        Self::usage_of_lines(&errors.to_string())
    }
}

impl From<CombineErrors> for CliError {
    fn from(errors: CombineErrors) -> Self {
        Self::usage_of_lines(&errors.to_string())
    }
}

impl From<WorkspaceError> for CliError {
    fn from(error: WorkspaceError) -> Self {
        match error {
            WorkspaceError::InUse
            | WorkspaceError::NoOverlay
            | WorkspaceError::Version
            | WorkspaceError::Recovery { .. }
            | WorkspaceError::Io { .. } => Self::refused(error.to_string()),
            other => Self::usage(other.to_string()),
        }
    }
}

impl From<BuildError> for CliError {
    fn from(error: BuildError) -> Self {
        match error {
            BuildError::Engine(error) => error.into(),
            BuildError::Policy(errors) => errors.into(),
            BuildError::NotAllowed(errors) => errors.into(),
            BuildError::Workspace(error) => error.into(),
            BuildError::Native(unavailable) => crate::native::refused(&unavailable),
            BuildError::Random
            | BuildError::WorkspacePlace(_)
            | BuildError::Unsupported { .. }
            | BuildError::Executor(_)
            | BuildError::Egress(EgressSetupError::Threads(_)) => Self::refused(error.to_string()),
            BuildError::Audit(source) => crate::records::refused(&source.to_string()),
            other => Self::usage(other.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_command_without_a_program_lacks_is_that_it_cannot_tell() {
        let thread = || EngineError::Thread(std::io::Error::other("no thread"));
        assert_eq!(CliError::from(thread()).exit_code, REFUSED);
        assert_eq!(CliError::from(thread()).without_a_program().exit_code, CANNOT_TELL);
        assert_eq!(CliError::usage("no").without_a_program().exit_code, USAGE);
    }
}
