//! `fd_*`: functions on an open descriptor.

use fumehood_host_fns::{Errno, Fdstat, HostAnswer, HostCall, Refusal, SetTime};
use wasmtime::Linker;

use super::memory::{
    buffers, slice, slice_mut, unsigned, writable, write, write_filestat, write_u32, write_u64,
};
use super::{Answer, dispatch, errno, unexpected};
use crate::host::Host;

pub(super) fn add(linker: &mut Linker<Host>) -> wasmtime::Result<()> {
    add_streams(linker)?;
    add_metadata(linker)?;
    add_table(linker)
}

fn add_streams(linker: &mut Linker<Host>) -> wasmtime::Result<()> {
    import!(linker, "fd_read", |memory, host, fd: i32, list: i32, count: i32, out: i32| {
        transfer(memory, list, count, out, |memory, at, len, _| {
            let into = slice_mut(memory, at, len)?;
            size(dispatch(host, HostCall::FdRead { fd: unsigned(fd), into })?)
        })
    });
    import!(linker, "fd_pread", |memory,
                                 host,
                                 fd: i32,
                                 list: i32,
                                 count: i32,
                                 offset: i64,
                                 out: i32| {
        transfer(memory, list, count, out, |memory, at, len, done| {
            let into = slice_mut(memory, at, len)?;
            let offset = advance(offset, done)?;
            size(dispatch(host, HostCall::FdPread { fd: unsigned(fd), into, offset })?)
        })
    });
    import!(linker, "fd_write", |memory, host, fd: i32, list: i32, count: i32, out: i32| {
        transfer(memory, list, count, out, |memory, at, len, _| {
            let data = slice(memory, at, len)?;
            size(dispatch(host, HostCall::FdWrite { fd: unsigned(fd), data })?)
        })
    });
    import!(linker, "fd_pwrite", |memory,
                                  host,
                                  fd: i32,
                                  list: i32,
                                  count: i32,
                                  offset: i64,
                                  out: i32| {
        transfer(memory, list, count, out, |memory, at, len, done| {
            let data = slice(memory, at, len)?;
            let offset = advance(offset, done)?;
            size(dispatch(host, HostCall::FdPwrite { fd: unsigned(fd), data, offset })?)
        })
    });
    import!(linker, "fd_seek", |memory, host, fd: i32, delta: i64, whence: i32, out: i32| {
        writable(memory, out, 8)?;
        let whence = u8::try_from(whence).map_err(|_| errno(Errno::Inval))?;
        let call = HostCall::FdSeek { fd: unsigned(fd), delta, whence };
        write_offset(memory, out, dispatch(host, call)?)
    });
    import!(linker, "fd_tell", |memory, host, fd: i32, out: i32| {
        writable(memory, out, 8)?;
        write_offset(memory, out, dispatch(host, HostCall::FdTell { fd: unsigned(fd) })?)
    });
    import!(linker, "fd_readdir", |memory,
                                   host,
                                   fd: i32,
                                   at: i32,
                                   len: i32,
                                   cookie: i64,
                                   out: i32| {
        writable(memory, out, 4)?;
        let into = slice_mut(memory, at, unsigned(len))?;
        let cookie = cookie.cast_unsigned();
        let call = HostCall::FdReaddir { fd: unsigned(fd), into, cookie };
        let size = size(dispatch(host, call)?)?;
        write_u32(memory, out, size)
    });
    Ok(())
}

fn add_metadata(linker: &mut Linker<Host>) -> wasmtime::Result<()> {
    import!(linker, "fd_advise", |_, host, fd: i32, offset: i64, len: i64, advice: i32| {
        let advice = u8::try_from(advice).map_err(|_| errno(Errno::Inval))?;
        let (offset, len) = (offset.cast_unsigned(), len.cast_unsigned());
        unit(dispatch(host, HostCall::FdAdvise { fd: unsigned(fd), offset, len, advice })?)
    });
    import!(linker, "fd_allocate", |_, host, fd: i32, offset: i64, len: i64| {
        let (offset, len) = (offset.cast_unsigned(), len.cast_unsigned());
        unit(dispatch(host, HostCall::FdAllocate { fd: unsigned(fd), offset, len })?)
    });
    import!(linker, "fd_fdstat_get", |memory, host, fd: i32, out: i32| {
        writable(memory, out, 24)?;
        match dispatch(host, HostCall::FdFdstatGet { fd: unsigned(fd) })? {
            HostAnswer::Fdstat(stat) => write_fdstat(memory, out, &stat),
            _ => Err(unexpected()),
        }
    });
    import!(linker, "fd_fdstat_set_flags", |_, host, fd: i32, flags: i32| {
        let flags = u16::try_from(flags).map_err(|_| errno(Errno::Inval))?;
        unit(dispatch(host, HostCall::FdFdstatSetFlags { fd: unsigned(fd), flags })?)
    });
    import!(linker, "fd_filestat_get", |memory, host, fd: i32, out: i32| {
        writable(memory, out, 64)?;
        match dispatch(host, HostCall::FdFilestatGet { fd: unsigned(fd) })? {
            HostAnswer::Filestat(stat) => write_filestat(memory, out, &stat),
            _ => Err(unexpected()),
        }
    });
    import!(linker, "fd_filestat_set_size", |_, host, fd: i32, size: i64| {
        let size = size.cast_unsigned();
        unit(dispatch(host, HostCall::FdFilestatSetSize { fd: unsigned(fd), size })?)
    });
    import!(
        linker,
        "fd_filestat_set_times",
        |_, host, fd: i32, accessed: i64, modified: i64, flags: i32| {
            let (accessed, modified) = set_times(accessed, modified, flags)?;
            let call = HostCall::FdFilestatSetTimes { fd: unsigned(fd), accessed, modified };
            unit(dispatch(host, call)?)
        }
    );
    Ok(())
}

