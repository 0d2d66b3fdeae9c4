//! `log-analysis`: generates the corpus, runs the agent's program on it inside the sandbox, and
//! compares its answers with the key and with what careless code would have said.
//!
//! Why: a sandbox is worth little if an agent's honest work does not run in it, or runs much slower
//! than outside. With `--native` the same program on the same files says how much slower.
//!
//! Invariant: the key stays in this process. What the program sees is the directory of logs, read
//! only, and nothing else.

#![allow(
    clippy::disallowed_methods,
    reason = "a command is an adapter: it times the runs and starts the native Python it was asked for"
)]

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use clap::Parser;
use fumehood::{BuildError, Limits, Sandbox, Script};
use fumehood_example_log_analysis::{
    AGENT_PROGRAM, AgentReport, Corpus, Error as CorpusError, Question, Size,
};
use serde_json::{Value, json};

/// Longest time one run may take; the slowest machine so far needed a tenth of it.
const WALL_LIMIT: Duration = Duration::from_secs(300);

/// Runs an agent's log analysis inside the sandbox and checks its answers.
#[derive(Parser)]
#[command(name = "log-analysis", version)]
struct Options {
    /// The full corpus: 10 000 rows a day instead of 300.
    #[arg(long)]
    full: bool,
    /// Also run the program with this Python, outside the sandbox, and compare the times.
    #[arg(long, value_name = "PYTHON")]
    native: Option<PathBuf>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
    /// Write the corpus into this new or empty directory and leave it there.
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("the corpus could not be generated")]
    Corpus(#[from] CorpusError),
    #[error("the system gave no temporary directory; name one with --keep")]
    TemporaryDirectory(#[source] std::io::Error),
    #[error("the sandbox could not be built")]
    Build(#[from] BuildError),
    #[error("{} could not be run; give --native the path of a Python 3.11 or later", python.display())]
    Native { python: PathBuf, source: std::io::Error },
}

/// One run of the program.
struct Run {
    report: AgentReport,
    /// How it ended, as a word.
    outcome: String,
    /// From its start to its end as seen from outside, in seconds.
    wall_seconds: f64,
    /// Largest memory of the guest, in bytes; unknown for a native run.
    peak_memory_bytes: Option<u64>,
    /// What it said on standard error, and why it failed if it did.
    stderr: String,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            report_error(&error);
            ExitCode::from(2)
        }
    }
}

/// Prints an error and what caused it to standard error.
fn report_error(error: &Error) {
    eprintln!("log-analysis: {error}");
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        eprintln!("  because: {error}");
        cause = error.source();
    }
}

/// Does everything; true if all three answers are right.
fn run(options: &Options) -> Result<bool, Error> {
    let temporary;
    let dir = match &options.keep {
        Some(dir) => dir.as_path(),
        None => {
            temporary = tempfile::tempdir().map_err(Error::TemporaryDirectory)?;
            temporary.path()
        }
    };
    let size = if options.full { Size::Full } else { Size::Small };
    eprintln!("generating 30 days of logs in {} ...", dir.display());
    let corpus = Corpus::generate(dir, size)?;
    eprintln!(
        "{} lines, {:.1} MB, {:.1} MB compressed",
        corpus.lines,
        megabytes(corpus.raw_bytes),
        megabytes(corpus.gzip_bytes)
    );

    // The native run first: a Python that cannot be run is then known before the long part.
    let native = options.native.as_deref().map(|python| run_natively(python, dir)).transpose()?;
    let sandboxed = run_in_sandbox(dir)?;

    if options.json {
        println!("{}", to_json(&corpus, &sandboxed, native.as_ref()));
    } else {
        print_text(&corpus, &sandboxed, native.as_ref());
    }
    Ok(sandboxed.report.score(&corpus.key) == Question::ALL.len())
}

/// Runs the program in the WASM tier with the corpus at `/logs`. Building the sandbox, which
/// compiles the guest on its first use, is not part of the run's time.
fn run_in_sandbox(dir: &Path) -> Result<Run, Error> {
    eprintln!("building the sandbox (its first use compiles the guest) ...");
    let sandbox = Sandbox::builder()
        .mount_read_only("/logs", dir)
        .limits(Limits { wall: WALL_LIMIT, cpu: WALL_LIMIT, ..Limits::default() })
        .build()?;
    eprintln!("running agent.py in the sandbox ...");
    let started = Instant::now();
    let outcome = sandbox.run(Script::new(AGENT_PROGRAM).filename("agent.py")).wait();
    let wall_seconds = started.elapsed().as_secs_f64();
    let mut stderr = outcome.stderr_text();
    if let Some(error) = &outcome.error
        && !stderr.contains(&error.message)
    {
        stderr.push_str(&error.message);
    }
    Ok(Run {
        report: AgentReport::parse(&outcome.stdout_text()),
        outcome: outcome.kind.as_str().to_owned(),
        wall_seconds,
        peak_memory_bytes: Some(outcome.usage.peak_memory_bytes),
        stderr,
    })
}

