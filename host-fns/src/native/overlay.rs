//! A project over which a command's changes are kept apart by the kernel.
//!
//! What: the parts of an overlay mount: [`NativeOverlay::upper`] takes the
//! changes in the kernel's own format, which is that of the live strategy, and
//! [`NativeOverlay::mask`] hides what the agent is not to see.
//!
//! Invariant: the mask is made anew before every mount, so that a secret that
//! the user made meanwhile is hidden too.

use std::fmt;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;

use rustix::io::Errno as Host;

use crate::fs::handle::{Directory, Kind};
use crate::fs::overlay::{Layer, WhiteoutForm, make_whiteout};
use crate::workspace::{UPPER, measure};

/// The parts of an overlay mount beside the project itself.
pub struct NativeOverlay {
    layer: Arc<Layer>,
    project: Directory,
    /// Where masks are made; not the work directory, which is the kernel's.
    place: Directory,
    mask: Directory,
}

const MASK: &[u8] = b"mask";

impl fmt::Debug for NativeOverlay {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("NativeOverlay").finish_non_exhaustive()
    }
}

impl NativeOverlay {
    /// Parts in a workspace at `place`, with nothing hidden yet: see
    /// [`NativeOverlay::refresh`].
    ///
    /// # Errors
    /// What the file system says; `NOTSUP` where whiteouts cannot be made.
    pub(crate) fn new(
        layer: Arc<Layer>,
        project: &Directory,
        place: &Directory,
    ) -> rustix::io::Result<Self> {
        if layer.form != WhiteoutForm::Device {
            return Err(Host::NOTSUP);
        }
        let (project, place) = (Directory::again(project)?, Directory::again(place)?);
        place.remove_tree(MASK)?;
        place.make_directory(MASK, 0o700)?;
        let mask = place.child(MASK)?;
        Ok(Self { layer, project, place, mask })
    }

    /// Hides what is to be hidden now. Walks the names of the whole project.
    ///
    /// # Errors
    /// What the file system says; then nothing may be mounted.
    pub fn refresh(&self) -> rustix::io::Result<()> {
        for name in self.mask.names()? {
            self.mask.remove_tree(&name)?;
        }
        // The top has the mode of the changes, and below other ones that of the
        // first lower directory.
        let mode = self.project.look_self()?.mode;
        self.place.set_mode(MASK, mode | 0o700)?;
        self.place.set_mode(UPPER, mode | 0o700)?;
        self.hide(&self.project, &mut Vec::new())
    }

    fn hide(&self, dir: &Directory, path: &mut Vec<Vec<u8>>) -> rustix::io::Result<()> {
        for entry in dir.entries_if_there()? {
            if self.layer.view.unseen(&entry.name).is_some() {
                let at = self.masked(path)?;
                make_whiteout(&at, &entry.name, WhiteoutForm::Device)?;
            } else if entry.kind == Kind::Directory {
                let below = match dir.child(&entry.name) {
                    Ok(below) => below,
                    Err(Host::ACCESS | Host::PERM | Host::NOENT | Host::NOTDIR) => continue,
                    Err(error) => return Err(error),
                };
                path.push(entry.name);
                self.hide(&below, path)?;
                path.pop();
            }
        }
        Ok(())
    }

    /// The directory of the mask for one of the project, made if it is not
    /// there, with the mode that is seen through it.
    fn masked(&self, path: &[Vec<u8>]) -> rustix::io::Result<Directory> {
        let (mut mask, mut project) =
            (Directory::again(&self.mask)?, Directory::again(&self.project)?);
        for name in path {
            project = project.child(name)?;
            match mask.make_directory(name, 0o700) {
                Ok(()) => mask.set_mode(name, project.look_self()?.mode | 0o700)?,
                Err(Host::EXIST) => {}
                Err(error) => return Err(error),
            }
            mask = mask.child(name)?;
        }
        Ok(mask)
    }

    /// The descriptors that a mount takes beside the project: changes, the
    /// kernel's own directory, and the mask.
    #[must_use]
    pub fn parts(&self) -> [BorrowedFd<'_>; 3] {
        [self.layer.upper.as_fd(), self.layer.work.as_fd(), self.mask.as_fd()]
    }

    pub(crate) fn upper(&self) -> rustix::io::Result<Directory> {
        Directory::again(&self.layer.upper)
    }

    pub(crate) fn layer(&self) -> Arc<Layer> {
        Arc::clone(&self.layer)
    }

    /// Counts what the changes take, after a mount.
    pub(crate) fn measure(&self) -> std::io::Result<()> {
        let (bytes, inodes) = measure(&self.layer.upper)?;
        self.layer.quota.set(bytes, inodes);
        Ok(())
    }

    /// Whether the changes take more than the workspace may hold, while a
    /// command makes them. What cannot be counted is too much.
    pub(crate) fn is_full(&self) -> bool {
        measure(&self.layer.upper)
            .map_or(true, |(bytes, inodes)| self.layer.quota.is_exceeded_by(bytes, inodes))
    }
}
