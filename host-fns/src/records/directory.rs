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

    fn write_new(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let mut file = self.file(name, flags)?.ok_or(io::ErrorKind::NotFound)?;
        file.write_all(bytes)
    }

    fn temporary(name: &str) -> String {
        use std::sync::atomic::{AtomicU64, Ordering};
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        format!("{name}.{}.{number}.tmp", std::process::id())
    }

    /// Makes a file whole, unless there is one.
    pub(super) fn create_once(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let temporary = Self::temporary(name);
        self.write_new(&temporary, bytes)?;
        let linked = rustix::fs::linkat(&self.0, &*temporary, &self.0, name, AtFlags::empty());
        rustix::fs::unlinkat(&self.0, &*temporary, AtFlags::empty())?;
        match linked {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Replaces a file whole.
    pub(super) fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let temporary = Self::temporary(name);
        let written = self
            .write_new(&temporary, bytes)
            .and_then(|()| Ok(rustix::fs::renameat(&self.0, &*temporary, &self.0, name)?));
        if written.is_err() {
            let _ = rustix::fs::unlinkat(&self.0, &*temporary, AtFlags::empty());
        }
        written
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
