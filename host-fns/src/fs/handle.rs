//! Directories of the host by handle, and what is done with single names in
//! them.
//!
//! Why: the overlay and the workspace act on host trees that others change at
//! the same time; a path would be looked up again by the kernel, a handle is
//! not.
//!
//! Invariant: nothing here follows a symbolic link, and only regular files and
//! directories are opened. A relative path resolves below its handle or not at
//! all. Names are bytes.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::{AtFlags, FileType as HostType, Mode, OFlags, RenameFlags, Timestamps};
use rustix::io::{Errno, Result};
use sha2::{Digest as _, Sha256};

/// Bytes read or copied at once.
pub(crate) const CHUNK_BYTES: usize = 256 << 10;
/// Most entries of one directory that is walked; as the listing of a guest.
pub(crate) const MAX_DIRECTORY_ENTRIES: usize = 1_000_000;
/// Most directories within each other that are walked; as the components of a
/// path of a guest. A real process can make deeper ones, and each level of a
/// walk holds descriptors.
pub(crate) const MAX_DEPTH: usize = 256;

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const FILE: OFlags =
    OFlags::NOFOLLOW.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// What a name means, without following it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Directory,
    Symlink,
    /// A character device 0/0: an overlay's mark that nothing is here.
    Whiteout,
    Other,
}

/// What the kernel says of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Look {
    pub(crate) kind: Kind,
    /// The lower twelve bits.
    pub(crate) mode: u32,
    pub(crate) size: u64,
    pub(crate) device: u64,
    pub(crate) inode: u64,
    /// Times in nanoseconds since the epoch.
    pub(crate) modified: i128,
    pub(crate) changed: i128,
}

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) name: Vec<u8>,
    pub(crate) kind: Kind,
    pub(crate) inode: u64,
}

#[allow(
    clippy::unnecessary_cast,
    clippy::cast_lossless,
    clippy::useless_conversion,
    reason = "the fields of stat have other types on other architectures"
)]
fn looked(stat: &rustix::fs::Stat) -> Look {
    let kind = match HostType::from_raw_mode(stat.st_mode) {
        HostType::RegularFile => Kind::File,
        HostType::Directory => Kind::Directory,
        HostType::Symlink => Kind::Symlink,
        HostType::CharacterDevice if stat.st_rdev == 0 => Kind::Whiteout,
        _ => Kind::Other,
    };
    let time =
        |seconds: i128, rest: i128| seconds.saturating_mul(1_000_000_000).saturating_add(rest);
    Look {
        kind,
        mode: u32::from(Mode::from_raw_mode(stat.st_mode).bits()) & 0o7777,
        size: u64::try_from(stat.st_size).unwrap_or(0),
        device: stat.st_dev as u64,
        inode: stat.st_ino as u64,
        modified: time(stat.st_mtime as i128, stat.st_mtime_nsec as i128),
        changed: time(stat.st_ctime as i128, stat.st_ctime_nsec as i128),
    }
}

pub(crate) fn look_at(open: impl AsFd) -> Result<Look> {
    rustix::fs::fstat(open).map(|stat| looked(&stat))
}

pub(crate) fn os(name: &[u8]) -> &OsStr {
    OsStr::from_bytes(name)
}

/// Splits a relative path into its directory and its last name.
pub(crate) fn split(relative: &[u8]) -> (&[u8], &[u8]) {
    match relative.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (
            relative.get(..slash).unwrap_or_default(),
            relative.get(slash.saturating_add(1)..).unwrap_or_default(),
        ),
        None => (&[], relative),
    }
}