/// Runs the program with a Python of this machine. Its time includes the interpreter's start.
fn run_natively(python: &Path, dir: &Path) -> Result<Run, Error> {
    eprintln!("running agent.py with {} ...", python.display());
    let started = Instant::now();
    let output = Command::new(python)
        .args(["-I", "-c", AGENT_PROGRAM])
        .arg(dir)
        .stdin(Stdio::null())
        .output()
        .map_err(|source| Error::Native { python: python.to_path_buf(), source })?;
    Ok(Run {
        wall_seconds: started.elapsed().as_secs_f64(),
        report: AgentReport::parse(&String::from_utf8_lossy(&output.stdout)),
        outcome: if output.status.success() {
            "completed".to_owned()
        } else {
            output.status.to_string()
        },
        peak_memory_bytes: None,
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

fn print_text(corpus: &Corpus, sandboxed: &Run, native: Option<&Run>) {
    for question in Question::ALL {
        let truth = corpus.key.answer(question);
        let answer = sandboxed.report.answer(question);
        let verdict = if answer == Some(truth) {
            "right".to_owned()
        } else {
            format!("WRONG, it is {truth}")
        };
        println!("{:<13} {:>7}  {verdict}", question.label(), or_none(answer));
        for shortcut in corpus.shortcuts.iter().filter(|s| s.question == question) {
            let answer = or_none(shortcut.answer);
            println!("{:13} {answer:>7}  from code that {}", "", shortcut.trap);
        }
    }
    let score = sandboxed.report.score(&corpus.key);
    println!("\n{score} of 3 right");
    print_run("in the sandbox", sandboxed);
    if let Some(native) = native {
        print_run("native Python", native);
        let score = native.report.score(&corpus.key);
        if score != Question::ALL.len() {
            println!("the native run has only {score} of 3 right");
        }
        println!("ratio of wall times: {:.2}", ratio(sandboxed, native));
    }
}

fn print_run(name: &str, run: &Run) {
    print!("{name}: {:.2} s", run.wall_seconds);
    if let Some(bytes) = run.peak_memory_bytes {
        print!(", {:.0} MB at most", megabytes(bytes));
    }
    println!(" ({})", run.outcome);
    if run.report == AgentReport::default() {
        // The program gave no answer at all: its own words say why.
        eprintln!("{}", run.stderr.trim_end());
    }
}

fn to_json(corpus: &Corpus, sandboxed: &Run, native: Option<&Run>) -> Value {
    let questions: Vec<Value> = Question::ALL
        .into_iter()
        .map(|question| {
            let truth = corpus.key.answer(question);
            let answer = sandboxed.report.answer(question);
            let shortcuts: Vec<Value> = corpus
                .shortcuts
                .iter()
                .filter(|shortcut| shortcut.question == question)
                .map(|shortcut| json!({ "trap": shortcut.trap, "answer": shortcut.answer }))
                .collect();
            json!({
                "question": question.label(),
                "answer": answer,
                "truth": truth,
                "right": answer == Some(truth),
                "shortcuts": shortcuts,
            })
        })
        .collect();
    json!({
        "corpus": {
            "lines": corpus.lines,
            "raw_bytes": corpus.raw_bytes,
            "gzip_bytes": corpus.gzip_bytes,
        },
        "questions": questions,
        "score": sandboxed.report.score(&corpus.key),
        "sandbox": run_json(sandboxed),
        "native": native.map(run_json),
        "wall_ratio": native.map(|native| ratio(sandboxed, native)),
    })
}

fn run_json(run: &Run) -> Value {
    json!({
        "outcome": run.outcome,
        "answers": {
            "requests": run.report.requests,
            "breach_day": run.report.breach_day,
            "busiest_hour": run.report.busiest_hour,
        },
        "wall_seconds": run.wall_seconds,
        "program_seconds": run.report.seconds,
        "peak_memory_bytes": run.peak_memory_bytes,
        "stderr": run.stderr,
    })
}

/// How many times as long the sandboxed run took.
fn ratio(sandboxed: &Run, native: &Run) -> f64 {
    sandboxed.wall_seconds / native.wall_seconds
}

fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

fn or_none(answer: Option<u64>) -> String {
    answer.map_or_else(|| "none".to_owned(), |answer| answer.to_string())
}
