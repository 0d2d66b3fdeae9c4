//! Making, removing and moving names.
//!
//! Invariant: at every moment, a crash included, each name shows what it
//! showed before or after; only an emptied directory may be left where one
//! was moved away.

use fumehood_policies::{GuestPath, MAX_PATH_BYTES, RequestedPath};
use rustix::fs::{AtFlags, FileType as HostType, Mode, RenameFlags};
use rustix::io::Errno as Host;

use super::resolve::{Found, Over};
use super::{OPAQUE, OverlayDirectory, WHITEOUT, WhiteoutForm, errno};
use crate::errno::Errno;
use crate::fs::handle::{Directory, Kind, Look, os, split};
use crate::fs::host::stays_below;
use crate::fs::node::{Renamed, Step, done};

fn second<T>(step: Step<T>) -> Step<T> {
    match step {
        Step::Redirect { to, .. } => Step::Redirect { to, second: true },
        done => done,
    }
}

/// What the quota was charged for an entry of the upper tree.
fn charged(look: &Look) -> u64 {
    if look.kind == Kind::File { look.size } else { 0 }
}

/// Makes a directory say that whiteouts in it may be files, where they are.
pub(crate) fn mark_whiteouts(dir: &Directory, form: WhiteoutForm) -> Result<(), Host> {
    if form == WhiteoutForm::Attribute && dir.attribute(OPAQUE)?.is_none() {
        dir.set_attribute(OPAQUE, b"x")?;
    }
    Ok(())
}

/// Makes a whiteout, in a directory that says so if it is of the second form:
/// see [`mark_whiteouts`].
pub(crate) fn make_whiteout(dir: &Directory, name: &[u8], form: WhiteoutForm) -> Result<(), Host> {
    match form {
        WhiteoutForm::Device => {
            rustix::fs::mknodat(dir, os(name), HostType::CharacterDevice, Mode::empty(), 0)
        }
        WhiteoutForm::Attribute => {
            let file = dir.create(name, 0o600)?;
            rustix::fs::fsetxattr(&file, WHITEOUT, b"y", rustix::fs::XattrFlags::empty())
        }
    }
}

impl OverlayDirectory {
    pub(crate) fn create_directory(&self, path: &RequestedPath) -> Result<Step<()>, Errno> {
        self.upper.check_depth(&path.path)?;
        let found = done!(self.resolve(&path.path)?).ok_or(Errno::Exist)?;
        self.absent(&found)?;
        self.made(&found, |work, name| work.make_directory(name, 0o777))
    }

    pub(crate) fn symlink(&self, target: &[u8], path: &RequestedPath) -> Result<Step<()>, Errno> {
        self.upper.check_depth(&path.path)?;
        if target.is_empty() {
            return Err(Errno::Noent);
        }
        if target.len() > MAX_PATH_BYTES {
            return Err(Errno::Nametoolong);
        }
        let found = done!(self.resolve(&path.path)?).ok_or(Errno::Exist)?;
        self.absent(&found)?;
        if path.must_be_dir {
            return Err(Errno::Noent);
        }
        self.upper.check_target(&path.path, target)?;
        self.made(&found, |work, name| work.make_symlink(name, target))
    }

    fn absent(&self, found: &Found<'_>) -> Result<(), Errno> {
        if found.look().is_some() { Err(Errno::Exist) } else { Ok(()) }
    }

    fn made(
        &self,
        found: &Found<'_>,
        make: impl FnOnce(&Directory, &[u8]) -> Result<(), Host>,
    ) -> Result<Step<()>, Errno> {
        self.layer.quota.add_inode(0)?;
        match self.put(found, make) {
            Ok(()) => Ok(Step::Done(())),
            Err(errno) => {
                self.layer.quota.release_inode(0);
                Err(errno)
            }
        }
    }

    /// Whether the lower tree would show through if nothing were over it.
    fn shows_through(found: &Found<'_>) -> bool {
        found.seen_under().is_some()
    }

    pub(crate) fn remove(&self, path: &RequestedPath) -> Result<Step<()>, Errno> {
        let found = done!(self.resolve(&path.path)?).ok_or(Errno::Isdir)?;
        let look = found.look().ok_or(Errno::Noent)?;
        match look.kind {
            Kind::Directory => return Err(Errno::Isdir),
            Kind::File | Kind::Symlink => {}
            Kind::Whiteout | Kind::Other => return Err(Errno::Perm),
        }
        if path.must_be_dir {
            return Err(Errno::Notdir);
        }
        self.take_away(&found)?;
        Ok(Step::Done(()))
    }

