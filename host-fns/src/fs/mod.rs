//! The file system the guest sees: a tree of mounts.
//!
//! What: the in-memory root, host directories and overlays on them, behind one
//! set of executors.
//! Why: one place decides which backend a path belongs to.
//!
//! Invariant: an executor that acts on a path takes a [`Checked`] request and
//! acts on exactly the path in it. A symbolic link never leads from one mount
//! into another. Mount points and the directories above them stay.

mod content;
mod convert;
pub(crate) mod handle;
mod host;
mod memory;
mod mount;
mod mounted;
mod node;
pub(crate) mod overlay;
mod shown;
mod watch;

#[cfg(test)]
mod host_tests;
#[cfg(test)]
mod memory_tests;

use std::sync::Arc;

use fumehood_policies::{FsAction, FsRequest, GuestPath, RequestedPath};

use crate::call::Filestat;
use crate::errno::Errno;
use crate::limits::Limits;
use crate::pipeline::Checked;

use host::HostFile;
pub(crate) use host::{HostLimits, stays_below};
pub(crate) use memory::MemoryTree;
pub(crate) use mount::forbidden;
pub use mount::{HostMount, MountError, lies_in};
use mounted::Mounted;
use node::done;
pub(crate) use node::{Entry, NewTimes, Node, OpenHow, Opened, Renamed, Step, path_errno};
pub use overlay::{MAX_WORKSPACE_BYTES, MAX_WORKSPACE_INODES, WorkspaceLimits};
#[cfg(test)]
pub(crate) use shown::MAX_TOUCHED;
use shown::Shown;
pub use watch::{MAX_WATCHED, Watched};

/// The time of an executor, for whoever listens to spans.
pub(crate) fn executing() -> tracing::span::EnteredSpan {
    tracing::trace_span!("execute").entered()
}

/// Which spelling of the request's paths insisted on a directory.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spelling {
    pub(crate) first: bool,
    pub(crate) second: bool,
}

/// Where a path lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Backend {
    Memory,
    Host(usize),
}

/// All mounts.
pub(crate) struct Vfs {
    pub(crate) memory: MemoryTree,
    hosts: Vec<Mounted>,
    /// In deterministic mode: what is shown of host files.
    shown: Option<Shown>,
}

type Request<'c, 'p> = &'c Checked<'p, FsRequest>;

fn first(checked: Request<'_, '_>, spelling: Spelling) -> RequestedPath {
    RequestedPath { path: checked.get().path.clone(), must_be_dir: spelling.first }
}

fn both(
    checked: Request<'_, '_>,
    spelling: Spelling,
) -> Result<(RequestedPath, RequestedPath), Errno> {
    let to = checked.get().action.second_path().ok_or(Errno::Inval)?;
    Ok((first(checked, spelling), RequestedPath { path: to.clone(), must_be_dir: spelling.second }))
}

impl Vfs {
    /// An in-memory root with nothing in it.
    pub(crate) fn new(limits: Arc<Limits>, now: u64) -> Self {
        Self { memory: MemoryTree::new(limits, now), hosts: Vec::new(), shown: None }
    }

    /// From now on shows nothing of host files that differs from machine to
    /// machine; times start at `start_ns`.
    pub(crate) fn show_no_host_numbers(&mut self, start_ns: u64) {
        self.shown = Some(Shown::new(start_ns));
    }

    /// Tells what is shown that a change of a host file was made.
    fn note<T>(&mut self, path: &GuestPath, step: &Step<T>, change: impl FnOnce(&mut Shown, &T)) {
        if let (Some(shown), Step::Done(done)) = (&mut self.shown, step)
            && self.hosts.iter().any(|host| path.starts_with(host.at()))
        {
            change(shown, done);
        }
    }

    fn show(&self, path: Option<&GuestPath>, stat: Filestat) -> Filestat {
        match &self.shown {
            Some(shown) => shown.stat(path, stat),
            None => stat,
        }
    }

    /// Mounts a host directory; its mount point must already be there.
    pub(crate) fn mount(
        &mut self,
        mount: HostMount,
        inode_key: [u8; 32],
        limits: HostLimits,
    ) -> std::io::Result<()> {
        let number = self.hosts.len();
        self.hosts.push(Mounted::new(number, mount, inode_key, limits)?);
        Ok(())
    }

    fn backend(&self, path: &GuestPath) -> Backend {
        self.hosts
            .iter()
            .position(|host| path.starts_with(host.at()))
            .map_or(Backend::Memory, Backend::Host)
    }

