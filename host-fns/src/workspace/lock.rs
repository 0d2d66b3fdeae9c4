//! That one process at a time has a workspace open.

use std::os::fd::OwnedFd;

use rustix::fs::FlockOperation;
use rustix::io::Errno as Host;

use crate::fs::handle::Directory;
use crate::workspace::error::WorkspaceError;

pub(crate) const LOCK: &[u8] = b"lock";

/// The lock, given up when it is dropped.
#[derive(Debug)]
pub(crate) struct Lock(OwnedFd);

impl Lock {
    /// Takes the lock of a workspace.
    ///
    /// # Errors
    /// [`WorkspaceError::InUse`] while someone has it.
    pub(crate) fn take(root: &Directory) -> Result<Self, WorkspaceError> {
        let failed = |error: Host| WorkspaceError::Io { what: "opened", source: error.into() };
        let file: OwnedFd = root.append(LOCK).map_err(failed)?.into();
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self(file)),
            Err(Host::AGAIN) => Err(WorkspaceError::InUse),
            Err(error) => Err(failed(error)),
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing it is not enough: a process that another thread just started
        // has a copy until it runs its program.
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}
