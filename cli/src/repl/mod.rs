//! `fumehood repl`: one live session, cell by cell.
//!
//! Invariant: Ctrl-C ends a cell and never the session; whatever a cell does,
//! the next prompt comes. On a terminal nothing of a program's output acts on
//! it.

mod editor;
mod piped;
mod source;

use std::io::IsTerminal as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use fumehood::policy::BudgetSettings;
use fumehood::records::SessionEnd;
use fumehood::{LastingEffect, Limits, Outcome, OutcomeKind, Sandbox, Script, Session};
use signal_hook::consts::SIGINT;
use signal_hook::iterator::Signals;

use crate::args::ReplArgs;
use crate::error::CliError;
use crate::output::{self, Live, Stop};
use crate::records::Recording;
use crate::run::milliseconds;
use crate::{policies, progress, project, reach, report};

/// Effects that are shown one by one.
const SHOWN_EFFECTS: usize = 20;
/// Exit code of a process that Ctrl-C ended.
const INTERRUPTED: i32 = 130;

const HELP: &str = "\
A cell is Python; the value of its last expression is shown and is `_` in the next.
A block ends with an empty line. Ctrl-C ends a cell that runs; Ctrl-D ends the session.

%undo [N]   take the last cell back, or the last N
%usage      what the session used and holds
%files      the files in memory
%help       this text
";

/// What comes next.
enum Next {
    /// A cell or a `%` command.
    Text(String),
    /// Ctrl-C at the prompt.
    Interrupted,
    /// There is nothing more.
    End,
}

/// Where cells come from.
trait Source {
    fn next(&mut self) -> Result<Next, CliError>;
}

/// Runs the session and returns the exit code.
///
/// # Errors
/// One sentence; nothing has run, or standard input cannot be read.
pub(crate) fn run(args: &ReplArgs) -> Result<i32, CliError> {
    let policy = args.reach.policy.as_deref().map(policies::load).transpose()?;
    let has_policy = policy.is_some();
    let mounts = reach::mounts(&args.reach, policy.as_ref());
    let sandbox = Sandbox::builder().budget(budget(args));
    let mut sandbox = reach::apply(&args.reach, &mounts, None, sandbox)?;
    if let Some(policy) = policy {
        sandbox = sandbox.policy(policy);
    }
    let recording = Recording::of(args.record, "<repl>", None)?;
    let sandbox = recording.attach(sandbox, Vec::new());
    let sandbox = sandbox.engine_settings(progress::engine(args.compiled.as_deref())).build()?;
    for limited in sandbox.limited() {
        output::note(&format!("{limited}, which holds; change it there to have more"));
    }
    let limits = sandbox.limits();
    let session = Arc::new(sandbox.own_session());
    let is_terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    let interrupts = Interrupts::listen(is_terminal);
    let mut source: Box<dyn Source> = if is_terminal {
        output::print("Python in a sandbox; %help tells more.\n");
        Box::new(editor::Terminal::new(Arc::clone(&session))?)
    } else {
        Box::new(piped::Piped::new(limits.source_bytes))
    };
    let outcome = OutcomeKind::Completed.as_str().to_owned();
    let mut end = SessionEnd { outcome, exit_code: 0, denials: 0 };
    let code =
        cells(&mut *source, &session, &interrupts, limits, has_policy, is_terminal, &mut end);
    drop((source, session));
    if let Ok(code) = &code {
        end.exit_code = *code;
    }
    recording.finish_session(sandbox.session_id(), end);
    project::close(&sandbox);
    recording.tidy();
    code
}

/// Runs cell after cell and returns the exit code. `end` is told of each.
fn cells(
    source: &mut dyn Source,
    session: &Arc<Session>,
    interrupts: &Interrupts,
    limits: &Limits,
    has_policy: bool,
    is_terminal: bool,
    end: &mut SessionEnd,
) -> Result<i32, CliError> {
    let mut last = 0;
    loop {
        let text = match source.next()? {
            Next::Text(text) => text,
            Next::Interrupted => continue,
            Next::End => return Ok(if is_terminal { 0 } else { last }),
        };
        if let Some(command) = text.trim().strip_prefix('%') {
            if let Err(message) = obey(command, session) {
                output::note(&message);
                last = 1;
            }
            continue;
        }
        if text.trim().is_empty() {
            continue;
        }
        let outcome = cell(session, text, interrupts);
        report::tell(&outcome, limits, has_policy, interrupts.happened());
        project::tell(&outcome);
        if outcome.rolled_back {
            output::note("the session is as it was before this cell; change the cell and go on");
            tell_effects(&outcome);
        }
        last = outcome.exit_code;
        outcome.kind.as_str().clone_into(&mut end.outcome);
        end.denials = end.denials.saturating_add(outcome.denials.len() as u64);
        if outcome.kind == OutcomeKind::Exit && !outcome.rolled_back {
            return Ok(last);
        }
    }
}

/// The numbers that the arguments name; a cell may compute as long as it lasts.
fn budget(args: &ReplArgs) -> BudgetSettings {
    let wall_ms = args.timeout.map(milliseconds);
    BudgetSettings {
        wall_ms,
        cpu_ms: wall_ms,
        memory_bytes: args.memory,
        ..BudgetSettings::default()
    }
}

