//! Attempts to get out, made from inside.
//!
//! What: each is one real open or system call in a process of its own, since a
//! filter may end it. Whether it was prevented is told by how the kernel
//! answers: `EPERM`, `EACCES`, `ENOSYS`, a name that is not there, or the end of
//! the process. Any other answer means that the kernel looked at the arguments.
//!
//! Why: `doctor` shows what really is so on this machine, and tests compare it
//! with the same attempts outside of a boundary.

use std::io::{self, Write as _};
use std::sync::OnceLock;

use fumehood_host_fns::Guarantee;
use fumehood_native_tiers::protocol::Attempt;
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, WaitOptions};

use crate::raw::{self, Fork};

use Guarantee::{Files, Network, PidView, ProcessTree, SystemCalls};

type Try = fn() -> io::Result<()>;

/// A system call with numbers only.
macro_rules! call {
    ($name:ident $(, $argument:expr)*) => {{
        fn call() -> io::Result<()> {
            let given: &[libc::c_long] = &[$($argument),*];
            let mut arguments = [0; 4];
            for (slot, argument) in arguments.iter_mut().zip(given) {
                *slot = *argument;
            }
            raw::attempt(libc::$name, arguments)
        }
        call as Try
    }};
}

macro_rules! open {
    ($path:expr) => {
        open!($path, OFlags::RDONLY)
    };
    ($path:expr, $flags:expr) => {{
        fn open() -> io::Result<()> {
            let flags = OFlags::CLOEXEC | $flags;
            Ok(rustix::fs::open($path, flags, Mode::empty()).map(drop)?)
        }
        open as Try
    }};
}

/// That it is there may be seen without namespaces; that it is used may not.
fn docker_socket() -> io::Result<()> {
    std::os::unix::net::UnixStream::connect("/run/docker.sock").map(drop)
}

/// What no descriptor is.
const NONE: libc::c_long = -1;
/// `CLONE_NEWUSER` and the signal at the end.
const NEW_USER: libc::c_long = 0x1000_0000 | 17;

