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
mod answer;
mod builder;
mod cache;
mod clock;
mod control;
mod determinism;
mod engine;
mod error;
mod executor;
mod fault;
mod grants;
mod guest;
mod host;
mod host_env;
mod inputs;
mod instance;
mod limits;
mod listener;
mod memory;
mod native_run;
mod natively;
mod net;
mod observer;
mod outcome;
mod pool;
mod run;
mod sandbox;
mod script;
mod session;
mod strip;
mod threads;
mod ticker;
pub mod tool;
mod transcript;
mod workspaces;

/// Policies: their text, the answers they give and how they differ.
pub mod policy {
    pub use fumehood_policies::{
        Access, Action, BudgetPreset, BudgetSettings, CombineErrors, Explanation, FlagMode, Flags,
        Limited, MAX_POLICY_BYTES, NewReach, PRESETS, Policy, PolicyErrors, PolicyFile, Preset,
        Problem, Question, QuestionError, Speaks, Summary, Verdict, diff, preset, verdict_name,
    };
}

/// Requests to the network: hosts, connections, questions and proposals.
///
/// Grants and connections are given to [`SandboxBuilder::allow`] and
/// [`SandboxBuilder::egress_options`].
pub mod network {
    pub use fumehood_host_fns::{
        Answer, ApprovalDesk, ApprovalRequest, ApprovalStatus, Approvals, Approver, Approving,
        Connecting, Connector, Egress, EgressError, EgressOptions, EgressSetupError, Exchange,
        HttpEgress, ListedGrant, LivePolicy, NotReplaced, Order, Phases, Proxy, Resolver, Waiting,
    };
    pub use fumehood_policies::{
        Denied, DialAddress, Draft, DraftBook, DraftError, DraftState, GrantError, GrantTerms,
        GrantedHost, HostGrant, HostName, NetRequest, granted_hosts,
    };
}

/// Projects: directories that code works on, and bringing its changes back.
pub mod project {
    pub use crate::workspaces::{
        AttachedProject, INPUTS_AT, PROJECT_AT, Project, ProjectSync, SyncMode, SyncState,
        WorkspaceEnd, report_json,
    };
    pub use fumehood_host_fns::{
        ArchiveError, Conflict, DEFAULT_EXCLUDES, GuardedPath, Listed, ProjectError, ProjectPath,
        Remains, Strategy, SyncError, SyncOptions, SyncReport, Workspace, WorkspaceError,
        WorkspaceLimits, WorkspaceOptions,
    };
}

/// Native tiers: where commands run as real processes.
pub mod native {
    pub use fumehood_host_fns::{
        CancelToken, Captured, FORBIDDEN_VARIABLES, Guarantee, GuaranteeReport, GuaranteeState,
        Missing, NativeCommand, NativeEnd, NativeError, NativeLimits, NativeMount, NativeOverlay,
        NativeResult, NativeSession, NativeTier, Probe, Unavailable, VariableError, Variables,
    };
}

pub use builder::SandboxBuilder;
pub use cache::{Entry as CompiledEntry, Footer as CompiledFooter};
pub use determinism::{DEFAULT_FUEL, Determinism};
pub use engine::{
    Engine, EngineBuilder, GUEST_DIGEST, Progress, build_compiled, cache_location, guest_module,
    verify_compiled,
};
pub use error::{BuildError, EngineError};
pub use fumehood_host_fns::audit;
pub use fumehood_host_fns::records;
pub use fumehood_host_fns::{
    AuditRecord, AuditSink, Budget, Clock, Denial, LastingEffect, Limits as BrokerLimits,
    MemoryFile, MemorySink, MountError, OutputSink, RandomSource, Stream, Tool, ToolError,
    ToolSetupError,
};
pub use fumehood_policies::{Access, GuestPath};
pub use grants::{PolicySource, ReplaceError};
pub use host_env::records_location;
pub use inputs::{InputsError, MAX_INPUT_DEPTH};
pub use limits::{Limits, MAX_MEMORY_BYTES, MIN_MEMORY_BYTES};
pub use memory::{MemoryPath, memory_path};
pub use native_run::NATIVE_PYTHON;
pub use observer::{ExecutionEvent, Observer};
pub use outcome::{
    CellValue, DisplayData, Dropped, FileChanges, NotListed, Outcome, OutcomeKind, SCHEMA_VERSION,
    ScriptError, TimeoutClock, Usage,
};
pub use pool::{Pool, PoolRun};
pub use run::{Canceller, Run};
pub use sandbox::{FIXED_ENVIRONMENT, Sandbox, WORKING_DIRECTORY};
pub use script::Script;
pub use session::{
    CheckpointId, Files, MAX_CHECKPOINT_BYTES, MAX_CHECKPOINTS, Pending, Session, SessionError,
    SessionUsage,
};
pub use threads::MAX_THREADS;
