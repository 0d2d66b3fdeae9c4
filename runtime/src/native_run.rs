//! Programs and commands as real processes in the sandbox's native tier.
//!
//! What: [`Sandbox::run_natively`] runs a script with the machine's own Python,
//! [`Sandbox::run_command`] a command line, in place of the guest: the same
//! mounts, project, limits, audit and [`Outcome`].
//!
//! Invariant: the program's text reaches its interpreter through standard
//! input, before the program's own; no file is made for it. What a process
//! cannot tell its host (the value of a cell, the exception that ended it) is
//! not guessed from its output: a code that is not 0 is an
//! [`OutcomeKind::Exit`].

use std::sync::Arc;
use std::time::Duration;

use fumehood_guest_abi::Mode;
use fumehood_host_fns::{
    Broker, NativeEnd, NativeResult, NativeWork, OutputSink, Program, ProgramEnd, StopReason,
    Waiter,
};

use crate::answer::Answer;
use crate::control::Control;
use crate::fault;
use crate::instance::Stopwatch;
use crate::listener::Relay;
use crate::outcome::{Dropped, FileChanges, NotListed, Outcome, OutcomeKind, TimeoutClock, Usage};
use crate::run::Run;
use crate::sandbox::{Inner, Sandbox, Wiring};
use crate::script::{Output, Script};
use crate::workspaces::AttachedProject;

/// How the interpreter of a native tier is called.
pub const NATIVE_PYTHON: &str = "python3";

/// Reads the program, its inputs and its name, and becomes it.
const START: &str = include_str!("native_start.py");

/// Time that the tier has to end a run by itself, before it is cancelled, and
/// to end one that was cancelled, before that is answered without it.
const GRACE: Duration = Duration::from_secs(5);

/// Processor time is counted by the tier, not of the thread that waits for it.
const NO_LIMIT: Duration = Duration::from_secs(365 * 24 * 3600);

/// What is run in place of the guest.
struct Native {
    program: Program,
    /// For the audit.
    name: String,
    source: Vec<u8>,
    output: Output,
}

impl Sandbox {
    /// Runs a program with the machine's own Python in the native tier that
    /// [`SandboxBuilder::native_only`](crate::SandboxBuilder::native_only)
    /// named.
    ///
    /// It is cancelled when the returned value is dropped before it is done.
    pub fn run_natively(&self, script: impl Into<Script>) -> Run {
        let mut script = script.into();
        let output = std::mem::replace(&mut script.output, Output::Nobody);
        self.start(false, move |inner| {
            inner.check(&script, &inner.session)?;
            if script.mode == Mode::Cell {
                let missing = "a program, since a process gives no value of a cell";
                return Err(inner.refused(missing.to_owned(), &inner.session));
            }
            let (name, source) = (script.filename.clone(), script.source.clone());
            Ok(Native { program: python(script, inner.limits.wall), name, source, output })
        })
    }

    /// Runs a command line with the shell of that tier. `stdin` is what it
    /// reads, `cwd` where it begins.
    pub fn run_command(&self, command: &str, stdin: Vec<u8>, cwd: Option<String>) -> Run {
        self.run_command_with(command, stdin, cwd, None)
    }

    /// The same, its output passed on while it runs.
    pub fn run_command_with(
        &self,
        command: &str,
        stdin: Vec<u8>,
        cwd: Option<String>,
        sink: Option<Arc<dyn OutputSink>>,
    ) -> Run {
        let command = command.to_owned();
        self.start(true, move |inner| {
            let work = NativeWork::Shell(command.clone());
            let timeout = inner.limits.wall;
            Ok(Native {
                program: Program { work, stdin: stdin.into(), cwd, timeout },
                name: "<command>".to_owned(),
                source: command.into_bytes(),
                output: sink.map_or(Output::Nobody, Output::Sink),
            })
        })
    }

    fn start(
        &self,
        command: bool,
        prepare: impl FnOnce(&Inner) -> Result<Native, Box<Outcome>> + Send + 'static,
    ) -> Run {
        let control = Arc::new(Control::new());
        let inner = Arc::clone(self.inner());
        let (run, answer) =
            Run::new(Arc::clone(&control), inner.session.clone(), inner.observer.clone());
        let answer = if command { answer.into_command() } else { answer };
        let of_thread = answer.clone();
        let job = move || inner.execute_natively(prepare, &control, &of_thread);
        if let Err(error) = self.inner().engine().threads.spawn(Box::new(job)) {
            let id = &self.inner().session;
            answer.send(*self.inner().refused(format!("a thread ({error})"), id));
        }
        run
    }
}

