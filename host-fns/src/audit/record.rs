//! What an audit record says.
//!
//! Invariant: records are plain structs; text is made from them only by a sink
//! that needs it. They hold no payload: its size, its digest, and of a tool's
//! arguments a preview that [`crate::audit::preview`] made.

use std::fmt;
use std::sync::Arc;

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
    /// A request to the network: method and URL, never the query, the headers
    /// or the body.
    Request(&'static str, Arc<str>),
    /// A program, by the name that the guest sees.
    Program(Arc<str>),
    /// A command of the native tier, escaped and cut.
    Command(Arc<str>),
}

impl Target {
    /// The first object, where there are two.
    #[must_use]
    pub fn first(&self) -> Option<&GuestPath> {
        match self {
            Self::Paths(from, _) => Some(from),
            _ => None,
        }
    }

    /// The second object, where there are two.
    #[must_use]
    pub fn second(&self) -> Option<&GuestPath> {
        match self {
            Self::Paths(_, to) => Some(to),
            _ => None,
        }
    }
}

impl fmt::Display for Target {
    /// Escaped: safe to show on one line.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => Ok(()),
            Self::Name(name) => formatter.write_str(name),
            Self::Path(path) => path.fmt(formatter),
            Self::Paths(from, to) => write!(formatter, "{from} -> {to}"),
            Self::Tool(name) | Self::Command(name) => formatter.write_str(name),
            Self::Program(name) => fumehood_policies::escape(name.as_bytes(), formatter),
            Self::Request(method, url) => write!(formatter, "{method} {url}"),
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
    /// Nothing was done: it could not be recorded everywhere it has to be.
    NotStarted,
    /// A run ended, in this way.
    Ended(&'static str),
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
            Self::NotStarted => "not_started",
            Self::Ended(kind) => kind,
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

/// What an effect draws on, as its record sees it: other calls of the session
/// may draw on it at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draw {
    /// The budget's stable name.
    pub budget: &'static str,
    /// What was left before.
    pub before: u64,
    /// What was left after.
    pub after: u64,
}

/// One audit record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditRecord {
    /// One more than the record before it, within the session.
    pub sequence: u64,
    /// Shared by the intent and the outcome of one effect; unique within the
    /// session.
    pub call: u64,
    /// The call that this one is part of; 0 for none.
    pub parent: u64,
    /// The session.
    pub session: Arc<str>,
    /// The tier that asked.
    pub tier: &'static str,
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
    /// What it draws on.
    pub draw: Draw,
    /// Bytes that went to the guest.
    pub bytes_in: u64,
    /// Bytes that came from the guest.
    pub bytes_out: u64,
    /// SHA-256 of a tool's arguments (on an intent) or result (on an outcome).
    pub digest: Option<[u8; 32]>,
    /// A bounded, redacted preview of a tool's arguments, or the class of the
    /// address that was denied.
    pub preview: Option<Arc<str>>,
    /// On an outcome, microseconds since the intent.
    pub duration_us: Option<u64>,
    /// Whether what is about to happen cannot be taken back: a durable sink
    /// that is strict makes the intent durable first.
    pub irreversible: bool,
}
