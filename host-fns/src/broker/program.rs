//! A whole program as one command of the native tier.
//!
//! What: [`Broker::run_program`] is what the embedder calls to run a command or
//! the machine's own Python in the session's tier, in place of a guest.
//!
//! Invariant: as for a command of the guest: the tier is prepared before
//! anything is decided, and gets the work only when that was decided, recorded
//! and paid for. What a real process changed is found by looking.

use std::sync::Arc;
use std::time::Duration;

use fumehood_policies::BashRequest;

use crate::audit::{Outcome, Payload};
use crate::broker::bash::{Ran, drive};
use crate::broker::tools::report_fault;
use crate::broker::{Broker, StopReason};
use crate::environment::OutputSink;
use crate::errno::Errno;
use crate::fs::Watched;
use crate::native::{NativeCommand, NativeError, NativeMount, NativeResult, Unavailable};

/// What is to run.
#[derive(Clone, Debug)]
pub enum NativeWork {
    /// A command line, for the tier's shell.
    Shell(String),
    /// A program and its arguments.
    Program {
        /// What the record calls it: never any of its arguments.
        name: String,
        /// Its arguments. The record has how many there are, and the digest of
        /// name and arguments, each followed by a NUL byte.
        arguments: Vec<String>,
        /// What is started: a program and everything that it is given.
        argv: Vec<String>,
    },
}

/// A command or program in place of a guest.
#[derive(Clone, Debug)]
pub struct Program {
    /// What.
    pub work: NativeWork,
    /// What it reads.
    pub stdin: Arc<[u8]>,
    /// Where it begins; the session's own directory if there is none.
    pub cwd: Option<String>,
    /// Until it is ended.
    pub timeout: Duration,
}

/// How it went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProgramEnd {
    /// It ran.
    Ended(Box<NativeResult>),
    /// It wrote more than the workspace may hold and was ended.
    Full(Box<NativeResult>),
    /// It was stopped from outside; what it gave until then.
    Interrupted(Option<Box<NativeResult>>),
    /// The policy or a budget does not let it run; it is among the denials.
    Denied(String),
    /// The tier lacks something; nothing ran.
    Unavailable(Unavailable),
    /// It cannot be run as it was asked for; nothing ran. A sentence.
    Refused(String),
}

/// Looks at the directories and hides what is to be hidden, before a command.
pub(super) fn begin(mounts: &[NativeMount]) -> Result<Watched, String> {
    for overlay in mounts.iter().filter_map(|mount| mount.overlay.as_ref()) {
        overlay.refresh().map_err(|error| format!("the project cannot be masked: {error}"))?;
    }
    let watched = Watched::begin(mounts);
    watched.map_err(|error| format!("a directory cannot be looked through: {error}"))
}

impl Broker {
    /// Notes what a command changed.
    pub(super) fn look_again(&mut self, watched: &Watched, mounts: &[NativeMount]) {
        if let Err(error) = watched.end(&mut self.changes) {
            tracing::error!(%error, "the changes of a native command are not listed");
        }
        for overlay in mounts.iter().filter_map(|mount| mount.overlay.as_ref()) {
            if let Err(error) = overlay.measure() {
                tracing::error!(%error, "the changes of a native command are not counted");
            }
        }
    }

    /// Says that what follows is asked for by a real process, in records.
    pub fn ask_natively(&mut self) {
        if let Some(native) = &self.native {
            self.pipeline.ledger.tier = native.tier.name();
        }
    }

    /// Runs one program in the session's tier to its end. Blocks.
    ///
    /// # Errors
    /// [`StopReason`] if the run has to end: a fault of the tier.
    pub fn run_program(
        &mut self,
        program: Program,
        output: &dyn OutputSink,
    ) -> Result<ProgramEnd, StopReason> {
        let Program { work, stdin, cwd, timeout } = program;
        let refused = |message: &str| Ok(ProgramEnd::Refused(message.to_owned()));
        let Some(session) = self.native.clone() else {
            return refused("no native tier is configured");
        };
        let (text, asked, argv) = match work {
            NativeWork::Shell(command) => {
                let mut argv = session.tier.shell();
                argv.push(command.clone());
                let asked = Payload::of(command.as_bytes());
                (command, asked, argv)
            }
            NativeWork::Program { name, arguments, argv } => {
                let asked = arguments_of(&name, &arguments);
                (format!("{name} (arguments: {})", arguments.len()), asked, argv)
            }
        };
        let request = match BashRequest::parse(&text) {
            Ok(request) => request,
            Err(error) => return Ok(ProgramEnd::Refused(error.to_string())),
        };
        if let Err(unavailable) = session.tier.prepare(&session.required) {
            return Ok(ProgramEnd::Unavailable(unavailable));
        }
        let command = NativeCommand {
            argv,
            variables: session.variables,
            cwd: cwd.unwrap_or(session.cwd),
            stdin,
            timeout: timeout.min(session.timeout),
            limits: session.limits,
            mounts: session.mounts,
        };
        let watched = match begin(&command.mounts) {
            Ok(watched) => watched,
            Err(message) => return Ok(ProgramEnd::Refused(message)),
        };
        let bytes = asked.bytes.saturating_add(command.stdin.len() as u64);
        let asked = Payload { bytes, ..asked };
        let checked = match self.pipeline.check_with(request, asked) {
            Ok(checked) => checked,
            Err(refused) => return Ok(ProgramEnd::Denied(refused.sentence())),
        };
        let ran = drive(session.tier.as_ref(), &command, output, self.waiter.as_ref());
        let (outcome, given, end) = meaning(session.tier.name(), ran);
        checked.conclude_with(outcome, given);
        self.look_again(&watched, &command.mounts);
        end
    }
}

/// Size and digest of a program's name and arguments.
fn arguments_of(name: &str, arguments: &[String]) -> Payload {
    let texts = std::iter::once(name).chain(arguments.iter().map(String::as_str));
    let bytes: Vec<u8> = texts.flat_map(|text| text.bytes().chain([0])).collect();
    Payload::of(&bytes)
}

fn given(result: &NativeResult) -> Payload {
    let mut given = Payload::of(&result.stdout.bytes);
    given.bytes = given.bytes.saturating_add(result.stderr.bytes.len() as u64);
    given
}

fn meaning(tier: &str, ran: Ran) -> (Outcome, Payload, Result<ProgramEnd, StopReason>) {
    let nothing = Payload::default();
    match ran {
        Ran::Interrupted(result) => {
            let given = result.as_ref().map_or(nothing, given);
            (Outcome::Cancelled, given, Ok(ProgramEnd::Interrupted(result.map(Box::new))))
        }
        Ran::Panicked(detail) => {
            let reference = report_fault(tier, &detail);
            (Outcome::Unknown, nothing, Err(StopReason::Fault(reference)))
        }
        Ran::Full(result, _) => {
            (Outcome::Cancelled, given(&result), Ok(ProgramEnd::Full(Box::new(result))))
        }
        Ran::Ended(Ok(result), _) => {
            let outcome = if result.timed_out { Outcome::TimedOut } else { Outcome::Done };
            (outcome, given(&result), Ok(ProgramEnd::Ended(Box::new(result))))
        }
        Ran::Ended(Err(error), _) => {
            let end = match error {
                NativeError::Unavailable(unavailable) => Ok(ProgramEnd::Unavailable(unavailable)),
                NativeError::Command(message) => Ok(ProgramEnd::Refused(message)),
                NativeError::Failed(detail) => Err(StopReason::Fault(report_fault(tier, &detail))),
            };
            (Outcome::Failed(Errno::Io), nothing, end)
        }
    }
}
