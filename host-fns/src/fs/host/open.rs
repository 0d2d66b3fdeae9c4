//! Opening files and directories of the host.
//!
//! Invariant: what is handed out was looked at after it was opened: it is a
//! regular file or a directory, whatever its name was changed to meanwhile.

use std::ffi::OsStr;
use std::io;
use std::sync::Arc;

use cap_fs_ext::{DirExt as _, FollowSymlinks, OpenOptionsFollowExt as _};
use cap_std::fs::{Dir, MetadataExt as _, OpenOptions, OpenOptionsExt as _};
use fumehood_policies::RequestedPath;
use rustix::fs::OFlags;

use super::{HostDirectory, HostDirectoryHandle, HostFile};
use crate::errno::Errno;
use crate::fs::convert::host_errno;
use crate::fs::mount::is_kernel_view;
use crate::fs::node::{Node, OpenHow, Opened, Step, done};

/// Attempts to open a name that changes its kind meanwhile.
const OPEN_ATTEMPTS: u32 = 16;

impl HostDirectory {
    pub(crate) fn open(&self, path: &RequestedPath, how: OpenHow) -> Result<Step<Opened>, Errno> {
        if how.needs_file() {
            self.writable()?;
        }
        let place = done!(self.place(&path.path)?);
        let Some(name) = place.name else {
            if how.needs_file() {
                return Err(if how.exclusive { Errno::Exist } else { Errno::Isdir });
            }
            let node = Node::HostDirectory(Arc::clone(&self.root));
            return Ok(Step::Done(Opened { node, created: false, cut: false }));
        };
        for _ in 0..OPEN_ATTEMPTS {
            let metadata = Self::look(&place)?;
            let attempt = match metadata {
                None => self.open_new(path, how, &place.parent, name),
                Some(_) if how.create && how.exclusive => return Err(Errno::Exist),
                Some(metadata) if metadata.is_symlink() => {
                    if !how.follows(path.must_be_dir) {
                        return Err(Errno::Loop);
                    }
                    return self.redirect(
                        &path.path,
                        path.path.as_bytes().len(),
                        &place.parent,
                        name,
                    );
                }
                Some(metadata) if metadata.is_dir() => {
                    self.open_directory(how, &place.parent, name)
                }
                Some(metadata) if metadata.is_file() => {
                    self.open_file(path, how, &place.parent, name)
                }
                Some(_) => return Err(Errno::Perm),
            };
            match attempt {
                // The name changed its kind between looking and opening.
                Err(Errno::Again) => {}
                other => return other.map(Step::Done),
            }
        }
        Err(Errno::Busy)
    }

    fn open_new(
        &self,
        path: &RequestedPath,
        how: OpenHow,
        parent: &Dir,
        name: &OsStr,
    ) -> Result<Opened, Errno> {
        if !how.create {
            return Err(Errno::Noent);
        }
        if how.directory {
            return Err(Errno::Inval);
        }
        if path.must_be_dir {
            return Err(Errno::Isdir);
        }
        self.check_depth(&path.path)?;
        let mut options = file_options(how);
        options.write(true).create_new(true);
        let file = parent.open_with(name, &options).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => Errno::Again,
            _ => host_errno(&error),
        })?;
        let node =
            Node::HostFile(Arc::new(HostFile { file, mount: self.number, lower: self.lower }));
        Ok(Opened { node, created: true, cut: false })
    }

    fn open_directory(&self, how: OpenHow, parent: &Dir, name: &OsStr) -> Result<Opened, Errno> {
        if how.needs_file() {
            return Err(Errno::Isdir);
        }
        let dir = parent.open_dir_nofollow(name).map_err(|error| raced(&error))?;
        let node = Node::HostDirectory(Arc::new(HostDirectoryHandle { dir, mount: self.number }));
        Ok(Opened { node, created: false, cut: false })
    }

    fn open_file(
        &self,
        path: &RequestedPath,
        how: OpenHow,
        parent: &Dir,
        name: &OsStr,
    ) -> Result<Opened, Errno> {
        if how.directory || path.must_be_dir {
            return Err(Errno::Notdir);
        }
        let file = parent.open_with(name, &file_options(how)).map_err(|error| raced(&error))?;
        // What was looked at may be gone: only what is open counts.
        let metadata = file.metadata().map_err(|error| host_errno(&error))?;
        if !metadata.is_file() {
            return Err(if metadata.is_dir() { Errno::Again } else { Errno::Perm });
        }
        if metadata.dev() != self.root_device && is_kernel_view(&file) {
            return Err(Errno::Perm);
        }
        let cut = how.truncate && metadata.len() != 0;
        if cut {
            file.set_len(0).map_err(|error| host_errno(&error))?;
        }
        let node =
            Node::HostFile(Arc::new(HostFile { file, mount: self.number, lower: self.lower }));
        Ok(Opened { node, created: false, cut })
    }
}

/// Never follows, never blocks, never becomes a controlling terminal.
fn file_options(how: OpenHow) -> OpenOptions {
    let mut options = OpenOptions::new();
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    options.read(how.read || !how.write).write(how.write || how.truncate);
    options.follow(FollowSymlinks::No);
    options.custom_flags(flags.bits().cast_signed());
    options
}

/// An error of opening what was just looked at: if the name changed meanwhile,
/// look again.
fn raced(error: &io::Error) -> Errno {
    match host_errno(error) {
        Errno::Noent | Errno::Loop | Errno::Notdir | Errno::Isdir => Errno::Again,
        other => other,
    }
}
