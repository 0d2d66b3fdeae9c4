//! The system calls that a command may make, as data.
//!
//! What: [`ALLOWED`] by number alone, [`conditional`] by their arguments,
//! [`NOT_THERE`] answered as if the kernel were older, so that programs take
//! their other way. Everything else is answered with `EPERM`. Calls that only
//! x86-64 has are in [`ALLOWED_OLDER`]; a system call of another architecture
//! or of the x32 table ends the process. Where the file system and the processes
//! of the machine are in reach, [`REFUSED_ALONE`], [`REFUSED_ALONE_OLDER`] and
//! [`conditional_alone`] take some of it away again.
//!
//! Left out on purpose: sockets (no network, no daemon of this machine, no
//! netlink, no `AF_ALG`, no `AF_VSOCK`); namespaces (`unshare`, `setns`,
//! `clone` with their flags) and mounts, old and new; `ptrace`,
//! `process_vm_*`, `pidfd_getfd`, `kcmp`, `perf_event_open`, `bpf`,
//! `userfaultfd`; keys (`keyctl`, `add_key`, `request_key`); modules, `kexec`,
//! `reboot`, `syslog`, swap, quota, clocks and names of the machine;
//! `open_by_handle_at` (a handle goes around every directory); System V IPC and
//! POSIX queues (memory outside of the watch); `seccomp` and Landlock of its
//! own are allowed, since they only take away.

use libc::c_long;
use seccompiler::SeccompCmpArgLen::{self, Dword, Qword};
use seccompiler::SeccompCmpOp::{self, Eq, MaskedEq, Ne};

