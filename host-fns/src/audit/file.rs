//! The log of one session in a file.
//!
//! What: [`FileSink`] writes every record as one line, signs checkpoints and
//! tells the witness.
//!
//! Invariant: an intent is written, with room reserved on the file system for
//! its outcome, for the sums that may follow and for the close, before the
//! effect; a full disk denies effects and leaves none unrecorded. One write a
//! record. Nothing is appended after a write that did not succeed whole, nor
//! after the close, which destroys the session's key. What the witness is told
//! of is on the disk first: a loss of power leaves no log behind its witness.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fumehood_policies::Verdict;
use rustix::fs::{FallocateFlags, FlockOperation};

use crate::audit::chain::Chain;
use crate::audit::encode::{MAX_SUM_LINE_BYTES, OUTCOME_EXTRA_BYTES, Place, encode};
use crate::audit::line::{Bytes, FORMAT_VERSION, Hash, Line, MAX_AUDIT_LINE_BYTES};
use crate::audit::record::{AuditRecord, Outcome, Phase};
use crate::audit::sign::{KeyError, Purpose, SessionKey, Signer};
use crate::audit::sink::{AuditSink, AuditUnavailable};
use crate::audit::verify::Verdict as Verified;
use crate::audit::witness::{Event, Witness, WitnessError, make_durable, sign_line, write_once};
use crate::environment::{Clock, RandomSource};

/// Lines between two signed ones, unless something else is asked for.
pub const DEFAULT_CHECKPOINT_LINES: u64 = 4096;
/// Room for a checkpoint, a recovery and the close, in bytes.
pub(super) const CLOSING_BYTES: u64 = 4 << 10;
/// Room is reserved in pieces of this many bytes.
const RESERVE_BYTES: u64 = 64 << 10;

/// How often a lock is tried that somebody else holds, and the pause between.
const LOCK_TRIES: u32 = 10;
const LOCK_PAUSE: Duration = Duration::from_millis(2);

const CLOSED: AuditUnavailable = AuditUnavailable("it is closed");
const FULL: AuditUnavailable = AuditUnavailable("there is no room for it on its file system");
const BROKEN: AuditUnavailable = AuditUnavailable("its file could not be written");
const NOT_DURABLE: AuditUnavailable = AuditUnavailable("its file could not be made durable");
const TOO_LONG: AuditUnavailable = AuditUnavailable("the record would be too long");
const NO_WITNESS: AuditUnavailable = AuditUnavailable("the witness could not be written");
const STRANGER: AuditUnavailable = AuditUnavailable("the record is of another session");

/// When what was written is made to survive a loss of power. A crash of the
/// process loses nothing that was written either way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// At checkpoints and at the close.
    #[default]
    Checkpoint,
    /// Also before every effect that cannot be taken back.
    Strict,
}

impl Durability {
    fn name(self) -> &'static str {
        match self {
            Self::Checkpoint => "checkpoint",
            Self::Strict => "strict",
        }
    }
}

/// What the first line of a log says.
#[derive(Clone, Debug)]
pub struct LogHeader {
    /// The session.
    pub session: String,
    /// The tier.
    pub tier: &'static str,
    /// SHA-256 of the guest artefact.
    pub guest: [u8; 32],
    /// SHA-256 of the policy.
    pub policy: [u8; 32],
    /// SHA-256 of the program, if the session is for one.
    pub program: Option<[u8; 32]>,
}

/// What a log is written with.
pub struct LogSettings<'s> {
    /// Certifies the session's key.
    pub signer: &'s dyn Signer,
    /// Hears of every signed line.
    pub witness: Option<Witness>,
    /// When what was written is made durable.
    pub durability: Durability,
    /// Most lines between two signed ones, at least 2.
    pub checkpoint_lines: u64,
    /// Clock of the records, not of the guest.
    pub clock: Arc<dyn Clock>,
    /// Randomness for the session's key.
    pub random: &'s dyn RandomSource,
}

