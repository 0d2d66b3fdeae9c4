//! Logs for tests: an honest writer with a clock that can be set, and files in
//! a directory that is removed.
#![allow(clippy::unwrap_used, clippy::panic, clippy::disallowed_methods, reason = "tests")]

use std::cell::{Cell, RefCell};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Cursor};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fumehood_policies::Verdict as Decision;

use crate::audit::{
    AuditRecord, Draw, Durability, FileSink, LocalSigner, LogHeader, LogSettings, OpenLogError,
    Outcome, Phase, PolicyId, Signer, Target, Trust, VerifyReport, Witness, verify_log,
};
use crate::environment::{Clock, OsRandom};
use crate::testing::path;

/// What was done to a file, which is named by its inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Touch {
    Write(u64),
    Sync(u64),
}

thread_local! {
    static TOUCHES: RefCell<Vec<Touch>> = const { RefCell::new(Vec::new()) };
    static SYNCS_FAIL: Cell<bool> = const { Cell::new(false) };
    static DISK_FULL: Cell<bool> = const { Cell::new(false) };
}

fn inode(file: &File) -> u64 {
    file.metadata().unwrap().ino()
}

/// A line is about to be written.
pub(crate) fn writes(file: &File) {
    TOUCHES.with_borrow_mut(|touches| touches.push(Touch::Write(inode(file))));
}

/// A file was made durable, unless the test says that disks fail.
pub(crate) fn synced(file: &File) -> io::Result<()> {
    if SYNCS_FAIL.get() {
        return Err(io::Error::other("the disk failed"));
    }
    TOUCHES.with_borrow_mut(|touches| touches.push(Touch::Sync(inode(file))));
    Ok(())
}

/// From now on nothing on this thread is made durable, or it is again.
pub(crate) fn syncs_fail(fail: bool) {
    SYNCS_FAIL.set(fail);
}

/// From now on no room can be reserved on this thread, or it can again.
pub(crate) fn fill_disk(full: bool) {
    DISK_FULL.set(full);
}

pub(crate) fn is_disk_full() -> bool {
    DISK_FULL.get()
}

/// What this thread did to log and witness since it was asked last.
pub(crate) fn touches() -> Vec<Touch> {
    TOUCHES.take()
}

/// A clock that a test sets.
#[derive(Debug)]
pub(crate) struct SetClock(pub(crate) AtomicU64);

impl SetClock {
    pub(crate) fn at(us: u64) -> Arc<Self> {
        Arc::new(Self(AtomicU64::new(us * 1000)))
    }
}

impl Clock for SetClock {
    /// A microsecond more each time.
    fn wall_ns(&self) -> u64 {
        self.0.fetch_add(1000, Ordering::Relaxed)
    }

    fn monotonic_ns(&self) -> u64 {
        0
    }
}

pub(crate) fn signer() -> LocalSigner {
    LocalSigner::from_seed(&[1; 32])
}

pub(crate) fn append_to(file: &Path) -> File {
    OpenOptions::new().read(true).append(true).create(true).open(file).unwrap()
}

pub(crate) struct Place {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) clock: Arc<SetClock>,
    pub(crate) every: u64,
    pub(crate) durability: Durability,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
            clock: SetClock::at(1_700_000_000_000_000),
            every: 10,
            durability: Durability::Checkpoint,
        }
    }

    pub(crate) fn log(&self, session: &str) -> std::path::PathBuf {
        self.directory.path().join(session)
    }

    pub(crate) fn witness(&self) -> std::path::PathBuf {
        self.directory.path().join("witness")
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.clock) as Arc<dyn Clock>
    }

    fn settings<'s>(&self, signer: &'s dyn Signer) -> LogSettings<'s> {
        LogSettings {
            signer,
            witness: Some(Witness::new(append_to(&self.witness()), self.clock())),
            durability: self.durability,
            checkpoint_lines: self.every,
            clock: self.clock(),
            random: &OsRandom,
        }
    }

    pub(crate) fn begin_by(
        &self,
        session: &str,
        signer: &dyn Signer,
    ) -> Result<FileSink, OpenLogError> {
        let header = LogHeader {
            session: session.to_owned(),
            tier: "wasm",
            guest: [2; 32],
            policy: [3; 32],
            program: Some([4; 32]),
        };
        FileSink::create(append_to(&self.log(session)), &header, self.settings(signer))
    }

    pub(crate) fn begin(&self, session: &str) -> FileSink {
        self.begin_by(session, &signer()).unwrap()
    }

    pub(crate) fn reopen(
        &self,
        session: &str,
    ) -> Result<(FileSink, crate::audit::Recovery), OpenLogError> {
        let witness = Box::new(BufReader::new(File::open(self.witness()).unwrap()));
        FileSink::reopen(append_to(&self.log(session)), self.settings(&signer()), Some(witness))
    }

    pub(crate) fn bytes(&self, session: &str) -> Vec<u8> {
        std::fs::read(self.log(session)).unwrap()
    }

    pub(crate) fn witness_bytes(&self) -> Vec<u8> {
        std::fs::read(self.witness()).unwrap()
    }

    pub(crate) fn verify(&self, session: &str) -> VerifyReport {
        check(&self.bytes(session), Some(&self.witness_bytes()), true)
    }
}

pub(crate) fn check(log: &[u8], witness: Option<&[u8]>, with_key: bool) -> VerifyReport {
    let witness = witness.map(|bytes| Box::new(Cursor::new(bytes)) as Box<dyn BufRead>);
    let install = with_key.then(|| signer().public_key());
    verify_log(log, Trust { install, witness }).unwrap()
}

/// A record of call `call`.
pub(crate) fn record(session: &str, call: u64, phase: Phase) -> AuditRecord {
    AuditRecord {
        sequence: 0,
        call,
        parent: 0,
        session: session.into(),
        tier: "wasm",
        operation: "fs.create",
        target: Target::Path(path("/work/file")),
        verdict: Decision::Allow,
        rule: "root".into(),
        policy: Arc::new(PolicyId { generation: 1, digest: [3; 32] }),
        phase,
        draw: Draw { budget: "created_entries", before: 10, after: 9 },
        bytes_in: 1,
        bytes_out: 2,
        digest: Some([5; 32]),
        preview: None,
        duration_us: None,
        irreversible: false,
    }
}

/// Intent and outcome of one call.
pub(crate) fn effect(session: &str, call: u64) -> [AuditRecord; 2] {
    let outcome = Phase::Outcome(Outcome::Done);
    [record(session, call, Phase::Intent), record(session, call, outcome)]
}
