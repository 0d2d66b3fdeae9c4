//! The in-memory tree.
//!
//! What: POSIX files, directories, hard and symbolic links in persistent maps.
//! Why: a snapshot is a clone, O(1), and a rollback is an assignment.
//!
//! Invariant: `bytes` is the sum of the lengths of all files (holes included)
//! and link targets, `names` the number of directory entries; both stay within
//! their limits. An inode lives as long as a name or a descriptor holds it.
//! Every change is checked to the end before the first part of it is made.

mod bytes;
mod files;

use std::sync::Arc;

use fumehood_policies::{GuestPath, MAX_PATH_BYTES, RequestedPath};
use imbl::OrdMap;

use crate::call::{FileType, Filestat};
use crate::errno::Errno;
use crate::fs::content::{Content, Shared};
use crate::fs::node::{Entry, NewTimes, Node, OpenHow, Opened, Renamed, Step, done, follow_link};
use crate::limits::Limits;

const ROOT: u64 = 1;

#[derive(Clone, Debug)]
enum Data {
    File(Content),
    Directory(OrdMap<Arc<[u8]>, u64>),
    Symlink(Arc<[u8]>),
}

#[derive(Clone, Debug)]
struct Inode {
    data: Data,
    links: u64,
    opens: u32,
    accessed: u64,
    modified: u64,
    changed: u64,
}

impl Inode {
    fn new(data: Data, now: u64) -> Self {
        Self { data, links: 1, opens: 0, accessed: now, modified: now, changed: now }
    }

    fn file_type(&self) -> FileType {
        match self.data {
            Data::File(_) => FileType::RegularFile,
            Data::Directory(_) => FileType::Directory,
            Data::Symlink(_) => FileType::SymbolicLink,
        }
    }

    fn size(&self) -> u64 {
        match &self.data {
            Data::File(content) => content.length(),
            Data::Directory(entries) => entries.len() as u64,
            Data::Symlink(target) => target.len() as u64,
        }
    }

    /// What the quota charges.
    fn charge(&self) -> u64 {
        if matches!(self.data, Data::Directory(_)) { 0 } else { self.size() }
    }
}

/// Where a walk ended.
#[derive(Clone, Copy, Debug)]
struct Place {
    parent: u64,
    /// `None` if there is nothing of that name.
    inode: Option<u64>,
}

/// The tree. Cloning is O(1).
#[derive(Clone, Debug)]
pub(crate) struct MemoryTree {
    inodes: OrdMap<u64, Shared<Inode>>,
    next: u64,
    bytes: u64,
    names: u64,
    limits: Arc<Limits>,
}

impl MemoryTree {
    pub(crate) fn new(limits: Arc<Limits>, now: u64) -> Self {
        let root = Inode::new(Data::Directory(OrdMap::new()), now);
        Self {
            inodes: OrdMap::unit(ROOT, Shared::new(root)),
            next: ROOT.saturating_add(1),
            bytes: 0,
            names: 0,
            limits,
        }
    }

    #[cfg(test)]
    pub(crate) fn used(&self) -> (u64, u64, usize) {
        (self.bytes, self.names, self.inodes.len())
    }

    fn inode(&self, number: u64) -> Result<&Inode, Errno> {
        self.inodes.get(&number).map(|inode| inode.0.as_ref()).ok_or(Errno::Io)
    }

    fn inode_mut(&mut self, number: u64) -> Result<&mut Inode, Errno> {
        self.inodes.get_mut(&number).map(|inode| Arc::make_mut(&mut inode.0)).ok_or(Errno::Io)
    }

    fn entries(&self, number: u64) -> Result<&OrdMap<Arc<[u8]>, u64>, Errno> {
        match &self.inode(number)?.data {
            Data::Directory(entries) => Ok(entries),
            _ => Err(Errno::Notdir),
        }
    }

