//! A project, a session directory and an agent for tests.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "tests prepare and inspect the host side"
)]

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use tempfile::TempDir;

use super::open::{Strategy, Workspace, WorkspaceOptions};
use super::report::SyncReport;
use super::steps::Steps;
use super::sync::{SyncError, SyncOptions};
use crate::testing::Guest;

/// What a path holds, to compare whole trees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    File(Vec<u8>, u32),
    Directory,
    Symlink(Vec<u8>),
}

pub(crate) type Tree = BTreeMap<Vec<u8>, Seen>;

/// Everything below a directory of the host.
pub(crate) fn tree(root: &Path) -> Tree {
    let mut found = Tree::new();
    walk(root, root, &mut found);
    found
}

fn walk(root: &Path, at: &Path, found: &mut Tree) {
    for entry in fs::read_dir(at).unwrap() {
        let path = entry.unwrap().path();
        let name = path.strip_prefix(root).unwrap().as_os_str().as_bytes().to_vec();
        let metadata = fs::symlink_metadata(&path).unwrap();
        if metadata.is_dir() {
            found.insert(name, Seen::Directory);
            walk(root, &path, found);
        } else if metadata.is_symlink() {
            let target = fs::read_link(&path).unwrap().into_os_string().into_vec();
            found.insert(name, Seen::Symlink(target));
        } else {
            let mode = metadata.permissions().mode() & 0o777;
            found.insert(name, Seen::File(fs::read(&path).unwrap(), mode));
        }
    }
}

/// A project and a workspace of it.
pub(crate) struct Lab {
    pub(crate) root: TempDir,
    pub(crate) strategy: Strategy,
}

impl Lab {
    pub(crate) fn new(strategy: Strategy) -> Self {
        Self::in_directory(strategy, tempfile::tempdir().unwrap())
    }

    /// In memory where the system has a place for that.
    pub(crate) fn fast(strategy: Strategy) -> Self {
        let root = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        Self::in_directory(strategy, root.unwrap())
    }

    fn in_directory(strategy: Strategy, root: TempDir) -> Self {
        fs::create_dir(root.path().join("project")).unwrap();
        fs::create_dir(root.path().join("session")).unwrap();
        Self { root, strategy }
    }

    pub(crate) fn project(&self) -> PathBuf {
        self.root.path().join("project")
    }

    pub(crate) fn session(&self) -> PathBuf {
        self.root.path().join("session")
    }

    pub(crate) fn user(&self, name: &str) -> PathBuf {
        self.project().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        let path = self.user(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> String {
        String::from_utf8_lossy(&fs::read(self.user(name)).unwrap()).into_owned()
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        fs::symlink_metadata(self.user(name)).is_ok()
    }

    pub(crate) fn create(&self) -> Workspace {
        self.create_with(&WorkspaceOptions::default())
    }

    pub(crate) fn create_with(&self, options: &WorkspaceOptions) -> Workspace {
        let options = WorkspaceOptions { strategy: self.strategy, ..options.clone() };
        Workspace::create(&self.session(), &self.project(), &options, &mut |_, _| {}).unwrap()
    }

    pub(crate) fn tree(&self) -> Tree {
        tree(&self.project())
    }
}

/// The agent: a guest whose project is at `/p`.
pub(crate) fn agent(workspace: &Workspace) -> Guest {
    let mount = workspace.mount("/p").unwrap();
    Guest::with(|config| config.mounts.push(mount))
}

pub(crate) fn options() -> SyncOptions {
    SyncOptions::default()
}

pub(crate) fn sync(workspace: &mut Workspace) -> SyncReport {
    workspace.sync(&options()).unwrap()
}

/// The paths of a report's lists.
pub(crate) fn paths(report: &SyncReport) -> (Vec<String>, Vec<String>, Vec<String>) {
    let text = |path: &super::report::ProjectPath| path.to_string();
    (
        report.updated.list.iter().map(text).collect(),
        report.deleted.list.iter().map(text).collect(),
        report.conflicts.list.iter().map(|conflict| text(&conflict.path)).collect(),
    )
}

/// Fails at the step of a number, once or ever after.
pub(crate) struct FailAt {
    pub(crate) at: u64,
    pub(crate) for_good: bool,
    pub(crate) count: AtomicU64,
}

impl FailAt {
    pub(crate) fn new(at: u64, for_good: bool) -> Self {
        Self { at, for_good, count: AtomicU64::new(0) }
    }
}

impl Steps for FailAt {
    fn step(&self, _what: &'static str) -> io::Result<()> {
        let now = self.count.fetch_add(1, Ordering::Relaxed);
        if now == self.at || (self.for_good && now > self.at) {
            return Err(rustix::io::Errno::NOSPC.into());
        }
        Ok(())
    }
}

/// Does something at the step of a number.
pub(crate) struct At<F: Fn()> {
    pub(crate) name: &'static str,
    pub(crate) times: AtomicU64,
    pub(crate) act: F,
}

impl<F: Fn()> Steps for At<F> {
    fn step(&self, what: &'static str) -> io::Result<()> {
        if what == self.name
            && self
                .times
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
                .is_ok()
        {
            (self.act)();
        }
        Ok(())
    }
}

pub(crate) fn sync_at(
    workspace: &mut Workspace,
    name: &'static str,
    times: u64,
    act: impl Fn(),
) -> Result<SyncReport, SyncError> {
    workspace.sync_with(&options(), &At { name, times: AtomicU64::new(times), act })
}
