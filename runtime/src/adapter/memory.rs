//! Reads and writes of guest memory, every access checked.

use fumehood_host_fns::{Errno, Filestat, Refusal};

use super::{Answer, errno};

/// Longest iovec list, as POSIX's `IOV_MAX`.
const MAX_IOVECS: u32 = 1024;
/// Longest path that is looked at at all; the canonicaliser has its own limit.
const MAX_PATH_BYTES: u32 = 64 << 10;

/// A pointer or length of the guest: the bits of a WebAssembly `i32`.
pub(super) fn unsigned(value: i32) -> u32 {
    value.cast_unsigned()
}

fn range(at: u32, len: u32) -> Option<std::ops::Range<usize>> {
    let start = usize::try_from(at).ok()?;
    let end = start.checked_add(usize::try_from(len).ok()?)?;
    Some(start..end)
}

pub(super) fn slice(memory: &[u8], at: i32, len: u32) -> Answer<&[u8]> {
    range(unsigned(at), len).and_then(|range| memory.get(range)).ok_or(errno(Errno::Fault))
}

pub(super) fn slice_mut(memory: &mut [u8], at: i32, len: u32) -> Answer<&mut [u8]> {
    range(unsigned(at), len).and_then(|range| memory.get_mut(range)).ok_or(errno(Errno::Fault))
}

pub(super) fn path(memory: &[u8], at: i32, len: i32) -> Answer<&[u8]> {
    if unsigned(len) > MAX_PATH_BYTES {
        return Err(errno(Errno::Nametoolong));
    }
    slice(memory, at, unsigned(len))
}

pub(super) fn read_u32(memory: &[u8], at: u32) -> Answer<u32> {
    range(at, 4)
        .and_then(|range| memory.get(range))
        .and_then(|bytes| bytes.try_into().ok())
        .map(u32::from_le_bytes)
        .ok_or(errno(Errno::Fault))
}

pub(super) fn write(memory: &mut [u8], at: i32, bytes: &[u8]) -> Answer {
    let len = u32::try_from(bytes.len()).map_err(|_| errno(Errno::Overflow))?;
    slice_mut(memory, at, len)?.copy_from_slice(bytes);
    Ok(())
}

pub(super) fn write_u32(memory: &mut [u8], at: i32, value: u32) -> Answer {
    write(memory, at, &value.to_le_bytes())
}

pub(super) fn write_u64(memory: &mut [u8], at: i32, value: u64) -> Answer {
    write(memory, at, &value.to_le_bytes())
}

/// Checks that a later write of `len` bytes cannot fail, so that no effect
/// happens whose answer has nowhere to go.
pub(super) fn writable(memory: &mut [u8], at: i32, len: u32) -> Answer {
    slice_mut(memory, at, len).map(|_| ())
}

/// The buffers of a list that are not empty, as (address, length), together at
/// most what one call moves. WASI allows a short read or write, so what is
/// beyond that is left to the guest's next call.
pub(super) fn buffers(memory: &[u8], list: i32, count: i32) -> Answer<Vec<(i32, u32)>> {
    let count = unsigned(count);
    if count > MAX_IOVECS {
        return Err(errno(Errno::Inval));
    }
    let mut room = u32::try_from(fumehood_host_fns::MAX_TRANSFER_BYTES).unwrap_or(u32::MAX);
    let mut total: u32 = 0;
    let mut found = Vec::new();
    for index in 0..count {
        let entry = index
            .checked_mul(8)
            .and_then(|offset| unsigned(list).checked_add(offset))
            .ok_or(errno(Errno::Fault))?;
        let at = read_u32(memory, entry)?.cast_signed();
        let len = read_u32(memory, entry.checked_add(4).ok_or(errno(Errno::Fault))?)?;
        total = total.checked_add(len).ok_or(errno(Errno::Inval))?;
        slice(memory, at, len)?;
        let taken = len.min(room);
        if taken > 0 {
            found.push((at, taken));
            room = room.saturating_sub(taken);
        }
    }
    Ok(found)
}

/// WASI `filestat`, 64 bytes.
pub(super) fn write_filestat(memory: &mut [u8], at: i32, stat: &Filestat) -> Result<(), Refusal> {
    let mut record = [0; 64];
    let fields = [
        (0, stat.device),
        (8, stat.inode),
        (16, u64::from(stat.file_type as u8)),
        (24, stat.links),
        (32, stat.size),
        (40, stat.accessed_ns),
        (48, stat.modified_ns),
        (56, stat.changed_ns),
    ];
    for (offset, value) in fields {
        write(&mut record, offset, &value.to_le_bytes())?;
    }
    write(memory, at, &record)
}
