//! The witness: a chained file beside the sessions that remembers how far each
//! log had come.
//!
//! What: [`Witness`] appends an entry for every signed line of every log;
//! [`Cursor`] reads the entries of one session.
//! Why: a log that is cut at an old checkpoint still verifies by itself, but
//! contradicts the witness.
//!
//! Invariant: an entry is appended under an exclusive lock of the file and
//! continues its last line, which is checked first; nothing is appended to
//! what does not hold. Every entry is signed by its session's certified key.

use std::fs::File;
use std::io::{self, BufRead};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use rustix::fs::FlockOperation;

use crate::audit::chain::{Chain, Linked, Step, TORN_MARK, Torn, Why};
use crate::audit::line::{Bytes, Hash, Line, MAX_AUDIT_LINE_BYTES, WITNESS_TYPES};
use crate::audit::sign::{Purpose, SessionKey, is_certified, is_signed};
use crate::environment::Clock;

/// Why the witness takes no entry.
#[derive(Debug, thiserror::Error)]
pub enum WitnessError {
    /// The system's reason.
    #[error("the witness cannot be written")]
    Io(#[from] io::Error),
    /// Its end is not one that this installation wrote.
    #[error("the end of the witness does not hold")]
    Broken,
}

/// What an entry is about.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event<'e> {
    /// A signed line of a log; the kind is `open`, `checkpoint`, `recovery` or
    /// `close`.
    Signed { kind: &'static str, at: u64, hash: &'e Hash },
    /// The session's records were removed.
    Removed,
}

/// Appends to the witness. Any number of processes may do so.
pub struct Witness {
    file: File,
    clock: Arc<dyn Clock>,
}

impl std::fmt::Debug for Witness {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Witness").field("file", &self.file).finish_non_exhaustive()
    }
}

/// The exclusive lock of the file; given up when dropped.
pub(crate) struct Locked<'w> {
    witness: &'w Witness,
    chain: Chain,
    torn: Option<(u64, Hash)>,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // Closing the file would do the same.
        let _ = rustix::fs::flock(&self.witness.file, FlockOperation::Unlock);
    }
}

impl Witness {
    /// Of a file that was opened to read and to append. It has to be this
    /// user's own.
    #[must_use]
    pub fn new(file: File, clock: Arc<dyn Clock>) -> Self {
        Self { file, clock }
    }

    /// Makes what was appended durable.
    ///
    /// # Errors
    /// The system's reason.
    pub fn sync(&self) -> io::Result<()> {
        make_durable(&self.file)
    }

    /// Waits for the lock and checks the last line.
    pub(crate) fn lock(&self, install: &Hash) -> Result<Locked<'_>, WitnessError> {
        loop {
            match rustix::fs::flock(&self.file, FlockOperation::LockExclusive) {
                Ok(()) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(WitnessError::Io(error.into())),
            }
        }
        let mut locked = Locked { witness: self, chain: Chain::START, torn: None };
        locked.read_end(install)?;
        Ok(locked)
    }
}

