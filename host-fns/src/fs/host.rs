//! The host directory backend.
//!
//! What: a directory of the host, opened once, seen by the guest as a mount.
//! Why: this is the only module that touches host files, and it does so by
//! single names relative to handles, never by a path.
//!
//! Invariant: every component is opened relative to the handle of its parent
//! without following links. A symbolic link is read, never followed: the
//! request comes back with a new guest path and is decided again, so the path
//! that was decided is the path that is acted on. Only regular files and
//! directories are ever opened, and opening never blocks. No host path, number
//! or message leaves this module.

mod mode;
mod open;

use std::ffi::{OsStr, OsString};
use std::io;
use std::ops::Deref;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;

use cap_fs_ext::DirExt as _;
use cap_std::fs::{Dir, File, FileExt as _, Metadata, MetadataExt as _};
use fumehood_policies::{Access, GuestPath, MAX_PATH_BYTES, RequestedPath};
use rustix::fs::{DirEntryExt as _, OFlags};
use sha2::{Digest as _, Sha256};

use crate::call::{FileType, Filestat};
use crate::errno::Errno;
use crate::fs::convert::{file_type, host_errno, nanoseconds, raw_time, time_spec};
use crate::fs::node::{Entry, NewTimes, Renamed, Step, done, follow_link};
use fumehood_policies::weaken;

/// An open regular file of the host.
#[derive(Debug)]
pub(crate) struct HostFile {
    file: File,
    mount: usize,
    /// It is of the lower tree of an overlay, which nothing changes.
    lower: bool,
}

/// An open directory of the host.
#[derive(Debug)]
pub(crate) struct HostDirectoryHandle {
    dir: Dir,
    mount: usize,
}

impl HostFile {
    pub(crate) fn mount(&self) -> usize {
        self.mount
    }

    pub(super) fn is_lower(&self) -> bool {
        self.lower
    }
}

impl HostDirectoryHandle {
    pub(crate) fn mount(&self) -> usize {
        self.mount
    }
}

/// One mounted host directory.
pub(crate) struct HostDirectory {
    number: usize,
    lower: bool,
    at: GuestPath,
    access: Access,
    root: Arc<HostDirectoryHandle>,
    /// The one name in it that is the mount, if that is a file.
    only: Option<OsString>,
    root_device: u64,
    inode_key: [u8; 32],
    entry_limit: usize,
    file_limit: u64,
    depth_limit: usize,
}

/// The limits that bind host directories too.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostLimits {
    pub(crate) entries: u32,
    pub(crate) file_bytes: u64,
    pub(crate) depth: u32,
}

/// A handle that is either the mount's root or was opened on the way.
enum Handle<'r> {
    Root(&'r Dir),
    Opened(Dir),
}

impl Deref for Handle<'_> {
    type Target = Dir;
    fn deref(&self) -> &Dir {
        match self {
            Self::Root(dir) => dir,
            Self::Opened(dir) => dir,
        }
    }
}

/// The parent of an object and its name there; the root has no name.
struct Place<'r, 'p> {
    parent: Handle<'r>,
    name: Option<&'p OsStr>,
}

impl HostDirectory {
    pub(crate) fn new(
        number: usize,
        at: GuestPath,
        access: Access,
        dir: Dir,
        inode_key: [u8; 32],
        limits: HostLimits,
    ) -> io::Result<Self> {
        let root_device = dir.dir_metadata()?.dev();
        Ok(Self {
            number,
            lower: false,
            at,
            access,
            root: Arc::new(HostDirectoryHandle { dir, mount: number }),
            only: None,
            root_device,
            inode_key,
            entry_limit: limits.entries as usize,
            file_limit: limits.file_bytes,
            depth_limit: limits.depth as usize,
        })
    }

    /// Shows one file of it, as the mount itself.
    pub(super) fn with_only(self, only: Option<OsString>) -> Self {
        Self { only, ..self }
    }

    pub(super) fn is_directory(&self) -> bool {
        self.only.is_none()
    }

    /// As the lower tree of an overlay: only looked at and read.
    pub(super) fn into_lower(self) -> Self {
        Self { lower: true, access: Access::ReadOnly, ..self }
    }

    pub(super) fn entry_limit(&self) -> usize {
        self.entry_limit
    }

    pub(super) fn file_limit(&self) -> u64 {
        self.file_limit
    }

    pub(crate) fn at(&self) -> &GuestPath {
        &self.at
    }

