//! Making, opening and discarding workspaces.
//!
//! Invariant: a workspace and its project never lie within each other, so that
//! no file of a session is ever in a writable mount; one process at a time has
//! a workspace open.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use fumehood_policies::{Access, GuestPath};
use rustix::fs::OFlags;
use rustix::io::Errno as Host;
use serde::{Deserialize, Serialize};

use super::WhiteoutForm;
use crate::fs::handle::{Directory, Kind, joined};
use crate::fs::overlay::{Layer, Quota};
use crate::fs::{HostMount, WorkspaceLimits, forbidden};
use crate::native::NativeOverlay;
use crate::workspace::baseline::{Agreed, Baselines, frame_at, framed};
use crate::workspace::error::{ProjectError, WorkspaceError};
use crate::workspace::lock::{LOCK, Lock};
use crate::workspace::settle::{Settler, measure, whiteout_form};
use crate::workspace::state::{self, MODE_BITS, State};
use crate::workspace::steps::{Every, Steps};
use crate::workspace::view::View;

const META: &[u8] = b"meta";
const META_VERSION: u32 = 1;
pub(crate) const UPPER: &[u8] = b"upper";
pub(super) const WORK: &[u8] = b"work";
const MASK: &[u8] = b"mask";
pub(super) const BASELINES: &[u8] = b"baselines";

/// How the agent's changes are kept apart from the project.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Strategy {
    /// An overlay: nothing is copied until it is changed. For guests of the
    /// broker only.
    Live,
    /// A whole copy, for tiers that cannot use the overlay.
    Materialised,
    /// The same overlay, mounted by the kernel for a native tier. Nothing is
    /// copied.
    Kernel,
}

impl Strategy {
    /// Its stable name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Materialised => "materialised",
            Self::Kernel => "kernel",
        }
    }

    /// Whether a workspace of one can be gone on with as the other: the tree of
    /// changes is the same.
    #[must_use]
    pub fn is_like(self, other: Self) -> bool {
        (self == Self::Materialised) == (other == Self::Materialised)
    }
}

/// How a workspace is made.
#[derive(Clone, Debug)]
pub struct WorkspaceOptions {
    /// The strategy.
    pub strategy: Strategy,
    /// Patterns over names that are left out, beside the default ones.
    pub exclude: Vec<String>,
    /// Patterns over names that usually hold secrets and are shown anyway.
    pub show_hidden: Vec<String>,
    /// Most that it may hold.
    pub limits: WorkspaceLimits,
    /// Accept a project that is otherwise refused: a home directory or a
    /// network file system.
    pub force: bool,
    /// Where records and workspaces are kept: the project is not in there.
    pub apart_from: Option<PathBuf>,
}

impl Default for WorkspaceOptions {
    fn default() -> Self {
        Self {
            strategy: Strategy::Live,
            exclude: Vec::new(),
            show_hidden: Vec::new(),
            limits: WorkspaceLimits::default(),
            force: false,
            apart_from: None,
        }
    }
}

pub(super) fn failed(what: &'static str) -> impl Fn(io::Error) -> WorkspaceError {
    move |source| WorkspaceError::Io { what, source }
}

pub(super) fn host_failed(what: &'static str) -> impl Fn(Host) -> WorkspaceError {
    move |error| WorkspaceError::Io { what, source: error.into() }
}

/// What a workspace knows of itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Meta {
    version: u32,
    project: Vec<u8>,
    device: u64,
    inode: u64,
    pub(super) strategy: Strategy,
    exclude: Vec<String>,
    show_hidden: Vec<String>,
    bytes: u64,
    inodes: u64,
    attribute_whiteouts: bool,
}

/// What a workspace was when it was discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Discarded {
    /// It held changes that were not brought back.
    pub had_changes: bool,
}

/// An open workspace.
#[derive(Debug)]
pub struct Workspace {
    pub(crate) root: Directory,
    pub(crate) project: Directory,
    pub(crate) layer: Arc<Layer>,
    project_path: PathBuf,
    strategy: Strategy,
    limits: WorkspaceLimits,
    exclude: Vec<String>,
    show_hidden: Vec<String>,
    /// When it was opened or last synced, in nanoseconds.
    pub(crate) since: i128,
    _lock: Lock,
}

/// Now, in nanoseconds since the epoch, as file times count. No file time that
/// was set before is later.
pub(crate) fn file_time_now() -> i128 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    i128::from(now.tv_sec).saturating_mul(1_000_000_000).saturating_add(i128::from(now.tv_nsec))
}

