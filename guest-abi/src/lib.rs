//! The records that cross the boundary between host and guest, defined once
//! for both sides.
//!
//! Invariant: nothing here knows a host path, a policy or an engine; a record
//! is plain data, encoded with [`postcard`], and decoding never panics and
//! never allocates more than the bytes it was given can justify.
//!
//! The guest module imports `wasi_snapshot_preview1` functions and exactly one
//! function of ours:
//!
//! ```text
//! fumehood.call(op: u32, request: *const u8, request_len: u32,
//!               response: *mut u8, response_capacity: u32) -> i64
//! ```
//!
//! A result `>= 0` is the length of the response. If it is larger than
//! `response_capacity`, nothing was copied and the response waits on the host:
//! the guest calls [`op::TAKE`] with a buffer that is large enough. A result
//! `< 0` is a [`CallError`] code.
#![no_std]
extern crate alloc;

mod bash;
mod fetch;
mod tools;

use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

pub use bash::{BashCall, BashErrorKind, BashReply, BashResult};
pub use fetch::{
    FetchBody, FetchErrorKind, FetchHandle, FetchHead, FetchHop, FetchRead, FetchRedirect,
    FetchReply, FetchStart, FetchWrite, frame, op as fetch_op, unframe,
};
pub use tools::{
    ToolCall, ToolEnded, ToolErrorKind, ToolName, ToolReply, ToolSearch, ToolStarted, ToolSummary,
    ToolWait,
};

/// Version of every record below. The host refuses a guest that states another.
pub const ABI_VERSION: u32 = 2;

/// Directory that programs start in.
pub const WORKING_DIRECTORY: &str = "/work";

/// The environment that is the same in every sandbox. The snapshot has it
/// already.
pub const FIXED_ENVIRONMENT: &[(&str, &str)] = &[
    ("HOME", "/home/agent"),
    ("HOSTNAME", "fumehood"),
    ("LANG", "C.UTF-8"),
    ("LC_ALL", "C.UTF-8"),
    ("LOGNAME", "agent"),
    ("PWD", WORKING_DIRECTORY),
    ("TMPDIR", "/tmp"),
    ("TZ", "UTC"),
    ("USER", "agent"),
];

/// Name of the import module of [`crate`]'s one function.
pub const IMPORT_MODULE: &str = "fumehood";
/// Name of the one brokered import.
pub const IMPORT_CALL: &str = "call";

/// Fixed numbers of the brokered operations. A number is never reused.
pub mod op {
    /// Copies the response that was too large for the caller's buffer.
    pub const TAKE: u32 = 0;
    /// Does nothing; measures the round trip.
    pub const NOOP: u32 = 1;
    /// Hands the host one [`super::Display`].
    pub const DISPLAY: u32 = 2;
    /// Gives every tool as a [`super::ToolName`].
    pub const TOOL_LIST: u32 = 3;
    /// Calls a tool and waits: [`super::ToolCall`] to [`super::ToolReply`].
    pub const TOOL_CALL: u32 = 4;
    /// Calls a tool and goes on: [`super::ToolCall`] to [`super::ToolStarted`].
    pub const TOOL_START: u32 = 5;
    /// Waits for started calls: [`super::ToolWait`] to a list of
    /// [`super::ToolEnded`], empty when the time is over.
    pub const TOOL_WAIT: u32 = 6;
    /// Gives a started call up: its id as a `u64` record.
    pub const TOOL_CANCEL: u32 = 7;
    /// Finds tools: [`super::ToolSearch`] to a list of [`super::ToolSummary`].
    pub const TOOL_SEARCH: u32 = 8;
    /// Describes a tool: its name as a string record to JSON text with `name`,
    /// `description` and `parameters`; empty if there is none.
    pub const TOOL_DESCRIBE: u32 = 9;
    /// Runs a command in the native tier and waits: [`super::BashCall`] to
    /// [`super::BashReply`].
    pub const BASH_RUN: u32 = 32;
    /// Names the native tier as a string record; empty if there is none.
    pub const BASH_TIER: u32 = 33;
}

