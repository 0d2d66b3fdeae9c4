//! A workspace while its sandbox lives.
//!
//! Invariant: a sync runs only while no code of the sandbox does. A workspace
//! that holds anything that was not brought back stays.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fumehood_host_fns::records::Home;
use fumehood_host_fns::{Strategy, SyncError, SyncOptions, SyncReport, Workspace, WorkspaceError};
use fumehood_policies::GuestPath;
use serde::Serialize;
use serde_json::{Value, json};

use super::SyncMode;
use crate::outcome::{Outcome, OutcomeKind};

/// What became of the agent's changes after a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SyncState {
    /// They were brought back, as the report says.
    Synced,
    /// The report says what would be brought back.
    DryRun,
    /// Nothing was brought back, since nobody asked for it or the run did not
    /// end well enough.
    NotSynced,
    /// Other code of the sandbox is running: they are brought back after it.
    Later,
    /// They could not be brought back.
    Failed,
}

/// The project's part of an [`Outcome`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProjectSync {
    /// Where the guest sees the project.
    pub at: String,
    /// How changes are kept apart: `live`, `kernel` or `materialised`.
    pub strategy: &'static str,
    /// The workspace's name.
    pub workspace: String,
    /// What became of the changes.
    pub state: SyncState,
    /// Whether the workspace holds anything that was not brought back.
    pub unsynced: bool,
    /// Why it failed: a stable code and a sentence.
    pub error: Option<(&'static str, String)>,
    /// What was brought back, or would be.
    pub report: Option<SyncReport>,
}

impl ProjectSync {
    /// Its form in the JSON record.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let error = self.error.as_ref();
        json!({
            "at": self.at,
            "strategy": self.strategy,
            "workspace": self.workspace,
            "state": self.state,
            "unsynced": self.unsynced,
            "error": error.map(|(code, message)| json!({ "code": code, "message": message })),
            "report": self.report.as_ref().map(report_json),
        })
    }
}

/// A report as JSON, with how much of it is left out.
#[must_use]
pub fn report_json(report: &SyncReport) -> Value {
    let mut value = serde_json::to_value(report).unwrap_or_default();
    if let Value::Object(object) = &mut value {
        object.insert("not_listed".to_owned(), json!(report.not_listed()));
    }
    value
}

/// What became of a workspace when its sandbox was done with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkspaceEnd {
    /// Everything was brought back and it was removed.
    Removed,
    /// It is kept because that was asked for.
    Kept,
    /// It holds changes that were not brought back.
    Unsynced,
}

/// The project of a sandbox. Dropped with it, which removes the workspace if
/// everything was brought back and it is not to be kept.
pub struct AttachedProject {
    pub(super) at: GuestPath,
    pub(super) name: String,
    pub(super) home: Arc<Home>,
    pub(super) keep: bool,
    pub(super) mode: SyncMode,
    pub(super) local_edits: bool,
    pub(super) strategy: Strategy,
    pub(super) state: Mutex<State>,
}

pub(super) struct State {
    /// `None` once it was closed.
    pub(super) workspace: Option<Workspace>,
    /// Runs and cells that go on.
    pub(super) running: usize,
    /// What each session holds open for writing, or would after going back.
    pub(super) open: HashMap<String, Vec<Vec<u8>>>,
    /// Whether the last changes that were brought back left files in the
    /// workspace because a session held them open. Who does may have ended
    /// since.
    pub(super) kept_for_open: bool,
}

impl std::fmt::Debug for AttachedProject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AttachedProject").field("name", &self.name).finish_non_exhaustive()
    }
}

impl AttachedProject {
    /// The workspace's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How changes are kept apart.
    #[must_use]
    pub fn strategy(&self) -> Strategy {
        self.strategy
    }

