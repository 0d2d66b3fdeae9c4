//! Permission bits of files of the host.
//!
//! Invariant: the bits of a file that takes another's place are those of that
//! one; set-id and sticky bits never are.

use cap_std::fs::MetadataExt as _;
use fumehood_policies::RequestedPath;
use rustix::fs::Mode;

use super::{HostDirectory, HostFile};
use crate::errno::Errno;
use crate::fs::convert::host_errno;
use crate::fs::node::{Step, done};

impl HostDirectory {
    /// The permission bits of the regular file at a path.
    pub(in crate::fs) fn mode(&self, path: &RequestedPath) -> Result<Step<u32>, Errno> {
        let place = done!(self.place(&path.path)?);
        let metadata = Self::look(&place)?.ok_or(Errno::Noent)?;
        if metadata.is_file() { Ok(Step::Done(metadata.mode() & 0o777)) } else { Err(Errno::Perm) }
    }

    pub(in crate::fs) fn set_mode(&self, file: &HostFile, mode: u32) -> Result<(), Errno> {
        self.writable()?;
        let mode = Mode::from_raw_mode(mode as rustix::fs::RawMode);
        rustix::fs::fchmod(&file.file, mode).map_err(|error| host_errno(&error.into()))
    }

    /// Gives an open file the permission bits of the one at a path.
    pub(crate) fn copy_mode(
        &self,
        path: &RequestedPath,
        file: &HostFile,
    ) -> Result<Step<()>, Errno> {
        let mode = done!(self.mode(path)?);
        self.set_mode(file, mode).map(Step::Done)
    }
}
