//! The host calls that name a descriptor.
//!
//! Invariant: reading and writing were decided when the descriptor was opened;
//! here its rights, the budgets and the limits bind. Standard streams are of
//! file type `Unknown`: `isatty()` is then false, and seeking is `ESPIPE`.

use std::sync::Arc;

use fumehood_policies::{FsAction, FsRequest};

use crate::audit::Target;
use crate::broker::{Answer, Broker, Refusal, StreamUse};
use crate::call::{Fdstat, FileType, Filestat, HostAnswer, HostCall, MAX_TRANSFER_BYTES, SetTime};
use crate::descriptors::{Descriptor, Descriptors, Handle, flags, rights};
use crate::environment::Stream;
use crate::errno::Errno;
use crate::fs::{Entry, NewTimes, Node, Spelling};
use crate::meter::Budget;
use fumehood_policies::weaken;

const MAX_OFFSET: u64 = i64::MAX as u64;
const DIRENT_BYTES: usize = 24;

/// Most names that all directory descriptors of a broker hold together; one
/// directory that may have more can be listed alone.
pub(crate) const MAX_LISTED_ENTRIES: usize = 400_000;

/// An offset a file can have.
fn checked_end(offset: u64, length: u64) -> Result<u64, Errno> {
    if offset > MAX_OFFSET {
        return Err(Errno::Inval);
    }
    offset.checked_add(length).filter(|end| *end <= MAX_OFFSET).ok_or(Errno::Fbig)
}

fn size(length: usize) -> HostAnswer {
    HostAnswer::Size(u32::try_from(length).unwrap_or(u32::MAX))
}

impl Broker {
    pub(super) fn dispatch_descriptor(&mut self, call: HostCall<'_>) -> Answer {
        use HostCall as C;
        match call {
            C::FdRead { fd, into } => self.fd_read(fd, into, None),
            C::FdPread { fd, into, offset } => self.fd_read(fd, into, Some(offset)),
            C::FdWrite { fd, data } => self.fd_write(fd, data, None),
            C::FdPwrite { fd, data, offset } => self.fd_write(fd, data, Some(offset)),
            C::FdSeek { fd, delta, whence } => self.fd_seek(fd, delta, whence),
            C::FdTell { fd } => self.fd_seek(fd, 0, 1),
            C::FdClose { fd } => self.fd_close(fd),
            C::FdRenumber { from, to } => self.fd_renumber(from, to),
            C::FdFdstatGet { fd } => self.fd_fdstat(fd),
            C::FdFdstatSetFlags { fd, flags } => self.fd_set_flags(fd, flags),
            C::FdFilestatGet { fd } => self.fd_filestat(fd),
            C::FdFilestatSetSize { fd, size } => self.fd_set_size(fd, size, true),
            C::FdFilestatSetTimes { fd, accessed, modified } => {
                self.fd_set_times(fd, accessed, modified)
            }
            C::FdAllocate { fd, offset, len } => self.fd_allocate(fd, offset, len),
            C::FdAdvise { fd, offset, len, advice } => self.fd_advise(fd, offset, len, advice),
            C::FdSync { fd, data_only } => self.fd_sync(fd, data_only),
            C::FdPrestatGet { fd } => self.fd_prestat(fd),
            C::FdPrestatDirName { fd, into } => self.fd_prestat_name(fd, into),
            C::FdReaddir { fd, into, cookie } => self.fd_readdir(fd, into, cookie),
            _ => Err(Errno::Nosys.into()),
        }
    }

    /// The open file of a descriptor with a right.
    fn file(descriptors: &Descriptors, fd: u32, right: u64) -> Result<(&Descriptor, &Node), Errno> {
        let descriptor = descriptors.get(fd)?;
        let node = descriptor.node().ok_or(Errno::Spipe)?;
        if node.file_type() == FileType::Directory {
            return Err(Errno::Isdir);
        }
        descriptor.may(right)?;
        Ok((descriptor, node))
    }

