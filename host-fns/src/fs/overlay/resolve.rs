//! What a path means in the two trees.
//!
//! Invariant: a component that is a symbolic link ends the walk with a
//! redirect; a name that the view hides is not there in the lower tree.

use fumehood_policies::GuestPath;
use rustix::io::Errno as Host;

use super::{Layer, OPAQUE, OverlayDirectory, errno};
use crate::errno::Errno;
use crate::fs::handle::{Directory, Kind, Look, split};
use crate::fs::node::{Step, follow_link};

/// What the upper tree has under a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Over {
    Nothing,
    Whiteout,
    Entry(Look),
}

/// A name, and what each tree has under it.
#[derive(Debug)]
pub(super) struct Found<'p> {
    /// The path relative to the mount.
    pub(super) relative: &'p [u8],
    pub(super) name: &'p [u8],
    /// The directory that holds it, where a tree has it.
    pub(super) upper: Option<Directory>,
    pub(super) lower: Option<Directory>,
    pub(super) over: Over,
    /// What the lower tree has, seen or not.
    pub(super) under: Option<Look>,
    /// The view hides what the lower tree has.
    pub(super) unseen: bool,
}

impl Found<'_> {
    pub(super) fn over_entry(&self) -> Option<Look> {
        match self.over {
            Over::Entry(look) => Some(look),
            _ => None,
        }
    }

    /// What the guest would see of the lower tree if nothing were over it.
    pub(super) fn seen_under(&self) -> Option<Look> {
        self.under.filter(|_| !self.unseen)
    }

    /// What the guest sees of the lower tree.
    pub(super) fn visible_under(&self) -> Option<Look> {
        self.seen_under().filter(|_| self.over == Over::Nothing)
    }

    /// What the guest sees.
    pub(super) fn look(&self) -> Option<Look> {
        self.over_entry().or_else(|| self.visible_under())
    }
}

pub(crate) fn is_opaque(dir: &Directory) -> Result<bool, Host> {
    Ok(dir.attribute(OPAQUE)?.as_deref() == Some(b"y"))
}

/// Whether whiteouts in it may be files; `y` cannot say, so files are looked
/// at.
pub(crate) fn holds_file_whiteouts(dir: &Directory) -> Result<bool, Host> {
    Ok(matches!(dir.attribute(OPAQUE)?.as_deref(), Some(b"x" | b"y")))
}

impl OverlayDirectory {
    /// What a path means; `None` for the root of the mount.
    pub(super) fn resolve<'p>(
        &self,
        path: &'p GuestPath,
    ) -> Result<Step<Option<Found<'p>>>, Errno> {
        let relative = path.strip_prefix(&self.at).ok_or(Errno::Perm)?;
        if relative.is_empty() {
            return Ok(Step::Done(None));
        }
        let (above, last) = split(relative);
        let mut upper = Some(Directory::again(&self.layer.upper).map_err(errno)?);
        let mut lower = Some(Directory::again(&self.lower_root).map_err(errno)?);
        let mut walked = 0_usize;
        for name in above.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            if upper.is_none()
                && let Some(dir) = self.rest_at_once(lower.as_ref(), above.get(walked..))
            {
                lower = Some(dir);
                break;
            }
            walked = walked.saturating_add(name.len()).saturating_add(1);
            let found = self.meet(relative, name, upper, lower)?;
            let look = found.look().ok_or(Errno::Noent)?;
            if look.kind == Kind::Symlink {
                let holder = if found.over_entry().is_some() { &found.upper } else { &found.lower };
                let holder = holder.as_ref().ok_or(Errno::Noent)?;
                let target = holder.read_link(name).map_err(raced)?;
                let end = self.at.as_bytes().len().saturating_add(walked);
                return follow_link(path, end, &self.at, &target, false).map(Step::redirect);
            }
            (upper, lower) = self.both(&found)?;
        }
        self.meet(relative, last, upper, lower).map(|found| Step::Done(Some(found)))
    }

    /// The rest of the way through the lower tree alone, if no name on it is
    /// hidden or a link.
    fn rest_at_once(&self, lower: Option<&Directory>, rest: Option<&[u8]>) -> Option<Directory> {
        let (lower, rest) = (lower?, rest?);
        let mut names = rest.split(|byte| *byte == b'/');
        if names.any(|name| self.layer.view.unseen(name).is_some()) {
            return None;
        }
        lower.beneath(rest).ok()
    }

    fn meet<'p>(
        &self,
        relative: &'p [u8],
        name: &'p [u8],
        upper: Option<Directory>,
        lower: Option<Directory>,
    ) -> Result<Found<'p>, Errno> {
        let over = match &upper {
            Some(dir) => over(dir, name).map_err(errno)?,
            None => Over::Nothing,
        };
        let under = match &lower {
            Some(dir) => dir.look(name).map_err(errno)?,
            None => None,
        };
        let unseen = self.layer.view.unseen(name).is_some();
        Ok(Found { relative, name, upper, lower, over, under, unseen })
    }

    /// The directories that make up the one that was found.
    pub(super) fn both(
        &self,
        found: &Found<'_>,
    ) -> Result<(Option<Directory>, Option<Directory>), Errno> {
        let look = found.look().ok_or(Errno::Noent)?;
        if look.kind != Kind::Directory {
            return Err(Errno::Notdir);
        }
        let child = |dir: &Option<Directory>| match dir {
            Some(dir) => dir.child(found.name).map(Some).map_err(errno),
            None => Ok(None),
        };
        let upper = if found.over_entry().is_some() { child(&found.upper)? } else { None };
        let hidden = match &upper {
            Some(dir) => is_opaque(dir).map_err(errno)?,
            None => false,
        };
        let merges = found.seen_under().is_some_and(|look| look.kind == Kind::Directory);
        let lower = if hidden || !merges { None } else { child(&found.lower)? };
        Ok((upper, lower))
    }
}

/// A link that is none any more was changed by someone meanwhile.
fn raced(error: Host) -> Errno {
    if error == Host::INVAL { Errno::Busy } else { errno(error) }
}

fn over(dir: &Directory, name: &[u8]) -> Result<Over, Host> {
    let Some(look) = dir.look(name)? else { return Ok(Over::Nothing) };
    let in_files = look.kind == Kind::File && look.size == 0 && holds_file_whiteouts(dir)?;
    Ok(if Layer::is_whiteout(dir, name, &look, in_files)? {
        Over::Whiteout
    } else {
        Over::Entry(look)
    })
}
