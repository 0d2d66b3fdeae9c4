//! A sandbox: what its code may reach and how much it may use, and the runs in
//! it.
//!
//! Invariant: every run starts from the same pristine guest; nothing of one run
//! is seen by the next but what was used of the budget and the numbers of the
//! audit. Dropping a [`Run`] stops it.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use fumehood_guest_abi::Exec;
use fumehood_host_fns::{
    AuditNumbers, AuditSink, Broker, BrokerConfig, Budget, Clock, Executor, HostMount, NoStreaming,
    OutputSink, RandomSource, SharedMeter, SystemClock, ToolSet, Waiter,
};
use fumehood_policies::{GuestPath, Limited, Policy};
use tokio::sync::oneshot;

use crate::builder::SandboxBuilder;
use crate::control::Control;
use crate::engine::Engine;
use crate::fault;
use crate::host::{Host, Limiter};
use crate::instance::{self, Job, resume_record};
use crate::limits::Limits;
use crate::listener::Relay;
use crate::outcome::{Outcome, OutcomeKind, ScriptError, TimeoutClock};
use crate::script::{Output, Script};

/// Directory that programs start in.
pub const WORKING_DIRECTORY: &str = "/work";

/// The environment that is the same in every sandbox.
pub const FIXED_ENVIRONMENT: &[(&str, &str)] = &[
    ("HOME", "/home/agent"),
    ("HOSTNAME", "fumehood"),
    ("LANG", "C.UTF-8"),
    ("LC_ALL", "C.UTF-8"),
    ("LOGNAME", "agent"),
    ("PWD", WORKING_DIRECTORY),
    ("TMPDIR", "/tmp"),
    ("TZ", "UTC"),
    ("USER", "agent"),
];

/// What code may reach and use. Cloning shares it; runs are independent.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let sandbox = fumehood::Sandbox::builder().build()?;
/// let outcome = sandbox.run("sum(range(10))").await;
/// assert_eq!(outcome.result.repr.as_deref(), Some("45"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Sandbox {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) engine: Engine,
    pub(crate) limits: Arc<Limits>,
    pub(crate) limited: Vec<Limited>,
    pub(crate) policy: Policy,
    pub(crate) mounts: Vec<HostMount>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) files: Vec<(GuestPath, Vec<u8>)>,
    pub(crate) tools: Arc<ToolSet>,
    /// Runs calls of tools; `None` without tools.
    pub(crate) executor: Option<Arc<dyn Executor>>,
    pub(crate) audit: Arc<dyn AuditSink>,
    pub(crate) audit_numbers: AuditNumbers,
    pub(crate) clock: Option<Arc<dyn Clock>>,
    pub(crate) random: Arc<dyn RandomSource>,
    /// What every run in this sandbox draws on; it never goes up.
    pub(crate) meter: SharedMeter,
    pub(crate) session: String,
}

impl std::fmt::Debug for Sandbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sandbox").field("session", &self.inner.session).finish_non_exhaustive()
    }
}

impl Sandbox {
    /// Settings: no host files, no environment but the fixed one, no network.
    #[must_use]
    pub fn builder() -> SandboxBuilder {
        SandboxBuilder::default()
    }

    pub(crate) fn new(inner: Inner) -> Self {
        Self { inner: Arc::new(inner) }
    }