fn add_table(linker: &mut Linker<Host>) -> wasmtime::Result<()> {
    import!(linker, "fd_close", |_, host, fd: i32| {
        unit(dispatch(host, HostCall::FdClose { fd: unsigned(fd) })?)
    });
    for (name, data_only) in [("fd_sync", false), ("fd_datasync", true)] {
        import!(linker, name, |_, host, fd: i32| {
            unit(dispatch(host, HostCall::FdSync { fd: unsigned(fd), data_only })?)
        });
    }
    import!(linker, "fd_renumber", |_, host, from: i32, to: i32| {
        let call = HostCall::FdRenumber { from: unsigned(from), to: unsigned(to) };
        unit(dispatch(host, call)?)
    });
    import!(linker, "fd_prestat_get", |memory, host, fd: i32, out: i32| {
        writable(memory, out, 8)?;
        let name = size(dispatch(host, HostCall::FdPrestatGet { fd: unsigned(fd) })?)?;
        // Tag 0: a directory.
        let mut record = [0; 8];
        write(&mut record, 4, &name.to_le_bytes())?;
        write(memory, out, &record)
    });
    import!(linker, "fd_prestat_dir_name", |memory, host, fd: i32, at: i32, len: i32| {
        let into = slice_mut(memory, at, unsigned(len))?;
        match dispatch(host, HostCall::FdPrestatDirName { fd: unsigned(fd), into })? {
            HostAnswer::Unit | HostAnswer::Size(_) => Ok(()),
            _ => Err(unexpected()),
        }
    });
    Ok(())
}

/// Moves the buffers of a list one after the other through `part`, which gets
/// how much was moved before. A part that is short or fails after others ends
/// the call with what was moved, as POSIX has it for `readv` and `writev`.
fn transfer(
    memory: &mut [u8],
    list: i32,
    count: i32,
    out: i32,
    mut part: impl FnMut(&mut [u8], i32, u32, u32) -> Answer<u32>,
) -> Answer {
    writable(memory, out, 4)?;
    let mut buffers = buffers(memory, list, count)?;
    if buffers.is_empty() {
        // The descriptor is checked all the same.
        buffers.push((0, 0));
    }
    let mut done = 0_u32;
    for (at, len) in buffers {
        match part(memory, at, len, done) {
            Ok(moved) => {
                done = done.saturating_add(moved);
                if moved < len {
                    break;
                }
            }
            Err(Refusal::Errno(_)) if done > 0 => break,
            Err(refusal) => return Err(refusal),
        }
    }
    write_u32(memory, out, done)
}

fn advance(offset: i64, done: u32) -> Answer<u64> {
    offset.cast_unsigned().checked_add(u64::from(done)).ok_or(errno(Errno::Overflow))
}

pub(super) fn unit(answer: HostAnswer) -> Answer {
    match answer {
        HostAnswer::Unit => Ok(()),
        _ => Err(unexpected()),
    }
}

pub(super) fn size(answer: HostAnswer) -> Answer<u32> {
    match answer {
        HostAnswer::Size(size) => Ok(size),
        _ => Err(unexpected()),
    }
}

fn write_offset(memory: &mut [u8], out: i32, answer: HostAnswer) -> Answer {
    match answer {
        HostAnswer::Offset(offset) => write_u64(memory, out, offset),
        _ => Err(unexpected()),
    }
}

/// WASI `fdstat`, 24 bytes.
fn write_fdstat(memory: &mut [u8], out: i32, stat: &Fdstat) -> Answer {
    let mut record = [0; 24];
    write(&mut record, 0, &[stat.file_type as u8])?;
    write(&mut record, 2, &stat.flags.to_le_bytes())?;
    write(&mut record, 8, &stat.rights_base.to_le_bytes())?;
    write(&mut record, 16, &stat.rights_inheriting.to_le_bytes())?;
    write(memory, out, &record)
}

/// WASI `fstflags`: 1 access time, 2 access time now, 4 modification time,
/// 8 modification time now.
pub(super) fn set_times(accessed: i64, modified: i64, flags: i32) -> Answer<(SetTime, SetTime)> {
    let choose = |value: i64, set: bool, now: bool| match (set, now) {
        (true, true) => Err(errno(Errno::Inval)),
        (true, false) => Ok(SetTime::To(value.cast_unsigned())),
        (false, true) => Ok(SetTime::Now),
        (false, false) => Ok(SetTime::Keep),
    };
    if flags & !0xf != 0 {
        return Err(errno(Errno::Inval));
    }
    Ok((
        choose(accessed, flags & 1 != 0, flags & 2 != 0)?,
        choose(modified, flags & 4 != 0, flags & 8 != 0)?,
    ))
}
