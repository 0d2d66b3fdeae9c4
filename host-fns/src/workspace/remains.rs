//! A workspace without its project.
//!
//! What: [`Remains`] is what can be had of a workspace whose project was moved
//! or removed: its changes can be handed on, and it can be discarded.
//! Why: it would otherwise stay for ever.
//!
//! Invariant: the project is not touched, and nothing is discarded of which the
//! project may still need a part: a sync that was interrupted comes first.

use std::io::{self, Write};
use std::path::Path;

use super::ArchiveError;
use super::archive::{export_tree, take_import_back};
use super::baseline::Baselines;
use super::error::WorkspaceError;
use super::journal::{JOURNAL, Journal, Phase};
use super::lock::Lock;
use super::open::{
    BASELINES, Discarded, Strategy, UPPER, WORK, failed, host_failed, read_meta, remove_parts,
};
use crate::fs::handle::Directory;

/// What is left of a workspace whose project is gone.
#[derive(Debug)]
pub struct Remains {
    root: Directory,
    upper: Directory,
    strategy: Strategy,
    _lock: Lock,
}

impl Remains {
    /// Opens the workspace at a place without looking at its project.
    ///
    /// # Errors
    /// [`WorkspaceError`]; [`WorkspaceError::Recovery`] if a sync of it was
    /// interrupted, which only the project can bring to its end.
    pub fn open(at: &Path) -> Result<Self, WorkspaceError> {
        let root = Directory::open(at).map_err(host_failed("opened"))?;
        let meta = read_meta(&root)?;
        let lock = Lock::take(&root)?;
        if let Some((journal, phase)) = Journal::left_over(&root).map_err(failed("opened"))?
            && phase != Phase::Planning
        {
            let stage = journal.stage().ok().flatten().unwrap_or_default();
            let stage = String::from_utf8_lossy(&stage).into_owned();
            let source = io::Error::other("the project is not there");
            return Err(WorkspaceError::Recovery { stage, source });
        }
        let upper = root.child(UPPER).map_err(host_failed("opened"))?;
        let work = root.child(WORK).map_err(host_failed("opened"))?;
        let baselines = Baselines::open(&root, BASELINES).map_err(failed("opened"))?;
        take_import_back(&upper, &work, &baselines).map_err(failed("opened"))?;
        Ok(Self { root, upper, strategy: meta.strategy, _lock: lock })
    }

    /// Whether it may hold anything that was not brought back. Of a whole copy
    /// only its project could tell.
    #[must_use]
    pub fn has_changes(&self) -> bool {
        self.strategy == Strategy::Materialised
            || self.upper.names().map_or(true, |names| !names.is_empty())
    }

    /// Writes the agent's changes as a compressed archive.
    ///
    /// # Errors
    /// [`ArchiveError`] if there is no such form of them, or writing fails.
    pub fn export(&self, out: impl Write) -> Result<(), ArchiveError> {
        if self.strategy == Strategy::Materialised {
            return Err(ArchiveError::NotLive);
        }
        export_tree(out, &self.upper)
    }

    /// Removes the workspace with everything in it.
    ///
    /// # Errors
    /// [`WorkspaceError::Io`] if it cannot be removed completely.
    pub fn discard(self) -> Result<Discarded, WorkspaceError> {
        let had_changes = self.has_changes();
        self.root.remove_tree(JOURNAL).map_err(host_failed("removed"))?;
        remove_parts(&self.root)?;
        Ok(Discarded { had_changes })
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "tests prepare host files")]
mod tests {
    use std::fs;

    use super::*;
    use crate::workspace::testing::*;
    use crate::workspace::{ProjectError, Workspace};

    #[test]
    fn a_workspace_whose_project_is_gone_is_handed_on_and_discarded() {
        for strategy in [Strategy::Live, Strategy::Materialised] {
            let lab = Lab::new(strategy);
            lab.write("a", "base");
            let workspace = lab.create();
            agent(&workspace).put("/p/a", b"agent").unwrap();
            assert!(matches!(Remains::open(&lab.session()), Err(WorkspaceError::InUse)));
            drop(workspace);
            fs::rename(lab.project(), lab.root.path().join("elsewhere")).unwrap();
            assert!(matches!(
                Workspace::open(&lab.session()),
                Err(WorkspaceError::Project(ProjectError::Missing { .. }))
            ));
            let remains = Remains::open(&lab.session()).unwrap();
            let mut bytes = Vec::new();
            let exported = remains.export(&mut bytes).map_err(|error| error.code());
            if strategy == Strategy::Live {
                assert_eq!(exported, Ok(()));
                let other = Lab::new(strategy);
                other.write("a", "base");
                let mut taken = other.create();
                taken.import(bytes.as_slice()).unwrap();
                assert_eq!(agent(&taken).get("/p/a").unwrap(), b"agent");
            } else {
                assert_eq!(exported, Err("archive_not_live"));
            }
            assert!(remains.discard().unwrap().had_changes);
            assert_eq!(Workspace::project_of(&lab.session()).unwrap(), None);
            assert_eq!(fs::read(lab.root.path().join("elsewhere/a")).unwrap(), b"base");
        }
    }

    #[test]
    fn a_sync_that_was_interrupted_comes_first() {
        let mut refused = 0;
        for at in 0..20 {
            let lab = Lab::new(Strategy::Live);
            lab.write("a", "base");
            let mut workspace = lab.create();
            agent(&workspace).put("/p/a", b"agent").unwrap();
            // As if it was killed there.
            let _ = workspace.sync_with(&options(), &FailAt::new(at, true));
            drop(workspace);
            let journal = fs::metadata(lab.session().join("journal")).is_ok();
            fs::rename(lab.project(), lab.root.path().join("elsewhere")).unwrap();
            if let Err(error) = Remains::open(&lab.session()) {
                assert!(journal && error.code() == "workspace_recovery", "{at}: {error}");
                refused += 1;
            }
        }
        assert!(refused > 0);
    }
}
