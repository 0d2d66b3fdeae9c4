//! The audit: what happened, told so that it cannot be changed unseen.
//!
//! What: an effect that is decided each time has an intent record before it
//! and an outcome record after it; looking and streams are summed. A sink
//! keeps them: [`MemorySink`] a bounded number, [`FileSink`] in a chained and
//! signed log, [`QueuedSink`] behind a queue, [`FanOut`] in several. The
//! format of the log is `docs/audit-format.md`.
//! Why: what happened can be told afterwards, also if the code hid it.
//!
//! Invariant: a library that was not given a file writes none. Text is made
//! from records only by a sink that needs it.

mod chain;
mod encode;
mod file;
mod line;
pub(crate) mod preview;
mod queue;
mod record;
mod recover;
pub(crate) mod sign;
mod sink;
mod verify;
pub(crate) mod witness;

#[cfg(test)]
mod file_tests;
#[cfg(test)]
mod tamper_tests;
#[cfg(test)]
pub(crate) mod testing;

pub use chain::Why;
pub use encode::MAX_SUM_LINE_BYTES;
pub use file::{
    DEFAULT_CHECKPOINT_LINES, Durability, FileSink, LogHeader, LogSettings, OpenLogError,
};
pub use line::{Bytes, Hash, Line, LineError, MAX_AUDIT_LINE_BYTES, NotHex, Signature, Text};
pub use preview::MAX_PREVIEW_BYTES;
pub use queue::QueuedSink;
pub use record::{AuditRecord, Draw, Outcome, Payload, Phase, PolicyId, Target};
pub use recover::Recovery;
pub use sign::{KeyError, LocalSigner, Signer, SignerFailed};
pub use sink::{AuditNumbers, AuditSink, AuditUnavailable, FanOut, MemorySink};
pub use verify::{
    Lines, MAX_OPEN_CALLS, MAX_RECOVERIES, MAX_UNKNOWN_NAMED, Missing, Trust, Verdict,
    VerifyReport, verify_log,
};
pub use witness::{BrokenWitness, Witness, WitnessError, WitnessReport, verify_witness};
