//! Cells from a terminal: line editing, history, completion.
//!
//! Completion runs code of the program (`__dir__`, properties, whatever it has
//! put in the place of builtins), so it asks a fork of the session that reaches
//! nothing but its own memory: it draws on the budgets and has no other effect.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use fumehood::Session;
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::MemHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{CompletionType, Config, Context, Editor, Helper};

use super::source::{is_complete, name_before};
use super::{Next, Source};
use crate::error::CliError;

/// Cells that are kept to be called back.
const MAX_HISTORY: usize = 1000;
/// How long a completion may take.
const PATIENCE: Duration = Duration::from_secs(2);
const PROMPT: &str = ">>> ";
const COMMANDS: [&str; 4] = ["%files", "%help", "%undo", "%usage"];

/// What a fork is asked; `TEXT` is a name with dots.
const COMPLETE: &str = r"
def _(text):
    import builtins, keyword
    head, dot, tail = text.rpartition('.')
    names = dir(eval(head)) if dot else [*globals(), *dir(builtins), *keyword.kwlist]
    hidden = not tail.startswith('_')
    names = {n for n in names if n.startswith(tail) and not (hidden and n.startswith('_'))}
    print(*sorted(head + dot + n for n in names)[:200], sep='\n')
_('TEXT')
";

/// A terminal.
pub(super) struct Terminal {
    editor: Editor<Assistant, MemHistory>,
}

impl Terminal {
    /// # Errors
    /// The terminal cannot be used.
    pub(super) fn new(session: Arc<Session>) -> Result<Self, CliError> {
        let config = Config::builder()
            .completion_type(CompletionType::List)
            .max_history_size(MAX_HISTORY)
            .map(rustyline::config::Builder::build);
        let editor = config.and_then(|config| {
            let history = MemHistory::with_config(&config);
            Editor::with_history(config, history)
        });
        let mut editor = editor.map_err(unusable)?;
        editor.set_helper(Some(Assistant { session }));
        Ok(Self { editor })
    }
}

fn unusable(error: ReadlineError) -> CliError {
    CliError::usage(format!("the terminal cannot be used ({error}); give cells through a pipe"))
}

impl Source for Terminal {
    fn next(&mut self) -> Result<Next, CliError> {
        match self.editor.readline(PROMPT) {
            Ok(text) => {
                // A cell that is not kept can be typed again.
                let _ = self.editor.add_history_entry(text.trim_end());
                Ok(Next::Text(text))
            }
            Err(ReadlineError::Interrupted) => Ok(Next::Interrupted),
            Err(ReadlineError::Eof) => Ok(Next::End),
            Err(error) => Err(unusable(error)),
        }
    }
}

/// What helps while a cell is typed.
struct Assistant {
    session: Arc<Session>,
}

impl Helper for Assistant {}
impl Highlighter for Assistant {}

impl Hinter for Assistant {
    type Hint = String;
}

impl Validator for Assistant {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        let text = context.input();
        let whole = text.trim_start().starts_with('%') || is_complete(text);
        Ok(if whole { ValidationResult::Valid(None) } else { ValidationResult::Incomplete })
    }
}

impl Completer for Assistant {
    type Candidate = String;

    fn complete(
        &self,
        line: &str,
        position: usize,
        _context: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<String>)> {
        let (start, name) = name_before(line, position);
        if name.starts_with('%') {
            let known = COMMANDS.iter().filter(|command| command.starts_with(name));
            return Ok((start, known.map(|command| (*command).to_owned()).collect()));
        }
        if name.is_empty() {
            let indent = line.get(..position).is_none_or(|before| before.trim().is_empty());
            return Ok((start, if indent { vec!["    ".to_owned()] } else { Vec::new() }));
        }
        Ok((start, self.names(name).unwrap_or_default()))
    }
}

impl Assistant {
    /// Names that begin like `name`, as a fork of the session sees them.
    fn names(&self, name: &str) -> Option<Vec<String>> {
        let fork = self.session.fork_without_effects().wait().ok()?;
        let run = fork.exec(COMPLETE.replace("TEXT", name));
        let canceller = run.canceller();
        let (done, waits) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                if waits.recv_timeout(PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout) {
                    canceller.cancel();
                }
            });
            let outcome = run.wait();
            drop(done);
            let text = outcome.is_success().then(|| outcome.stdout_text())?;
            // Names come from the program: only those that are names are shown.
            let is_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.');
            let names = text.lines().filter(|name| !name.is_empty() && name.chars().all(is_name));
            Some(names.map(str::to_owned).collect())
        })
    }
}
