//! A directory by its handle, and the files in it.
//!
//! Invariant: nothing is opened through a link, and only what belongs to this
//! user and is out of the reach of others.
#![allow(clippy::disallowed_methods, reason = "the adapter for directories of session records")]

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::environment::{OsRandom, RandomSource as _};

/// Longest name of a session.
pub(super) const MAX_SESSION_NAME_BYTES: usize = 64;

const DIRECTORY_FLAGS: OFlags =
    OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC).union(OFlags::RDONLY);

/// Whether text can be the name of a session's directory.
#[must_use]
pub fn is_session_name(name: &str) -> bool {
    (1..=MAX_SESSION_NAME_BYTES).contains(&name.len())
        && !name.starts_with('-')
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
}

/// An open directory of this user's own.
#[derive(Debug)]
pub(super) struct Directory(OwnedFd);

impl Directory {
    /// Opens a directory by its path.
    ///
    /// # Errors
    /// Why it cannot be trusted or made, as half a sentence.
    pub(super) fn open(path: &Path, create: bool) -> Result<Self, String> {
        let open = || rustix::fs::open(path, DIRECTORY_FLAGS, Mode::empty());
        let opened = match open() {
            Err(Errno::NOENT) if create => {
                let mut builder = std::fs::DirBuilder::new();
                builder
                    .recursive(true)
                    .mode(0o700)
                    .create(path)
                    .map_err(|error| format!("it cannot be made ({})", plain(&error)))?;
                // A disk that fails now fails again when a key is written.
                if let Some(parent) = path.parent() {
                    let parent = rustix::fs::open(parent, DIRECTORY_FLAGS, Mode::empty());
                    let _ = parent.and_then(rustix::fs::fsync);
                }
                open()
            }
            other => other,
        };
        let handle = opened.map_err(|error| match error {
            Errno::LOOP | Errno::NOTDIR => "it is a symbolic link or not a directory".to_owned(),
            Errno::NOENT => "it does not exist".to_owned(),
            other => format!("it cannot be opened ({})", plain(&other.into())),
        })?;
        trusted(&handle, FileType::Directory).map_err(|error| plain(&error))?;
        Ok(Self(handle))
    }

    /// A directory in this one; `None` if there is none and none is to be made.
    pub(super) fn directory(&self, name: &str, create: bool) -> io::Result<Option<Self>> {
        let open = || rustix::fs::openat(&self.0, name, DIRECTORY_FLAGS, Mode::empty());
        let handle = match open() {
            Ok(handle) => handle,
            Err(Errno::NOENT) if create => match rustix::fs::mkdirat(&self.0, name, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => open()?,
                Err(error) => return Err(error.into()),
            },
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        trusted(&handle, FileType::Directory)?;
        Ok(Some(Self(handle)))
    }

    /// A directory in this one that is not there yet.
    pub(super) fn new_directory(&self, name: &str) -> io::Result<Self> {
        rustix::fs::mkdirat(&self.0, name, Mode::RWXU)?;
        self.directory(name, false)?.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// A file in this directory; `None` if there is none and the flags make
    /// none.
    pub(super) fn file(&self, name: &str, flags: OFlags) -> io::Result<Option<File>> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        match rustix::fs::openat(&self.0, name, flags, Mode::RUSR | Mode::WUSR) {
            Ok(handle) => {
                trusted(&handle, FileType::RegularFile)?;
                Ok(Some(File::from(handle)))
            }
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// What a short file holds.
    pub(super) fn read_small(&self, name: &str, most: u64) -> io::Result<Option<Vec<u8>>> {
        let Some(file) = self.file(name, OFlags::RDONLY)? else { return Ok(None) };
        let mut bytes = Vec::new();
        file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > most {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        Ok(Some(bytes))
    }

    fn write_new(&self, name: &str, bytes: &[u8], durably: bool) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let mut file = self.file(name, flags)?.ok_or(io::ErrorKind::NotFound)?;
        file.write_all(bytes)?;
        if durably { file.sync_all() } else { Ok(()) }
    }

    /// A name that nobody else uses: what a process left that was killed is in
    /// nobody's way, also where numbers of processes come again.
    fn temporary(name: &str) -> io::Result<String> {
        let mut random = [0; 8];
        let filled = OsRandom.fill(&mut random);
        filled.map_err(|_| io::Error::other("the random source failed"))?;
        Ok(format!("{name}.{:016x}.tmp", u64::from_ne_bytes(random)))
    }

    /// Writes a temporary file, which `publish` gives its name, and leaves
    /// nothing of it.
    fn write_whole(
        &self,
        name: &str,
        bytes: &[u8],
        durably: bool,
        publish: impl FnOnce(&str) -> rustix::io::Result<()>,
    ) -> io::Result<()> {
        let temporary = Self::temporary(name)?;
        let written = self
            .write_new(&temporary, bytes, durably)
            .and_then(|()| publish(&temporary).map_err(io::Error::from));
        // It is not there any more if it was renamed.
        let left = self.remove(&temporary);
        written.and(left)?;
        if durably { self.sync() } else { Ok(()) }
    }

    /// Makes a file whole, unless there is one, and makes it survive a loss of
    /// power.
    pub(super) fn create_once(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.write_whole(name, bytes, true, |temporary| {
            match rustix::fs::linkat(&self.0, temporary, &self.0, name, AtFlags::empty()) {
                Err(Errno::EXIST) => Ok(()),
                linked => linked,
            }
        })
    }

    /// Replaces a file whole.
    pub(super) fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.write_whole(name, bytes, false, |temporary| {
            rustix::fs::renameat(&self.0, temporary, &self.0, name)
        })
    }

    /// The same, and makes it survive a loss of power.
    pub(super) fn replace_durably(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.write_whole(name, bytes, true, |temporary| {
            rustix::fs::renameat(&self.0, temporary, &self.0, name)
        })
    }

    /// Makes the entries survive a loss of power.
    pub(super) fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::fsync(&self.0)?)
    }

    /// Removes a file; it need not be there.
    pub(super) fn remove(&self, name: &str) -> io::Result<()> {
        match rustix::fs::unlinkat(&self.0, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes an empty directory.
    pub(super) fn remove_directory(&self, name: &str) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.0, name, AtFlags::REMOVEDIR)?)
    }

    /// The names of the entries, at most `most`.
    pub(super) fn names(&self, most: usize) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.0)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            if name != "." && name != ".." && names.len() < most {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }
}

/// The system's words, without its number.
fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_lowercase()
}

fn trusted(handle: &OwnedFd, kind: FileType) -> io::Result<()> {
    let stat = rustix::fs::fstat(handle)?;
    if FileType::from_raw_mode(stat.st_mode) != kind {
        return Err(io::Error::other("it is not what it has to be"));
    }
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other("it belongs to another user"));
    }
    if stat.st_mode & 0o077 != 0 {
        return Err(io::Error::other(
            "other users may open it; set its mode to 0700, or 0600 for a file",
        ));
    }
    Ok(())
}