/// Opens a project and refuses what cannot be one.
pub(crate) fn open_project(path: &Path, force: bool) -> Result<Directory, ProjectError> {
    let named = || path.to_owned();
    let dir = Directory::open(path).map_err(|error| match error {
        Host::NOENT => ProjectError::Missing { path: named() },
        Host::NOTDIR => ProjectError::NotADirectory { path: named() },
        error => ProjectError::Unreadable { path: named(), source: error.into() },
    })?;
    let unreadable = |error: Host| ProjectError::Unreadable { path: named(), source: error.into() };
    let handle = dir.to_dir().map_err(unreadable)?;
    let what = forbidden(path, &handle);
    let network = is_network(&dir)
        .then_some("on a network file system, which cannot exchange two files safely");
    if let Some(what) = what.or(network).filter(|_| !force) {
        return Err(ProjectError::Forbidden { path: named(), what });
    }
    dir.names().map_err(unreadable)?;
    Ok(dir)
}

/// Whether a handle is on a file system of another machine. Numbers from
/// statfs(2) and linux/magic.h.
#[cfg(target_os = "linux")]
fn is_network(handle: &Directory) -> bool {
    const NETWORK: [u64; 8] = [
        0x6969,      // NFS
        0x517b,      // SMB
        0xff53_4d42, // CIFS
        0xfe53_4d42, // SMB2
        0x0102_1997, // 9P
        0x00c3_6400, // Ceph
        0x5346_414f, // AFS
        0x7375_7245, // Coda
    ];
    #[allow(clippy::cast_sign_loss, clippy::unnecessary_cast, reason = "a magic number of 32 bits")]
    rustix::fs::fstatfs(handle)
        .is_ok_and(|found| NETWORK.contains(&((found.f_type as u64) & 0xffff_ffff)))
}

#[cfg(not(target_os = "linux"))]
fn is_network(_handle: &Directory) -> bool {
    false
}

