//! `--project` and `--input`: handing them to the library and telling what
//! became of them.
//!
//! Invariant: what a program can change never holds the policy that confines
//! it or the records of what it did.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fumehood::project::{
    Listed, Project, ProjectPath, ProjectSync, SyncMode, SyncReport, SyncState, WorkspaceEnd,
};
use fumehood::records::Home;
use fumehood::{Access, Outcome, Sandbox, SandboxBuilder};

use crate::args::{MountArg, ProjectArgs};
use crate::error::CliError;
use crate::output::note;
use crate::{files, progress};

/// Lines of each kind that are shown.
const SHOWN: usize = 20;

/// The home in which workspaces are kept, made if it is not there.
///
/// # Errors
/// A refusal.
pub(crate) fn home() -> Result<Home, CliError> {
    let refused = |what: &str| {
        CliError::refused(format!(
            "{what}, and changes to a project are kept there until they are brought back; set \
             FUMEHOOD_HOME to a directory that can be written"
        ))
    };
    let path = fumehood::records_location().ok_or_else(|| {
        refused("there is no place for a workspace because FUMEHOOD_HOME and HOME are not set")
    })?;
    Home::open(&path, true).map_err(|error| refused(&error.detail()))
}

/// Hands the arguments on.
///
/// # Errors
/// One sentence; nothing has run.
pub(crate) fn apply(
    args: &ProjectArgs,
    mut sandbox: SandboxBuilder,
) -> Result<SandboxBuilder, CliError> {
    for input in &args.input {
        files::check_input(input)?;
        sandbox = sandbox.input(input);
    }
    let Some(directory) = &args.project else { return Ok(sandbox) };
    let mode = if args.dry_run { SyncMode::DryRun } else { SyncMode::AfterRun };
    let mut project = Project::new(directory, Arc::new(home()?))
        .at(args.place())
        .keep(args.keep || args.dry_run)
        .sync(mode)
        .on_copy(progress::copying());
    for pattern in &args.exclude {
        project = project.exclude(pattern);
    }
    for pattern in &args.show_hidden {
        project = project.show_hidden(pattern);
    }
    if let Some(name) = &args.name {
        project = project.name(name);
    }
    Ok(sandbox.project(project))
}

/// The project as a mount, by which the program's own file is found in it.
pub(crate) fn as_mount(args: &ProjectArgs) -> Option<MountArg> {
    args.project.as_ref().map(|directory| MountArg {
        guest: args.place().to_owned(),
        host: directory.clone(),
        access: Access::ReadWrite,
        force: false,
    })
}

/// Refuses records that the program could change.
///
/// # Errors
/// One sentence.
pub(crate) fn check_places(mounts: &[MountArg]) -> Result<(), CliError> {
    // The root is refused for what it is, unless it is forced.
    let is_root = |mount: &MountArg| !mount.force && mount.host.parent().is_none();
    let writable =
        mounts.iter().filter(|mount| mount.access == Access::ReadWrite && !is_root(mount));
    let writable: Vec<(&Path, PathBuf)> = writable
        .filter_map(|mount| Some((mount.host.as_path(), files::canonical(&mount.host)?)))
        .collect();
    let home = fumehood::records_location().and_then(|home| files::canonical_so_far(&home));
    let Some(home) = home else { return Ok(()) };
    let overlapping =
        |(_, real): &&(&Path, PathBuf)| home.starts_with(real) || real.starts_with(&home);
    match writable.iter().find(overlapping) {
        Some((shown, _)) => Err(CliError::usage(format!(
            "the records in `{}` and `{}`, which the program can change, lie within each other; \
             set FUMEHOOD_HOME to another directory",
            home.display(),
            shown.display()
        ))),
        None => Ok(()),
    }
}

/// Tells what became of the changes.
pub(crate) fn tell(outcome: &Outcome) {
    let Some(project) = &outcome.project else { return };
    if let Some((_, message)) = &project.error {
        note(&format!("{message}; the workspace `{}` has them", project.workspace));
    }
    if let Some(report) = &project.report {
        tell_report(report, &headline(project), &project.workspace);
    }
}

fn headline(project: &ProjectSync) -> String {
    let dry = if project.state == SyncState::DryRun { "would be " } else { "" };
    format!("project ({}): {dry}", project.strategy)
}

/// Ends the use of the workspace and says where it is, if it is kept.
pub(crate) fn close(sandbox: &Sandbox) {
    let Some(project) = sandbox.project() else { return };
    let name = project.name();
    match project.close() {
        Ok(WorkspaceEnd::Removed) => {}
        Ok(WorkspaceEnd::Kept) => note(&format!("the workspace is kept as `{name}`")),
        Ok(WorkspaceEnd::Unsynced) => note(&format!(
            "the workspace is kept as `{name}` because it holds changes that were not brought \
             back; see `fumehood session diff {name}`, then sync or discard it"
        )),
        Err(error) => note(&format!("the workspace `{name}` could not be removed: {error}")),
    }
}

/// Tells what a sync did, one line for each path.
pub(crate) fn tell_report(report: &SyncReport, headline: &str, workspace: &str) {
    let counts = [
        (report.updated.count(), "updated"),
        (report.deleted.count(), "deleted"),
        (report.conflicts.count(), "in conflict"),
        (report.held_back.count(), "held back"),
        (report.picked_up.count(), "changed by you"),
    ];
    let counts: Vec<String> = counts
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
    if !counts.is_empty() {
        note(&format!("{headline}{}", counts.join(", ")));
    }
    paths("updated", &report.updated);
    paths("deleted", &report.deleted);
    lines("conflict", &report.conflicts, |conflict| match &conflict.beside {
        Some(beside) => format!("{}: {} (`{beside}`)", conflict.path, conflict.reason),
        None => format!("{}: {}", conflict.path, conflict.reason),
    });
    lines("held back", &report.held_back, |guarded| {
        format!(
            "{}: {} ({}); take it with `fumehood session sync {workspace} --accept PATH`",
            guarded.path, guarded.reason, guarded.rule
        )
    });
    lines("look at", &report.flagged, |guarded| {
        format!("{}: {} ({})", guarded.path, guarded.reason, guarded.rule)
    });
    paths("yours", &report.picked_up);
    if !report.hidden.is_empty() {
        let shown = report.hidden.list.iter().take(3).map(ToString::to_string);
        let shown = shown.collect::<Vec<_>>().join(", ");
        note(&format!(
            "{} files that usually hold secrets were hidden ({shown}); show one with --show-hidden NAME",
            report.hidden.count()
        ));
    }
}

fn paths(kind: &str, listed: &Listed<ProjectPath>) {
    lines(kind, listed, ToString::to_string);
}

fn lines<T>(kind: &str, listed: &Listed<T>, line: impl Fn(&T) -> String) {
    for item in listed.list.iter().take(SHOWN) {
        note(&format!("  {kind:<9}  {}", line(item)));
    }
    let more = listed.count().saturating_sub(SHOWN as u64);
    if more > 0 {
        note(&format!("  {kind:<9}  and {more} more; --json lists them"));
    }
}