/// The script as a process: how it is called and what it reads.
fn python(script: Script, timeout: Duration) -> Program {
    let inputs = script.inputs_json.unwrap_or_default();
    let sizes = format!("{},{},{}", script.source.len(), inputs.len(), script.import_path.len());
    let mut argv: Vec<String> =
        [NATIVE_PYTHON, "-I", "-u", "-B", "-c", START].map(str::to_owned).to_vec();
    argv.extend([sizes, script.filename.clone()]);
    argv.extend(script.import_path);
    argv.extend_from_slice(&script.args);
    let (name, arguments) = (format!("{NATIVE_PYTHON} {}", script.filename), script.args);
    let stdin = [script.source.as_slice(), &inputs, &script.stdin].concat().into();
    let work = NativeWork::Program { name, arguments, argv };
    Program { work, stdin, cwd: None, timeout }
}

/// What a command uses up that writes more than a workspace may hold.
const WORKSPACE: &str = "workspace";

impl Inner {
    fn execute_natively(
        &self,
        prepare: impl FnOnce(&Self) -> Result<Native, Box<Outcome>>,
        control: &Arc<Control>,
        answer: &Answer,
    ) {
        let overdue = answer.clone();
        let session = self.session.clone();
        let watch = self.engine().ticker.watch(
            control,
            GRACE,
            Box::new(move |kind| overdue.send(Outcome::empty(kind, &session))),
        );
        let run = std::panic::AssertUnwindSafe(|| {
            let using = self.project.as_ref().map(AttachedProject::begin);
            let mut outcome = match prepare(self) {
                Ok(native) => self.native_once(native, control).unwrap_or_else(|refused| *refused),
                Err(refused) => *refused,
            };
            drop(watch);
            self.name_tier(&mut outcome);
            if let Some(using) = using {
                using.end(&mut outcome, &self.session, Vec::new());
            }
            answer.send(outcome);
        });
        if std::panic::catch_unwind(run).is_err() {
            let reference = fault::report("a native run panicked outside the tier");
            answer.send(Outcome::empty(OutcomeKind::SandboxFault { reference }, &self.session));
        }
    }

    /// Says which tier it was, also where nothing ran.
    fn name_tier(&self, outcome: &mut Outcome) {
        let Some(native) = &self.native else { return };
        outcome.tier = native.tier.name();
        if outcome.controls == crate::outcome::controls() {
            outcome.controls.clear();
        }
    }

    fn native_once(&self, native: Native, control: &Arc<Control>) -> Result<Outcome, Box<Outcome>> {
        let Native { program, name, source, output } = native;
        let (sink, relay) = Relay::between(output, control);
        let identity = self.identity();
        let stdin_bytes = program.stdin.len() as u64;
        let mut broker = self.broker(Wiring {
            identity: &identity,
            stdin: Arc::from([]),
            output: Arc::clone(&sink),
            waiter: Arc::clone(control) as Arc<dyn Waiter>,
            sources: None,
            with_files: false,
        })?;
        broker.ask_natively();
        broker
            .begin_run(&name, &source)
            .map_err(|error| self.refused(error.to_string(), &identity.id))?;
        control.arm(self.limits.wall.saturating_add(GRACE), NO_LIMIT);
        let watch = Stopwatch::start();
        let end = broker.run_program(program, sink.as_ref());
        let mut outcome = self.outcome_of(end, control);
        self.tell(&mut outcome, &mut broker, stdin_bytes);
        outcome.usage.wall_ms = watch.elapsed().as_secs_f64() * 1000.0;
        if let Some(Err(cause)) = relay.as_ref().map(|relay| relay.finish()) {
            outcome.end_as(cause.into());
        }
        Ok(outcome)
    }

