//! The session commands about workspaces: seeing, bringing back, discarding,
//! handing on.
//!
//! Invariant: a workspace is removed only when nothing is in it that was not
//! brought back, or because that was asked for.

use std::io::{self, BufWriter, IsTerminal as _, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use fumehood::Stream;
use fumehood::project::{
    ArchiveError, Remains, SyncError, SyncOptions, SyncReport, Workspace, WorkspaceError,
    WorkspaceOptions, report_json,
};
use fumehood::records::Home;
use serde_json::{Value, json};

use crate::args::SyncArgs;
use crate::error::{BAD_FINDING, CANNOT_TELL, CliError};
use crate::terminal::{Decoder, Invalid, escape, escape_line};
use crate::{files, output, project, records};

impl From<SyncError> for CliError {
    fn from(error: SyncError) -> Self {
        Self::cannot_tell(error.to_string())
    }
}

impl From<ArchiveError> for CliError {
    fn from(error: ArchiveError) -> Self {
        match error {
            ArchiveError::Unsafe { .. } | ArchiveError::TooLarge { .. } => {
                Self { exit_code: BAD_FINDING, message: error.to_string(), more: Vec::new() }
            }
            other => Self::cannot_tell(other.to_string()),
        }
    }
}

/// A workspace that was opened, by its name.
struct Opened {
    home: Home,
    name: String,
    workspace: Workspace,
}

fn none(name: &str) -> CliError {
    CliError::cannot_tell(format!(
        "there is no workspace `{}`; `fumehood session list` lists them",
        escape_line(name)
    ))
}

/// An error of a workspace in a command that runs no program.
fn found(error: WorkspaceError) -> CliError {
    CliError { exit_code: CANNOT_TELL, ..error.into() }
}

/// Where the workspace of that name is in a home; `None` if there is none.
fn place_in(home: &Home, name: &str) -> Result<Option<PathBuf>, CliError> {
    let Some(place) = home.workspace(name, false)? else { return Ok(None) };
    Ok(Workspace::project_of(&place).map_err(found)?.map(|_| place))
}

/// Opens the workspace of that name in a home; `None` if there is none.
fn open_in(home: &Home, name: &str) -> Result<Option<Workspace>, CliError> {
    let place = place_in(home, name)?;
    place.map(|place| Workspace::open(&place).map_err(found)).transpose()
}

fn named(name: &str) -> Result<(Home, String), CliError> {
    let home = records::home()?.ok_or_else(|| none(name))?;
    let name = records::session_named(&home, name)?;
    Ok((home, name))
}

fn open(name: &str) -> Result<Opened, CliError> {
    let (home, name) = named(name)?;
    let workspace = open_in(&home, &name)?.ok_or_else(|| none(&name))?;
    Ok(Opened { home, name, workspace })
}

/// A workspace that is to be handed on or removed.
enum Kept {
    Whole(Box<Workspace>),
    /// Its project is gone, or is another one now.
    Remains(Remains),
}

impl Kept {
    fn open_in(home: &Home, name: &str) -> Result<Option<Self>, CliError> {
        let Some(place) = place_in(home, name)? else { return Ok(None) };
        match Workspace::open(&place) {
            Ok(workspace) => Ok(Some(Self::Whole(Box::new(workspace)))),
            Err(WorkspaceError::Project(_) | WorkspaceError::OtherProject { .. }) => {
                Remains::open(&place).map(|remains| Some(Self::Remains(remains))).map_err(found)
            }
            Err(error) => Err(found(error)),
        }
    }

    fn export(&self, out: impl Write) -> Result<(), ArchiveError> {
        match self {
            Self::Whole(workspace) => workspace.export(out),
            Self::Remains(remains) => remains.export(out),
        }
    }

    /// Whether it held changes.
    fn discard(self) -> Result<bool, CliError> {
        let discarded = match self {
            Self::Whole(workspace) => workspace.discard(),
            Self::Remains(remains) => remains.discard(),
        };
        Ok(discarded.map_err(found)?.had_changes)
    }
}

/// Standard output, made safe for a terminal.
struct Out(Option<Decoder>);

impl Out {
    fn new() -> Self {
        Self(io::stdout().is_terminal().then(|| Decoder::new(Invalid::Escape)))
    }
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = match &mut self.0 {
            Some(decoder) => {
                let text = escape(&decoder.push(bytes));
                output::write_all(Stream::Stdout, text.as_bytes())
            }
            None => output::write_all(Stream::Stdout, bytes),
        };
        written.map_err(io::Error::from)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// `session diff`.
///
/// # Errors
/// One sentence.
pub(crate) fn diff(name: &str, as_json: bool) -> Result<i32, CliError> {
    let Opened { name, workspace, .. } = open(name)?;
    let options = SyncOptions { tell_held_again: true, ..SyncOptions::default() };
    let report = if as_json {
        workspace.dry_run(&options)?
    } else {
        let mut out = BufWriter::new(Out::new());
        let report = workspace.diff(&options, &mut out)?;
        let _ = out.flush();
        report
    };
    if as_json {
        let unsynced = workspace.has_changes().map_err(found)?;
        let _ = output::print_json(&json!({
            "workspace": name,
            "project": shown(workspace.project_path()),
            "strategy": workspace.strategy().name(),
            "unsynced": unsynced,
            "report": report_json(&report),
        }));
    } else {
        project::tell_report(&report, "would be ", &name);
    }
    Ok(0)
}

fn shown(path: &Path) -> String {
    escape_line(&path.to_string_lossy())
}

/// Whether everything was taken.
fn is_clean(report: &SyncReport) -> bool {
    report.conflicts.is_empty() && report.held_back.is_empty()
}

/// `session sync`.
///
/// # Errors
/// One sentence; then nothing was brought back.
pub(crate) fn sync(args: &SyncArgs) -> Result<i32, CliError> {
    let Opened { home, name, mut workspace } = open(&args.session)?;
    let options = SyncOptions {
        accept: args.accept.iter().map(|path| path.as_bytes().to_vec()).collect(),
        tell_held_again: true,
        ..SyncOptions::default()
    };
    let report =
        if args.dry_run { workspace.dry_run(&options)? } else { workspace.sync(&options)? };
    let strategy = workspace.strategy().name();
    let unsynced = workspace.has_changes().map_err(found)?;
    let removed = !args.dry_run && !args.keep && !unsynced;
    if removed {
        workspace.discard().map_err(found)?;
        home.remove_workspace(&name)?;
    }
    if args.json {
        let _ = output::print_json(&json!({
            "workspace": name,
            "strategy": strategy,
            "state": if args.dry_run { "dry_run" } else { "synced" },
            "unsynced": unsynced,
            "removed": removed,
            "report": report_json(&report),
        }));
    } else {
        let headline = if args.dry_run { "would be " } else { "" };
        project::tell_report(&report, headline, &name);
        if report.is_empty() {
            output::note("there was nothing to bring back");
        }
    }
    Ok(if is_clean(&report) { 0 } else { BAD_FINDING })
}

/// `session discard`.
///
/// # Errors
/// One sentence.
pub(crate) fn discard(name: &str, as_json: bool) -> Result<i32, CliError> {
    let (home, name) = named(name)?;
    let had_changes = Kept::open_in(&home, &name)?.ok_or_else(|| none(&name))?.discard()?;
    home.remove_workspace(&name)?;
    if as_json {
        let _ = output::print_json(&json!({ "workspace": name, "had_changes": had_changes }));
    }
    Ok(0)
}

/// `session export`.
///
/// # Errors
/// One sentence; a file that was begun is removed again.
pub(crate) fn export(name: &str, to: &Path) -> Result<i32, CliError> {
    let (home, name) = named(name)?;
    let kept = Kept::open_in(&home, &name)?.ok_or_else(|| none(&name))?;
    files::write_new(to, "the archive", |file| kept.export(file).map_err(CliError::from))?;
    Ok(0)
}

/// `session import`.
///
/// # Errors
/// One sentence; then there is no workspace of that name.
pub(crate) fn import(name: &str, archive: &Path, directory: &Path) -> Result<i32, CliError> {
    let home = project::home()?;
    if open_in(&home, name)?.is_some() {
        return Err(CliError::usage(format!(
            "there is a workspace `{name}` already; choose another name, or sync or discard it"
        )));
    }
    let file = files::open(archive).map_err(|error| {
        CliError::usage(format!(
            "the archive `{}` cannot be read ({error}); check the path",
            archive.display()
        ))
    })?;
    let place = home.workspace(name, true)?.ok_or_else(|| none(name))?;
    let apart_from = Some(home.path().to_owned());
    let options = WorkspaceOptions { apart_from, ..WorkspaceOptions::default() };
    let made = Workspace::create(&place, directory, &options, &mut |_, _| {});
    let mut workspace = match made {
        Ok(workspace) => workspace,
        Err(error) => {
            let _ = home.remove_workspace(name);
            return Err(error.into());
        }
    };
    if let Err(error) = workspace.import(file) {
        workspace.discard().map_err(found)?;
        home.remove_workspace(name)?;
        return Err(error.into());
    }
    output::note(&format!(
        "the changes are in the workspace `{name}`; `fumehood session diff {name}` shows them"
    ));
    Ok(0)
}

/// Removes a workspace with the records of its session. Returns whether there
/// was one.
///
/// # Errors
/// One sentence; a workspace with changes is kept unless it is to be discarded.
pub(crate) fn remove(home: &Home, name: &str, discard: bool) -> Result<bool, CliError> {
    let Some(kept) = Kept::open_in(home, name)? else { return Ok(false) };
    let (unsynced, see) = match &kept {
        Kept::Whole(workspace) => (workspace.has_changes().map_err(found)?, "see them with"),
        Kept::Remains(remains) => (remains.has_changes(), "their project is gone: put it back for"),
    };
    if !discard && unsynced {
        let message = format!(
            "the workspace of `{name}` holds changes that were not brought back; {see} \
             `fumehood session diff {name}`, or remove them too with --discard"
        );
        return Err(CliError { exit_code: BAD_FINDING, message, more: Vec::new() });
    }
    kept.discard()?;
    home.remove_workspace(name)?;
    Ok(true)
}

/// What there is to say of every workspace of a home.
///
/// # Errors
/// One sentence.
pub(crate) fn list(home: &Home) -> Result<Vec<Value>, CliError> {
    let mut all = Vec::new();
    for name in home.workspace_names()? {
        let Some(place) = home.workspace(&name, false)? else { continue };
        let Ok(Some(of)) = Workspace::project_of(&place) else { continue };
        let (strategy, unsynced, in_use) = match Workspace::open(&place) {
            Ok(workspace) => {
                (Some(workspace.strategy().name()), workspace.has_changes().ok(), false)
            }
            Err(WorkspaceError::InUse) => (None, None, true),
            Err(error) => {
                output::note(&format!("{name}: {error}"));
                (None, None, false)
            }
        };
        all.push(json!({
            "name": name,
            "project": shown(&of),
            "strategy": strategy,
            "unsynced": unsynced,
            "in_use": in_use,
        }));
    }
    Ok(all)
}
