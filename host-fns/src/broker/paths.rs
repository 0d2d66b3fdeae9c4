//! The host calls that name a path.
//!
//! Invariant: each goes through [`Broker::act`]; what changed is noted by the
//! path that was acted on, after every link.

use fumehood_policies::{FsAction, FsRequest, GuestPath, RequestedPath};

use crate::broker::{Answer, Broker};
use crate::call::{HostAnswer, SetTime};
use crate::descriptors::{Descriptor, Handle, flags, rights};
use crate::errno::Errno;
use crate::fs::{NewTimes, OpenHow, Opened, Spelling};

const CREATE: u16 = 1;
const DIRECTORY: u16 = 2;
const EXCLUSIVE: u16 = 4;
const TRUNCATE: u16 = 8;

/// The numbers of `path_open`.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenCall {
    pub(super) follow: bool,
    pub(super) open_flags: u16,
    pub(super) rights_base: u64,
    pub(super) rights_inheriting: u64,
    pub(super) fd_flags: u16,
}

impl OpenCall {
    fn how(self) -> Result<OpenHow, Errno> {
        let has = |flag| self.open_flags & flag != 0;
        if self.open_flags > 15 || self.fd_flags & !flags::ALL != 0 || has(CREATE) && has(DIRECTORY)
        {
            return Err(Errno::Inval);
        }
        Ok(OpenHow {
            read: self.rights_base & rights::FD_READ != 0,
            write: self.rights_base & rights::FD_WRITE != 0 && !has(DIRECTORY),
            create: has(CREATE),
            exclusive: has(EXCLUSIVE),
            truncate: has(TRUNCATE),
            directory: has(DIRECTORY),
            follow: self.follow,
        })
    }
}

fn action(how: OpenHow) -> FsAction {
    let reads = how.read;
    if how.create {
        FsAction::Create { reads }
    } else if how.truncate {
        FsAction::Truncate { reads }
    } else if how.write {
        FsAction::Write { reads }
    } else if how.directory {
        FsAction::List
    } else {
        FsAction::Read
    }
}

fn one(action: FsAction, path: RequestedPath) -> (FsRequest, Spelling) {
    let RequestedPath { path, must_be_dir } = path;
    (FsRequest { action, path }, Spelling { first: must_be_dir, second: false })
}

fn nothing<T>(_: &T) -> u64 {
    0
}

fn one_entry<T>(_: &T) -> u64 {
    1
}

impl Broker {
    pub(super) fn path_open(&mut self, dir: u32, raw: &[u8], call: OpenCall) -> Answer {
        let how = call.how()?;
        let path = self.path(dir, raw)?;
        // Before anything is made or cut.
        self.descriptors.check_room()?;
        let now = self.now();
        let (request, spelling) = one(action(how), path);
        let (opened, done) = self.act(
            request,
            spelling,
            |opened: &Opened| u64::from(opened.created),
            |vfs, checked, spelling| vfs.open(checked, spelling, how, now),
        )?;
        if opened.created {
            self.changes.created(&done.path, false);
        } else if opened.cut {
            self.changes.modified(&done.path);
        }
        let base = (call.rights_base & rights::ALL) | rights::FD_SEEK | rights::FD_TELL;
        let mut descriptor = Descriptor::new(
            Handle::Node(opened.node),
            done.path,
            base,
            call.rights_inheriting & rights::ALL,
        );
        descriptor.flags = call.fd_flags;
        descriptor.opened_by = Some(self.pipeline.ledger.call());
        let fd = self.descriptors.insert(descriptor)?;
        if let Some(used) = self.stream(fd) {
            used.marked = opened.created || opened.cut;
        }
        self.usage.files_opened = self.usage.files_opened.saturating_add(1);
        Ok(HostAnswer::Descriptor(fd))
    }

    pub(super) fn path_filestat(&mut self, dir: u32, raw: &[u8], follow: bool) -> Answer {
        let (request, spelling) = one(FsAction::Metadata, self.path(dir, raw)?);
        let (stat, _) = self.act(request, spelling, nothing, |vfs, checked, spelling| {
            vfs.metadata(checked, spelling, follow)
        })?;
        Ok(HostAnswer::Filestat(stat))
    }

    pub(super) fn path_read_link(&mut self, dir: u32, raw: &[u8], into: &mut [u8]) -> Answer {
        let (request, spelling) = one(FsAction::ReadLink, self.path(dir, raw)?);
        let (target, _) = self.act(request, spelling, nothing, |vfs, checked, spelling| {
            vfs.read_link(checked, spelling)
        })?;
        let length = target.len().min(into.len());
        if let (Some(into), Some(target)) = (into.get_mut(..length), target.get(..length)) {
            into.copy_from_slice(target);
        }
        Ok(HostAnswer::Size(u32::try_from(length).unwrap_or(u32::MAX)))
    }

