//! One session's records.

use std::io;
use std::sync::Arc;

use rustix::fs::{FlockOperation, OFlags};
use serde::{Deserialize, Serialize};

use crate::audit::{
    AuditSink as _, AuditUnavailable, Bytes, Durability, FileSink, LogHeader, OpenLogError,
};
use crate::environment::{Clock as _, SystemClock};
use crate::records::directory::{Directory, is_session_name};
use crate::records::{Home, INFO, LOG, MAX_SMALL_FILE_BYTES, RecordsError, keep::MAX_SESSIONS};

/// What a session is, when it begins.
#[derive(Clone, Debug)]
pub struct SessionStart {
    /// Its header in the log.
    pub header: LogHeader,
    /// The program's name as the guest sees it.
    pub name: String,
    /// When the log is made durable.
    pub durability: Durability,
}

/// How a session ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SessionEnd {
    /// The kind of its outcome.
    pub outcome: String,
    /// Its exit code.
    pub exit_code: i32,
    /// Distinct denials.
    pub denials: u64,
}

/// What `session.json` says. It is for people: the log is the evidence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SessionInfo {
    /// Version of this record.
    pub version: u32,
    /// The session.
    pub session: String,
    /// The program's name as the guest sees it.
    pub name: String,
    /// The tier.
    pub tier: String,
    /// SHA-256 of the guest artefact.
    pub guest: String,
    /// SHA-256 of the policy.
    pub policy: String,
    /// SHA-256 of the program.
    pub program: Option<String>,
    /// Microseconds since the Unix epoch.
    pub started_us: u64,
    /// The same, at its end.
    pub ended_us: Option<u64>,
    /// How it ended; nothing while it runs and after a crash.
    pub end: Option<SessionEnd>,
    /// Whether a crash was recovered from.
    pub recovered: bool,
}

/// What a session is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionState {
    /// A process writes to its log.
    Running,
    /// It ended.
    Ended,
    /// Its process ended without closing the log.
    Crashed,
    /// The same, and its log was closed by a recovery.
    Recovered,
}

/// Longest name of a program that is kept, in bytes.
const MAX_NAME_BYTES: usize = 255;

/// Writes the records of one session.
#[derive(Debug)]
pub struct SessionRecord {
    directory: Directory,
    info: SessionInfo,
    sink: Arc<FileSink>,
}

fn now_us() -> u64 {
    SystemClock::new().wall_ns() / 1000
}

fn write(directory: &Directory, info: &SessionInfo) -> io::Result<()> {
    let mut bytes = serde_json::to_vec(info)?;
    bytes.push(b'\n');
    directory.replace(INFO, &bytes)
}

fn read(directory: &Directory) -> io::Result<Option<SessionInfo>> {
    let bytes = directory.read_small(INFO, MAX_SMALL_FILE_BYTES)?;
    bytes.map(|bytes| serde_json::from_slice(&bytes).map_err(io::Error::from)).transpose()
}

