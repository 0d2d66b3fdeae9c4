//! Commands for the native tier.
//!
//! What: [`BashRequest`] is one command line for a shell.
//! Why: the command that was decided and recorded is the command that runs.
//!
//! Invariant: a command has 1 to [`MAX_COMMAND_BYTES`] bytes and no NUL, so
//! that it can be one argument of a process, whole.

use crate::host::shown;
use crate::request::Canonical;

/// Longest command in bytes; Linux takes at most 128 KiB as one argument.
pub const MAX_COMMAND_BYTES: usize = 96 << 10;

/// Text that cannot be a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BashRequestError {
    /// There is nothing to run.
    #[error("the command is empty; give one such as `ls`")]
    Empty,
    /// No argument of a process can hold it.
    #[error("the command holds a NUL character; remove it")]
    Nul,
    /// It is too long.
    #[error(
        "the command has more than {MAX_COMMAND_BYTES} bytes; put it into a file and run that, or give data on standard input"
    )]
    TooLong,
}

impl BashRequestError {
    /// A stable identifier.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Empty => "bash_empty",
            Self::Nul => "bash_nul",
            Self::TooLong => "bash_too_long",
        }
    }
}

/// One command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BashRequest {
    command: Box<str>,
}

impl BashRequest {
    /// Canonicalises a command.
    ///
    /// # Errors
    /// [`BashRequestError`] if no process could be given it.
    pub fn parse(command: &str) -> Result<Canonical<Self>, BashRequestError> {
        if command.len() > MAX_COMMAND_BYTES {
            return Err(BashRequestError::TooLong);
        }
        if command.trim().is_empty() {
            return Err(BashRequestError::Empty);
        }
        if command.contains('\0') {
            return Err(BashRequestError::Nul);
        }
        Ok(Canonical::new(Self { command: command.into() }))
    }

    /// The command.
    #[must_use]
    pub fn command(&self) -> &str {
        &self.command
    }

    /// The command, escaped and cut, for records and messages.
    #[must_use]
    pub fn shown(&self) -> String {
        shown(&self.command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_measured_and_whole() {
        let code = |text: &str| BashRequest::parse(text).map_or_else(|e| e.code(), |_| "ok");
        assert_eq!(code("ls -l"), "ok");
        assert_eq!(code(" \n"), "bash_empty");
        assert_eq!(code("ls\0rm"), "bash_nul");
        assert_eq!(code(&"x".repeat(MAX_COMMAND_BYTES)), "ok");
        assert_eq!(code(&"x".repeat(MAX_COMMAND_BYTES + 1)), "bash_too_long");
        let request = BashRequest::parse("printf '\u{1b}]0;x\u{7}'").unwrap();
        assert!(!request.get().shown().contains('\u{1b}'));
        assert_eq!(request.get().command(), "printf '\u{1b}]0;x\u{7}'");
    }
}
