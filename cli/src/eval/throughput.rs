//! `eval throughput`: the log example in every tier that this machine has, and
//! in plain CPython.
//!
//! Invariant: every arm runs the same program on the same files; an answer is
//! compared with the key that was derived from those files. What a tier does
//! not tell is `null`, never 0.
#![allow(clippy::disallowed_methods, reason = "this module makes the files and starts CPython")]

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use fumehood::audit::{AuditSink, Durability};
use fumehood::native::NativeSession;
use fumehood::policy::BudgetSettings;
use fumehood::records::{Home, SessionEnd, SessionRecord, SessionStart};
use fumehood::{Access, Outcome, Sandbox, SandboxBuilder, Script};
use fumehood_example_log_analysis::{AGENT_PROGRAM, AgentReport, Corpus, Question, Size};
use fumehood_native_tiers::TierName;
use serde_json::{Value, json};

use super::spans::{HostTime, Spans};
use crate::error::{BAD_FINDING, CliError};
use crate::native::TierArgs;
use crate::{output, progress};

/// Longest time one arm may take.
const WALL: Duration = Duration::from_secs(900);

/// What plain CPython says of itself at its end.
const USAGE: &str = "\nimport resource, sys\nu = resource.getrusage(resource.RUSAGE_SELF)\nprint('USAGE', u.ru_utime + u.ru_stime, u.ru_maxrss * 1024, file=sys.stderr)\n";

/// How much work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum SizeArg {
    /// 300 rows a day.
    #[default]
    Small,
    /// 10 000 rows a day, 52 MB.
    Full,
}

/// `fumehood eval throughput`.
#[derive(Debug, Args)]
pub(crate) struct ThroughputArgs {
    /// How much work
    #[arg(long, value_enum, default_value_t)]
    size: SizeArg,
    /// The image of the tier `docker`, with python3; that tier is left out without one
    #[arg(long, value_name = "DIGEST|ID", value_parser = crate::native::parse_image)]
    image: Option<fumehood_native_tiers::ImageId>,
    /// The file fumehood-helper [default: beside this program]
    #[arg(long, value_name = "FILE")]
    helper: Option<std::path::PathBuf>,
    /// The plain CPython
    #[arg(long, value_name = "PYTHON", default_value = "python3")]
    native: std::path::PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What one arm did.
struct Arm {
    name: &'static str,
    outcome: String,
    report: AgentReport,
    wall_ms: f64,
    cpu_ms: Option<f64>,
    peak_memory_bytes: Option<u64>,
    host_calls: Option<u64>,
    bytes: Option<(u64, u64)>,
    audit_bytes: Option<u64>,
    broker: Option<HostTime>,
    stderr: String,
}

/// A tier that is not there, and why.
struct Absent {
    name: &'static str,
    reason: String,
}

fn failed(what: &str, error: &impl std::fmt::Display) -> CliError {
    CliError::cannot_tell(format!("{what} ({error}); free space or see the machine's log"))
}

/// Runs all arms. 1 if an answer is wrong.
///
/// # Errors
/// One sentence.
pub(super) fn run(args: &ThroughputArgs) -> Result<i32, CliError> {
    let spans = Spans::start().ok_or_else(|| {
        CliError::usage("spans are listened to by the log already; unset FUMEHOOD_LOG")
    })?;
    let place = tempfile::tempdir().map_err(|e| failed("there is no temporary directory", &e))?;
    let logs = place.path().join("logs");
    let size = if args.size == SizeArg::Full { Size::Full } else { Size::Small };
    let corpus = Corpus::generate(&logs, size).map_err(|e| failed("no logs were made", &e))?;
    // A container's user is another one.
    for directory in [place.path(), logs.as_path()] {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(directory, mode)
            .map_err(|error| failed("the logs cannot be shown", &error))?;
    }
    let mut arms = vec![plain(&args.native, &logs)?];
    let mut absent = Vec::new();
    for tier in [TierName::Wasm, TierName::Landlock, TierName::Docker, TierName::Process] {
        match one(args, tier, &logs, place.path(), &spans) {
            Ok(arm) => arms.push(arm),
            Err(error) => absent.push(Absent { name: tier.as_str(), reason: error.message }),
        }
    }
    let right = arms.iter().all(|arm| arm.report.score(&corpus.key) == Question::ALL.len());
    if args.json {
        let _ = output::print_json(&as_json(args, &corpus, &arms, &absent));
    } else {
        tell(&corpus, &arms, &absent);
    }
    Ok(if right { 0 } else { BAD_FINDING })
}

/// The machine's own Python with nothing around it.
fn plain(python: &Path, logs: &Path) -> Result<Arm, CliError> {
    let start = Instant::now();
    let ran = Command::new(python)
        .args(["-I", "-c", &format!("{AGENT_PROGRAM}{USAGE}")])
        .arg(logs)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| {
            CliError::usage(format!(
                "`{}` cannot be started ({error}); name a Python with --native",
                python.display()
            ))
        })?;
    let wall_ms = start.elapsed().as_secs_f64() * 1000.0;
    let stderr = String::from_utf8_lossy(&ran.stderr).into_owned();
    let usage = stderr.lines().rev().find_map(|line| line.strip_prefix("USAGE "));
    let mut usage = usage.unwrap_or_default().split_whitespace();
    let cpu = usage.next().and_then(|seconds| seconds.parse::<f64>().ok());
    Ok(Arm {
        name: "cpython",
        outcome: if ran.status.success() { "completed".to_owned() } else { ran.status.to_string() },
        report: AgentReport::parse(&String::from_utf8_lossy(&ran.stdout)),
        wall_ms,
        cpu_ms: cpu.map(|seconds| seconds * 1000.0),
        peak_memory_bytes: usage.next().and_then(|bytes| bytes.parse().ok()),
        host_calls: None,
        bytes: None,
        audit_bytes: None,
        broker: None,
        stderr,
    })
}

