//! The arguments of `session` and `audit`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};

/// `--audit-durability`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum DurabilityArg {
    /// At checkpoints and at the end.
    #[default]
    Checkpoint,
    /// Also before effects that cannot be taken back.
    Strict,
}

/// What becomes of the records.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct RecordArgs {
    /// Keep no record of this run
    #[arg(long)]
    pub(crate) no_record: bool,
    /// When the audit log is made to survive a loss of power: at checkpoints, or also before each effect that cannot be taken back
    #[arg(long, value_enum, value_name = "WHEN", default_value_t, conflicts_with = "no_record")]
    pub(crate) audit_durability: DurabilityArg,
}

/// `fumehood session`.
#[derive(Debug, Args)]
pub(crate) struct SessionArgs {
    /// What to do.
    #[command(subcommand)]
    pub(crate) which: Session,
}

/// The session commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Session {
    /// List the sessions that have records
    List {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Show one session and what its log is worth
    Show {
        /// The session
        session: String,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Remove the records of sessions, and their workspaces if nothing is in them
    Rm {
        /// The sessions
        #[arg(required = true)]
        sessions: Vec<String>,
        /// Also remove changes that were not brought back
        #[arg(long)]
        discard: bool,
    },
    /// Show what a workspace would bring back, as unified diffs
    Diff {
        /// The session or the workspace's name
        session: String,
        /// Print one JSON object, without the diffs
        #[arg(long)]
        json: bool,
    },
    /// Bring the changes of a workspace back to its project
    Sync(SyncArgs),
    /// Remove a workspace with the changes that were not brought back
    Discard {
        /// The session or the workspace's name
        session: String,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Write the changes of a workspace as one archive (tar, compressed with zstd)
    Export {
        /// The session or the workspace's name
        session: String,
        /// The file; there must be none
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
    },
    /// Make a workspace from an archive; nothing in it reaches the project before a sync
    Import {
        /// The workspace's name
        #[arg(value_parser = super::project::parse_name)]
        name: String,
        /// The archive
        #[arg(value_name = "FILE")]
        archive: PathBuf,
        /// The project
        #[arg(long, value_name = "DIR")]
        project: PathBuf,
    },
    /// Close the log of a session that crashed, with a signed note of what was not signed
    Recover {
        /// The session
        session: String,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
}

/// `fumehood session sync`.
#[derive(Debug, Args)]
pub(crate) struct SyncArgs {
    /// The session or the workspace's name
    pub(crate) session: String,
    /// Also take this path, and what is below it, although a tool would run or obey it
    #[arg(long, value_name = "PATH")]
    pub(crate) accept: Vec<OsString>,
    /// Only say what would be brought back
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Keep the workspace also when everything was brought back
    #[arg(long)]
    pub(crate) keep: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// `fumehood audit`.
#[derive(Debug, Args)]
pub(crate) struct AuditArgs {
    /// What to do.
    #[command(subcommand)]
    pub(crate) which: Audit,
}

/// The audit commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Audit {
    /// Say whether a log is intact (0), broken (1) or cannot be verified (2)
    Verify {
        #[command(flatten)]
        log: LogArgs,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Print what a log says as a table
    Show {
        #[command(flatten)]
        log: LogArgs,
        /// Show calls below the calls that they are part of
        #[arg(long)]
        tree: bool,
        /// Only operations that are this or begin with it, such as `fs.`
        #[arg(long, value_name = "NAME")]
        op: Option<String>,
        /// Only calls with this decision
        #[arg(long, value_enum, value_name = "DECISION")]
        decision: Option<DecisionArg>,
        /// Only calls from this time on, such as 2026-01-31T12:00:00Z or seconds since 1970
        #[arg(long, value_name = "TIME", value_parser = crate::audit::time::parse)]
        since: Option<u64>,
        /// Only calls up to this time
        #[arg(long, value_name = "TIME", value_parser = crate::audit::time::parse)]
        until: Option<u64>,
    },
    /// Print the records of a log for other programs
    Export {
        #[command(flatten)]
        log: LogArgs,
        /// One JSON object a line, or OpenTelemetry spans as OTLP JSON
        #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
        format: ExportFormat,
    },
    /// The file that remembers how far each log had come
    Witness {
        /// What to do.
        #[command(subcommand)]
        which: WitnessCommand,
    },
}

/// A log and what it is held against.
#[derive(Debug, Args)]
pub(crate) struct LogArgs {
    /// A session, the directory of one, or a log
    #[arg(value_name = "SESSION|DIR|FILE")]
    pub(crate) log: OsString,
    /// The install key's public half, as 64 hexadecimal digits or a file with them; away from home only
    #[arg(long, value_name = "PUB")]
    pub(crate) install_key: Option<OsString>,
    /// The witness; away from home only
    #[arg(long, value_name = "FILE")]
    pub(crate) witness: Option<PathBuf>,
}

/// `--decision`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum DecisionArg {
    /// It was allowed.
    Allow,
    /// It was denied.
    Deny,
    /// Somebody was to be asked.
    Ask,
}

/// `--format`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ExportFormat {
    /// The lines of the log.
    #[default]
    Jsonl,
    /// OpenTelemetry spans.
    #[cfg(feature = "otlp")]
    Otlp,
}

/// The commands about the witness.
#[derive(Debug, Subcommand)]
pub(crate) enum WitnessCommand {
    /// Print its entries as a table
    Show,
    /// Check every entry
    Verify {
        /// Another witness than that of this installation
        #[arg(long, value_name = "FILE")]
        witness: Option<PathBuf>,
        /// The install key's public half, as 64 hexadecimal digits or a file with them
        #[arg(long, value_name = "PUB")]
        install_key: Option<OsString>,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Print it as it is, to be kept elsewhere
    Export,
}
