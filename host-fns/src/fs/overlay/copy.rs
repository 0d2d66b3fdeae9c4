//! Copying up: what is to be changed comes into the upper tree first.
//!
//! Invariant: the state of the lower tree is noted before the upper tree
//! covers it, and what was noted is what was copied. A copy appears in the
//! upper tree completely or not at all.

use rustix::fs::Mode;
use rustix::io::Errno as Host;

use super::resolve::{Found, Over};
use super::{OPAQUE, OverlayDirectory, errno, io_errno};
use crate::errno::Errno;
use crate::fs::handle::{self, Directory, Kind, Look, joined, split};
use crate::fs::node::Step;
use crate::workspace::baseline::Agreed;
use crate::workspace::state::{self, Identity, MODE_BITS, State};

/// Attempts to copy a file that someone writes to meanwhile.
const COPY_ATTEMPTS: u32 = 4;

impl OverlayDirectory {
    /// The upper directory at a relative path, made as the lower one is.
    pub(super) fn directory_up(&self, relative: &[u8]) -> Result<Directory, Errno> {
        let mut at = Directory::again(&self.layer.upper).map_err(errno)?;
        let mut walked: Vec<u8> = Vec::new();
        for name in relative.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            let parent = walked.clone();
            walked = joined(&walked, name);
            at = match at.child(name) {
                Ok(dir) => dir,
                Err(Host::NOENT) => {
                    let below = self.lower_root.beneath(&parent).map_err(errno)?;
                    let look = below.look(name).map_err(errno)?.ok_or(Errno::Noent)?;
                    self.make_up(&at, name, &walked, &look)?
                }
                Err(error) => return Err(errno(error)),
            };
        }
        Ok(at)
    }

    fn make_up(
        &self,
        upper: &Directory,
        name: &[u8],
        relative: &[u8],
        look: &Look,
    ) -> Result<Directory, Errno> {
        if look.kind != Kind::Directory {
            return Err(Errno::Notdir);
        }
        let mode = look.mode & MODE_BITS;
        self.begin(relative, State::Directory { mode })?;
        self.layer.quota.add_inode(0)?;
        let made = upper.make_directory(name, mode).and_then(|()| {
            let dir = upper.child(name)?;
            rustix::fs::fchmod(&dir, Mode::from_raw_mode(mode as rustix::fs::RawMode))?;
            Ok(dir)
        });
        made.map_err(|error| {
            self.layer.quota.release_inode(0);
            errno(error)
        })
    }

    pub(super) fn begin(&self, relative: &[u8], state: State) -> Result<(), Errno> {
        self.layer.baselines.begin(relative, state).map_err(io_errno)
    }

    /// Notes what the lower tree has where the upper tree is about to cover
    /// it.
    pub(super) fn note(&self, found: &Found<'_>) -> Result<(), Errno> {
        let Some(lower) = found.lower.as_ref().filter(|_| found.visible_under().is_some()) else {
            return Ok(());
        };
        if self.layer.baselines.knows(found.relative) {
            return Ok(());
        }
        self.begin(found.relative, state::read(lower, found.name))
    }

    /// Brings what was found into the upper tree, unless it is there.
    pub(super) fn bring_up(&self, found: &Found<'_>) -> Result<(), Errno> {
        if found.over_entry().is_some() {
            return Ok(());
        }
        match found.visible_under().ok_or(Errno::Noent)?.kind {
            Kind::File => self.copy_up(found, true),
            Kind::Symlink => self.link_up(found),
            Kind::Directory => self.directory_up(found.relative).map(drop),
            Kind::Whiteout | Kind::Other => Err(Errno::Perm),
        }
    }

    /// Copies a file up, or only makes it if the content is not wanted.
    pub(super) fn copy_up(&self, found: &Found<'_>, content: bool) -> Result<(), Errno> {
        let lower = found.lower.as_ref().ok_or(Errno::Noent)?;
        let (parent, _) = split(found.relative);
        let upper = self.directory_up(parent)?;
        for _ in 0..COPY_ATTEMPTS {
            if self.copy_once(found, lower, &upper, content)? {
                return Ok(());
            }
        }
        Err(Errno::Busy)
    }

    fn copy_once(
        &self,
        found: &Found<'_>,
        lower: &Directory,
        upper: &Directory,
        content: bool,
    ) -> Result<bool, Errno> {
        let (mut file, look) = lower.open_file(found.name).map_err(errno)?;
        if look.size > self.lower.file_limit() {
            return Err(Errno::Fbig);
        }
        let charge = if content { look.size } else { 0 };
        self.layer.quota.add_inode(charge)?;
        let spare = self.layer.spare_name();
        let copied = self.copy_to_spare(found, &mut file, &look, &spare, content);
        let placed = match copied {
            Ok(true) => {
                self.layer.work.move_new(&spare, upper, found.name).map(|()| true).map_err(errno)
            }
            other => other,
        };
        if !matches!(placed, Ok(true)) {
            self.layer.quota.release_inode(charge);
            let _ = self.layer.work.remove_file(&spare);
        }
        placed
    }

    /// Whether the file did not change while it was copied.
    fn copy_to_spare(
        &self,
        found: &Found<'_>,
        file: &mut std::fs::File,
        look: &Look,
        spare: &[u8],
        content: bool,
    ) -> Result<bool, Errno> {
        let mut to = self.layer.work.create(spare, 0o600).map_err(errno)?;
        let (size, digest) = if content {
            handle::copy(file, &mut to).map_err(io_errno)?
        } else {
            handle::digest(file).map_err(io_errno)?
        };
        let after = handle::look_at(&*file).map_err(errno)?;
        if Identity::of(&after) != Identity::of(look) || size != look.size {
            return Ok(false);
        }
        let mode = look.mode & MODE_BITS;
        rustix::fs::fchmod(&to, Mode::from_raw_mode(mode as rustix::fs::RawMode)).map_err(errno)?;
        handle::set_modified(&to, look.modified).map_err(errno)?;
        if !self.layer.baselines.knows(found.relative) {
            let mut agreed = Agreed::on(found.relative, State::File { mode, size, digest });
            agreed.project = Some(Identity::of(look));
            self.layer.baselines.set(&agreed).map_err(io_errno)?;
        }
        Ok(true)
    }

    fn link_up(&self, found: &Found<'_>) -> Result<(), Errno> {
        let lower = found.lower.as_ref().ok_or(Errno::Noent)?;
        let target = lower.read_link(found.name).map_err(errno)?;
        let (parent, _) = split(found.relative);
        let upper = self.directory_up(parent)?;
        self.begin(found.relative, State::Symlink { target: target.clone() })?;
        self.layer.quota.add_inode(0)?;
        upper.make_symlink(found.name, &target).map_err(|error| {
            self.layer.quota.release_inode(0);
            errno(error)
        })
    }

    /// Brings a directory and everything below it up, and hides the lower one.
    /// What the guest sees does not change.
    pub(super) fn whole_up(&self, path: &fumehood_policies::GuestPath) -> Result<(), Errno> {
        let Step::Done(Some(found)) = self.resolve(path)? else { return Err(Errno::Busy) };
        self.bring_up(&found)?;
        for entry in self.list(path)? {
            let below = path.join(&entry.name).map_err(crate::fs::node::path_errno)?;
            let Step::Done(Some(inner)) = self.resolve(&below)? else { return Err(Errno::Busy) };
            match inner.look() {
                Some(look) if look.kind == Kind::Directory => self.whole_up(&below)?,
                Some(_) => self.bring_up(&inner)?,
                None => {}
            }
        }
        let dir = self.layer.upper.beneath(found.relative).map_err(errno)?;
        dir.set_attribute(OPAQUE, b"y").map_err(errno)
    }

    /// Puts something new where nothing is seen: `make` makes it in a work
    /// directory under a name, then it appears at once.
    pub(super) fn put(
        &self,
        found: &Found<'_>,
        make: impl FnOnce(&Directory, &[u8]) -> Result<(), Host>,
    ) -> Result<(), Errno> {
        let (parent, _) = split(found.relative);
        let upper = self.directory_up(parent)?;
        let work = &self.layer.work;
        let spare = self.layer.spare_name();
        let placed = make(work, &spare).and_then(|()| {
            let look = work.look(&spare)?.ok_or(Host::NOENT)?;
            if look.kind == Kind::Directory && found.under.is_some() {
                work.child(&spare)?.set_attribute(OPAQUE, b"y")?;
            }
            match found.over {
                Over::Nothing => work.move_new(&spare, &upper, found.name),
                Over::Whiteout if look.kind == Kind::Directory => {
                    work.exchange(&spare, &upper, found.name)?;
                    work.remove_file(&spare)
                }
                Over::Whiteout => work.move_over(&spare, &upper, found.name),
                Over::Entry(_) => Err(Host::EXIST),
            }
        });
        placed.map_err(|error| {
            let _ = work.remove_tree(&spare);
            errno(error)
        })
    }
}