    fn fd_read(&mut self, fd: u32, into: &mut [u8], at: Option<u64>) -> Answer {
        if matches!(self.descriptors.get(fd)?.handle, Handle::Stdin) && at.is_none() {
            return self.read_stdin(fd, into);
        }
        if matches!(self.descriptors.get(fd)?.handle, Handle::Output(_)) && at.is_none() {
            return Err(Errno::Badf.into());
        }
        let (descriptor, node) = Self::file(&self.descriptors, fd, rights::FD_READ)?;
        let offset = at.unwrap_or(descriptor.offset);
        let wanted = into.len().min(MAX_TRANSFER_BYTES);
        checked_end(offset, 0)?;
        let target = || Target::Path(descriptor.path.clone());
        let reserved = self
            .pipeline
            .ledger
            .reserve_up_to(Budget::ReadBytes, wanted as u64, "fs.stream", target)
            .map_err(|_| Errno::Acces)?;
        let room = usize::try_from(reserved.amount()).unwrap_or(usize::MAX);
        let result =
            self.vfs.read_at(node, offset, into.get_mut(..room.min(wanted)).unwrap_or_default());
        let moved = result.unwrap_or(0);
        reserved.settle(moved as u64);
        result?;
        if at.is_none() {
            let descriptor = self.descriptors.get_mut(fd)?;
            descriptor.offset = offset.saturating_add(moved as u64);
        }
        self.usage.bytes_in = self.usage.bytes_in.saturating_add(moved as u64);
        if let Some(used) = self.stream(fd) {
            used.count(moved as u64, 0);
        }
        Ok(size(moved))
    }

    fn read_stdin(&mut self, fd: u32, into: &mut [u8]) -> Answer {
        let descriptor = self.descriptors.get_mut(fd)?;
        descriptor.may(rights::FD_READ)?;
        let from = usize::try_from(descriptor.offset).unwrap_or(usize::MAX);
        let rest = self.stdin.get(from..).unwrap_or_default();
        let length = rest.len().min(into.len()).min(MAX_TRANSFER_BYTES);
        if let (Some(into), Some(rest)) = (into.get_mut(..length), rest.get(..length)) {
            into.copy_from_slice(rest);
        }
        descriptor.offset = descriptor.offset.saturating_add(length as u64);
        self.totals.stdin.count(length as u64, 0);
        self.usage.bytes_in = self.usage.bytes_in.saturating_add(length as u64);
        Ok(size(length))
    }

    fn fd_write(&mut self, fd: u32, data: &[u8], at: Option<u64>) -> Answer {
        let data = data.get(..data.len().min(MAX_TRANSFER_BYTES)).unwrap_or_default();
        match self.descriptors.get(fd)?.handle {
            Handle::Output(stream) if at.is_none() => return self.write_output(fd, stream, data),
            Handle::Stdin if at.is_none() => return Err(Errno::Badf.into()),
            _ => {}
        }
        let (descriptor, node) = Self::file(&self.descriptors, fd, rights::FD_WRITE)?;
        let append = descriptor.flags & flags::APPEND != 0;
        let offset = match at {
            Some(offset) => offset,
            None if append => self.vfs.length(node)?,
            None => descriptor.offset,
        };
        let end = checked_end(offset, data.len() as u64)?;
        if data.is_empty() {
            return Ok(size(0));
        }
        let charge = (data.len() as u64).saturating_add(hole(descriptor, node, offset)?);
        let now = self.now();
        let target = || Target::Path(descriptor.path.clone());
        let reserved = self
            .pipeline
            .ledger
            .reserve(Budget::WrittenBytes, charge, "fs.stream", target)
            .map_err(|_| Errno::Nospc)?;
        let result = self.vfs.write_at((node, descriptor.name()), offset, data, now);
        let moved = result.map_or(0, |moved| moved as u64);
        let unused = if moved == 0 { charge } else { (data.len() as u64).saturating_sub(moved) };
        reserved.settle(charge.saturating_sub(unused));
        result?;
        let descriptor = self.descriptors.get_mut(fd)?;
        descriptor.high_water = descriptor.high_water.max(end);
        if at.is_none() {
            descriptor.offset = offset.saturating_add(moved);
        }
        self.usage.bytes_out = self.usage.bytes_out.saturating_add(moved);
        self.mark_modified(fd)?;
        if let Some(used) = self.stream(fd) {
            used.count(0, moved);
        }
        Ok(size(usize::try_from(moved).unwrap_or(usize::MAX)))
    }