/// Calls that are allowed whatever their arguments.
#[rustfmt::skip]
pub(crate) const ALLOWED: &[c_long] = &[
    // Files by descriptor.
    libc::SYS_read, libc::SYS_write, libc::SYS_readv, libc::SYS_writev, libc::SYS_pread64,
    libc::SYS_pwrite64, libc::SYS_preadv, libc::SYS_pwritev, libc::SYS_preadv2,
    libc::SYS_pwritev2, libc::SYS_close, libc::SYS_close_range, libc::SYS_dup, libc::SYS_dup3,
    libc::SYS_lseek, libc::SYS_fcntl, libc::SYS_flock, libc::SYS_fsync, libc::SYS_fdatasync,
    libc::SYS_sync, libc::SYS_syncfs, libc::SYS_sync_file_range, libc::SYS_ftruncate,
    libc::SYS_fallocate, libc::SYS_fadvise64, libc::SYS_readahead, libc::SYS_sendfile,
    libc::SYS_splice, libc::SYS_tee, libc::SYS_vmsplice, libc::SYS_copy_file_range,
    libc::SYS_fstat, libc::SYS_fstatfs, libc::SYS_getdents64, libc::SYS_fchdir,
    libc::SYS_fchmod, libc::SYS_fchown, libc::SYS_fsetxattr, libc::SYS_fgetxattr,
    libc::SYS_flistxattr, libc::SYS_fremovexattr,
    // Files by path: Landlock decides, but for modes, owners, times, attributes
    // and watches, of which it hears nothing: see `REFUSED_ALONE`.
    libc::SYS_openat, libc::SYS_openat2, libc::SYS_newfstatat, libc::SYS_statx,
    libc::SYS_statfs, libc::SYS_truncate, libc::SYS_faccessat, libc::SYS_faccessat2,
    libc::SYS_readlinkat, libc::SYS_mkdirat, libc::SYS_unlinkat, libc::SYS_renameat,
    libc::SYS_renameat2, libc::SYS_linkat, libc::SYS_symlinkat, libc::SYS_mknodat,
    libc::SYS_fchmodat, libc::SYS_fchmodat2, libc::SYS_fchownat, libc::SYS_utimensat,
    libc::SYS_chdir, libc::SYS_getcwd, libc::SYS_umask, libc::SYS_setxattr,
    libc::SYS_lsetxattr, libc::SYS_getxattr, libc::SYS_lgetxattr, libc::SYS_listxattr,
    libc::SYS_llistxattr, libc::SYS_removexattr, libc::SYS_lremovexattr,
    libc::SYS_inotify_init1, libc::SYS_inotify_add_watch, libc::SYS_inotify_rm_watch,
    // Memory of its own.
    libc::SYS_mmap, libc::SYS_munmap, libc::SYS_mprotect, libc::SYS_mremap, libc::SYS_madvise,
    libc::SYS_msync, libc::SYS_mincore, libc::SYS_brk, libc::SYS_mlock, libc::SYS_mlock2,
    libc::SYS_munlock, libc::SYS_mlockall, libc::SYS_munlockall, libc::SYS_membarrier,
    libc::SYS_get_mempolicy, libc::SYS_set_mempolicy, libc::SYS_mbind, libc::SYS_pkey_alloc,
    libc::SYS_pkey_free, libc::SYS_pkey_mprotect,
    // Waiting.
    libc::SYS_ppoll, libc::SYS_pselect6, libc::SYS_epoll_create1, libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2, libc::SYS_eventfd2, libc::SYS_pipe2,
    libc::SYS_signalfd4, libc::SYS_timerfd_create, libc::SYS_timerfd_settime,
    libc::SYS_timerfd_gettime, libc::SYS_futex, libc::SYS_futex_waitv,
    libc::SYS_set_robust_list, libc::SYS_get_robust_list, libc::SYS_rseq,
    libc::SYS_restart_syscall, libc::SYS_sched_yield,
    // Time.
    libc::SYS_clock_gettime, libc::SYS_clock_getres, libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep, libc::SYS_gettimeofday, libc::SYS_times, libc::SYS_timer_create,
    libc::SYS_timer_settime, libc::SYS_timer_gettime, libc::SYS_timer_getoverrun,
    libc::SYS_timer_delete, libc::SYS_getitimer, libc::SYS_setitimer,
    // Signals: only processes of the run can be named, or Landlock refuses.
    libc::SYS_rt_sigaction, libc::SYS_rt_sigprocmask, libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigpending, libc::SYS_rt_sigsuspend, libc::SYS_rt_sigtimedwait,
    libc::SYS_rt_sigqueueinfo, libc::SYS_rt_tgsigqueueinfo, libc::SYS_sigaltstack,
    libc::SYS_kill, libc::SYS_tkill, libc::SYS_tgkill, libc::SYS_pidfd_open,
    libc::SYS_pidfd_send_signal,
    // Processes. `clone3` is allowed here because `NOT_THERE` answers it: of two
    // errors the kernel gives that of the filter that was installed last.
    libc::SYS_execve, libc::SYS_execveat, libc::SYS_exit, libc::SYS_exit_group,
    libc::SYS_wait4, libc::SYS_waitid, libc::SYS_set_tid_address, libc::SYS_clone3,
    libc::SYS_getpid, libc::SYS_getppid, libc::SYS_gettid, libc::SYS_getpgid,
    libc::SYS_setpgid, libc::SYS_getsid, libc::SYS_setsid, libc::SYS_getuid,
    libc::SYS_geteuid, libc::SYS_getgid, libc::SYS_getegid, libc::SYS_getresuid,
    libc::SYS_getresgid, libc::SYS_getgroups, libc::SYS_setuid, libc::SYS_setgid,
    libc::SYS_setreuid, libc::SYS_setregid, libc::SYS_setresuid, libc::SYS_setresgid,
    libc::SYS_setfsuid, libc::SYS_setfsgid, libc::SYS_capget, libc::SYS_capset,
    libc::SYS_getrusage, libc::SYS_getpriority, libc::SYS_getrlimit, libc::SYS_setrlimit,
    libc::SYS_sched_getaffinity, libc::SYS_sched_setaffinity, libc::SYS_sched_getparam,
    libc::SYS_sched_getscheduler, libc::SYS_sched_getattr, libc::SYS_sched_get_priority_max,
    libc::SYS_sched_get_priority_min, libc::SYS_sched_rr_get_interval, libc::SYS_getcpu,
    libc::SYS_ioprio_get,
    // About the machine, nothing to change.
    libc::SYS_uname, libc::SYS_sysinfo, libc::SYS_getrandom,
    // Sockets that were made as a pair, connected to nothing else.
    libc::SYS_sendto, libc::SYS_recvfrom, libc::SYS_sendmsg, libc::SYS_recvmsg,
    libc::SYS_sendmmsg, libc::SYS_recvmmsg, libc::SYS_shutdown, libc::SYS_getsockname,
    libc::SYS_getpeername, libc::SYS_getsockopt, libc::SYS_setsockopt,
    // Takes away only.
    libc::SYS_seccomp, libc::SYS_landlock_create_ruleset, libc::SYS_landlock_add_rule,
    libc::SYS_landlock_restrict_self,
    // Answered by `NOT_THERE`.
    libc::SYS_memfd_create, libc::SYS_memfd_secret, libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter, libc::SYS_io_uring_register, libc::SYS_shmget,
];

