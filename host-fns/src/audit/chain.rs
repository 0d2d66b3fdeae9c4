//! The chain: every line carries the hash of everything before it.
//!
//! What: [`Chain`] is the end of a chain; [`Linked`] reads a file line by line
//! and holds each to the one before.
//!
//! Invariant: `hash_n = SHA-256(hash_{n-1} ‖ bytes of line n)`, beginning with
//! 32 zero bytes, newlines not counted; a line's `prev` is `hash_{n-1}`. A
//! reader keeps one line at most, however long the file is.

use std::io::{self, BufRead};

use sha2::{Digest as _, Sha256};

use crate::audit::line::{Bytes, Hash, Line, LineError, LineType, MAX_AUDIT_LINE_BYTES};
use fumehood_policies::weaken;

/// What a line that was torn in a crash ends with, so that it is never a line
/// of its own: the writer that sets it aside adds it.
pub(crate) const TORN_MARK: &[u8] = b"#\n";

/// The end of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chain {
    /// The hash of everything so far.
    pub(crate) hash: Hash,
    /// The number of the next line.
    pub(crate) next: u64,
    /// The time of the last line.
    pub(crate) time_us: u64,
}

impl Chain {
    pub(crate) const START: Self = Self { hash: Bytes([0; 32]), next: 0, time_us: 0 };

    /// The hash with one line more.
    pub(crate) fn hash_with(&self, line: &[u8]) -> Hash {
        let mut hasher = Sha256::new();
        hasher.update(self.hash.0);
        hasher.update(line);
        Bytes(hasher.finalize().into())
    }

    /// The chain with one line more.
    pub(crate) fn with(&self, hash: Hash, time_us: u64) -> Self {
        Self { hash, next: self.next.saturating_add(1), time_us }
    }
}

/// What is wrong at a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Why {
    /// It is no line.
    #[error(transparent)]
    Line(#[from] LineError),
    /// Lines are missing, doubled or in another order.
    #[error("its number is {0}, which does not follow the line before")]
    Number(u64),
    /// Something before it was changed, or it belongs elsewhere.
    #[error("it does not continue the lines before it as they are")]
    Link,
    /// Time goes back.
    #[error("its time is before that of the line before")]
    Time,
    /// It sets aside what is not there.
    #[error("it sets aside a torn line that is not before it")]
    Torn,
    /// The first line is no header, or another one is.
    #[error("a header is the first line and no other")]
    Header,
    /// The format is not known.
    #[error("it is of version {0} of the format, which this build does not know")]
    Version(u64),
    /// A line of another session.
    #[error("it belongs to another session")]
    Session,
    /// The log is certified by another install key than the one that is trusted.
    #[error("its key was certified by another install key than the one given")]
    Install,
    /// The certificate does not hold.
    #[error("the install key did not certify its key for this session")]
    Certificate,
    /// The signature does not hold.
    #[error("its signature is not by the session's key over the lines before it")]
    Signature,
    /// Signed lines are missing.
    #[error("a signed checkpoint should have come before it")]
    NoCheckpoint,
    /// A recovery names another last signed line.
    #[error("it names {0} as the last signed line, which it is not")]
    LastSigned(u64),
    /// Something follows the close.
    #[error("it follows the line that closes the log")]
    AfterClose,
    /// An outcome without an intent, or an intent twice.
    #[error("call {0} has an outcome without an intent, or two intents")]
    Unpaired(u64),
    /// More calls without outcome than can be.
    #[error("more calls are without an outcome than a session can have")]
    TooManyOpen,
    /// More recoveries than can be.
    #[error("there are more recoveries than a log may have")]
    TooManyRecoveries,
    /// The witness saw something else here.
    #[error("the witness saw another line here (its entry {0})")]
    Witness(u64),
    /// The witness saw more.
    #[error("the log is cut: the witness saw it up to line {0}")]
    Cut(u64),
    /// A decision that is none, or one that does not fit the line.
    #[error("its decision is not one that such a record can have")]
    Decision,
}

impl Why {
    /// A stable identifier.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Line(LineError::Malformed) => "malformed",
            Self::Line(LineError::NotCanonical) => "not_canonical",
            Self::Line(LineError::Keys) => "keys",
            Self::Line(LineError::TooLong) => "too_long",
            Self::Number(_) => "number",
            Self::Link => "link",
            Self::Time => "time",
            Self::Torn => "torn",
            Self::Header => "header",
            Self::Version(_) => "version",
            Self::Session => "session",
            Self::Install => "install_key",
            Self::Certificate => "certificate",
            Self::Signature => "signature",
            Self::NoCheckpoint => "no_checkpoint",
            Self::LastSigned(_) => "last_signed",
            Self::AfterClose => "after_close",
            Self::Unpaired(_) => "unpaired",
            Self::TooManyOpen => "too_many_open",
            Self::TooManyRecoveries => "too_many_recoveries",
            Self::Witness(_) => "witness",
            Self::Cut(_) => "cut",
            Self::Decision => "decision",
        }
    }
}

/// What a crash tore: bytes after the last line that is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Torn {
    /// How many.
    pub(crate) bytes: u64,
    /// Length and digest of what is set aside once the mark is added.
    pub(crate) set_aside: (u64, Hash),
}

impl Torn {
    /// `None` if there are no bytes.
    pub(crate) fn of(bytes: &[u8]) -> Option<Self> {
        let mut tail = Tail::default();
        tail.add(bytes);
        (!bytes.is_empty()).then(|| tail.torn())
    }
}

/// Counts and hashes a torn end, which has a newline for each time that a crash
/// also tore what was to set it aside.
#[derive(Default)]
struct Tail {
    parts: u64,
    bytes: u64,
    hasher: Sha256,
}