    /// Every change asks this first, whatever was decided before.
    fn writable(&self) -> Result<(), Errno> {
        let off = weaken::off(weaken::Defence::ReadOnlyMounts);
        if off || self.access == Access::ReadWrite { Ok(()) } else { Err(Errno::Rofs) }
    }

    pub(super) fn check_depth(&self, path: &GuestPath) -> Result<(), Errno> {
        if path.depth() > self.depth_limit { Err(Errno::Nametoolong) } else { Ok(()) }
    }

    /// Opens the parent of `path` with one system call, if the kernel can tell
    /// that no link is on the way. Otherwise nothing is known.
    #[cfg(target_os = "linux")]
    fn parent_at_once(&self, parent: &[u8]) -> Option<Dir> {
        use rustix::fs::{Mode, ResolveFlags};
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let opened = rustix::fs::openat2(&self.root.dir, parent, flags, Mode::empty(), resolve);
        opened.ok().map(|handle| Dir::from_std_file(handle.into()))
    }

    #[cfg(not(target_os = "linux"))]
    fn parent_at_once(&self, _parent: &[u8]) -> Option<Dir> {
        None
    }

    /// Opens the parent of `path` without following any link.
    fn place<'r: 'p, 'p>(&'r self, path: &'p GuestPath) -> Result<Step<Place<'r, 'p>>, Errno> {
        let relative = path.strip_prefix(&self.at).ok_or(Errno::Perm)?;
        if let Some(only) = &self.only {
            let place = Place { parent: Handle::Root(&self.root.dir), name: Some(only) };
            return if relative.is_empty() { Ok(Step::Done(place)) } else { Err(Errno::Notdir) };
        }
        if let Some(slash) = relative.iter().rposition(|byte| *byte == b'/')
            && let (Some(above), Some(name)) = (relative.get(..slash), path.file_name())
            && let Some(dir) = self.parent_at_once(above)
        {
            let name = Some(OsStr::from_bytes(name));
            return Ok(Step::Done(Place { parent: Handle::Opened(dir), name }));
        }
        self.walk(path, relative)
    }

    /// Opens the parent of `path`, one component at a time; a link redirects.
    fn walk<'r, 'p>(
        &'r self,
        path: &'p GuestPath,
        relative: &'p [u8],
    ) -> Result<Step<Place<'r, 'p>>, Errno> {
        let mut end = self.at.as_bytes().len();
        let mut parent = Handle::Root(&self.root.dir);
        let mut names =
            relative.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).peekable();
        while let Some(name) = names.next() {
            end = end.saturating_add(name.len()).saturating_add(1);
            let name = OsStr::from_bytes(name);
            if names.peek().is_none() {
                return Ok(Step::Done(Place { parent, name: Some(name) }));
            }
            match parent.open_dir_nofollow(name) {
                Ok(dir) => parent = Handle::Opened(dir),
                Err(error) => return self.blocked(path, end, &parent, name, &error),
            }
        }
        Ok(Step::Done(Place { parent, name: None }))
    }

    /// A component that could not be opened as a directory: a symbolic link
    /// redirects, anything else is an error.
    fn blocked<T>(
        &self,
        path: &GuestPath,
        end: usize,
        parent: &Dir,
        name: &OsStr,
        error: &io::Error,
    ) -> Result<Step<T>, Errno> {
        match parent.symlink_metadata(name) {
            Ok(metadata) if metadata.is_symlink() => self.redirect(path, end, parent, name),
            Ok(metadata) if !metadata.is_dir() => Err(Errno::Notdir),
            Ok(_) => Err(host_errno(error)),
            Err(error) => Err(host_errno(&error)),
        }
    }

    fn redirect<T>(
        &self,
        path: &GuestPath,
        end: usize,
        parent: &Dir,
        name: &OsStr,
    ) -> Result<Step<T>, Errno> {
        let target = parent.read_link_contents(name).map_err(|error| match host_errno(&error) {
            // It is no link any more.
            Errno::Inval => Errno::Busy,
            errno => errno,
        })?;
        let to = follow_link(path, end, &self.at, target.as_os_str().as_bytes(), false)?;
        Ok(Step::redirect(to))
    }

    /// The object's metadata without following; `None` if there is nothing.
    fn look(place: &Place<'_, '_>) -> Result<Option<Metadata>, Errno> {
        let found = match place.name {
            Some(name) => place.parent.symlink_metadata(name),
            None => place.parent.dir_metadata(),
        };
        match found {
            Ok(metadata) => Ok(Some(metadata)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(host_errno(&error)),
        }
    }

    pub(crate) fn metadata(
        &self,
        path: &RequestedPath,
        follow: bool,
    ) -> Result<Step<Filestat>, Errno> {
        let place = done!(self.place(&path.path)?);
        let metadata = Self::look(&place)?.ok_or(Errno::Noent)?;
        if let Some(name) = place.name
            && metadata.is_symlink()
            && (follow || path.must_be_dir)
        {
            return self.redirect(&path.path, path.path.as_bytes().len(), &place.parent, name);
        }
        if path.must_be_dir && !metadata.is_dir() {
            return Err(Errno::Notdir);
        }
        Ok(Step::Done(self.filestat(&metadata)))
    }

    pub(crate) fn read_link(&self, path: &RequestedPath) -> Result<Step<Vec<u8>>, Errno> {
        let place = done!(self.place(&path.path)?);
        let name = place.name.ok_or(Errno::Inval)?;
        let metadata = Self::look(&place)?.ok_or(Errno::Noent)?;
        if !metadata.is_symlink() {
            return Err(Errno::Inval);
        }
        if path.must_be_dir {
            return self.redirect(&path.path, path.path.as_bytes().len(), &place.parent, name);
        }
        let target = place.parent.read_link_contents(name).map_err(|error| host_errno(&error))?;
        let target = target.as_os_str().as_bytes();
        // A target outside would tell the guest a host path.
        follow_link(&path.path, path.path.as_bytes().len(), &self.at, target, false)?;
        Ok(Step::Done(target.to_vec()))
    }

    pub(crate) fn create_directory(&self, path: &RequestedPath) -> Result<Step<()>, Errno> {
        self.writable()?;
        self.check_depth(&path.path)?;
        let place = done!(self.place(&path.path)?);
        let name = place.name.ok_or(Errno::Exist)?;
        place.parent.create_dir(name).map_err(|error| host_errno(&error))?;
        Ok(Step::Done(()))
    }

    pub(crate) fn symlink(&self, target: &[u8], path: &RequestedPath) -> Result<Step<()>, Errno> {
        self.writable()?;
        if target.is_empty() {
            return Err(Errno::Noent);
        }
        if target.len() > MAX_PATH_BYTES {
            return Err(Errno::Nametoolong);
        }
        self.check_depth(&path.path)?;
        let place = done!(self.place(&path.path)?);
        let name = place.name.ok_or(Errno::Exist)?;
        if Self::look(&place)?.is_some() {
            return Err(Errno::Exist);
        }
        if path.must_be_dir {
            return Err(Errno::Noent);
        }
        self.check_target(&path.path, target)?;
        let target = OsStr::from_bytes(target);
        place.parent.symlink_contents(target, name).map_err(|error| host_errno(&error))?;
        Ok(Step::Done(()))
    }

    /// A link that leads out would be followed by tools of the host.
    pub(super) fn check_target(&self, path: &GuestPath, target: &[u8]) -> Result<(), Errno> {
        follow_link(path, path.as_bytes().len(), &self.at, target, false)?;
        stays_below(target)
    }

    pub(crate) fn remove(&self, path: &RequestedPath) -> Result<Step<()>, Errno> {
        self.writable()?;
        let place = done!(self.place(&path.path)?);
        let name = place.name.ok_or(Errno::Isdir)?;
        let metadata = Self::look(&place)?.ok_or(Errno::Noent)?;
        if metadata.is_dir() {
            return Err(Errno::Isdir);
        }
        if path.must_be_dir {
            return Err(Errno::Notdir);
        }
        ordinary(&metadata)?;
        place.parent.remove_file(name).map_err(|error| host_errno(&error))?;
        Ok(Step::Done(()))
    }

    pub(crate) fn remove_directory(&self, path: &RequestedPath) -> Result<Step<()>, Errno> {
        self.writable()?;
        let place = done!(self.place(&path.path)?);
        let name = place.name.ok_or(Errno::Busy)?;
        let metadata = Self::look(&place)?.ok_or(Errno::Noent)?;
        if !metadata.is_dir() {
            return Err(Errno::Notdir);
        }
        place.parent.remove_dir(name).map_err(|error| host_errno(&error))?;
        Ok(Step::Done(()))
    }

    pub(crate) fn link(
        &self,
        old: &RequestedPath,
        new: &RequestedPath,
        follow: bool,
    ) -> Result<Step<()>, Errno> {
        self.writable()?;
        self.check_depth(&new.path)?;
        let from = done!(self.place(&old.path)?);
        let to = done!(second(self.place(&new.path)?));
        let (Some(old_name), Some(new_name)) = (from.name, to.name) else {
            return Err(Errno::Perm);
        };
        let metadata = Self::look(&from)?.ok_or(Errno::Noent)?;
        if metadata.is_symlink() && (follow || old.must_be_dir) {
            return self.redirect(&old.path, old.path.as_bytes().len(), &from.parent, old_name);
        }
        if metadata.is_dir() {
            return Err(Errno::Perm);
        }
        if old.must_be_dir {
            return Err(Errno::Notdir);
        }
        if new.must_be_dir {
            return Err(Errno::Noent);
        }
        ordinary(&metadata)?;
        movable(&from, old_name, &metadata)?;
        from.parent
            .hard_link(old_name, &to.parent, new_name)
            .map_err(|error| host_errno(&error))?;
        Ok(Step::Done(()))
    }

    pub(crate) fn rename(
        &self,
        old: &RequestedPath,
        new: &RequestedPath,
    ) -> Result<Step<Renamed>, Errno> {
        self.writable()?;
        self.check_depth(&new.path)?;
        let from = done!(self.place(&old.path)?);
        let to = done!(second(self.place(&new.path)?));
        let (Some(old_name), Some(new_name)) = (from.name, to.name) else {
            return Err(Errno::Busy);
        };
        let source = Self::look(&from)?.ok_or(Errno::Noent)?;
        let target = Self::look(&to)?;
        ordinary(&source)?;
        if let Some(target) = &target {
            ordinary(target)?;
        }
        let directory = source.is_dir();
        if !directory && (old.must_be_dir || new.must_be_dir) {
            return Err(Errno::Notdir);
        }
        let same = |target: &Metadata| target.dev() == source.dev() && target.ino() == source.ino();
        if target.as_ref().is_some_and(same) {
            return Ok(Step::Done(Renamed { directory, replaced: false, nothing: true }));
        }
        movable(&from, old_name, &source)?;
        from.parent.rename(old_name, &to.parent, new_name).map_err(|error| host_errno(&error))?;
        Ok(Step::Done(Renamed { directory, replaced: target.is_some(), nothing: false }))
    }

    pub(crate) fn set_times(
        &self,
        path: &RequestedPath,
        follow: bool,
        times: NewTimes,
    ) -> Result<Step<()>, Errno> {
        self.writable()?;
        let place = done!(self.place(&path.path)?);
        let metadata = Self::look(&place)?.ok_or(Errno::Noent)?;
        let (accessed, modified) = (time_spec(times.accessed), time_spec(times.modified));
        let changed = match place.name {
            None => place.parent.set_times(".", accessed, modified),
            Some(name) if metadata.is_symlink() && (follow || path.must_be_dir) => {
                return self.redirect(&path.path, path.path.as_bytes().len(), &place.parent, name);
            }
            Some(_) if path.must_be_dir && !metadata.is_dir() => return Err(Errno::Notdir),
            Some(name) => {
                ordinary(&metadata)?;
                place.parent.set_symlink_times(name, accessed, modified)
            }
        };
        changed.map_err(|error| host_errno(&error))?;
        Ok(Step::Done(()))
    }

    fn filestat(&self, metadata: &Metadata) -> Filestat {
        Filestat {
            device: self.number.saturating_add(1) as u64,
            inode: self.virtual_inode(metadata.dev(), metadata.ino()),
            file_type: file_type(metadata.file_type()),
            links: if metadata.is_dir() { 1 } else { metadata.nlink() },
            size: metadata.len(),
            accessed_ns: nanoseconds(metadata.atime(), metadata.atime_nsec()),
            modified_ns: nanoseconds(metadata.mtime(), metadata.mtime_nsec()),
            changed_ns: nanoseconds(metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// A number that is stable within the session and tells nothing of the
    /// host's.
    pub(super) fn virtual_inode(&self, device: u64, inode: u64) -> u64 {
        let mut hash = Sha256::new();
        hash.update(self.inode_key);
        hash.update(device.to_le_bytes());
        hash.update(inode.to_le_bytes());
        let head = hash
            .finalize()
            .iter()
            .take(8)
            .fold(0_u64, |value, byte| (value << 8) | u64::from(*byte));
        (head >> 1).max(1)
    }

    pub(crate) fn stat_file(&self, file: &HostFile) -> Result<Filestat, Errno> {
        file.file
            .metadata()
            .map(|metadata| self.filestat(&metadata))
            .map_err(|error| host_errno(&error))
    }

    pub(crate) fn stat_directory(
        &self,
        directory: &HostDirectoryHandle,
    ) -> Result<Filestat, Errno> {
        directory
            .dir
            .dir_metadata()
            .map(|metadata| self.filestat(&metadata))
            .map_err(|error| host_errno(&error))
    }

    pub(crate) fn write_at(
        &self,
        file: &HostFile,
        offset: u64,
        data: &[u8],
    ) -> Result<usize, Errno> {
        self.writable()?;
        match offset.checked_add(data.len() as u64) {
            Some(end) if end <= self.file_limit => {}
            _ => return Err(Errno::Fbig),
        }
        file.file.write_at(data, offset).map_err(|error| host_errno(&error))
    }

    pub(crate) fn set_length(&self, file: &HostFile, length: u64) -> Result<(), Errno> {
        self.writable()?;
        if length > self.file_limit {
            return Err(Errno::Fbig);
        }
        file.file.set_len(length).map_err(|error| host_errno(&error))
    }

    pub(crate) fn set_times_file(&self, file: &HostFile, times: NewTimes) -> Result<(), Errno> {
        self.writable()?;
        let stamps = rustix::fs::Timestamps {
            last_access: raw_time(times.accessed),
            last_modification: raw_time(times.modified),
        };
        rustix::fs::futimens(&file.file, &stamps).map_err(|error| host_errno(&error.into()))
    }

    pub(crate) fn set_times_directory(
        &self,
        directory: &HostDirectoryHandle,
        times: NewTimes,
    ) -> Result<(), Errno> {
        self.writable()?;
        let (accessed, modified) = (time_spec(times.accessed), time_spec(times.modified));
        directory.dir.set_times(".", accessed, modified).map_err(|error| host_errno(&error))
    }

    /// The entries of a directory, sorted by name.
    pub(crate) fn list(&self, directory: &HostDirectoryHandle) -> Result<Vec<Entry>, Errno> {
        let fail = |error: io::Error| host_errno(&error);
        let device = directory.dir.dir_metadata().map_err(fail)?.dev();
        let mut list = Vec::new();
        for entry in directory.dir.entries().map_err(fail)? {
            let entry = entry.map_err(fail)?;
            if list.len() >= self.entry_limit {
                return Err(Errno::Overflow);
            }
            let inode = entry.ino();
            list.push(Entry {
                name: Arc::from(entry.file_name().as_bytes()),
                inode: self.virtual_inode(device, inode),
                file_type: entry.file_type().map_or(FileType::Unknown, file_type),
            });
        }
        list.sort_unstable_by(|left, right| left.name.cmp(&right.name));
        Ok(list)
    }
}

impl HostFile {
    pub(crate) fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize, Errno> {
        self.file.read_at(into, offset).map_err(|error| host_errno(&error))
    }

    pub(crate) fn length(&self) -> Result<u64, Errno> {
        self.file.metadata().map(|metadata| metadata.len()).map_err(|error| host_errno(&error))
    }

    pub(crate) fn sync(&self, data_only: bool) -> Result<(), Errno> {
        let synced = if data_only { self.file.sync_data() } else { self.file.sync_all() };
        synced.map_err(|error| host_errno(&error))
    }
}

/// Only regular files, directories and links are touched.
fn ordinary(metadata: &Metadata) -> Result<(), Errno> {
    if metadata.is_file() || metadata.is_dir() || metadata.is_symlink() {
        Ok(())
    } else {
        Err(Errno::Perm)
    }
}

/// A link that the guest makes names what lies below it. With a `..` in it, it
/// could be made inside the mount and then lead out of it for tools of the
/// host, once it, a directory above it or a link it goes through was moved.
pub(crate) fn stays_below(target: &[u8]) -> Result<(), Errno> {
    let climbs = target.split(|byte| *byte == b'/').any(|name| name == b"..");
    if climbs || target.starts_with(b"/") { Err(Errno::Perm) } else { Ok(()) }
}

/// A link that climbs, which only the host can have made, stays where it is.
fn movable(place: &Place<'_, '_>, name: &OsStr, metadata: &Metadata) -> Result<(), Errno> {
    if !metadata.is_symlink() {
        return Ok(());
    }
    let target = place.parent.read_link_contents(name).map_err(|error| host_errno(&error))?;
    stays_below(target.as_os_str().as_bytes())
}

fn second<T>(step: Step<T>) -> Step<T> {
    match step {
        Step::Redirect { to, .. } => Step::Redirect { to, second: true },
        done => done,
    }
}
