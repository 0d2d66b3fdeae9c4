//! The embedder's own functions, which the guest calls by name.
//!
//! What: a [`Tool`] is a function with a JSON Schema; a [`ToolSet`] is the
//! catalogue; an [`Executor`] runs calls that the guest does not wait for.
//! Why: what a guest may do beyond its files is a list of named, typed
//! functions, decided and recorded like every other effect.
//!
//! Invariant: a function only ever gets arguments that its schema accepts and
//! that went through [`crate::Pipeline`]; of what it gives back the guest sees
//! a value within the limits or a [`ToolError`]'s message, never a panic.

mod built_in;
mod index;
mod result;
mod set;
mod task;

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use fumehood_policies::weaken;
use std::error::Error;
use std::fmt::{self, Write as _};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use fumehood_policies::is_tool_name;
use jsonschema::{PatternOptions, Validator};
use serde_json::Value;

pub(crate) use built_in::FileTool;
pub use built_in::{
    MAX_FILE_TOOL_COMPILED_BYTES, MAX_FILE_TOOL_DEPTH, MAX_FILE_TOOL_ENTRIES,
    MAX_FILE_TOOL_PATTERN_BYTES, MAX_FILE_TOOL_READ_BYTES, MAX_FILE_TOOL_VISITS,
    MAX_FILE_TOOL_WRITE_BYTES, MAX_GREP_LINE_BYTES, MAX_GREP_LINE_CHARACTERS, file_tools,
};
pub use index::MAX_SEARCH_RESULTS;
#[cfg(test)]
pub(crate) use index::{MAX_QUERY_BYTES, MAX_QUERY_WORDS};
pub(crate) use result::{MAX_RESULT_DEPTH, Unfit, take_apart, to_json};
pub use set::{MAX_TOOLS, ToolSet};
pub(crate) use task::{Completions, Ended, Task, text_of as panic_text};

/// How long a call may take unless the tool says otherwise.
pub const DEFAULT_TOOL_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest description of a tool, in bytes.
pub const MAX_TOOL_DESCRIPTION_BYTES: usize = 16 << 10;
/// Longest schema of a tool, as JSON text in bytes.
pub const MAX_TOOL_SCHEMA_BYTES: usize = 256 << 10;
/// Longest message of a failed call that the guest sees, in bytes; the rest is
/// cut.
pub const MAX_TOOL_MESSAGE_BYTES: usize = 4 << 10;

/// Words that cannot be the name of a Python function.
const KEYWORDS: [&str; 35] = [
    "False", "None", "True", "and", "as", "assert", "async", "await", "break", "class", "continue",
    "def", "del", "elif", "else", "except", "finally", "for", "from", "global", "if", "import",
    "in", "is", "lambda", "nonlocal", "not", "or", "pass", "raise", "return", "try", "while",
    "with", "yield",
];

/// One call of a tool. It is polled on the thread of the guest first, and on
/// that thread or by the [`Executor`] from then on; dropping it gives it up.
pub type ToolFuture = Pin<Box<dyn Future<Output = Result<Value, ToolError>> + Send>>;

type Function = dyn Fn(Value) -> ToolFuture + Send + Sync;

/// Runs futures on the embedder's runtime.
pub trait Executor: Send + Sync {
    /// Runs a future on another thread than the caller's, until it ends or the
    /// returned value is dropped.
    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) -> Box<dyn AbortOnDrop>;

    /// Calls `poll` exactly once, on this thread, within the runtime's context,
    /// so that a future that it polls finds timers and sockets.
    fn enter(&self, poll: &mut dyn FnMut());
}

/// A future that an [`Executor`] runs; dropping this stops it and drops it,
/// which may be soon rather than at once.
pub trait AbortOnDrop: Send {}

/// Why a tool failed, as its function says.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct ToolError {
    /// What the guest sees, cut to [`MAX_TOOL_MESSAGE_BYTES`].
    pub message: String,
    /// What the log has beside it; the guest never sees it.
    #[source]
    pub source: Option<Box<dyn Error + Send + Sync>>,
}

impl ToolError {
    /// A message for the guest, and its cause for the log.
    pub fn with_source(
        message: impl Into<String>,
        source: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        Self { message: message.into(), source: Some(source.into()) }
    }
}