    /// Walks to `path`; a symbolic link on the way, or at the end if `follow`,
    /// redirects.
    fn walk(&self, path: &GuestPath, follow: bool) -> Result<Step<Place>, Errno> {
        let mut place = Place { parent: ROOT, inode: Some(ROOT) };
        let mut end = 0_usize;
        let last = if path.is_root() { 0 } else { path.as_bytes().len() };
        for name in path.components() {
            let directory = place.inode.ok_or(Errno::Noent)?;
            end = end.saturating_add(name.len()).saturating_add(1);
            let found = self.entries(directory)?.get(name).copied();
            place = Place { parent: directory, inode: found };
            let Some(found) = found else { continue };
            if let Data::Symlink(target) = &self.inode(found)?.data
                && (follow || end < last)
            {
                return follow_link(path, end, &GuestPath::root(), target, true)
                    .map(Step::redirect);
            }
        }
        Ok(Step::Done(place))
    }

    fn check_depth(&self, path: &GuestPath) -> Result<(), Errno> {
        if path.depth() > self.limits.path_depth as usize {
            Err(Errno::Nametoolong)
        } else {
            Ok(())
        }
    }

    fn check_growth(&self, growth: u64) -> Result<(), Errno> {
        match self.bytes.checked_add(growth) {
            Some(total) if total <= self.limits.memory_file_bytes => Ok(()),
            _ => Err(Errno::Nospc),
        }
    }

    fn check_name(&self) -> Result<(), Errno> {
        if self.names >= self.limits.memory_inodes { Err(Errno::Nospc) } else { Ok(()) }
    }

    /// Makes an inode and its first name.
    fn add(&mut self, path: &GuestPath, parent: u64, data: Data, now: u64) -> Result<u64, Errno> {
        let inode = Inode::new(data, now);
        self.check_depth(path)?;
        self.check_growth(inode.charge())?;
        self.check_name()?;
        if self.inodes.len() as u64 >= self.limits.memory_inodes {
            return Err(Errno::Nospc);
        }
        let name = path.file_name().ok_or(Errno::Exist)?;
        if self.inode(parent)?.links == 0 {
            return Err(Errno::Noent);
        }
        let number = self.next;
        self.next = self.next.saturating_add(1);
        self.bytes = self.bytes.saturating_add(inode.charge());
        self.inodes.insert(number, Shared::new(inode));
        self.insert_name(parent, name, number, now)?;
        Ok(number)
    }

    fn insert_name(
        &mut self,
        parent: u64,
        name: &[u8],
        number: u64,
        now: u64,
    ) -> Result<(), Errno> {
        let directory = self.inode_mut(parent)?;
        let Data::Directory(entries) = &mut directory.data else { return Err(Errno::Notdir) };
        entries.insert(Arc::from(name), number);
        (directory.modified, directory.changed) = (now, now);
        self.names = self.names.saturating_add(1);
        Ok(())
    }

    /// Takes a name away, and with the last name of an unopened inode the
    /// inode.
    fn remove_name(
        &mut self,
        parent: u64,
        name: &[u8],
        unlink: bool,
        now: u64,
    ) -> Result<(), Errno> {
        let directory = self.inode_mut(parent)?;
        let Data::Directory(entries) = &mut directory.data else { return Err(Errno::Notdir) };
        let number = entries.remove(name).ok_or(Errno::Noent)?;
        (directory.modified, directory.changed) = (now, now);
        self.names = self.names.saturating_sub(1);
        if unlink {
            let inode = self.inode_mut(number)?;
            inode.links = inode.links.saturating_sub(1);
            inode.changed = now;
            self.collect(number);
        }
        Ok(())
    }

    fn collect(&mut self, number: u64) {
        if let Some(Shared(inode)) = self.inodes.get(&number)
            && inode.links == 0
            && inode.opens == 0
        {
            self.bytes = self.bytes.saturating_sub(inode.charge());
            self.inodes.remove(&number);
        }
    }

