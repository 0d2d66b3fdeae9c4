//! What both sides last agreed on, by path.
//!
//! What: a log of records in one file, and an index of 40 bytes for each path.
//! Why: before a project file is replaced it must be known to be what the
//! agent began with.
//!
//! Invariant: a record is complete in the file before the change it belongs
//! to can be seen. A record that a crash cut off is dropped when the log is
//! opened; the change it would belong to was not made.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::fs::handle::Directory;
use crate::workspace::state::{Identity, State};

/// Length and check of a record.
const HEADER_BYTES: usize = 12;
/// Longest record: a path and a link target of the longest kind, and numbers.
const MAX_RECORD_BYTES: usize = 32 << 10;

/// One record.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Agreed {
    pub(crate) path: Vec<u8>,
    pub(crate) state: State,
    /// The project's file when its content was read.
    pub(crate) project: Option<Identity>,
    /// The workspace's file when its content was read.
    pub(crate) workspace: Option<Identity>,
    /// The agent's version that was held back and reported.
    pub(crate) held: Option<[u8; 32]>,
    /// The path has no record any more.
    pub(crate) forgotten: bool,
}

impl Agreed {
    pub(crate) fn on(path: &[u8], state: State) -> Self {
        Self {
            path: path.to_vec(),
            state,
            project: None,
            workspace: None,
            held: None,
            forgotten: false,
        }
    }
}

#[derive(Debug)]
struct Log {
    file: File,
    end: u64,
    index: HashMap<[u8; 16], u64>,
}

/// The log of a workspace. Shared by the overlay and the sync.
#[derive(Debug)]
pub(crate) struct Baselines {
    log: Mutex<Log>,
}

/// The first half of a SHA-256: as unlikely to meet as any digest of its
/// length, for whoever chooses the names.
pub(crate) fn key(path: &[u8]) -> [u8; 16] {
    let digest = Sha256::digest(path);
    let mut key = [0; 16];
    for (slot, byte) in key.iter_mut().zip(digest) {
        *slot = byte;
    }
    key
}

fn check(body: &[u8]) -> [u8; 8] {
    let digest = Sha256::digest(body);
    let mut check = [0; 8];
    for (slot, byte) in check.iter_mut().zip(digest) {
        *slot = byte;
    }
    check
}

/// A length, a check and the record.
pub(crate) fn framed(record: &impl Serialize) -> io::Result<Vec<u8>> {
    let body = postcard::to_allocvec(record).map_err(io::Error::other)?;
    let length = u32::try_from(body.len()).map_err(io::Error::other)?;
    if body.len() > MAX_RECORD_BYTES {
        return Err(io::Error::other("a record is too long"));
    }
    let mut bytes = Vec::with_capacity(body.len().saturating_add(HEADER_BYTES));
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(&check(&body));
    bytes.extend_from_slice(&body);
    Ok(bytes)
}

/// The body of the record at an offset, and the offset after it; `None` at
/// the end or where a crash cut it off.
pub(crate) fn frame_at(file: &File, offset: u64) -> io::Result<Option<(Vec<u8>, u64)>> {
    let mut header = [0_u8; HEADER_BYTES];
    if !read_whole(file, &mut header, offset)? {
        return Ok(None);
    }
    let (length, want) = header.split_at(4);
    let length = length.iter().rev().fold(0_usize, |value, byte| (value << 8) | *byte as usize);
    if length > MAX_RECORD_BYTES {
        return Ok(None);
    }
    let mut body = vec![0; length];
    let start = offset.saturating_add(HEADER_BYTES as u64);
    if !read_whole(file, &mut body, start)? || check(&body) != want {
        return Ok(None);
    }
    Ok(Some((body, start.saturating_add(length as u64))))
}

fn read_whole(file: &File, into: &mut [u8], offset: u64) -> io::Result<bool> {
    match file.read_exact_at(into, offset) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

impl Baselines {
    /// Opens the log `name`, made if it is not there.
    pub(crate) fn open(dir: &Directory, name: &[u8]) -> io::Result<Self> {
        let file = dir.append(name)?;
        let mut index = HashMap::new();
        let mut end = 0;
        while let Some((body, next)) = frame_at(&file, end)? {
            let record: Agreed = postcard::from_bytes(&body).map_err(io::Error::other)?;
            if record.forgotten {
                index.remove(&key(&record.path));
            } else {
                index.insert(key(&record.path), end);
            }
            end = next;
        }
        file.set_len(end)?;
        Ok(Self { log: Mutex::new(Log { file, end, index }) })
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, path: &[u8]) -> io::Result<Option<Agreed>> {
        let log = self.log();
        let Some(offset) = log.index.get(&key(path)).copied() else { return Ok(None) };
        let Some((body, _)) = frame_at(&log.file, offset)? else {
            return Err(io::Error::other("the log of agreed states was changed"));
        };
        postcard::from_bytes(&body).map(Some).map_err(io::Error::other)
    }

    pub(crate) fn knows(&self, path: &[u8]) -> bool {
        self.log().index.contains_key(&key(path))
    }

    /// Notes what is agreed on; it replaces what was.
    pub(crate) fn set(&self, record: &Agreed) -> io::Result<()> {
        let bytes = framed(record)?;
        let mut log = self.log();
        let at = log.end;
        log.file.write_all_at(&bytes, at)?;
        log.end = at.saturating_add(bytes.len() as u64);
        if record.forgotten {
            log.index.remove(&key(&record.path));
        } else {
            log.index.insert(key(&record.path), at);
        }
        Ok(())
    }

    /// Forgets a path.
    pub(crate) fn forget(&self, path: &[u8]) -> io::Result<()> {
        if !self.knows(path) {
            return Ok(());
        }
        self.set(&Agreed { forgotten: true, ..Agreed::on(path, State::Absent) })
    }

    /// Notes a state, unless the path has one.
    pub(crate) fn begin(&self, path: &[u8], state: State) -> io::Result<()> {
        if self.knows(path) { Ok(()) } else { self.set(&Agreed::on(path, state)) }
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) -> io::Result<()> {
        let mut log = self.log();
        log.file.set_len(0)?;
        log.end = 0;
        log.index.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_read_back_up_to_where_it_was_cut() {
        let root = tempfile::tempdir().unwrap();
        let dir = Directory::open(root.path()).unwrap();
        let log = Baselines::open(&dir, b"log").unwrap();
        log.begin(b"a", State::Absent).unwrap();
        log.begin(b"a", State::Directory { mode: 0o755 }).unwrap();
        log.set(&Agreed::on(b"b\n\xff", State::Symlink { target: b"x".to_vec() })).unwrap();
        log.set(&Agreed::on(b"b\n\xff", State::Directory { mode: 0o700 })).unwrap();
        let whole = log.log().end;
        log.set(&Agreed::on(b"c", State::Absent)).unwrap();
        let cut = log.log().end - 3;
        log.log().file.set_len(cut).unwrap();
        drop(log);
        let log = Baselines::open(&dir, b"log").unwrap();
        assert_eq!(log.log().end, whole);
        assert!(log.get(b"a").unwrap().unwrap().state.is_absent(), "the first state stays");
        assert!(log.get(b"b\n\xff").unwrap().unwrap().state.is_directory());
        assert!(log.get(b"c").unwrap().is_none());
        log.forget(b"a").unwrap();
        assert!(!log.knows(b"a"));
        drop(log);
        let log = Baselines::open(&dir, b"log").unwrap();
        assert!(!log.knows(b"a") && log.knows(b"b\n\xff"));
        log.clear().unwrap();
        assert!(!log.knows(b"b\n\xff"));
    }
}
