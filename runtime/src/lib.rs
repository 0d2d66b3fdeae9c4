//! fumehood runs Python that a model wrote, in RustPython compiled to
//! WebAssembly, with no ambient authority.
//!
//! Every file, clock reading and random byte that the code gets is a host
//! function that one broker decides, records and meters. See [`Sandbox`].
//!
//! ```
//! use fumehood::{OutcomeKind, Sandbox, Script};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let sandbox = Sandbox::builder().timeout(std::time::Duration::from_secs(10)).build()?;
//! let outcome = sandbox.run(Script::new("print('hello')")).await;
//! assert_eq!(outcome.kind, OutcomeKind::Completed);
//! assert_eq!(outcome.stdout_text(), "hello\n");
//!
//! let outcome = sandbox.run("open('/etc/passwd')").await;
//! assert_eq!(outcome.kind, OutcomeKind::ScriptError);
//! # Ok(())
//! # }
//! ```
//!
//! Invariant of this crate: it is the only one that knows wasmtime. It decides
//! nothing; the broker of `fumehood-host-fns` does.

mod adapter;
mod builder;
mod cache;
mod clock;
mod control;
mod engine;
mod error;
mod executor;
mod fault;
mod grants;
mod host;
mod host_env;
mod inputs;
mod instance;
mod limits;
mod listener;
mod memory;
mod outcome;
mod sandbox;
mod script;
mod strip;
mod threads;
mod ticker;
pub mod tool;

/// Policies: their text, the answers they give and how they differ.
pub mod policy {
    pub use fumehood_policies::{
        Access, Action, BudgetPreset, BudgetSettings, CombineErrors, Explanation, FlagMode, Flags,
        Limited, MAX_POLICY_BYTES, NewReach, PRESETS, Policy, PolicyErrors, PolicyFile, Preset,
        Problem, Question, QuestionError, Speaks, Summary, Verdict, diff, preset, verdict_name,
    };
}

pub use builder::SandboxBuilder;
pub use cache::{Entry as CompiledEntry, Footer as CompiledFooter};
pub use engine::{
    Engine, EngineBuilder, GUEST_DIGEST, Progress, build_compiled, cache_location, guest_module,
    verify_compiled,
};
pub use error::{BuildError, EngineError};
pub use fumehood_host_fns::{
    AuditRecord, AuditSink, Budget, Clock, Denial, Limits as BrokerLimits, MemorySink, MountError,
    OutputSink, RandomSource, Stream, Tool, ToolError, ToolSetupError,
};
pub use fumehood_policies::{Access, GuestPath};
pub use grants::PolicySource;
pub use inputs::{InputsError, MAX_INPUT_DEPTH};
pub use limits::{Limits, MAX_MEMORY_BYTES, MIN_MEMORY_BYTES};
pub use memory::memory_path;
pub use outcome::{
    CellValue, DisplayData, Dropped, FileChanges, Outcome, OutcomeKind, SCHEMA_VERSION,
    ScriptError, TimeoutClock, Usage,
};
pub use sandbox::{Canceller, FIXED_ENVIRONMENT, Run, Sandbox, WORKING_DIRECTORY};
pub use script::Script;
pub use threads::MAX_THREADS;
