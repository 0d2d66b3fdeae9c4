//! Audit records and where they go.
//!
//! What: an effect that is decided each time has an intent record before it
//! and an outcome record after it; looking and streams are summed.
//! Why: what happened can be told afterwards, also if the code hid it.
//!
//! Invariant: records are plain structs; text is made from them only by a sink
//! that needs it, never on the path of the guest. They hold no payload.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use fumehood_policies::{GuestPath, Verdict};
use sha2::{Digest as _, Sha256};

use crate::errno::Errno;

/// What an effect acts on.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Target {
    /// Nothing in particular.
    None,
    /// One of the broker's own objects, such as `stdout`.
    Name(&'static str),
    /// A path.
    Path(GuestPath),
    /// Two paths, of a rename or a link.
    Paths(GuestPath, GuestPath),
    /// A tool of the embedder; never its arguments.
    Tool(Arc<str>),
}

impl fmt::Display for Target {
    /// Escaped: safe to show on one line.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => Ok(()),
            Self::Name(name) => formatter.write_str(name),
            Self::Path(path) => path.fmt(formatter),
            Self::Paths(from, to) => write!(formatter, "{from} -> {to}"),
            Self::Tool(name) => formatter.write_str(name),
        }
    }
}

/// How an effect ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was carried out.
    Done,
    /// A symbolic link was met; the request goes through the pipeline again
    /// with its target.
    Redirected,
    /// It failed.
    Failed(Errno),
    /// The tool said that it failed.
    ToolError,
    /// It took longer than it may.
    TimedOut,
    /// What it gave is larger than the limit.
    TooLarge,
    /// It was given up: by the guest, or because the run ended.
    Cancelled,
    /// The host code panicked in the middle.
    Unknown,
}

impl Outcome {
    /// The outcome's stable name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Redirected => "redirected",
            Self::Failed(_) => "failed",
            Self::ToolError => "tool_error",
            Self::TimedOut => "timed_out",
            Self::TooLarge => "too_large",
            Self::Cancelled => "cancelled",
            Self::Unknown => "unknown",
        }
    }
}

/// The policy that held, by its digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyId {
    /// Which edition of the session's policy.
    pub generation: u64,
    /// SHA-256 of everything that decides.
    pub digest: [u8; 32],
}

/// The size and digest of what crossed the boundary, in place of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Payload {
    /// Its length in bytes.
    pub bytes: u64,
    /// SHA-256 of it, where it has a record of its own.
    pub digest: Option<[u8; 32]>,
}

impl Payload {
    /// The size and digest of some bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self { bytes: bytes.len() as u64, digest: Some(Sha256::digest(bytes).into()) }
    }
}

/// Which part of an effect a record tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It was decided and is about to be carried out, or was denied. Of equal
    /// denials between two reports the first has an intent, the others a sum.
    Intent,
    /// It is over.
    Outcome(Outcome),
    /// Many like it, summed.
    Sum {
        /// How many.
        count: u64,
        /// How many of them failed.
        failed: u64,
    },
}

/// One audit record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditRecord {
    /// One more than the record before it, within the session.
    pub sequence: u64,
    /// Shared by the intent and the outcome of one effect.
    pub call: u64,
    /// The session.
    pub session: Arc<str>,
    /// Stable name of the operation.
    pub operation: &'static str,
    /// What it acts on, canonical.
    pub target: Target,
    /// What was decided.
    pub verdict: Verdict,
    /// The rule or budget that decided.
    pub rule: Arc<str>,
    /// The policy that held.
    pub policy: Arc<PolicyId>,
    /// Which part of the effect this is.
    pub phase: Phase,
    /// Bytes that went to the guest.
    pub bytes_in: u64,
    /// Bytes that came from the guest.
    pub bytes_out: u64,
    /// SHA-256 of a tool's arguments (on an intent) or result (on an outcome).
    pub digest: Option<[u8; 32]>,
}

/// The sink cannot take a record; the effect is then refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the audit sink cannot take another record")]
pub struct AuditUnavailable;

/// Takes audit records in order.
pub trait AuditSink: Send + Sync {
    /// Takes one record. A sink that took an intent must be able to take its
    /// outcome.
    ///
    /// # Errors
    /// [`AuditUnavailable`] if it cannot; an effect whose intent was not taken
    /// is denied.
    fn record(&self, record: AuditRecord) -> Result<(), AuditUnavailable>;
}

/// The numbers of a session's records. Cloning shares them, so that the brokers
/// of one session count on, also if they work at the same time.
#[derive(Clone, Debug, Default)]
pub struct AuditNumbers(Arc<Numbers>);

#[derive(Debug, Default)]
struct Numbers {
    sequence: Mutex<u64>,
    calls: AtomicU64,
}

impl AuditNumbers {
    /// The number of a new request.
    pub(crate) fn next_call(&self) -> u64 {
        self.0.calls.fetch_add(1, Ordering::Relaxed).saturating_add(1)
    }

    /// Gives the next record its number, and nobody else one before it is
    /// taken.
    pub(crate) fn in_order<T>(&self, take: impl FnOnce(u64) -> T) -> T {
        let mut sequence = self.0.sequence.lock().unwrap_or_else(PoisonError::into_inner);
        *sequence = sequence.saturating_add(1);
        take(*sequence)
    }
}

/// Keeps the last records in memory and counts those it let go.
#[derive(Debug)]
pub struct MemorySink {
    capacity: usize,
    ring: Mutex<Ring>,
}

#[derive(Debug, Default)]
struct Ring {
    records: VecDeque<AuditRecord>,
    dropped: u64,
}

impl MemorySink {
    /// Records kept by default.
    pub const DEFAULT_CAPACITY: usize = 10_000;

    /// Keeps at most `capacity` records.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self { capacity: capacity.max(1), ring: Mutex::default() }
    }

    /// The records that are still there, oldest first.
    #[must_use]
    pub fn records(&self) -> Vec<AuditRecord> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner).records.iter().cloned().collect()
    }

    /// How many records were let go.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner).dropped
    }
}

impl Default for MemorySink {
    fn default() -> Self {
        Self::new(Self::DEFAULT_CAPACITY)
    }
}

impl AuditSink for MemorySink {
    fn record(&self, record: AuditRecord) -> Result<(), AuditUnavailable> {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        if ring.records.len() >= self.capacity {
            ring.records.pop_front();
            ring.dropped = ring.dropped.saturating_add(1);
        }
        ring.records.push_back(record);
        Ok(())
    }
}