/// One tier, with records as `fumehood run` keeps them.
fn one(
    args: &ThroughputArgs,
    tier: TierName,
    logs: &Path,
    place: &Path,
    spans: &Spans,
) -> Result<Arm, CliError> {
    let wall = u64::try_from(WALL.as_millis()).unwrap_or(u64::MAX);
    let budget = BudgetSettings {
        wall_ms: Some(wall),
        cpu_ms: Some(wall),
        memory_bytes: Some(1 << 30),
        ..BudgetSettings::default()
    };
    let mut sandbox = Sandbox::builder().budget(budget);
    // Without a file system of its own a process has the machine's name only.
    let at = if tier == TierName::Process {
        logs.to_str().unwrap_or_default().to_owned()
    } else {
        "/logs".to_owned()
    };
    if tier == TierName::Wasm {
        sandbox = sandbox.engine_settings(progress::engine(None));
    } else {
        let image = args.image.clone();
        let named = TierArgs { tier: Some(tier), image, helper: args.helper.clone() };
        let session = NativeSession::new(named.prepared()?);
        sandbox = sandbox.policy(crate::native::allowed()?).native_only(session);
    }
    sandbox = sandbox.mount(&at, logs, Access::ReadOnly, false);
    let home = place.join(format!("home-{}", tier.as_str()));
    let (sandbox, record) = recorded(sandbox, &home)?;
    let script = Script::new(AGENT_PROGRAM).filename("agent.py").args([at]);
    let _ = spans.take();
    let start = Instant::now();
    let outcome = if tier == TierName::Wasm {
        sandbox.run(script).wait()
    } else {
        sandbox.run_natively(script).wait()
    };
    let wall_ms = start.elapsed().as_secs_f64() * 1000.0;
    let host = spans.take();
    let audit_bytes = record.end(&outcome, &home)?;
    let told = |number: u64| (number != 0).then_some(number);
    let native = tier != TierName::Wasm;
    Ok(Arm {
        name: tier.as_str(),
        outcome: outcome.kind.as_str().to_owned(),
        report: AgentReport::parse(&outcome.stdout_text()),
        wall_ms,
        cpu_ms: Some(outcome.usage.cpu_ms).filter(|ms| *ms > 0.0),
        peak_memory_bytes: told(outcome.usage.peak_memory_bytes),
        host_calls: (!native).then_some(outcome.usage.host_calls),
        bytes: Some((outcome.usage.bytes_in, outcome.usage.bytes_out)),
        audit_bytes: Some(audit_bytes),
        broker: (!native).then_some(host),
        stderr: outcome.stderr_text(),
    })
}

/// The record of an arm.
struct Kept(Arc<Mutex<Option<SessionRecord>>>);

fn recorded(sandbox: SandboxBuilder, home: &Path) -> Result<(Sandbox, Kept), CliError> {
    let opened = Arc::new(Home::open(home, true)?);
    let kept = Arc::new(Mutex::new(None));
    let into = Arc::clone(&kept);
    let sandbox = sandbox.audit_for(move |header| {
        let durability = Durability::Checkpoint;
        let start =
            SessionStart { header: header.clone(), name: "agent.py".to_owned(), durability };
        let record = opened.begin(&start).map_err(|error| error.detail())?;
        let sink: Arc<dyn AuditSink> = record.sink();
        *into.lock().unwrap_or_else(PoisonError::into_inner) = Some(record);
        Ok(sink)
    });
    Ok((sandbox.build()?, Kept(kept)))
}

