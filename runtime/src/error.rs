//! Why an engine or a sandbox could not be made.

use std::path::PathBuf;

/// Why an engine could not be made. [`EngineError::code`] is stable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The engine's settings are not supported by this machine.
    #[error("the WebAssembly engine cannot run on this machine: {0}")]
    Unsupported(String),
    /// The guest module is not valid, imports something that is not offered,
    /// or states another ABI.
    #[error("the guest module was refused: {0}")]
    Guest(String),
    /// A compiled-code file was refused.
    #[error("{path} cannot be used as compiled code: {reason}", path = .path.display())]
    Compiled {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and what to do.
        reason: String,
    },
    /// A file could not be written or read.
    #[error("{path}: {source}", path = .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The system refused a thread.
    #[error("the system gave no thread: {0}")]
    Thread(std::io::Error),
}

impl EngineError {
    /// A stable name for programs.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Unsupported(_) => "engine_unsupported",
            Self::Guest(_) => "guest_refused",
            Self::Compiled { .. } => "compiled_refused",
            Self::File { .. } => "file",
            Self::Thread(_) => "no_thread",
        }
    }
}

/// Why a sandbox could not be built; nothing has run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A mount.
    #[error(transparent)]
    Mount(#[from] fumehood_host_fns::MountError),
    /// The project or its workspace.
    #[error(transparent)]
    Workspace(#[from] fumehood_host_fns::WorkspaceError),
    /// The place of the workspace.
    #[error("the workspace cannot be kept: {}", .0.detail())]
    WorkspacePlace(#[from] fumehood_host_fns::records::RecordsError),
    /// A workspace of that name shows other files than are asked for.
    #[error(
        "the workspace `{name}` was made with other names left out or shown; sync or discard it first, or leave those options out"
    )]
    WorkspaceView {
        /// The workspace.
        name: String,
    },
    /// A workspace of that name cannot be used by what is to run.
    #[error(
        "the workspace `{name}` was made as `{has}` and this run needs `{needs}`; sync or discard it first, or use another name"
    )]
    WorkspaceStrategy {
        /// The workspace.
        name: String,
        /// Its strategy.
        has: &'static str,
        /// The one that is needed.
        needs: &'static str,
    },
    /// The text of the policy or of the ceiling.
    #[error(transparent)]
    Policy(#[from] fumehood_policies::PolicyErrors),
    /// Something was asked for that the policy or the ceiling does not allow,
    /// or mounts overlap.
    #[error(transparent)]
    NotAllowed(#[from] fumehood_policies::CombineErrors),
    /// The code could change a file that it must not: see
    /// [`crate::SandboxBuilder::out_of_reach`].
    #[error("`{}` lies in `{at}`, which the code can change; keep it elsewhere", .file.display())]
    WithinReach {
        /// The file.
        file: std::path::PathBuf,
        /// Where the guest sees what it lies in.
        at: String,
    },
    /// Such a file cannot be looked at.
    #[error("`{}` cannot be looked at ({source}); name a file that is there", .file.display())]
    Unseen {
        /// The file.
        file: std::path::PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The policy or the ceiling has sections that this build cannot carry out.
    #[error(
        "the policy has [{}], and nothing in this build can hold to that; remove what is not needed",
        .sections.join("], [")
    )]
    Unsupported {
        /// Their names.
        sections: Vec<&'static str>,
    },
    /// A tool.
    #[error(transparent)]
    Tool(#[from] fumehood_host_fns::ToolSetupError),
    /// A host to be allowed is none.
    #[error("the host `{host}` cannot be allowed: {reason}; {}", .reason.remedy())]
    Host {
        /// As given.
        host: String,
        /// What is wrong.
        #[source]
        reason: fumehood_policies::GrantError,
    },
    /// Connections cannot be set up as asked.
    #[error(transparent)]
    Egress(#[from] fumehood_host_fns::EgressSetupError),
    /// There is no thread for tools.
    #[error("the system gave no thread to run tools on; raise the limit on processes")]
    Executor(#[source] std::io::Error),
    /// An input that commands could not see.
    #[error("{path:?} is a file, and a native tier is shown directories only; name its directory")]
    InputFile {
        /// The file.
        path: PathBuf,
    },
    /// The name of a host directory is not text.
    #[error(
        "{path:?} is not UTF-8 text, which a policy names directories by; mount it by another name"
    )]
    HostName {
        /// The directory.
        path: PathBuf,
    },
    /// A guest path is not valid.
    #[error("`{path}` is not a guest path: {reason}")]
    Path {
        /// As given.
        path: String,
        /// What is wrong.
        reason: String,
    },
    /// A limit is out of range.
    #[error("the {name} limit must be between {least} and {most}")]
    Limit {
        /// Which limit, with its unit.
        name: &'static str,
        /// Least value.
        least: u64,
        /// Greatest value.
        most: u64,
    },
    /// The native tier cannot give what is required, or cannot show commands a
    /// directory where the code sees it.
    #[error(transparent)]
    Native(#[from] fumehood_host_fns::Unavailable),
    /// A directory cannot be given to a native tier.
    #[error("a directory cannot be given to the native tier; close other files of this process")]
    Descriptor(#[source] std::io::Error),
    /// The system gives no randomness.
    #[error("the system gave no randomness; a sandbox needs some for its name and its seeds")]
    Random,
    /// The audit cannot be kept.
    #[error("the audit cannot be kept")]
    Audit(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// An environment variable cannot be set.
    #[error("`{name}` {reason}")]
    Environment {
        /// As given.
        name: String,
        /// What is wrong and what to do.
        reason: &'static str,
    },
}
