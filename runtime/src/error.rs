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
    /// The text of the policy or of the ceiling.
    #[error(transparent)]
    Policy(#[from] fumehood_policies::PolicyErrors),
    /// Something was asked for that the policy or the ceiling does not allow,
    /// or mounts overlap.
    #[error(transparent)]
    NotAllowed(#[from] fumehood_policies::CombineErrors),
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
    /// There is no thread for tools.
    #[error("the system gave no thread to run tools on; raise the limit on processes")]
    Executor(#[source] std::io::Error),
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
    /// The system gives no randomness.
    #[error("the system gave no randomness; a sandbox needs some for its name and its seeds")]
    Random,
    /// An environment variable cannot be set.
    #[error("`{name}` {reason}")]
    Environment {
        /// As given.
        name: String,
        /// What is wrong and what to do.
        reason: &'static str,
    },
}