/// Why a log is not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenLogError {
    /// Another process writes to it.
    #[error("another process writes to the log")]
    Locked,
    /// The system's reason.
    #[error("the log cannot be written")]
    Io(#[from] io::Error),
    /// The file is not empty.
    #[error("there is a log already")]
    Exists,
    /// Room cannot be reserved there at all.
    #[error("the file system cannot reserve room for a file, and no effect may be left unrecorded")]
    NoReservation,
    /// There is no room.
    #[error("there is no room for the log on its file system")]
    Full,
    /// The session gets no key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The witness takes no entry.
    #[error(transparent)]
    Witness(#[from] WitnessError),
    /// The log does not hold.
    #[error("nothing is appended to a log that does not verify")]
    Unverified(Box<Verified>),
}

/// Writes the log of one session.
pub struct FileSink {
    session: Arc<str>,
    durability: Durability,
    every: u64,
    clock: Arc<dyn Clock>,
    witness: Option<Witness>,
    inner: Mutex<Inner>,
}

struct Inner {
    file: File,
    /// Bytes of the file.
    length: u64,
    /// Bytes that the file system has set aside for it.
    reserved: u64,
    chain: Chain,
    since_signed: u64,
    /// `None` once the log is closed.
    key: Option<SessionKey>,
    /// Room promised to outcomes, by call.
    promised: BTreeMap<u64, u64>,
    promised_bytes: u64,
    /// Sums that may come.
    held: u64,
    policy: Hash,
    /// No further effect may begin.
    denying: Option<AuditUnavailable>,
    /// No further line may be written.
    broken: Option<AuditUnavailable>,
    buffer: Vec<u8>,
}

impl std::fmt::Debug for FileSink {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("FileSink").field("session", &self.session).finish_non_exhaustive()
    }
}

/// Takes the lock that a log's only writer holds. Who only looks whether there
/// is a writer holds it for a moment: that is waited for.
pub(super) fn lock_log(file: &File) -> Result<(), OpenLogError> {
    for _ in 0..LOCK_TRIES {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::WOULDBLOCK) => std::thread::sleep(LOCK_PAUSE),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(OpenLogError::Io(error.into())),
        }
    }
    Err(OpenLogError::Locked)
}

impl FileSink {
    /// Begins a log in an empty file that was opened to read and to append.
    ///
    /// # Errors
    /// [`OpenLogError`]; then no effect may happen.
    pub fn create(
        file: File,
        header: &LogHeader,
        settings: LogSettings<'_>,
    ) -> Result<Self, OpenLogError> {
        lock_log(&file)?;
        if file.metadata()?.len() != 0 {
            return Err(OpenLogError::Exists);
        }
        let LogSettings { signer, witness, durability, checkpoint_lines, clock, random } = settings;
        let every = checkpoint_lines.max(2);
        let key = SessionKey::new(&header.session, signer, random)?;
        let mut inner = Inner::new(file, Chain::START, 0, Bytes(header.policy));
        inner.make_room(0)?;
        {
            let mut locked =
                witness.as_ref().map(|witness| witness.lock(&key.install)).transpose()?;
            let before = locked.as_ref().map_or(0, |locked| locked.time_us());
            let line = Line {
                version: Some(FORMAT_VERSION),
                seq: Some(0),
                time_us: Some(before.max(clock.wall_ns() / 1000)),
                kind: Some("header".into()),
                session: Some(header.session.as_str().into()),
                tier: Some(header.tier.into()),
                guest: Some(Bytes(header.guest)),
                policy: Some(Bytes(header.policy)),
                program: header.program.map(Bytes),
                every: Some(every),
                durability: Some(durability.name().into()),
                witness: locked.as_ref().map(|locked| locked.next()),
                install: Some(key.install),
                key: Some(key.public),
                cert: Some(key.cert),
                prev: Some(Chain::START.hash),
                ..Line::default()
            };
            inner.sign_and_write(line, &key)?;
            if durability == Durability::Strict {
                make_durable(&inner.file)?;
            }
            if let Some(locked) = &mut locked {
                let event = Event::Signed { kind: "open", at: 0, hash: &inner.chain.hash };
                locked.append(&header.session, &key, event)?;
            }
        }
        inner.key = Some(key);
        let session = Arc::from(header.session.as_str());
        Ok(Self { session, durability, every, clock, witness, inner: Mutex::new(inner) })
    }