    fn mark_modified(&mut self, fd: u32) -> Result<(), Errno> {
        if self.stream(fd).is_some_and(|used| std::mem::replace(&mut used.marked, true)) {
            return Ok(());
        }
        let descriptor = self.descriptors.get(fd)?;
        if !descriptor.unlinked {
            self.changes.modified(&descriptor.path);
        }
        Ok(())
    }

    fn write_output(&mut self, fd: u32, stream: Stream, data: &[u8]) -> Answer {
        self.descriptors.get(fd)?.may(rights::FD_WRITE)?;
        let factor = if weaken::off(weaken::Defence::OutputCap) { 4 } else { 1 };
        let most = self.limits.output_bytes.saturating_mul(factor);
        let kept = self.output.push(stream, data, most);
        if !kept.is_empty() {
            let _executing = crate::fs::executing();
            self.sink.write(stream, kept);
        }
        let used: &mut StreamUse = match stream {
            Stream::Stdout => &mut self.totals.stdout,
            Stream::Stderr => &mut self.totals.stderr,
        };
        used.count(0, data.len() as u64);
        self.usage.bytes_out = self.usage.bytes_out.saturating_add(data.len() as u64);
        Ok(size(data.len()))
    }

    fn fd_seek(&mut self, fd: u32, delta: i64, whence: u8) -> Answer {
        let descriptor = self.descriptors.get(fd)?;
        let node = descriptor.node().ok_or(Errno::Spipe)?;
        if node.file_type() == FileType::Directory {
            return Err(Errno::Badf.into());
        }
        let base = match whence {
            0 => 0,
            1 => descriptor.offset,
            2 => self.vfs.length(node)?,
            _ => return Err(Errno::Inval.into()),
        };
        let offset = base
            .checked_add_signed(delta)
            .filter(|offset| *offset <= MAX_OFFSET)
            .ok_or(Errno::Inval)?;
        self.descriptors.get_mut(fd)?.offset = offset;
        Ok(HostAnswer::Offset(offset))
    }

    fn fd_close(&mut self, fd: u32) -> Answer {
        self.descriptors.get(fd)?;
        self.flush_stream(fd);
        let descriptor = self.descriptors.remove(fd)?;
        if let Some(node) = descriptor.node() {
            self.vfs.close(node);
        }
        Ok(HostAnswer::Unit)
    }

    fn fd_renumber(&mut self, from: u32, to: u32) -> Answer {
        // The records name the descriptors as they are before.
        for fd in [from, to] {
            self.descriptors.get(fd)?;
        }
        if from != to {
            self.flush_stream(to);
            self.flush_stream(from);
        }
        if let Some(replaced) = self.descriptors.renumber(from, to)?
            && let Some(node) = replaced.node()
        {
            self.vfs.close(node);
        }
        Ok(HostAnswer::Unit)
    }

    fn fd_fdstat(&self, fd: u32) -> Answer {
        let descriptor = self.descriptors.get(fd)?;
        Ok(HostAnswer::Fdstat(Fdstat {
            file_type: descriptor.node().map_or(FileType::Unknown, Node::file_type),
            flags: descriptor.flags,
            rights_base: descriptor.rights_base,
            rights_inheriting: descriptor.rights_inheriting,
        }))
    }

