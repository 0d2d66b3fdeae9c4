//! The command line.
//!
//! Invariant: whatever is wrong with it is told in one sentence, the process
//! ends with 64 and nothing has run.
#![allow(clippy::disallowed_methods, reason = "this module reads the arguments")]

mod audit;
mod project;
mod reach;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, Parser, Subcommand};
use fumehood::policy::BudgetPreset;

use crate::determinism::DeterminismArgs;

use crate::bash::BashArgs;
use crate::doctor::DoctorArgs;
use crate::error::USAGE;
#[cfg(feature = "eval")]
use crate::eval::Eval;
use crate::native::{ProgramTierArgs, TierArgs};
use crate::output;
pub(crate) use audit::{
    Audit, AuditArgs, DecisionArg, DurabilityArg, ExportFormat, LogArgs, RecordArgs, Session,
    SessionArgs, SyncArgs, WitnessCommand,
};
pub(crate) use project::ProjectArgs;
pub(crate) use reach::{MountArg, ReachArgs, parse_env, parse_mount};

/// Longest time limit, in seconds: a year.
const MAX_SECONDS: f64 = 365.0 * 24.0 * 3600.0;

/// Run Python that an agent wrote, with no access to anything you did not name.
#[derive(Debug, Parser)]
#[command(name = "fumehood", version, disable_help_subcommand = true)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a Python program in the sandbox
    Run(Box<RunArgs>),
    /// Run one command of the shell in a native tier
    Bash(BashArgs),
    /// Say what boundaries this machine can give, and by what
    Doctor(DoctorArgs),
    /// Compare the tiers: the same attacks and the same work in each of them
    #[cfg(feature = "eval")]
    #[command(subcommand)]
    Eval(Eval),
    /// Work in one live Python session, cell by cell
    Repl(ReplArgs),
    /// Measure this machine: start-up, sessions, memory, processor work
    Bench(BenchArgs),
    /// Records of past runs, and changes to projects that were not brought back
    Session(SessionArgs),
    /// The audit log of a run: checking it, reading it, handing it on
    Audit(AuditArgs),
    /// Read policies: check, explain, compare
    Policy(PolicyArgs),
    /// The compiled guest: where it is, building, checking and removing it
    Cache(CacheArgs),
    /// Print the versions of this build
    Version(VersionArgs),
}

/// `fumehood run`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The program, or `-` to read it from standard input
    #[arg(value_name = "FILE", conflicts_with = "code")]
    pub(crate) file: Option<OsString>,
    /// Run this text instead of a file
    #[arg(short, value_name = "CODE", allow_hyphen_values = true)]
    pub(crate) code: Option<String>,
    /// Run it as a notebook cell: the value of the last expression is printed
    #[arg(long)]
    pub(crate) cell: bool,
    #[command(flatten)]
    pub(crate) tier: ProgramTierArgs,
    #[command(flatten)]
    pub(crate) reach: ReachArgs,
    /// What the program reads from standard input: a file, or `-` for this command's own; empty otherwise
    #[arg(long, value_name = "FILE")]
    pub(crate) stdin: Option<OsString>,
    /// A file with a JSON object; each member becomes a global variable
    #[arg(long, value_name = "FILE")]
    pub(crate) input_json: Option<PathBuf>,
    /// A policy that only takes away from all the others
    #[arg(long, value_name = "FILE")]
    pub(crate) ceiling: Option<OsString>,
    /// Let `fumehood policy approve` widen the policy while the program runs
    #[arg(long, conflicts_with = "no_record")]
    pub(crate) live: bool,
    /// How much the program may use: `small`, `default` or `large`
    #[arg(long, value_name = "NAME", value_parser = parse_budget)]
    pub(crate) budget: Option<BudgetPreset>,
    /// Wall-clock limit in seconds [default: 60]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds, allow_hyphen_values = true)]
    pub(crate) timeout: Option<Duration>,
    /// Processor-time limit in seconds [default: 60, or --timeout if that is longer]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds, allow_hyphen_values = true)]
    pub(crate) cpu: Option<Duration>,
    /// Memory limit in MiB, the interpreter included [default: 512]
    #[arg(long, value_name = "MB", value_parser = parse_memory, allow_hyphen_values = true)]
    pub(crate) memory: Option<u64>,
    #[command(flatten)]
    pub(crate) determinism: DeterminismArgs,
    /// Print one JSON object, described by docs/result.schema.json, and nothing else
    #[arg(long, conflicts_with = "json_lines")]
    pub(crate) json: bool,
    /// Print one JSON object a line, while the program runs
    #[arg(long)]
    pub(crate) json_lines: bool,
    /// Use a file made by `fumehood cache build`, and compile nothing
    #[arg(long, value_name = "FILE")]
    pub(crate) compiled: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) record: RecordArgs,
    /// Arguments of the program, after `--`
    #[arg(last = true, value_name = "ARGS")]
    pub(crate) args: Vec<String>,
}

