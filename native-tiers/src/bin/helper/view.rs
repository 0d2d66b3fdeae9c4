//! The file system that a command sees, in namespaces of its own.
//!
//! What: a new root in memory with the system's directories read-only, the
//! given directories where they are wanted, private directories for temporary
//! files, a few devices and a `/proc` of its own processes only.
//!
//! Invariant: every source is opened and cloned before anything is mounted over
//! it, a given directory is proven to be the one whose descriptor was given,
//! and nothing of the old root can be reached afterwards.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags,
    OpenTreeFlags, UnmountFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount,
    fsopen, mount_change, move_mount, open_tree, unmount,
};
use rustix::thread::UnshareFlags;

use crate::boundary::Refusal;
use crate::raw::{self, attributes};
use crate::supervise::Given;
use fumehood_policies::weaken;

/// Directories of the system that commands see, read-only.
pub(crate) const SYSTEM: &[&str] =
    &["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix/store"];

/// What of `/etc` commands see: what programs need to start and to name
/// things, nothing that is anyone's secret.
pub(crate) const SETTINGS: &[&str] = &[
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/debian_version",
    "/etc/fonts",
    "/etc/group",
    "/etc/host.conf",
    "/etc/hosts",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/locale.alias",
    "/etc/localtime",
    "/etc/magic",
    "/etc/mime.types",
    "/etc/nsswitch.conf",
    "/etc/os-release",
    "/etc/passwd",
    "/etc/perl",
    "/etc/pki/tls/certs",
    "/etc/protocols",
    "/etc/python3",
    "/etc/services",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/timezone",
];

