//! The workspace of a project: where an agent's changes are until they are
//! brought back.
//!
//! What: [`Workspace`] is a directory of a session that holds the agent's
//! changes to a project, as an overlay ([`Strategy::Live`]) or as a whole copy
//! ([`Strategy::Materialised`]); [`Workspace::sync`] brings them back.
//! Why: the user gets exactly the agent's changes and never loses a byte of
//! their own.
//!
//! Invariant: a file of the project is changed or removed only if its content
//! is what both sides last agreed on; a sync happens completely or not at all,
//! also when the process is killed in the middle; the workspace stays until a
//! sync succeeded or the caller discards it. A process that is killed leaves
//! either the old or the new state after the next [`Workspace::open`].

mod apply;
mod archive;
pub(crate) mod baseline;
mod below;
mod diff;
mod error;
mod guarded;
mod journal;
mod links;
mod local;
mod lock;
mod open;
mod plan;
mod remains;
mod report;
mod settle;
mod stage;
pub(crate) mod state;
mod steps;
mod sync;
pub(crate) mod view;

#[cfg(test)]
mod guard_tests;
#[cfg(test)]
mod kernel_tests;
#[cfg(test)]
mod promise_tests;
#[cfg(test)]
mod property_tests;
#[cfg(test)]
mod race_tests;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod testing_edits;
#[cfg(test)]
mod tests;

use crate::fs::overlay::WhiteoutForm;

pub use archive::ArchiveError;
pub use diff::MAX_DIFF_BYTES;
pub use error::{ProjectError, WorkspaceError};
pub(crate) use open::UPPER;
pub use open::{Discarded, Strategy, Workspace, WorkspaceOptions};
pub use remains::Remains;
pub use report::{Conflict, GuardedPath, Listed, MAX_REPORTED_PATHS, ProjectPath, SyncReport};
pub(crate) use settle::measure;
pub use sync::{MAX_SYNC_ATTEMPTS, SyncError, SyncOptions};
pub use view::{DEFAULT_EXCLUDES, PatternError, View};