    pub(crate) fn open(
        &mut self,
        path: &RequestedPath,
        how: OpenHow,
        now: u64,
    ) -> Result<Step<Opened>, Errno> {
        let place = done!(self.walk(&path.path, how.follows(path.must_be_dir))?);
        let Some(number) = place.inode else {
            return self.open_new(path, how, place.parent, now).map(Step::Done);
        };
        if how.create && how.exclusive {
            return Err(Errno::Exist);
        }
        let must_be_dir = how.directory || path.must_be_dir;
        let inode = self.inode_mut(number)?;
        let (node, cut) = match &mut inode.data {
            Data::Symlink(_) => return Err(Errno::Loop),
            Data::Directory(_) if how.needs_file() => return Err(Errno::Isdir),
            Data::Directory(_) => (Node::MemoryDirectory(number), 0),
            Data::File(_) if must_be_dir => return Err(Errno::Notdir),
            Data::File(content) if how.truncate => {
                let cut = content.length();
                content.set_length(0);
                (inode.modified, inode.changed) = (now, now);
                (Node::MemoryFile(number), cut)
            }
            Data::File(_) => (Node::MemoryFile(number), 0),
        };
        inode.opens = inode.opens.saturating_add(1);
        self.bytes = self.bytes.saturating_sub(cut);
        Ok(Step::Done(Opened { node, created: false, cut: cut != 0 }))
    }

    fn open_new(
        &mut self,
        path: &RequestedPath,
        how: OpenHow,
        parent: u64,
        now: u64,
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
        let number = self.add(&path.path, parent, Data::File(Content::default()), now)?;
        self.inode_mut(number)?.opens = 1;
        Ok(Opened { node: Node::MemoryFile(number), created: true, cut: false })
    }

    pub(crate) fn close(&mut self, number: u64) {
        if let Ok(inode) = self.inode_mut(number) {
            inode.opens = inode.opens.saturating_sub(1);
            self.collect(number);
        }
    }

    pub(crate) fn metadata(
        &self,
        path: &RequestedPath,
        follow: bool,
    ) -> Result<Step<Filestat>, Errno> {
        let place = done!(self.walk(&path.path, follow || path.must_be_dir)?);
        let stat = self.stat(place.inode.ok_or(Errno::Noent)?)?;
        if path.must_be_dir && stat.file_type != FileType::Directory {
            return Err(Errno::Notdir);
        }
        Ok(Step::Done(stat))
    }

    pub(crate) fn stat(&self, number: u64) -> Result<Filestat, Errno> {
        let inode = self.inode(number)?;
        Ok(Filestat {
            device: 0,
            inode: number,
            file_type: inode.file_type(),
            links: inode.links,
            size: inode.size(),
            accessed_ns: inode.accessed,
            modified_ns: inode.modified,
            changed_ns: inode.changed,
        })
    }

    pub(crate) fn read_link(&self, path: &RequestedPath) -> Result<Step<Vec<u8>>, Errno> {
        let place = done!(self.walk(&path.path, path.must_be_dir)?);
        match &self.inode(place.inode.ok_or(Errno::Noent)?)?.data {
            Data::Symlink(target) => Ok(Step::Done(target.to_vec())),
            _ => Err(Errno::Inval),
        }
    }

    pub(crate) fn create_directory(
        &mut self,
        path: &RequestedPath,
        now: u64,
    ) -> Result<Step<()>, Errno> {
        let place = done!(self.walk(&path.path, false)?);
        if place.inode.is_some() {
            return Err(Errno::Exist);
        }
        self.add(&path.path, place.parent, Data::Directory(OrdMap::new()), now)?;
        Ok(Step::Done(()))
    }

