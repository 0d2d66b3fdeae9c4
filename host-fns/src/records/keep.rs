//! Which records are kept: by age, number and size.
//!
//! Invariant: a session that is running is never removed; what is removed is
//! told to the witness.

use std::time::Duration;

use rustix::fs::OFlags;

use crate::audit::sign::SessionKey;
use crate::audit::witness::Event;
use crate::environment::{Clock as _, OsRandom, SystemClock};
use crate::records::session::is_running;
use crate::records::{Home, INFO, LOG, RecordsError};

/// Most sessions that are listed.
pub(super) const MAX_SESSIONS: usize = 1_000_000;
/// A home with so many sessions more than are kept is tidied at once.
const SLACK: usize = 50;
/// Otherwise it is tidied so often.
const TIDY_EVERY: Duration = Duration::from_secs(3600);
/// Its time says when that was.
const STAMP: &str = "tidied";

/// How much is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Nothing that is older.
    pub age: Duration,
    /// At most so many sessions; the youngest.
    pub sessions: usize,
    /// At most so many bytes of logs; the youngest.
    pub bytes: u64,
}

impl Default for Retention {
    /// 30 days, 1000 sessions, 1 GiB.
    fn default() -> Self {
        Self { age: Duration::from_secs(30 * 24 * 3600), sessions: 1000, bytes: 1 << 30 }
    }
}

/// What was removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// The sessions.
    pub sessions: Vec<String>,
    /// Bytes of their logs.
    pub bytes: u64,
}

struct Kept {
    name: String,
    modified_us: u64,
    bytes: u64,
}

impl Home {
    /// Removes the records of a session and tells the witness.
    ///
    /// # Errors
    /// [`RecordsError`] if there is no such session, it is running, or it
    /// cannot be removed.
    pub fn remove(&self, session: &str) -> Result<(), RecordsError> {
        let failed = |error: std::io::Error| RecordsError::file(session, error);
        let directory = self.session(session)?;
        if is_running(&directory) {
            return Err(RecordsError::Running(session.to_owned()));
        }
        let signer = self.install_key()?;
        let of_log = |source| RecordsError::Log { session: session.to_owned(), source };
        let key = SessionKey::new(session, &signer, &OsRandom).map_err(|e| of_log(e.into()))?;
        let witness = self.appended_witness()?;
        let mut locked = witness.lock(&key.install).map_err(|e| of_log(e.into()))?;
        locked.append(session, &key, Event::Removed).map_err(|e| of_log(e.into()))?;
        drop(locked);
        for name in directory.names(100).map_err(failed)? {
            directory.remove(&name).map_err(failed)?;
        }
        if let Some(sessions) = self.sessions(false)? {
            sessions.remove_directory(session).map_err(failed)?;
        }
        Ok(())
    }

    /// Removes what is too old or too much.
    ///
    /// # Errors
    /// [`RecordsError`] of the first session that cannot be removed.
    pub fn tidy(&self, retention: Retention) -> Result<Removed, RecordsError> {
        let now = SystemClock::new().wall_ns() / 1000;
        let oldest =
            now.saturating_sub(u64::try_from(retention.age.as_micros()).unwrap_or(u64::MAX));
        let mut kept: Vec<Kept> =
            self.session_names()?.into_iter().filter_map(|name| self.look(name)).collect();
        kept.sort_by_key(|session| std::cmp::Reverse(session.modified_us));
        let mut removed = Removed::default();
        let (mut sessions, mut bytes) = (0_usize, 0_u64);
        for session in kept {
            sessions = sessions.saturating_add(1);
            bytes = bytes.saturating_add(session.bytes);
            let keep = session.modified_us >= oldest
                && sessions <= retention.sessions
                && bytes <= retention.bytes;
            if keep {
                continue;
            }
            match self.remove(&session.name) {
                Ok(()) => {
                    removed.bytes = removed.bytes.saturating_add(session.bytes);
                    removed.sessions.push(session.name);
                }
                Err(RecordsError::Running(_) | RecordsError::NoSession(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(removed)
    }

    fn look(&self, name: String) -> Option<Kept> {
        let directory = self.session(&name).ok()?;
        let log = directory.file(LOG, OFlags::RDONLY).ok()?;
        let file = log.or_else(|| directory.file(INFO, OFlags::RDONLY).ok()?)?;
        let metadata = file.metadata().ok()?;
        let since = metadata.modified().ok()?.duration_since(std::time::UNIX_EPOCH).ok()?;
        let modified_us = u64::try_from(since.as_micros()).unwrap_or(u64::MAX);
        Some(Kept { name, modified_us, bytes: metadata.len() })
    }

    /// The same, but only once an hour or when there is much more than is
    /// kept.
    ///
    /// # Errors
    /// As [`Home::tidy`].
    pub fn tidy_sometimes(&self, retention: Retention) -> Result<Option<Removed>, RecordsError> {
        let stamp = self.root.file(STAMP, OFlags::RDONLY);
        let stamp = stamp.map_err(|error| RecordsError::file(STAMP, error))?;
        let recent = stamp
            .and_then(|file| file.metadata().ok()?.modified().ok()?.elapsed().ok())
            .is_some_and(|age| age < TIDY_EVERY);
        if recent && self.session_names()?.len() <= retention.sessions.saturating_add(SLACK) {
            return Ok(None);
        }
        self.root.replace(STAMP, b"").map_err(|error| RecordsError::file(STAMP, error))?;
        self.tidy(retention).map(Some)
    }
}