    /// What holds, after policy, builder and ceiling were put together.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.inner.limits
    }

    /// What was asked for and lowered by the policy or the ceiling.
    #[must_use]
    pub fn limited(&self) -> &[Limited] {
        &self.inner.limited
    }

    /// The policy that decides, put together.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.inner.policy
    }

    /// What all runs so far have used of a budget, running ones included.
    #[must_use]
    pub fn used(&self, budget: Budget) -> u64 {
        self.inner.meter.used(budget)
    }

    /// What is left of a budget for this and all later runs.
    #[must_use]
    pub fn left(&self, budget: Budget) -> u64 {
        self.inner.meter.left(budget)
    }

    /// The session's id, as it is in results and audit records.
    #[must_use]
    pub fn session_id(&self) -> &str {
        &self.inner.session
    }

    /// Starts a run and returns it. Text is run as a cell; see [`Script`] for
    /// programs and inputs.
    ///
    /// The run goes on a thread of its own, in any async runtime or none. It is
    /// cancelled when the returned value is dropped before it is done.
    pub fn run(&self, script: impl Into<Script>) -> Run {
        let control = Arc::new(Control::new());
        let (sender, receiver) = oneshot::channel();
        let answer = Answer(Arc::new(Mutex::new(Some(sender))));
        let run = Run {
            control: Arc::clone(&control),
            receiver,
            session: self.inner.session.clone(),
            done: false,
        };
        let script = script.into();
        let inner = Arc::clone(&self.inner);
        let of_thread = answer.clone();
        let job = move || inner.execute(script, &control, &of_thread);
        let started = self.inner.engine.inner().threads.spawn(Box::new(job));
        if let Err(error) = started {
            answer.send(*self.inner.refused(format!("a thread ({error})")));
        }
        run
    }
}

/// Where the outcome goes; the first sender wins.
#[derive(Clone)]
struct Answer(Arc<Mutex<Option<oneshot::Sender<Outcome>>>>);

impl Answer {
    fn send(&self, outcome: Outcome) {
        let sender = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(sender) = sender {
            // Nobody waits for a run that was dropped.
            let _ = sender.send(outcome);
        }
    }
}

impl Inner {
    fn execute(&self, script: Script, control: &Arc<Control>, answer: &Answer) {
        let overdue = answer.clone();
        let session = self.session.clone();
        let _watch = self.engine.inner().ticker.watch(
            control,
            Box::new(move || {
                let kind = OutcomeKind::Timeout { clock: TimeoutClock::Wall };
                overdue.send(Outcome::empty(kind, &session));
            }),
        );
        let relay = match &script.output {
            Output::Listener(receive) => {
                Some(Arc::new(Relay::new(Arc::clone(receive), Arc::clone(control))))
            }
            Output::Nobody | Output::Sink(_) => None,
        };
        let output: Arc<dyn OutputSink> = match (&relay, &script.output) {
            (Some(relay), _) => Arc::clone(relay) as _,
            (None, Output::Sink(sink)) => Arc::clone(sink),
            (None, _) => Arc::new(NoStreaming),
        };
        let run = std::panic::AssertUnwindSafe(|| match self.prepare(script, output, control) {
            Ok(job) => {
                let (mut outcome, spent) = instance::run(self.engine.inner(), job);
                if let Some(Err(cause)) = relay.as_ref().map(|relay| relay.finish()) {
                    outcome.end_as(cause.into());
                }
                answer.send(outcome);
                self.engine.inner().give_back(spent);
            }
            Err(outcome) => answer.send(*outcome),
        });
        if std::panic::catch_unwind(run).is_err() {
            let reference = fault::report("a run panicked outside the guest");
            answer.send(Outcome::empty(OutcomeKind::SandboxFault { reference }, &self.session));
        }
    }

    fn prepare(
        &self,
        mut script: Script,
        output: Arc<dyn OutputSink>,
        control: &Arc<Control>,
    ) -> Result<Job, Box<Outcome>> {
        if script.source.len() > self.limits.source_bytes {
            return Err(
                self.refused(format!("source text of at most {} bytes", self.limits.source_bytes))
            );
        }
        if script.inputs_json.as_ref().is_some_and(|json| json.len() > self.limits.input_bytes) {
            return Err(
                self.refused(format!("inputs of at most {} bytes", self.limits.input_bytes))
            );
        }
        let stdin = std::mem::take(&mut script.stdin);
        let broker = self.broker(stdin, output, control)?;
        let mut seed = [0; 32];
        self.random.fill(&mut seed).map_err(|error| self.refused(error.to_string()))?;
        let argv = std::iter::once(script.filename.clone()).chain(script.args).collect();
        let resume = resume_record(
            argv,
            self.env.clone(),
            WORKING_DIRECTORY.to_owned(),
            script.import_path,
            seed,
        );
        let exec = Exec {
            mode: script.mode,
            filename: script.filename,
            source: script.source,
            inputs_json: script.inputs_json,
            max_value_bytes: self.limits.value_bytes,
        };
        let limiter = Limiter::new(self.limits.memory_bytes);
        let host = Host {
            broker,
            control: Arc::clone(control),
            limiter,
            memory: None,
            max_request: self.limits.broker.request_bytes,
        };
        let limits = Arc::clone(&self.limits);
        Ok(Job { host, resume, exec, session: self.session.clone(), limits })
    }