impl From<String> for ToolError {
    fn from(message: String) -> Self {
        Self { message, source: None }
    }
}

impl From<&str> for ToolError {
    fn from(message: &str) -> Self {
        message.to_owned().into()
    }
}

/// Why there is no such tool or set of tools.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ToolSetupError {
    /// Python code could not call it by its name.
    #[error(
        "`{name}` cannot be the name of a tool: use at most 64 letters, digits and `_`, no digit first, no `__` first, and no Python keyword"
    )]
    Name {
        /// The name, escaped and cut.
        name: String,
    },
    /// The schema cannot be used.
    #[error("the schema of the tool `{name}` cannot be used: {reason}")]
    Schema {
        /// The tool.
        name: String,
        /// Why, as one clause.
        reason: String,
    },
    /// Two tools have one name.
    #[error("two tools have the name `{name}`; give each its own")]
    Duplicate {
        /// The name.
        name: String,
    },
    /// The set is full.
    #[error("a set holds at most {MAX_TOOLS} tools; leave some out")]
    TooMany,
    /// Description or schema is too long.
    #[error("the {what} of the tool `{name}` has more than {limit} bytes; shorten it")]
    TooLarge {
        /// The tool.
        name: String,
        /// `description` or `schema`.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
}

impl ToolSetupError {
    /// A stable identifier.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Name { .. } => "tool_name",
            Self::Schema { .. } => "tool_schema",
            Self::Duplicate { .. } => "tool_duplicate",
            Self::TooMany => "tools_too_many",
            Self::TooLarge { .. } => "tool_too_large",
        }
    }
}

/// A function of the embedder that the guest may call.
pub struct Tool {
    name: Arc<str>,
    description: Box<str>,
    schema: Value,
    validator: Validator,
    parameters: Vec<String>,
    timeout: Duration,
    function: Box<Function>,
    /// The broker carries it out itself.
    built_in: Option<FileTool>,
}

impl fmt::Debug for Tool {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Tool").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Tool {
    /// A tool with a name that Python code can use, one or more sentences of
    /// description, and a JSON Schema (an object) of its arguments.
    ///
    /// Positional arguments are given in the order of the schema's `required`,
    /// then of the names of its other `properties`; see
    /// [`Tool::parameter_order`]. Patterns of the schema have no look-around
    /// and no backreferences, so that matching takes linear time; references
    /// to other documents are not followed.
    ///
    /// The function is called on the guest's thread with arguments that the
    /// schema accepts, and its future is polled there first. Work that blocks
    /// stops the guest and cannot be interrupted: move it to a thread.
    ///
    /// # Errors
    /// [`ToolSetupError`] if the name or the schema cannot be used.
    pub fn new(
        name: &str,
        description: &str,
        schema: Value,
        function: impl Fn(Value) -> ToolFuture + Send + Sync + 'static,
    ) -> Result<Self, ToolSetupError> {
        let too_large =
            |what, limit| ToolSetupError::TooLarge { name: name.to_owned(), what, limit };
        let unusable = |reason| ToolSetupError::Schema { name: name.to_owned(), reason };
        let named = check_name(name);
        if to_json(&schema, MAX_TOOL_SCHEMA_BYTES).is_err() {
            take_apart(schema);
            named?;
            return Err(too_large("schema", MAX_TOOL_SCHEMA_BYTES));
        }
        named?;
        if description.len() > MAX_TOOL_DESCRIPTION_BYTES {
            return Err(too_large("description", MAX_TOOL_DESCRIPTION_BYTES));
        }
        if !schema.is_object() {
            return Err(unusable("it is not a JSON object".to_owned()));
        }
        let validator = jsonschema::options()
            .offline()
            .with_pattern_options(PatternOptions::regex())
            .build(&schema)
            .map_err(|error| unusable(capped(format_args!("{error}"), 1000)))?;
        Ok(Self {
            name: Arc::from(name),
            description: description.into(),
            parameters: parameters(&schema),
            schema,
            validator,
            timeout: DEFAULT_TOOL_TIMEOUT,
            function: Box::new(function),
            built_in: None,
        })
    }

