//! A sandbox: what its code may reach and how much it may use, and the runs in
//! it.
//!
//! Invariant: every run starts from the same pristine guest; nothing of one run
//! is seen by the next. Dropping a [`Run`] stops it.

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use fumehood_guest_abi::Exec;
use fumehood_host_fns::{
    AuditSink, Broker, BrokerConfig, Clock, HostMount, MemorySink, NoStreaming, OsRandom,
    RandomSource, SharedMeter, SystemClock, policy_for,
};
use fumehood_policies::{Access, GuestPath, Policy};
use tokio::sync::oneshot;

use crate::control::Control;
use crate::engine::Engine;
use crate::error::BuildError;
use crate::fault;
use crate::host::{Host, Limiter};
use crate::instance::{self, Job, resume_record};
use crate::limits::{Limits, MAX_MEMORY_BYTES, MIN_MEMORY_BYTES};
use crate::outcome::{Outcome, OutcomeKind, ScriptError, TimeoutClock};
use crate::script::Script;

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

/// Longest any time limit may be: a year.
const MAX_TIME: Duration = Duration::from_secs(365 * 24 * 3600);
/// Most bytes that the environment of a sandbox may have.
const MAX_ENVIRONMENT_BYTES: usize = 1 << 20;

/// Settings of a [`Sandbox`].
#[derive(Clone)]
pub struct SandboxBuilder {
    engine: Option<Engine>,
    limits: Limits,
    mounts: Vec<MountRequest>,
    env: Vec<(String, String)>,
    files: Vec<(String, Vec<u8>)>,
    audit: Option<Arc<dyn AuditSink>>,
    clock: Option<Arc<dyn Clock>>,
    random: Option<Arc<dyn RandomSource>>,
}

#[derive(Clone, Debug)]
struct MountRequest {
    at: String,
    host: PathBuf,
    access: Access,
    force: bool,
}

impl std::fmt::Debug for SandboxBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SandboxBuilder")
            .field("limits", &self.limits)
            .field("mounts", &self.mounts)
            .finish_non_exhaustive()
    }
}

impl SandboxBuilder {
    /// Uses this engine instead of [`Engine::shared`].
    #[must_use]
    pub fn engine(mut self, engine: Engine) -> Self {
        self.engine = Some(engine);
        self
    }

    /// Replaces all limits.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// The wall-clock limit of a run.
    #[must_use]
    pub fn timeout(mut self, wall: Duration) -> Self {
        self.limits.wall = wall;
        self
    }

    /// Mounts a host directory that the guest can read.
    #[must_use]
    pub fn mount_read_only(self, at: impl Into<String>, host: impl AsRef<Path>) -> Self {
        self.mount(at, host, Access::ReadOnly, false)
    }

    /// Mounts a host directory that the guest can change.
    #[must_use]
    pub fn mount_read_write(self, at: impl Into<String>, host: impl AsRef<Path>) -> Self {
        self.mount(at, host, Access::ReadWrite, false)
    }

    /// Mounts a host directory. `force` permits directories that are refused
    /// otherwise, such as `/` and the home directory.
    #[must_use]
    pub fn mount(
        mut self,
        at: impl Into<String>,
        host: impl AsRef<Path>,
        access: Access,
        force: bool,
    ) -> Self {
        let host = host.as_ref().to_owned();
        self.mounts.push(MountRequest { at: at.into(), host, access, force });
        self
    }

    /// Sets an environment variable of the guest.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Puts a file into the in-memory tree.
    #[must_use]
    pub fn file(mut self, at: impl Into<String>, contents: impl Into<Vec<u8>>) -> Self {
        self.files.push((at.into(), contents.into()));
        self
    }

    /// Receives the audit records; without it a bounded list in memory does.
    #[must_use]
    pub fn audit(mut self, sink: Arc<dyn AuditSink>) -> Self {
        self.audit = Some(sink);
        self
    }

    /// Replaces the clock that the guest sees.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Replaces the source of randomness that the guest sees.
    #[must_use]
    pub fn random(mut self, random: Arc<dyn RandomSource>) -> Self {
        self.random = Some(random);
        self
    }

    /// Opens the mounts and checks everything; nothing has run yet.
    ///
    /// # Errors
    /// [`BuildError`] names what is wrong.
    pub fn build(self) -> Result<Sandbox, BuildError> {
        check_limits(&self.limits)?;
        let env = environment(self.env)?;
        let mounts = self
            .mounts
            .iter()
            .map(|mount| HostMount::open(&mount.at, &mount.host, mount.access, mount.force))
            .collect::<Result<Vec<_>, _>>()?;
        let policy = policy_for(&mounts)?;
        let files = self
            .files
            .into_iter()
            .map(|(path, contents)| Ok((guest_path(&path)?, contents)))
            .collect::<Result<Vec<_>, BuildError>>()?;
        let engine = match self.engine {
            Some(engine) => engine,
            None => Engine::shared()?,
        };
        let random = self.random.unwrap_or_else(|| Arc::new(OsRandom));
        let limits = Arc::new(self.limits);
        Ok(Sandbox {
            inner: Arc::new(Inner {
                engine,
                limits: Arc::clone(&limits),
                policy,
                mounts,
                env,
                files,
                audit: self.audit.unwrap_or_else(|| Arc::new(MemorySink::default())),
                clock: self.clock,
                session: session_id()?,
                random,
                meter: SharedMeter::new(&limits.broker),
            }),
        })
    }
}

