//! Bringing changes back.
//!
//! What: plan, put together, seal, apply, settle; see
//! [`super::journal`] for what a crash leaves at each point.
//! Why: either all of the agent's changes are in the project or none is.
//!
//! Invariant: nothing is left in the project but the report's changes. If the
//! project keeps changing under a sync it is planned anew a few times.

use std::cell::OnceCell;
use std::io;
use std::os::unix::ffi::OsStrExt as _;

use rustix::io::Errno as Host;

use crate::fs::handle::{Directory, Kind, joined};
use crate::fs::overlay::is_opaque;
use crate::workspace::apply::{Applier, Stop, item_name};
use crate::workspace::error::WorkspaceError;
use crate::workspace::journal::{Entry, Journal, Op, Phase};
use crate::workspace::open::{Strategy, Workspace, file_time_now};
use crate::workspace::plan::{Change, Planner, Sink};
use crate::workspace::report::SyncReport;
use crate::workspace::settle::{Settler, measure};
use crate::workspace::stage::Writer;
use crate::workspace::state::{self, State};
use crate::workspace::steps::{Every, Steps};
use crate::workspace::view::Unseen;

/// Times that a sync is planned anew because the project changed under it.
pub const MAX_SYNC_ATTEMPTS: u32 = 8;

/// Threads that wait for the disk.
const WRITERS: usize = 8;

/// How to sync.
#[derive(Clone, Debug)]
pub struct SyncOptions {
    /// Paths (relative to the project, with everything below) that are taken
    /// although a tool of the host would run or obey them.
    pub accept: Vec<Vec<u8>>,
    /// Paths that the guest holds open for writing: their files stay in the
    /// workspace.
    pub open: Vec<Vec<u8>>,
    /// Look for files that the user changed; walks the whole project.
    pub find_local_edits: bool,
    /// Name what is held back also where an earlier sync did.
    pub tell_held_again: bool,
}

impl Default for SyncOptions {
    fn default() -> Self {
        Self {
            accept: Vec::new(),
            open: Vec::new(),
            find_local_edits: true,
            tell_held_again: false,
        }
    }
}

/// Why a sync did not happen. The project is as it was, the workspace too.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    /// The project changed every time.
    #[error(
        "the project kept changing during the sync, so nothing was brought back: sync again when it is quiet"
    )]
    Changing,
    /// No space for the new versions.
    #[error(
        "there is no space to bring the changes back, so nothing was: free space and sync again"
    )]
    NoSpace {
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The project cannot be written.
    #[error(
        "the project cannot be written, so nothing was brought back: check its permissions and sync again"
    )]
    Denied {
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Something else failed.
    #[error("the changes could not be brought back; the workspace still has them: {source}")]
    Io {
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It could not be taken back completely.
    #[error(transparent)]
    Recovery(#[from] WorkspaceError),
}

impl SyncError {
    /// A stable identifier.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Changing => "sync_changing",
            Self::NoSpace { .. } => "sync_no_space",
            Self::Denied { .. } => "sync_denied",
            Self::Io { .. } => "sync_io",
            Self::Recovery(_) => "sync_recovery",
        }
    }
}

impl From<io::Error> for SyncError {
    fn from(source: io::Error) -> Self {
        match Host::from_io_error(&source) {
            Some(Host::NOSPC | Host::DQUOT) => Self::NoSpace { source },
            Some(Host::ACCESS | Host::PERM | Host::ROFS) => Self::Denied { source },
            _ => Self::Io { source },
        }
    }
}

/// Counts what would be done.
#[derive(Default)]
struct Count {
    settled: u64,
}

impl Sink for Count {
    fn take(&mut self, change: Change<'_>) -> io::Result<()> {
        if matches!(change, Change::Settle { .. }) {
            self.settled = self.settled.saturating_add(1);
        }
        Ok(())
    }
}

impl Workspace {
    pub(crate) fn whole(&self) -> bool {
        self.strategy() == Strategy::Materialised
    }

    /// Compares both sides; how much is held back.
    pub(crate) fn plan<S: Sink>(
        &self,
        options: &SyncOptions,
        sink: &mut S,
        report: &mut SyncReport,
    ) -> io::Result<u64> {
        let mut planner = Planner {
            project: &self.project,
            named: self.project_path().as_os_str().as_bytes(),
            links: OnceCell::new(),
            layer: &self.layer,
            whole: self.whole(),
            accepted: &options.accept,
            tell_held_again: options.tell_held_again,
            now: file_time_now(),
            sink,
            report,
            held: 0,
            pending: Vec::new(),
        };
        planner.run()?;
        let held = planner.held;
        if options.find_local_edits && !self.whole() {
            self.local_edits(&[], &self.project, true, report)?;
        }
        Ok(held)
    }

    /// What a sync would do; nothing is changed.
    ///
    /// # Errors
    /// [`SyncError`] if the two sides cannot be compared.
    pub fn dry_run(&self, options: &SyncOptions) -> Result<SyncReport, SyncError> {
        let mut report = SyncReport::default();
        self.plan(options, &mut Count::default(), &mut report)?;
        Ok(report)
    }