/// A relative path of `name` in the directory at `parent`.
pub(crate) fn joined(parent: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = Vec::with_capacity(parent.len().saturating_add(name.len()).saturating_add(1));
    path.extend_from_slice(parent);
    if !parent.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

/// An open directory that can be listed.
#[derive(Debug)]
pub(crate) struct Directory {
    fd: OwnedFd,
    /// How many directories a walk came through to this one.
    depth: usize,
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Directory {
    /// Opens a directory of the host by its path; links on the way are the
    /// operator's.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(path, flags, Mode::empty()).map(Self::top)
    }

    /// A handle of its own for an open directory.
    pub(crate) fn again(dir: impl AsFd) -> Result<Self> {
        rustix::fs::openat(dir, ".", DIRECTORY, Mode::empty()).map(Self::top)
    }

    fn top(fd: OwnedFd) -> Self {
        Self { fd, depth: 0 }
    }

    /// The descriptor itself.
    pub(crate) fn into_fd(self) -> OwnedFd {
        self.fd
    }

    /// As the handle of another library.
    pub(crate) fn to_dir(&self) -> Result<cap_std::fs::Dir> {
        let fd = rustix::fs::openat(self, ".", DIRECTORY, Mode::empty())?;
        Ok(cap_std::fs::Dir::from_std_file(fd.into()))
    }

    /// Opens a directory in this one; `NAMETOOLONG` if more than [`MAX_DEPTH`]
    /// of them lie within each other.
    pub(crate) fn child(&self, name: &[u8]) -> Result<Self> {
        if self.depth >= MAX_DEPTH {
            return Err(Errno::NAMETOOLONG);
        }
        let depth = self.depth.saturating_add(1);
        rustix::fs::openat(self, os(name), DIRECTORY, Mode::empty()).map(|fd| Self { fd, depth })
    }

    /// Opens a directory below this one; a component that is a link is
    /// `NOTDIR`, as for a single name.
    pub(crate) fn beneath(&self, relative: &[u8]) -> Result<Self> {
        if relative.is_empty() {
            return Self::again(self);
        }
        #[cfg(target_os = "linux")]
        {
            use rustix::fs::ResolveFlags;
            let resolve =
                ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
            match rustix::fs::openat2(self, os(relative), DIRECTORY, Mode::empty(), resolve) {
                Ok(fd) => return Ok(Self::top(fd)),
                Err(Errno::NOSYS | Errno::PERM | Errno::AGAIN) => {}
                Err(Errno::LOOP) => return Err(Errno::NOTDIR),
                Err(errno) => return Err(errno),
            }
        }
        let mut at = Self::again(self)?;
        for name in relative.split(|byte| *byte == b'/') {
            if matches!(name, b"" | b"." | b"..") {
                return Err(Errno::INVAL);
            }
            at = at.child(name)?;
        }
        Ok(at)
    }

    /// The directory of a relative path, and the path's last name.
    pub(crate) fn parent<'p>(&self, relative: &'p [u8]) -> Result<(Self, &'p [u8])> {
        let (parent, name) = split(relative);
        if matches!(name, b"" | b"." | b"..") {
            return Err(Errno::INVAL);
        }
        Ok((self.beneath(parent)?, name))
    }

    pub(crate) fn look_self(&self) -> Result<Look> {
        look_at(self)
    }

    /// What a name means; `None` if there is nothing.
    pub(crate) fn look(&self, name: &[u8]) -> Result<Option<Look>> {
        match rustix::fs::statat(self, os(name), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(looked(&stat))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Opens a regular file for reading; `ISDIR` or `PERM` for anything else.
    pub(crate) fn open_file(&self, name: &[u8]) -> Result<(File, Look)> {
        let fd = rustix::fs::openat(self, os(name), OFlags::RDONLY | FILE, Mode::empty())?;
        let look = look_at(&fd)?;
        match look.kind {
            Kind::File => Ok((fd.into(), look)),
            Kind::Directory => Err(Errno::ISDIR),
            _ => Err(Errno::PERM),
        }
    }

    /// Makes a file that was not there.
    pub(crate) fn create(&self, name: &[u8], mode: u32) -> Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | FILE;
        let mode = Mode::from_raw_mode(mode as rustix::fs::RawMode & 0o7777);
        rustix::fs::openat(self, os(name), flags, mode).map(Into::into)
    }

    /// Opens a file for appending, made if it was not there, for this user
    /// only.
    pub(crate) fn append(&self, name: &[u8]) -> Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::APPEND | FILE;
        rustix::fs::openat(self, os(name), flags, Mode::RUSR | Mode::WUSR).map(Into::into)
    }

    pub(crate) fn make_directory(&self, name: &[u8], mode: u32) -> Result<()> {
        let mode = Mode::from_raw_mode(mode as rustix::fs::RawMode & 0o7777);
        rustix::fs::mkdirat(self, os(name), mode)
    }

    pub(crate) fn remove_file(&self, name: &[u8]) -> Result<()> {
        rustix::fs::unlinkat(self, os(name), AtFlags::empty())
    }

    pub(crate) fn remove_directory(&self, name: &[u8]) -> Result<()> {
        rustix::fs::unlinkat(self, os(name), AtFlags::REMOVEDIR)
    }

    pub(crate) fn make_symlink(&self, name: &[u8], target: &[u8]) -> Result<()> {
        rustix::fs::symlinkat(os(target), self, os(name))
    }

    pub(crate) fn read_link(&self, name: &[u8]) -> Result<Vec<u8>> {
        rustix::fs::readlinkat(self, os(name), Vec::new()).map(|target| target.into_bytes())
    }

    /// Moves a name; it must not be there yet.
    pub(crate) fn move_new(&self, name: &[u8], to: &Self, new: &[u8]) -> Result<()> {
        rustix::fs::renameat_with(self, os(name), to, os(new), RenameFlags::NOREPLACE)
    }

    /// Moves a name over whatever is there.
    pub(crate) fn move_over(&self, name: &[u8], to: &Self, new: &[u8]) -> Result<()> {
        rustix::fs::renameat(self, os(name), to, os(new))
    }

    /// Lets two names change places.
    pub(crate) fn exchange(&self, name: &[u8], to: &Self, other: &[u8]) -> Result<()> {
        rustix::fs::renameat_with(self, os(name), to, os(other), RenameFlags::EXCHANGE)
    }

    /// Sets the permission bits of a file or directory.
    pub(crate) fn set_mode(&self, name: &[u8], mode: u32) -> Result<()> {
        let fd = rustix::fs::openat(self, os(name), OFlags::RDONLY | FILE, Mode::empty())?;
        if !matches!(look_at(&fd)?.kind, Kind::File | Kind::Directory) {
            return Err(Errno::PERM);
        }
        rustix::fs::fchmod(fd, Mode::from_raw_mode(mode as rustix::fs::RawMode & 0o7777))
    }

    /// Makes the directory and everything below it another user's.
    pub(crate) fn give_to(&self, user: u32, group: u32) -> Result<()> {
        let (owner, of) =
            (Some(rustix::fs::Uid::from_raw(user)), Some(rustix::fs::Gid::from_raw(group)));
        for entry in self.entries()? {
            if entry.kind == Kind::Directory {
                self.child(&entry.name)?.give_to(user, group)?;
            } else {
                let flags = AtFlags::SYMLINK_NOFOLLOW;
                rustix::fs::chownat(self, os(&entry.name), owner, of, flags)?;
            }
        }
        rustix::fs::fchown(self, owner, of)
    }

    /// What is in the directory, without `.` and `..`, sorted by name.
    pub(crate) fn entries(&self) -> Result<Vec<Named>> {
        let mut entries = Vec::new();
        for entry in rustix::fs::Dir::read_from(self)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            if entries.len() >= MAX_DIRECTORY_ENTRIES {
                return Err(Errno::OVERFLOW);
            }
            let kind = match entry.file_type() {
                HostType::RegularFile => Kind::File,
                HostType::Directory => Kind::Directory,
                HostType::Symlink => Kind::Symlink,
                HostType::CharacterDevice | HostType::Unknown => {
                    self.look(name)?.map_or(Kind::Other, |look| look.kind)
                }
                _ => Kind::Other,
            };
            entries.push(Named { name: name.to_vec(), kind, inode: entry.ino() });
        }
        entries.sort_unstable_by(|left, right| left.name.cmp(&right.name));
        Ok(entries)
    }

    /// The same; nothing if the directory was removed since it was opened.
    pub(crate) fn entries_if_there(&self) -> Result<Vec<Named>> {
        match self.entries() {
            Err(Errno::NOENT) => Ok(Vec::new()),
            entries => entries,
        }
    }

    /// Names without `.` and `..`, sorted.
    pub(crate) fn names(&self) -> Result<Vec<Vec<u8>>> {
        Ok(self.entries()?.into_iter().map(|entry| entry.name).collect())
    }

    /// The value of a short extended attribute; `None` if it has none or the
    /// file system knows none.
    pub(crate) fn attribute(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let mut value = [0_u8; 16];
        match rustix::fs::fgetxattr(self, name, &mut value[..]) {
            Ok(length) => Ok(Some(value.get(..length).unwrap_or_default().to_vec())),
            Err(Errno::NODATA | Errno::NOTSUP) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    pub(crate) fn set_attribute(&self, name: &str, value: &[u8]) -> Result<()> {
        rustix::fs::fsetxattr(self, name, value, rustix::fs::XattrFlags::empty())
    }

    /// Gives this user back the permissions on a directory of its own.
    #[cfg(target_os = "linux")]
    fn unlock(&self, name: &[u8]) -> Result<()> {
        use std::os::fd::AsRawFd as _;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let pinned = rustix::fs::openat(self, os(name), flags, Mode::empty())?;
        rustix::fs::chmod(format!("/proc/self/fd/{}", pinned.as_raw_fd()), Mode::RWXU)
    }

    #[cfg(not(target_os = "linux"))]
    fn unlock(&self, _name: &[u8]) -> Result<()> {
        Err(Errno::ACCESS)
    }

    /// Removes a name and everything below it, as far as that is possible.
    /// What lies too deep to be walked is moved up first.
    ///
    /// # Errors
    /// The first failure, after everything else was tried.
    pub(crate) fn remove_tree(&self, name: &[u8]) -> Result<()> {
        let mut raised = Vec::new();
        let mut first = self.remove_within(name, self, &mut raised);
        while let Some(spare) = raised.pop() {
            first = first.and(self.remove_within(&spare, self, &mut raised));
        }
        first
    }

    fn remove_within(&self, name: &[u8], top: &Self, raised: &mut Vec<Vec<u8>>) -> Result<()> {
        let Some(look) = self.look(name)? else { return Ok(()) };
        if look.kind != Kind::Directory {
            return self.remove_file(name);
        }
        let below = match self.child(name) {
            Err(Errno::NAMETOOLONG) if self.depth >= MAX_DEPTH => {
                let spare = format!(".fumehood-deep-{}-{}", look.inode, raised.len()).into_bytes();
                match self.move_new(name, top, &spare) {
                    Err(Errno::ACCESS) => {
                        self.unlock(name)?;
                        self.move_new(name, top, &spare)?;
                    }
                    moved => moved?,
                }
                raised.push(spare);
                return Ok(());
            }
            Err(Errno::ACCESS) => {
                self.unlock(name)?;
                self.child(name)?
            }
            other => other?,
        };
        if below.look_self()?.mode & 0o700 != 0o700 {
            rustix::fs::fchmod(&below, Mode::RWXU)?;
        }
        let mut first = Ok(());
        for inner in below.names()? {
            first = first.and(below.remove_within(&inner, top, raised));
        }
        first.and(self.remove_directory(name))
    }
}

/// Sets the modification time of an open file.
pub(crate) fn set_modified(file: impl AsFd, modified: i128) -> Result<()> {
    let billion = 1_000_000_000;
    let stamps = Timestamps {
        last_access: rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
        last_modification: rustix::fs::Timespec {
            tv_sec: i64::try_from(modified.div_euclid(billion)).unwrap_or(0),
            tv_nsec: i64::try_from(modified.rem_euclid(billion)).unwrap_or(0),
        },
    };
    rustix::fs::futimens(file, &stamps)
}

/// Reads a file to its end in chunks.
pub(crate) fn each_chunk(
    file: &mut File,
    mut take: impl FnMut(&[u8]) -> std::io::Result<()>,
) -> std::io::Result<()> {
    // A small file takes a small buffer; one byte more meets its end.
    let size = file.metadata()?.len().saturating_add(1);
    let mut chunk = vec![0; CHUNK_BYTES.min(usize::try_from(size).unwrap_or(CHUNK_BYTES))];
    loop {
        match file.read(&mut chunk) {
            Ok(0) => return Ok(()),
            Ok(length) => take(chunk.get(..length).unwrap_or_default())?,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Length and SHA-256 of what is left to read.
pub(crate) fn digest(file: &mut File) -> std::io::Result<(u64, [u8; 32])> {
    let mut hash = Sha256::new();
    let mut size = 0_u64;
    each_chunk(file, |chunk| {
        hash.update(chunk);
        size = size.saturating_add(chunk.len() as u64);
        Ok(())
    })?;
    Ok((size, hash.finalize().into()))
}

/// Copies what is left to read, sparse where it is zeros; length and SHA-256.
pub(crate) fn copy(from: &mut File, to: &mut File) -> std::io::Result<(u64, [u8; 32])> {
    use std::os::unix::fs::FileExt as _;
    let mut hash = Sha256::new();
    let mut size = 0_u64;
    each_chunk(from, |chunk| {
        hash.update(chunk);
        if chunk.iter().any(|byte| *byte != 0) {
            to.write_all_at(chunk, size)?;
        }
        size = size.saturating_add(chunk.len() as u64);
        Ok(())
    })?;
    to.set_len(size)?;
    Ok((size, hash.finalize().into()))
}
