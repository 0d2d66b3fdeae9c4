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

mod audit;
mod broker;
mod call;
mod changes;
mod descriptors;
mod environment;
mod errno;
mod fs;
mod ledger;
mod limits;
mod meter;
mod pipeline;
mod report;
#[cfg(test)]
mod testing;
mod tools;

pub use audit::{
    AuditNumbers, AuditRecord, AuditSink, AuditUnavailable, MemorySink, Outcome, Payload, Phase,
    PolicyId, Target,
};
pub use broker::{
    Broker, BrokerConfig, BrokerState, DISPLAY_TYPES, Refusal, SetupError, StopReason, policy_for,
};
pub use call::*;
pub use environment::{
    Clock, NoStreaming, OsRandom, OutputSink, RandomFailed, RandomSource, SimpleWaiter, Stream,
    SystemClock, WaitResult, Waiter, Wake,
};
pub use errno::Errno;
pub use fs::{HostMount, MountError};
pub use fumehood_policies::{Access, GuestPath, PathError, Policy, PolicyError};
pub use limits::Limits;
pub use meter::{Budget, Exhausted, SharedMeter};
pub use pipeline::{AUDIT_RULE, BUDGET_RULE, Checked, Effect, Pipeline, Refused, Suspended};
pub use report::{Denial, FileChanges, Report, Usage};
pub use tools::{
    AbortOnDrop, DEFAULT_TOOL_TIMEOUT, Executor, MAX_SEARCH_RESULTS, MAX_TOOL_DESCRIPTION_BYTES,
    MAX_TOOL_MESSAGE_BYTES, MAX_TOOL_SCHEMA_BYTES, MAX_TOOLS, Tool, ToolError, ToolFuture, ToolSet,
    ToolSetupError,
};
