//! The two kinds of host mounts behind one face.

use std::io;
use std::sync::Arc;

use fumehood_policies::{GuestPath, RequestedPath};

use crate::call::Filestat;
use crate::errno::Errno;
use crate::fs::host::{HostDirectory, HostDirectoryHandle, HostFile, HostLimits};
use crate::fs::mount::HostMount;
use crate::fs::node::{Entry, NewTimes, OpenHow, Opened, Renamed, Step};
use crate::fs::overlay::OverlayDirectory;

/// A mount whose files are the host's.
pub(crate) enum Mounted {
    Plain(HostDirectory),
    Overlay(OverlayDirectory),
}

/// The same call on either.
macro_rules! either {
    ($self:expr, $mount:ident => $call:expr) => {
        match $self {
            Mounted::Plain($mount) => $call,
            Mounted::Overlay($mount) => $call,
        }
    };
}

type Answer<T> = Result<Step<T>, Errno>;

impl Mounted {
    pub(crate) fn new(
        number: usize,
        mount: HostMount,
        inode_key: [u8; 32],
        limits: HostLimits,
    ) -> io::Result<Self> {
        let HostMount { at, dir, access, overlay, file } = mount;
        Ok(match overlay {
            None => {
                let made = HostDirectory::new(number, at, access, dir, inode_key, limits)?;
                Self::Plain(made.with_only(file))
            }
            Some(layer) => {
                let layer = Arc::clone(&layer);
                let made = OverlayDirectory::new(number, at, dir, layer, inode_key, limits)?;
                Self::Overlay(made)
            }
        })
    }

    pub(crate) fn at(&self) -> &GuestPath {
        either!(self, mount => mount.at())
    }

    /// Whether it is more than a single file.
    pub(crate) fn is_directory(&self) -> bool {
        match self {
            Self::Plain(mount) => mount.is_directory(),
            Self::Overlay(_) => true,
        }
    }

    pub(crate) fn open(&self, path: &RequestedPath, how: OpenHow) -> Answer<Opened> {
        either!(self, mount => mount.open(path, how))
    }

    pub(crate) fn metadata(&self, path: &RequestedPath, follow: bool) -> Answer<Filestat> {
        either!(self, mount => mount.metadata(path, follow))
    }

    pub(crate) fn read_link(&self, path: &RequestedPath) -> Answer<Vec<u8>> {
        either!(self, mount => mount.read_link(path))
    }

    pub(crate) fn create_directory(&self, path: &RequestedPath) -> Answer<()> {
        either!(self, mount => mount.create_directory(path))
    }

    pub(crate) fn symlink(&self, target: &[u8], path: &RequestedPath) -> Answer<()> {
        either!(self, mount => mount.symlink(target, path))
    }

    pub(crate) fn remove(&self, path: &RequestedPath) -> Answer<()> {
        either!(self, mount => mount.remove(path))
    }

    pub(crate) fn remove_directory(&self, path: &RequestedPath) -> Answer<()> {
        either!(self, mount => mount.remove_directory(path))
    }

    pub(crate) fn link(
        &self,
        old: &RequestedPath,
        new: &RequestedPath,
        follow: bool,
    ) -> Answer<()> {
        either!(self, mount => mount.link(old, new, follow))
    }

    pub(crate) fn rename(&self, old: &RequestedPath, new: &RequestedPath) -> Answer<Renamed> {
        either!(self, mount => mount.rename(old, new))
    }

    pub(crate) fn copy_mode(&self, path: &RequestedPath, file: &HostFile) -> Answer<()> {
        either!(self, mount => mount.copy_mode(path, file))
    }

    pub(crate) fn set_times(
        &self,
        path: &RequestedPath,
        follow: bool,
        times: NewTimes,
    ) -> Answer<()> {
        either!(self, mount => mount.set_times(path, follow, times))
    }

    pub(crate) fn set_times_file(
        &self,
        file: &HostFile,
        path: &GuestPath,
        times: NewTimes,
    ) -> Result<(), Errno> {
        match self {
            Self::Plain(mount) => mount.set_times_file(file, times),
            Self::Overlay(mount) => mount.set_times_file(file, path, times),
        }
    }

    pub(crate) fn set_times_directory(
        &self,
        directory: &HostDirectoryHandle,
        path: &GuestPath,
        times: NewTimes,
    ) -> Result<(), Errno> {
        match self {
            Self::Plain(mount) => mount.set_times_directory(directory, times),
            Self::Overlay(mount) => mount.set_times_at(path, times),
        }
    }

    /// The entries of an open directory; an overlay has none that is open, so
    /// they are those at its path.
    pub(crate) fn list(
        &self,
        directory: &HostDirectoryHandle,
        path: &GuestPath,
    ) -> Result<Vec<Entry>, Errno> {
        match self {
            Self::Plain(mount) => mount.list(directory),
            Self::Overlay(mount) => mount.list(path),
        }
    }

    pub(crate) fn stat_file(&self, file: &HostFile) -> Result<Filestat, Errno> {
        either!(self, mount => mount.stat_file(file))
    }

    pub(crate) fn stat_directory(&self, dir: &HostDirectoryHandle) -> Result<Filestat, Errno> {
        either!(self, mount => mount.stat_directory(dir))
    }

    pub(crate) fn write_at(
        &self,
        file: &HostFile,
        offset: u64,
        data: &[u8],
    ) -> Result<usize, Errno> {
        either!(self, mount => mount.write_at(file, offset, data))
    }

    pub(crate) fn set_length(&self, file: &HostFile, length: u64) -> Result<(), Errno> {
        either!(self, mount => mount.set_length(file, length))
    }
}
