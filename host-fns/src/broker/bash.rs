//! Commands in the native tier.
//!
//! What: one command goes from the guest's record through the pipeline into
//! the tier, and its result back.
//!
//! Invariant: a command is measured and parsed before anything is recorded;
//! the tier is prepared before it is decided, so that what cannot run is
//! refused without an effect; the tier gets the command only out of a
//! [`Checked`] value. The time of a command is the least of all its limits, and
//! a tier that does not keep it is cancelled.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fumehood_guest_abi::{
    BashCall, BashErrorKind, BashReply, BashResult, CallError, decode, encode,
};
use fumehood_policies::{BashRequest, Canonical, GuestPath, Obligations, Policy, Ruling};

use crate::audit::preview::command_preview;
use crate::audit::{Outcome, Payload, Target};
use crate::broker::growth::Growth;
use crate::broker::program::begin;
use crate::broker::tools::{Fail, report_fault};
use crate::broker::{Broker, StopReason};
use crate::environment::{NoStreaming, OutputSink, Stopwatch, Waiter, Wake};
use crate::errno::Errno;
use crate::meter::Budget;
use crate::native::{
    CancelToken, Guarantee, NativeCommand, NativeError, NativeLimits, NativeMount, NativeResult,
    NativeTier, Variables,
};
use crate::pipeline::{Checked, Effect, Refused};

/// How long a command may take unless the session says otherwise.
pub const DEFAULT_BASH_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a tier has to end a command after its time; then it is cancelled.
pub const BASH_GRACE: Duration = Duration::from_millis(500);

/// Longest working directory in bytes.
pub const MAX_BASH_CWD_BYTES: usize = 4096;

/// What is said of a command that was ended for what it wrote.
const FULL: &str = "the workspace is full: the command was ended, and its changes so far are kept; remove what is not needed, or ask the operator for a larger one";

/// Room for everything of a result but its output.
const RESULT_ROOM: u64 = 64 << 10;

/// The name under which commands count as calls in `[budget.tool_calls]`.
const BUDGET_NAME: &str = "bash";

/// The native tier of a session and what its commands are given.
#[derive(Clone)]
pub struct NativeSession {
    /// Where commands run.
    pub tier: Arc<dyn NativeTier>,
    /// Longest time of one command.
    pub timeout: Duration,
    /// Bounds of one command.
    pub limits: NativeLimits,
    /// Directories that commands see.
    pub mounts: Vec<NativeMount>,
    /// Variables beside the tier's own few.
    pub variables: Variables,
    /// Working directory of a command that names none.
    pub cwd: String,
    /// Guarantees without which nothing runs, beside the tier's own.
    pub required: Vec<Guarantee>,
    /// Sees the output of commands while they run, within their cap; the guest
    /// gets it at the end. Called on the tier's thread.
    pub output: Arc<dyn OutputSink>,
}

impl NativeSession {
    /// A session with the default limits, no directory and no variable.
    #[must_use]
    pub fn new(tier: Arc<dyn NativeTier>) -> Self {
        Self {
            tier,
            timeout: DEFAULT_BASH_TIMEOUT,
            limits: NativeLimits::default(),
            mounts: Vec::new(),
            variables: Variables::default(),
            cwd: "/work".to_owned(),
            required: Vec::new(),
            output: Arc::new(NoStreaming),
        }
    }
}

impl Effect for BashRequest {
    fn operation(&self) -> &'static str {
        "bash.run"
    }

    fn target(&self) -> Target {
        Target::Command(Arc::from(command_preview(self.command())))
    }

    fn budget(&self) -> Budget {
        Budget::ToolCalls
    }

    fn irreversible(&self) -> bool {
        true
    }

    fn tool(&self) -> Option<&str> {
        Some(BUDGET_NAME)
    }

    fn decide(policy: &Policy, _request: &Canonical<Self>) -> Ruling {
        Ruling { decision: policy.decide_bash(), obligations: Obligations::default() }
    }
}

/// A command that was understood. Its text is in the request only, until that
/// was checked.
struct Prepared {
    request: Canonical<BashRequest>,
    asked: Payload,
    tier: Arc<dyn NativeTier>,
    rest: NativeCommand,
    output: Arc<dyn OutputSink>,
}

fn raised(kind: BashErrorKind, message: impl Into<String>) -> BashReply {
    BashReply::Raised { kind, message: crate::tools::cut(message.into()) }
}

fn denied(refused: &Refused) -> BashReply {
    raised(BashErrorKind::Denied, refused.sentence())
}

impl Broker {
    /// `op::BASH_TIER`.
    pub(super) fn bash_tier(&self) -> Result<Vec<u8>, Fail> {
        let name = self.native.as_ref().map_or("", |session| session.tier.name());
        encode(&name).map_err(|_| Fail::Code(CallError::Failed))
    }