/// `fumehood repl`.
#[derive(Debug, Args)]
pub(crate) struct ReplArgs {
    #[command(flatten)]
    pub(crate) reach: ReachArgs,
    /// Wall-clock and processor-time limit of one cell, in seconds [default: 60]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds, allow_hyphen_values = true)]
    pub(crate) timeout: Option<Duration>,
    /// Memory limit in MiB, the interpreter included [default: 512]
    #[arg(long, value_name = "MB", value_parser = parse_memory, allow_hyphen_values = true)]
    pub(crate) memory: Option<u64>,
    /// Use a file made by `fumehood cache build`, and compile nothing
    #[arg(long, value_name = "FILE")]
    pub(crate) compiled: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) record: RecordArgs,
}

/// `fumehood bench`.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) which: Bench,
}

/// The benches.
#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// From a new sandbox to the result of `print(1+1)`, and runs per second on two threads
    Startup {
        /// Runs that are measured
        #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
        runs: u32,
        /// Also count the programs a second that a pool runs
        #[arg(long)]
        pool: bool,
        #[command(flatten)]
        common: BenchCommon,
    },
    /// Cells of one session: what a cell, its checkpoint and a rollback take
    Cell {
        /// Cells that are measured
        #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
        cells: u32,
        #[command(flatten)]
        common: BenchCommon,
    },
    /// Many sessions at once, and forks of a session of 100 MB
    Sessions {
        /// Sessions that are alive at the same time
        #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(20..=10_000))]
        sessions: u32,
        /// Forks that are measured
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
        forks: u32,
        #[command(flatten)]
        common: BenchCommon,
    },
    /// Programs of a directory, inside and with a native Python, in turn
    Cpu {
        /// Directory of programs whose last line is `RESULT … SECONDS`
        #[arg(long, value_name = "DIR", default_value = "tests/cpu")]
        programs: PathBuf,
        /// The Python to compare with
        #[arg(long, value_name = "PYTHON", default_value = "python3")]
        native: PathBuf,
        /// How often each program runs on each side
        #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
        rounds: u32,
        #[command(flatten)]
        common: BenchCommon,
    },
    /// What it costs to record an operation, and to verify a long log
    Audit {
        /// Operations that are measured
        #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(1..=500_000))]
        calls: u32,
        /// Records of the log that is verified
        #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(2..=1_900_000))]
        records: u32,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Reading a mount against a native Python, and starting on and syncing a large project
    Files {
        /// Rounds that are measured
        #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
        rounds: u32,
        /// The Python to compare with
        #[arg(long, value_name = "PYTHON", default_value = "python3")]
        native: PathBuf,
        #[command(flatten)]
        common: BenchCommon,
    },
    /// What a call of the host costs: nothing, a tool, a file
    Hostcall {
        /// Rounds that are measured
        #[arg(long, default_value_t = 11, value_parser = clap::value_parser!(u32).range(1..=1000))]
        rounds: u32,
        #[command(flatten)]
        common: BenchCommon,
    },
    /// A command that does nothing in the tier `landlock`, and in bubblewrap, in turn
    Bash {
        /// Runs that are measured, of each
        #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
        runs: u32,
        #[command(flatten)]
        tier: TierArgs,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Requests to a server of this machine, inside and with a native Python, in turn
    Net {
        /// Small requests, one after the other
        #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
        requests: u32,
        /// Size of a download
        #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=10_000))]
        megabytes: u32,
        /// Requests at the same time
        #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=1000))]
        at_once: u32,
        /// How often each side runs
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
        rounds: u32,
        /// The Python to compare with
        #[arg(long, value_name = "PYTHON", default_value = "python3")]
        native: PathBuf,
        #[command(flatten)]
        common: BenchCommon,
    },
    /// Private memory of instances that wait
    Memory {
        /// Instances that are alive at the same time
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
        instances: u32,
        #[command(flatten)]
        common: BenchCommon,
    },
}

/// What all benches take.
#[derive(Debug, Args)]
pub(crate) struct BenchCommon {
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// Use a file made by `fumehood cache build`
    #[arg(long, value_name = "FILE")]
    pub(crate) compiled: Option<PathBuf>,
}

/// `fumehood policy`.
#[derive(Debug, Args)]
pub(crate) struct PolicyArgs {
    #[command(subcommand)]
    pub(crate) which: PolicyCommand,
}

/// The policy commands. `FILE` is a policy file or the name of a preset.
#[derive(Debug, Subcommand)]
pub(crate) enum PolicyCommand {
    /// Say what a policy contains, or everything that is wrong with it
    Check {
        /// The policy
        #[arg(value_name = "FILE")]
        file: OsString,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Say what a policy does with a request, which rule decides and what would change it
    Explain {
        /// The policy
        #[arg(value_name = "FILE")]
        file: OsString,
        /// The request, such as `fs.read /work/x` or `tool NAME {"a": 1}`
        #[arg(value_name = "REQUEST")]
        request: String,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Propose the narrowest rules for requests that were denied, in a running session (`run --live`) or in the result of a run
    Draft {
        /// A running session; or the policy and what `fumehood run --json` printed
        #[arg(value_name = "SESSION | FILE RESULT", num_args = 1..=2, required = true)]
        of: Vec<OsString>,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Put one proposed rule into the policy of a running session, or into a policy
    Approve {
        /// A running session, or the policy and the result; and the draft
        #[arg(value_name = "SESSION ID | FILE RESULT ID", num_args = 2..=3, required = true)]
        of: Vec<OsString>,
        /// The token that `draft` showed with it
        #[arg(long, value_name = "TOKEN")]
        token: String,
        /// Where to write the new policy; it is printed if no file is named
        #[arg(long, value_name = "FILE")]
        into: Option<PathBuf>,
    },
    /// Drop one proposed rule: it cannot be approved any more
    Reject {
        /// A running session, or the policy and the result; and the draft
        #[arg(value_name = "SESSION ID | FILE RESULT ID", num_args = 2..=3, required = true)]
        of: Vec<OsString>,
        /// Why, in a sentence
        #[arg(long, value_name = "TEXT")]
        reason: String,
    },
    /// List what a new policy lets through that the old one did not
    Diff {
        /// The policy that holds
        #[arg(value_name = "OLD")]
        old: OsString,
        /// The policy that is to hold
        #[arg(value_name = "NEW")]
        new: OsString,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
}

/// `fumehood cache`.
#[derive(Debug, Args)]
pub(crate) struct CacheArgs {
    /// What to do.
    #[command(subcommand)]
    pub(crate) which: Cache,
}

/// The cache commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Cache {
    /// Say where compiled code is kept and whether it is there
    Info {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Compile the guest into a file for machines without a writable cache
    Build {
        /// The file; replaced whole if it exists
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Read compiled code whole and compare its digests
    Verify {
        /// The file; the user's cache if none is named
        file: Option<PathBuf>,
        /// Print one JSON object for each file
        #[arg(long)]
        json: bool,
    },
    /// Remove the compiled code of the user's cache
    Clear {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
}

/// `fumehood version`.
#[derive(Debug, Args)]
pub(crate) struct VersionArgs {
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// The command line ends the process: help, the version, or an error.
#[derive(Debug)]
pub(crate) struct Early(clap::Error);

/// Parses the process's arguments.
///
/// # Errors
/// [`Early`] if there is nothing to run.
pub(crate) fn parse() -> Result<Cli, Early> {
    Cli::try_parse().map_err(Early)
}

impl Early {
    /// Prints it and returns the exit code.
    pub(crate) fn print(&self) -> i32 {
        match self.0.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
                output::print(&self.0.render().to_string());
                0
            }
            ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
                output::note(
                    "no command was given; `fumehood --help` and `fumehood COMMAND --help` list them",
                );
                USAGE
            }
            _ => {
                output::note(&self.sentence());
                USAGE
            }
        }
    }

    /// What is wrong and what to do, on one line.
    fn sentence(&self) -> String {
        let rendered = self.0.render().to_string();
        let what = rendered.split("\n\n").next().unwrap_or_default();
        let what = what.strip_prefix("error: ").unwrap_or(what);
        let what = what.split_whitespace().collect::<Vec<_>>().join(" ");
        let suggested = [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand]
            .into_iter()
            .find_map(|kind| match self.0.get(kind) {
                Some(ContextValue::String(one)) => Some(one.clone()),
                Some(ContextValue::Strings(many)) => many.first().cloned(),
                _ => None,
            });
        if what.contains(';') {
            return what;
        }
        match suggested {
            Some(suggested) => format!("{what}; did you mean `{suggested}`?"),
            None if self.0.kind() == ErrorKind::UnknownArgument && !what.contains("'-") => {
                format!("{what}; a program's own arguments go after `--`")
            }
            None => {
                format!("{what}; `fumehood --help` and `fumehood COMMAND --help` say what there is")
            }
        }
    }
}

pub(crate) fn parse_seconds(text: &str) -> Result<Duration, String> {
    let refused = || {
        "it is not a time limit; give seconds, above 0 and at most 31536000, such as 2.5".to_owned()
    };
    let seconds: f64 = text.parse().map_err(|_| refused())?;
    if !(seconds > 0.0 && seconds <= MAX_SECONDS) {
        return Err(refused());
    }
    let time = Duration::try_from_secs_f64(seconds).map_err(|_| refused())?;
    if time.is_zero() { Err(refused()) } else { Ok(time) }
}

fn parse_memory(text: &str) -> Result<u64, String> {
    let (least, most) = (fumehood::MIN_MEMORY_BYTES >> 20, fumehood::MAX_MEMORY_BYTES >> 20);
    text.parse::<u64>()
        .ok()
        .filter(|mib| (least..=most).contains(mib))
        .and_then(|mib| mib.checked_mul(1 << 20))
        .ok_or_else(|| format!("it is not a memory limit; give whole MiB from {least} to {most}"))
}

fn parse_budget(text: &str) -> Result<BudgetPreset, String> {
    BudgetPreset::named(text)
        .ok_or_else(|| "there is no such budget; give small, default or large".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory as _;
        Cli::command().debug_assert();
    }

    #[test]
    fn limits_are_positive_finite_and_bounded() {
        for good in ["1", "0.25", "31536000", "1e-3"] {
            assert!(parse_seconds(good).is_ok(), "{good}");
        }
        for bad in ["0", "-1", "NaN", "inf", "-inf", "1e300", "1e-30", "31536001", "", "5s"] {
            assert!(parse_seconds(bad).is_err(), "{bad}");
        }
        assert_eq!(parse_memory("64"), Ok(64 << 20));
        assert_eq!(parse_memory("4096"), Ok(4 << 30));
        for bad in ["0", "63", "4097", "-1", "1.5", "99999999999999999999", ""] {
            assert!(parse_memory(bad).is_err(), "{bad}");
        }
    }
}