    fn fd_set_flags(&mut self, fd: u32, new: u16) -> Answer {
        let descriptor = self.descriptors.get_mut(fd)?;
        if new & !flags::ALL != 0 {
            return Err(Errno::Inval.into());
        }
        descriptor.flags = new;
        Ok(HostAnswer::Unit)
    }

    fn fd_filestat(&self, fd: u32) -> Answer {
        let descriptor = self.descriptors.get(fd)?;
        let stat = match descriptor.node() {
            Some(node) => self.vfs.stat(node, descriptor.name())?,
            None => Filestat {
                device: 0,
                inode: 0,
                file_type: FileType::Unknown,
                links: 1,
                size: 0,
                accessed_ns: 0,
                modified_ns: 0,
                changed_ns: 0,
            },
        };
        Ok(HostAnswer::Filestat(stat))
    }

    fn fd_set_size(&mut self, fd: u32, length: u64, may_shrink: bool) -> Answer {
        let (descriptor, node) = Self::file(&self.descriptors, fd, rights::FD_WRITE)?;
        checked_end(length, 0)?;
        let old = self.vfs.length(node)?;
        if length == old || length < old && !may_shrink {
            return Ok(HostAnswer::Unit);
        }
        let charge = if matches!(node, Node::HostFile(_)) { length.saturating_sub(old) } else { 0 };
        if length > self.limits.max_file_bytes {
            return Err(Errno::Fbig.into());
        }
        let now = self.now();
        let target = || Target::Path(descriptor.path.clone());
        let reserved = self
            .pipeline
            .ledger
            .reserve(Budget::WrittenBytes, charge, "fs.stream", target)
            .map_err(|_| Errno::Nospc)?;
        self.vfs.set_length((node, descriptor.name()), length, now)?;
        reserved.settle(charge);
        self.descriptors.get_mut(fd)?.high_water = length;
        self.mark_modified(fd)?;
        if let Some(used) = self.stream(fd) {
            used.count(0, 0);
        }
        Ok(HostAnswer::Unit)
    }

    fn fd_allocate(&mut self, fd: u32, offset: u64, length: u64) -> Answer {
        if length == 0 {
            return Err(Errno::Inval.into());
        }
        let end = checked_end(offset, length)?;
        self.fd_set_size(fd, end, false)
    }

    fn fd_advise(&self, fd: u32, offset: u64, length: u64, advice: u8) -> Answer {
        Self::file(&self.descriptors, fd, 0)?;
        checked_end(offset, length).map_err(|_| Errno::Inval)?;
        if advice > 5 { Err(Errno::Inval.into()) } else { Ok(HostAnswer::Unit) }
    }

    /// Decided again, for the path it was opened at: times are not a stream.
    fn fd_set_times(&mut self, fd: u32, accessed: SetTime, modified: SetTime) -> Answer {
        let now = self.now();
        let times = NewTimes::new(accessed, modified, now)?;
        let descriptor = self.descriptors.get(fd)?;
        let node = descriptor.node().ok_or(Errno::Inval)?.clone();
        let request = FsRequest { action: FsAction::SetTimes, path: descriptor.path.clone() };
        self.act(
            request,
            Spelling::default(),
            |()| 0,
            |vfs, checked, _| vfs.set_times_of(checked, &node, times, now),
        )?;
        Ok(HostAnswer::Unit)
    }

    fn fd_sync(&self, fd: u32, data_only: bool) -> Answer {
        let node = self.descriptors.get(fd)?.node().ok_or(Errno::Inval)?;
        self.vfs.sync(node, data_only)?;
        Ok(HostAnswer::Unit)
    }

    fn fd_prestat(&self, fd: u32) -> Answer {
        let descriptor = self.descriptors.get(fd)?;
        if descriptor.preopen { Ok(HostAnswer::Size(1)) } else { Err(Errno::Badf.into()) }
    }

