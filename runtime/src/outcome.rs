//! What a run gave: one record for the library, the command line and every
//! server, described by `docs/result.schema.json`.
//!
//! Invariant: a denial is never an outcome; it is an entry of
//! [`Outcome::denials`], in order, also when the code swallowed it.

use std::borrow::Cow;

use base64::Engine as _;
use fumehood_host_fns::{Denial, LastingEffect};
use serde::Serialize;

use crate::control::StopCause;
use crate::workspaces::ProjectSync;

/// Version of the JSON record.
pub const SCHEMA_VERSION: u32 = 1;

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum OutcomeKind {
    /// Ran to its end.
    Completed,
    /// An uncaught exception or a syntax error.
    ScriptError,
    /// The program called `sys.exit`.
    Exit,
    /// A time limit fired.
    Timeout {
        /// Which clock.
        clock: TimeoutClock,
    },
    /// The embedder cancelled it.
    Cancelled,
    /// The memory limit was reached.
    MemoryLimit,
    /// The guest's stack was used up.
    StackExhausted,
    /// The fuel was used up.
    FuelExhausted,
    /// A budget that ends the run was used up.
    BudgetExceeded {
        /// The budget's name.
        name: String,
    },
    /// The run did not start.
    Refused {
        /// What is missing or not allowed.
        missing: Vec<String>,
    },
    /// The sandbox itself failed; the reference is in the log.
    SandboxFault {
        /// Finds the log entry.
        #[serde(rename = "ref")]
        reference: String,
    },
}

/// The clock of a timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TimeoutClock {
    /// Wall-clock time.
    Wall,
    /// Processor time.
    Cpu,
}

impl From<StopCause> for OutcomeKind {
    fn from(cause: StopCause) -> Self {
        match cause {
            StopCause::Cancelled => Self::Cancelled,
            StopCause::Timeout(clock) => Self::Timeout { clock },
        }
    }
}

impl OutcomeKind {
    /// The name as it is written in JSON.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::ScriptError => "script_error",
            Self::Exit => "exit",
            Self::Timeout { .. } => "timeout",
            Self::Cancelled => "cancelled",
            Self::MemoryLimit => "memory_limit",
            Self::StackExhausted => "stack_exhausted",
            Self::FuelExhausted => "fuel_exhausted",
            Self::BudgetExceeded { .. } => "budget_exceeded",
            Self::Refused { .. } => "refused",
            Self::SandboxFault { .. } => "sandbox_fault",
        }
    }

    /// The exit code of the command line for every kind but
    /// [`OutcomeKind::Exit`], whose code is the program's own.
    #[must_use]
    pub fn exit_code(&self) -> i32 {
        match self {
            Self::Completed | Self::Exit => 0,
            Self::ScriptError => 1,
            Self::SandboxFault { .. } => 65,
            Self::Refused { .. } => 66,
            Self::BudgetExceeded { .. } => 68,
            Self::FuelExhausted => 123,
            Self::Timeout { .. } => 124,
            Self::Cancelled => 125,
            Self::StackExhausted => 134,
            Self::MemoryLimit => 137,
        }
    }
}

/// The value of a cell's last expression.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CellValue {
    /// Its `repr`; `None` when there is no value.
    pub repr: Option<String>,
    /// The same value as JSON where it is plain data.
    pub json: Option<serde_json::Value>,
}

/// An uncaught exception.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ScriptError {
    /// Class name.
    #[serde(rename = "type")]
    pub type_name: String,
    /// `str(exception)`.
    pub message: String,
    /// The traceback as Python prints it.
    pub traceback: String,
}

/// One rich output of `display()`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DisplayData {
    /// MIME type.
    pub mime: String,
    /// Content; base64 in JSON.
    #[serde(serialize_with = "as_base64")]
    pub bytes: Vec<u8>,
}

/// Bytes of output that did not fit, by stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Dropped {
    /// Of standard output.
    pub stdout: u64,
    /// Of standard error.
    pub stderr: u64,
}

/// Guest paths that the run changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FileChanges {
    /// New ones.
    pub created: Vec<String>,
    /// Changed ones.
    pub modified: Vec<String>,
    /// Removed ones.
    pub deleted: Vec<String>,
}

/// How many entries are in none of the lists of an outcome, because those are
/// full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NotListed {
    /// Denials.
    pub denials: u64,
    /// Effects.
    pub effects: u64,
    /// Changed files.
    pub files: u64,
}

/// What the run used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Usage {
    /// Wall-clock milliseconds.
    pub wall_ms: f64,
    /// Processor milliseconds of the guest's thread.
    pub cpu_ms: f64,
    /// Fuel, in deterministic mode.
    pub fuel: Option<u64>,
    /// Largest linear memory, in bytes.
    pub peak_memory_bytes: u64,
    /// Calls of the guest to its host.
    pub host_calls: u64,
    /// Bytes the guest read.
    pub bytes_in: u64,
    /// Bytes the guest wrote.
    pub bytes_out: u64,
}