/// Runs one cell and shows what it gave.
fn cell(session: &Session, text: String, interrupts: &Interrupts) -> Outcome {
    let (live, stop) = (Arc::new(Live::new()), Arc::new(Stop::default()));
    let (sink, of_sink) = (Arc::clone(&live), Arc::clone(&stop));
    let script = Script::cell(text);
    // Before it runs: an interrupt that comes first stops it as soon as it does.
    interrupts.enter(&stop);
    let run =
        session.exec(script.on_output(move |stream, bytes| sink.write(stream, bytes, &of_sink)));
    stop.attach(run.canceller());
    let outcome = run.wait();
    interrupts.leave();
    live.finish(&outcome, outcome.result.repr.as_deref());
    outcome
}

/// Says what a rollback does not undo.
fn tell_effects(outcome: &Outcome) {
    let shown = outcome.effects.iter().take(SHOWN_EFFECTS);
    for LastingEffect { operation, target, count } in shown {
        let times = if *count > 1 { format!(", {count} times") } else { String::new() };
        output::note(&format!(
            "this stays: {operation} {target}{times}; undo it by hand if need be"
        ));
    }
    if let Some(more) = outcome.effects.len().checked_sub(SHOWN_EFFECTS).filter(|more| *more > 0) {
        output::note(&format!("{more} more effects stay; look at the mounted directories"));
    }
}

/// Carries out a `%` command.
fn obey(command: &str, session: &Session) -> Result<(), String> {
    let mut words = command.split_whitespace();
    let name = words.next().unwrap_or_default();
    let argument = words.next();
    if words.next().is_some() || (argument.is_some() && name != "undo") {
        return Err(format!("`%{name}` takes no such argument; `%help` tells what there is"));
    }
    match name {
        "undo" => undo(argument, session),
        "usage" => usage(session),
        "files" => list(session),
        "help" => {
            output::print(HELP);
            Ok(())
        }
        _ => Err(format!("there is no command `%{name}`; `%help` tells what there is")),
    }
}

fn undo(argument: Option<&str>, session: &Session) -> Result<(), String> {
    let cells: usize =
        match argument {
            None => 1,
            Some(text) => text.parse().ok().filter(|cells| *cells > 0).ok_or_else(|| {
                format!("`{text}` is not a number of cells; write %undo or %undo 3")
            })?,
        };
    session.undo(cells).wait().map_err(|error| error.to_string())?;
    let what =
        if cells == 1 { "the last cell is".to_owned() } else { format!("{cells} cells are") };
    output::print(&format!("{what} taken back\n"));
    Ok(())
}

fn usage(session: &Session) -> Result<(), String> {
    let usage = session.usage().wait().map_err(|error| error.to_string())?;
    let mut text = format!(
        "cells         {} ({} rolled back)\nmemory        {} KiB, {} KiB of it the session's own\ncheckpoints   {} of {} KiB\n",
        usage.cells,
        usage.rolled_back,
        usage.memory_bytes >> 10,
        usage.changed_pages.saturating_mul(4),
        usage.checkpoints,
        usage.checkpoint_bytes >> 10,
    );
    for (budget, used, left) in usage.budgets {
        text.push_str(&format!("{:<18}{used} used, {left} left\n", budget.name()));
    }
    output::print(&text);
    Ok(())
}

fn list(session: &Session) -> Result<(), String> {
    let found = session.files().wait().map_err(|error| error.to_string())?;
    let mut text = String::new();
    for file in &found.files {
        text.push_str(&format!("{:>12}  {}\n", file.bytes, file.path));
    }
    match (found.more, found.files.is_empty()) {
        (true, _) => text.push_str("and more\n"),
        (false, true) => text.push_str("no files in memory\n"),
        (false, false) => {}
    }
    output::print(&text);
    Ok(())
}

/// What Ctrl-C stops.
struct Interrupts {
    running: Arc<Mutex<Option<Arc<Stop>>>>,
    happened: Arc<AtomicBool>,
}

impl Interrupts {
    /// Starts to listen. Without a thread for it, Ctrl-C ends the process as
    /// ever.
    fn listen(is_terminal: bool) -> Self {
        let running = Arc::<Mutex<Option<Arc<Stop>>>>::default();
        let happened = Arc::new(AtomicBool::new(false));
        if let Ok(mut signals) = Signals::new([SIGINT]) {
            let (running, happened) = (Arc::clone(&running), Arc::clone(&happened));
            let listener = move || {
                for _ in signals.forever() {
                    happened.store(true, Ordering::SeqCst);
                    let stop = running.lock().unwrap_or_else(PoisonError::into_inner).clone();
                    match stop {
                        Some(stop) => stop.stop(),
                        // The prompt is about to come.
                        None if is_terminal => {}
                        None => end_process(),
                    }
                }
            };
            let thread = std::thread::Builder::new().name("fumehood-signals".to_owned());
            let _ = thread.stack_size(64 << 10).spawn(listener);
        }
        Self { running, happened }
    }

    /// A cell runs that `stop` stops.
    fn enter(&self, stop: &Arc<Stop>) {
        self.happened.store(false, Ordering::SeqCst);
        *self.running.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(stop));
    }

    /// No cell runs.
    fn leave(&self) {
        *self.running.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Whether Ctrl-C was pressed since the last cell began.
    fn happened(&self) -> bool {
        self.happened.load(Ordering::SeqCst)
    }
}

/// Ctrl-C while cells are read from a pipe: there is nobody to prompt.
#[allow(clippy::disallowed_methods, reason = "a signal ends the process")]
fn end_process() {
    std::process::exit(INTERRUPTED);
}