    fn outcome_of(&self, end: Result<ProgramEnd, StopReason>, control: &Control) -> Outcome {
        let session = &self.session;
        let refused = |missing: Vec<String>, message: String| {
            self.refusal(OutcomeKind::Refused { missing }, message, session)
        };
        match end {
            Ok(ProgramEnd::Ended(result)) => ended(*result, session),
            Ok(ProgramEnd::Full(result)) => {
                let mut outcome = ended(*result, session);
                outcome.end_as(OutcomeKind::BudgetExceeded { name: WORKSPACE.to_owned() });
                outcome
            }
            Ok(ProgramEnd::Interrupted(result)) => {
                let kind = control.stop_cause().map_or(OutcomeKind::Cancelled, Into::into);
                let mut outcome = Outcome::empty(kind.clone(), session);
                if let Some(result) = result {
                    outcome = ended(*result, session);
                }
                outcome.end_as(kind);
                outcome
            }
            Ok(ProgramEnd::Unavailable(unavailable)) => {
                let missing = unavailable.missing.iter().map(|missing| {
                    format!("{} ({}: {})", missing.name, missing.reason, missing.remedy)
                });
                refused(missing.collect(), unavailable.to_string())
            }
            Ok(ProgramEnd::Denied(sentence)) => {
                refused(vec!["a policy that allows `[bash]`".to_owned()], sentence)
            }
            Ok(ProgramEnd::Refused(sentence)) => refused(vec![sentence.clone()], sentence),
            Err(StopReason::Fault(reference)) => {
                Outcome::empty(OutcomeKind::SandboxFault { reference }, session)
            }
            Err(StopReason::BudgetExceeded { name }) => {
                Outcome::empty(OutcomeKind::BudgetExceeded { name: name.to_owned() }, session)
            }
            Err(StopReason::HostCallsExhausted) => {
                let name = "host_calls".to_owned();
                Outcome::empty(OutcomeKind::BudgetExceeded { name }, session)
            }
            Err(StopReason::Interrupted) => Outcome::empty(OutcomeKind::Cancelled, session),
        }
    }

    /// Writes the broker's report into an outcome.
    fn tell(&self, outcome: &mut Outcome, broker: &mut Broker, stdin_bytes: u64) {
        broker.end_run(outcome.kind.as_str());
        let report = broker.report();
        outcome.denials.splice(0..0, report.denials);
        outcome.effects = report.effects;
        outcome.not_listed = NotListed {
            denials: report.denials_not_listed,
            effects: report.effects_not_listed,
            files: report.files.not_listed,
        };
        outcome.files = FileChanges {
            created: report.files.created,
            modified: report.files.modified,
            deleted: report.files.deleted,
        };
        let given = (outcome.stdout.len() as u64).saturating_add(outcome.stderr.len() as u64);
        let dropped = outcome.dropped.stdout.saturating_add(outcome.dropped.stderr);
        outcome.usage = Usage {
            host_calls: report.usage.host_calls,
            bytes_in: stdin_bytes,
            bytes_out: given.saturating_add(dropped),
            ..outcome.usage
        };
    }
}

/// The outcome of a process that ran.
fn ended(result: NativeResult, session: &str) -> Outcome {
    let (kind, code) = match result.end {
        _ if result.memory_exceeded => (OutcomeKind::MemoryLimit, None),
        _ if result.timed_out => (OutcomeKind::Timeout { clock: TimeoutClock::Wall }, None),
        _ if result.cancelled => (OutcomeKind::Cancelled, None),
        NativeEnd::Exited(0) => (OutcomeKind::Completed, None),
        NativeEnd::Exited(code) => (OutcomeKind::Exit, Some(code)),
        NativeEnd::Signalled(signal) if signal == rustix::process::Signal::XCPU.as_raw() => {
            (OutcomeKind::Timeout { clock: TimeoutClock::Cpu }, None)
        }
        // As a shell tells it.
        NativeEnd::Signalled(signal) => (OutcomeKind::Exit, Some(signal.saturating_add(128))),
    };
    let mut outcome = Outcome::empty(kind, session);
    if let Some(code) = code {
        outcome.exit_code = code;
    }
    outcome.dropped = Dropped { stdout: result.stdout.dropped, stderr: result.stderr.dropped };
    outcome.stdout = result.stdout.bytes;
    outcome.stderr = result.stderr.bytes;
    outcome.controls = result.controls.into_iter().map(Into::into).collect();
    outcome.usage.cpu_ms = result.cpu.as_secs_f64() * 1000.0;
    outcome.usage.peak_memory_bytes = result.peak_memory_bytes;
    outcome
}