const ATTEMPTS: &[(&str, Guarantee, Try)] = &[
    ("read /etc/shadow", Files, open!("/etc/shadow")),
    ("list /root", Files, open!("/root", OFlags::DIRECTORY)),
    ("list /var", Files, open!("/var", OFlags::DIRECTORY)),
    ("list /sys", Files, open!("/sys", OFlags::DIRECTORY)),
    ("write /usr/bin/env", Files, open!("/usr/bin/env", OFlags::WRONLY)),
    ("write /etc/passwd", Files, open!("/etc/passwd", OFlags::WRONLY)),
    ("read /proc/kcore", Files, open!("/proc/1/root/proc/kcore")),
    ("read /dev/kmsg", Files, open!("/dev/kmsg")),
    ("read /dev/mem", Files, open!("/dev/mem")),
    ("open /dev/kvm", Files, open!("/dev/kvm", OFlags::RDWR)),
    ("open /dev/tty", Files, open!("/dev/tty", OFlags::RDWR)),
    ("write /proc/sysrq-trigger", Files, open!("/proc/sys/kernel/sysrq", OFlags::WRONLY)),
    ("read /proc/1/environ", PidView, open!("/proc/1/environ")),
    ("write /proc/1/mem", PidView, open!("/proc/1/mem", OFlags::RDWR)),
    ("io_uring_setup", SystemCalls, call!(SYS_io_uring_setup, 1, 0)),
    ("io_uring_enter", SystemCalls, call!(SYS_io_uring_enter, NONE, 0, 0, 0)),
    ("io_uring_register", SystemCalls, call!(SYS_io_uring_register, NONE, 0, 0, 0)),
    ("ptrace", SystemCalls, call!(SYS_ptrace, 16, 1, 0, 0)),
    ("process_vm_readv", SystemCalls, call!(SYS_process_vm_readv, 1, 0, 0, 0)),
    ("process_vm_writev", SystemCalls, call!(SYS_process_vm_writev, 1, 0, 0, 0)),
    ("pidfd_getfd", SystemCalls, call!(SYS_pidfd_getfd, NONE, 0, 0)),
    ("kcmp", SystemCalls, call!(SYS_kcmp, 1, 1, 99, 0)),
    ("bpf", SystemCalls, call!(SYS_bpf, 9999, 0, 0)),
    ("perf_event_open", SystemCalls, call!(SYS_perf_event_open, 0, 0, NONE, NONE)),
    ("userfaultfd", SystemCalls, call!(SYS_userfaultfd, 0x4000)),
    ("keyctl", SystemCalls, call!(SYS_keyctl, 9999)),
    ("add_key", SystemCalls, call!(SYS_add_key, 0, 0, 0, 0)),
    ("request_key", SystemCalls, call!(SYS_request_key, 0, 0, 0, 0)),
    ("memfd_create", SystemCalls, call!(SYS_memfd_create, 0, 0)),
    ("mount", SystemCalls, call!(SYS_mount, 0, 0, 0, 0)),
    ("umount2", SystemCalls, call!(SYS_umount2, 0, 0)),
    ("pivot_root", SystemCalls, call!(SYS_pivot_root, 0, 0)),
    ("chroot", SystemCalls, call!(SYS_chroot, 0)),
    ("fsopen", SystemCalls, call!(SYS_fsopen, 0, 0)),
    ("fsmount", SystemCalls, call!(SYS_fsmount, NONE, 0, 0)),
    ("fspick", SystemCalls, call!(SYS_fspick, NONE, 0, 0)),
    ("open_tree", SystemCalls, call!(SYS_open_tree, NONE, 0, 0)),
    ("move_mount", SystemCalls, call!(SYS_move_mount, NONE, 0, NONE, 0)),
    ("mount_setattr", SystemCalls, call!(SYS_mount_setattr, NONE, 0, 0, 0)),
    ("unshare user", SystemCalls, call!(SYS_unshare, 0x1000_0000)),
    ("setns", SystemCalls, call!(SYS_setns, NONE, 0)),
    ("clone user", SystemCalls, call!(SYS_clone, NEW_USER, 0, 0, 0)),
    ("clone3", SystemCalls, call!(SYS_clone3, 0, 0)),
    ("open_by_handle_at", SystemCalls, call!(SYS_open_by_handle_at, NONE, 0, 0)),
    ("name_to_handle_at", SystemCalls, call!(SYS_name_to_handle_at, NONE, 0, 0, 0)),
    ("init_module", SystemCalls, call!(SYS_init_module, 0, 0, 0)),
    ("finit_module", SystemCalls, call!(SYS_finit_module, NONE, 0, 0)),
    ("kexec_load", SystemCalls, call!(SYS_kexec_load, 0, 99, 0, 0)),
    ("reboot", SystemCalls, call!(SYS_reboot, 0, 0, 0)),
    ("swapon", SystemCalls, call!(SYS_swapon, 0, 0)),
    ("syslog", SystemCalls, call!(SYS_syslog, 9999, 0, 0)),
    ("acct", SystemCalls, call!(SYS_acct, 1)),
    ("sethostname", SystemCalls, call!(SYS_sethostname, 0, NONE)),
    ("settimeofday", SystemCalls, call!(SYS_settimeofday, 0, 1)),
    ("personality", SystemCalls, call!(SYS_personality, 0x0004_0000)),
    ("shmget", SystemCalls, call!(SYS_shmget, 0, 0, 0)),
    ("msgget", SystemCalls, call!(SYS_msgget, 0, 0)),
    ("mq_open", SystemCalls, call!(SYS_mq_open, 0, 0, 0, 0)),
    ("ioctl TIOCSTI", SystemCalls, call!(SYS_ioctl, 1, 0x5412, 0)),
    ("ioctl TIOCLINUX", SystemCalls, call!(SYS_ioctl, 1, 0x541c, 0)),
    ("ioctl TIOCSTI, high bits set", SystemCalls, call!(SYS_ioctl, 1, 0x1_0000_5412, 0)),
    ("x32 getpid", SystemCalls, x32_getpid),
    ("int 0x80 getpid", SystemCalls, foreign_getpid),
    ("socket AF_INET", Network, call!(SYS_socket, 2, 1, 0)),
    ("socket AF_INET6", Network, call!(SYS_socket, 10, 1, 0)),
    ("socket AF_UNIX", Network, call!(SYS_socket, 1, 1, 0)),
    ("socket AF_NETLINK", Network, call!(SYS_socket, 16, 3, 0)),
    ("socket AF_PACKET", Network, call!(SYS_socket, 17, 3, 0)),
    ("socket AF_ALG", Network, call!(SYS_socket, 38, 5, 0)),
    ("socket AF_VSOCK", Network, call!(SYS_socket, 40, 1, 0)),
    ("connect to the docker socket", Network, docker_socket),
    ("socketpair of datagrams", Network, call!(SYS_socketpair, 1, 2, 0, 0)),
    ("connect", Network, call!(SYS_connect, NONE, 0, 0)),
    ("bind", Network, call!(SYS_bind, NONE, 0, 0)),
    ("prlimit of the first process", ProcessTree, call!(SYS_prlimit64, 1, 7, 0, 0)),
    ("signal the helper itself", ProcessTree, signal_helper),
];