/// Why a brokered call failed, as the negative result of `fumehood.call`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i64)]
pub enum CallError {
    /// The operation number is not known to this host.
    UnknownOperation = -1,
    /// The request is not a valid record of the operation.
    Malformed = -2,
    /// The request or the response is larger than the limit.
    TooLarge = -3,
    /// A policy or a budget refused the call.
    Denied = -4,
    /// There is no response waiting.
    NothingPending = -5,
    /// The host could not carry the operation out.
    Failed = -6,
}

/// What an instance is told once, before its first cell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resume {
    /// Must equal [`ABI_VERSION`].
    pub abi: u32,
    /// `sys.argv`, the program name first.
    pub argv: Vec<String>,
    /// The whole of `os.environ`, [`FIXED_ENVIRONMENT`] first.
    pub env: Vec<(String, String)>,
    /// Working directory, an absolute guest path.
    pub cwd: String,
    /// Directories put in front of `sys.path`, in this order.
    pub import_path: Vec<String>,
    /// Seeds the `random` module. `secrets`, `uuid4` and `os.urandom` always
    /// draw from the host instead.
    pub seed: [u8; 32],
    /// Whether [`op::TOOL_LIST`] has anything to give.
    pub tools: bool,
}

/// How a source text is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// A program: `__name__ == "__main__"`, no value.
    Script,
    /// A notebook cell: the value of a last expression is returned and bound
    /// to `_`.
    Cell,
}

/// One cell or script.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exec {
    /// Script or cell.
    pub mode: Mode,
    /// The name that tracebacks and `__file__` show.
    pub filename: String,
    /// Source bytes as given, not yet known to be UTF-8.
    pub source: Vec<u8>,
    /// A JSON object; each member becomes a global before the code runs.
    pub inputs_json: Option<Vec<u8>>,
    /// Longest `repr` and longest JSON text that are returned, in bytes; a
    /// longer `repr` is cut, a longer JSON text is left out.
    pub max_value_bytes: u32,
}

/// How the code ended, when it ended by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Status {
    /// Ran to its end.
    Completed,
    /// An uncaught exception or a syntax error.
    ScriptError,
    /// `SystemExit`, with the code CPython would have exited with.
    Exit(i32),
}

/// An uncaught exception.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorInfo {
    /// Class name, qualified by its module unless that is `builtins`.
    pub type_name: String,
    /// `str(exception)`, cut to the value limit.
    pub message: String,
    /// The traceback as CPython prints it, the cell's own lines included.
    pub traceback: String,
}

/// What `fh_exec` returns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecResult {
    /// How it ended.
    pub status: Status,
    /// `repr` of a cell's last expression; `None` for `None` and for scripts.
    pub repr: Option<String>,
    /// The same value as JSON where it is plain data.
    pub json: Option<String>,
    /// The exception of [`Status::ScriptError`].
    pub error: Option<ErrorInfo>,
}

/// One rich output of `display()`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Display {
    /// One of `text/plain`, `text/html`, `image/svg+xml`, `image/png`,
    /// `application/json`.
    pub mime: String,
    /// The content.
    pub bytes: Vec<u8>,
}

/// A record could not be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// Encodes a record.
///
/// # Errors
/// [`Malformed`] if the value cannot be represented, which no record of this
/// crate does.
pub fn encode<T: Serialize>(record: &T) -> Result<Vec<u8>, Malformed> {
    postcard::to_allocvec(record).map_err(|_| Malformed)
}

/// Decodes a record that must fill `bytes` exactly.
///
/// # Errors
/// [`Malformed`] if the bytes are not exactly one record.
pub fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, Malformed> {
    match postcard::take_from_bytes(bytes) {
        Ok((record, [])) => Ok(record),
        _ => Err(Malformed),
    }
}
