//! Session records in a directory: the log of every session, what it was, the
//! install key and the witness.
//!
//! What: [`Home`] is the directory; [`SessionRecord`] writes one session in
//! it. Layout: `install.key`, `install.pub`, `witness.jsonl`,
//! `sessions/<id>/` with `session.json` and `audit.jsonl`, and
//! `workspaces/<name>/` for the workspaces of projects.
//! Why: a command can show afterwards what was done; a library that is not
//! given a home writes nothing.
//!
//! Invariant: every file is reached from the home's own handle without
//! following a link, is a regular file of this user and of nobody else's
//! reach (0700, 0600); a name of a session is never a path.

mod directory;
mod keep;
mod session;
mod workspaces;

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::OFlags;
use zeroize::Zeroizing;

use crate::audit::{
    Bytes, DEFAULT_CHECKPOINT_LINES, Durability, FileSink, Hash, LocalSigner, LogSettings,
    OpenLogError, Recovery, Signer as _, Trust, Verdict, VerifyReport, Why, Witness, verify_log,
};
use crate::environment::{OsRandom, RandomSource as _, SystemClock};
use directory::Directory;
pub use directory::is_session_name;
pub use keep::{Removed, Retention};
pub use session::{SessionEnd, SessionInfo, SessionRecord, SessionStart, SessionState};

const INSTALL_KEY: &str = "install.key";
const INSTALL_PUB: &str = "install.pub";
const WITNESS: &str = "witness.jsonl";
const SESSIONS: &str = "sessions";
const LOG: &str = "audit.jsonl";
const INFO: &str = "session.json";
/// Longest file that is read whole, in bytes.
const MAX_SMALL_FILE_BYTES: u64 = 64 << 10;

/// Why records cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum RecordsError {
    /// The directory cannot be used.
    #[error("the directory `{}` for session records cannot be used: {reason}", .path.display())]
    Home {
        /// The directory.
        path: PathBuf,
        /// Why, as half a sentence.
        reason: String,
    },
    /// A file in it cannot be used.
    #[error("`{name}` in the directory for session records cannot be used")]
    File {
        /// The file.
        name: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The install key is not one.
    #[error("`{INSTALL_KEY}` in the directory for session records holds no key")]
    InstallKey,
    /// The log cannot be opened.
    #[error("the audit log of session `{session}` cannot be written")]
    Log {
        /// The session.
        session: String,
        /// Why.
        #[source]
        source: OpenLogError,
    },
    /// There is no such session.
    #[error("there is no session `{0}`")]
    NoSession(String),
    /// It is being written.
    #[error("session `{0}` is still running")]
    Running(String),
    /// There is no randomness.
    #[error("the random source failed")]
    Random,
}

impl RecordsError {
    /// A stable identifier.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Home { .. } => "records_home",
            Self::File { .. } => "records_file",
            Self::InstallKey => "records_install_key",
            Self::Log { .. } => "records_log",
            Self::NoSession(_) => "records_no_session",
            Self::Running(_) => "records_running",
            Self::Random => "records_random",
        }
    }

    fn file(name: &str, source: impl Into<io::Error>) -> Self {
        Self::File { name: name.to_owned(), source: source.into() }
    }

    /// The system's reason in words, for a message.
    #[must_use]
    pub fn detail(&self) -> String {
        let mut text = self.to_string();
        let mut source = std::error::Error::source(self);
        while let Some(error) = source {
            text = format!("{text} ({error})");
            source = error.source();
        }
        text
    }
}

/// The directory of an installation's records.
#[derive(Debug)]
pub struct Home {
    root: Directory,
    path: PathBuf,
}