    pub(crate) fn symlink(
        &mut self,
        target: &[u8],
        path: &RequestedPath,
        now: u64,
    ) -> Result<Step<()>, Errno> {
        if target.is_empty() {
            return Err(Errno::Noent);
        }
        if target.len() > MAX_PATH_BYTES {
            return Err(Errno::Nametoolong);
        }
        let place = done!(self.walk(&path.path, false)?);
        if place.inode.is_some() {
            return Err(Errno::Exist);
        }
        if path.must_be_dir {
            return Err(Errno::Noent);
        }
        self.add(&path.path, place.parent, Data::Symlink(Arc::from(target)), now)?;
        Ok(Step::Done(()))
    }

    pub(crate) fn remove(&mut self, path: &RequestedPath, now: u64) -> Result<Step<()>, Errno> {
        let place = done!(self.walk(&path.path, false)?);
        let number = place.inode.ok_or(Errno::Noent)?;
        if matches!(self.inode(number)?.data, Data::Directory(_)) {
            return Err(Errno::Isdir);
        }
        if path.must_be_dir {
            return Err(Errno::Notdir);
        }
        self.remove_name(place.parent, path.path.file_name().ok_or(Errno::Isdir)?, true, now)?;
        Ok(Step::Done(()))
    }

    pub(crate) fn remove_directory(
        &mut self,
        path: &RequestedPath,
        now: u64,
    ) -> Result<Step<()>, Errno> {
        let place = done!(self.walk(&path.path, false)?);
        let number = place.inode.ok_or(Errno::Noent)?;
        if !self.entries(number)?.is_empty() {
            return Err(Errno::Notempty);
        }
        self.remove_name(place.parent, path.path.file_name().ok_or(Errno::Busy)?, true, now)?;
        Ok(Step::Done(()))
    }

    pub(crate) fn link(
        &mut self,
        old: &RequestedPath,
        new: &RequestedPath,
        follow: bool,
        now: u64,
    ) -> Result<Step<()>, Errno> {
        let from = done!(self.walk(&old.path, follow || old.must_be_dir)?);
        let to = done!(second(self.walk(&new.path, false)?));
        let number = from.inode.ok_or(Errno::Noent)?;
        let inode = self.inode(number)?;
        if matches!(inode.data, Data::Directory(_)) {
            return Err(Errno::Perm);
        }
        if old.must_be_dir {
            return Err(Errno::Notdir);
        }
        if to.inode.is_some() {
            return Err(Errno::Exist);
        }
        if new.must_be_dir {
            return Err(Errno::Noent);
        }
        self.check_depth(&new.path)?;
        self.check_name()?;
        self.insert_name(to.parent, new.path.file_name().ok_or(Errno::Exist)?, number, now)?;
        let inode = self.inode_mut(number)?;
        inode.links = inode.links.saturating_add(1);
        inode.changed = now;
        Ok(Step::Done(()))
    }

    pub(crate) fn rename(
        &mut self,
        old: &RequestedPath,
        new: &RequestedPath,
        now: u64,
    ) -> Result<Step<Renamed>, Errno> {
        let from = done!(self.walk(&old.path, false)?);
        let to = done!(second(self.walk(&new.path, false)?));
        let number = from.inode.ok_or(Errno::Noent)?;
        let (Some(old_name), Some(new_name)) = (old.path.file_name(), new.path.file_name()) else {
            return Err(Errno::Busy);
        };
        let directory = matches!(self.inode(number)?.data, Data::Directory(_));
        if !directory && (old.must_be_dir || new.must_be_dir) {
            return Err(Errno::Notdir);
        }
        if to.inode == Some(number) {
            return Ok(Step::Done(Renamed { directory, replaced: false, nothing: true }));
        }
        if directory && new.path.starts_with(&old.path) {
            return Err(Errno::Inval);
        }
        if old.path.starts_with(&new.path) {
            return Err(Errno::Notempty);
        }
        self.check_depth(&new.path)?;
        if let Some(replaced) = to.inode {
            match &self.inode(replaced)?.data {
                Data::Directory(_) if !directory => return Err(Errno::Isdir),
                Data::Directory(entries) if !entries.is_empty() => return Err(Errno::Notempty),
                Data::Directory(_) => {}
                _ if directory => return Err(Errno::Notdir),
                _ => {}
            }
            self.remove_name(to.parent, new_name, true, now)?;
        }
        self.remove_name(from.parent, old_name, false, now)?;
        self.insert_name(to.parent, new_name, number, now)?;
        self.inode_mut(number)?.changed = now;
        Ok(Step::Done(Renamed { directory, replaced: to.inode.is_some(), nothing: false }))
    }

