//! What the fuzzers call: one function a target, over arbitrary bytes.
//!
//! Why: the fuzzers of `fuzz/` need a nightly compiler; a test of this crate
//! replays the corpora that they left through the same functions on the stable
//! one.
//!
//! Invariant: a target returns for every input; a property that does not hold
//! is a panic.
#![allow(clippy::panic, reason = "a property that does not hold is a panic")]

mod canonical;
mod host_calls;
mod policy;
mod sent;

pub use canonical::{environment, host, path, record, request, tool_arguments};
pub use host_calls::host_calls;
pub use policy::policy;
pub use sent::sent;

/// One target.
pub type Target = fn(&[u8]);

/// Every target by the name of its fuzzer and of its corpus.
pub const TARGETS: &[(&str, Target)] = &[
    ("environment", environment),
    ("host", host),
    ("host_calls", host_calls),
    ("path", path),
    ("policy", policy),
    ("record", record),
    ("request", request),
    ("sent", sent),
    ("tool_arguments", tool_arguments),
];