impl Kept {
    /// Closes the log, and gives the bytes of all records.
    fn end(self, outcome: &Outcome, home: &Path) -> Result<u64, CliError> {
        if let Some(record) = self.0.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let end = SessionEnd {
                outcome: outcome.kind.as_str().to_owned(),
                exit_code: outcome.exit_code,
                denials: outcome.denials.len() as u64,
            };
            record.finish(end).map_err(|error| failed("the record is not whole", &error))?;
        }
        let sessions = std::fs::read_dir(home.join("sessions"));
        let sessions = sessions.map_err(|error| failed("the record cannot be read", &error))?;
        let mut bytes = 0_u64;
        for session in sessions.flatten() {
            for file in std::fs::read_dir(session.path()).into_iter().flatten().flatten() {
                let size = file.metadata().map_or(0, |found| found.len());
                bytes = bytes.saturating_add(size);
            }
        }
        Ok(bytes)
    }
}

fn share(host: &HostTime, wall_ms: f64) -> f64 {
    host.broker().as_secs_f64() * 1000.0 / wall_ms
}

fn as_json(args: &ThroughputArgs, corpus: &Corpus, arms: &[Arm], absent: &[Absent]) -> Value {
    let milliseconds = |time: Duration| time.as_secs_f64() * 1000.0;
    let arm = |arm: &Arm| {
        let answers = Question::ALL.map(|question| {
            let (answer, truth) = (arm.report.answer(question), corpus.key.answer(question));
            json!({
                "question": question.label(),
                "answer": answer,
                "truth": truth,
                "right": answer == Some(truth),
            })
        });
        json!({
            "tier": arm.name,
            "outcome": arm.outcome,
            "score": arm.report.score(&corpus.key),
            "answers": answers,
            "wall_ms": arm.wall_ms,
            "cpu_ms": arm.cpu_ms,
            "peak_memory_bytes": arm.peak_memory_bytes,
            "host_calls": arm.host_calls,
            "broker_bytes_in": arm.bytes.map(|(read, _)| read),
            "broker_bytes_out": arm.bytes.map(|(_, written)| written),
            "audit_bytes": arm.audit_bytes,
            "host_ms": arm.broker.map(|host| milliseconds(host.imports)),
            "broker_overhead_ms": arm.broker.map(|host| milliseconds(host.broker())),
            "broker_overhead_share": arm.broker.map(|host| share(&host, arm.wall_ms)),
        })
    };
    json!({
        "eval": "throughput",
        "size": if args.size == SizeArg::Full { "full" } else { "small" },
        "lines": corpus.lines,
        "raw_bytes": corpus.raw_bytes,
        "gzip_bytes": corpus.gzip_bytes,
        "arms": arms.iter().map(arm).collect::<Vec<_>>(),
        "absent": absent
            .iter()
            .map(|one| json!({ "tier": one.name, "reason": one.reason }))
            .collect::<Vec<_>>(),
    })
}

fn tell(corpus: &Corpus, arms: &[Arm], absent: &[Absent]) {
    let shown = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    let mut text = format!(
        "{:<9} {:>6} {:>10} {:>10} {:>8} {:>11} {:>10} {:>9} {:>16}\n",
        "tier",
        "right",
        "wall ms",
        "cpu ms",
        "peak MB",
        "host calls",
        "broker MB",
        "audit kB",
        "broker overhead"
    );
    for arm in arms {
        let megabytes = |bytes: u64| format!("{:.1}", bytes as f64 / 1e6);
        text.push_str(&format!(
            "{:<9} {:>6} {:>10.0} {:>10} {:>8} {:>11} {:>10} {:>9} {:>16}\n",
            arm.name,
            format!("{} of 3", arm.report.score(&corpus.key)),
            arm.wall_ms,
            shown(arm.cpu_ms.map(|ms| format!("{ms:.0}"))),
            shown(arm.peak_memory_bytes.map(megabytes)),
            shown(arm.host_calls.map(|calls| calls.to_string())),
            shown(arm.bytes.map(|(read, written)| megabytes(read.saturating_add(written)))),
            shown(arm.audit_bytes.map(|bytes| format!("{:.1}", bytes as f64 / 1e3))),
            shown(arm.broker.map(|host| {
                let broker = host.broker().as_secs_f64() * 1000.0;
                format!("{broker:.1} ms {:.2} %", 100.0 * share(&host, arm.wall_ms))
            })),
        ));
    }
    output::print(&text);
    for arm in arms.iter().filter(|arm| arm.report == AgentReport::default()) {
        output::note(&format!("{} gave no answer: {}", arm.name, arm.stderr.trim_end()));
    }
    for one in absent {
        output::note(&format!("{} was left out: {}", one.name, one.reason));
    }
}