    pub(super) fn of_parts(
        session: &str,
        durability: Durability,
        every: u64,
        clock: Arc<dyn Clock>,
        witness: Option<Witness>,
        inner: Continued,
    ) -> Self {
        let session = Arc::from(session);
        Self { session, durability, every, clock, witness, inner: Mutex::new(inner.0) }
    }

    /// Leaves the log as a crash would: without a close.
    #[cfg(test)]
    pub(crate) fn crash(self) {
        self.lock().key = None;
    }

    /// Bytes of its room that are free.
    #[cfg(test)]
    pub(crate) fn room(&self) -> u64 {
        let inner = self.lock();
        inner.reserved.saturating_sub(inner.length)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self, chain: &Chain) -> u64 {
        (self.clock.wall_ns() / 1000).max(chain.time_us)
    }

    /// Signs what is there, makes it durable and tells the witness.
    fn checkpoint(&self, inner: &mut Inner, kind: &'static str) -> Result<(), AuditUnavailable> {
        let Some(key) = inner.key.take() else { return Err(CLOSED) };
        let unknown = (kind == "close").then_some(inner.promised.len() as u64);
        let line = Line {
            seq: Some(inner.chain.next),
            time_us: Some(self.now(&inner.chain)),
            kind: Some(kind.into()),
            session: Some((&*self.session).into()),
            unknown,
            prev: Some(inner.chain.hash),
            ..Line::default()
        };
        let at = inner.chain.next;
        if inner.sign_and_write(line, &key).is_err() {
            inner.broken = Some(BROKEN);
            return Err(BROKEN);
        }
        let witnessed = make_durable(&inner.file)
            .map_err(|_| NOT_DURABLE)
            .and_then(|()| self.tell(inner, &key, kind, at));
        if kind != "close" {
            inner.key = Some(key);
        } else {
            // What was reserved and is not needed any more.
            let _ = rustix::fs::ftruncate(&inner.file, inner.length);
        }
        witnessed
    }

    fn tell(
        &self,
        inner: &Inner,
        key: &SessionKey,
        kind: &'static str,
        at: u64,
    ) -> Result<(), AuditUnavailable> {
        let Some(witness) = &self.witness else { return Ok(()) };
        let event = Event::Signed { kind, at, hash: &inner.chain.hash };
        let locked = witness.lock(&key.install);
        let told = locked.and_then(|mut locked| locked.append(&self.session, key, event));
        told.map_err(|_| NO_WITNESS)?;
        witness.sync().map_err(|_| NOT_DURABLE)
    }

    fn append(&self, inner: &mut Inner, record: &AuditRecord) -> Result<(), AuditUnavailable> {
        if record.session != self.session {
            return Err(STRANGER);
        }
        let time_us = self.now(&inner.chain);
        inner.encode(record, time_us)?;
        let bytes = inner.buffer.len() as u64;
        let begins = record.phase == Phase::Intent && record.verdict == Verdict::Allow;
        match record.phase {
            Phase::Intent => {
                let promise = if begins { bytes.saturating_add(OUTCOME_EXTRA_BYTES) } else { 0 };
                inner.make_room(bytes.saturating_add(promise)).map_err(|error| match error {
                    OpenLogError::Full => FULL,
                    _ => BROKEN,
                })?;
                inner.write_buffer(time_us)?;
                if begins {
                    inner.promised.insert(record.call, promise);
                    inner.promised_bytes = inner.promised_bytes.saturating_add(promise);
                }
            }
            Phase::Outcome(_) => {
                let promise = inner.promised.remove(&record.call).unwrap_or_default();
                inner.promised_bytes = inner.promised_bytes.saturating_sub(promise);
                inner.write_buffer(time_us)?;
            }
            Phase::Sum { .. } => {
                inner.make_room_for_sum(bytes)?;
                inner.write_buffer(time_us)?;
            }
        }
        inner.since_signed = inner.since_signed.saturating_add(1);
        if inner.since_signed >= self.every {
            let signed = self.checkpoint(inner, "checkpoint");
            inner.denying = inner.denying.or(signed.err());
        }
        Ok(())
    }
}