/// Everything a run gave.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// How it ended.
    pub kind: OutcomeKind,
    /// The program's own code, or that of [`OutcomeKind::exit_code`].
    pub exit_code: i32,
    /// Standard output, up to the limit.
    pub stdout: Vec<u8>,
    /// Standard error, up to the limit.
    pub stderr: Vec<u8>,
    /// What did not fit.
    pub dropped: Dropped,
    /// The value of a cell.
    pub result: CellValue,
    /// What `display()` was given.
    pub displays: Vec<DisplayData>,
    /// The uncaught exception, or why the run was refused.
    pub error: Option<ScriptError>,
    /// The tier that ran it.
    pub tier: &'static str,
    /// The controls that were active.
    pub controls: Vec<Cow<'static, str>>,
    /// Guest paths that changed.
    pub files: FileChanges,
    /// What became of the changes to the project, if there is one.
    pub project: Option<ProjectSync>,
    /// What the broker refused, in order.
    pub denials: Vec<Denial>,
    /// What was done outside the sandbox and no rollback undoes: changes of
    /// mounted directories, calls of tools.
    pub effects: Vec<LastingEffect>,
    /// What did not fit into `denials`, `effects` and `files`.
    pub not_listed: NotListed,
    /// What it used.
    pub usage: Usage,
    /// The session's id.
    pub session: String,
    /// Whether the state was put back to before the cell.
    pub rolled_back: bool,
    /// The digest of a deterministic run.
    pub digest: Option<String>,
}

impl Outcome {
    /// An outcome of `kind` with nothing in it.
    pub(crate) fn empty(kind: OutcomeKind, session: &str) -> Self {
        Self {
            exit_code: kind.exit_code(),
            kind,
            stdout: Vec::new(),
            stderr: Vec::new(),
            dropped: Dropped::default(),
            result: CellValue::default(),
            displays: Vec::new(),
            error: None,
            tier: "wasm",
            controls: controls(),
            files: FileChanges::default(),
            project: None,
            denials: Vec::new(),
            effects: Vec::new(),
            not_listed: NotListed::default(),
            usage: Usage::default(),
            session: session.to_owned(),
            rolled_back: false,
            digest: None,
        }
    }

    /// Says that the run ended as `kind` after all, because of something outside
    /// it; what it gave stays, and proves nothing.
    pub(crate) fn end_as(&mut self, kind: OutcomeKind) {
        self.exit_code = kind.exit_code();
        self.kind = kind;
        self.digest = None;
    }

    /// Standard output as text, invalid UTF-8 replaced.
    #[must_use]
    pub fn stdout_text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Standard error as text, invalid UTF-8 replaced.
    #[must_use]
    pub fn stderr_text(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    /// Whether the program ended by itself with code 0.
    #[must_use]
    pub fn is_success(&self) -> bool {
        matches!(self.kind, OutcomeKind::Completed | OutcomeKind::Exit) && self.exit_code == 0
    }

    /// The record of `docs/result.schema.json`.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        let mut record = serde_json::json!({
            "version": SCHEMA_VERSION,
            "outcome": self.kind,
            "exit_code": self.exit_code,
            "stdout": self.stdout_text(),
            "stderr": self.stderr_text(),
            "dropped": self.dropped,
            "result": self.result,
            "displays": self.displays,
            "error": self.error,
            "timed_out": matches!(self.kind, OutcomeKind::Timeout { .. }),
            "memory_exceeded": self.kind == OutcomeKind::MemoryLimit,
            "tier": self.tier,
            "controls": self.controls,
            "files": self.files,
            "project": self.project.as_ref().map(ProjectSync::to_json),
            "denials": self.denials,
            "effects": self.effects,
            "usage": self.usage,
            "session": self.session,
            "rolled_back": self.rolled_back,
            "digest": self.digest,
        });
        if self.not_listed != NotListed::default()
            && let Some(members) = record.as_object_mut()
        {
            members.insert("not_listed".to_owned(), serde_json::json!(self.not_listed));
        }
        record
    }
}

/// What confines every run of the WASM tier.
pub(crate) const CONTROLS: &[&str] =
    &["wasm_isolation", "brokered_imports", "epoch_interruption", "memory_limit", "stack_limit"];

/// [`CONTROLS`], as an outcome has them.
pub(crate) fn controls() -> Vec<Cow<'static, str>> {
    CONTROLS.iter().map(|name| Cow::Borrowed(*name)).collect()
}

fn as_base64<S: serde::Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&base64::engine::general_purpose::STANDARD.encode(bytes))
}
