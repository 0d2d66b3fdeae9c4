//! Types, times and errors of the host in the guest's terms.
//!
//! Invariant: an error becomes its number for the guest and nothing else of it
//! goes on.

use std::io;
use std::time::{Duration, UNIX_EPOCH};

use cap_fs_ext::SystemTimeSpec;
use cap_std::time::SystemTime;

use crate::call::FileType;
use crate::errno::Errno;

pub(super) fn file_type(host: cap_std::fs::FileType) -> FileType {
    if host.is_file() {
        FileType::RegularFile
    } else if host.is_dir() {
        FileType::Directory
    } else if host.is_symlink() {
        FileType::SymbolicLink
    } else {
        FileType::Unknown
    }
}

pub(super) fn nanoseconds(seconds: i64, rest: i64) -> u64 {
    let total = seconds.saturating_mul(1_000_000_000).saturating_add(rest);
    u64::try_from(total).unwrap_or(0)
}

pub(super) fn time_spec(time: Option<u64>) -> Option<SystemTimeSpec> {
    let std_time = UNIX_EPOCH.checked_add(Duration::from_nanos(time?))?;
    Some(SystemTimeSpec::Absolute(SystemTime::from_std(std_time)))
}

pub(super) fn raw_time(time: Option<u64>) -> rustix::fs::Timespec {
    let billion = 1_000_000_000;
    match time {
        None => rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
        Some(time) => rustix::fs::Timespec {
            tv_sec: i64::try_from(time / billion).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(time % billion).unwrap_or(0),
        },
    }
}

/// The guest's number for an error of the host, and nothing else of it.
pub(super) fn host_errno(error: &io::Error) -> Errno {
    use rustix::io::Errno as Host;
    let Some(host) = Host::from_io_error(error) else {
        return match error.kind() {
            io::ErrorKind::NotFound => Errno::Noent,
            io::ErrorKind::PermissionDenied => Errno::Perm,
            io::ErrorKind::InvalidInput => Errno::Inval,
            _ => Errno::Io,
        };
    };
    match host {
        Host::ACCESS => Errno::Acces,
        Host::PERM => Errno::Perm,
        Host::NOENT => Errno::Noent,
        Host::EXIST => Errno::Exist,
        Host::NOTDIR => Errno::Notdir,
        Host::ISDIR => Errno::Isdir,
        Host::NOTEMPTY => Errno::Notempty,
        Host::LOOP => Errno::Loop,
        Host::INVAL => Errno::Inval,
        Host::NAMETOOLONG => Errno::Nametoolong,
        Host::NOSPC | Host::DQUOT => Errno::Nospc,
        Host::FBIG => Errno::Fbig,
        Host::ROFS => Errno::Rofs,
        Host::XDEV => Errno::Xdev,
        Host::MLINK => Errno::Mlink,
        Host::BUSY => Errno::Busy,
        Host::TXTBSY => Errno::Txtbsy,
        Host::MFILE | Host::NFILE => Errno::Mfile,
        Host::NOMEM => Errno::Nomem,
        Host::NOTSUP => Errno::Notsup,
        Host::OVERFLOW => Errno::Overflow,
        // O_NONBLOCK on something that would have blocked, or no such device.
        Host::AGAIN | Host::NXIO | Host::NODEV => Errno::Perm,
        _ => Errno::Io,
    }
}
