//! A sandbox: what its code may reach and how much it may use, and the runs and
//! sessions in it.
//!
//! Invariant: every run starts from the same pristine guest; nothing of one run
//! is seen by the next but what was used of the budget and the numbers of the
//! audit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fumehood_guest_abi::{Exec, Resume};
pub use fumehood_guest_abi::{FIXED_ENVIRONMENT, WORKING_DIRECTORY};
use fumehood_host_fns::audit::LogHeader;
use fumehood_host_fns::{
    Approvals, AuditNumbers, AuditSink, Broker, BrokerConfig, Budget, Clock, Egress, Executor,
    HostMount, LivePolicy, MemorySink, NativeSession, OutputSink, RandomSource, SharedMeter,
    SystemClock, ToolSet, Waiter,
};
use fumehood_policies::{GuestPath, Limited, Policy, PolicyFile};

use crate::answer::Answer;
use crate::builder::{AuditFor, SandboxBuilder};
use crate::control::Control;
use crate::determinism::{Determinism, Metered, Sources};
use crate::engine::Engine;
use crate::fault;
use crate::grants::{ReplaceError, Together};
use crate::host::{Host, Limiter};
use crate::instance::{self, Instance, Job, resume_record};
use crate::limits::Limits;
use crate::listener::Relay;
use crate::observer::Observer;
use crate::outcome::{Outcome, OutcomeKind, ScriptError};
use crate::run::Run;
use crate::script::{Output, Script};
use crate::session::Session;
use crate::ticker::HOST_CALL_GRACE;
use crate::transcript::{Given, Transcript};
use crate::workspaces::AttachedProject;

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
    /// Carries out requests; `None` if the policy lets none through.
    pub(crate) egress: Option<Arc<dyn Egress>>,
    pub(crate) approvals: Option<Arc<Approvals>>,
    pub(crate) live: Arc<LivePolicy>,
    pub(crate) together: Together,
    pub(crate) audit: Arc<dyn AuditSink>,
    /// Opens the sink of a session, by the sandbox's header with the session's
    /// id; without it all share one sink.
    pub(crate) audit_for: Option<(Arc<AuditFor>, LogHeader)>,
    pub(crate) audit_numbers: AuditNumbers,
    pub(crate) observer: Option<Arc<dyn Observer>>,
    pub(crate) clock: Option<Arc<dyn Clock>>,
    pub(crate) random: Arc<dyn RandomSource>,
    pub(crate) determinism: Option<Determinism>,
    /// Where commands run.
    pub(crate) native: Option<NativeSession>,
    pub(crate) project: Option<Arc<AttachedProject>>,
    /// Where code begins: the project, if there is one.
    pub(crate) working_directory: String,
    /// What the host calls the project and the inputs.
    pub(crate) host_names: Vec<(GuestPath, GuestPath)>,
    /// What every run in this sandbox draws on; it never goes up.
    pub(crate) meter: SharedMeter,
    pub(crate) session: String,
    /// Sessions and programs of pools that were started in it.
    pub(crate) started: AtomicU64,
}

/// What belongs to one session and no other: its name, what it counts and where
/// its records go.
#[derive(Clone)]
pub(crate) struct Identity {
    pub(crate) id: String,
    pub(crate) meter: SharedMeter,
    pub(crate) audit_numbers: AuditNumbers,
    /// Whether its code has no effect on anything but its own memory.
    pub(crate) is_mute: bool,
    /// Or why there is no sink; then nothing may run.
    audit: Result<Arc<dyn AuditSink>, Arc<str>>,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity").field("id", &self.id).finish_non_exhaustive()
    }
}