fn x32_getpid() -> io::Result<()> {
    if cfg!(target_arch = "x86_64") {
        raw::attempt(0x4000_0000 | libc::SYS_getpid, [0; 4])
    } else {
        Err(io::ErrorKind::Unsupported.into())
    }
}

fn foreign_getpid() -> io::Result<()> {
    match raw::foreign_getpid() {
        Some(answer) if answer > 0 => Ok(()),
        _ => Err(io::Error::from_raw_os_error(libc::ENOSYS)),
    }
}

/// The parent of the process that makes the attempts.
static HELPER: OnceLock<Pid> = OnceLock::new();

fn signal_helper() -> io::Result<()> {
    let helper = HELPER.get().ok_or(io::ErrorKind::NotFound)?;
    Ok(rustix::process::test_kill_process(*helper)?)
}

/// Whether an answer means that it was not even looked at.
fn prevents(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(
            libc::EPERM
                | libc::EACCES
                | libc::ENOSYS
                | libc::ENOENT
                | libc::ESRCH
                | libc::EROFS
                | libc::ENXIO
        )
    )
}

/// What a child says to its parent.
const PREVENTED: i32 = 1;
const SUCCEEDED: i32 = 2;
const LOOKED_AT: i32 = 3;

/// Makes every attempt and prints how it ended. Gives the exit code.
pub(crate) fn run() -> i32 {
    if let Some(helper) = rustix::process::getppid() {
        HELPER.get_or_init(|| helper);
    }
    for (name, guarantee, attempt) in ATTEMPTS {
        let (prevented, detail) = match one(*attempt) {
            Ok(told) => told,
            Err(error) => (false, format!("it could not be tried: {error}")),
        };
        let (name, guarantee) = ((*name).to_owned(), *guarantee);
        let line = serde_json::to_string(&Attempt { name, guarantee, prevented, detail });
        let line = line.unwrap_or_default();
        if writeln!(io::stdout(), "{line}").is_err() {
            return 1;
        }
    }
    0
}

fn one(attempt: Try) -> io::Result<(bool, String)> {
    let (ours, theirs) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let child = match raw::fork()? {
        Fork::Child => {
            let (code, text) = match attempt() {
                Ok(()) => (SUCCEEDED, "it succeeded".to_owned()),
                Err(error) if prevents(&error) => (PREVENTED, error.to_string()),
                Err(error) => (LOOKED_AT, error.to_string()),
            };
            let _ = rustix::io::write(&theirs, text.as_bytes());
            crate::supervise::leave(code)
        }
        Fork::Parent(child) => child,
    };
    drop(theirs);
    let mut text = [0; 200];
    let got = rustix::io::read(&ours, &mut text).unwrap_or(0);
    let text = String::from_utf8_lossy(text.get(..got).unwrap_or_default()).into_owned();
    let ended = loop {
        match rustix::process::waitpid(Some(child), WaitOptions::empty()) {
            Err(rustix::io::Errno::INTR) => {}
            other => break other?,
        }
    };
    let status = ended.map(|(_, status)| status);
    Ok(match status.and_then(|status| status.terminating_signal()) {
        Some(signal) if signal == libc::SIGSYS => (true, "it was ended by SIGSYS".to_owned()),
        Some(signal) => (false, format!("it was ended by signal {signal}")),
        None => (status.and_then(|status| status.exit_status()) == Some(PREVENTED), text),
    })
}