impl Locked<'_> {
    /// The number of the next entry.
    pub(crate) fn next(&self) -> u64 {
        self.chain.next
    }

    /// The time of the last entry.
    pub(crate) fn time_us(&self) -> u64 {
        self.chain.time_us
    }

    fn read_end(&mut self, install: &Hash) -> Result<(), WitnessError> {
        let file = &self.witness.file;
        let length = file.metadata()?.len();
        // The last line, the mark and what a crash tore, at most.
        let most = (MAX_AUDIT_LINE_BYTES as u64).saturating_mul(2);
        // Entries are short: look at little first.
        for window in [4096.min(most), most] {
            let from = length.saturating_sub(window);
            let size = usize::try_from(length.saturating_sub(from)).unwrap_or(0);
            let mut tail = vec![0; size];
            file.read_exact_at(&mut tail, from)?;
            let (start, last, torn) = last_line(&tail);
            if start == 0 && from > 0 {
                continue;
            }
            self.torn = Torn::of(torn).map(|torn| torn.set_aside);
            let Some(last) = last else { return Ok(()) };
            if last.is_empty() {
                return Err(WitnessError::Broken);
            }
            return self.continue_after(last, install);
        }
        Err(WitnessError::Broken)
    }

    fn continue_after(&mut self, last: &[u8], install: &Hash) -> Result<(), WitnessError> {
        let line = Line::parse_as(last, &WITNESS_TYPES, &mut Vec::new())
            .map_err(|_| WitnessError::Broken)?;
        let before = Chain {
            hash: line.prev.ok_or(WitnessError::Broken)?,
            next: line.seq.ok_or(WitnessError::Broken)?,
            time_us: 0,
        };
        if !entry_holds(&line, last, install) {
            return Err(WitnessError::Broken);
        }
        self.chain = before.with(before.hash_with(last), line.time_us.unwrap_or(0));
        Ok(())
    }

    /// Appends one entry with one write.
    pub(crate) fn append(
        &mut self,
        session: &str,
        key: &SessionKey,
        event: Event<'_>,
    ) -> Result<(), WitnessError> {
        let now = self.witness.clock.wall_ns() / 1000;
        let time_us = now.max(self.chain.time_us);
        let (kind, at, hash) = match event {
            Event::Signed { kind, at, hash } => (kind, Some(at), Some(*hash)),
            Event::Removed => ("removed", None, None),
        };
        let line = Line {
            seq: Some(self.chain.next),
            time_us: Some(time_us),
            kind: Some(kind.into()),
            session: Some(session.into()),
            torn_bytes: self.torn.map(|(bytes, _)| bytes),
            torn_sha256: self.torn.map(|(_, hash)| hash),
            at,
            hash,
            install: Some(key.install),
            key: Some(key.public),
            cert: Some(key.cert),
            prev: Some(self.chain.hash),
            ..Line::default()
        };
        let mut bytes = Vec::with_capacity(1024);
        if self.torn.is_some() {
            bytes.extend_from_slice(TORN_MARK);
        }
        let start = bytes.len();
        sign_line(Purpose::Witness, line, key, &mut bytes);
        let hash = self.chain.hash_with(bytes.get(start..).unwrap_or_default());
        bytes.push(b'\n');
        write_once(&self.witness.file, &bytes)?;
        self.torn = None;
        self.chain = self.chain.with(hash, time_us);
        Ok(())
    }
}

/// Where the last line begins, the line, and what a crash tore after it; a line
/// that ends in the mark is torn as well.
fn last_line(tail: &[u8]) -> (usize, Option<&[u8]>, &[u8]) {
    let after_newline = |bytes: &[u8]| {
        bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at.saturating_add(1))
    };
    let mut end = after_newline(tail);
    loop {
        let torn = tail.get(end..).unwrap_or_default();
        let Some(lines) = tail.get(..end).and_then(|lines| lines.strip_suffix(b"\n")) else {
            return (0, None, torn);
        };
        let start = after_newline(lines);
        let line = lines.get(start..).unwrap_or_default();
        if !line.ends_with(b"#") {
            return (start, Some(line), torn);
        }
        end = start;
    }
}

/// Writes a line with its signature.
pub(crate) fn sign_line(purpose: Purpose, mut line: Line<'_>, key: &SessionKey, to: &mut Vec<u8>) {
    let start = to.len();
    line.sig = None;
    line.write(to);
    // Without its last brace: that is what is signed.
    to.pop();
    let signature = key.sign(purpose, to.get(start..).unwrap_or_default());
    to.extend_from_slice(format!(",\"sig\":\"{signature}\"}}").as_bytes());
}

/// Makes what was written to a file survive a loss of power.
pub(crate) fn make_durable(file: &File) -> io::Result<()> {
    file.sync_data()?;
    #[cfg(test)]
    crate::audit::testing::synced(file)?;
    Ok(())
}

/// One write to a file that is in append mode; less than all of it is an error.
pub(crate) fn write_once(file: &File, bytes: &[u8]) -> io::Result<()> {
    #[cfg(test)]
    crate::audit::testing::writes(file);
    loop {
        match rustix::io::write(file, bytes) {
            Ok(written) if written == bytes.len() => return Ok(()),
            Ok(_) => return Err(io::ErrorKind::WriteZero.into()),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Whether the install key certified the entry's key, which signed it.
pub(crate) fn entry_holds(line: &Line<'_>, bytes: &[u8], install: &Hash) -> bool {
    let (Some(key), Some(cert), Some(sig)) = (&line.key, &line.cert, &line.sig) else {
        return false;
    };
    let session = line.session.as_deref().unwrap_or_default();
    line.install.as_ref() == Some(install)
        && is_certified(install, session, key, cert)
        && is_signed(Purpose::Witness, key, bytes, sig)
}

/// One entry of one session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    /// Its number in the witness.
    pub(crate) entry: u64,
    /// The line of the log.
    pub(crate) at: u64,
    /// The hash of the log there.
    pub(crate) hash: Hash,
}

/// Where a witness stops holding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokenWitness {
    /// The entry.
    pub at: u64,
    /// What is wrong there.
    pub why: Why,
}

/// Reads a witness for the entries of one session, in order.
pub(crate) struct Cursor<'w> {
    lines: Linked<Box<dyn BufRead + 'w>>,
    /// The last entry, while its signature is not checked: it is of another
    /// session.
    unchecked: Vec<u8>,
    /// Where it does not hold; nothing is read beyond.
    pub(crate) broken: Option<BrokenWitness>,
}