    /// `op::BASH_RUN`.
    pub(super) fn bash_run(&mut self, request: &[u8]) -> Result<Vec<u8>, Fail> {
        let call: BashCall = decode(request).map_err(|_| CallError::Malformed)?;
        let reply = match self.prepare_bash(call) {
            Ok(prepared) => self.run_bash(prepared)?,
            Err(reply) => *reply,
        };
        encode(&reply).map_err(|_| Fail::Code(CallError::Failed))
    }

    /// Understands a command and makes sure that the tier can run it. Nothing
    /// is decided or recorded yet.
    fn prepare_bash(&self, call: BashCall) -> Result<Prepared, Box<BashReply>> {
        let BashCall { command, timeout_ms, stdin, cwd, env } = call;
        let wrong = |message: String| Box::new(raised(BashErrorKind::Arguments, message));
        let Some(session) = self.native.clone() else {
            let message = "no native tier is configured, so no command can run. Ask the operator for one, or do it in Python.";
            return Err(Box::new(raised(BashErrorKind::Unavailable, message)));
        };
        let request = BashRequest::parse(&command).map_err(|error| wrong(error.to_string()))?;
        if timeout_ms == Some(0) {
            return Err(wrong("`timeout` must be longer than 0".to_owned()));
        }
        let cwd = cwd.unwrap_or_else(|| session.cwd.clone());
        if !cwd.starts_with('/') || cwd.contains('\0') || cwd.len() > MAX_BASH_CWD_BYTES {
            return Err(wrong("`cwd` must be an absolute path".to_owned()));
        }
        let cwd = match GuestPath::parse(&GuestPath::root(), cwd.as_bytes()) {
            Ok(named) if !self.host_names.is_empty() => {
                String::from_utf8(self.meant(named.path).as_bytes().to_vec()).unwrap_or(cwd)
            }
            _ => cwd,
        };
        let own = Variables::new(env).map_err(|error| wrong(error.to_string()))?;
        let variables = session.variables.clone().with(&own);
        if let Err(unavailable) = session.tier.prepare(&session.required) {
            tracing::warn!(%unavailable, "the native tier cannot be used");
            let names: Vec<_> = unavailable.missing.iter().map(|one| one.name.as_str()).collect();
            let message = format!(
                "the {} tier cannot be used on this machine; missing: {}. Nothing ran.",
                unavailable.tier,
                names.join(", ")
            );
            return Err(Box::new(raised(BashErrorKind::Unavailable, message)));
        }
        let NativeSession { tier, timeout: longest, mut limits, mounts, output, .. } = session;
        let timeout = timeout_ms.map_or(longest, Duration::from_millis).min(longest);
        let room = u64::from(self.limits.request_bytes).saturating_sub(RESULT_ROOM) / 2;
        limits.output_bytes = limits.output_bytes.min(room);
        let mut asked = Payload::of(request.get().command().as_bytes());
        asked.bytes = asked.bytes.saturating_add(stdin.len() as u64);
        let (argv, stdin) = (tier.shell(), stdin.into());
        let rest = NativeCommand { argv, variables, cwd, stdin, timeout, limits, mounts };
        Ok(Prepared { request, asked, tier, rest, output })
    }

    fn run_bash(&mut self, prepared: Prepared) -> Result<BashReply, Fail> {
        let Prepared { request, asked, tier, rest, output } = prepared;
        let watched = match begin(&rest.mounts) {
            Ok(watched) => watched,
            Err(detail) => {
                tracing::warn!(detail, "a native command did not run");
                let message =
                    "the project cannot be shown to commands; the operator's log says why.";
                return Ok(raised(BashErrorKind::Failed, message));
            }
        };
        let checked = match self.pipeline.check_with(request, asked) {
            Ok(checked) => checked,
            Err(refused) => return Ok(denied(&refused)),
        };
        let command = command_of(&checked, rest);
        let ran = drive(tier.as_ref(), &command, output.as_ref(), self.waiter.as_ref());
        let (outcome, given, reply) = meaning(tier.name(), ran);
        checked.conclude_with(outcome, given);
        self.look_again(&watched, &command.mounts);
        reply.map_err(Fail::Stop)
    }
}

/// The whole command, of a request that was decided, recorded and paid for.
fn command_of(checked: &Checked<'_, BashRequest>, mut rest: NativeCommand) -> NativeCommand {
    rest.argv.push(checked.get().command().to_owned());
    rest
}