    pub(super) fn path_create_directory(&mut self, dir: u32, raw: &[u8]) -> Answer {
        let (request, spelling) = one(FsAction::CreateDirectory, self.path(dir, raw)?);
        let now = self.now();
        let ((), done) = self.act(request, spelling, one_entry, |vfs, checked, spelling| {
            vfs.create_directory(checked, spelling, now)
        })?;
        self.changes.created(&done.path, true);
        Ok(HostAnswer::Unit)
    }

    pub(super) fn path_symlink(&mut self, target: &[u8], dir: u32, raw: &[u8]) -> Answer {
        let (request, spelling) = one(FsAction::Symlink, self.path(dir, raw)?);
        if target.contains(&0) {
            return Err(Errno::Inval.into());
        }
        let now = self.now();
        let ((), done) = self.act(request, spelling, one_entry, |vfs, checked, spelling| {
            vfs.symlink(checked, spelling, target, now)
        })?;
        self.changes.created(&done.path, false);
        Ok(HostAnswer::Unit)
    }

    pub(super) fn path_unlink(&mut self, dir: u32, raw: &[u8]) -> Answer {
        let (request, spelling) = one(FsAction::Remove, self.path(dir, raw)?);
        let now = self.now();
        let ((), done) = self.act(request, spelling, nothing, |vfs, checked, spelling| {
            vfs.remove(checked, spelling, now)
        })?;
        self.changes.deleted(&done.path, false);
        self.descriptors.path_removed(&done.path);
        Ok(HostAnswer::Unit)
    }

    pub(super) fn path_remove_directory(&mut self, dir: u32, raw: &[u8]) -> Answer {
        let (request, spelling) = one(FsAction::RemoveDirectory, self.path(dir, raw)?);
        let now = self.now();
        let ((), done) = self.act(request, spelling, nothing, |vfs, checked, spelling| {
            vfs.remove_directory(checked, spelling, now)
        })?;
        self.changes.deleted(&done.path, true);
        self.descriptors.path_removed(&done.path);
        Ok(HostAnswer::Unit)
    }

    /// Both paths of a rename or a link.
    fn two(
        &self,
        old: (u32, &[u8]),
        new: (u32, &[u8]),
        action: impl FnOnce(GuestPath) -> FsAction,
    ) -> Result<(FsRequest, Spelling), Errno> {
        let (old, new) = (self.path(old.0, old.1)?, self.path(new.0, new.1)?);
        let spelling = Spelling { first: old.must_be_dir, second: new.must_be_dir };
        Ok((FsRequest { action: action(new.path), path: old.path }, spelling))
    }

    pub(super) fn path_link(
        &mut self,
        old: (u32, &[u8]),
        new: (u32, &[u8]),
        follow: bool,
    ) -> Answer {
        let (request, spelling) = self.two(old, new, |to| FsAction::Link { to })?;
        let now = self.now();
        let ((), done) = self.act(request, spelling, one_entry, |vfs, checked, spelling| {
            vfs.link(checked, spelling, follow, now)
        })?;
        if let Some(to) = done.action.second_path() {
            self.changes.created(to, false);
        }
        Ok(HostAnswer::Unit)
    }

    pub(super) fn path_rename(&mut self, old: (u32, &[u8]), new: (u32, &[u8])) -> Answer {
        let (request, spelling) = self.two(old, new, |to| FsAction::Rename { to })?;
        let now = self.now();
        let (renamed, done) = self.act(request, spelling, nothing, |vfs, checked, spelling| {
            vfs.rename(checked, spelling, now)
        })?;
        if let Some(to) = done.action.second_path()
            && !renamed.nothing
        {
            self.descriptors.path_removed(to);
            self.descriptors.path_moved(&done.path, to);
            self.changes.renamed(&done.path, to, renamed.directory, renamed.replaced);
        }
        Ok(HostAnswer::Unit)
    }

    pub(super) fn path_set_times(
        &mut self,
        dir: u32,
        raw: &[u8],
        follow: bool,
        accessed: SetTime,
        modified: SetTime,
    ) -> Answer {
        let now = self.now();
        let times = NewTimes::new(accessed, modified, now)?;
        let (request, spelling) = one(FsAction::SetTimes, self.path(dir, raw)?);
        self.act(request, spelling, nothing, |vfs, checked, spelling| {
            vfs.set_times(checked, spelling, follow, times, now)
        })?;
        Ok(HostAnswer::Unit)
    }
}