impl Home {
    /// Begins the records of a session.
    ///
    /// # Errors
    /// [`RecordsError`] if they cannot be written; then nothing may run.
    pub fn begin(&self, start: &SessionStart) -> Result<SessionRecord, RecordsError> {
        let session = &start.header.session;
        let failed = |error: io::Error| RecordsError::file(session, error);
        if !is_session_name(session) {
            return Err(RecordsError::NoSession(session.clone()));
        }
        let signer = self.install_key()?;
        let settings = self.settings(&signer, start.durability)?;
        let sessions = self.sessions(true)?;
        let sessions = sessions.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
        let directory = sessions.new_directory(session).map_err(failed)?;
        let end = start.name.floor_char_boundary(MAX_NAME_BYTES);
        let info = SessionInfo {
            version: 1,
            session: session.clone(),
            name: start.name.get(..end).unwrap_or_default().to_owned(),
            tier: start.header.tier.to_owned(),
            guest: Bytes(start.header.guest).to_string(),
            policy: Bytes(start.header.policy).to_string(),
            program: start.header.program.map(|digest| Bytes(digest).to_string()),
            started_us: now_us(),
            ended_us: None,
            end: None,
            recovered: false,
        };
        let begun = (|| {
            let flags = OFlags::RDWR | OFlags::APPEND | OFlags::CREATE | OFlags::EXCL;
            let file = directory.file(LOG, flags)?.ok_or(io::ErrorKind::NotFound)?;
            write(&directory, &info)?;
            if start.durability == Durability::Strict {
                // A log is worth nothing if its directory is lost.
                [&directory, &sessions, &self.root].into_iter().try_for_each(Directory::sync)?;
            }
            FileSink::create(file, &start.header, settings)
        })();
        match begun {
            Ok(sink) => Ok(SessionRecord { directory, info, sink: Arc::new(sink) }),
            Err(source) => {
                // Nothing ran, so there is nothing to keep.
                for name in [LOG, INFO] {
                    let _ = directory.remove(name);
                }
                let _ = sessions.remove_directory(session);
                Err(RecordsError::Log { session: session.clone(), source })
            }
        }
    }

    /// What is said of a session, and what it is doing.
    ///
    /// # Errors
    /// [`RecordsError`] if there is none or its file is not whole.
    pub fn info(&self, session: &str) -> Result<(SessionInfo, SessionState), RecordsError> {
        let directory = self.session(session)?;
        let info = read(&directory).map_err(|error| RecordsError::file(INFO, error))?;
        let info = info.ok_or_else(|| RecordsError::NoSession(session.to_owned()))?;
        let state = match &info {
            _ if is_running(&directory) => SessionState::Running,
            SessionInfo { recovered: true, .. } => SessionState::Recovered,
            SessionInfo { end: Some(_), .. } => SessionState::Ended,
            _ => SessionState::Crashed,
        };
        Ok((info, state))
    }

    /// The names of all sessions, oldest name first.
    ///
    /// # Errors
    /// [`RecordsError`] if they cannot be listed.
    pub fn session_names(&self) -> Result<Vec<String>, RecordsError> {
        let Some(sessions) = self.sessions(false)? else { return Ok(Vec::new()) };
        let names = sessions.names(MAX_SESSIONS);
        let mut names = names.map_err(|error| RecordsError::file("sessions", error))?;
        names.retain(|name| is_session_name(name));
        names.sort();
        Ok(names)
    }

    pub(super) fn mark_recovered(&self, directory: &Directory) {
        if let Ok(Some(info)) = read(directory) {
            // The log says it too, and is what counts.
            let _ = write(directory, &SessionInfo { recovered: true, ..info });
        }
    }
}

/// Whether a process writes to the log.
pub(super) fn is_running(directory: &Directory) -> bool {
    let Ok(Some(file)) = directory.file(LOG, OFlags::RDONLY) else { return false };
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared)
        == Err(rustix::io::Errno::WOULDBLOCK)
}

impl SessionRecord {
    /// The sink of the session's log.
    #[must_use]
    pub fn sink(&self) -> Arc<FileSink> {
        Arc::clone(&self.sink)
    }

    #[cfg(test)]
    pub(super) fn crash(self) {
        if let Some(sink) = Arc::into_inner(self.sink) {
            sink.crash();
        }
    }

    /// Closes the log and notes how the session ended.
    ///
    /// # Errors
    /// [`AuditUnavailable`] if the log may not be whole.
    pub fn finish(mut self, end: SessionEnd) -> Result<(), AuditUnavailable> {
        let closed = self.sink.close();
        self.info.end = Some(end);
        self.info.ended_us = Some(now_us());
        if write(&self.directory, &self.info).is_err() {
            return closed.and(Err(AuditUnavailable("its summary could not be written")));
        }
        closed
    }
}

impl From<io::ErrorKind> for OpenLogError {
    fn from(kind: io::ErrorKind) -> Self {
        Self::Io(kind.into())
    }
}
