//! Bringing the workspace to what both sides now agree on.
//!
//! Invariant: done only after the project has what the journal says; each step
//! can be repeated after a crash. What the agent does not see is never given to
//! it.

use std::io;

use rustix::fs::{FileType as HostType, Mode};
use rustix::io::Errno as Host;

use crate::fs::handle::{self, Directory, Kind, look_at, split};
use crate::fs::overlay::{Layer, OPAQUE, make_whiteout};
use crate::workspace::baseline::Agreed;
use crate::workspace::journal::Settle;
use crate::workspace::state::{Identity, MODE_BITS, State};
use crate::workspace::view::Unseen;

/// Attempts to copy a file that someone writes to meanwhile.
const COPY_ATTEMPTS: u32 = 4;

/// Settles paths of one workspace.
pub(crate) struct Settler<'w> {
    pub(crate) project: &'w Directory,
    pub(crate) layer: &'w Layer,
    pub(crate) whole: bool,
    /// Paths of the upper tree that the guest holds open for writing.
    pub(crate) open: &'w [Vec<u8>],
    pub(crate) now: i128,
}

impl Settler<'_> {
    pub(crate) fn settle(&self, path: &[u8], settle: &Settle) -> io::Result<()> {
        match settle {
            Settle::Held { digest, hide } => self.hold(path, *digest, *hide),
            Settle::Took(state) if self.whole => self.agree(path, state),
            Settle::Took(state) if self.open.iter().any(|open| open == path) => {
                self.layer.baselines.set(&Agreed::on(path, state.clone()))
            }
            Settle::Give if self.whole => self.give(path),
            Settle::Give if self.open.iter().any(|open| open == path) => Ok(()),
            Settle::Took(_) | Settle::Give => self.uncover(path),
        }
    }

    /// The project shows through again.
    fn uncover(&self, path: &[u8]) -> io::Result<()> {
        let (parent, name) = match self.layer.upper.parent(path) {
            Ok(found) => found,
            Err(Host::NOENT | Host::NOTDIR) => return self.layer.baselines.forget(path),
            Err(error) => return Err(error.into()),
        };
        match parent.look(name)? {
            None => {}
            Some(look) if look.kind == Kind::Directory => {
                let dir = parent.child(name)?;
                unhide(&dir)?;
                match parent.remove_directory(name) {
                    Ok(()) => {}
                    // Where the project has no such directory, what is left out
                    // has no place any more.
                    Err(Host::NOTEMPTY | Host::EXIST) => {
                        if !self.has_directory(path) && self.is_left_out(&dir)? {
                            parent.remove_tree(name)?;
                        }
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            Some(_) => parent.remove_file(name)?,
        }
        self.layer.baselines.forget(path)
    }

    fn has_directory(&self, path: &[u8]) -> bool {
        self.project.beneath(path).is_ok()
    }

    /// Whether a directory of the upper tree holds nothing but what is left out.
    fn is_left_out(&self, dir: &Directory) -> io::Result<bool> {
        for entry in dir.entries()? {
            let excluded = self.layer.view.unseen(&entry.name) == Some(Unseen::Excluded);
            if excluded {
                continue;
            }
            if entry.kind != Kind::Directory || !self.is_left_out(&dir.child(&entry.name)?)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The agent keeps its version.
    fn hold(&self, path: &[u8], digest: [u8; 32], hide: bool) -> io::Result<()> {
        let known = self.layer.baselines.get(path)?;
        let known = known.unwrap_or_else(|| Agreed::on(path, State::Absent));
        self.layer.baselines.set(&Agreed { held: Some(digest), ..known })?;
        if !hide {
            return Ok(());
        }
        // Its directory will no longer hide it.
        let (parent, name) = self.layer.upper.parent(path)?;
        if parent.look(name)?.is_none() {
            make_whiteout(&parent, name, self.layer.form)?;
        }
        Ok(())
    }

    /// Notes what both sides have.
    fn agree(&self, path: &[u8], state: &State) -> io::Result<()> {
        if state.is_absent() {
            return self.layer.baselines.forget(path);
        }
        let seen = |root: &Directory| {
            let (parent, name) = root.parent(path).ok()?;
            let look = parent.look(name).ok()??;
            Some(Identity::of(&look)).filter(|seen| seen.settled(self.now))
        };
        let (project, workspace) = (seen(self.project), seen(&self.layer.upper));
        self.layer.baselines.set(&Agreed { project, workspace, ..Agreed::on(path, state.clone()) })
    }

    /// Brings the project's version into a whole copy.
    fn give(&self, path: &[u8]) -> io::Result<()> {
        let unseen =
            path.split(|byte| *byte == b'/').any(|name| self.layer.view.unseen(name).is_some());
        let (above, name) = split(path);
        let from = self.project.beneath(above).ok().filter(|_| !unseen);
        let look = match &from {
            Some(dir) => dir.look(name)?,
            None => None,
        };
        let (Some(from), Some(look)) = (from, look) else { return self.drop_copy(path) };
        let to = match self.layer.upper.beneath(above) {
            Ok(to) => to,
            // The directory above could not be given.
            Err(Host::NOENT | Host::NOTDIR) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let shut = || matches!(from.child(name), Err(Host::ACCESS | Host::PERM));
        match look.kind {
            Kind::Directory if shut() => self.drop_copy(path),
            Kind::Directory => self.give_directory(path, &to, name, look.mode & MODE_BITS),
            Kind::Symlink => {
                let target = from.read_link(name)?;
                let spare = self.layer.spare_name();
                self.layer.work.make_symlink(&spare, &target)?;
                self.place_copy(&spare, &to, name)?;
                self.layer.baselines.set(&Agreed::on(path, State::Symlink { target }))
            }
            Kind::File => self.give_file(path, &from, &to, name),
            Kind::Whiteout | Kind::Other => self.drop_copy(path),
        }
    }

    fn drop_copy(&self, path: &[u8]) -> io::Result<()> {
        match self.layer.upper.parent(path) {
            Ok((parent, name)) => {
                let directory = parent.look(name)?.is_some_and(|look| look.kind == Kind::Directory);
                let removed = if directory {
                    parent.remove_directory(name)
                } else {
                    parent.remove_file(name)
                };
                match removed {
                    Ok(()) | Err(Host::NOENT) => {}
                    Err(Host::NOTEMPTY | Host::EXIST) => {
                        if !self.is_left_out(&parent.child(name)?)? {
                            // It holds something of the agent's.
                            return Ok(());
                        }
                        parent.remove_tree(name)?;
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            Err(Host::NOENT | Host::NOTDIR) => {}
            Err(error) => return Err(error.into()),
        }
        self.layer.baselines.forget(path)
    }

    pub(crate) fn give_directory(
        &self,
        path: &[u8],
        to: &Directory,
        name: &[u8],
        mode: u32,
    ) -> io::Result<()> {
        match to.look(name)? {
            Some(look) if look.kind == Kind::Directory => {}
            Some(_) => {
                to.remove_file(name)?;
                to.make_directory(name, mode)?;
            }
            None => to.make_directory(name, mode)?,
        }
        to.set_mode(name, mode)?;
        self.layer.baselines.set(&Agreed::on(path, State::Directory { mode }))
    }

    /// Copies a file of the project; shares its blocks where the file system
    /// can. Never a hard link: the two must not change together.
    pub(crate) fn give_file(
        &self,
        path: &[u8],
        from: &Directory,
        to: &Directory,
        name: &[u8],
    ) -> io::Result<()> {
        for _ in 0..COPY_ATTEMPTS {
            let (mut file, look) = match from.open_file(name) {
                Ok(opened) => opened,
                // It cannot be read, so the agent cannot have it.
                Err(Host::ACCESS | Host::PERM | Host::NOENT) => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            let spare = self.layer.spare_name();
            let mut copy = self.layer.work.create(&spare, 0o600)?;
            let copied = clone_or_copy(&mut file, &mut copy);
            let same = look_at(&file).is_ok_and(|now| Identity::of(&now) == Identity::of(&look));
            let (size, digest) = match copied {
                Ok(copied) if same => copied,
                Ok(_) => {
                    self.layer.work.remove_file(&spare)?;
                    continue;
                }
                Err(error) => {
                    let _ = self.layer.work.remove_file(&spare);
                    return Err(error);
                }
            };
            let mode = look.mode & MODE_BITS;
            rustix::fs::fchmod(&copy, Mode::from_raw_mode(mode as rustix::fs::RawMode))?;
            handle::set_modified(&copy, look.modified)?;
            self.place_copy(&spare, to, name)?;
            let project = Some(Identity::of(&look)).filter(|seen| seen.settled(self.now));
            let state = State::File { mode, size, digest };
            return self.layer.baselines.set(&Agreed { project, ..Agreed::on(path, state) });
        }
        Ok(())
    }

    fn place_copy(&self, spare: &[u8], to: &Directory, name: &[u8]) -> io::Result<()> {
        let over = to.look(name)?;
        if over.is_some_and(|look| look.kind == Kind::Directory) {
            match to.remove_directory(name) {
                Ok(()) => {}
                Err(Host::NOTEMPTY | Host::EXIST) => {
                    let old = self.layer.spare_name();
                    to.move_new(name, &self.layer.work, &old)?;
                    self.layer.work.remove_tree(&old)?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.layer.work.move_over(spare, to, name).map_err(Into::into)
    }
}

/// Lets the lower directory show through. Whiteouts in files need their mark.
fn unhide(dir: &Directory) -> io::Result<()> {
    if dir.attribute(OPAQUE)?.as_deref() != Some(b"y") {
        return Ok(());
    }
    let files = dir.entries()?.iter().any(|entry| entry.kind == Kind::File);
    if files {
        return dir.set_attribute(OPAQUE, b"x").map_err(Into::into);
    }
    rustix::fs::fremovexattr(dir, OPAQUE).map_err(Into::into)
}

#[cfg(target_os = "linux")]
fn clone_or_copy(from: &mut std::fs::File, to: &mut std::fs::File) -> io::Result<(u64, [u8; 32])> {
    if rustix::fs::ioctl_ficlone(&*to, &*from).is_ok() {
        return handle::digest(from);
    }
    handle::copy(from, to)
}

#[cfg(not(target_os = "linux"))]
fn clone_or_copy(from: &mut std::fs::File, to: &mut std::fs::File) -> io::Result<(u64, [u8; 32])> {
    handle::copy(from, to)
}

/// The bytes and inodes of a tree, whiteouts included, also while it changes.
/// What cannot be counted, since it lies too deep or may not be read, is more
/// than any number: the workspace is full, and can still be discarded.
pub(crate) fn measure(dir: &Directory) -> io::Result<(u64, u64)> {
    let (mut bytes, mut inodes) = (0_u64, 0_u64);
    for name in dir.names()? {
        let Some(look) = dir.look(&name)? else { continue };
        inodes = inodes.saturating_add(1);
        if look.kind == Kind::File {
            bytes = bytes.saturating_add(look.size);
        } else if look.kind == Kind::Directory {
            let below = match dir.child(&name) {
                Ok(below) => below,
                Err(Host::NOENT | Host::NOTDIR) => continue,
                Err(Host::NAMETOOLONG | Host::ACCESS | Host::PERM) => {
                    return Ok((u64::MAX, u64::MAX));
                }
                Err(error) => return Err(error.into()),
            };
            let (more, below) = measure(&below)?;
            bytes = bytes.saturating_add(more);
            inodes = inodes.saturating_add(below);
        }
    }
    Ok((bytes, inodes))
}

/// The form of whiteouts that can be made in a directory.
pub(crate) fn whiteout_form(work: &Directory) -> Result<super::WhiteoutForm, Host> {
    use super::WhiteoutForm as Form;
    let name = b"probe";
    work.make_directory(name, 0o700)?;
    let marked = work.child(name).and_then(|dir| dir.set_attribute(OPAQUE, b"y"));
    work.remove_directory(name)?;
    marked?;
    match rustix::fs::mknodat(work, handle::os(name), HostType::CharacterDevice, Mode::empty(), 0) {
        Ok(()) => {
            work.remove_file(name)?;
            Ok(Form::Device)
        }
        Err(Host::PERM | Host::ACCESS | Host::NOTSUP) => Ok(Form::Attribute),
        Err(error) => Err(error),
    }
}
