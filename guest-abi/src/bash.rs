//! The records of commands in the native tier.

use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// The request of `op::BASH_RUN`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BashCall {
    /// What the shell is given.
    pub command: String,
    /// Longest time in milliseconds, not 0; the session's own limit binds
    /// beside it. `None` for that alone.
    pub timeout_ms: Option<u64>,
    /// Standard input.
    pub stdin: Vec<u8>,
    /// Working directory, an absolute path; `None` for the tier's own.
    pub cwd: Option<String>,
    /// Variables set beside the tier's own few.
    pub env: Vec<(String, String)>,
}

/// How a command was answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BashReply {
    /// It ran, to whatever end.
    Ended(BashResult),
    /// It did not run: an exception is to be raised.
    Raised {
        /// Which one.
        kind: BashErrorKind,
        /// Its message.
        message: String,
    },
}

/// The Python exception of a command that did not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BashErrorKind {
    /// The policy or a budget refused it: `PermissionError`.
    Denied,
    /// No native tier is configured, or it cannot give what it must:
    /// `OSError` with `ENOSYS`.
    Unavailable,
    /// The call cannot be understood: `ValueError`.
    Arguments,
    /// The tier failed: `OSError` with `EIO`.
    Failed,
}

/// What a command did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BashResult {
    /// What it returned; minus the number of the signal that ended it.
    pub exit_code: i32,
    /// Standard output, as far as it was kept.
    pub stdout: Vec<u8>,
    /// Standard error, as far as it was kept.
    pub stderr: Vec<u8>,
    /// Bytes of standard output that were not kept.
    pub dropped_stdout: u64,
    /// Bytes of standard error that were not kept.
    pub dropped_stderr: u64,
    /// It was ended because its time was over.
    pub timed_out: bool,
    /// The time it had, in milliseconds: the least of all limits.
    pub timeout_ms: u64,
    /// It was ended because of the memory limit, or passed it.
    pub memory_exceeded: bool,
    /// What the tier refused it, one sentence each.
    pub denials: Vec<String>,
    /// The tier.
    pub tier: String,
    /// The controls that were active.
    pub controls: Vec<String>,
}