impl AuditSink for FileSink {
    fn record(&self, record: AuditRecord) -> Result<(), AuditUnavailable> {
        let mut guard = self.lock();
        let inner = &mut *guard;
        inner.usable()?;
        let begins = record.phase == Phase::Intent && record.verdict == Verdict::Allow;
        if let Some(why) = inner.denying.filter(|_| begins) {
            return Err(why);
        }
        self.append(inner, &record)?;
        let strict = self.durability == Durability::Strict && record.irreversible && begins;
        if strict && make_durable(&inner.file).is_err() {
            inner.denying = Some(NOT_DURABLE);
            let phase = Phase::Outcome(Outcome::NotStarted);
            self.append(inner, &AuditRecord { phase, preview: None, digest: None, ..record })?;
            return Err(NOT_DURABLE);
        }
        Ok(())
    }

    fn hold_room(&self, sums: u32) -> Result<(), AuditUnavailable> {
        let mut inner = self.lock();
        inner.usable()?;
        let before = inner.held;
        inner.held = before.saturating_add(u64::from(sums));
        inner.make_room(0).map_err(|_| {
            inner.held = before;
            FULL
        })
    }

    fn give_back_room(&self, sums: u32) {
        let mut inner = self.lock();
        inner.held = inner.held.saturating_sub(u64::from(sums));
    }

    fn close(&self) -> Result<(), AuditUnavailable> {
        let mut guard = self.lock();
        let inner = &mut *guard;
        if let Some(why) = inner.broken {
            inner.key = None;
            return Err(why);
        }
        if inner.key.is_none() {
            return Ok(());
        }
        self.checkpoint(inner, "close")
    }
}

impl Drop for FileSink {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::error!(session = &*self.session, %error, "the audit log was not closed");
        }
    }
}

/// A log that is continued.
pub(super) struct Continued(Inner);

impl Continued {
    pub(super) fn new(file: File, chain: Chain, length: u64, policy: Hash) -> Self {
        Self(Inner::new(file, chain, length, policy))
    }

    pub(super) fn make_room(&mut self) -> Result<(), OpenLogError> {
        self.0.make_room(CLOSING_BYTES)
    }

    pub(super) fn chain(&self) -> &Chain {
        &self.0.chain
    }

    /// Writes a signed line after `before`, and takes the key over.
    pub(super) fn sign(
        &mut self,
        before: &[u8],
        line: Line<'_>,
        key: SessionKey,
    ) -> Result<(), OpenLogError> {
        self.0.sign_and_write_after(before, line, &key)?;
        self.0.key = Some(key);
        Ok(())
    }

    /// Makes what was written survive a loss of power.
    pub(super) fn make_durable(&self) -> io::Result<()> {
        make_durable(&self.0.file)
    }

    pub(super) fn key(&self) -> Option<&SessionKey> {
        self.0.key.as_ref()
    }
}

impl Inner {
    fn new(file: File, chain: Chain, length: u64, policy: Hash) -> Self {
        Self {
            file,
            length,
            reserved: length,
            chain,
            since_signed: 0,
            key: None,
            promised: BTreeMap::new(),
            promised_bytes: 0,
            held: 0,
            policy,
            denying: None,
            broken: None,
            buffer: Vec::new(),
        }
    }

    fn usable(&self) -> Result<(), AuditUnavailable> {
        match self.broken {
            Some(why) => Err(why),
            None if self.key.is_none() => Err(CLOSED),
            None => Ok(()),
        }
    }