impl<'w> Cursor<'w> {
    pub(crate) fn new(reader: Box<dyn BufRead + 'w>) -> Self {
        let lines = Linked::new(reader, &WITNESS_TYPES, Chain::START);
        Self { lines, unchecked: Vec::new(), broken: None }
    }

    /// The next entry of the session; `None` at the end or where the witness
    /// does not hold.
    pub(crate) fn next_of(&mut self, session: &str, install: &Hash) -> io::Result<Option<Seen>> {
        while self.broken.is_none() {
            let unchecked = &mut self.unchecked;
            let step = self.lines.step(&mut |line, bytes, _| {
                unchecked.clear();
                if line.session.as_deref() != Some(session) {
                    unchecked.extend_from_slice(bytes);
                    return Ok(None);
                }
                if !entry_holds(line, bytes, install) {
                    return Err(Why::Signature);
                }
                let seen = line.at.zip(line.hash).zip(line.seq);
                Ok(seen.map(|((at, hash), entry)| Seen { entry, at, hash }))
            })?;
            match step {
                Step::Line(Some(seen)) => return Ok(Some(seen)),
                Step::Line(None) => {}
                Step::End { .. } => {
                    if !self.end_holds(install) {
                        let at = self.lines.chain.next.saturating_sub(1);
                        self.broken = Some(BrokenWitness { at, why: Why::Signature });
                    }
                    break;
                }
                Step::Broken(why) => {
                    self.broken = Some(BrokenWitness { at: self.lines.chain.next, why });
                }
            }
        }
        Ok(None)
    }

    /// Whether the signature of the last entry holds, which covers all entries
    /// before it: without it anyone could take some out and link the rest.
    fn end_holds(&self, install: &Hash) -> bool {
        self.unchecked.is_empty()
            || Line::parse_as(&self.unchecked, &WITNESS_TYPES, &mut Vec::new())
                .is_ok_and(|line| entry_holds(&line, &self.unchecked, install))
    }
}

/// What a check of a whole witness gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WitnessReport {
    /// Entries that hold.
    pub entries: u64,
    /// Where it does not hold.
    pub broken: Option<BrokenWitness>,
    /// The hash of all entries that hold, to be kept elsewhere.
    pub head: Hash,
    /// Bytes up to the end of the last entry that holds, those that were set
    /// aside included.
    pub bytes: u64,
    /// Bytes at the end that are no whole entry.
    pub torn_bytes: u64,
}

/// Checks chain and signatures of a whole witness; memory is bounded by two
/// entries.
///
/// # Errors
/// The reader's.
pub fn verify_witness(reader: impl BufRead, install: &[u8; 32]) -> io::Result<WitnessReport> {
    let install = Bytes(*install);
    let mut lines = Linked::new(reader, &WITNESS_TYPES, Chain::START);
    let head = Bytes([0; 32]);
    let mut report = WitnessReport { entries: 0, broken: None, head, bytes: 0, torn_bytes: 0 };
    loop {
        let step = lines.step(&mut |line, bytes, _| {
            if line.install != Some(install) {
                return Err(Why::Install);
            }
            if entry_holds(line, bytes, &install) { Ok(()) } else { Err(Why::Signature) }
        })?;
        report.entries = lines.chain.next;
        report.head = lines.chain.hash;
        report.bytes = lines.held_bytes;
        match step {
            Step::Line(()) => {}
            Step::End { torn } => {
                report.torn_bytes = torn.map_or(0, |torn| torn.bytes);
                return Ok(report);
            }
            Step::Broken(why) => {
                report.broken = Some(BrokenWitness { at: lines.chain.next, why });
                return Ok(report);
            }
        }
    }
}
