//! `fumehood bash`: one command in a native tier, through the broker like
//! everything else, and with the project and the result of `fumehood run`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use fumehood::native::{Guarantee, NativeLimits, NativeSession};
use fumehood::policy::BudgetSettings;
use fumehood::{OutputSink, Sandbox, Stream};

use crate::args::{
    MountArg, ProjectArgs, ReachArgs, RecordArgs, parse_env, parse_mount, parse_seconds,
};
use crate::error::CliError;
use crate::native::TierArgs;
use crate::net::NetArgs;
use crate::output::{self, Live, Stop};
use crate::records::Recording;
use crate::run::milliseconds;
use crate::{files, project, reach, report, signals};

/// Most bytes of standard input that a command is given.
const MAX_STDIN_BYTES: usize = 8 << 20;

/// `fumehood bash`.
#[derive(Debug, Args)]
pub(crate) struct BashArgs {
    /// The command, for a shell
    #[arg(value_name = "CMD")]
    command: String,
    #[command(flatten)]
    tier: TierArgs,
    /// Wall-clock limit in seconds [default: 60]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds, allow_hyphen_values = true)]
    timeout: Option<Duration>,
    /// Memory limit of all its processes in MiB [default: 1024]
    #[arg(long, value_name = "MB", value_parser = clap::value_parser!(u64).range(16..=1_048_576))]
    memory: Option<u64>,
    /// Let the command see a directory; read only unless `:rw` is added
    #[arg(long, value_name = "PLACE=DIR[:ro|rw]", value_parser = mount)]
    mount: Vec<MountArg>,
    #[command(flatten)]
    project: ProjectArgs,
    /// Set an environment variable
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_env, allow_hyphen_values = true)]
    env: Vec<(String, String)>,
    /// Working directory [default: the project, else /work]
    #[arg(long, value_name = "DIR")]
    cwd: Option<String>,
    /// What the command reads from standard input: a file, or `-` for this command's own; empty otherwise
    #[arg(long, value_name = "FILE")]
    stdin: Option<std::ffi::OsString>,
    /// Refuse to run without this guarantee, such as `pid-view`
    #[arg(long, value_name = "GUARANTEE", value_parser = parse_guarantee)]
    require: Vec<Guarantee>,
    /// Print one JSON object, described by docs/result.schema.json, and nothing else
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    record: RecordArgs,
}

fn mount(text: &str) -> Result<MountArg, String> {
    parse_mount(text.into(), false)
}

fn parse_guarantee(text: &str) -> Result<Guarantee, String> {
    let names = Guarantee::ALL.map(Guarantee::name);
    let found = Guarantee::ALL.into_iter().find(|guarantee| guarantee.name() == text);
    found.ok_or_else(|| format!("there is no such guarantee; name one of {}", names.join(", ")))
}

/// Runs the command and returns the exit code.
///
/// # Errors
/// One sentence; nothing has run.
pub(crate) fn run(args: &BashArgs) -> Result<i32, CliError> {
    if args.command.trim().is_empty() {
        return Err(CliError::usage("the command is empty; give one such as `ls`"));
    }
    let tier = args.tier.prepared()?;
    tier.prepare(&args.require).map_err(|unavailable| crate::native::refused(&unavailable))?;
    let stdin = match &args.stdin {
        Some(stdin) => files::read(stdin, "the standard input", MAX_STDIN_BYTES)?,
        None => Vec::new(),
    };
    let mut session = NativeSession::new(tier);
    session.required.clone_from(&args.require);
    let recording = Recording::of(args.record, "<command>", Some(args.command.as_bytes()))?;
    let sandbox = sandbox(args, session, &recording)?;
    let stop = Arc::new(Stop::default());
    let live = Arc::new(Passing { live: Live::new(), stop: Arc::clone(&stop) });
    let sink = (!args.json).then(|| Arc::clone(&live) as Arc<dyn OutputSink>);
    let run = sandbox.run_command_with(&args.command, stdin, args.cwd.clone(), sink);
    stop.attach(run.canceller());
    let interrupted = Arc::new(AtomicBool::new(false));
    signals::listen(Arc::clone(&stop), Arc::clone(&interrupted));
    let outcome = run.wait();
    recording.finish(&outcome);
    if args.json {
        let _ = output::print_json(&outcome.to_json());
    } else {
        live.live.finish(&outcome, None);
        let interrupted = interrupted.load(Ordering::SeqCst);
        report::tell(&outcome, sandbox.limits(), false, interrupted);
        project::tell(&outcome);
    }
    project::close(&sandbox);
    recording.tidy();
    Ok(outcome.exit_code)
}

/// What the command is given.
fn sandbox(
    args: &BashArgs,
    session: NativeSession,
    recording: &Recording,
) -> Result<Sandbox, CliError> {
    let reach = ReachArgs {
        mount: args.mount.clone(),
        force_mount: Vec::new(),
        file_tools: false,
        project: args.project.clone(),
        env: args.env.clone(),
        policy: None,
        net: NetArgs::default(),
    };
    let most = NativeLimits::default();
    let budget = BudgetSettings {
        wall_ms: Some(milliseconds(args.timeout.unwrap_or(session.timeout))),
        cpu_ms: Some(milliseconds(args.timeout.unwrap_or(most.cpu).max(most.cpu))),
        memory_bytes: Some(args.memory.map_or(most.memory_bytes, |mib| mib << 20)),
        ..BudgetSettings::default()
    };
    let mounts = reach::mounts(&reach, None);
    let sandbox = Sandbox::builder().budget(budget).policy(crate::native::allowed()?);
    let sandbox = reach::apply(&reach, &mounts, None, sandbox)?;
    Ok(recording.attach(sandbox.native_only(session), Vec::new()).build()?)
}

/// Passes output on as it comes.
struct Passing {
    live: Live,
    stop: Arc<Stop>,
}

impl OutputSink for Passing {
    fn write(&self, stream: Stream, bytes: &[u8]) {
        self.live.write(stream, bytes, &self.stop);
    }
}
