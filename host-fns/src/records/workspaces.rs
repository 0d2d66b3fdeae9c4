//! Where the workspaces of projects are kept.
//!
//! Why apart from the records: records are removed when they are old; a
//! workspace may hold changes that are nowhere else.
//!
//! Invariant: only an empty directory is removed here; what is in a workspace
//! is its own to discard.

use std::path::PathBuf;

use crate::records::directory::{Directory, is_session_name};
use crate::records::keep::MAX_SESSIONS;
use crate::records::{Home, RecordsError};

const WORKSPACES: &str = "workspaces";

impl Home {
    fn workspaces(&self, create: bool) -> Result<Option<Directory>, RecordsError> {
        let found = self.root.directory(WORKSPACES, create);
        found.map_err(|error| RecordsError::file(WORKSPACES, error))
    }

    /// The directory for the workspace `name`, made if `create` says so; `None`
    /// if there is none.
    ///
    /// # Errors
    /// [`RecordsError`] if the name is none or the directory cannot be used.
    pub fn workspace(&self, name: &str, create: bool) -> Result<Option<PathBuf>, RecordsError> {
        if !is_session_name(name) {
            return Err(RecordsError::NoSession(name.to_owned()));
        }
        let Some(all) = self.workspaces(create)? else { return Ok(None) };
        let found = all.directory(name, create).map_err(|error| RecordsError::file(name, error))?;
        Ok(found.map(|_| self.path.join(WORKSPACES).join(name)))
    }

    /// The names of all workspaces, sorted.
    ///
    /// # Errors
    /// [`RecordsError`] if they cannot be listed.
    pub fn workspace_names(&self) -> Result<Vec<String>, RecordsError> {
        let Some(all) = self.workspaces(false)? else { return Ok(Vec::new()) };
        let names = all.names(MAX_SESSIONS);
        let mut names = names.map_err(|error| RecordsError::file(WORKSPACES, error))?;
        names.retain(|name| is_session_name(name));
        names.sort();
        Ok(names)
    }

    /// Removes the directory of a workspace that was discarded.
    ///
    /// # Errors
    /// [`RecordsError`] if it is not empty or cannot be removed.
    pub fn remove_workspace(&self, name: &str) -> Result<(), RecordsError> {
        if !is_session_name(name) {
            return Err(RecordsError::NoSession(name.to_owned()));
        }
        let Some(all) = self.workspaces(false)? else { return Ok(()) };
        match all.remove_directory(name) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(RecordsError::file(name, error))
            }
            _ => Ok(()),
        }
    }
}