    /// Makes sure that there is room for `more` bytes and for everything that
    /// was promised.
    fn make_room(&mut self, more: u64) -> Result<(), OpenLogError> {
        let held = self.held.saturating_mul(MAX_SUM_LINE_BYTES);
        let needed = [more, self.promised_bytes, held, CLOSING_BYTES]
            .into_iter()
            .fold(self.length, u64::saturating_add);
        if needed <= self.reserved {
            return Ok(());
        }
        #[cfg(test)]
        if crate::audit::testing::is_disk_full() {
            return Err(OpenLogError::Full);
        }
        let upto = needed.saturating_add(RESERVE_BYTES);
        let grow = upto.saturating_sub(self.length);
        loop {
            let flags = FallocateFlags::KEEP_SIZE;
            match rustix::fs::fallocate(&self.file, flags, self.length, grow) {
                Ok(()) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {
                    return Err(OpenLogError::NoReservation);
                }
                Err(
                    rustix::io::Errno::NOSPC | rustix::io::Errno::DQUOT | rustix::io::Errno::FBIG,
                ) => return Err(OpenLogError::Full),
                Err(error) => return Err(OpenLogError::Io(error.into())),
            }
        }
        self.reserved = upto;
        Ok(())
    }

    /// Makes sure that a sum of `more` bytes takes nothing of what was promised
    /// to outcomes and to the close. It may take what is held for sums.
    fn make_room_for_sum(&mut self, more: u64) -> Result<(), AuditUnavailable> {
        let held = std::mem::take(&mut self.held);
        let room = self.make_room(more);
        self.held = held;
        room.map_err(|_| FULL)
    }

    /// Writes the buffer, which holds one line with its newline.
    fn write_buffer(&mut self, time_us: u64) -> Result<(), AuditUnavailable> {
        if let Err(error) = write_once(&self.file, &self.buffer) {
            let is_full = matches!(error.kind(), io::ErrorKind::StorageFull)
                || error.raw_os_error() == Some(rustix::io::Errno::DQUOT.raw_os_error());
            if is_full {
                return Err(FULL);
            }
            self.broken = Some(BROKEN);
            return Err(BROKEN);
        }
        self.wrote(0, time_us);
        Ok(())
    }

    /// Takes over that the buffer was written; its line begins at `start`.
    fn wrote(&mut self, start: usize, time_us: u64) {
        let bytes = self.buffer.len() as u64;
        let line = self.buffer.get(start..self.buffer.len().saturating_sub(1));
        let hash = self.chain.hash_with(line.unwrap_or_default());
        self.chain = self.chain.with(hash, time_us);
        self.length = self.length.saturating_add(bytes);
    }

    fn sign_and_write(&mut self, line: Line<'_>, key: &SessionKey) -> Result<(), OpenLogError> {
        self.sign_and_write_after(b"", line, key)
    }

    fn sign_and_write_after(
        &mut self,
        before: &[u8],
        line: Line<'_>,
        key: &SessionKey,
    ) -> Result<(), OpenLogError> {
        let time_us = line.time_us.unwrap_or_default();
        self.buffer.clear();
        self.buffer.extend_from_slice(before);
        sign_line(Purpose::Log, line, key, &mut self.buffer);
        self.buffer.push(b'\n');
        write_once(&self.file, &self.buffer)?;
        self.wrote(before.len(), time_us);
        self.since_signed = 0;
        Ok(())
    }

    /// Puts a record's line into the buffer.
    fn encode(&mut self, record: &AuditRecord, time_us: u64) -> Result<(), AuditUnavailable> {
        self.buffer.clear();
        let place = Place { chain: &self.chain, policy: &self.policy, time_us };
        encode(record, &place, &mut self.buffer);
        self.buffer.push(b'\n');
        if self.buffer.len() > MAX_AUDIT_LINE_BYTES { Err(TOO_LONG) } else { Ok(()) }
    }
}