    /// The broker of one run.
    fn broker(
        &self,
        stdin: Arc<[u8]>,
        output: Arc<dyn OutputSink>,
        control: &Arc<Control>,
    ) -> Result<Broker, Box<Outcome>> {
        let config = BrokerConfig {
            session: self.session.clone(),
            policy: Some(self.policy.clone()),
            mounts: self.open_mounts()?,
            files: self.files.clone(),
            limits: self.limits.broker.clone(),
            stdin,
            output,
            audit: Arc::clone(&self.audit),
            audit_numbers: self.audit_numbers.clone(),
            clock: self.clock.clone().unwrap_or_else(|| Arc::new(SystemClock::new())),
            random: Arc::clone(&self.random),
            waiter: Arc::clone(control) as Arc<dyn Waiter>,
            tools: Arc::clone(&self.tools),
            executor: self.executor.clone(),
            meter: Some(self.meter.clone()),
        };
        Broker::new(config).map_err(|error| self.refused(error.to_string()))
    }

    /// The mounts' directories, by handles of this run's own.
    fn open_mounts(&self) -> Result<Vec<HostMount>, Box<Outcome>> {
        self.mounts
            .iter()
            .map(|mount| {
                let dir = mount.dir.try_clone().map_err(|error| {
                    self.refused(format!("a descriptor for the mount {} ({error})", mount.at))
                })?;
                Ok(HostMount { at: mount.at.clone(), dir, access: mount.access })
            })
            .collect()
    }

    fn refused(&self, missing: String) -> Box<Outcome> {
        let message = format!("{missing} is required");
        let mut outcome =
            Outcome::empty(OutcomeKind::Refused { missing: vec![missing] }, &self.session);
        outcome.error = Some(ScriptError {
            type_name: "Refused".to_owned(),
            message,
            traceback: String::new(),
        });
        Box::new(outcome)
    }
}

/// A run that has been started; await it for its [`Outcome`].
///
/// Cancel-safe: dropping it stops the guest within one tick and loses only the
/// outcome.
#[derive(Debug)]
#[must_use = "a run that is dropped is cancelled"]
pub struct Run {
    control: Arc<Control>,
    receiver: oneshot::Receiver<Outcome>,
    session: String,
    done: bool,
}

/// Stops one run from anywhere.
#[derive(Clone, Debug)]
pub struct Canceller(Arc<Control>);

impl Canceller {
    /// Stops the run; its outcome is `cancelled`. Does nothing if it has ended.
    pub fn cancel(&self) {
        self.0.cancel();
    }
}

impl Run {
    /// A handle that stops this run.
    #[must_use]
    pub fn canceller(&self) -> Canceller {
        Canceller(Arc::clone(&self.control))
    }

    /// Waits on the calling thread, which must not be one of an async runtime.
    #[must_use]
    pub fn wait(mut self) -> Outcome {
        self.done = true;
        let (_, closed) = oneshot::channel();
        let receiver = std::mem::replace(&mut self.receiver, closed);
        receiver.blocking_recv().unwrap_or_else(|_| lost(&self.session))
    }
}

impl Future for Run {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let outcome = std::task::ready!(Pin::new(&mut self.receiver).poll(context));
        self.done = true;
        Poll::Ready(outcome.unwrap_or_else(|_| lost(&self.session)))
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if !self.done {
            self.control.cancel();
        }
    }
}

/// The guest's thread ended without an answer.
fn lost(session: &str) -> Outcome {
    let reference = fault::report("a guest thread ended without an outcome");
    Outcome::empty(OutcomeKind::SandboxFault { reference }, session)
}
