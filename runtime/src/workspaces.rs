//! A project that the code of a sandbox works on.
//!
//! What: [`Project`] says which directory and how. When the sandbox is built
//! its workspace is made or opened; after every run the agent's changes are
//! brought back, and [`ProjectSync`] says what was.
//! Why: the code works on real files at once, and its user gets exactly its
//! changes.
//!
//! Invariant: a sync runs only while no code of the sandbox does. A workspace
//! that holds anything that was not brought back stays.

mod attached;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use fumehood_host_fns::records::{Home, RecordsError};
use fumehood_host_fns::{
    HostMount, NativeMount, NativeSession, Strategy, Workspace, WorkspaceError, WorkspaceLimits,
    WorkspaceOptions,
};
use fumehood_policies::{Access, GuestPath};

use attached::State;
pub use attached::{AttachedProject, ProjectSync, SyncState, WorkspaceEnd, report_json};

use crate::error::BuildError;
use crate::{host_env, natively};

/// Where the guest sees a project unless something else is asked for.
pub const PROJECT_AT: &str = "/work/project";
/// The guest directory of inputs.
pub const INPUTS_AT: &str = "/work/inputs";

/// What happens to the agent's changes after a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SyncMode {
    /// They are brought back.
    #[default]
    AfterRun,
    /// It is reported what would be brought back.
    DryRun,
    /// They stay in the workspace until [`AttachedProject::sync`].
    OnDemand,
}

/// Told while a project is copied: files and bytes so far.
type Progress = dyn Fn(u64, u64) + Send + Sync;

/// A directory that code works on, with its changes kept apart until they are
/// brought back.
///
/// The working directory of the code is the project. The workspace is in the
/// home's `workspaces`, under the session's id or the name given here.
#[derive(Clone)]
pub struct Project {
    directory: PathBuf,
    home: Arc<Home>,
    at: String,
    name: Option<String>,
    keep: bool,
    mode: SyncMode,
    local_edits: bool,
    options: WorkspaceOptions,
    progress: Option<Arc<Progress>>,
}