/// Devices that hold nothing.
pub(crate) const DEVICES: &[&str] =
    &["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];

/// Private directories, all of one memory file system.
pub(crate) const SCRATCH: &[&str] = &["/tmp", "/dev/shm", "/home/agent", "/work"];

/// Files of `/proc` that tell or do more than a command's own processes: what
/// the container runtimes mask, and what a process of the machine's root user
/// could read or trigger although it has no capability.
const MASKED_FILES: &[&str] = &[
    "kallsyms",
    "kcore",
    "keys",
    "key-users",
    "kmsg",
    "kpagecgroup",
    "kpagecount",
    "kpageflags",
    "latency_stats",
    "sched_debug",
    "slabinfo",
    "sysrq-trigger",
    "timer_list",
    "vmallocinfo",
];
const MASKED_DIRECTORIES: &[&str] =
    &["acpi", "asound", "bus", "driver", "fs", "irq", "scsi", "tty"];

/// Where the new root is put before it becomes one.
const STAGE: &str = "/tmp";
/// Files and directories of the private directories.
const MAX_SCRATCH_FILES: u32 = 100_000;

/// What was built.
pub(crate) struct View {
    /// The `/proc` of the namespace; none where the kernel does not give one.
    pub(crate) proc: Option<OwnedFd>,
    /// How it is called among the controls.
    pub(crate) controls: Vec<&'static str>,
}

fn refuse(what: &str, error: impl Into<io::Error>) -> Refusal {
    let error = error.into();
    Refusal::one("private-mounts", format!("{what}: {error}"), "see `doctor` for this kernel")
}

/// Leaves the namespaces of users, processes, mounts, network, IPC, names and
/// control groups for new ones, and keeps its own number in them.
pub(crate) fn leave_namespaces() -> Result<(), Refusal> {
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    if user.is_root() {
        // Only the machine's root can; for others they name nothing more than
        // what the kernel gives them anyway.
        let _ = raw::drop_groups();
    }
    let flags = UnshareFlags::NEWUSER
        | UnshareFlags::NEWPID
        | UnshareFlags::NEWNS
        | UnshareFlags::NEWNET
        | UnshareFlags::NEWIPC
        | UnshareFlags::NEWUTS
        | UnshareFlags::NEWCGROUP;
    raw::unshare(flags).map_err(|error| no_namespace(&error))?;
    let write = |path: &str, text: String| {
        let file = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        rustix::io::write(&file, text.as_bytes()).map(|_| ())
    };
    let (user, group) = (user.as_raw(), group.as_raw());
    write("/proc/self/setgroups", "deny".to_owned())
        .and_then(|()| write("/proc/self/uid_map", format!("{user} {user} 1\n")))
        .and_then(|()| write("/proc/self/gid_map", format!("{group} {group} 1\n")))
        .map_err(|error| no_namespace(&error.into()))
}

/// Why there is no user namespace, with what the operator could do.
fn no_namespace(error: &io::Error) -> Refusal {
    let remedy = match error.raw_os_error() {
        Some(libc::ENOSPC) => "raise /proc/sys/user/max_user_namespaces",
        Some(libc::EPERM | libc::EACCES)
            if setting_is("apparmor_restrict_unprivileged_userns", b'1') =>
        {
            "AppArmor restricts user namespaces here: add a profile with `userns,` for the helper"
        }
        Some(libc::EPERM) if setting_is("unprivileged_userns_clone", b'0') => {
            "set /proc/sys/kernel/unprivileged_userns_clone to 1"
        }
        Some(libc::EPERM | libc::EACCES) => {
            "a container or a seccomp filter around this process forbids them: allow `unshare` there"
        }
        Some(libc::EINVAL | libc::ENOSYS) => "use a kernel with CONFIG_USER_NS",
        _ => "see the kernel's log",
    };
    Refusal::one("user-namespace", error.to_string(), remedy)
}

fn setting_is(name: &str, value: u8) -> bool {
    let path = format!("/proc/sys/kernel/{name}");
    let mut first = [0];
    rustix::fs::open(path.as_str(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .and_then(|file| rustix::io::read(&file, &mut first))
        .is_ok_and(|got| got == 1 && first == [value])
}

/// Something that is to be mounted.
struct Planned {
    at: PathBuf,
    mount: OwnedFd,
    directory: bool,
}

fn clone_tree(dir: impl AsFd, path: &Path, set: u64) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE
        | OpenTreeFlags::AT_EMPTY_PATH;
    let tree = open_tree(dir, path, flags)?;
    raw::set_mount_attributes(&tree, set, true)?;
    Ok(tree)
}

/// The system's directories: links as links, the rest as read-only mounts.
fn plan_system(planned: &mut Vec<Planned>, links: &mut Vec<(PathBuf, PathBuf)>) -> io::Result<()> {
    let set = attributes::READ_ONLY | attributes::NO_SET_ID | attributes::NO_DEVICES;
    for path in SYSTEM.iter().chain(SETTINGS) {
        let path = Path::new(path);
        let Ok(found) = rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        match FileType::from_raw_mode(found.st_mode) {
            FileType::Symlink => {
                let target = rustix::fs::readlink(path, Vec::new())?;
                let target = PathBuf::from(target.to_string_lossy().into_owned());
                links.push((path.to_owned(), target));
            }
            kind @ (FileType::Directory | FileType::RegularFile) => {
                let mount = clone_tree(CWD, path, set)?;
                let directory = kind == FileType::Directory;
                planned.push(Planned { at: path.to_owned(), mount, directory });
            }
            _ => {}
        }
    }
    let set = attributes::NO_SET_ID | attributes::NO_EXECUTE;
    for path in DEVICES.iter().map(Path::new) {
        let mount = clone_tree(CWD, path, set)?;
        planned.push(Planned { at: path.to_owned(), mount, directory: false });
    }
    Ok(())
}

/// The given directories. A descriptor belongs to the old namespace, where
/// nothing can be mounted from; its name is looked up here and must lead to the
/// very same directory.
fn plan_given(given: &Given, planned: &mut Vec<Planned>) -> io::Result<()> {
    let all = given.spec.mounts.iter().zip(&given.mounts).zip(&given.overlays);
    for ((mount, handle), overlay) in all {
        let opened = open_again(handle)?;
        let mut set = attributes::NO_SET_ID | attributes::NO_DEVICES;
        if !mount.writable {
            set |= attributes::READ_ONLY;
        }
        if !mount.execute {
            set |= attributes::NO_EXECUTE;
        }
        let tree = match overlay {
            Some(parts) => overlaid(&opened, parts, set)?,
            None => clone_tree(&opened, Path::new(""), set)?,
        };
        planned.push(Planned { at: PathBuf::from(&mount.at), mount: tree, directory: true });
    }
    Ok(())
}

/// An overlay that is not mounted anywhere yet, over a directory.
fn overlaid(lower: &OwnedFd, parts: &[OwnedFd; 3], set: u64) -> io::Result<OwnedFd> {
    use std::os::fd::AsRawFd as _;
    let [upper, work, mask] = parts;
    let (upper, work, mask) = (open_again(upper)?, open_again(work)?, open_again(mask)?);
    let name = |open: &OwnedFd| format!("/proc/self/fd/{}", open.as_raw_fd());
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    // The mask lies over the directory and hides names of it.
    let lower = format!("{}:{}", name(&mask), name(lower));
    fsconfig_set_string(context.as_fd(), "lowerdir", lower)?;
    fsconfig_set_string(context.as_fd(), "upperdir", name(&upper))?;
    fsconfig_set_string(context.as_fd(), "workdir", name(&work))?;
    // Marks as the live overlay has them, which need no capability.
    fsconfig_set_flag(context.as_fd(), "userxattr")?;
    fsconfig_create(context.as_fd())?;
    let mount = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    raw::set_mount_attributes(&mount, set, false)?;
    Ok(mount)
}

fn open_again(handle: &OwnedFd) -> io::Result<OwnedFd> {
    use std::os::fd::AsRawFd as _;
    use std::os::unix::ffi::OsStrExt as _;
    let link = format!("/proc/self/fd/{}", handle.as_raw_fd());
    let name = rustix::fs::readlink(link.as_str(), Vec::new())?;
    let path = Path::new(std::ffi::OsStr::from_bytes(name.as_bytes()));
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::open(path, flags, Mode::empty())?;
    let (wanted, found) = (rustix::fs::fstat(handle)?, rustix::fs::fstat(&opened)?);
    if (wanted.st_dev, wanted.st_ino) != (found.st_dev, found.st_ino) {
        return Err(io::Error::other("a directory was moved or replaced"));
    }
    Ok(opened)
}

/// A memory file system that is not mounted anywhere yet.
fn memory(bytes: u64, files: u32, mode: &str, attributes: MountAttrFlags) -> io::Result<OwnedFd> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(context.as_fd(), "size", bytes.to_string())?;
    fsconfig_set_string(context.as_fd(), "nr_inodes", files.to_string())?;
    fsconfig_set_string(context.as_fd(), "mode", mode)?;
    fsconfig_create(context.as_fd())?;
    Ok(fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

fn attach(mount: &OwnedFd, root: &OwnedFd, at: &Path, directory: bool) -> io::Result<()> {
    let target = make_target(root, at, directory)?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(move_mount(mount, "", &target, "", flags)?)
}

/// Makes what is to be mounted over, and opens it; never through a link.
fn make_target(root: &OwnedFd, at: &Path, directory: bool) -> io::Result<OwnedFd> {
    let relative = at.strip_prefix("/").map_err(io::Error::other)?;
    let mut so_far = PathBuf::new();
    let names: Vec<_> = relative.iter().collect();
    for (index, name) in names.iter().enumerate() {
        so_far.push(name);
        let last = index.saturating_add(1) == names.len();
        let made = if last && !directory {
            let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            match openat(root, &so_far, flags, Mode::from_raw_mode(0o444)) {
                Err(rustix::io::Errno::ROFS | rustix::io::Errno::ACCESS) => Ok(()),
                other => other.map(drop),
            }
        } else {
            rustix::fs::mkdirat(root, &so_far, Mode::from_raw_mode(0o755))
        };
        match made {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::BENEATH;
    Ok(openat2(root, relative, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)?)
}

/// The private directories: parts of one memory file system, so that one number
/// bounds them together. A directory that was given takes a place away.
fn attach_scratch(given: &Given, root: &OwnedFd) -> io::Result<()> {
    let mut quiet = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    if weaken::off(weaken::Defence::Noexec) {
        quiet.remove(MountAttrFlags::MOUNT_ATTR_NOEXEC);
    }
    let scratch = memory(given.spec.limits.scratch_bytes, MAX_SCRATCH_FILES, "0700", quiet)?;
    let hidden = Path::new("/.scratch");
    attach(&scratch, root, hidden, true)?;
    for (number, at) in SCRATCH.iter().enumerate() {
        if given.spec.mounts.iter().any(|mount| Path::new(&mount.at) == Path::new(at)) {
            continue;
        }
        let name = number.to_string();
        let mode = if *at == "/tmp" || *at == "/dev/shm" { 0o1777 } else { 0o755 };
        rustix::fs::mkdirat(&scratch, name.as_str(), Mode::from_raw_mode(mode))?;
        rustix::fs::chmodat(&scratch, name.as_str(), Mode::from_raw_mode(mode), AtFlags::empty())?;
        let part = clone_tree(&scratch, Path::new(&name), 0)?;
        attach(&part, root, Path::new(at), true)?;
    }
    unmount(Path::new(STAGE).join(".scratch"), UnmountFlags::DETACH)?;
    rustix::fs::unlinkat(root, ".scratch", AtFlags::REMOVEDIR)?;
    Ok(())
}

/// A `/proc` of this process namespace. A container that masks parts of its own
/// is given none by the kernel.
fn attach_proc(given: &Given, root: &OwnedFd, null: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let context = fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(context.as_fd())?;
    let proc = match fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes) {
        Ok(proc) => proc,
        Err(rustix::io::Errno::PERM) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    bound_processes(given, &proc);
    raw::set_mount_attributes(&proc, attributes::READ_ONLY, false)?;
    attach(&proc, root, Path::new("/proc"), true)?;
    let empty = memory(0, 1, "0555", attributes | MountAttrFlags::MOUNT_ATTR_RDONLY)?;
    let quiet = attributes::READ_ONLY | attributes::NO_SET_ID | attributes::NO_EXECUTE;
    let mask = |name: &str, source: &OwnedFd| {
        let at = Path::new("proc").join(name);
        let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH;
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let Ok(target) = openat2(root, &at, flags, Mode::empty(), resolve) else { return Ok(()) };
        let cover = clone_tree(source, Path::new(""), quiet)?;
        let flags =
            MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        Ok::<_, io::Error>(move_mount(&cover, "", &target, "", flags)?)
    };
    for name in MASKED_FILES {
        mask(name, null)?;
    }
    // Only what is mounted can be cloned.
    attach(&empty, root, Path::new("/.empty"), true)?;
    for name in MASKED_DIRECTORIES {
        mask(name, &empty)?;
    }
    unmount(Path::new(STAGE).join(".empty"), UnmountFlags::DETACH)?;
    rustix::fs::unlinkat(root, ".empty", AtFlags::REMOVEDIR)?;
    Ok(Some(proc))
}

/// The first kernel on which a process namespace has a largest number of its
/// own; before, the setting is that of the whole machine.
const OWN_LARGEST_NUMBER: (u32, u32) = (6, 14);

/// `RLIMIT_NPROC` does not bind the machine's root user, but the largest number
/// of the namespace does, of which the kernel keeps the first 300 to itself.
/// Where it has none of its own the watch alone bounds them.
fn bound_processes(given: &Given, proc: &OwnedFd) {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let kernel = rustix::system::uname();
    if kernel_version(&kernel.release().to_string_lossy()).is_none_or(|v| v < OWN_LARGEST_NUMBER) {
        return;
    }
    let most = given.spec.limits.processes.saturating_add(300);
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    if let Ok(file) = openat(proc, "sys/kernel/pid_max", flags, Mode::empty()) {
        let _ = rustix::io::write(&file, most.to_string().as_bytes());
    }
}

/// The first two numbers of a kernel's release, such as `6.14.0-rc3`.
fn kernel_version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.splitn(3, '.');
    let first = parts.next()?.parse().ok()?;
    let second = parts.next()?;
    let digits = second.find(|c: char| !c.is_ascii_digit()).unwrap_or(second.len());
    Some((first, second.get(..digits)?.parse().ok()?))
}

/// Builds it and makes it the root of this process.
pub(crate) fn build(given: &Given) -> Result<View, Refusal> {
    let change = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", change).map_err(|error| refuse("making mounts private", error))?;
    let (mut planned, mut links) = (Vec::new(), Vec::new());
    plan_system(&mut planned, &mut links).map_err(|error| refuse("the system", error))?;
    plan_given(given, &mut planned).map_err(|error| refuse("a directory", error))?;
    planned.sort_by_key(|one| one.at.components().count());
    let root = new_root().map_err(|error| refuse("a new root", error))?;
    let fill = || -> io::Result<Option<OwnedFd>> {
        attach_scratch(given, &root)?;
        for (at, target) in &links {
            let parent = at.parent().unwrap_or(Path::new("/"));
            if parent != Path::new("/") {
                make_target(&root, parent, true)?;
            }
            rustix::fs::symlinkat(target, &root, at.strip_prefix("/").unwrap_or(at))?;
        }
        for Planned { at, mount, directory } in &planned {
            attach(mount, &root, at, *directory)?;
        }
        for (name, target) in [
            ("fd", "/proc/self/fd"),
            ("stdin", "/proc/self/fd/0"),
            ("stdout", "/proc/self/fd/1"),
            ("stderr", "/proc/self/fd/2"),
        ] {
            rustix::fs::symlinkat(target, &root, Path::new("dev").join(name))?;
        }
        let null = planned.iter().find(|one| one.at == Path::new("/dev/null"));
        let null = null.ok_or_else(|| io::Error::other("there is no /dev/null"))?;
        let proc = attach_proc(given, &root, &null.mount)?;
        raw::set_mount_attributes(&root, attributes::READ_ONLY, false)?;
        Ok(proc)
    };
    let proc = fill().map_err(|error| refuse("mounting", error))?;
    enter(&root).map_err(|error| refuse("the new root", error))?;
    // A name that says nothing of the machine; the namespace is this run's own.
    let _ = rustix::system::sethostname(b"fumehood");
    let mut controls = vec![
        "ipc-namespace",
        "mount-namespace",
        "network-namespace",
        "pid-namespace",
        "private-directories",
        "user-namespace",
    ];
    controls.push(if proc.is_some() { "limited-proc" } else { "no-proc" });
    Ok(View { proc, controls })
}

fn new_root() -> io::Result<OwnedFd> {
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    // Nothing but names of directories is in it.
    let root = memory(1 << 20, 1024, "0755", attributes)?;
    move_mount(&root, "", CWD, STAGE, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    Ok(root)
}

/// Makes a mount the root, and lets go of the old one: it is put on the same
/// place and taken off from there, as pivot_root(2) describes.
fn enter(root: &OwnedFd) -> io::Result<()> {
    rustix::process::fchdir(root)?;
    rustix::process::pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    Ok(rustix::process::chdir("/")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_kernel_that_bounds_a_namespace_alone_is_told_to() {
        let own = |release| kernel_version(release).is_some_and(|v| v >= OWN_LARGEST_NUMBER);
        for release in ["6.14.0", "6.14-rc1", "6.14", "6.100.2-generic", "7.0.1", "10.0"] {
            assert!(own(release), "{release}");
        }
        for release in ["6.13.9", "6.9.0", "6.1.140-lts", "5.15.0-91-generic", "4.4.0", "6", ""] {
            assert!(!own(release), "{release}");
        }
        for release in ["x", "6.x", "6.", ".14", "-6.14", "99999999999.1"] {
            assert_eq!(kernel_version(release), None, "{release}");
        }
    }
}