    fn host(&self, number: usize) -> Result<&Mounted, Errno> {
        self.hosts.get(number).ok_or(Errno::Badf)
    }

    /// Where the first host directory is mounted.
    pub(crate) fn first_mount(&self) -> Option<GuestPath> {
        self.hosts.iter().find(|host| host.is_directory()).map(|host| host.at().clone())
    }

    /// Whether both paths are in one mount.
    pub(crate) fn same_mount(&self, left: &GuestPath, right: &GuestPath) -> bool {
        self.backend(left) == self.backend(right)
    }

    /// Whether a path is in memory, so that a snapshot holds it.
    pub(crate) fn in_memory(&self, path: &GuestPath) -> bool {
        self.backend(path) == Backend::Memory
    }

    /// Mount points, and what is above them, are neither moved nor removed.
    fn check_not_pinned(&self, path: &GuestPath) -> Result<(), Errno> {
        let pinned = path.is_root() || self.hosts.iter().any(|host| host.at().starts_with(path));
        if pinned { Err(Errno::Busy) } else { Ok(()) }
    }

    pub(crate) fn open(
        &mut self,
        checked: Request<'_, '_>,
        spelling: Spelling,
        how: OpenHow,
        now: u64,
    ) -> Result<Step<Opened>, Errno> {
        let _executing = executing();
        let path = first(checked, spelling);
        match self.backend(&path.path) {
            Backend::Memory => self.memory.open(&path, how, now),
            Backend::Host(number) => {
                let step = self.host(number)?.open(&path, how)?;
                self.note(&path.path, &step, |shown, opened| match (opened.created, opened.cut) {
                    (true, _) => shown.created(&path.path, now),
                    (false, true) => shown.modified(&path.path, now),
                    (false, false) => {}
                });
                Ok(step)
            }
        }
    }

    pub(crate) fn metadata(
        &self,
        checked: Request<'_, '_>,
        spelling: Spelling,
        follow: bool,
    ) -> Result<Step<Filestat>, Errno> {
        let _executing = executing();
        let path = first(checked, spelling);
        match self.backend(&path.path) {
            Backend::Memory => self.memory.metadata(&path, follow),
            Backend::Host(number) => Ok(match self.host(number)?.metadata(&path, follow)? {
                Step::Done(stat) => Step::Done(self.show(Some(&path.path), stat)),
                redirect => redirect,
            }),
        }
    }

    pub(crate) fn read_link(
        &self,
        checked: Request<'_, '_>,
        spelling: Spelling,
    ) -> Result<Step<Vec<u8>>, Errno> {
        let _executing = executing();
        let path = first(checked, spelling);
        match self.backend(&path.path) {
            Backend::Memory => self.memory.read_link(&path),
            Backend::Host(number) => self.host(number)?.read_link(&path),
        }
    }

    pub(crate) fn create_directory(
        &mut self,
        checked: Request<'_, '_>,
        spelling: Spelling,
        now: u64,
    ) -> Result<Step<()>, Errno> {
        let _executing = executing();
        let path = first(checked, spelling);
        match self.backend(&path.path) {
            Backend::Memory => self.memory.create_directory(&path, now),
            Backend::Host(number) => {
                let step = self.host(number)?.create_directory(&path)?;
                self.note(&path.path, &step, |shown, ()| shown.created(&path.path, now));
                Ok(step)
            }
        }
    }

    pub(crate) fn remove(
        &mut self,
        checked: Request<'_, '_>,
        spelling: Spelling,
        now: u64,
    ) -> Result<Step<()>, Errno> {
        let _executing = executing();
        let path = first(checked, spelling);
        match self.backend(&path.path) {
            Backend::Memory => self.memory.remove(&path, now),
            Backend::Host(number) => {
                let step = self.host(number)?.remove(&path)?;
                self.note(&path.path, &step, |shown, ()| shown.removed(&path.path, now));
                Ok(step)
            }
        }
    }

    pub(crate) fn remove_directory(
        &mut self,
        checked: Request<'_, '_>,
        spelling: Spelling,
        now: u64,
    ) -> Result<Step<()>, Errno> {
        let _executing = executing();
        let path = first(checked, spelling);
        self.check_not_pinned(&path.path)?;
        match self.backend(&path.path) {
            Backend::Memory => self.memory.remove_directory(&path, now),
            Backend::Host(number) => {
                let step = self.host(number)?.remove_directory(&path)?;
                self.note(&path.path, &step, |shown, ()| shown.removed(&path.path, now));
                Ok(step)
            }
        }
    }

