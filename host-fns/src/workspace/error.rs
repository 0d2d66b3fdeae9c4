//! Why there is no workspace. One sentence what happened, one what to do.

use std::io;
use std::path::PathBuf;

use crate::workspace::view::PatternError;

/// Why a directory cannot be a project. One sentence what happened, one what
/// to do.
#[derive(Debug, thiserror::Error)]
pub enum ProjectError {
    /// There is none.
    #[error("the project {path:?} does not exist: make it or name another directory")]
    Missing {
        /// As given.
        path: PathBuf,
    },
    /// It is something else.
    #[error("the project {path:?} is not a directory: name the directory that holds it")]
    NotADirectory {
        /// As given.
        path: PathBuf,
    },
    /// It would hand over too much, or cannot be worked on safely.
    #[error("the project {path:?} is {what}: name a directory inside it instead")]
    Forbidden {
        /// As given.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// It and the session lie within each other.
    #[error(
        "the project {path:?} and the session's files at {session:?} lie within each other: keep sessions elsewhere, for example by setting FUMEHOOD_HOME"
    )]
    Overlaps {
        /// The project.
        path: PathBuf,
        /// The session's directory.
        session: PathBuf,
    },
    /// This user may not look at it.
    #[error("the project {path:?} cannot be opened: check its permissions")]
    Unreadable {
        /// As given.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Why there is no workspace.
#[derive(Debug, thiserror::Error)]
pub enum WorkspaceError {
    /// The project cannot be one.
    #[error(transparent)]
    Project(#[from] ProjectError),
    /// A pattern cannot be used.
    #[error(transparent)]
    Pattern(#[from] PatternError),
    /// There is one already.
    #[error("a workspace is already there: open it, or discard it first")]
    Exists,
    /// It was made for another project.
    #[error(
        "the workspace belongs to the project {project:?}: name that project, or use another session name"
    )]
    OtherProject {
        /// Its project.
        project: PathBuf,
    },
    /// Another process has it open.
    #[error("another process uses this workspace: wait for it to end")]
    InUse,
    /// The overlay's marks cannot be kept there.
    #[error(
        "the file system of the session directory cannot hold an overlay (no user extended attributes): use another place for FUMEHOOD_HOME, or the materialised strategy"
    )]
    NoOverlay,
    /// It was made by another version or is damaged.
    #[error(
        "the workspace cannot be read by this version: sync or discard it with the version that made it"
    )]
    Version,
    /// A sync that was interrupted cannot be taken back; nothing is lost.
    #[error(
        "a sync that was interrupted could not be taken back: what is missing is in `{stage}` in the project; free space or fix permissions and try again"
    )]
    Recovery {
        /// The stage's name, in the project.
        stage: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The host failed.
    #[error("the workspace cannot be {what}: check space and permissions of the session directory")]
    Io {
        /// What was tried.
        what: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl WorkspaceError {
    /// A stable identifier.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Project(ProjectError::Missing { .. }) => "project_missing",
            Self::Project(ProjectError::NotADirectory { .. }) => "project_not_a_directory",
            Self::Project(ProjectError::Forbidden { .. }) => "project_forbidden",
            Self::Project(ProjectError::Overlaps { .. }) => "project_overlaps_session",
            Self::Project(ProjectError::Unreadable { .. }) => "project_unreadable",
            Self::Pattern(_) => "workspace_pattern",
            Self::Exists => "workspace_exists",
            Self::OtherProject { .. } => "workspace_other_project",
            Self::InUse => "workspace_in_use",
            Self::NoOverlay => "workspace_no_overlay",
            Self::Version => "workspace_version",
            Self::Recovery { .. } => "workspace_recovery",
            Self::Io { .. } => "workspace_io",
        }
    }
}
