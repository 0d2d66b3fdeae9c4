//! The records of the embedder's tools.
//!
//! Arguments and results are JSON text; everything around them is a record.

use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// One tool as `op::TOOL_LIST` gives it: enough to bind a Python name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolName {
    /// The name.
    pub name: String,
    /// Names of its parameters, in the order of the schema, so that positional
    /// arguments can be given.
    pub parameters: Vec<String>,
}

/// The request of `op::TOOL_CALL` and `op::TOOL_START`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    /// The tool.
    pub name: String,
    /// A JSON object.
    pub arguments: Vec<u8>,
}

/// How a call of a tool ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToolReply {
    /// The result, as JSON text.
    Value(Vec<u8>),
    /// An exception is to be raised.
    Raised {
        /// Which one.
        kind: ToolErrorKind,
        /// Its message.
        message: String,
    },
}

/// The Python exception of a failed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToolErrorKind {
    /// The policy or a budget refused it: `PermissionError`.
    Denied,
    /// The arguments do not fit the schema: `TypeError`.
    Arguments,
    /// The tool said so: `ToolError`, a `RuntimeError`.
    Failed,
    /// It took longer than it may: `TimeoutError`.
    TimedOut,
    /// Request or result is larger than the limit: `OverflowError`.
    TooLarge,
    /// No tool has that name: `NameError`.
    Unknown,
}

/// The request of `op::TOOL_WAIT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolWait {
    /// Longest wait, in nanoseconds; `None` until a call has ended.
    pub timeout_ns: Option<u64>,
}

/// One ended call of `op::TOOL_WAIT`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolEnded {
    /// What `op::TOOL_START` returned.
    pub id: u64,
    /// How it ended.
    pub reply: ToolReply,
}

/// The response of `op::TOOL_START`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToolStarted {
    /// It ended at once.
    Ended(ToolReply),
    /// It goes on; `op::TOOL_WAIT` tells of its end.
    Running {
        /// Names the call.
        id: u64,
    },
}

/// The request of `op::TOOL_SEARCH`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolSearch {
    /// Words to look for in names and descriptions.
    pub query: String,
    /// Most tools to return.
    pub limit: u32,
}

/// One tool as `op::TOOL_SEARCH` gives it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolSummary {
    /// The name.
    pub name: String,
    /// First sentence of the description.
    pub description: String,
}