    pub(crate) fn remove_directory(&self, path: &RequestedPath) -> Result<Step<()>, Errno> {
        let found = done!(self.resolve(&path.path)?).ok_or(Errno::Busy)?;
        let look = found.look().ok_or(Errno::Noent)?;
        if look.kind != Kind::Directory {
            return Err(Errno::Notdir);
        }
        let (upper, lower) = self.both(&found)?;
        if !self.merged(upper.as_ref(), lower.as_ref())?.is_empty() {
            return Err(Errno::Notempty);
        }
        self.take_away(&found)?;
        Ok(Step::Done(()))
    }

    /// Makes a name show nothing. A directory is empty to the guest.
    fn take_away(&self, found: &Found<'_>) -> Result<(), Errno> {
        self.note(found)?;
        let hide = Self::shows_through(found);
        let (parent, _) = split(found.relative);
        let upper = if hide {
            self.directory_up(parent)?
        } else {
            self.layer.upper.beneath(parent).map_err(errno)?
        };
        let charge = found.over_entry().map(|look| (charged(&look), self.is_last(&upper, found)));
        self.clear(&upper, found.name, found.over, hide).map_err(errno)?;
        if let Some((bytes, true)) = charge {
            self.layer.quota.release_inode(bytes);
        }
        Ok(())
    }

    /// Whether the name is the only one of its file.
    fn is_last(&self, upper: &Directory, found: &Found<'_>) -> bool {
        rustix::fs::statat(upper, os(found.name), AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|stat| {
            stat.st_nlink <= 1 || HostType::from_raw_mode(stat.st_mode) == HostType::Directory
        })
    }

    /// Removes an entry of the upper tree, and leaves a whiteout if the lower
    /// one is to stay hidden.
    fn clear(&self, upper: &Directory, name: &[u8], over: Over, hide: bool) -> Result<(), Host> {
        let (work, spare) = (&self.layer.work, self.layer.spare_name());
        let over = match over {
            Over::Entry(look) => Some(look.kind),
            Over::Whiteout if hide => return Ok(()),
            Over::Whiteout => return upper.remove_file(name),
            Over::Nothing => None,
        };
        if !hide {
            return match over {
                None => Ok(()),
                Some(Kind::Directory) => {
                    upper.move_new(name, work, &spare)?;
                    work.remove_tree(&spare)
                }
                Some(_) => upper.remove_file(name),
            };
        }
        mark_whiteouts(upper, self.layer.form)?;
        make_whiteout(work, &spare, self.layer.form)?;
        match over {
            None => work.move_new(&spare, upper, name),
            Some(Kind::Directory) => {
                work.exchange(&spare, upper, name)?;
                work.remove_tree(&spare)
            }
            Some(_) => work.move_over(&spare, upper, name),
        }
        .inspect_err(|_| {
            let _ = work.remove_tree(&spare);
        })
    }

    pub(crate) fn link(
        &self,
        old: &RequestedPath,
        new: &RequestedPath,
        follow: bool,
    ) -> Result<Step<()>, Errno> {
        self.upper.check_depth(&new.path)?;
        let from = done!(self.resolve(&old.path)?).ok_or(Errno::Perm)?;
        let to = done!(second(self.resolve(&new.path)?)).ok_or(Errno::Exist)?;
        let look = from.look().ok_or(Errno::Noent)?;
        if look.kind == Kind::Symlink && (follow || old.must_be_dir) {
            return match self.metadata(old, true)? {
                Step::Redirect { to, second } => Ok(Step::Redirect { to, second }),
                Step::Done(_) => Err(Errno::Busy),
            };
        }
        match look.kind {
            Kind::File | Kind::Symlink => {}
            _ => return Err(Errno::Perm),
        }
        if old.must_be_dir {
            return Err(Errno::Notdir);
        }
        self.absent(&to)?;
        if new.must_be_dir {
            return Err(Errno::Noent);
        }
        self.check_movable(&from, &look)?;
        self.bring_up(&from)?;
        let (holder, name) = self.layer.upper.parent(from.relative).map_err(errno)?;
        self.put(&to, |work, spare| {
            rustix::fs::linkat(&holder, os(name), work, os(spare), AtFlags::empty())
        })?;
        Ok(Step::Done(()))
    }

    /// A link that climbs, which only the host can have made, stays where it
    /// is.
    fn check_movable(&self, found: &Found<'_>, look: &Look) -> Result<(), Errno> {
        if look.kind != Kind::Symlink {
            return Ok(());
        }
        let holder = if found.over_entry().is_some() { &found.upper } else { &found.lower };
        let holder = holder.as_ref().ok_or(Errno::Noent)?;
        stays_below(&holder.read_link(found.name).map_err(errno)?)
    }

