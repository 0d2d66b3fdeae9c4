//! The overlay backend: copy-on-write on a host directory.
//!
//! What: the guest sees a project's directory (the lower tree) with its own
//! changes over it (the upper tree, in a workspace). Nothing is copied until
//! it is changed, and the lower tree is never written.
//! Why: an agent works on a real project at once, and what it did is one tree
//! that can be compared, brought back or thrown away.
//!
//! Invariant: the upper tree has the format of the kernel's overlayfs mounted
//! with `userxattr`: a whiteout is a character device 0/0, or an empty file
//! with `user.overlay.whiteout` in a directory whose `user.overlay.opaque` is
//! `x`; an opaque directory has `user.overlay.opaque` = `y`; there are no
//! redirects. What a change covers in the lower tree was noted in the
//! [`Baselines`] before. Everything is done by single names in handles; a
//! symbolic link is never followed but comes back to be decided again.
//!
//! A directory that is moved is copied up completely first: the kernel does
//! not follow redirects in such a mount either.

mod change;
mod copy;
mod resolve;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fumehood_policies::{Access, GuestPath, RequestedPath};
use rustix::io::Errno as Host;

use crate::call::{FileType, Filestat};
use crate::errno::Errno;
use crate::fs::convert::host_errno;
use crate::fs::handle::{Directory, Kind, Look};
use crate::fs::host::{HostDirectory, HostDirectoryHandle, HostFile, HostLimits};
use crate::fs::node::{Entry, NewTimes, OpenHow, Opened, Step, done};
use crate::workspace::baseline::Baselines;
use crate::workspace::view::View;
pub(crate) use change::{make_whiteout, mark_whiteouts};
use resolve::Found;
pub(crate) use resolve::{holds_file_whiteouts, is_opaque};

/// Marks a directory that hides the lower one, or (`x`) holds whiteouts of the
/// second form.
pub(crate) const OPAQUE: &str = "user.overlay.opaque";
/// Marks an empty file as a whiteout.
pub(crate) const WHITEOUT: &str = "user.overlay.whiteout";

/// How whiteouts are made here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WhiteoutForm {
    Device,
    Attribute,
}

/// Most that the upper tree of a workspace may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkspaceLimits {
    /// Bytes of its files.
    pub bytes: u64,
    /// Files, directories and links.
    pub inodes: u64,
}

impl Default for WorkspaceLimits {
    fn default() -> Self {
        Self { bytes: MAX_WORKSPACE_BYTES, inodes: MAX_WORKSPACE_INODES }
    }
}

/// Bytes of the changed files of a workspace, unless something else is asked
/// for.
pub const MAX_WORKSPACE_BYTES: u64 = 8 << 30;
/// Changed files, directories and links of a workspace, unless something else
/// is asked for.
pub const MAX_WORKSPACE_INODES: u64 = 500_000;

/// What the upper tree holds, against its limits.
#[derive(Debug)]
pub(crate) struct Quota {
    limits: WorkspaceLimits,
    bytes: AtomicU64,
    inodes: AtomicU64,
}

impl Quota {
    pub(crate) fn new(limits: WorkspaceLimits, bytes: u64, inodes: u64) -> Self {
        Self { limits, bytes: AtomicU64::new(bytes), inodes: AtomicU64::new(inodes) }
    }

