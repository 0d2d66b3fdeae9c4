//! The descriptor table.
//!
//! Invariant: at most `limit` descriptors; a new one gets the lowest free
//! number; offsets live here and not in the host's files, so that a snapshot
//! holds them. Cloning is O(1). Names of directories are many, so all that
//! descriptors hold together have a bound.

use std::sync::Arc;

use fumehood_policies::GuestPath;
use imbl::OrdMap;

use crate::environment::Stream;
use crate::errno::Errno;
use crate::fs::{Entry, Node};
use fumehood_policies::weaken;

/// WASI rights bits the broker looks at.
pub(crate) mod rights {
    pub(crate) const FD_READ: u64 = 1 << 1;
    pub(crate) const FD_SEEK: u64 = 1 << 2;
    pub(crate) const FD_TELL: u64 = 1 << 5;
    pub(crate) const FD_WRITE: u64 = 1 << 6;
    pub(crate) const POLL_FD_READWRITE: u64 = 1 << 27;
    /// Every right of preview1.
    pub(crate) const ALL: u64 = (1 << 30) - 1;
}

/// WASI `fdflags`.
pub(crate) mod flags {
    pub(crate) const APPEND: u16 = 1;
    pub(crate) const ALL: u16 = 0b1_1111;
}

/// The number of the preopened root.
pub(crate) const ROOT_FD: u32 = 3;

/// What a descriptor refers to.
#[derive(Clone, Debug)]
pub(crate) enum Handle {
    Stdin,
    Output(Stream),
    Node(Node),
}

#[derive(Clone, Debug)]
pub(crate) struct Descriptor {
    pub(crate) handle: Handle,
    /// Where it was opened; follows renames by this guest.
    pub(crate) path: GuestPath,
    pub(crate) offset: u64,
    pub(crate) rights_base: u64,
    pub(crate) rights_inheriting: u64,
    pub(crate) flags: u16,
    pub(crate) preopen: bool,
    /// The name it was opened at is gone.
    pub(crate) unlinked: bool,
    /// The end of the furthest write, so that holes can be charged.
    pub(crate) high_water: u64,
    /// The names of a directory as they were at cookie 0.
    pub(crate) listing: Option<Arc<Vec<Entry>>>,
    /// The call that opened it.
    pub(crate) opened_by: Option<u64>,
}

impl Descriptor {
    pub(crate) fn new(
        handle: Handle,
        path: GuestPath,
        rights_base: u64,
        rights_inheriting: u64,
    ) -> Self {
        Self {
            handle,
            path,
            offset: 0,
            rights_base,
            rights_inheriting,
            flags: 0,
            preopen: false,
            unlinked: false,
            high_water: 0,
            listing: None,
            opened_by: None,
        }
    }

    pub(crate) fn may(&self, right: u64) -> Result<(), Errno> {
        if self.rights_base & right == right { Ok(()) } else { Err(Errno::Badf) }
    }

    /// Where it was opened, unless that name is gone.
    pub(crate) fn name(&self) -> Option<&GuestPath> {
        (!self.unlinked).then_some(&self.path)
    }

