//! What a sync is about to do, on disk before it does anything.
//!
//! Invariant: nothing of the project is changed before [`Entry::Sealed`] is in
//! the journal, and nothing of the workspace before [`Entry::Applied`]. So a
//! journal without `Sealed` means that nothing happened, one without `Applied`
//! is taken back, and one with it is brought to its end.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use serde::{Deserialize, Serialize};

use crate::fs::handle::Directory;
use crate::workspace::baseline::{frame_at, framed};
use crate::workspace::state::State;

/// Its name in a workspace.
pub(crate) const JOURNAL: &[u8] = b"journal";

/// One step in the project. `item` names a file in the stage.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Op {
    /// A new directory.
    Make { path: Vec<u8>, item: u64, inode: u64 },
    /// The agent's version goes where `expected` is.
    Put { path: Vec<u8>, item: u64, inode: u64, expected: State, state: State },
    /// Only permission bits.
    Chmod { path: Vec<u8>, expected: State, mode: u32 },
    /// A file or link goes away.
    Remove { path: Vec<u8>, item: u64, expected: State },
    /// An empty directory goes away.
    RemoveDirectory { path: Vec<u8>, mode: u32 },
}

/// What becomes of a path in the workspace afterwards.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Settle {
    /// The project has what the agent has.
    Took(State),
    /// The agent gets what the project has.
    Give,
    /// The agent keeps a version that was not taken.
    Held {
        digest: [u8; 32],
        /// It is a removal that only an opaque directory shows.
        hide: bool,
    },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Entry {
    /// The name of the stage in the project.
    Begin {
        stage: Vec<u8>,
    },
    Op(Op),
    Settle {
        path: Vec<u8>,
        settle: Settle,
    },
    Sealed,
    Applied,
}

/// How far a journal got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Planning,
    Sealed,
    Applied,
}

/// An open journal. Holds eight bytes for each entry.
#[derive(Debug)]
pub(crate) struct Journal {
    file: File,
    end: u64,
    offsets: Vec<u64>,
}

impl Journal {
    pub(crate) fn create(dir: &Directory) -> io::Result<Self> {
        let file = dir.create(JOURNAL, 0o600)?;
        Ok(Self { file, end: 0, offsets: Vec::new() })
    }

    /// The journal that a crash left, and how far it got.
    pub(crate) fn left_over(dir: &Directory) -> io::Result<Option<(Self, Phase)>> {
        if dir.look(JOURNAL)?.is_none() {
            return Ok(None);
        }
        let mut journal = Self { file: dir.append(JOURNAL)?, end: 0, offsets: Vec::new() };
        let mut phase = Phase::Planning;
        while let Some((body, next)) = frame_at(&journal.file, journal.end)? {
            match postcard::from_bytes(&body).map_err(io::Error::other)? {
                Entry::Sealed => phase = Phase::Sealed,
                Entry::Applied => phase = Phase::Applied,
                _ => {}
            }
            journal.offsets.push(journal.end);
            journal.end = next;
        }
        journal.file.set_len(journal.end)?;
        Ok(Some((journal, phase)))
    }

    pub(crate) fn add(&mut self, entry: &Entry) -> io::Result<()> {
        let bytes = framed(entry)?;
        self.file.write_all_at(&bytes, self.end)?;
        self.offsets.push(self.end);
        self.end = self.end.saturating_add(bytes.len() as u64);
        Ok(())
    }

    pub(crate) fn len(&self) -> usize {
        self.offsets.len()
    }

    pub(crate) fn get(&self, number: usize) -> io::Result<Entry> {
        let missing = || io::Error::other("the journal of a sync was changed");
        let offset = self.offsets.get(number).copied().ok_or_else(missing)?;
        let (body, _) = frame_at(&self.file, offset)?.ok_or_else(missing)?;
        postcard::from_bytes(&body).map_err(io::Error::other)
    }

    /// The name of the stage, if one was begun.
    pub(crate) fn stage(&self) -> io::Result<Option<Vec<u8>>> {
        if self.offsets.is_empty() {
            return Ok(None);
        }
        match self.get(0)? {
            Entry::Begin { stage } => Ok(Some(stage)),
            _ => Ok(None),
        }
    }

    /// The sync is over.
    pub(crate) fn remove(self, dir: &Directory) -> io::Result<()> {
        dir.remove_file(JOURNAL).map_err(Into::into)
    }
}
