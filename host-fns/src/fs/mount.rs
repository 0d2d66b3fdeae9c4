//! Opening the root of a host directory mount.
//!
//! Why: this is the one place where a host path is turned into a handle, at
//! start, by the operator; a guest cannot reach it.
//!
//! Invariant: directories that would hand over the machine (`/`, the home
//! directory itself, kernel file systems, directories with daemon sockets) are
//! refused unless the caller forces exactly this mount.

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cap_std::ambient_authority;
use cap_std::fs::{Dir, MetadataExt as _};
use fumehood_policies::{Access, GuestPath};

use crate::fs::overlay::Layer;
use fumehood_policies::weaken;

/// A host directory that is to be mounted.
#[derive(Debug)]
pub struct HostMount {
    /// Where the guest sees it.
    pub at: GuestPath,
    /// The directory, opened.
    pub dir: Dir,
    /// How it may be used.
    pub access: Access,
    /// The changes over it, if it is the project of a workspace.
    pub(crate) overlay: Option<Arc<Layer>>,
    /// The one file of it that is mounted, if it is not the directory.
    pub(crate) file: Option<OsString>,
}

/// Why a host directory cannot be mounted. Shown to the operator, never to the
/// guest.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The guest path is not an absolute path below `/`.
    #[error(
        "`{at}` is no mount point: give an absolute guest path other than `/`, such as `/work/data`"
    )]
    MountPoint {
        /// As given, escaped.
        at: String,
    },
    /// There is no such directory.
    #[error("the directory {host:?} does not exist: make it or name another")]
    Missing {
        /// As given.
        host: PathBuf,
    },
    /// It is something else.
    #[error("{host:?} is not a directory: mount the directory that holds it")]
    NotADirectory {
        /// As given.
        host: PathBuf,
    },
    /// It is something else.
    #[error("{host:?} is not a regular file: name a file or a directory")]
    NotAFile {
        /// As given.
        host: PathBuf,
    },
    /// It would hand over too much.
    #[error(
        "{host:?} is {what} and is not mounted unless forced: mount a directory inside it instead"
    )]
    Forbidden {
        /// As given.
        host: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// This user may not open it.
    #[error("the directory {host:?} cannot be opened: check its permissions")]
    Unreadable {
        /// As given.
        host: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

impl MountError {
    /// A stable identifier.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::MountPoint { .. } => "mount_point",
            Self::Missing { .. } => "mount_missing",
            Self::NotADirectory { .. } => "mount_not_a_directory",
            Self::NotAFile { .. } => "mount_not_a_file",
            Self::Forbidden { .. } => "mount_forbidden",
            Self::Unreadable { .. } => "mount_unreadable",
        }
    }
}

impl HostMount {
    /// A directory that is open already.
    #[must_use]
    pub(crate) fn of(at: GuestPath, dir: Dir, access: Access) -> Self {
        Self { at, dir, access, overlay: None, file: None }
    }

    /// Another handle of the same mount, its changes shared.
    ///
    /// # Errors
    /// If the process has no descriptor left.
    pub fn try_clone(&self) -> std::io::Result<Self> {
        let dir = self.dir.try_clone()?;
        let (at, overlay) = (self.at.clone(), self.overlay.clone());
        Ok(Self { at, dir, access: self.access, overlay, file: self.file.clone() })
    }

    /// With no more than this right.
    #[must_use]
    pub fn limited_to(self, access: Access) -> Self {
        Self { access: self.access.min(access), ..self }
    }

    /// Whether what `file` names, or that name itself, lies in the directory.
    /// Directories are compared, not their names.
    ///
    /// # Errors
    /// The system's reason; so also for a file that is not there.
    pub fn holds(&self, file: &Path) -> std::io::Result<bool> {
        lies_in(file, &self.dir)
    }

