//! The broker: every effect is decided, recorded, metered and executed in one
//! pipeline.
//!
//! What: [`Broker::dispatch`] carries out one [`HostCall`] of a guest, on the
//! in-memory tree and the mounted host directories it was given.
//! Why: the guest has no other way to reach anything, and tiers, fuzzers and
//! servers can use it without an engine.
//!
//! Invariant: an effect happens only through [`Checked`], and nothing is kept
//! without one of the numbers in [`Limits`].
//!
//! This crate must never know wasmtime, guest memory or who its embedder is.

mod approval;
pub mod audit;
mod broker;
mod call;
mod changes;
mod descriptors;
mod environment;
mod errno;
mod fs;
mod lasting;
mod ledger;
mod limits;
mod live;
mod meter;
mod native;
mod net;
mod pipeline;
pub mod records;
mod report;
mod seeded;
#[cfg(test)]
mod testing;
mod tools;
mod virtual_clock;
mod workspace;

pub use approval::{
    Answer, ApprovalDesk, ApprovalRequest, ApprovalStatus, Approvals, Approved, Approver,
    Approving, ListedGrant, MAX_ANSWERED, MAX_GRANTS, MAX_WAITING, Waiting,
};
pub use audit::{
    AuditNumbers, AuditRecord, AuditSink, AuditUnavailable, Draw, FanOut, FileSink, MemorySink,
    Outcome, Payload, Phase, PolicyId, QueuedSink, Signer, Target,
};
pub use broker::{
    BASH_GRACE, Broker, BrokerConfig, BrokerState, DEFAULT_BASH_TIMEOUT, DISPLAY_TYPES,
    MAX_BASH_CWD_BYTES, MemoryFile, NativeSession, NativeWork, Program, ProgramEnd, Refusal,
    SetupError, StopReason, ToolCallError, policy_for,
};
pub use call::*;
pub use environment::{
    Clock, NoStreaming, OsRandom, OutputSink, RandomFailed, RandomSource, SimpleWaiter, Stream,
    SystemClock, WaitResult, Waiter, Wake,
};
pub use errno::Errno;
pub use fs::{
    HostMount, MAX_WATCHED, MAX_WORKSPACE_BYTES, MAX_WORKSPACE_INODES, MountError, Watched,
    WorkspaceLimits, lies_in,
};
pub use fumehood_policies::{Access, GuestPath, PathError, Policy, PolicyError};
pub use lasting::LastingEffect;
pub use limits::Limits;
pub use live::{LivePolicy, NotReplaced};
pub use meter::{Budget, Exhausted, SharedMeter};
pub use native::{
    CancelToken, Captured, FORBIDDEN_VARIABLES, Guarantee, GuaranteeReport, GuaranteeState,
    MAX_NATIVE_ENVIRONMENT_BYTES, Missing, NativeCommand, NativeEnd, NativeError, NativeLimits,
    NativeMount, NativeOverlay, NativeResult, NativeTier, Probe, Unavailable, VariableError,
    Variables,
};
pub use net::{
    Allowance, Connecting, Connector, Egress, EgressError, EgressOptions, EgressSetupError,
    Exceeded, Exchange, HeaderProblem, HttpEgress, Lookup, MAX_REDIRECTS, MAX_REQUEST_HEADER_BYTES,
    MAX_REQUEST_HEADERS, Order, OrderBody, Phases, Proxy, RequestHeaders, Resolver, ResponseHead,
    Unresolved,
};
pub use pipeline::{AUDIT_RULE, BUDGET_RULE, Checked, Effect, Pipeline, Refused, Suspended};
pub use report::{Denial, FileChanges, Report, Usage};
pub use seeded::{Purpose, SeededRandom};
pub use tools::{
    AbortOnDrop, DEFAULT_TOOL_TIMEOUT, Executor, MAX_FILE_TOOL_COMPILED_BYTES, MAX_FILE_TOOL_DEPTH,
    MAX_FILE_TOOL_ENTRIES, MAX_FILE_TOOL_PATTERN_BYTES, MAX_FILE_TOOL_READ_BYTES,
    MAX_FILE_TOOL_VISITS, MAX_FILE_TOOL_WRITE_BYTES, MAX_GREP_LINE_BYTES, MAX_GREP_LINE_CHARACTERS,
    MAX_SEARCH_RESULTS, MAX_TOOL_DESCRIPTION_BYTES, MAX_TOOL_MESSAGE_BYTES, MAX_TOOL_SCHEMA_BYTES,
    MAX_TOOLS, Tool, ToolError, ToolFuture, ToolSet, ToolSetupError, file_tools,
};
pub use virtual_clock::{VirtualClock, VirtualWaiter};
pub use workspace::{
    ArchiveError, Conflict, DEFAULT_EXCLUDES, Discarded, GuardedPath, Listed, MAX_DIFF_BYTES,
    MAX_REPORTED_PATHS, MAX_SYNC_ATTEMPTS, PatternError, ProjectError, ProjectPath, Remains,
    Strategy, SyncError, SyncOptions, SyncReport, View, Workspace, WorkspaceError,
    WorkspaceOptions,
};