    pub(crate) fn node(&self) -> Option<&Node> {
        match &self.handle {
            Handle::Node(node) => Some(node),
            _ => None,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Descriptors {
    table: OrdMap<u32, Descriptor>,
    limit: u32,
}

impl Descriptors {
    /// The three streams and the preopened root, whose handle is `root`.
    pub(crate) fn new(limit: u32, root: Node) -> Self {
        let stream = |handle, right| {
            Descriptor::new(handle, GuestPath::root(), right | rights::POLL_FD_READWRITE, 0)
        };
        let mut preopen =
            Descriptor::new(Handle::Node(root), GuestPath::root(), rights::ALL, rights::ALL);
        preopen.preopen = true;
        let table = OrdMap::from_iter([
            (0, stream(Handle::Stdin, rights::FD_READ)),
            (1, stream(Handle::Output(Stream::Stdout), rights::FD_WRITE)),
            (2, stream(Handle::Output(Stream::Stderr), rights::FD_WRITE)),
            (ROOT_FD, preopen),
        ]);
        Self { table, limit: limit.max(4) }
    }

    pub(crate) fn get(&self, fd: u32) -> Result<&Descriptor, Errno> {
        self.table.get(&fd).ok_or(Errno::Badf)
    }

    pub(crate) fn get_mut(&mut self, fd: u32) -> Result<&mut Descriptor, Errno> {
        self.table.get_mut(&fd).ok_or(Errno::Badf)
    }

    /// Bytes that listings of open directories take and `other` does not share.
    pub(crate) fn listing_bytes_beyond(&self, other: &Self) -> u64 {
        let mut bytes = 0_u64;
        for (fd, descriptor) in &self.table {
            let Some(listing) = &descriptor.listing else { continue };
            let then = other.table.get(fd).and_then(|then| then.listing.as_ref());
            if !then.is_some_and(|then| Arc::ptr_eq(then, listing)) {
                let names = listing.iter().map(|entry| entry.name.len());
                let size = names.fold(0, usize::saturating_add);
                let size = size.saturating_add(listing.len().saturating_mul(size_of::<Entry>()));
                bytes = bytes.saturating_add(size as u64);
            }
        }
        bytes
    }

    pub(crate) fn check_room(&self) -> Result<(), Errno> {
        let off = weaken::off(weaken::Defence::DescriptorLimit);
        if !off && self.table.len() >= self.limit as usize { Err(Errno::Mfile) } else { Ok(()) }
    }

    pub(crate) fn insert(&mut self, descriptor: Descriptor) -> Result<u32, Errno> {
        self.check_room()?;
        let mut free = 0_u32;
        for fd in self.table.keys() {
            if *fd != free {
                break;
            }
            free = free.checked_add(1).ok_or(Errno::Mfile)?;
        }
        self.table.insert(free, descriptor);
        Ok(free)
    }

    pub(crate) fn remove(&mut self, fd: u32) -> Result<Descriptor, Errno> {
        self.table.remove(&fd).ok_or(Errno::Badf)
    }

    /// Moves `from` onto the open descriptor `to` and returns what `to` was.
    /// Both must be open, and neither may be the preopened root.
    pub(crate) fn renumber(&mut self, from: u32, to: u32) -> Result<Option<Descriptor>, Errno> {
        let (source, target) = (self.get(from)?, self.get(to)?);
        if from == to {
            return Ok(None);
        }
        if source.preopen || target.preopen {
            return Err(Errno::Notsup);
        }
        let moved = self.remove(from)?;
        Ok(self.table.insert(to, moved))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Descriptor)> {
        self.table.iter().map(|(fd, descriptor)| (*fd, descriptor))
    }

    /// How many names all directories have together.
    pub(crate) fn listed_entries(&self) -> usize {
        let listings = self.iter().filter_map(|(_, descriptor)| descriptor.listing.as_ref());
        listings.fold(0, |total, listing| total.saturating_add(listing.len()))
    }

    /// The numbers of descriptors whose path `wanted` names.
    pub(crate) fn numbers_where(&self, wanted: impl Fn(&Descriptor) -> bool) -> Vec<u32> {
        self.iter().filter(|(_, descriptor)| wanted(descriptor)).map(|(fd, _)| fd).collect()
    }

    /// The host files below `at` that are open for writing, relative to it.
    pub(crate) fn written_below(&self, at: &GuestPath) -> Vec<Vec<u8>> {
        let open = self.iter().filter(|(_, descriptor)| {
            matches!(descriptor.node(), Some(Node::HostFile(_)))
                && descriptor.may(rights::FD_WRITE).is_ok()
        });
        let open = open.filter_map(|(_, descriptor)| descriptor.name()?.strip_prefix(at));
        open.map(<[u8]>::to_vec).collect()
    }

    /// The object at `path` lost that name.
    pub(crate) fn path_removed(&mut self, path: &GuestPath) {
        for fd in
            self.numbers_where(|descriptor| descriptor.node().is_some() && descriptor.path == *path)
        {
            if let Ok(descriptor) = self.get_mut(fd) {
                descriptor.unlinked = true;
            }
        }
    }

    /// The object at `from`, and what is below it, moved to `to`.
    pub(crate) fn path_moved(&mut self, from: &GuestPath, to: &GuestPath) {
        for fd in self
            .numbers_where(|descriptor| !descriptor.unlinked && descriptor.path.starts_with(from))
        {
            if let Ok(descriptor) = self.get_mut(fd)
                && descriptor.node().is_some()
                && let Some(path) = descriptor.path.rebase(from, to)
            {
                descriptor.path = path;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Descriptors {
        Descriptors::new(8, Node::MemoryDirectory(1))
    }

    fn file(number: u64) -> Descriptor {
        Descriptor::new(
            Handle::Node(Node::MemoryFile(number)),
            GuestPath::root(),
            rights::ALL,
            rights::ALL,
        )
    }

    #[test]
    fn the_lowest_free_number_is_used() {
        let mut table = table();
        assert_eq!(table.insert(file(2)), Ok(4));
        assert_eq!(table.insert(file(3)), Ok(5));
        assert!(table.remove(4).is_ok());
        assert_eq!(table.insert(file(4)), Ok(4));
        assert!(table.remove(0).is_ok());
        assert_eq!(table.insert(file(5)), Ok(0));
        assert_eq!(table.insert(file(6)), Ok(6));
        assert_eq!(table.insert(file(7)), Ok(7));
        assert_eq!(table.insert(file(8)), Err(Errno::Mfile));
    }

    #[test]
    fn renumbering_is_defined_for_every_pair() {
        let mut table = table();
        assert_eq!(table.insert(file(2)), Ok(4));
        assert!(matches!(table.renumber(3, 3), Ok(None)));
        assert_eq!(table.renumber(4, 9).err(), Some(Errno::Badf));
        assert_eq!(table.renumber(9, 4).err(), Some(Errno::Badf));
        assert_eq!(table.renumber(4, 3).err(), Some(Errno::Notsup));
        assert_eq!(table.renumber(3, 4).err(), Some(Errno::Notsup));
        assert!(matches!(table.renumber(4, 1), Ok(Some(_))));
        assert_eq!(table.get(4).err(), Some(Errno::Badf));
        for _ in 0..10_000 {
            assert!(table.insert(file(3)).is_ok());
            assert!(table.renumber(4, 1).is_ok());
        }
        assert_eq!(table.iter().count(), 4);
    }
}
