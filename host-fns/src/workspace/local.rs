//! What happened in the project without the broker: edits of the user's, and
//! changes through a mount of the kernel's.

use std::io;

use crate::fs::handle::{self, Directory, Kind, joined};
use crate::fs::overlay::is_opaque;
use crate::workspace::open::{Strategy, Workspace};
use crate::workspace::report::{ProjectPath, SyncReport};
use crate::workspace::state::{self, State, TIME_GRAIN_NS};
use crate::workspace::sync::SyncError;
use crate::workspace::view::Unseen;

/// What changes began with that nobody noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Began {
    /// With what the project has now.
    Now,
    /// With what it has now where that was not touched since the workspace was
    /// opened or last synced.
    Untouched,
}

impl Workspace {
    /// Notes what changes began with that were made without the broker, through
    /// a mount of the kernel's: the project's present state where it was not
    /// touched since the workspace was opened or last synced. Where it was,
    /// what it began with stays unknown, which is a conflict.
    ///
    /// # Errors
    /// [`SyncError`] if the trees cannot be walked.
    pub fn adopt(&self) -> Result<(), SyncError> {
        if self.whole() {
            return Ok(());
        }
        self.begin_below(&self.layer.upper, Began::Untouched)?;
        Ok(())
    }

    /// Notes the project's states under everything in an upper tree.
    pub(crate) fn begin_below(&self, upper: &Directory, began: Began) -> io::Result<()> {
        self.adopt_below(&[], upper, Some(&self.project), false, began)
    }

    fn adopt_below(
        &self,
        path: &[u8],
        upper: &Directory,
        local: Option<&Directory>,
        opaque: bool,
        began: Began,
    ) -> io::Result<()> {
        let Some(local) = local else { return Ok(()) };
        let names = if opaque { local.names()? } else { upper.names()? };
        for name in names {
            let inner = joined(path, &name);
            let look = local.look(&name)?;
            if let Some(look) = look
                && self.layer.view.unseen(&name).is_none()
            {
                self.adopt_one(&inner, local, &name, look.changed, began)?;
                if look.kind == Kind::Directory {
                    let below = local.child(&name)?;
                    match upper.child(&name) {
                        Ok(upper) => {
                            let opaque = opaque || is_opaque(&upper)?;
                            self.adopt_below(&inner, &upper, Some(&below), opaque, began)?;
                        }
                        // Nothing of it is left: everything in it was removed.
                        Err(_) => self.adopt_below(&inner, &below, Some(&below), true, began)?,
                    }
                }
            }
        }
        Ok(())
    }

    fn adopt_one(
        &self,
        path: &[u8],
        local: &Directory,
        name: &[u8],
        changed: i128,
        began: Began,
    ) -> io::Result<()> {
        if self.layer.baselines.knows(path) {
            return Ok(());
        }
        let state = state::read(local, name);
        // A mount comes later than the workspace by more than a tick of the
        // clock of files: what is as old as the workspace was there before it.
        let grain = if self.strategy() == Strategy::Kernel { 0 } else { TIME_GRAIN_NS };
        let untouched = began == Began::Now
            || changed.saturating_add(grain) < self.since
            || state.is_directory();
        let state = if untouched { state } else { State::Unknown };
        self.layer.baselines.begin(path, state)
    }

    /// Notes files that were changed since the last sync.
    pub(crate) fn local_edits(
        &self,
        path: &[u8],
        dir: &Directory,
        shared: bool,
        report: &mut SyncReport,
    ) -> io::Result<()> {
        for entry in dir.entries_if_there()? {
            let inner = joined(path, &entry.name);
            match self.layer.view.unseen(&entry.name) {
                Some(Unseen::Excluded) => continue,
                Some(Unseen::Secret) => {
                    report.hidden.push(ProjectPath(inner));
                    continue;
                }
                None => {}
            }
            // Where the upper tree has something it was compared.
            let (above, _) = handle::split(&inner);
            let over = shared
                && self
                    .layer
                    .upper
                    .beneath(above)
                    .is_ok_and(|upper| !matches!(upper.look(&entry.name), Ok(None)));
            if entry.kind == Kind::Directory {
                if let Ok(below) = dir.child(&entry.name) {
                    self.local_edits(&inner, &below, shared && over, report)?;
                }
            } else if !over
                && let Some(look) = dir.look(&entry.name)?
                && look.changed > self.since
            {
                report.picked_up.push(ProjectPath(inner));
            }
        }
        Ok(())
    }
}