    /// Opens the directory `host` to be mounted at the guest path `at`.
    ///
    /// The handle stays with the directory that was opened, also if its name
    /// is given to another one later. `force` mounts a directory that is
    /// otherwise refused.
    ///
    /// # Errors
    /// [`MountError`], one sentence each.
    pub fn open(at: &str, host: &Path, access: Access, force: bool) -> Result<Self, MountError> {
        Self::open_at(Self::point(at)?, host, access, force)
    }

    /// The same for a guest path that is already known to be one.
    ///
    /// # Errors
    /// [`MountError`], one sentence each.
    pub fn open_at(
        at: GuestPath,
        host: &Path,
        access: Access,
        force: bool,
    ) -> Result<Self, MountError> {
        if at.is_root() {
            return Err(MountError::MountPoint { at: at.to_string() });
        }
        let dir = Dir::open_ambient_dir(host, ambient_authority())
            .map_err(|error| cannot_open(host, error))?;
        if !force && let Some(what) = forbidden(host, &dir) {
            return Err(MountError::Forbidden { host: host.to_owned(), what });
        }
        // Opening by handle needs no right to list; say so now, not later.
        if let Err(source) = dir.entries() {
            return Err(MountError::Unreadable { host: host.to_owned(), source });
        }
        Ok(Self::of(at, dir, access))
    }

    /// Opens the regular file `host` to be seen, read only, at the guest path
    /// `at`. All links are followed now; of its directory nothing else can be
    /// reached.
    ///
    /// # Errors
    /// [`MountError`], one sentence each.
    pub fn open_file_at(at: GuestPath, host: &Path) -> Result<Self, MountError> {
        if at.is_root() {
            return Err(MountError::MountPoint { at: at.to_string() });
        }
        let fail = |error| cannot_open(host, error);
        let real = resolved(host).map_err(fail)?;
        let not_a_file = || MountError::NotAFile { host: host.to_owned() };
        let (Some(parent), Some(name)) = (real.parent(), real.file_name()) else {
            return Err(not_a_file());
        };
        let dir = Dir::open_ambient_dir(parent, ambient_authority()).map_err(fail)?;
        if is_kernel_view(&dir) {
            let what = "in a file system of the kernel";
            return Err(MountError::Forbidden { host: host.to_owned(), what });
        }
        if !dir.symlink_metadata(name).map_err(fail)?.is_file() {
            return Err(not_a_file());
        }
        dir.open(name).map_err(fail)?;
        let file = Some(name.to_owned());
        Ok(Self { file, ..Self::of(at, dir, Access::ReadOnly) })
    }

