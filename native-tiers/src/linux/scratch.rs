//! The temporary directory of a run that has no file system of its own.
//!
//! Invariant: it is removed with everything in it, also what its owner could
//! not look into; what cannot be removed is said in the log. Nothing of the
//! command is there any more when it is.
#![allow(clippy::disallowed_methods, reason = "the adapter for temporary directories")]

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode};
use tempfile::TempDir;

/// A directory that is removed with its value.
#[derive(Debug)]
pub(crate) struct Scratch(Option<TempDir>);

impl Scratch {
    /// Makes one.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn new() -> io::Result<Self> {
        tempfile::Builder::new().prefix("fumehood-").tempdir().map(|made| Self(Some(made)))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.as_ref().map_or(Path::new(""), TempDir::path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let Some(made) = self.0.take() else { return };
        let path = made.path().to_owned();
        if made.close().is_ok() {
            return;
        }
        open_up(&path);
        if let Err(error) = std::fs::remove_dir_all(&path) {
            tracing::warn!(path = %path.display(), %error, "a temporary directory is left");
        }
    }
}

/// Lets the owner look into every directory below one, through no link.
fn open_up(top: &Path) {
    let mut left: Vec<PathBuf> = vec![top.to_owned()];
    while let Some(directory) = left.pop() {
        // What fails here fails again when it is removed, and is told there.
        let _ = rustix::fs::chmodat(CWD, &directory, Mode::RWXU, AtFlags::empty());
        let Ok(entries) = std::fs::read_dir(&directory) else { continue };
        let below = entries.filter_map(Result::ok);
        // The kind of an entry is its own, not that of what a link leads to.
        let below = below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        left.extend(below.map(|entry| entry.path()));
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn what_its_owner_cannot_look_into_is_removed_and_nothing_behind_a_link_changed() {
        let outside = tempfile::tempdir().unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        let shut = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        shut(outside.path(), 0o750);
        let scratch = Scratch::new().unwrap();
        let path = scratch.path().to_owned();
        std::fs::create_dir_all(path.join("a/b/c")).unwrap();
        std::fs::write(path.join("a/b/c/f"), "x").unwrap();
        std::os::unix::fs::symlink(outside.path(), path.join("a/link")).unwrap();
        for name in ["a/b/c", "a/b", "a"] {
            shut(&path.join(name), 0);
        }
        open_up(&path);
        // Root may look anyway; the modes show it for every user.
        assert_eq!(["a", "a/b", "a/b/c"].map(|name| mode(&path.join(name))), [0o700; 3]);
        assert_eq!(mode(outside.path()), 0o750);
        shut(&path.join("a"), 0);
        drop(scratch);
        assert!(!path.exists());
    }
}
