//! `path_*`: functions that name a file below a directory descriptor.

use fumehood_host_fns::{Errno, HostAnswer, HostCall};
use wasmtime::Linker;

use super::descriptors::{set_times, size, unit};
use super::memory::{path, slice_mut, unsigned, writable, write_filestat, write_u32};
use super::{dispatch, errno, unexpected};
use crate::host::Host;

/// WASI `lookupflags`: follow a symbolic link at the end.
const FOLLOW: i32 = 1;

pub(super) fn add(linker: &mut Linker<Host>) -> wasmtime::Result<()> {
    add_open(linker)?;
    add_names(linker)?;
    add_links(linker)
}

fn add_open(linker: &mut Linker<Host>) -> wasmtime::Result<()> {
    import!(linker, "path_open", |memory,
                                  host,
                                  dir: i32,
                                  lookup: i32,
                                  at: i32,
                                  len: i32,
                                  open_flags: i32,
                                  rights_base: i64,
                                  rights_inheriting: i64,
                                  fd_flags: i32,
                                  out: i32| {
        writable(memory, out, 4)?;
        let call = HostCall::PathOpen {
            dir: unsigned(dir),
            follow: lookup & FOLLOW != 0,
            path: path(memory, at, len)?,
            open_flags: u16::try_from(open_flags).map_err(|_| errno(Errno::Inval))?,
            rights_base: rights_base.cast_unsigned(),
            rights_inheriting: rights_inheriting.cast_unsigned(),
            fd_flags: u16::try_from(fd_flags).map_err(|_| errno(Errno::Inval))?,
        };
        match dispatch(host, call)? {
            HostAnswer::Descriptor(fd) => write_u32(memory, out, fd),
            _ => Err(unexpected()),
        }
    });
    import!(linker, "path_filestat_get", |memory,
                                          host,
                                          dir: i32,
                                          lookup: i32,
                                          at: i32,
                                          len: i32,
                                          out: i32| {
        writable(memory, out, 64)?;
        let call = HostCall::PathFilestatGet {
            dir: unsigned(dir),
            follow: lookup & FOLLOW != 0,
            path: path(memory, at, len)?,
        };
        match dispatch(host, call)? {
            HostAnswer::Filestat(stat) => write_filestat(memory, out, &stat),
            _ => Err(unexpected()),
        }
    });
    import!(
        linker,
        "path_filestat_set_times",
        |memory,
         host,
         dir: i32,
         lookup: i32,
         at: i32,
         len: i32,
         accessed: i64,
         modified: i64,
         flags: i32| {
            let (accessed, modified) = set_times(accessed, modified, flags)?;
            let call = HostCall::PathFilestatSetTimes {
                dir: unsigned(dir),
                follow: lookup & FOLLOW != 0,
                path: path(memory, at, len)?,
                accessed,
                modified,
            };
            unit(dispatch(host, call)?)
        }
    );
    Ok(())
}

fn add_names(linker: &mut Linker<Host>) -> wasmtime::Result<()> {
    import!(linker, "path_create_directory", |memory, host, dir: i32, at: i32, len: i32| {
        let path = path(memory, at, len)?;
        unit(dispatch(host, HostCall::PathCreateDirectory { dir: unsigned(dir), path })?)
    });
    import!(linker, "path_remove_directory", |memory, host, dir: i32, at: i32, len: i32| {
        let path = path(memory, at, len)?;
        unit(dispatch(host, HostCall::PathRemoveDirectory { dir: unsigned(dir), path })?)
    });
    import!(linker, "path_unlink_file", |memory, host, dir: i32, at: i32, len: i32| {
        let path = path(memory, at, len)?;
        unit(dispatch(host, HostCall::PathUnlinkFile { dir: unsigned(dir), path })?)
    });
    import!(linker, "path_rename", |memory,
                                    host,
                                    old_dir: i32,
                                    old_at: i32,
                                    old_len: i32,
                                    new_dir: i32,
                                    new_at: i32,
                                    new_len: i32| {
        let call = HostCall::PathRename {
            old_dir: unsigned(old_dir),
            old: path(memory, old_at, old_len)?,
            new_dir: unsigned(new_dir),
            new: path(memory, new_at, new_len)?,
        };
        unit(dispatch(host, call)?)
    });
    Ok(())
}

fn add_links(linker: &mut Linker<Host>) -> wasmtime::Result<()> {
    import!(linker, "path_link", |memory,
                                  host,
                                  old_dir: i32,
                                  lookup: i32,
                                  old_at: i32,
                                  old_len: i32,
                                  new_dir: i32,
                                  new_at: i32,
                                  new_len: i32| {
        let call = HostCall::PathLink {
            old_dir: unsigned(old_dir),
            follow: lookup & FOLLOW != 0,
            old: path(memory, old_at, old_len)?,
            new_dir: unsigned(new_dir),
            new: path(memory, new_at, new_len)?,
        };
        unit(dispatch(host, call)?)
    });
    import!(linker, "path_symlink", |memory,
                                     host,
                                     target_at: i32,
                                     target_len: i32,
                                     dir: i32,
                                     at: i32,
                                     len: i32| {
        let call = HostCall::PathSymlink {
            target: path(memory, target_at, target_len)?,
            dir: unsigned(dir),
            path: path(memory, at, len)?,
        };
        unit(dispatch(host, call)?)
    });
    import!(linker, "path_readlink", |memory,
                                      host,
                                      dir: i32,
                                      at: i32,
                                      len: i32,
                                      buffer: i32,
                                      capacity: i32,
                                      out: i32| {
        writable(memory, out, 4)?;
        // Copied, since the guest may let the two buffers overlap.
        let path = path(memory, at, len)?.to_vec();
        let into = slice_mut(memory, buffer, unsigned(capacity))?;
        let call = HostCall::PathReadlink { dir: unsigned(dir), path: &path, into };
        let size = size(dispatch(host, call)?)?;
        write_u32(memory, out, size)
    });
    Ok(())
}