    fn fd_prestat_name(&self, fd: u32, into: &mut [u8]) -> Answer {
        if !self.descriptors.get(fd)?.preopen {
            return Err(Errno::Badf.into());
        }
        match into.first_mut() {
            Some(first) => *first = b'/',
            None => return Err(Errno::Nametoolong.into()),
        }
        Ok(HostAnswer::Size(1))
    }

    /// Fills the buffer with entries from `cookie` on; the last may be cut, by
    /// which the guest knows that there are more. The names are those at
    /// cookie 0, so that a cookie means one entry however the directory
    /// changes.
    fn fd_readdir(&mut self, fd: u32, into: &mut [u8], cookie: u64) -> Answer {
        let listing = self.listing(fd, cookie == 0)?;
        let start = usize::try_from(cookie).unwrap_or(usize::MAX);
        let mut rest = into;
        let mut used = 0_usize;
        for (index, entry) in listing.iter().enumerate().skip(start) {
            if rest.is_empty() {
                break;
            }
            let header = dirent(index, entry);
            for part in [header.as_slice(), entry.name.as_ref()] {
                let length = part.len().min(rest.len());
                let (head, tail) = rest.split_at_mut(length);
                head.copy_from_slice(part.get(..length).unwrap_or_default());
                used = used.saturating_add(length);
                rest = tail;
            }
        }
        self.usage.bytes_in = self.usage.bytes_in.saturating_add(used as u64);
        Ok(size(used))
    }

    fn listing(&mut self, fd: u32, fresh: bool) -> Result<Arc<Vec<Entry>>, Refusal> {
        let descriptor = self.descriptors.get(fd)?;
        let node = descriptor.node().ok_or(Errno::Notdir)?;
        if let Some(listing) = &descriptor.listing
            && !fresh
        {
            return Ok(Arc::clone(listing));
        }
        let node = node.clone();
        let own = self.vfs.stat(&node, descriptor.name())?.inode;
        let request = FsRequest { action: FsAction::List, path: descriptor.path.clone() };
        let (mut names, _) = self.act(
            request,
            Spelling::default(),
            |_| 0,
            |vfs, checked, _| vfs.list(checked, &node),
        )?;
        let dot = |name: &[u8]| Entry {
            name: Arc::from(name),
            inode: own,
            file_type: FileType::Directory,
        };
        names.splice(0..0, [dot(b"."), dot(b"..")]);
        // Of one directory, `.` and `..` included.
        let one = (self.limits.directory_entries as usize).saturating_add(2);
        self.descriptors.get_mut(fd)?.listing = None;
        let total = self.descriptors.listed_entries().saturating_add(names.len());
        if total > MAX_LISTED_ENTRIES.max(one) {
            return Err(Errno::Nomem.into());
        }
        let listing = Arc::new(names);
        self.descriptors.get_mut(fd)?.listing = Some(Arc::clone(&listing));
        Ok(listing)
    }
}

/// The hole a write at `offset` leaves in a host file. In memory the quota
/// charges it.
fn hole(descriptor: &Descriptor, node: &Node, offset: u64) -> Result<u64, Errno> {
    match node {
        Node::HostFile(file) if offset > descriptor.high_water => {
            Ok(offset.saturating_sub(file.length()?))
        }
        _ => Ok(0),
    }
}

/// The fixed part of a `dirent`; its padding is zero.
fn dirent(index: usize, entry: &Entry) -> [u8; DIRENT_BYTES] {
    let next = (index as u64).saturating_add(1);
    let length = u32::try_from(entry.name.len()).unwrap_or(u32::MAX);
    let fields = next
        .to_le_bytes()
        .into_iter()
        .chain(entry.inode.to_le_bytes())
        .chain(length.to_le_bytes())
        .chain([entry.file_type as u8]);
    let mut header = [0; DIRENT_BYTES];
    for (slot, byte) in header.iter_mut().zip(fields) {
        *slot = byte;
    }
    header
}