fn session_id() -> Result<String, BuildError> {
    let mut id = [0; 12];
    OsRandom.fill(&mut id).map_err(|_| BuildError::Random)?;
    Ok(format!("fh-{}", crate::cache::hex(&id)))
}

fn check_limits(limits: &Limits) -> Result<(), BuildError> {
    let out_of_range = |name, least, most| BuildError::Limit { name, least, most };
    for (name, time) in [("wall (seconds)", limits.wall), ("cpu (seconds)", limits.cpu)] {
        if time.is_zero() || time > MAX_TIME {
            return Err(out_of_range(name, 1, MAX_TIME.as_secs()));
        }
    }
    if !(MIN_MEMORY_BYTES..=MAX_MEMORY_BYTES).contains(&limits.memory_bytes) {
        return Err(out_of_range("memory (MiB)", MIN_MEMORY_BYTES >> 20, MAX_MEMORY_BYTES >> 20));
    }
    Ok(())
}

fn environment(given: Vec<(String, String)>) -> Result<Vec<(String, String)>, BuildError> {
    let mut env: Vec<(String, String)> = FIXED_ENVIRONMENT
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    let mut bytes = 0_usize;
    for (name, value) in given {
        let well_formed = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !well_formed {
            return Err(BuildError::Environment {
                name,
                reason: "is not a name for an environment variable; use letters, digits and underscores",
            });
        }
        if FIXED_ENVIRONMENT.iter().any(|(fixed, _)| *fixed == name) {
            return Err(BuildError::Environment {
                name,
                reason: "is the same in every sandbox and cannot be set; choose another name",
            });
        }
        bytes = bytes.saturating_add(name.len()).saturating_add(value.len());
        if value.contains('\0') || bytes > MAX_ENVIRONMENT_BYTES {
            return Err(BuildError::Environment {
                name,
                reason: "has a value with a NUL in it or of more than 1 MiB; pass large data as a file",
            });
        }
        env.retain(|(present, _)| *present != name);
        env.push((name, value));
    }
    Ok(env)
}

fn guest_path(path: &str) -> Result<GuestPath, BuildError> {
    GuestPath::parse(&GuestPath::root(), path.as_bytes())
        .map(|requested| requested.path)
        .map_err(|error| BuildError::Path { path: path.to_owned(), reason: error.to_string() })
}

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

struct Inner {
    engine: Engine,
    limits: Arc<Limits>,
    policy: Policy,
    mounts: Vec<HostMount>,
    env: Vec<(String, String)>,
    files: Vec<(GuestPath, Vec<u8>)>,
    audit: Arc<dyn AuditSink>,
    clock: Option<Arc<dyn Clock>>,
    random: Arc<dyn RandomSource>,
    /// What every run in this sandbox draws on; it never goes up.
    meter: SharedMeter,
    session: String,
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
        SandboxBuilder {
            engine: None,
            limits: Limits::default(),
            mounts: Vec::new(),
            env: Vec::new(),
            files: Vec::new(),
            audit: None,
            clock: None,
            random: None,
        }
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
        let run = std::panic::AssertUnwindSafe(|| match self.prepare(script, control) {
            Ok(job) => {
                let (outcome, spent) = instance::run(self.engine.inner(), job);
                answer.send(outcome);
                drop(spent);
            }
            Err(outcome) => answer.send(*outcome),
        });
        if std::panic::catch_unwind(run).is_err() {
            let reference = fault::report("a run panicked outside the guest");
            answer.send(Outcome::empty(OutcomeKind::SandboxFault { reference }, &self.session));
        }
    }

    fn prepare(&self, script: Script, control: &Arc<Control>) -> Result<Job, Box<Outcome>> {
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
        let broker = Broker::new(BrokerConfig {
            session: self.session.clone(),
            policy: Some(self.policy.clone()),
            mounts: self.open_mounts()?,
            files: self.files.clone(),
            limits: self.limits.broker.clone(),
            stdin: script.stdin,
            output: script.output.unwrap_or_else(|| Arc::new(NoStreaming)),
            audit: Arc::clone(&self.audit),
            clock: self.clock.clone().unwrap_or_else(|| Arc::new(SystemClock::new())),
            random: Arc::clone(&self.random),
            waiter: Arc::clone(control) as Arc<dyn fumehood_host_fns::Waiter>,
            tools: Arc::default(),
            executor: None,
            meter: Some(self.meter.clone()),
        })
        .map_err(|error| self.refused(error.to_string()))?;
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