    fn add(counter: &AtomicU64, amount: u64, limit: u64) -> Result<(), Errno> {
        let fits = |now: u64| now.checked_add(amount).filter(|total| *total <= limit);
        counter
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits)
            .map(drop)
            .map_err(|_| Errno::Nospc)
    }

    fn take(counter: &AtomicU64, amount: u64) {
        let less = |now: u64| Some(now.saturating_sub(amount));
        let _ = counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    pub(crate) fn add_bytes(&self, amount: u64) -> Result<(), Errno> {
        Self::add(&self.bytes, amount, self.limits.bytes)
    }

    pub(crate) fn add_inode(&self, bytes: u64) -> Result<(), Errno> {
        Self::add(&self.inodes, 1, self.limits.inodes)?;
        self.add_bytes(bytes).inspect_err(|_| Self::take(&self.inodes, 1))
    }

    pub(crate) fn release_bytes(&self, amount: u64) {
        Self::take(&self.bytes, amount);
    }

    pub(crate) fn release_inode(&self, bytes: u64) {
        Self::take(&self.inodes, 1);
        self.release_bytes(bytes);
    }

    pub(crate) fn is_exceeded_by(&self, bytes: u64, inodes: u64) -> bool {
        bytes > self.limits.bytes || inodes > self.limits.inodes
    }

    pub(crate) fn set(&self, bytes: u64, inodes: u64) {
        self.bytes.store(bytes, Ordering::Relaxed);
        self.inodes.store(inodes, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(crate) fn used(&self) -> (u64, u64) {
        (self.bytes.load(Ordering::Relaxed), self.inodes.load(Ordering::Relaxed))
    }
}

/// The upper tree of a workspace and what belongs to it. Made by the
/// workspace, which keeps it too.
#[derive(Debug)]
pub(crate) struct Layer {
    pub(crate) upper: Directory,
    pub(crate) work: Directory,
    pub(crate) form: WhiteoutForm,
    pub(crate) view: View,
    pub(crate) baselines: Baselines,
    pub(crate) quota: Quota,
    pub(crate) serial: AtomicU64,
}

impl Layer {
    /// A name that is not used in the work directory.
    pub(crate) fn spare_name(&self) -> Vec<u8> {
        format!("t{}", self.serial.fetch_add(1, Ordering::Relaxed)).into_bytes()
    }

    /// Whether a name of an upper directory hides the lower one.
    pub(crate) fn is_whiteout(
        dir: &Directory,
        name: &[u8],
        look: &Look,
        in_files: bool,
    ) -> Result<bool, Host> {
        match look.kind {
            Kind::Whiteout => Ok(true),
            Kind::File if in_files && look.size == 0 => file_attribute(dir, name),
            _ => Ok(false),
        }
    }
}

fn file_attribute(dir: &Directory, name: &[u8]) -> Result<bool, Host> {
    let (file, _) = dir.open_file(name)?;
    let mut value = [0_u8; 16];
    match rustix::fs::fgetxattr(&file, WHITEOUT, &mut value[..]) {
        Ok(_) => Ok(true),
        Err(Host::NODATA | Host::NOTSUP) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// The number for the guest of an error of the host.
pub(super) fn errno(error: Host) -> Errno {
    host_errno(&error.into())
}

pub(super) fn io_errno(error: std::io::Error) -> Errno {
    host_errno(&error)
}

/// One mounted overlay.
pub(crate) struct OverlayDirectory {
    at: GuestPath,
    upper: HostDirectory,
    lower: HostDirectory,
    lower_root: Directory,
    layer: Arc<Layer>,
}

impl OverlayDirectory {
    pub(crate) fn new(
        number: usize,
        at: GuestPath,
        dir: cap_std::fs::Dir,
        layer: Arc<Layer>,
        inode_key: [u8; 32],
        limits: HostLimits,
    ) -> std::io::Result<Self> {
        let lower_root = Directory::again(&dir)?;
        let make =
            |dir, access| HostDirectory::new(number, at.clone(), access, dir, inode_key, limits);
        let lower = make(dir, Access::ReadOnly)?.into_lower();
        let upper = make(layer.upper.to_dir()?, Access::ReadWrite)?;
        Ok(Self { at: at.clone(), upper, lower, lower_root, layer })
    }

    pub(crate) fn at(&self) -> &GuestPath {
        &self.at
    }

    /// The backend that holds what a path means now.
    fn holder(&self, found: &Found<'_>) -> Result<&HostDirectory, Errno> {
        if found.over_entry().is_some() {
            Ok(&self.upper)
        } else if found.visible_under().is_some() {
            Ok(&self.lower)
        } else {
            Err(Errno::Noent)
        }
    }

    pub(crate) fn metadata(
        &self,
        path: &RequestedPath,
        follow: bool,
    ) -> Result<Step<Filestat>, Errno> {
        match done!(self.resolve(&path.path)?) {
            None => self.lower.metadata(path, follow),
            Some(found) => self.holder(&found)?.metadata(path, follow),
        }
    }

    pub(crate) fn read_link(&self, path: &RequestedPath) -> Result<Step<Vec<u8>>, Errno> {
        let found = done!(self.resolve(&path.path)?).ok_or(Errno::Inval)?;
        self.holder(&found)?.read_link(path)
    }

    pub(crate) fn open(&self, path: &RequestedPath, how: OpenHow) -> Result<Step<Opened>, Errno> {
        let Some(found) = done!(self.resolve(&path.path)?) else {
            return self.upper.open(path, how);
        };
        let looked = found.look();
        let Some(look) = looked else { return self.open_new(path, how, found) };
        if let Some(over) = found.over_entry() {
            let opened = self.upper.open(path, how)?;
            if let Step::Done(Opened { cut: true, .. }) = &opened {
                self.layer.quota.release_bytes(over.size);
            }
            return Ok(opened);
        }
        if how.create && how.exclusive {
            return Err(Errno::Exist);
        }
        if look.kind != Kind::File || !(how.write || how.truncate) {
            let plain = OpenHow { create: false, ..how };
            let plain = if look.kind == Kind::Directory && how.needs_file() {
                return Err(Errno::Isdir);
            } else if look.kind == Kind::Symlink {
                // Only looked at: it comes back as a redirect or an error.
                OpenHow { write: false, truncate: false, ..plain }
            } else {
                plain
            };
            return self.lower.open(path, plain);
        }
        if how.directory || path.must_be_dir {
            return Err(Errno::Notdir);
        }
        let cut = how.truncate && look.size != 0;
        self.copy_up(&found, !how.truncate)?;
        let plain = OpenHow { create: false, exclusive: false, ..how };
        let Opened { node, .. } = done!(self.upper.open(path, plain)?);
        Ok(Step::Done(Opened { node, created: false, cut }))
    }

    fn open_new(
        &self,
        path: &RequestedPath,
        how: OpenHow,
        found: Found<'_>,
    ) -> Result<Step<Opened>, Errno> {
        if !how.create {
            return Err(Errno::Noent);
        }
        if how.directory {
            return Err(Errno::Inval);
        }
        if path.must_be_dir {
            return Err(Errno::Isdir);
        }
        self.upper.check_depth(&path.path)?;
        self.layer.quota.add_inode(0)?;
        let made = self.open_made(path, how, &found);
        if made.is_err() {
            self.layer.quota.release_inode(0);
        }
        made
    }

    fn open_made(
        &self,
        path: &RequestedPath,
        how: OpenHow,
        found: &Found<'_>,
    ) -> Result<Step<Opened>, Errno> {
        self.put(found, |work, name| work.create(name, 0o666).map(drop))?;
        let plain = OpenHow { create: false, exclusive: false, truncate: false, ..how };
        let Opened { node, .. } = done!(self.upper.open(path, plain)?);
        Ok(Step::Done(Opened { node, created: true, cut: false }))
    }

    /// The entries of the directory at a path, sorted by name.
    pub(crate) fn list(&self, path: &GuestPath) -> Result<Vec<Entry>, Errno> {
        let wanted = RequestedPath { path: path.clone(), must_be_dir: true };
        let (upper, lower) = match self.resolve(&wanted.path)? {
            Step::Redirect { .. } => return Err(Errno::Loop),
            Step::Done(None) => (
                Some(Directory::again(&self.layer.upper).map_err(errno)?),
                Some(Directory::again(&self.lower_root).map_err(errno)?),
            ),
            Step::Done(Some(found)) => self.both(&found)?,
        };
        self.merged(upper.as_ref(), lower.as_ref())
    }

    fn merged(
        &self,
        upper: Option<&Directory>,
        lower: Option<&Directory>,
    ) -> Result<Vec<Entry>, Errno> {
        let mut list: Vec<Entry> = Vec::new();
        let mut covered: Vec<Vec<u8>> = Vec::new();
        if let Some(dir) = upper {
            let device = dir.look_self().map_err(errno)?.device;
            let in_files = resolve::holds_file_whiteouts(dir).map_err(errno)?;
            for named in dir.entries().map_err(errno)? {
                let look = dir.look(&named.name).map_err(errno)?;
                if let Some(look) = look
                    && !Layer::is_whiteout(dir, &named.name, &look, in_files).map_err(errno)?
                {
                    list.push(Entry {
                        name: Arc::from(named.name.as_slice()),
                        inode: self.upper.virtual_inode(device, named.inode),
                        file_type: shown(named.kind),
                    });
                }
                covered.push(named.name);
            }
        }
        if let Some(dir) = lower {
            let device = dir.look_self().map_err(errno)?.device;
            for named in dir.entries().map_err(errno)? {
                let hidden = covered.binary_search(&named.name).is_ok();
                if !hidden && self.layer.view.unseen(&named.name).is_none() {
                    list.push(Entry {
                        name: Arc::from(named.name.as_slice()),
                        inode: self.lower.virtual_inode(device, named.inode),
                        file_type: shown(named.kind),
                    });
                }
            }
        }
        if list.len() > self.lower.entry_limit() {
            return Err(Errno::Overflow);
        }
        list.sort_unstable_by(|left, right| left.name.cmp(&right.name));
        Ok(list)
    }

    pub(crate) fn stat_file(&self, file: &HostFile) -> Result<Filestat, Errno> {
        self.upper.stat_file(file)
    }

    pub(crate) fn stat_directory(&self, dir: &HostDirectoryHandle) -> Result<Filestat, Errno> {
        self.upper.stat_directory(dir)
    }

    pub(crate) fn write_at(
        &self,
        file: &HostFile,
        offset: u64,
        data: &[u8],
    ) -> Result<usize, Errno> {
        if file.is_lower() {
            return Err(Errno::Badf);
        }
        let end = offset.saturating_add(data.len() as u64);
        let growth = end.saturating_sub(file.length()?);
        self.layer.quota.add_bytes(growth)?;
        let written = self.upper.write_at(file, offset, data);
        let moved = written.map_or(0, |moved| moved as u64);
        let unused = (data.len() as u64).saturating_sub(moved).min(growth);
        self.layer.quota.release_bytes(if written.is_err() { growth } else { unused });
        written
    }

    pub(crate) fn set_length(&self, file: &HostFile, length: u64) -> Result<(), Errno> {
        if file.is_lower() {
            return Err(Errno::Badf);
        }
        let old = file.length()?;
        let growth = length.saturating_sub(old);
        self.layer.quota.add_bytes(growth)?;
        match self.upper.set_length(file, length) {
            Ok(()) => {
                self.layer.quota.release_bytes(old.saturating_sub(length));
                Ok(())
            }
            Err(errno) => {
                self.layer.quota.release_bytes(growth);
                Err(errno)
            }
        }
    }

    /// Gives an open file the permission bits of the one at a path.
    pub(crate) fn copy_mode(
        &self,
        path: &RequestedPath,
        file: &HostFile,
    ) -> Result<Step<()>, Errno> {
        if file.is_lower() {
            return Err(Errno::Badf);
        }
        let found = done!(self.resolve(&path.path)?).ok_or(Errno::Isdir)?;
        let mode = done!(self.holder(&found)?.mode(path)?);
        self.upper.set_mode(file, mode).map(Step::Done)
    }

    pub(crate) fn set_times(
        &self,
        path: &RequestedPath,
        follow: bool,
        times: NewTimes,
    ) -> Result<Step<()>, Errno> {
        let Some(found) = done!(self.resolve(&path.path)?) else {
            return Ok(Step::Done(()));
        };
        let look = found.look().ok_or(Errno::Noent)?;
        if look.kind == Kind::Symlink && (follow || path.must_be_dir) {
            let Step::Redirect { to, second } = self.holder(&found)?.metadata(path, true)? else {
                return Err(Errno::Busy);
            };
            return Ok(Step::Redirect { to, second });
        }
        self.bring_up(&found)?;
        self.upper.set_times(path, false, times)
    }

    /// Sets the times of an open file that was opened at a path.
    pub(crate) fn set_times_file(
        &self,
        file: &HostFile,
        path: &GuestPath,
        times: NewTimes,
    ) -> Result<(), Errno> {
        if !file.is_lower() {
            return self.upper.set_times_file(file, times);
        }
        self.set_times_at(path, times)
    }

    /// Sets the times of what is at a path.
    pub(crate) fn set_times_at(&self, path: &GuestPath, times: NewTimes) -> Result<(), Errno> {
        let path = RequestedPath { path: path.clone(), must_be_dir: false };
        match self.set_times(&path, false, times)? {
            Step::Done(()) => Ok(()),
            Step::Redirect { .. } => Err(Errno::Loop),
        }
    }
}

fn shown(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::SymbolicLink,
        Kind::Whiteout | Kind::Other => FileType::Unknown,
    }
}