    pub(crate) fn compare_changes(&self) -> io::Result<bool> {
        if !self.whole() {
            return self.changed_below(&[], &self.layer.upper, Some(&self.project));
        }
        let (mut report, mut count) = (SyncReport::default(), Count::default());
        let held = self.plan(&SyncOptions::default(), &mut count, &mut report)?;
        Ok(count.settled != 0 || held != 0)
    }

    /// Whether an upper tree holds anything that a sync would look at: not what
    /// is left out, nor directories that both sides had.
    fn changed_below(
        &self,
        path: &[u8],
        upper: &Directory,
        local: Option<&Directory>,
    ) -> io::Result<bool> {
        for entry in upper.entries()? {
            if self.layer.view.unseen(&entry.name) == Some(Unseen::Excluded) {
                continue;
            }
            if entry.kind != Kind::Directory {
                return Ok(true);
            }
            let inner = joined(path, &entry.name);
            let below = local.and_then(|local| local.child(&entry.name).ok());
            let agreed = || self.layer.baselines.get(&inner);
            let is_new = below.is_none() && !agreed()?.is_some_and(|on| on.state.is_directory());
            let made = upper.child(&entry.name)?;
            if is_new || is_opaque(&made)? || self.changed_below(&inner, &made, below.as_ref())? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Brings the agent's changes back, all of them or none, and gives the
    /// agent what the user changed. Blocks on files of the host.
    ///
    /// # Errors
    /// [`SyncError`]; the project and the workspace are then as they were.
    pub fn sync(&mut self, options: &SyncOptions) -> Result<SyncReport, SyncError> {
        self.sync_with(options, &Every)
    }

    pub(crate) fn sync_with(
        &mut self,
        options: &SyncOptions,
        steps: &dyn Steps,
    ) -> Result<SyncReport, SyncError> {
        for _ in 0..MAX_SYNC_ATTEMPTS {
            self.recover(steps)?;
            if let Some(report) = self.attempt(options, steps)? {
                self.since = file_time_now();
                return Ok(report);
            }
        }
        Err(SyncError::Changing)
    }

    /// One plan and its application; `None` if the project changed meanwhile.
    fn attempt(
        &self,
        options: &SyncOptions,
        steps: &dyn Steps,
    ) -> Result<Option<SyncReport>, SyncError> {
        let mut report = SyncReport::default();
        let mut writer = Writer { workspace: self, steps, journal: None, stage: None, items: 0 };
        let planned = self.plan(options, &mut writer, &mut report);
        let Writer { journal, stage, .. } = writer;
        let Some(mut journal) = journal else {
            planned?;
            return Ok(Some(report));
        };
        let sealed = planned.and_then(|_| self.seal(&mut journal, stage.as_ref(), steps));
        if let Err(error) = sealed {
            self.abandon(journal, stage.is_some())?;
            return Err(error.into());
        }
        // Without a stage there are only permissions and empty directories.
        let stage = stage.as_ref();
        let applier =
            Applier { project: &self.project, stage: stage.unwrap_or(&self.project), steps };
        let applied = applier.apply(&journal).and_then(|applied| match applied {
            Ok(()) => match steps.step("applied").and_then(|()| journal.add(&Entry::Applied)) {
                Ok(()) => Ok(Ok(())),
                Err(error) => {
                    applier.take_back(&journal, journal.len())?;
                    Ok(Err(Stop::Failed(error)))
                }
            },
            stopped => Ok(stopped),
        });
        match applied {
            Ok(Ok(())) => {}
            Ok(Err(stop)) => {
                self.abandon(journal, stage.is_some())?;
                return match stop {
                    Stop::Changed => Ok(None),
                    Stop::Failed(error) => Err(error.into()),
                };
            }
            Err(source) => return Err(self.stuck(&journal, source).into()),
        }
        self.finish(journal, options, steps, &mut report).map_err(|source| {
            SyncError::Recovery(WorkspaceError::Io { what: "brought up to date", source })
        })?;
        Ok(Some(report))
    }

    /// Waits until the versions that replace others are on the disk, then makes
    /// the plan valid. After a loss of power a file is then the old or the new
    /// one, never an empty one.
    fn seal(
        &self,
        journal: &mut Journal,
        stage: Option<&Directory>,
        steps: &dyn Steps,
    ) -> io::Result<()> {
        if let Some(stage) = stage {
            let mut items = Vec::new();
            for number in 0..journal.len() {
                if let Entry::Op(Op::Put { item, expected, state: State::File { .. }, .. }) =
                    journal.get(number)?
                    && !expected.is_absent()
                {
                    items.push(item);
                }
            }
            steps.step("write out")?;
            write_out(stage, &items)?;
        }
        steps.step("seal")?;
        journal.add(&Entry::Sealed)
    }

    /// Removes a journal of which nothing is left in the project, and its
    /// stage.
    fn abandon(&self, journal: Journal, staged: bool) -> io::Result<()> {
        if staged && let Some(name) = journal.stage()? {
            Applier::remove_stage(&self.project, &name)?;
        }
        journal.remove(&self.root)
    }

    fn stuck(&self, journal: &Journal, source: io::Error) -> WorkspaceError {
        let stage = journal.stage().ok().flatten().unwrap_or_default();
        WorkspaceError::Recovery { stage: String::from_utf8_lossy(&stage).into_owned(), source }
    }

    /// After everything was applied: what was displaced is looked at once
    /// more, then the stage goes away and the workspace is settled.
    fn finish(
        &self,
        journal: Journal,
        options: &SyncOptions,
        steps: &dyn Steps,
        report: &mut SyncReport,
    ) -> io::Result<()> {
        let name = journal.stage()?;
        if let Some(name) = &name
            && self.project.look(name)?.is_some()
        {
            let stage = self.project.child(name)?;
            let applier = Applier { project: &self.project, stage: &stage, steps };
            for number in 0..journal.len() {
                if let Entry::Op(op) = journal.get(number)? {
                    keep_late_edit(&applier, &op, report)?;
                }
            }
            steps.step("remove stage")?;
            Applier::remove_stage(&self.project, name)?;
        }
        let settler = Settler {
            project: &self.project,
            layer: &self.layer,
            whole: self.whole(),
            open: &options.open,
            now: file_time_now(),
        };
        for number in 0..journal.len() {
            if let Entry::Settle { path, settle } = journal.get(number)? {
                steps.step("settle")?;
                settler.settle(&path, &settle)?;
            }
        }
        if !self.whole() {
            if self.layer.upper.names()?.is_empty() {
                self.layer.baselines.clear()?;
            }
            let (bytes, inodes) = measure(&self.layer.upper)?;
            self.layer.quota.set(bytes, inodes);
        }
        steps.step("end")?;
        journal.remove(&self.root)
    }

    /// Takes an interrupted sync back, or brings it to its end.
    pub(crate) fn recover(&mut self, steps: &dyn Steps) -> Result<(), WorkspaceError> {
        let failed = |source| WorkspaceError::Io { what: "recovered", source };
        let Some((journal, phase)) = Journal::left_over(&self.root).map_err(failed)? else {
            return Ok(());
        };
        if phase == Phase::Applied {
            let mut report = SyncReport::default();
            return self
                .finish(journal, &SyncOptions::default(), steps, &mut report)
                .map_err(failed);
        }
        if phase == Phase::Sealed {
            let stage = self.stage_again(&journal).map_err(failed)?;
            let applier = Applier { project: &self.project, stage: &stage, steps };
            if let Err(source) = applier.take_back(&journal, journal.len()) {
                return Err(self.stuck(&journal, source));
            }
        }
        self.abandon(journal, true).map_err(failed)
    }

    /// The stage of an interrupted sync; an empty one if it had none.
    fn stage_again(&self, journal: &Journal) -> io::Result<Directory> {
        let missing = || io::Error::other("a journal without a stage");
        let name = journal.stage()?.ok_or_else(missing)?;
        match self.project.make_directory(&name, 0o700) {
            Ok(()) | Err(Host::EXIST) => self.project.child(&name).map_err(Into::into),
            Err(error) => Err(error.into()),
        }
    }
}

/// Waits until files of the stage are on the disk, several at a time: the file
/// system then writes its own journal once for many of them.
fn write_out(stage: &Directory, items: &[u64]) -> io::Result<()> {
    let one = |item: &u64| stage.open_file(&item_name(*item))?.0.sync_data();
    let part = items.len().div_ceil(WRITERS).max(1);
    std::thread::scope(|scope| {
        let writers: Vec<_> = items
            .chunks(part)
            .map(|items| scope.spawn(move || items.iter().try_for_each(one)))
            .collect();
        writers.into_iter().try_for_each(|writer| {
            writer.join().unwrap_or_else(|_| Err(io::Error::other("a writer failed")))
        })
    })
}

/// Something may have been written to a displaced file through a descriptor
/// that was open all the time.
fn keep_late_edit(applier: &Applier<'_>, op: &Op, report: &mut SyncReport) -> io::Result<()> {
    let (path, item, expected, inode) = match op {
        Op::Put { path, item, expected, inode, .. } => (path, item, expected, *inode),
        Op::Remove { path, item, expected } => (path, item, expected, 0),
        _ => return Ok(()),
    };
    let item = item_name(*item);
    let displaced = applier.stage.look(&item)?.is_some_and(|look| look.inode != inode);
    if !displaced || state::read(applier.stage, &item).same(expected) {
        return Ok(());
    }
    let kept = applier.kept_beside(path, &item)?;
    report.conflict(
        path,
        Some(&kept),
        "it was written to while it was replaced; your version is kept",
    );
    Ok(())
}