impl std::fmt::Debug for Project {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Project")
            .field("directory", &self.directory)
            .field("at", &self.at)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Project {
    /// The project in `directory`, whose workspace is kept in `home`.
    #[must_use]
    pub fn new(directory: impl Into<PathBuf>, home: Arc<Home>) -> Self {
        Self {
            directory: directory.into(),
            home,
            at: PROJECT_AT.to_owned(),
            name: None,
            keep: false,
            mode: SyncMode::AfterRun,
            local_edits: true,
            options: WorkspaceOptions::default(),
            progress: None,
        }
    }

    /// Where the guest sees it, instead of [`PROJECT_AT`].
    #[must_use]
    pub fn at(mut self, guest: impl Into<String>) -> Self {
        self.at = guest.into();
        self
    }

    /// Leaves out names that match, in both directions and beside the default
    /// ones. `*` is any characters.
    #[must_use]
    pub fn exclude(mut self, pattern: impl Into<String>) -> Self {
        self.options.exclude.push(pattern.into());
        self
    }

    /// Shows names that match although such files usually hold secrets.
    #[must_use]
    pub fn show_hidden(mut self, pattern: impl Into<String>) -> Self {
        self.options.show_hidden.push(pattern.into());
        self
    }

    /// Names the workspace. A workspace of that name that holds changes is
    /// gone on with.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Keeps the workspace also when everything was brought back.
    #[must_use]
    pub fn keep(mut self, keep: bool) -> Self {
        self.keep = keep;
        self
    }

    /// What happens to the changes after a run.
    #[must_use]
    pub fn sync(mut self, mode: SyncMode) -> Self {
        self.mode = mode;
        self
    }

    /// Whether a sync looks for files that the user changed meanwhile, for
    /// which it walks the whole project; it does unless told otherwise.
    #[must_use]
    pub fn report_local_edits(mut self, report: bool) -> Self {
        self.local_edits = report;
        self
    }

    /// Most that the workspace may hold.
    #[must_use]
    pub fn limits(mut self, limits: WorkspaceLimits) -> Self {
        self.options.limits = limits;
        self
    }

    /// Accepts a project that is otherwise refused: a home directory or one on
    /// a network file system.
    #[must_use]
    pub fn force(mut self, force: bool) -> Self {
        self.options.force = force;
        self
    }

    /// Hears of files and bytes while the project is copied, where it has to
    /// be.
    #[must_use]
    pub fn on_copy(mut self, progress: impl Fn(u64, u64) + Send + Sync + 'static) -> Self {
        self.progress = Some(Arc::new(progress));
        self
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(crate) fn guest_path(&self) -> &str {
        &self.at
    }

    pub(crate) fn is_forced(&self) -> bool {
        self.options.force
    }

    /// Makes or opens the workspace. `directory` is the project as it was
    /// granted; `native` is shown its copy, if commands are to see it.
    ///
    /// # Errors
    /// [`BuildError`]; nothing is left behind.
    pub(crate) fn attach(
        self,
        directory: &Path,
        session: &str,
        native: Option<&mut NativeSession>,
        native_only: bool,
    ) -> Result<(AttachedProject, HostMount), BuildError> {
        if let Some(native) = native.as_deref().filter(|_| !native_only) {
            // The code sees it there. What is shown to a tier with no file system
            // of its own lies in the home, where nothing can be mounted.
            natively::same_place(native, &HostMount::point(&self.at)?, self.home.path())?;
        }
        let name = self.name.clone().unwrap_or_else(|| session.to_owned());
        let place = self.home.workspace(&name, true)?;
        let missing = || RecordsError::NoSession(name.clone());
        let place = place.ok_or_else(missing)?;
        let (workspace, strategy) = match &native {
            None => (self.open(&place, directory, &name, Strategy::Live)?, Strategy::Live),
            Some(native) => self.open_for(native, &place, directory, &name)?,
        };
        let mount = workspace.mount(&self.at)?;
        let mut seen_at = mount.at.clone();
        if let Some(native) = native {
            let shown = shown_natively(&workspace, strategy, &place, &mount.at)?;
            let other = native.tier.runs_as().filter(|_| strategy == Strategy::Materialised);
            if let Some((user, group)) = other {
                workspace.give_copy_to(user, group)?;
            }
            let at = if native_only {
                native.tier.place_of(&mount.at, &shown.host)
            } else {
                mount.at.clone()
            };
            native.cwd = at.to_string();
            seen_at = at.clone();
            native.mounts.push(NativeMount { at, ..shown });
        }
        let attached = AttachedProject {
            at: seen_at,
            name,
            home: self.home,
            keep: self.keep,
            mode: self.mode,
            local_edits: self.local_edits,
            strategy,
            state: Mutex::new(State {
                workspace: Some(workspace),
                running: 0,
                open: HashMap::new(),
                kept_for_open: false,
            }),
        };
        Ok((attached, mount))
    }

    /// As an overlay where the tier can mount it, else as a whole copy. What a
    /// workspace of that name is already is kept.
    fn open_for(
        &self,
        native: &NativeSession,
        place: &Path,
        directory: &Path,
        name: &str,
    ) -> Result<(Workspace, Strategy), BuildError> {
        let (kernel, copy) = (Strategy::Kernel, Strategy::Materialised);
        if Workspace::project_of(place)?.is_some() {
            let tried = self.open(place, directory, name, kernel);
            return match tried {
                Err(BuildError::WorkspaceStrategy { .. }) => {
                    Ok((self.open(place, directory, name, copy)?, copy))
                }
                Err(error) => Err(error),
                Ok(workspace) => {
                    can_mount(native, &workspace, place).map_err(|reason| {
                        tracing::warn!(reason, "the overlay of a workspace cannot be mounted");
                        BuildError::WorkspaceStrategy {
                            name: name.to_owned(),
                            has: workspace.strategy().name(),
                            needs: copy.name(),
                        }
                    })?;
                    Ok((workspace, kernel))
                }
            };
        }
        match self.open(place, directory, name, kernel) {
            Ok(workspace) => match can_mount(native, &workspace, place) {
                Ok(()) => return Ok((workspace, kernel)),
                Err(reason) => {
                    tracing::debug!(reason, "a project is copied for a native tier");
                    workspace.discard()?;
                }
            },
            Err(BuildError::Workspace(WorkspaceError::NoOverlay)) => {}
            Err(error) => return Err(error),
        }
        let place = self.home.workspace(name, true)?;
        let place = place.ok_or_else(|| RecordsError::NoSession(name.to_owned()))?;
        Ok((self.open(&place, directory, name, copy)?, copy))
    }

    fn open(
        &self,
        place: &Path,
        directory: &Path,
        name: &str,
        strategy: Strategy,
    ) -> Result<Workspace, BuildError> {
        let Some(recorded) = Workspace::project_of(place)? else {
            let apart_from = Some(self.home.path().to_owned());
            let options = WorkspaceOptions { strategy, apart_from, ..self.options.clone() };
            let mut progress = |files, bytes| {
                if let Some(progress) = &self.progress {
                    progress(files, bytes);
                }
            };
            let made = Workspace::create(place, directory, &options, &mut progress);
            if made.is_err() {
                // It is empty, unless another process just made one.
                let _ = self.home.remove_workspace(name);
            }
            return Ok(made?);
        };
        let same = host_env::resolved(&recorded).is_some_and(|recorded| {
            host_env::resolved(directory).is_some_and(|directory| recorded == directory)
        });
        if !same {
            return Err(WorkspaceError::OtherProject { project: recorded }.into());
        }
        let mut workspace = Workspace::open(place)?;
        let differs = |asked: &[String], has: &[String]| !asked.is_empty() && asked != has;
        if differs(&self.options.exclude, workspace.exclude())
            || differs(&self.options.show_hidden, workspace.show_hidden())
        {
            return Err(BuildError::WorkspaceView { name: name.to_owned() });
        }
        if workspace.strategy().is_like(strategy) {
            workspace.go_on_as(strategy);
        } else {
            return Err(BuildError::WorkspaceStrategy {
                name: name.to_owned(),
                has: workspace.strategy().name(),
                needs: strategy.name(),
            });
        }
        Ok(workspace)
    }
}

/// How a workspace is shown to commands.
fn shown_natively(
    workspace: &Workspace,
    strategy: Strategy,
    place: &Path,
    at: &GuestPath,
) -> Result<NativeMount, WorkspaceError> {
    let (dir, host, overlay) = if strategy == Strategy::Kernel {
        let overlay = Arc::new(workspace.native_overlay()?);
        (workspace.project_handle()?, workspace.project_path().to_owned(), Some(overlay))
    } else {
        (workspace.copy_handle()?, Workspace::copy_place(place), None)
    };
    let (at, dir, access) = (at.clone(), Arc::new(dir), Access::ReadWrite);
    Ok(NativeMount { at, dir, host, access, execute: true, overlay })
}

/// Whether the tier can mount the overlay of a workspace, or why not.
fn can_mount(native: &NativeSession, workspace: &Workspace, place: &Path) -> Result<(), String> {
    let at = GuestPath::parse(&GuestPath::root(), PROJECT_AT.as_bytes());
    let at = at.map_err(|error| error.to_string())?.path;
    let shown = shown_natively(workspace, Strategy::Kernel, place, &at);
    native.tier.try_overlay(&shown.map_err(|error| error.to_string())?)
}