impl Tail {
    fn add(&mut self, part: &[u8]) {
        if self.parts > 0 {
            self.hasher.update(b"\n");
            self.bytes = self.bytes.saturating_add(1);
        }
        self.parts = self.parts.saturating_add(1);
        self.hasher.update(part);
        self.bytes = self.bytes.saturating_add(part.len() as u64);
    }

    /// Length and digest, the mark included.
    fn whole(&self) -> (u64, Hash) {
        (self.bytes, Bytes(self.hasher.clone().finalize().into()))
    }

    fn torn(mut self) -> Torn {
        let bytes = self.bytes;
        self.hasher.update(b"#");
        self.bytes = self.bytes.saturating_add(1);
        Torn { bytes, set_aside: self.whole() }
    }
}

/// What a reader found next.
#[derive(Debug)]
pub(crate) enum Step<T> {
    /// A line that continues the chain.
    Line(T),
    /// The end.
    End {
        /// What is no whole line.
        torn: Option<Torn>,
    },
    /// A line that does not.
    Broken(Why),
}

enum Raw {
    Line,
    Torn,
    End,
    TooLong,
}

fn read_raw(reader: &mut impl BufRead, into: &mut Vec<u8>) -> io::Result<Raw> {
    into.clear();
    let most = (MAX_AUDIT_LINE_BYTES as u64).saturating_add(TORN_MARK.len() as u64);
    io::Read::take(&mut *reader, most).read_until(b'\n', into)?;
    Ok(match into.last() {
        None => Raw::End,
        Some(b'\n') => {
            into.pop();
            Raw::Line
        }
        Some(_) if into.len() as u64 >= most => Raw::TooLong,
        Some(_) => Raw::Torn,
    })
}

/// Reads the lines of a file and holds each to the one before.
pub(crate) struct Linked<R> {
    reader: R,
    types: &'static [LineType],
    pub(crate) chain: Chain,
    /// Bytes up to the end of the last line that continues the chain.
    pub(crate) held_bytes: u64,
    /// Bytes that were read.
    read_bytes: u64,
    current: Vec<u8>,
    scratch: Vec<u8>,
}

impl<R: BufRead> Linked<R> {
    pub(crate) fn new(reader: R, types: &'static [LineType], chain: Chain) -> Self {
        let (current, scratch) = (Vec::new(), Vec::new());
        Self { reader, types, chain, held_bytes: 0, read_bytes: 0, current, scratch }
    }

    /// Reads the next line. `accept` gets it, its bytes and the hash with it,
    /// before it becomes part of the chain.
    pub(crate) fn step<T>(
        &mut self,
        accept: &mut impl FnMut(&Line<'_>, &[u8], Hash) -> Result<T, Why>,
    ) -> io::Result<Step<T>> {
        // A line that ends in the mark is none: it was torn in a crash, and so
        // perhaps was the writing of the line that was to set it aside.
        let mut tail: Option<Tail> = None;
        loop {
            match self.read_line()? {
                Raw::Line if self.current.ends_with(b"#") => {
                    tail.get_or_insert_default().add(&self.current);
                }
                Raw::Line => break,
                Raw::Torn => {
                    let mut tail = tail.unwrap_or_default();
                    tail.add(&self.current);
                    return Ok(Step::End { torn: Some(tail.torn()) });
                }
                Raw::End => {
                    let torn = tail.map(|mut tail| {
                        tail.add(b"");
                        tail.torn()
                    });
                    return Ok(Step::End { torn });
                }
                Raw::TooLong => return Ok(Step::Broken(LineError::TooLong.into())),
            }
        }
        if tail.is_some() {
            let names_it = Line::parse_as(&self.current, self.types, &mut self.scratch)
                .is_ok_and(|line| line.torn_bytes.is_some());
            if !names_it {
                return Ok(Step::Broken(LineError::Malformed.into()));
            }
        }
        let torn = tail.as_ref().map(Tail::whole);
        Ok(self.take(torn, accept).map_or_else(Step::Broken, Step::Line))
    }

    fn read_line(&mut self) -> io::Result<Raw> {
        let raw = read_raw(&mut self.reader, &mut self.current)?;
        let newline = u64::from(matches!(raw, Raw::Line));
        let bytes = (self.current.len() as u64).saturating_add(newline);
        self.read_bytes = self.read_bytes.saturating_add(bytes);
        Ok(raw)
    }

    fn take<T>(
        &mut self,
        torn: Option<(u64, Hash)>,
        accept: &mut impl FnMut(&Line<'_>, &[u8], Hash) -> Result<T, Why>,
    ) -> Result<T, Why> {
        let line = Line::parse_as(&self.current, self.types, &mut self.scratch)?;
        let (seq, time_us) = (line.seq.unwrap_or_default(), line.time_us.unwrap_or_default());
        if seq != self.chain.next {
            return Err(Why::Number(seq));
        }
        let off = weaken::off(weaken::Defence::AuditChain);
        if !off && line.prev != Some(self.chain.hash) {
            return Err(Why::Link);
        }
        if time_us < self.chain.time_us {
            return Err(Why::Time);
        }
        if line.torn_bytes.zip(line.torn_sha256) != torn
            || line.torn_bytes.is_some() != line.torn_sha256.is_some()
        {
            return Err(Why::Torn);
        }
        let hash = self.chain.hash_with(&self.current);
        let value = accept(&line, &self.current, hash)?;
        self.chain = self.chain.with(hash, time_us);
        self.held_bytes = self.read_bytes;
        Ok(value)
    }
}