    pub(crate) fn symlink(
        &mut self,
        checked: Request<'_, '_>,
        spelling: Spelling,
        target: &[u8],
        now: u64,
    ) -> Result<Step<()>, Errno> {
        let _executing = executing();
        let path = first(checked, spelling);
        match self.backend(&path.path) {
            Backend::Memory => self.memory.symlink(target, &path, now),
            Backend::Host(number) => {
                let step = self.host(number)?.symlink(target, &path)?;
                self.note(&path.path, &step, |shown, ()| shown.created(&path.path, now));
                Ok(step)
            }
        }
    }

    pub(crate) fn link(
        &mut self,
        checked: Request<'_, '_>,
        spelling: Spelling,
        follow: bool,
        now: u64,
    ) -> Result<Step<()>, Errno> {
        let _executing = executing();
        let (old, new) = both(checked, spelling)?;
        match (self.backend(&old.path), self.backend(&new.path)) {
            (from, to) if from != to => self.across(from, &old),
            (Backend::Memory, _) => self.memory.link(&old, &new, follow, now),
            (Backend::Host(number), _) => {
                let step = self.host(number)?.link(&old, &new, follow)?;
                self.note(&old.path, &step, |shown, ()| shown.linked(&old.path, &new.path, now));
                Ok(step)
            }
        }
    }

    /// Nothing is moved or linked between mounts. That there is nothing to move
    /// is said first, so that a program does not start to copy it.
    fn across<T>(&self, from: Backend, old: &RequestedPath) -> Result<Step<T>, Errno> {
        done!(match from {
            Backend::Memory => self.memory.metadata(old, false)?,
            Backend::Host(number) => self.host(number)?.metadata(old, false)?,
        });
        Err(Errno::Xdev)
    }

    pub(crate) fn rename(
        &mut self,
        checked: Request<'_, '_>,
        spelling: Spelling,
        now: u64,
    ) -> Result<Step<Renamed>, Errno> {
        let _executing = executing();
        let (old, new) = both(checked, spelling)?;
        self.check_not_pinned(&old.path)?;
        self.check_not_pinned(&new.path)?;
        match (self.backend(&old.path), self.backend(&new.path)) {
            (from, to) if from != to => self.across(from, &old),
            (Backend::Memory, _) => self.memory.rename(&old, &new, now),
            (Backend::Host(number), _) => {
                let step = self.host(number)?.rename(&old, &new)?;
                self.note(&old.path, &step, |shown, renamed| {
                    if !renamed.nothing {
                        shown.renamed(&old.path, &new.path, now);
                    }
                });
                Ok(step)
            }
        }
    }

    pub(crate) fn set_times(
        &mut self,
        checked: Request<'_, '_>,
        spelling: Spelling,
        follow: bool,
        times: NewTimes,
        now: u64,
    ) -> Result<Step<()>, Errno> {
        let _executing = executing();
        let path = first(checked, spelling);
        match self.backend(&path.path) {
            Backend::Memory => self.memory.set_times(&path, follow, times, now),
            Backend::Host(number) => {
                let step = self.host(number)?.set_times(&path, follow, times)?;
                self.note(&path.path, &step, |shown, ()| shown.set_times(&path.path, times, now));
                Ok(step)
            }
        }
    }

    /// Sets the times of an open object. The request was decided for the path
    /// it was opened at.
    pub(crate) fn set_times_of(
        &mut self,
        checked: Request<'_, '_>,
        node: &Node,
        times: NewTimes,
        now: u64,
    ) -> Result<Step<()>, Errno> {
        let _executing = executing();
        debug_assert_eq!(checked.get().action, FsAction::SetTimes);
        let path = &checked.get().path;
        let step = match node {
            Node::MemoryFile(number) | Node::MemoryDirectory(number) => {
                self.memory.set_times_of(*number, times, now)
            }
            Node::HostFile(file) => self.host(file.mount())?.set_times_file(file, path, times),
            Node::HostDirectory(directory) => {
                self.host(directory.mount())?.set_times_directory(directory, path, times)
            }
        }
        .map(Step::Done)?;
        self.note(path, &step, |shown, ()| shown.set_times(path, times, now));
        Ok(step)
    }

    /// Gives an open file the permission bits of the one at the request's path.
    /// Files in memory have none.
    pub(crate) fn copy_mode(
        &self,
        checked: Request<'_, '_>,
        spelling: Spelling,
        to: &Node,
    ) -> Result<Step<()>, Errno> {
        let _executing = executing();
        let path = first(checked, spelling);
        match (self.backend(&path.path), to) {
            (Backend::Host(number), Node::HostFile(file)) if file.mount() == number => {
                self.host(number)?.copy_mode(&path, file)
            }
            _ => Ok(Step::Done(())),
        }
    }