/// The older calls that x86-64 alone still has.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
pub(crate) const ALLOWED_OLDER: &[c_long] = &[
    libc::SYS_open, libc::SYS_creat, libc::SYS_stat, libc::SYS_lstat, libc::SYS_access,
    libc::SYS_readlink, libc::SYS_mkdir, libc::SYS_rmdir, libc::SYS_unlink, libc::SYS_rename,
    libc::SYS_link, libc::SYS_symlink, libc::SYS_mknod, libc::SYS_chmod, libc::SYS_chown,
    libc::SYS_lchown, libc::SYS_utime, libc::SYS_utimes, libc::SYS_futimesat,
    libc::SYS_getdents, libc::SYS_dup2, libc::SYS_pipe, libc::SYS_poll, libc::SYS_select,
    libc::SYS_epoll_create, libc::SYS_epoll_wait, libc::SYS_eventfd, libc::SYS_signalfd,
    libc::SYS_inotify_init, libc::SYS_fork, libc::SYS_vfork, libc::SYS_getpgrp,
    libc::SYS_pause, libc::SYS_alarm, libc::SYS_time, libc::SYS_arch_prctl,
];

/// aarch64 never had them.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) const ALLOWED_OLDER: &[c_long] = &[];

/// What is not allowed without a mount namespace. Every file of the machine can
/// then be named, or opened where the system's directories may be read, and
/// Landlock has no hook for these: the owner of a file could change it from
/// inside although no rule gives it.
#[rustfmt::skip]
pub(crate) const REFUSED_ALONE: &[c_long] = &[
    // Modes and owners.
    libc::SYS_fchmod, libc::SYS_fchmodat, libc::SYS_fchmodat2, libc::SYS_fchown,
    libc::SYS_fchownat,
    // Attributes, lists of access rights among them.
    libc::SYS_setxattr, libc::SYS_lsetxattr, libc::SYS_fsetxattr, libc::SYS_removexattr,
    libc::SYS_lremovexattr, libc::SYS_fremovexattr,
    // Tells who uses a file; `fanotify` is allowed nowhere.
    libc::SYS_inotify_add_watch,
];

/// The older calls of that kind; `utimensat` has a condition.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
pub(crate) const REFUSED_ALONE_OLDER: &[c_long] = &[
    libc::SYS_chmod, libc::SYS_chown, libc::SYS_lchown, libc::SYS_utime, libc::SYS_utimes,
    libc::SYS_futimesat,
];

/// aarch64 never had them.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) const REFUSED_ALONE_OLDER: &[c_long] = &[];

/// A condition on one argument: its place, its width, how, with what.
pub(crate) type Condition = (u8, SeccompCmpArgLen, SeccompCmpOp, u64);

/// `CLONE_NEW*` of `linux/sched.h`; `CLONE_NEWTIME` shares its bit with the
/// signal at the end and means nothing to `clone`.
pub(crate) const NAMESPACE_FLAGS: u64 = 0x7e02_0000;
/// Requests of `ioctl` to terminals that are never allowed.
const TERMINAL_REQUESTS: &[u64] = &[
    0x5412, // TIOCSTI: types into a terminal.
    0x541c, // TIOCLINUX: the same and more, on a console.
    0x5423, // TIOCSETD: gives it a line discipline, which loads a module.
];
/// Requests that change a file through a descriptor that can only read it, as
/// `linux/fs.h` and its neighbours number them on 64-bit machines.
const FILE_REQUESTS: &[u64] = &[
    0x4008_6602, // FS_IOC_SETFLAGS
    0x4004_6602, // FS_IOC32_SETFLAGS
    0x4008_7602, // FS_IOC_SETVERSION
    0x4004_7602, // FS_IOC32_SETVERSION
    0x4008_6604, // EXT4_IOC_SETVERSION
    0x401c_5820, // FS_IOC_FSSETXATTR
    0x4080_6685, // FS_IOC_ENABLE_VERITY
    0x800c_6613, // FS_IOC_SET_ENCRYPTION_POLICY
];
const AF_UNIX: u64 = 1;
/// What of a socket's type is no flag.
const TYPE_MASK: u64 = 0xf;
const STREAM: u64 = 1;
const SEQUENCED: u64 = 5;