    /// How long a call may take; then the guest gets a `TimeoutError`. The
    /// wall-clock limit of the run holds beside it.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Puts these parameters first, in this order; names that the schema does
    /// not have are ignored.
    #[must_use]
    pub fn parameter_order(mut self, names: &[&str]) -> Self {
        let place = |name: &String| names.iter().position(|first| first == name);
        self.parameters.sort_by_key(|name| place(name).unwrap_or(usize::MAX));
        self
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it does.
    #[must_use]
    pub fn description(&self) -> &str {
        &self.description
    }

    /// The JSON Schema of its arguments.
    #[must_use]
    pub fn schema(&self) -> &Value {
        &self.schema
    }

    /// Names of its parameters, in the order of positional arguments.
    #[must_use]
    pub fn parameters(&self) -> &[String] {
        &self.parameters
    }

    pub(crate) fn shared_name(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }

    pub(crate) fn time_limit(&self) -> Duration {
        self.timeout
    }

    pub(crate) fn built_in(&self) -> Option<FileTool> {
        self.built_in
    }

    fn call(&self, arguments: Value) -> ToolFuture {
        (self.function)(arguments)
    }

    /// Checks arguments against the schema.
    ///
    /// # Errors
    /// A sentence for the guest.
    pub(crate) fn check_arguments(&self, arguments: &Value) -> Result<(), String> {
        let off = weaken::off(weaken::Defence::ToolSchema);
        if off || self.validator.is_valid(arguments) {
            return Ok(());
        }
        let Err(error) = self.validator.validate(arguments) else { return Ok(()) };
        let (name, at) = (&self.name, error.instance_path());
        let place = if at.as_str().is_empty() { "" } else { " at " };
        let message = format_args!(
            "the arguments of `{name}` do not fit its schema{place}{}: {error}",
            at.as_str()
        );
        Err(capped(message, MAX_TOOL_MESSAGE_BYTES))
    }
}

/// Required parameters first, in the schema's own order; an object of JSON has
/// none, so the others follow in that of their names.
fn parameters(schema: &Value) -> Vec<String> {
    let properties = schema.get("properties").and_then(Value::as_object);
    let required = schema.get("required").and_then(Value::as_array);
    let required = required.into_iter().flatten().filter_map(Value::as_str);
    let mut names: Vec<String> = Vec::new();
    for name in required.chain(properties.into_iter().flatten().map(|(name, _)| name.as_str())) {
        if !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
    }
    names
}

fn check_name(name: &str) -> Result<(), ToolSetupError> {
    let identifier = is_tool_name(name)
        && !name.contains(['-', '.'])
        && !name.starts_with(|first: char| first.is_ascii_digit())
        && !name.starts_with("__")
        && name != "_";
    if identifier && !KEYWORDS.contains(&name) {
        return Ok(());
    }
    let name = name.chars().take(64).collect::<String>().escape_debug().to_string();
    Err(ToolSetupError::Name { name })
}

/// Formats at most `limit` bytes and stops there, so that a value of many
/// megabytes in an error is not written out first.
pub(crate) fn capped(text: fmt::Arguments<'_>, limit: usize) -> String {
    struct Capped(String, usize);
    impl fmt::Write for Capped {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            let room = self.1.saturating_sub(self.0.len());
            if text.len() <= room {
                self.0.push_str(text);
                return Ok(());
            }
            self.0.push_str(text.get(..text.floor_char_boundary(room)).unwrap_or_default());
            Err(fmt::Error)
        }
    }
    let mut written = Capped(String::new(), limit);
    let _ = written.write_fmt(text);
    written.0
}

/// Longest sentence of which a result has many, in bytes; the rest is cut.
const SHORT_BYTES: usize = 256;

/// Cuts text to what one of many sentences may have.
pub(crate) fn cut_short(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(SHORT_BYTES));
    text
}

/// Cuts text to what the guest may see, and gives its room back.
pub(crate) fn cut(mut text: String) -> String {
    if text.len() > MAX_TOOL_MESSAGE_BYTES {
        text.truncate(text.floor_char_boundary(MAX_TOOL_MESSAGE_BYTES));
        text.shrink_to_fit();
    }
    text
}
