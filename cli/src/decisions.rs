//! What was decided about the drafts of a result: `RESULT.decisions`, one JSON
//! object a line.
//!
//! Invariant: who decides holds the file from before the drafts are looked at
//! until the decision is in it, so that of two decisions one is the first; a
//! line is about a rule and not about its place in a list.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use fumehood::network::{DraftBook, DraftState};
use rustix::fs::{FlockOperation, Mode, OFlags};
use serde_json::{Value, json};

use crate::error::CliError;

/// Largest file of decisions that is read.
const MAX_DECISION_BYTES: u64 = 8 << 20;

/// What a reviewer said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    Approved,
    Rejected,
}

/// What is known of a result's drafts.
#[derive(Debug)]
pub(crate) struct Decisions {
    path: PathBuf,
    file: Option<File>,
    known: Vec<(String, DraftState)>,
}

/// A state by its stable name, and the reviewer's words.
pub(crate) fn named(state: &DraftState) -> (&'static str, &str) {
    match state {
        DraftState::Pending => ("pending", ""),
        DraftState::Approved => ("approved", ""),
        DraftState::Rejected { reason } => ("rejected", reason),
    }
}

fn state(line: &Value) -> Option<(String, DraftState)> {
    let text = |key: &str| line.get(key).and_then(Value::as_str);
    let state = match text("decision")? {
        "approved" => DraftState::Approved,
        "rejected" => DraftState::Rejected { reason: text("reason")?.to_owned() },
        _ => return None,
    };
    Some((text("rule")?.to_owned(), state))
}

impl Decisions {
    fn beside(result: &Path) -> PathBuf {
        let mut path = result.as_os_str().to_owned();
        path.push(".decisions");
        path.into()
    }

    fn failed(path: &Path, error: &dyn std::fmt::Display) -> CliError {
        CliError::cannot_tell(format!(
            "the decisions in `{}` cannot be used ({error}); nothing was decided: check that file",
            path.display()
        ))
    }

    /// What was decided so far.
    ///
    /// # Errors
    /// One sentence.
    pub(crate) fn read(result: &Path) -> Result<Self, CliError> {
        let path = Self::beside(result);
        match rustix::fs::open(
            &path,
            OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
        ) {
            Ok(file) => Self::parse(path, &File::from(file), None),
            Err(rustix::io::Errno::NOENT) => Ok(Self { path, file: None, known: Vec::new() }),
            Err(error) => Err(Self::failed(&path, &error)),
        }
    }

    /// The same, and nobody else decides while this value is there.
    ///
    /// # Errors
    /// One sentence.
    pub(crate) fn hold(result: &Path) -> Result<Self, CliError> {
        let path = Self::beside(result);
        let flags =
            OFlags::RDWR | OFlags::APPEND | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|error| Self::failed(&path, &error))?;
        let file = File::from(file);
        rustix::fs::flock(&file, FlockOperation::LockExclusive)
            .map_err(|error| Self::failed(&path, &error))?;
        let held = file.try_clone().map_err(|error| Self::failed(&path, &error))?;
        Self::parse(path, &file, Some(held))
    }

    fn parse(path: PathBuf, file: &File, held: Option<File>) -> Result<Self, CliError> {
        let mut text = String::new();
        file.take(MAX_DECISION_BYTES)
            .read_to_string(&mut text)
            .map_err(|error| Self::failed(&path, &error))?;
        if text.len() as u64 == MAX_DECISION_BYTES {
            return Err(Self::failed(&path, &"it is too long"));
        }
        let lines: Option<Vec<_>> = text
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).ok().as_ref().and_then(state))
            .collect();
        let known = lines.ok_or_else(|| Self::failed(&path, &"a line is no decision"))?;
        Ok(Self { path, file: held, known })
    }

    /// Tells the drafts what was decided.
    pub(crate) fn apply(&self, book: &mut DraftBook) {
        for (rule, state) in &self.known {
            book.decided(rule, state);
        }
    }

    /// Adds a decision.
    ///
    /// # Errors
    /// One sentence; it may not be kept.
    pub(crate) fn add(&mut self, rule: &str, how: How, reason: &str) -> Result<(), CliError> {
        let decision = if how == How::Approved { "approved" } else { "rejected" };
        let line = format!("{}\n", json!({"decision": decision, "rule": rule, "reason": reason}));
        let Some(file) = &mut self.file else {
            return Err(Self::failed(&self.path, &"it is not held"));
        };
        file.write_all(line.as_bytes())
            .and_then(|()| file.sync_data())
            .map_err(|error| Self::failed(&self.path, &error))
    }
}