/// Options of `prctl` that change nothing but the process itself.
#[rustfmt::skip]
const PRCTL: &[i32] = &[
    libc::PR_SET_PDEATHSIG, libc::PR_GET_PDEATHSIG, libc::PR_GET_DUMPABLE,
    libc::PR_SET_DUMPABLE, libc::PR_GET_KEEPCAPS, libc::PR_SET_NAME, libc::PR_GET_NAME,
    libc::PR_GET_SECCOMP, libc::PR_SET_SECCOMP, libc::PR_CAPBSET_READ,
    libc::PR_GET_SECUREBITS, libc::PR_SET_TIMERSLACK, libc::PR_GET_TIMERSLACK,
    libc::PR_SET_CHILD_SUBREAPER, libc::PR_GET_CHILD_SUBREAPER, libc::PR_SET_NO_NEW_PRIVS,
    libc::PR_GET_NO_NEW_PRIVS, libc::PR_GET_TID_ADDRESS, libc::PR_SET_THP_DISABLE,
    libc::PR_GET_THP_DISABLE, libc::PR_SET_VMA, libc::PR_CAP_AMBIENT,
];

/// The second argument is none of these.
fn other_than(requests: &[&[u64]]) -> Vec<Condition> {
    requests.iter().flat_map(|some| some.iter()).map(|one| (1, Dword, Ne, *one)).collect()
}

/// Calls that are allowed under a condition only without namespaces; for these
/// it takes the place of what else is said of them.
pub(crate) fn conditional_alone() -> Vec<(c_long, Vec<Vec<Condition>>)> {
    vec![
        // An open file is given the time of now; no name and no other time.
        (libc::SYS_utimensat, vec![vec![(1, Qword, Eq, 0), (2, Qword, Eq, 0), (3, Dword, Eq, 0)]]),
        (libc::SYS_ioctl, vec![other_than(&[TERMINAL_REQUESTS, FILE_REQUESTS])]),
        // On which processors others run, the helper among them.
        (libc::SYS_sched_setaffinity, vec![vec![(0, Dword, Eq, 0)]]),
    ]
}

/// Calls that are allowed if one of the lists of conditions holds whole.
pub(crate) fn conditional() -> Vec<(c_long, Vec<Vec<Condition>>)> {
    let options = PRCTL.iter().map(|option| {
        let option = u64::try_from(*option).unwrap_or(u64::MAX);
        vec![(0, Dword, Eq, option)]
    });
    // `PER_LINUX` and the question what it is.
    let personalities = [0, 0xffff_ffff].map(|value| vec![(0, Dword, Eq, value)]);
    vec![
        (libc::SYS_clone, vec![vec![(0, Qword, MaskedEq(NAMESPACE_FLAGS), 0)]]),
        (libc::SYS_ioctl, vec![other_than(&[TERMINAL_REQUESTS])]),
        // A datagram socket of a pair could still send to any name.
        (
            libc::SYS_socketpair,
            [STREAM, SEQUENCED]
                .map(|kind| vec![(0, Dword, Eq, AF_UNIX), (1, Dword, MaskedEq(TYPE_MASK), kind)])
                .to_vec(),
        ),
        // Limits of others, the first process of the run among them, are not
        // its business.
        (libc::SYS_prlimit64, vec![vec![(0, Dword, Eq, 0)]]),
        (libc::SYS_setpriority, vec![vec![(0, Dword, Eq, 0), (1, Dword, Eq, 0)]]),
        (libc::SYS_sched_setscheduler, vec![vec![(0, Dword, Eq, 0)]]),
        (libc::SYS_sched_setparam, vec![vec![(0, Dword, Eq, 0)]]),
        (libc::SYS_prctl, options.collect()),
        (libc::SYS_personality, personalities.to_vec()),
    ]
}

/// Calls answered with `ENOSYS`, as by a kernel that does not have them.
#[rustfmt::skip]
pub(crate) const NOT_THERE: &[c_long] = &[
    // Its flags are behind a pointer, where no filter sees them; programs then
    // take `clone`.
    libc::SYS_clone3,
    // Memory outside of every limit, and programs that no file system holds.
    libc::SYS_memfd_create, libc::SYS_memfd_secret, libc::SYS_shmget,
    // Does what other calls do, around the filter.
    libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register,
];