    pub(crate) fn rename(
        &self,
        old: &RequestedPath,
        new: &RequestedPath,
    ) -> Result<Step<Renamed>, Errno> {
        self.upper.check_depth(&new.path)?;
        let from = done!(self.resolve(&old.path)?).ok_or(Errno::Busy)?;
        let to = done!(second(self.resolve(&new.path)?)).ok_or(Errno::Busy)?;
        let source = from.look().ok_or(Errno::Noent)?;
        let target = to.look();
        for look in [Some(source), target].into_iter().flatten() {
            if !matches!(look.kind, Kind::File | Kind::Directory | Kind::Symlink) {
                return Err(Errno::Perm);
            }
        }
        let directory = source.kind == Kind::Directory;
        if !directory && (old.must_be_dir || new.must_be_dir) {
            return Err(Errno::Notdir);
        }
        let same = |look: &Look| look.device == source.device && look.inode == source.inode;
        if old.path == new.path || target.as_ref().is_some_and(same) {
            return Ok(Step::Done(Renamed { directory, replaced: false, nothing: true }));
        }
        if directory && new.path.starts_with(&old.path) {
            return Err(Errno::Inval);
        }
        if old.path.starts_with(&new.path) {
            return Err(Errno::Notempty);
        }
        match target.map(|look| look.kind) {
            Some(Kind::Directory) if !directory => return Err(Errno::Isdir),
            Some(Kind::Directory) => self.check_empty(&to)?,
            Some(_) if directory => return Err(Errno::Notdir),
            _ => {}
        }
        self.check_movable(&from, &source)?;
        self.note(&from)?;
        self.note(&to)?;
        if directory {
            self.whole_up(&old.path)?;
        } else {
            self.bring_up(&from)?;
        }
        self.move_upper(&old.path, &new.path)?;
        Ok(Step::Done(Renamed { directory, replaced: target.is_some(), nothing: false }))
    }

    fn check_empty(&self, found: &Found<'_>) -> Result<(), Errno> {
        let (upper, lower) = self.both(found)?;
        if self.merged(upper.as_ref(), lower.as_ref())?.is_empty() {
            Ok(())
        } else {
            Err(Errno::Notempty)
        }
    }

    /// Moves what is completely in the upper tree.
    fn move_upper(&self, old: &GuestPath, new: &GuestPath) -> Result<(), Errno> {
        let resolve = |path| match self.resolve(path)? {
            Step::Done(Some(found)) => Ok(found),
            _ => Err(Errno::Busy),
        };
        let (from, to): (Found<'_>, Found<'_>) = (resolve(old)?, resolve(new)?);
        let moved = from.over_entry().ok_or(Errno::Busy)?;
        let hide = Self::shows_through(&from);
        let source = self.directory_up(split(from.relative).0)?;
        let parent = self.directory_up(split(to.relative).0)?;
        if moved.kind == Kind::Directory {
            let dir = source.child(from.name).map_err(errno)?;
            dir.set_attribute(OPAQUE, b"y").map_err(errno)?;
        }
        let Over::Entry(replaced) = to.over else {
            return self.move_to_free(&source, &from, &parent, &to, hide).map_err(errno);
        };
        let last = self.is_last(&parent, &to);
        source.exchange(from.name, &parent, to.name).map_err(errno)?;
        self.clear(&source, from.name, Over::Entry(replaced), hide).map_err(errno)?;
        if last {
            self.layer.quota.release_inode(charged(&replaced));
        }
        Ok(())
    }

    fn move_to_free(
        &self,
        source: &Directory,
        from: &Found<'_>,
        parent: &Directory,
        to: &Found<'_>,
        hide: bool,
    ) -> Result<(), Host> {
        if to.over == Over::Whiteout {
            if hide {
                mark_whiteouts(source, self.layer.form)?;
            }
            source.exchange(from.name, parent, to.name)?;
            // The whiteout is at the old place now.
            return if hide { Ok(()) } else { source.remove_file(from.name) };
        }
        if !hide {
            return source.move_new(from.name, parent, to.name);
        }
        if self.layer.form == WhiteoutForm::Device
            && self.move_and_hide(source, from, parent, to)?
        {
            return Ok(());
        }
        source.move_new(from.name, parent, to.name)?;
        self.clear(source, from.name, Over::Nothing, true)
    }

    /// Moves and leaves a whiteout in one step, where the file system can.
    #[cfg(target_os = "linux")]
    fn move_and_hide(
        &self,
        source: &Directory,
        from: &Found<'_>,
        parent: &Directory,
        to: &Found<'_>,
    ) -> Result<bool, Host> {
        let flags = RenameFlags::NOREPLACE | RenameFlags::WHITEOUT;
        match rustix::fs::renameat_with(source, os(from.name), parent, os(to.name), flags) {
            Ok(()) => Ok(true),
            Err(Host::INVAL | Host::PERM | Host::NOSYS) => Ok(false),
            Err(error) => Err(error),
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn move_and_hide(
        &self,
        _source: &Directory,
        _from: &Found<'_>,
        _parent: &Directory,
        _to: &Found<'_>,
    ) -> Result<bool, Host> {
        Ok(false)
    }
}