    pub(crate) fn at(&self) -> &GuestPath {
        &self.at
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Brings changes back now; `None` while code of the sandbox runs or after
    /// [`AttachedProject::close`]. Blocks on files of the host.
    ///
    /// # Errors
    /// [`SyncError`]; the project is then as it was.
    pub fn sync(&self, options: &SyncOptions) -> Result<Option<SyncReport>, SyncError> {
        let mut state = self.state();
        let options = state.with_open(options.clone());
        if state.running > 0 {
            return Ok(None);
        }
        let State { workspace: Some(workspace), kept_for_open, .. } = &mut *state else {
            return Ok(None);
        };
        let report = workspace.sync(&options)?;
        *kept_for_open = !options.open.is_empty();
        Ok(Some(report))
    }

    /// Ends the use of the workspace. Nothing is removed that was not brought
    /// back. Later runs of the sandbox find their changes in nothing: call it
    /// when there are none.
    ///
    /// # Errors
    /// [`WorkspaceError`]; the workspace is kept.
    pub fn close(&self) -> Result<WorkspaceEnd, WorkspaceError> {
        let mut state = self.state();
        let Some(mut workspace) = state.workspace.take() else { return Ok(WorkspaceEnd::Removed) };
        if self.mode == SyncMode::AfterRun && state.kept_for_open {
            // What was kept for open files is the project's by now.
            let options = SyncOptions { find_local_edits: false, ..SyncOptions::default() };
            let _ = workspace.sync(&options);
        }
        if workspace.has_changes()? {
            return Ok(WorkspaceEnd::Unsynced);
        }
        if self.keep {
            return Ok(WorkspaceEnd::Kept);
        }
        workspace.discard()?;
        // An empty directory that stays harms nobody.
        let _ = self.home.remove_workspace(&self.name);
        Ok(WorkspaceEnd::Removed)
    }

    /// Says that code runs from now on. Waits for a sync to end.
    pub(crate) fn begin(self: &Arc<Self>) -> InUse {
        let mut state = self.state();
        state.running = state.running.saturating_add(1);
        InUse { project: Arc::clone(self), counted: true }
    }

    /// A session has ended.
    pub(crate) fn forget(&self, session: &str) {
        self.state().open.remove(session);
    }

    /// A fork holds open what its parent does.
    pub(crate) fn inherit(&self, parent: &str, child: &str) {
        let mut state = self.state();
        if let Some(open) = state.open.get(parent).cloned() {
            state.open.insert(child.to_owned(), open);
        }
    }

    fn told(&self, state: &State, became: SyncState) -> ProjectSync {
        let unsynced = state.workspace.as_ref().is_none_or(|w| w.has_changes().unwrap_or(true));
        ProjectSync {
            at: self.at.to_string(),
            strategy: self.strategy.name(),
            workspace: self.name.clone(),
            state: became,
            unsynced,
            error: None,
            report: None,
        }
    }

    /// Files that were written and are as before are no changes.
    fn leave_out_unchanged(&self, state: &State, outcome: &mut Outcome) {
        let Some(workspace) = &state.workspace else { return };
        outcome.files.modified.retain(|shown| {
            // An escaped name is looked up by nobody.
            let path = Some(shown).filter(|shown| !shown.contains('\\'));
            let path = path.and_then(|path| {
                GuestPath::parse(&GuestPath::root(), path.as_bytes()).ok().map(|found| found.path)
            });
            let within = path.as_ref().and_then(|path| path.strip_prefix(&self.at));
            within.is_none_or(|path| !workspace.is_unchanged(path))
        });
    }

    /// Notes what the kernel's changes began with, which it does not tell.
    fn adopt(&self, state: &State) {
        let Some(workspace) =
            state.workspace.as_ref().filter(|_| self.strategy == Strategy::Kernel)
        else {
            return;
        };
        if let Err(error) = workspace.adopt() {
            tracing::error!(%error, "what the changes began with is not known; they will conflict");
        }
    }

    fn finish(&self, state: &mut State, outcome: &mut Outcome) {
        self.adopt(state);
        self.leave_out_unchanged(state, outcome);
        let ended_well =
            !matches!(outcome.kind, OutcomeKind::Refused { .. } | OutcomeKind::SandboxFault { .. });
        let options = SyncOptions { find_local_edits: self.local_edits, ..SyncOptions::default() };
        let options = state.with_open(options);
        let (became, done) = match (self.mode, &mut state.workspace) {
            (SyncMode::OnDemand, _) | (_, None) => (SyncState::NotSynced, None),
            _ if !ended_well => (SyncState::NotSynced, None),
            _ if state.running > 0 => (SyncState::Later, None),
            (SyncMode::DryRun, Some(workspace)) => {
                (SyncState::DryRun, Some(workspace.dry_run(&options)))
            }
            (SyncMode::AfterRun, Some(workspace)) => {
                let synced = workspace.sync(&options);
                if synced.is_ok() {
                    state.kept_for_open = !options.open.is_empty();
                }
                (SyncState::Synced, Some(synced))
            }
        };
        let mut told = self.told(state, became);
        match done {
            None => {}
            Some(Ok(report)) => told.report = Some(report),
            Some(Err(error)) => {
                told.state = SyncState::Failed;
                told.error = Some((error.code(), error.to_string()));
            }
        }
        outcome.project = Some(told);
    }
}

impl State {
    fn with_open(&self, mut options: SyncOptions) -> SyncOptions {
        options.open.extend(self.open.values().flatten().cloned());
        options
    }
}

impl Drop for AttachedProject {
    fn drop(&mut self) {
        // What cannot be removed is found again by its name.
        let _ = self.close();
    }
}

/// Code that works on a project; until it is dropped nothing is brought back.
pub(crate) struct InUse {
    project: Arc<AttachedProject>,
    counted: bool,
}

impl InUse {
    /// The code has ended, and holds `open` open for writing. Brings changes
    /// back and writes what became of them into the outcome.
    pub(crate) fn end(mut self, outcome: &mut Outcome, session: &str, open: Vec<Vec<u8>>) {
        let project = Arc::clone(&self.project);
        let mut state = project.state();
        self.counted = false;
        state.running = state.running.saturating_sub(1);
        if open.is_empty() {
            state.open.remove(session);
        } else {
            state.open.insert(session.to_owned(), open);
        }
        project.finish(&mut state, outcome);
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        if self.counted {
            let mut state = self.project.state();
            state.running = state.running.saturating_sub(1);
        }
    }
}