/// What one broker of a sandbox is given beside the sandbox's own settings.
pub(crate) struct Wiring<'w> {
    pub(crate) identity: &'w Identity,
    pub(crate) stdin: Arc<[u8]>,
    pub(crate) output: Arc<dyn OutputSink>,
    pub(crate) waiter: Arc<dyn Waiter>,
    /// In deterministic mode.
    pub(crate) sources: Option<&'w Sources>,
    /// Whether the sandbox's files are put into the in-memory tree.
    pub(crate) with_files: bool,
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

    /// The policy that decides, put together, as the sandbox was built.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.inner.policy
    }

    /// The policy as it can be replaced while runs go on: what replaces it holds
    /// from their next request on. Connections are set up when the sandbox is
    /// built, so a sandbox without a network stays without one.
    #[must_use]
    pub fn live_policy(&self) -> &Arc<LivePolicy> {
        &self.inner.live
    }

    /// Lets another policy file hold, from the next request of every run on. It
    /// is put together with what the sandbox was built with, under the same
    /// ceiling. Returns its generation, which audit records carry.
    ///
    /// Mounts, `[budget]` and `[env]` are taken over when the sandbox is built:
    /// a policy in which they differ is refused by the name of what differs.
    ///
    /// Connections are set up when the sandbox is built: where it may be that
    /// only a later policy lets requests through, build it with
    /// [`SandboxBuilder::network_on_demand`].
    ///
    /// # Errors
    /// [`ReplaceError`]; then the policy that held holds on.
    pub fn replace_policy(&self, policy: &PolicyFile) -> Result<u64, ReplaceError> {
        let next = self.inner.together.with(policy)?;
        Ok(self.inner.live.replace(next)?)
    }

    /// What was granted by the approver, if there is one.
    #[must_use]
    pub fn approvals(&self) -> Option<&Arc<Approvals>> {
        self.inner.approvals.as_ref()
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

    /// The project that code works on, if there is one.
    #[must_use]
    pub fn project(&self) -> Option<&Arc<AttachedProject>> {
        self.inner.project.as_ref()
    }

    /// The directory that code begins in.
    #[must_use]
    pub fn working_directory(&self) -> &str {
        &self.inner.working_directory
    }

    /// The session's id, as it is in results and audit records.
    #[must_use]
    pub fn session_id(&self) -> &str {
        &self.inner.session
    }

    /// A session of its own in this sandbox: cells that share one namespace,
    /// with budgets and records of its own. See [`Session`].
    #[must_use]
    pub fn session(&self) -> Session {
        Session::new(Arc::clone(&self.inner), self.inner.new_identity())
    }

    /// The sandbox itself as a session: with its id, its budgets and its
    /// records, for who starts one session in it and no run.
    #[must_use]
    pub fn own_session(&self) -> Session {
        Session::new(Arc::clone(&self.inner), self.inner.identity())
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// Starts a run and returns it. Text is run as a cell; see [`Script`] for
    /// programs and inputs.
    ///
    /// The run goes on a thread of its own, in any async runtime or none. It is
    /// cancelled when the returned value is dropped before it is done.
    pub fn run(&self, script: impl Into<Script>) -> Run {
        let control = Arc::new(Control::new());
        let (run, answer) =
            Run::new(Arc::clone(&control), self.inner.session.clone(), self.inner.observer.clone());
        let script = script.into();
        let inner = Arc::clone(&self.inner);
        let of_thread = answer.clone();
        let job = move || inner.execute(script, &control, &of_thread);
        let started = self.inner.engine.inner().threads.spawn(Box::new(job));
        if let Err(error) = started {
            let id = &self.inner.session;
            answer.send(*self.inner.refused(format!("a thread ({error})"), id));
        }
        run
    }
}

impl Inner {
    pub(crate) fn engine(&self) -> &crate::engine::Inner {
        self.engine.inner()
    }

    pub(crate) fn limits(&self) -> &Arc<Limits> {
        &self.limits
    }

    /// Who the runs of this sandbox are.
    pub(crate) fn identity(&self) -> Identity {
        Identity {
            id: self.session.clone(),
            meter: self.meter.clone(),
            audit_numbers: self.audit_numbers.clone(),
            is_mute: false,
            audit: Ok(Arc::clone(&self.audit)),
        }
    }

    /// Who the next session in this sandbox is; nothing of its budgets is used.
    pub(crate) fn new_identity(&self) -> Identity {
        self.identity_with(SharedMeter::new(&self.limits.broker), false)
    }

    /// The same, of a session that draws on the budgets of another one. Of one
    /// that has no effect there is nothing to keep.
    pub(crate) fn identity_with(&self, meter: SharedMeter, is_mute: bool) -> Identity {
        let number = self.started.fetch_add(1, Ordering::Relaxed);
        let id = format!("{}-{number}", self.session);
        let audit = match &self.audit_for {
            Some(_) if is_mute => Ok(Arc::new(MemorySink::default()) as Arc<dyn AuditSink>),
            Some((open, header)) => open(&LogHeader { session: id.clone(), ..header.clone() })
                .map_err(|error| Arc::<str>::from(error.to_string())),
            None => Ok(Arc::clone(&self.audit)),
        };
        Identity { id, meter, audit_numbers: AuditNumbers::default(), is_mute, audit }
    }

    fn execute(&self, script: Script, control: &Arc<Control>, answer: &Answer) {
        let overdue = answer.clone();
        let session = self.session.clone();
        let watch = self.engine.inner().ticker.watch(
            control,
            HOST_CALL_GRACE,
            Box::new(move |kind| overdue.send(Outcome::empty(kind, &session))),
        );
        let run = std::panic::AssertUnwindSafe(|| {
            let using = self.project.as_ref().map(AttachedProject::begin);
            let (mut outcome, spent) = self.run_once(script, control, &self.identity());
            // Bringing changes back is no part of the run's time.
            drop(watch);
            if let Some(using) = using {
                using.end(&mut outcome, &self.session, Vec::new());
            }
            answer.send(outcome);
            if let Some(spent) = spent {
                self.engine.inner().give_back(spent);
            }
        });
        if std::panic::catch_unwind(run).is_err() {
            let reference = fault::report("a run panicked outside the guest");
            answer.send(Outcome::empty(OutcomeKind::SandboxFault { reference }, &self.session));
        }
    }

    /// Runs a program in an instance of its own, on this thread. The instance
    /// is given back when the second value is dropped.
    pub(crate) fn run_once(
        &self,
        mut script: Script,
        control: &Arc<Control>,
        identity: &Identity,
    ) -> (Outcome, Option<Instance>) {
        let output = std::mem::replace(&mut script.output, Output::Nobody);
        let (sink, relay) = Relay::between(output, control);
        match self.prepare(script, sink, control, identity) {
            Ok(job) => {
                let (mut outcome, spent) = instance::run(self.engine.inner(), job);
                if let Some(Err(cause)) = relay.as_ref().map(|relay| relay.finish()) {
                    outcome.end_as(cause.into());
                }
                (outcome, Some(spent))
            }
            Err(outcome) => (*outcome, None),
        }
    }

    /// Refuses what is larger than the limits.
    pub(crate) fn check(&self, script: &Script, session: &str) -> Result<(), Box<Outcome>> {
        let limits = &self.limits;
        if script.source.len() > limits.source_bytes {
            let missing = format!("source text of at most {} bytes", limits.source_bytes);
            return Err(self.refused(missing, session));
        }
        if script.inputs_json.as_ref().is_some_and(|json| json.len() > limits.input_bytes) {
            let missing = format!("inputs of at most {} bytes", limits.input_bytes);
            return Err(self.refused(missing, session));
        }
        Ok(())
    }

    /// Everything that one run needs.
    fn prepare(
        &self,
        mut script: Script,
        output: Arc<dyn OutputSink>,
        control: &Arc<Control>,
        identity: &Identity,
    ) -> Result<Job, Box<Outcome>> {
        self.check(&script, &identity.id)?;
        let argv = std::iter::once(script.filename.clone());
        let argv = argv.chain(std::mem::take(&mut script.args)).collect();
        let import_path = std::mem::take(&mut script.import_path);
        let stdin = std::mem::take(&mut script.stdin);
        let sources = self.determinism.map(Sources::new);
        let mut broker = self.broker(Wiring {
            identity,
            stdin: Arc::clone(&stdin),
            output,
            waiter: Arc::clone(control) as Arc<dyn Waiter>,
            sources: sources.as_ref(),
            with_files: true,
        })?;
        broker
            .begin_run(&script.filename, &script.source)
            .map_err(|error| self.refused(error.to_string(), &identity.id))?;
        let resume = self.resume_record(argv, import_path, sources.as_ref(), &identity.id)?;
        let exec = self.exec_record(script);
        let metered = sources.map(|sources| {
            let mut metered = self.metered(sources, &resume);
            metered.transcript.cell(&exec, &stdin);
            metered
        });
        let host = self.host(broker, control, metered);
        let (session, limits) = (identity.id.clone(), Arc::clone(&self.limits));
        Ok(Job { host, resume, exec, session, limits })
    }

    /// The books of a deterministic run or session.
    pub(crate) fn metered(&self, sources: Sources, resume: &Resume) -> Metered {
        let transcript = Transcript::new(&Given {
            guest: self.engine.inner().guest.as_ref(),
            policy: self.policy.digest(),
            memory_bytes: self.limits.memory_bytes,
            settings: sources.settings,
            resume,
        });
        Metered::new(sources, transcript)
    }

    /// What stands for clocks and randomness in a new session, in deterministic
    /// mode.
    pub(crate) fn sources(&self) -> Option<Sources> {
        self.determinism.map(Sources::new)
    }

    /// A broker with this sandbox's settings.
    pub(crate) fn broker(&self, wiring: Wiring<'_>) -> Result<Broker, Box<Outcome>> {
        let Wiring { identity, stdin, output, waiter, sources, with_files } = wiring;
        let (clock, random, waiter) = match sources {
            Some(sources) => (sources.clock(), sources.random(), sources.waiter(waiter)),
            None => {
                let clock = self.clock.clone();
                let clock = clock.unwrap_or_else(|| Arc::new(SystemClock::new()));
                (clock, Arc::clone(&self.random), waiter)
            }
        };
        let audit = identity.audit.clone().map_err(|why| {
            self.refused(format!("a place for the records of the session ({why})"), &identity.id)
        })?;
        let (policy, live) = if identity.is_mute {
            (self.live.current().of_memory_alone(), None)
        } else {
            (self.policy.clone(), Some(Arc::clone(&self.live)))
        };
        let config = BrokerConfig {
            session: identity.id.clone(),
            policy: Some(policy),
            mounts: self.open_mounts(&identity.id)?,
            files: if with_files { self.files.clone() } else { Vec::new() },
            limits: self.limits.broker.clone(),
            stdin,
            output,
            audit,
            audit_numbers: identity.audit_numbers.clone(),
            clock,
            random,
            waiter,
            tools: Arc::clone(&self.tools),
            executor: self.executor.clone(),
            egress: self.egress.clone(),
            approvals: self.approvals.clone().filter(|_| !identity.is_mute),
            live_policy: live,
            meter: Some(identity.meter.clone()),
            deterministic_from_ns: self.determinism.map(|settings| settings.time_ns()),
            native: self.native.clone(),
            host_names: self.host_names.clone(),
        };
        Broker::new(config).map_err(|error| self.refused(error.to_string(), &identity.id))
    }

    /// The host side of a store.
    pub(crate) fn host(
        &self,
        broker: Broker,
        control: &Arc<Control>,
        metered: Option<Metered>,
    ) -> Host {
        Host {
            broker,
            control: Arc::clone(control),
            limiter: Limiter::new(self.limits.memory_bytes),
            memory: None,
            max_request: self.limits.broker.request_bytes,
            metered,
        }
    }

    /// A seed for the interpreter's generators.
    pub(crate) fn seed(&self, sources: Option<&Sources>) -> Result<[u8; 32], &'static str> {
        let mut seed = [0; 32];
        let seeds = sources.map_or(&self.random, Sources::interpreter_seeds);
        seeds.fill(&mut seed).map_err(|_| "the random source failed")?;
        Ok(seed)
    }

    /// What `fh_resume` is told.
    fn resume_record(
        &self,
        argv: Vec<String>,
        import_path: Vec<String>,
        sources: Option<&Sources>,
        session: &str,
    ) -> Result<Resume, Box<Outcome>> {
        let seed = self.seed(sources);
        let seed = seed.map_err(|error| self.refused(error.to_owned(), session))?;
        let (cwd, tools) = (self.working_directory.clone(), !self.tools.is_empty());
        Ok(resume_record(argv, self.env.clone(), cwd, import_path, seed, tools))
    }

    /// What a session's `fh_resume` is told.
    pub(crate) fn session_record(
        &self,
        sources: Option<&Sources>,
        session: &str,
    ) -> Result<Resume, Box<Outcome>> {
        let import_path = vec![self.working_directory.clone()];
        self.resume_record(vec![String::new()], import_path, sources, session)
    }

    /// What `fh_exec` is told.
    pub(crate) fn exec_record(&self, script: Script) -> Exec {
        Exec {
            mode: script.mode,
            filename: script.filename,
            source: script.source,
            inputs_json: script.inputs_json,
            max_value_bytes: self.limits.value_bytes,
        }
    }

    /// The mounts' directories, by handles of this run's own.
    fn open_mounts(&self, session: &str) -> Result<Vec<HostMount>, Box<Outcome>> {
        self.mounts
            .iter()
            .map(|mount| {
                mount.try_clone().map_err(|error| {
                    let missing = format!("a descriptor for the mount {} ({error})", mount.at);
                    self.refused(missing, session)
                })
            })
            .collect()
    }

    pub(crate) fn refused(&self, missing: String, session: &str) -> Box<Outcome> {
        let message = format!("{missing} is required");
        Box::new(self.refusal(OutcomeKind::Refused { missing: vec![missing] }, message, session))
    }

    /// An outcome of `kind` that says why nothing was run.
    pub(crate) fn refusal(&self, kind: OutcomeKind, message: String, session: &str) -> Outcome {
        let mut outcome = Outcome::empty(kind, session);
        outcome.error = Some(ScriptError {
            type_name: "Refused".to_owned(),
            message,
            traceback: String::new(),
        });
        outcome
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use fumehood_host_fns::records::is_session_name;

    use super::*;

    /// A module with nothing in it.
    const NOTHING: &[u8] = b"\0asm\x01\0\0\0";

    #[test]
    fn each_session_has_its_own_sink_and_a_name_that_records_can_have() {
        let opened = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&opened);
        let sandbox = Sandbox::builder()
            .engine(Engine::builder().module(NOTHING).build().unwrap())
            .audit_for(move |header| {
                let mut seen = seen.lock().map_err(|_| "poisoned")?;
                if seen.len() == 3 {
                    return Err("it is full".into());
                }
                seen.push(header.session.clone());
                Ok(Arc::new(MemorySink::default()) as Arc<dyn AuditSink>)
            })
            .build()
            .unwrap();
        let session = sandbox.inner.new_identity();
        let fork = sandbox.inner.identity_with(session.meter.clone(), false);
        let names = opened.lock().unwrap().clone();
        assert_eq!(names, [sandbox.session_id(), session.id.as_str(), fork.id.as_str()]);
        assert!(names.iter().all(|name| is_session_name(name)), "{names:?}");
        let none = sandbox.inner.new_identity();
        assert_eq!(none.audit.err().as_deref(), Some("it is full"), "then nothing of it runs");
        assert!(sandbox.inner.identity_with(session.meter.clone(), true).audit.is_ok());
        assert_eq!(sandbox.own_session().id(), sandbox.session_id());
    }
}