    pub(crate) fn set_times(
        &mut self,
        path: &RequestedPath,
        follow: bool,
        times: NewTimes,
        now: u64,
    ) -> Result<Step<()>, Errno> {
        let place = done!(self.walk(&path.path, follow || path.must_be_dir)?);
        self.set_times_of(place.inode.ok_or(Errno::Noent)?, times, now)?;
        Ok(Step::Done(()))
    }

    pub(crate) fn set_times_of(
        &mut self,
        number: u64,
        times: NewTimes,
        now: u64,
    ) -> Result<(), Errno> {
        let inode = self.inode_mut(number)?;
        inode.accessed = times.accessed.unwrap_or(inode.accessed);
        inode.modified = times.modified.unwrap_or(inode.modified);
        inode.changed = now;
        Ok(())
    }

    pub(crate) fn read_at(
        &self,
        number: u64,
        offset: u64,
        into: &mut [u8],
    ) -> Result<usize, Errno> {
        match &self.inode(number)?.data {
            Data::File(content) => Ok(content.read_at(offset, into)),
            _ => Err(Errno::Isdir),
        }
    }

    pub(crate) fn length(&self, number: u64) -> Result<u64, Errno> {
        self.inode(number).map(Inode::size)
    }

    pub(crate) fn write_at(
        &mut self,
        number: u64,
        offset: u64,
        data: &[u8],
        now: u64,
    ) -> Result<(), Errno> {
        let end = offset.checked_add(data.len() as u64).ok_or(Errno::Fbig)?;
        self.resize(number, end, false, now, |content| content.write_at(offset, data))
    }

    pub(crate) fn set_length(&mut self, number: u64, length: u64, now: u64) -> Result<(), Errno> {
        self.resize(number, length, true, now, |content| content.set_length(length))
    }

    /// Checks the limits for a new length, changes the content and settles the
    /// quota.
    fn resize(
        &mut self,
        number: u64,
        length: u64,
        may_shrink: bool,
        now: u64,
        change: impl FnOnce(&mut Content),
    ) -> Result<(), Errno> {
        let old = self.inode(number)?.size();
        let new = if may_shrink { length } else { length.max(old) };
        if new > self.limits.max_file_bytes {
            return Err(Errno::Fbig);
        }
        self.check_growth(new.saturating_sub(old))?;
        let inode = self.inode_mut(number)?;
        let Data::File(content) = &mut inode.data else { return Err(Errno::Isdir) };
        change(content);
        let settled = content.length();
        (inode.modified, inode.changed) = (now, now);
        self.bytes = self.bytes.saturating_sub(old).saturating_add(settled);
        Ok(())
    }

    /// The entries of a directory, sorted by name.
    pub(crate) fn list(&self, number: u64) -> Result<Vec<Entry>, Errno> {
        let entries = self.entries(number)?;
        if entries.len() > self.limits.directory_entries as usize {
            return Err(Errno::Overflow);
        }
        entries
            .iter()
            .map(|(name, inode)| {
                let file_type = self.inode(*inode)?.file_type();
                Ok(Entry { name: Arc::clone(name), inode: *inode, file_type })
            })
            .collect()
    }
}

fn second<T>(step: Step<T>) -> Step<T> {
    match step {
        Step::Redirect { to, .. } => Step::Redirect { to, second: true },
        done => done,
    }
}