    /// Lists an open directory. The request was decided for the path it was
    /// opened at.
    pub(crate) fn list(
        &self,
        checked: Request<'_, '_>,
        node: &Node,
    ) -> Result<Step<Vec<Entry>>, Errno> {
        let _executing = executing();
        debug_assert_eq!(checked.get().action, FsAction::List);
        match node {
            Node::MemoryDirectory(number) => self.memory.list(*number),
            Node::HostDirectory(directory) => {
                let path = &checked.get().path;
                let entries = self.host(directory.mount())?.list(directory, path)?;
                Ok(match &self.shown {
                    Some(shown) => shown.list(path, entries),
                    None => entries,
                })
            }
            Node::MemoryFile(_) | Node::HostFile(_) => Err(Errno::Notdir),
        }
        .map(Step::Done)
    }

    // Streams: decided when the node was opened.

    /// `path` is where the node was opened, unless that name is gone.
    pub(crate) fn stat(&self, node: &Node, path: Option<&GuestPath>) -> Result<Filestat, Errno> {
        let _executing = executing();
        let stat = match node {
            Node::MemoryFile(number) | Node::MemoryDirectory(number) => {
                return self.memory.stat(*number);
            }
            Node::HostFile(file) => self.host(file.mount())?.stat_file(file)?,
            Node::HostDirectory(directory) => {
                self.host(directory.mount())?.stat_directory(directory)?
            }
        };
        Ok(self.show(path, stat))
    }

    pub(crate) fn length(&self, node: &Node) -> Result<u64, Errno> {
        let _executing = executing();
        match node {
            Node::MemoryFile(number) => self.memory.length(*number),
            Node::HostFile(file) => file.length(),
            Node::MemoryDirectory(_) | Node::HostDirectory(_) => Err(Errno::Isdir),
        }
    }

    pub(crate) fn read_at(
        &self,
        node: &Node,
        offset: u64,
        into: &mut [u8],
    ) -> Result<usize, Errno> {
        let _executing = executing();
        match node {
            Node::MemoryFile(number) => self.memory.read_at(*number, offset, into),
            Node::HostFile(file) => file.read_at(offset, into),
            Node::MemoryDirectory(_) | Node::HostDirectory(_) => Err(Errno::Isdir),
        }
    }

    /// `path` is where the node was opened, unless that name is gone.
    pub(crate) fn write_at(
        &mut self,
        (node, path): (&Node, Option<&GuestPath>),
        offset: u64,
        data: &[u8],
        now: u64,
    ) -> Result<usize, Errno> {
        let _executing = executing();
        if let (Some(shown), Some(path), Node::HostFile(_)) = (&mut self.shown, path, node) {
            shown.modified(path, now);
        }
        match node {
            Node::MemoryFile(number) => {
                self.memory.write_at(*number, offset, data, now).map(|()| data.len())
            }
            Node::HostFile(file) => self.host(file.mount())?.write_at(file, offset, data),
            Node::MemoryDirectory(_) | Node::HostDirectory(_) => Err(Errno::Isdir),
        }
    }

    /// `path` is where the node was opened, unless that name is gone.
    pub(crate) fn set_length(
        &mut self,
        (node, path): (&Node, Option<&GuestPath>),
        length: u64,
        now: u64,
    ) -> Result<(), Errno> {
        let _executing = executing();
        if let (Some(shown), Some(path), Node::HostFile(_)) = (&mut self.shown, path, node) {
            shown.modified(path, now);
        }
        match node {
            Node::MemoryFile(number) => self.memory.set_length(*number, length, now),
            Node::HostFile(file) => self.host(file.mount())?.set_length(file, length),
            Node::MemoryDirectory(_) | Node::HostDirectory(_) => Err(Errno::Isdir),
        }
    }

    pub(crate) fn sync(&self, node: &Node, data_only: bool) -> Result<(), Errno> {
        let _executing = executing();
        match node {
            Node::HostFile(file) => HostFile::sync(file, data_only),
            _ => Ok(()),
        }
    }

    /// Lets go of an open object.
    pub(crate) fn close(&mut self, node: &Node) {
        let _executing = executing();
        if let Node::MemoryFile(number) | Node::MemoryDirectory(number) = node {
            self.memory.close(*number);
        }
    }
}