    /// The guest path of a mount, from text.
    ///
    /// # Errors
    /// [`MountError::MountPoint`] if it is not absolute or the root.
    pub fn point(at: &str) -> Result<GuestPath, MountError> {
        match GuestPath::parse(&GuestPath::root(), at.as_bytes()) {
            Ok(found) if at.starts_with('/') && !found.path.is_root() => Ok(found.path),
            _ => {
                let mut shown = String::new();
                // Writing to a string cannot fail.
                let _ = fumehood_policies::escape(at.as_bytes(), &mut shown);
                Err(MountError::MountPoint { at: shown })
            }
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "the adapter for mounts")]
fn resolved(host: &Path) -> std::io::Result<PathBuf> {
    std::fs::canonicalize(host)
}

fn cannot_open(host: &Path, error: std::io::Error) -> MountError {
    let host = host.to_owned();
    match error.kind() {
        std::io::ErrorKind::NotFound => MountError::Missing { host },
        std::io::ErrorKind::NotADirectory => MountError::NotADirectory { host },
        _ => MountError::Unreadable { host, source: error },
    }
}

/// Compares what was opened, not how it is spelled.
pub(crate) fn forbidden(host: &Path, dir: &Dir) -> Option<&'static str> {
    if weaken::off(weaken::Defence::ForbiddenMounts) {
        return None;
    }
    if is_kernel_view(dir) {
        return Some("a file system of the kernel");
    }
    let list: [(OsString, &'static str); 8] = [
        ("/".into(), "the root of this machine"),
        (home(), "your home directory"),
        ("/proc".into(), "a file system of the kernel"),
        ("/sys".into(), "a file system of the kernel"),
        ("/dev".into(), "the directory of devices"),
        ("/run".into(), "a directory with sockets of daemons"),
        ("/var/run".into(), "a directory with sockets of daemons"),
        ("/run/docker".into(), "a directory with sockets of daemons"),
    ];
    let same = |path: &OsString| {
        let other =
            Dir::open_ambient_dir(path, ambient_authority()).and_then(|other| other.dir_metadata());
        match (dir.dir_metadata(), other) {
            (Ok(left), Ok(right)) => left.dev() == right.dev() && left.ino() == right.ino(),
            _ => Path::new(path) == host,
        }
    };
    if let Some((_, what)) = list.iter().find(|(path, _)| !path.is_empty() && same(path)) {
        return Some(what);
    }
    let socket = |name: &str| {
        use cap_fs_ext::FileTypeExt as _;
        dir.symlink_metadata(name).is_ok_and(|metadata| metadata.file_type().is_socket())
    };
    ["docker.sock", "containerd.sock", "podman.sock"]
        .iter()
        .any(|name| socket(name))
        .then_some("a directory with sockets of daemons")
}

/// Whether what `file` names, or that name itself, lies in a directory. See
/// [`HostMount::holds`].
///
/// # Errors
/// The system's reason.
pub fn lies_in(file: &Path, directory: impl AsFd) -> std::io::Result<bool> {
    let directory = rustix::fs::fstat(directory)?;
    let named = match file.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        Some(parent) => parent.canonicalize()?,
        None => Path::new(".").canonicalize()?,
    };
    let real = file.canonicalize()?;
    for above in named.ancestors().chain(real.ancestors().skip(1)) {
        let found = rustix::fs::stat(above)?;
        if (found.st_dev, found.st_ino) == (directory.st_dev, directory.st_ino) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[allow(
    clippy::disallowed_methods,
    reason = "the adapter for mounts; the operator's own home directory"
)]
pub(crate) fn home() -> OsString {
    std::env::var_os("HOME").unwrap_or_default()
}

/// Whether a handle is in procfs, sysfs or a similar view of the kernel.
#[cfg(target_os = "linux")]
pub(crate) fn is_kernel_view(handle: &impl AsFd) -> bool {
    const VIEWS: [i64; 9] = [
        0x9fa0,      // proc
        0x6265_6572, // sysfs
        0x6462_6720, // debugfs
        0x7472_6163, // tracefs
        0x7363_6673, // securityfs
        0x0027_e0eb, // cgroup
        0x6367_7270, // cgroup2
        0xcafe_4a11, // bpf
        0x1cd1,      // devpts
    ];
    #[allow(clippy::useless_conversion, reason = "narrower on some architectures")]
    match rustix::fs::fstatfs(handle) {
        Ok(found) => VIEWS.iter().any(|view| *view == i64::from(found.f_type)),
        Err(_) => true,
    }
}

/// Only Linux has such file systems.
#[cfg(not(target_os = "linux"))]
pub(crate) fn is_kernel_view(_handle: &impl AsFd) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(at: &str, host: &str, force: bool) -> Option<&'static str> {
        HostMount::open(at, Path::new(host), Access::ReadOnly, force)
            .err()
            .map(|error| error.code())
    }

    #[test]
    fn refusals_are_named() {
        assert_eq!(code("/m", "/nowhere/at/all", false), Some("mount_missing"));
        assert_eq!(code("/m", "/etc/passwd", false), Some("mount_not_a_directory"));
        for host in ["/", "/etc/..", "/proc", "/sys", "/proc/self", "/dev", "/var/run", "/run"] {
            assert_eq!(code("/m", host, false), Some("mount_forbidden"), "{host}");
        }
        assert_eq!(code("/", "/tmp", false), Some("mount_point"));
        assert_eq!(code("m", "/tmp", false), Some("mount_point"));
        assert_eq!(code("/m", "/", true), None);
        assert_eq!(code("/m", "/etc", false), None);
    }
}
