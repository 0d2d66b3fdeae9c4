//! The file `fumehood-helper`.
//!
//! Invariant: it is opened once, without following a link, and judged by its
//! descriptor; every run starts what that descriptor holds. Who replaces the
//! file by its name later has no effect, and who writes into it is noticed.

use fumehood_policies::weaken;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use fumehood_host_fns::Missing;
use rustix::fs::{FileType, Mode, OFlags, Stat};

/// The name of the file.
pub const HELPER_NAME: &str = "fumehood-helper";

/// Where packages put it.
const INSTALLED: &str = "/usr/libexec/fumehood/fumehood-helper";

/// Bits of a mode that let others than the owner write.
const OTHERS_WRITE: u32 = 0o022;

/// The helper, opened and judged.
#[derive(Debug)]
pub struct Helper {
    file: OwnedFd,
    path: PathBuf,
    seen: Seen,
}

/// What must not change of an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    mode: u32,
    owner: u32,
    length: i64,
    modified: (i64, i64),
}

impl Seen {
    fn of(stat: &Stat) -> Self {
        #[allow(clippy::useless_conversion, reason = "narrower on some architectures")]
        let nanoseconds = i64::try_from(stat.st_mtime_nsec).unwrap_or(i64::MAX);
        Self {
            mode: stat.st_mode,
            owner: stat.st_uid,
            length: stat.st_size,
            modified: (stat.st_mtime, nanoseconds),
        }
    }
}

fn missing(reason: String, remedy: &str) -> Missing {
    Missing { name: "helper".to_owned(), reason, remedy: remedy.to_owned() }
}

impl Helper {
    /// Opens the helper at a path.
    ///
    /// # Errors
    /// [`Missing`] if it is not there, is a link or no regular file, belongs to
    /// someone else than this user or root, or can be written by others.
    pub fn open(path: &Path) -> Result<Self, Missing> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| {
            let remedy = "install fumehood-helper beside this program, or name its path";
            missing(format!("{}: {error}", path.display()), remedy)
        })?;
        let stat = rustix::fs::fstat(&file)
            .map_err(|error| missing(format!("{}: {error}", path.display()), "install it again"))?;
        judge(path, &stat)?;
        Ok(Self { file, path: path.to_owned(), seen: Seen::of(&stat) })
    }

    /// Opens the helper beside the running program, or where packages put it.
    ///
    /// # Errors
    /// As [`Helper::open`], of the last place.
    #[allow(clippy::disallowed_methods, reason = "the adapter that finds the helper")]
    pub fn find() -> Result<Self, Missing> {
        let beside = std::env::current_exe()
            .and_then(std::fs::canonicalize)
            .ok()
            .and_then(|program| Some(program.parent()?.join(HELPER_NAME)));
        if let Some(path) = beside.filter(|path| path.symlink_metadata().is_ok()) {
            return Self::open(&path);
        }
        Self::open(Path::new(INSTALLED))
    }

    /// Where it was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes sure that what is started is what was opened.
    ///
    /// # Errors
    /// [`Missing`] if the file was written to or its owner or mode changed.
    pub fn check(&self) -> Result<(), Missing> {
        let stat = rustix::fs::fstat(&self.file)
            .map_err(|error| missing(error.to_string(), "start this program again"))?;
        judge(&self.path, &stat)?;
        if Seen::of(&stat) == self.seen {
            return Ok(());
        }
        let reason = format!("{} was changed after it was opened", self.path.display());
        Err(missing(reason, "find out who did; then start this program again"))
    }

    /// The path by which a new process starts the open file itself.
    pub(crate) fn program(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
    }

    /// Whether it lies below a directory, by the names that both have now.
    ///
    /// # Errors
    /// The names cannot be had.
    pub(crate) fn is_below(&self, dir: impl AsFd) -> io::Result<bool> {
        let name = name_of(&self.file)?;
        Ok(name.starts_with(name_of(dir)?))
    }
}

/// The name that an open file has now.
pub(crate) fn name_of(fd: impl AsFd) -> io::Result<PathBuf> {
    use std::os::unix::ffi::OsStringExt as _;
    let link = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    let name = rustix::fs::readlink(link.as_str(), Vec::new())?;
    Ok(PathBuf::from(std::ffi::OsString::from_vec(name.into_bytes())))
}

fn judge(path: &Path, stat: &Stat) -> Result<(), Missing> {
    let path = path.display();
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(missing(format!("{path} is no regular file"), "name the helper's own file"));
    }
    let user = rustix::process::geteuid().as_raw();
    if stat.st_uid != 0 && stat.st_uid != user {
        let reason = format!("{path} belongs to user {}", stat.st_uid);
        return Err(missing(reason, "give it to root or to yourself"));
    }
    let off = weaken::off(weaken::Defence::HelperOwner);
    if !off && stat.st_mode & OTHERS_WRITE != 0 {
        let reason = format!("{path} can be written by others than its owner");
        return Err(missing(reason, "run `chmod go-w` on it"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, reason = "tests")]

    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn file(mode: u32) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(HELPER_NAME);
        std::fs::write(&path, "#!/bin/true\n").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        (dir, path)
    }

    fn reason(path: &Path) -> String {
        Helper::open(path).map_or_else(|missing| missing.reason, |_| "opened".to_owned())
    }

    #[test]
    fn only_a_file_that_no_other_can_write_is_taken() {
        let (dir, path) = file(0o755);
        assert_eq!(reason(&path), "opened");
        for mode in [0o775, 0o757, 0o777] {
            let (_keep, path) = file(mode);
            assert!(reason(&path).contains("written by others"), "{mode:o}");
        }
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(reason(&link).contains("symbolic links"));
        assert!(reason(dir.path()).contains("no regular file"));
        assert!(reason(&dir.path().join("nothing")).contains("No such file"));
    }

    #[test]
    fn a_helper_that_was_written_to_is_noticed_and_one_that_was_replaced_is_not_used() {
        let (dir, path) = file(0o755);
        let helper = Helper::open(&path).unwrap();
        assert!(helper.check().is_ok());
        // Another file of that name does not matter.
        let other = dir.path().join("other");
        std::fs::write(&other, "evil").unwrap();
        std::fs::rename(&other, &path).unwrap();
        assert!(helper.check().is_ok());
        // The open file itself does.
        let (_keep, path) = file(0o755);
        let helper = Helper::open(&path).unwrap();
        std::fs::write(&path, "#!/bin/evil, and longer\n").unwrap();
        assert!(helper.check().unwrap_err().reason.contains("was changed"));
        let (_keep, path) = file(0o755);
        let helper = Helper::open(&path).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
        assert!(helper.check().is_err());
    }

    #[test]
    fn whether_it_lies_in_a_directory_is_known() {
        let (dir, path) = file(0o755);
        let helper = Helper::open(&path).unwrap();
        let inside = rustix::fs::open(dir.path(), OFlags::PATH, Mode::empty()).unwrap();
        let outside = rustix::fs::open("/usr", OFlags::PATH, Mode::empty()).unwrap();
        assert!(helper.is_below(&inside).unwrap());
        assert!(!helper.is_below(&outside).unwrap());
    }
}
