//! The system calls for which no safe wrapper exists.
//!
//! Invariant: the helper has one thread from its start to its end, so that a
//! fork or a change of namespaces takes the whole process along, and a child
//! may do everything that its parent could.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use rustix::process::Pid;
use rustix::thread::UnshareFlags;

fn result(returned: libc::c_long) -> io::Result<libc::c_long> {
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(returned) }
}

/// Closes every descriptor but the three standard ones. To be called first:
/// nothing in this process owns another one yet.
pub(crate) fn close_inherited() -> io::Result<()> {
    // SAFETY: plain numbers; no owner of a descriptor from 3 on exists yet.
    result(unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, 0_u32) }).map(|_| ())
}

/// Which process this is after [`fork`].
pub(crate) enum Fork {
    /// The new one.
    Child,
    /// The old one, and the number of the new one.
    Parent(Pid),
}

/// Makes a second process.
pub(crate) fn fork() -> io::Result<Fork> {
    // SAFETY: this process has one thread, so no lock can be held by another
    // one and the child may run any code.
    let pid = result(libc::c_long::from(unsafe { libc::fork() }))?;
    Ok(match i32::try_from(pid).ok().and_then(Pid::from_raw) {
        Some(pid) => Fork::Parent(pid),
        None => Fork::Child,
    })
}

/// Leaves namespaces.
pub(crate) fn unshare(flags: UnshareFlags) -> io::Result<()> {
    debug_assert!(!flags.contains(UnshareFlags::FILES));
    // SAFETY: the table of descriptors stays shared as it is; the flags are of
    // namespaces only, and this process has one thread.
    unsafe { rustix::thread::unshare_unsafe(flags) }.map_err(Into::into)
}

/// Gives up every supplementary group, which only a privileged process can.
pub(crate) fn drop_groups() -> io::Result<()> {
    // SAFETY: an empty list needs no memory.
    result(libc::c_long::from(unsafe { libc::setgroups(0, std::ptr::null()) })).map(|_| ())
}

/// Attributes of mounts, as in `linux/mount.h`.
pub(crate) mod attributes {
    /// `MOUNT_ATTR_RDONLY`
    pub(crate) const READ_ONLY: u64 = 0x1;
    /// `MOUNT_ATTR_NOSUID`
    pub(crate) const NO_SET_ID: u64 = 0x2;
    /// `MOUNT_ATTR_NODEV`
    pub(crate) const NO_DEVICES: u64 = 0x4;
    /// `MOUNT_ATTR_NOEXEC`
    pub(crate) const NO_EXECUTE: u64 = 0x8;
}

/// Adds attributes to a mount, or to it and everything mounted below it.
pub(crate) fn set_mount_attributes(mount: impl AsFd, set: u64, below: bool) -> io::Result<()> {
    let attributes = libc::mount_attr { attr_set: set, attr_clr: 0, propagation: 0, userns_fd: 0 };
    let flags = libc::AT_EMPTY_PATH | if below { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is a string with its NUL, the structure lives through
    // the call and its size is given.
    result(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_fd().as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    })
    .map(|_| ())
}

/// Processor time and the largest memory of every child that was waited for,
/// and of theirs.
pub(crate) fn children_usage() -> (Duration, u64) {
    // SAFETY: all zeros is a value of this structure of numbers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the structure lives through the call.
    if unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage) } != 0 {
        return (Duration::ZERO, 0);
    }
    let time = |time: libc::timeval| {
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        Duration::from_secs(seconds)
            .saturating_add(Duration::from_micros(u64::try_from(time.tv_usec).unwrap_or(0)))
    };
    let kibibytes = u64::try_from(usage.ru_maxrss).unwrap_or(0);
    (time(usage.ru_utime).saturating_add(time(usage.ru_stime)), kibibytes.saturating_mul(1024))
}

/// Makes a system call that has no effect if the boundary stands, for the
/// attempts: every argument is a number or zero.
pub(crate) fn attempt(number: libc::c_long, arguments: [libc::c_long; 4]) -> io::Result<()> {
    let [a, b, c, d] = arguments;
    // SAFETY: the calls of `attempts` are given numbers, descriptors and null
    // pointers only; the kernel answers EFAULT or EINVAL to what it will not
    // take, and nothing of this process's memory is handed over.
    result(unsafe { libc::syscall(number, a, b, c, d) }).map(|_| ())
}

/// Makes a system call through the other entry of this architecture, in a
/// process that may die of it: `int 0x80` on x86-64. `None` where there is
/// none.
pub(crate) fn foreign_getpid() -> Option<i64> {
    #[cfg(target_arch = "x86_64")]
    {
        let answer: i64;
        // SAFETY: `getpid` of the 32-bit table is number 20; it takes nothing
        // and changes rax alone.
        unsafe {
            std::arch::asm!("int 0x80", inlateout("rax") 20_i64 => answer, options(nostack));
        }
        Some(answer)
    }
    #[cfg(not(target_arch = "x86_64"))]
    None
}

/// A descriptor by its number, for those that the program was started with.
pub(crate) fn standard_input() -> BorrowedFd<'static> {
    rustix::stdio::stdin()
}

/// The version of Landlock that the kernel has.
pub(crate) fn landlock_version() -> io::Result<i32> {
    let ask_version = 1_u32;
    let nothing = std::ptr::null::<libc::c_void>();
    // SAFETY: with this flag the kernel reads no memory.
    let version = result(unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, nothing, 0_usize, ask_version)
    })?;
    Ok(i32::try_from(version).unwrap_or(i32::MAX))
}