impl Home {
    /// Opens the directory; `create` makes it, and what it is in, where it is
    /// not there.
    ///
    /// # Errors
    /// [`RecordsError::Home`] if it cannot be trusted or made.
    pub fn open(path: &Path, create: bool) -> Result<Self, RecordsError> {
        let root = Directory::open(path, create)
            .map_err(|reason| RecordsError::Home { path: path.to_owned(), reason })?;
        Ok(Self { root, path: path.to_owned() })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn sessions(&self, create: bool) -> Result<Option<Directory>, RecordsError> {
        self.root.directory(SESSIONS, create).map_err(|error| RecordsError::file(SESSIONS, error))
    }

    fn session(&self, session: &str) -> Result<Directory, RecordsError> {
        let missing = || RecordsError::NoSession(session.to_owned());
        if !is_session_name(session) {
            return Err(missing());
        }
        let sessions = self.sessions(false)?.ok_or_else(missing)?;
        let found = sessions.directory(session, false);
        found.map_err(|error| RecordsError::file(session, error))?.ok_or_else(missing)
    }

    /// The public half of the install key; `None` before the first session.
    ///
    /// # Errors
    /// [`RecordsError`] if there is a file that holds none.
    pub fn install_public(&self) -> Result<Option<[u8; 32]>, RecordsError> {
        let read = self.root.read_small(INSTALL_PUB, MAX_SMALL_FILE_BYTES);
        let Some(bytes) = read.map_err(|error| RecordsError::file(INSTALL_PUB, error))? else {
            return Ok(None);
        };
        let text = std::str::from_utf8(&bytes).unwrap_or_default().trim_end_matches('\n');
        let key: Hash = text.parse().map_err(|_| RecordsError::InstallKey)?;
        Ok(Some(key.0))
    }

    /// The install key, made if there is none.
    fn install_key(&self) -> Result<LocalSigner, RecordsError> {
        let failed = |error: io::Error| RecordsError::file(INSTALL_KEY, error);
        if let Some(key) = self.read_install_key()? {
            return Ok(key);
        }
        let mut seed = Zeroizing::new([0; 32]);
        OsRandom.fill(seed.as_mut()).map_err(|_| RecordsError::Random)?;
        let text = Zeroizing::new(format!("{}\n", Bytes(*seed)));
        // Of processes that make one at the same time, one wins.
        self.root.create_once(INSTALL_KEY, text.as_bytes()).map_err(failed)?;
        self.read_install_key()?.ok_or(RecordsError::InstallKey)
    }

    fn read_install_key(&self) -> Result<Option<LocalSigner>, RecordsError> {
        let read = self.root.read_small(INSTALL_KEY, MAX_SMALL_FILE_BYTES);
        let Some(bytes) = read.map_err(|error| RecordsError::file(INSTALL_KEY, error))? else {
            return Ok(None);
        };
        let bytes = Zeroizing::new(bytes);
        let text = std::str::from_utf8(&bytes).unwrap_or_default().trim_end_matches('\n');
        let seed: Bytes<32> = text.parse().map_err(|_| RecordsError::InstallKey)?;
        let seed = Zeroizing::new(seed.0);
        let signer = LocalSigner::from_seed(&seed);
        let public = signer.public_key();
        if self.install_public()? != Some(public) {
            let text = format!("{}\n", Bytes(public));
            self.root
                .replace_durably(INSTALL_PUB, text.as_bytes())
                .map_err(|error| RecordsError::file(INSTALL_PUB, error))?;
        }
        Ok(Some(signer))
    }

    /// The witness, to read it; `None` before the first session.
    ///
    /// # Errors
    /// [`RecordsError::File`].
    pub fn witness(&self) -> Result<Option<File>, RecordsError> {
        self.root.file(WITNESS, OFlags::RDONLY).map_err(|error| RecordsError::file(WITNESS, error))
    }

    fn appended_witness(&self) -> Result<Witness, RecordsError> {
        let flags = OFlags::RDWR | OFlags::APPEND | OFlags::CREATE;
        let file = self.root.file(WITNESS, flags);
        let file = file.map_err(|error| RecordsError::file(WITNESS, error))?;
        let file = file.ok_or_else(|| RecordsError::file(WITNESS, io::ErrorKind::NotFound))?;
        Ok(Witness::new(file, Arc::new(SystemClock::new())))
    }

    /// The log of a session, to read it.
    ///
    /// # Errors
    /// [`RecordsError`] if there is none.
    pub fn log(&self, session: &str) -> Result<File, RecordsError> {
        let file = self.session(session)?.file(LOG, OFlags::RDONLY);
        let file = file.map_err(|error| RecordsError::file(LOG, error))?;
        file.ok_or_else(|| RecordsError::NoSession(session.to_owned()))
    }

    /// Checks the log of a session with the install key and the witness that
    /// are here.
    ///
    /// # Errors
    /// [`RecordsError`] if it cannot be read.
    pub fn verify(&self, session: &str) -> Result<VerifyReport, RecordsError> {
        let log = self.log(session)?;
        let trust = Trust { install: self.install_public()?, witness: self.witness_reader()? };
        let report = verify_log(BufReader::with_capacity(1 << 18, log), trust);
        let mut report = report.map_err(|error| RecordsError::file(LOG, error))?;
        if report.session.as_deref().is_some_and(|found| found != session) {
            // A log that holds, but not the one that belongs here.
            report.verdict = Verdict::Broken { at: 0, why: Why::Session };
            report.covered.clear();
        }
        Ok(report)
    }

    fn witness_reader(&self) -> Result<Option<Box<dyn BufRead>>, RecordsError> {
        let witness = self.witness()?;
        Ok(witness.map(|file| {
            let reader: Box<dyn BufRead> = Box::new(BufReader::with_capacity(1 << 16, file));
            reader
        }))
    }

    /// Ends the log of a session that a crash left open: a signed record names
    /// what was not signed, and the log is closed.
    ///
    /// # Errors
    /// [`RecordsError`] if it is running, does not verify or cannot be
    /// written; nothing was appended then.
    pub fn recover(&self, session: &str) -> Result<Recovery, RecordsError> {
        let directory = self.session(session)?;
        if let verdict @ Verdict::Broken { why: Why::Session, .. } = self.verify(session)?.verdict {
            let source = OpenLogError::Unverified(Box::new(verdict));
            return Err(RecordsError::Log { session: session.to_owned(), source });
        }
        let file = directory.file(LOG, OFlags::RDWR | OFlags::APPEND);
        let file = file.map_err(|error| RecordsError::file(LOG, error))?;
        let file = file.ok_or_else(|| RecordsError::NoSession(session.to_owned()))?;
        let failed = |source| match source {
            OpenLogError::Locked => RecordsError::Running(session.to_owned()),
            source => RecordsError::Log { session: session.to_owned(), source },
        };
        let signer = self.install_key()?;
        let settings = self.settings(&signer, Durability::Checkpoint)?;
        let witness = self.witness_reader()?;
        let (sink, recovery) = FileSink::reopen(file, settings, witness).map_err(failed)?;
        crate::audit::AuditSink::close(&sink)
            .map_err(|error| RecordsError::file(LOG, io::Error::other(error)))?;
        self.mark_recovered(&directory);
        Ok(recovery)
    }

    fn settings<'s>(
        &self,
        signer: &'s LocalSigner,
        durability: Durability,
    ) -> Result<LogSettings<'s>, RecordsError> {
        Ok(LogSettings {
            signer,
            witness: Some(self.appended_witness()?),
            durability,
            checkpoint_lines: DEFAULT_CHECKPOINT_LINES,
            clock: Arc::new(SystemClock::new()),
            random: &OsRandom,
        })
    }
}