/// Whether one directory is the other or lies in it, whatever their names.
pub(crate) fn within(inner: &Directory, outer: &Directory) -> rustix::io::Result<bool> {
    let wanted = outer.look_self()?;
    let mut at = Directory::again(inner)?;
    let mut here = at.look_self()?;
    loop {
        if (here.device, here.inode) == (wanted.device, wanted.inode) {
            return Ok(true);
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let up = rustix::fs::openat(&at, "..", flags, rustix::fs::Mode::empty())?;
        let above = Directory::again(&up)?;
        let next = above.look_self()?;
        if (next.device, next.inode) == (here.device, here.inode) {
            return Ok(false);
        }
        (at, here) = (above, next);
    }
}

impl Workspace {
    /// Makes a workspace in the empty directory `at`, for a project.
    ///
    /// With [`Strategy::Materialised`] the project is copied; `progress` is
    /// told how many files and bytes so far.
    ///
    /// # Errors
    /// [`WorkspaceError`]; what was made so far is removed again.
    pub fn create(
        at: &Path,
        project: &Path,
        options: &WorkspaceOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, WorkspaceError> {
        let view = View::with(&options.exclude, &options.show_hidden)?;
        let project_dir = open_project(project, options.force)?;
        let root = Directory::open(at).map_err(host_failed("made"))?;
        check_apart(&root, &project_dir, at, project)?;
        if let Some(kept) = &options.apart_from {
            let opened = Directory::open(kept).map_err(host_failed("opened"))?;
            check_apart(&opened, &project_dir, kept, project)?;
        }
        let names = root.names().map_err(host_failed("made"))?;
        if names.iter().any(|name| name == META) {
            return Err(WorkspaceError::Exists);
        }
        let lock = Lock::take(&root)?;
        let again = Directory::again(&root).map_err(host_failed("made"))?;
        let made = Self::fill(root, project_dir, project, lock, options, view, progress);
        if made.is_err() {
            for name in [UPPER, WORK, MASK, BASELINES, LOCK] {
                let _ = again.remove_tree(name);
            }
        }
        made
    }

    fn fill(
        root: Directory,
        project_dir: Directory,
        project: &Path,
        lock: Lock,
        options: &WorkspaceOptions,
        view: View,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, WorkspaceError> {
        for name in [UPPER, WORK] {
            root.remove_tree(name).map_err(host_failed("made"))?;
            root.make_directory(name, 0o700).map_err(host_failed("made"))?;
        }
        let form = match options.strategy {
            Strategy::Live | Strategy::Kernel => {
                let work = root.child(WORK).map_err(host_failed("made"))?;
                whiteout_form(&work).map_err(|_| WorkspaceError::NoOverlay)?
            }
            Strategy::Materialised => WhiteoutForm::Device,
        };
        let look = project_dir.look_self().map_err(host_failed("made"))?;
        let path = std::path::absolute(project).map_err(failed("made"))?;
        let meta = Meta {
            version: META_VERSION,
            project: path.as_os_str().as_bytes().to_vec(),
            device: look.device,
            inode: look.inode,
            strategy: options.strategy,
            exclude: options.exclude.clone(),
            show_hidden: options.show_hidden.clone(),
            bytes: options.limits.bytes,
            inodes: options.limits.inodes,
            attribute_whiteouts: form == WhiteoutForm::Attribute,
        };
        let made = Self::assemble(root, project_dir, path, &meta, view, lock)?;
        if options.strategy == Strategy::Materialised {
            made.copy_in(progress).map_err(failed("filled"))?;
            // The top of the copy is what a command sees as the project.
            let mode = (look.mode & MODE_BITS) | 0o700;
            made.root.set_mode(UPPER, mode).map_err(host_failed("filled"))?;
        }
        made.write_meta(&meta).map_err(failed("made"))?;
        Ok(made)
    }

    /// Opens a workspace. A sync that was interrupted is taken back, or
    /// brought to its end if it was complete.
    ///
    /// # Errors
    /// [`WorkspaceError`].
    pub fn open(at: &Path) -> Result<Self, WorkspaceError> {
        Self::open_with(at, &Every)
    }

    pub(crate) fn open_with(at: &Path, steps: &dyn Steps) -> Result<Self, WorkspaceError> {
        let root = Directory::open(at).map_err(host_failed("opened"))?;
        let meta = read_meta(&root)?;
        let lock = Lock::take(&root)?;
        let path = PathBuf::from(std::ffi::OsString::from_vec(meta.project.clone()));
        let project = open_project(&path, true)?;
        let look = project.look_self().map_err(host_failed("opened"))?;
        if (look.device, look.inode) != (meta.device, meta.inode) {
            return Err(WorkspaceError::OtherProject { project: path });
        }
        check_apart(&root, &project, at, &path)?;
        let view = View::with(&meta.exclude, &meta.show_hidden)?;
        let mut workspace = Self::assemble(root, project, path, &meta, view, lock)?;
        workspace.recover(steps)?;
        workspace.undo_import().map_err(failed("opened"))?;
        workspace.clean_work().map_err(failed("opened"))?;
        workspace.since = file_time_now();
        Ok(workspace)
    }

    /// The project that a workspace was made for; `None` if there is no
    /// workspace.
    ///
    /// # Errors
    /// [`WorkspaceError`] if there is one that cannot be read.
    pub fn project_of(at: &Path) -> Result<Option<PathBuf>, WorkspaceError> {
        let root = match Directory::open(at) {
            Ok(root) => root,
            Err(Host::NOENT) => return Ok(None),
            Err(error) => return Err(host_failed("opened")(error)),
        };
        if root.look(META).map_err(host_failed("opened"))?.is_none() {
            return Ok(None);
        }
        let meta = read_meta(&root)?;
        Ok(Some(PathBuf::from(std::ffi::OsString::from_vec(meta.project))))
    }

    fn assemble(
        root: Directory,
        project: Directory,
        project_path: PathBuf,
        meta: &Meta,
        view: View,
        lock: Lock,
    ) -> Result<Self, WorkspaceError> {
        let upper = root.child(UPPER).map_err(host_failed("opened"))?;
        let work = root.child(WORK).map_err(host_failed("opened"))?;
        let baselines = Baselines::open(&root, BASELINES).map_err(failed("opened"))?;
        let limits = WorkspaceLimits { bytes: meta.bytes, inodes: meta.inodes };
        let (bytes, inodes) = match meta.strategy {
            Strategy::Live | Strategy::Kernel => measure(&upper).map_err(failed("opened"))?,
            Strategy::Materialised => (0, 0),
        };
        let form =
            if meta.attribute_whiteouts { WhiteoutForm::Attribute } else { WhiteoutForm::Device };
        let layer = Layer {
            upper,
            work,
            form,
            view,
            baselines,
            quota: Quota::new(limits, bytes, inodes),
            serial: AtomicU64::new(0),
        };
        Ok(Self {
            root,
            project,
            layer: Arc::new(layer),
            project_path,
            strategy: meta.strategy,
            limits,
            exclude: meta.exclude.clone(),
            show_hidden: meta.show_hidden.clone(),
            since: file_time_now(),
            _lock: lock,
        })
    }

    fn write_meta(&self, meta: &Meta) -> io::Result<()> {
        use std::io::Write as _;
        let mut file = self.layer.work.create(b"meta", 0o600)?;
        file.write_all(&framed(meta)?)?;
        file.sync_data()?;
        self.layer.work.move_over(b"meta", &self.root, META).map_err(Into::into)
    }

    /// Removes what a crash left in the work directory.
    fn clean_work(&self) -> io::Result<()> {
        for name in self.layer.work.names()? {
            self.layer.work.remove_tree(&name)?;
        }
        Ok(())
    }

    fn copy_in(&self, progress: &mut dyn FnMut(u64, u64)) -> io::Result<()> {
        let settler = Settler {
            project: &self.project,
            layer: &self.layer,
            whole: true,
            open: &[],
            now: file_time_now(),
        };
        let mut done = (0, 0);
        self.copy_directory(&settler, &[], &self.project, &self.layer.upper, &mut done, progress)
    }

    fn copy_directory(
        &self,
        settler: &Settler<'_>,
        path: &[u8],
        from: &Directory,
        to: &Directory,
        done: &mut (u64, u64),
        progress: &mut dyn FnMut(u64, u64),
    ) -> io::Result<()> {
        for entry in from.entries()? {
            if self.layer.view.unseen(&entry.name).is_some() {
                continue;
            }
            let (inner, name) = (joined(path, &entry.name), entry.name.as_slice());
            match entry.kind {
                Kind::Directory => {
                    let below = match from.child(name) {
                        Ok(below) => below,
                        Err(Host::ACCESS | Host::PERM | Host::NOENT | Host::NOTDIR) => continue,
                        Err(error) => return Err(error.into()),
                    };
                    let mode = below.look_self()?.mode & MODE_BITS;
                    settler.give_directory(&inner, to, name, mode | 0o700)?;
                    let copy = to.child(name)?;
                    self.copy_directory(settler, &inner, &below, &copy, done, progress)?;
                    if mode | 0o700 != mode {
                        settler.give_directory(&inner, to, name, mode)?;
                    }
                }
                Kind::Symlink => {
                    let target = match from.read_link(name) {
                        Ok(target) => target,
                        Err(Host::ACCESS | Host::PERM | Host::NOENT | Host::INVAL) => continue,
                        Err(error) => return Err(error.into()),
                    };
                    to.make_symlink(name, &target)?;
                    let agreed = Agreed::on(&inner, State::Symlink { target });
                    self.layer.baselines.set(&agreed)?;
                }
                Kind::File => {
                    settler.give_file(&inner, from, to, name)?;
                    done.0 = done.0.saturating_add(1);
                    let size = to.look(name)?.map_or(0, |look| look.size);
                    done.1 = done.1.saturating_add(size);
                    progress(done.0, done.1);
                }
                Kind::Whiteout | Kind::Other => {}
            }
        }
        Ok(())
    }

    /// How changes are kept.
    #[must_use]
    pub fn strategy(&self) -> Strategy {
        self.strategy
    }

    /// The project's directory on the host, as it was named.
    #[must_use]
    pub fn project_path(&self) -> &Path {
        &self.project_path
    }

    /// The patterns over names that it leaves out, beside the default ones.
    #[must_use]
    pub fn exclude(&self) -> &[String] {
        &self.exclude
    }

    /// The patterns over names that usually hold secrets and that it shows.
    #[must_use]
    pub fn show_hidden(&self) -> &[String] {
        &self.show_hidden
    }

    /// Whether the agent's version of a path (relative to the project) is what
    /// both sides last agreed on: what was written is what was there.
    #[must_use]
    pub fn is_unchanged(&self, path: &[u8]) -> bool {
        let Ok(Some(agreed)) = self.layer.baselines.get(path) else { return false };
        let Ok((parent, name)) = self.layer.upper.parent(path) else { return false };
        state::read(&parent, name).same(&agreed.state)
    }

    /// Most that it may hold.
    #[must_use]
    pub fn limits(&self) -> WorkspaceLimits {
        self.limits
    }

    /// The mount through which a guest of the broker works on the project.
    ///
    /// # Errors
    /// [`WorkspaceError::Io`] if the handle cannot be had, or `at` is no mount
    /// point.
    pub fn mount(&self, at: &str) -> Result<HostMount, WorkspaceError> {
        let at: GuestPath =
            HostMount::point(at).map_err(|error| failed("mounted")(io::Error::other(error)))?;
        let (dir, overlay) = match self.strategy {
            Strategy::Live | Strategy::Kernel => (&self.project, Some(Arc::clone(&self.layer))),
            Strategy::Materialised => (&self.layer.upper, None),
        };
        let dir = dir.to_dir().map_err(host_failed("mounted"))?;
        Ok(HostMount { overlay, ..HostMount::of(at, dir, Access::ReadWrite) })
    }

    /// A handle of the directory that a native tier shows its processes:
    /// the whole copy.
    ///
    /// # Errors
    /// [`WorkspaceError::Io`] with a strategy that has none.
    pub fn copy_handle(&self) -> Result<OwnedFd, WorkspaceError> {
        if self.strategy != Strategy::Materialised {
            let missing = io::Error::other("an overlay is not a directory of the host");
            return Err(failed("shown")(missing));
        }
        let again = Directory::again(&self.layer.upper).map_err(host_failed("shown"))?;
        Ok(again.into_fd())
    }

    /// Makes that directory and all in it another user's, so that its commands
    /// can change it. What is brought back is this user's as ever.
    ///
    /// # Errors
    /// [`WorkspaceError::Io`] if this user may not give files away.
    pub fn give_copy_to(&self, user: u32, group: u32) -> Result<(), WorkspaceError> {
        let upper = Directory::again(&self.layer.upper).map_err(host_failed("shown"))?;
        upper.give_to(user, group).map_err(host_failed("shown"))
    }

    /// The path of that directory, in a workspace at `at`, for tiers that name
    /// what they show.
    #[must_use]
    pub fn copy_place(at: &Path) -> PathBuf {
        at.join(OsStr::from_bytes(UPPER))
    }

    /// The parts of a mount of the project by the kernel.
    ///
    /// # Errors
    /// [`WorkspaceError::Io`] where the file system cannot have it.
    pub fn native_overlay(&self) -> Result<NativeOverlay, WorkspaceError> {
        NativeOverlay::new(Arc::clone(&self.layer), &self.project, &self.root)
            .map_err(host_failed("shown"))
    }

    /// A handle of the project itself.
    ///
    /// # Errors
    /// [`WorkspaceError::Io`] if the process has no descriptor left.
    pub fn project_handle(&self) -> Result<OwnedFd, WorkspaceError> {
        let again = Directory::again(&self.project).map_err(host_failed("shown"))?;
        Ok(again.into_fd())
    }

    /// Goes on with another strategy that has the same tree of changes.
    pub fn go_on_as(&mut self, strategy: Strategy) {
        if self.strategy.is_like(strategy) {
            self.strategy = strategy;
        }
    }

    /// Whether it holds anything that a sync would look at.
    ///
    /// # Errors
    /// [`WorkspaceError::Io`] if it cannot be compared.
    pub fn has_changes(&self) -> Result<bool, WorkspaceError> {
        self.compare_changes().map_err(failed("compared"))
    }

    /// Removes the workspace with everything in it that was not brought back.
    ///
    /// # Errors
    /// [`WorkspaceError::Io`] if it cannot be removed completely.
    pub fn discard(self) -> Result<Discarded, WorkspaceError> {
        let had_changes = self.has_changes().unwrap_or(true);
        remove_parts(&self.root)?;
        Ok(Discarded { had_changes })
    }
}

/// Removes everything that makes a workspace.
pub(super) fn remove_parts(root: &Directory) -> Result<(), WorkspaceError> {
    for name in [META, UPPER, WORK, MASK, BASELINES, LOCK] {
        root.remove_tree(name).map_err(host_failed("removed"))?;
    }
    Ok(())
}

fn check_apart(
    root: &Directory,
    project: &Directory,
    at: &Path,
    path: &Path,
) -> Result<(), WorkspaceError> {
    let overlap = within(root, project)
        .and_then(|inside| Ok(inside || within(project, root)?))
        .map_err(host_failed("opened"))?;
    if overlap {
        let (path, session) = (path.to_owned(), at.to_owned());
        return Err(ProjectError::Overlaps { path, session }.into());
    }
    Ok(())
}

pub(super) fn read_meta(root: &Directory) -> Result<Meta, WorkspaceError> {
    let (file, _) = root.open_file(META).map_err(host_failed("opened"))?;
    let frame = frame_at(&file, 0).map_err(failed("opened"))?;
    let (body, _) = frame.ok_or(WorkspaceError::Version)?;
    let meta: Meta = postcard::from_bytes(&body).map_err(|_| WorkspaceError::Version)?;
    if meta.version == META_VERSION { Ok(meta) } else { Err(WorkspaceError::Version) }
}