/// How the tier's work ended.
pub(super) enum Ran {
    Ended(Result<NativeResult, NativeError>, Duration),
    /// It wrote more than its workspace may hold.
    Full(NativeResult, Duration),
    /// With what it gave until then.
    Interrupted(Option<NativeResult>),
    Panicked(String),
}

/// Runs the command on a thread of its own, so that the run's deadline, its
/// canceller, and a workspace that is full end it.
pub(super) fn drive(
    tier: &dyn NativeTier,
    command: &NativeCommand,
    output: &dyn OutputSink,
    waiter: &dyn Waiter,
) -> Ran {
    let _executing = crate::fs::executing();
    let (cancel, ended, waker) = (CancelToken::new(), AtomicBool::new(false), waiter.waker());
    let watch = Stopwatch::start();
    let most = command.timeout.saturating_add(BASH_GRACE);
    let mut growth = Growth::of(&command.mounts);
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let run = || tier.run(command, &cancel, output);
            let result = catch_unwind(AssertUnwindSafe(run));
            ended.store(true, Ordering::Release);
            waker.wake_by_ref();
            result
        });
        let (mut interrupted, mut full, mut late) = (false, false, false);
        while !ended.load(Ordering::Acquire) {
            let left = most.saturating_sub(watch.elapsed());
            let woken = waiter.park(left.min(growth.until_next_look(watch.elapsed())));
            interrupted = woken == Wake::Interrupted;
            full = !interrupted && growth.is_too_much(&watch);
            late = !interrupted && !full && left.is_zero();
            if interrupted || full || late {
                cancel.cancel();
                break;
            }
        }
        match worker.join() {
            ended if interrupted => {
                Ran::Interrupted(ended.ok().and_then(Result::ok).and_then(Result::ok))
            }
            Ok(Ok(Ok(mut result))) if full => {
                result.denials.push(FULL.to_owned());
                Ran::Full(result, command.timeout)
            }
            // It was cancelled because its time was over, by whatever name.
            Ok(Ok(Ok(mut result))) if late && result.cancelled => {
                (result.timed_out, result.cancelled) = (true, false);
                Ran::Ended(Ok(result), command.timeout)
            }
            Ok(Ok(result)) => Ran::Ended(result, command.timeout),
            Ok(Err(panic)) | Err(panic) => Ran::Panicked(crate::tools::panic_text(&*panic)),
        }
    })
}

/// What an end means: for the audit, and for the guest or the run.
fn meaning(tier: &str, ran: Ran) -> (Outcome, Payload, Result<BashReply, StopReason>) {
    let nothing = Payload::default();
    match ran {
        Ran::Interrupted(_) => (Outcome::Cancelled, nothing, Err(StopReason::Interrupted)),
        Ran::Panicked(detail) => {
            let reference = report_fault(tier, &detail);
            (Outcome::Unknown, nothing, Err(StopReason::Fault(reference)))
        }
        Ran::Full(result, timeout) => {
            let reply = BashReply::Ended(record_of(tier, timeout, result));
            (Outcome::Cancelled, nothing, Ok(reply))
        }
        Ran::Ended(Ok(result), timeout) => {
            let outcome = if result.timed_out { Outcome::TimedOut } else { Outcome::Done };
            let mut given = Payload::of(&result.stdout.bytes);
            given.bytes = given.bytes.saturating_add(result.stderr.bytes.len() as u64);
            (outcome, given, Ok(BashReply::Ended(record_of(tier, timeout, result))))
        }
        Ran::Ended(Err(error), _) => {
            tracing::warn!(%error, "a native command did not run");
            let reply = match error {
                NativeError::Unavailable(_) => raised(
                    BashErrorKind::Unavailable,
                    "the native tier cannot be used any more; nothing ran.",
                ),
                NativeError::Command(message) => raised(BashErrorKind::Arguments, message),
                NativeError::Failed(_) => raised(
                    BashErrorKind::Failed,
                    "the native tier failed; the operator's log says why.",
                ),
            };
            (Outcome::Failed(Errno::Io), nothing, Ok(reply))
        }
    }
}

fn record_of(tier: &str, timeout: Duration, result: NativeResult) -> BashResult {
    let most = 64;
    BashResult {
        exit_code: result.end.code(),
        stdout: result.stdout.bytes,
        stderr: result.stderr.bytes,
        dropped_stdout: result.stdout.dropped,
        dropped_stderr: result.stderr.dropped,
        timed_out: result.timed_out,
        timeout_ms: u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX),
        memory_exceeded: result.memory_exceeded,
        denials: result.denials.into_iter().take(most).map(crate::tools::cut_short).collect(),
        tier: tier.to_owned(),
        controls: result.controls.into_iter().take(most).map(crate::tools::cut_short).collect(),
    }
}
