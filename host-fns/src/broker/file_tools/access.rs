//! Single steps of the file tools, each decided and recorded.
//!
//! Invariant: a request that meets a symbolic link fails; nothing is followed.

use fumehood_policies::{FsAction, FsRequest, GuestPath};

use crate::audit::{Outcome, Target};
use crate::broker::Broker;
use crate::call::{FileType, Filestat};
use crate::errno::Errno;
use crate::fs::{Entry, Node, OpenHow, Spelling, Step, Vfs};
use crate::meter::Budget;
use crate::pipeline::Checked;

/// Bytes of one read.
pub(super) const READ_CHUNK: usize = 64 << 10;
/// Most tries for a free temporary name.
const NAME_ATTEMPTS: u32 = 1_000;

impl Broker {
    /// As [`Broker::act`], for requests that follow nothing.
    fn act_plain<T>(
        &mut self,
        action: FsAction,
        path: &GuestPath,
        created: impl FnOnce(&T) -> u64,
        run: impl FnOnce(&mut Vfs, &Checked<'_, FsRequest>, Spelling) -> Result<Step<T>, Errno>,
    ) -> Result<T, Errno> {
        self.follow_policy();
        let checked = self.pipeline.check(FsRequest::canonical(action, path.clone()))?;
        match run(&mut self.vfs, &checked, Spelling::default()) {
            Ok(Step::Done(value)) => {
                let entries = created(&value);
                checked.conclude(Outcome::Done, entries);
                Ok(value)
            }
            Ok(Step::Redirect { .. }) => {
                checked.conclude(Outcome::Failed(Errno::Loop), 0);
                Err(Errno::Loop)
            }
            Err(errno) => {
                checked.conclude(Outcome::Failed(errno), 0);
                Err(errno)
            }
        }
    }

    pub(super) fn look(&mut self, path: &GuestPath) -> Result<Filestat, Errno> {
        self.act_plain(
            FsAction::Metadata,
            path,
            |_| 0,
            |vfs, checked, spelling| vfs.metadata(checked, spelling, false),
        )
    }

    /// Opens a regular file for reading.
    pub(super) fn open_plain(&mut self, path: &GuestPath) -> Result<Node, Errno> {
        let (how, now) = (OpenHow { read: true, ..OpenHow::default() }, self.now());
        let opened = self.act_plain(
            FsAction::Read,
            path,
            |_| 0,
            |vfs, checked, spelling| vfs.open(checked, spelling, how, now),
        )?;
        self.usage.files_opened = self.usage.files_opened.saturating_add(1);
        if opened.node.file_type() == FileType::Directory {
            self.vfs.close(&opened.node);
            return Err(Errno::Isdir);
        }
        Ok(opened.node)
    }

    /// Reads a piece of an open file, paid for.
    pub(super) fn read_some(
        &mut self,
        file: &Node,
        path: &GuestPath,
        at: u64,
        into: &mut [u8],
    ) -> Result<usize, Errno> {
        let target = || Target::Path(path.clone());
        let reserved = self
            .pipeline
            .ledger
            .reserve_up_to(Budget::ReadBytes, into.len() as u64, "fs.stream", target)
            .map_err(|_| Errno::Acces)?;
        let room = usize::try_from(reserved.amount()).unwrap_or(usize::MAX).min(into.len());
        let result = self.vfs.read_at(file, at, into.get_mut(..room).unwrap_or_default());
        let moved = result.unwrap_or(0);
        reserved.settle(moved as u64);
        result
    }

    /// The whole of a file; `None` if it is longer than `limit`.
    pub(super) fn read_whole(
        &mut self,
        file: &Node,
        path: &GuestPath,
        limit: usize,
    ) -> Result<Option<Vec<u8>>, Errno> {
        if self.vfs.length(file)? > limit as u64 {
            return Ok(None);
        }
        let mut content = Vec::new();
        let mut chunk = vec![0; READ_CHUNK];
        loop {
            let length = self.read_some(file, path, content.len() as u64, &mut chunk)?;
            if length == 0 {
                return Ok(Some(content));
            }
            content.extend_from_slice(chunk.get(..length).unwrap_or_default());
            if content.len() > limit {
                return Ok(None);
            }
        }
    }

    pub(super) fn list_plain(&mut self, path: &GuestPath) -> Result<Vec<Entry>, Errno> {
        let how = OpenHow { read: true, directory: true, ..OpenHow::default() };
        let now = self.now();
        self.act_plain(
            FsAction::List,
            path,
            |_| 0,
            |vfs, checked, spelling| {
                let opened = match vfs.open(checked, spelling, how, now)? {
                    Step::Done(opened) => opened,
                    Step::Redirect { to, second } => return Ok(Step::Redirect { to, second }),
                };
                let listed = vfs.list(checked, &opened.node);
                vfs.close(&opened.node);
                listed
            },
        )
    }

    pub(super) fn remove_plain(&mut self, path: &GuestPath) -> Result<(), Errno> {
        let now = self.now();
        self.act_plain(
            FsAction::Remove,
            path,
            |()| 0,
            |vfs, checked, spelling| vfs.remove(checked, spelling, now),
        )?;
        self.changes.deleted(path, false);
        self.descriptors.path_removed(path);
        Ok(())
    }

    pub(super) fn remove_directory_plain(&mut self, path: &GuestPath) -> Result<(), Errno> {
        let now = self.now();
        self.act_plain(
            FsAction::RemoveDirectory,
            path,
            |()| 0,
            |vfs, checked, spelling| vfs.remove_directory(checked, spelling, now),
        )?;
        self.changes.deleted(path, true);
        self.descriptors.path_removed(path);
        Ok(())
    }

    /// Makes the directories above a path.
    pub(super) fn make_parents(&mut self, path: &GuestPath) -> Result<(), Errno> {
        let Some(parent) = path.parent() else { return Ok(()) };
        match self.look(&parent) {
            Ok(stat) if stat.file_type == FileType::Directory => return Ok(()),
            Ok(stat) if stat.file_type == FileType::SymbolicLink => return Err(Errno::Loop),
            Ok(_) => return Err(Errno::Notdir),
            Err(Errno::Noent) => {}
            Err(errno) => return Err(errno),
        }
        self.make_parents(&parent)?;
        let now = self.now();
        self.act_plain(
            FsAction::CreateDirectory,
            &parent,
            |()| 1,
            |vfs, checked, spelling| vfs.create_directory(checked, spelling, now),
        )?;
        self.changes.created(&parent, true);
        Ok(())
    }

    /// Gives an open file the permission bits of the one at a path.
    fn copy_mode(&mut self, to: &Node, like: &GuestPath) -> Result<(), Errno> {
        self.act_plain(
            FsAction::Metadata,
            like,
            |()| 0,
            |vfs, checked, spelling| vfs.copy_mode(checked, spelling, to),
        )
    }

    /// Makes a file with this content, and with the permission bits of `like`
    /// from the beginning; what was made is removed if it fails.
    pub(super) fn write_new(
        &mut self,
        path: &GuestPath,
        content: &[u8],
        like: Option<&GuestPath>,
    ) -> Result<(), Errno> {
        let how = OpenHow { write: true, create: true, exclusive: true, ..OpenHow::default() };
        let now = self.now();
        let opened = self.act_plain(
            FsAction::Create { reads: false },
            path,
            |_| 1,
            |vfs, checked, spelling| vfs.open(checked, spelling, how, now),
        )?;
        self.usage.files_opened = self.usage.files_opened.saturating_add(1);
        let prepared = like.map_or(Ok(()), |like| self.copy_mode(&opened.node, like));
        let written = prepared.and_then(|()| self.write_all(&opened.node, path, content));
        self.vfs.close(&opened.node);
        match written {
            Ok(()) => {
                self.changes.created(path, false);
                Ok(())
            }
            Err(errno) => {
                self.remove_plain(path)?;
                Err(errno)
            }
        }
    }

    fn write_all(&mut self, file: &Node, path: &GuestPath, content: &[u8]) -> Result<(), Errno> {
        let target = || Target::Path(path.clone());
        let now = self.now();
        let reserved = self
            .pipeline
            .ledger
            .reserve(Budget::WrittenBytes, content.len() as u64, "fs.stream", target)
            .map_err(|_| Errno::Nospc)?;
        let mut done = 0_usize;
        let mut result = Ok(());
        while let Some(rest) = content.get(done..).filter(|rest| !rest.is_empty()) {
            match self.vfs.write_at((file, Some(path)), done as u64, rest, now) {
                Ok(0) => {
                    result = Err(Errno::Io);
                    break;
                }
                Ok(moved) => done = done.saturating_add(moved),
                Err(errno) => {
                    result = Err(errno);
                    break;
                }
            }
        }
        reserved.settle(done as u64);
        result
    }

    /// Replaces a file at once: the new content is complete before the name
    /// means it. Its permission bits stay.
    pub(super) fn replace(&mut self, path: &GuestPath, content: &[u8]) -> Result<(), Errno> {
        let parent = path.parent().ok_or(Errno::Isdir)?;
        for number in 0..NAME_ATTEMPTS {
            let name = format!(".write_file-{number}.tmp");
            let spare = parent.join(name.as_bytes()).map_err(|_| Errno::Nametoolong)?;
            match self.write_new(&spare, content, Some(path)) {
                Ok(()) => return self.move_over(&spare, path),
                Err(Errno::Exist) => {}
                Err(errno) => return Err(errno),
            }
        }
        Err(Errno::Exist)
    }

    fn move_over(&mut self, from: &GuestPath, to: &GuestPath) -> Result<(), Errno> {
        let now = self.now();
        let action = FsAction::Rename { to: to.clone() };
        let moved = self.act_plain(
            action,
            from,
            |_| 0,
            |vfs, checked, spelling| vfs.rename(checked, spelling, now),
        );
        match moved {
            Ok(renamed) => {
                self.descriptors.path_removed(to);
                self.changes.renamed(from, to, renamed.directory, renamed.replaced);
                Ok(())
            }
            Err(errno) => {
                self.remove_plain(from)?;
                Err(errno)
            }
        }
    }
}
