//! The state of a session and what is done with it; on a guest thread.
//!
//! Invariant: before a cell begins there is a state to go back to, that of the
//! session as it then is. An instance that trapped is not used again: the next
//! one starts from that state.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fumehood_host_fns::{Broker, BrokerState, Budget, Denial, LastingEffect, NoStreaming, Waiter};

use super::history::{CheckpointId, History};
use super::{Files, Session, SessionError, SessionUsage, Shared, lock};
use crate::answer::Answer;
use crate::control::Control;
use crate::determinism::Metered;
use crate::fault;
use crate::instance::{Ended, Instance, InstanceState, Stopwatch};
use crate::limits::Limits;
use crate::listener::Relay;
use crate::memory::Start;
use crate::outcome::{NotListed, Outcome, OutcomeKind};
use crate::sandbox::Wiring;
use crate::script::{Output, Script};
use crate::ticker::HOST_CALL_GRACE;
use crate::workspaces::AttachedProject;

/// Everything that a session goes back to.
pub(super) struct State {
    pub(super) instance: InstanceState,
    pub(super) broker: BrokerState,
    /// No other state of this process has it.
    number: u64,
    /// The number of the state that came after it, and what this one's files
    /// take beyond that one's: looked up once for each pair.
    beyond: Mutex<(u64, u64)>,
}

impl State {
    fn new(instance: InstanceState, broker: BrokerState) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { instance, broker, number, beyond: Mutex::default() }
    }

    /// Bytes of what the broker holds in this state and not in `next`.
    pub(super) fn file_bytes_beyond(&self, next: &Self) -> u64 {
        let mut beyond = lock(&self.beyond);
        if beyond.0 != next.number {
            *beyond = (next.number, self.broker.bytes_beyond(&next.broker));
        }
        beyond.1
    }
}

/// A cell, what stops it, and where its outcome goes.
pub(super) struct Cell {
    pub(super) script: Script,
    pub(super) control: Arc<Control>,
    pub(super) answer: Answer,
}

/// One session's interpreter.
pub(super) struct Kernel {
    instance: Option<Instance>,
    kept: Kept,
    /// What the session is; `None` before its first use.
    state: Option<Arc<State>>,
    /// Of a fork that has not run yet.
    reseed: Option<[u8; 32]>,
    history: History,
    /// Why the present state is lost, if it is.
    lost: Option<String>,
    unreported: Unreported,
    usage: SessionUsage,
}

/// What outlives an instance, while there is none.
#[derive(Default)]
struct Kept {
    broker: Option<Broker>,
    /// In deterministic mode.
    metered: Option<Metered>,
}

/// What was denied and done and is in no outcome yet: of a cell that was
/// answered before it had ended, and between cells.
#[derive(Default)]
struct Unreported {
    denials: Vec<Denial>,
    effects: Vec<LastingEffect>,
    not_listed: NotListed,
}

impl Unreported {
    /// Takes over what nobody gets the outcome of, as much as one may list.
    fn take_from(&mut self, outcome: Outcome, limits: &Limits) {
        let lists = &limits.broker;
        let not_listed = &mut self.not_listed;
        let more = extend(&mut self.denials, outcome.denials, lists.denials_kept);
        not_listed.denials = sum([not_listed.denials, outcome.not_listed.denials, more]);
        let more = extend(&mut self.effects, outcome.effects, lists.effects_kept);
        not_listed.effects = sum([not_listed.effects, outcome.not_listed.effects, more]);
    }

    /// Puts it before what an outcome has.
    fn put_into(&mut self, outcome: &mut Outcome) {
        let Self { mut denials, mut effects, not_listed } = std::mem::take(self);
        denials.append(&mut outcome.denials);
        effects.append(&mut outcome.effects);
        (outcome.denials, outcome.effects) = (denials, effects);
        let of_outcome = &mut outcome.not_listed;
        of_outcome.denials = sum([of_outcome.denials, not_listed.denials]);
        of_outcome.effects = sum([of_outcome.effects, not_listed.effects]);
    }
}

/// Adds to a list of at most `most`; gives how many did not fit.
fn extend<T>(list: &mut Vec<T>, more: Vec<T>, most: u32) -> u64 {
    let room = usize::try_from(most).unwrap_or(usize::MAX).saturating_sub(list.len());
    let left = more.len().saturating_sub(room);
    list.extend(more.into_iter().take(room));
    left as u64
}

fn sum<const N: usize>(numbers: [u64; N]) -> u64 {
    numbers.into_iter().fold(0, u64::saturating_add)
}

/// Time that the interpreter is given for what is no cell: its start, and what
/// makes a fork differ.
pub(crate) const MAX_PREPARATION: Duration = Duration::from_secs(10);

/// Why there is no instance to run in.
type NotReady = Box<Outcome>;

impl Kernel {
    pub(super) fn new() -> Self {
        Self {
            instance: None,
            kept: Kept::default(),
            state: None,
            reseed: None,
            history: History::default(),
            lost: None,
            unreported: Unreported::default(),
            usage: SessionUsage::default(),
        }
    }

    /// After a panic: nothing of the instance and the broker is trusted, and
    /// what was done is no function of what was given any more.
    pub(super) fn give_up(&mut self) {
        self.put_away();
        self.kept.broker = None;
        if let Some(metered) = &mut self.kept.metered {
            metered.break_off();
        }
    }

    /// Gives the instance up and keeps what outlives it.
    fn put_away(&mut self) {
        if let Some(instance) = self.instance.take() {
            let (broker, metered) = instance.into_kept();
            self.kept = Kept { broker: Some(broker), metered };
        }
    }

    /// Gives the instance up; the next cell makes one of the state, if there is
    /// one.
    pub(super) fn sleep(&mut self) {
        if self.state.is_some() {
            self.put_away();
        }
    }

    /// Runs a cell and answers; then takes the next checkpoint, or goes back
    /// to the last.
    pub(super) fn run(&mut self, shared: &Shared, cell: Cell) {
        let Cell { mut script, control, answer } = cell;
        let sandbox = &shared.sandbox;
        if control.is_cancelled() {
            return answer.send(Outcome::empty(OutcomeKind::Cancelled, shared.id()));
        }
        if let Err(refused) = sandbox.check(&script, shared.id()) {
            return answer.send(*refused);
        }
        let using = sandbox.project.as_ref().map(AttachedProject::begin);
        let stopwatch = Stopwatch::start();
        let overdue = (answer.clone(), shared.id().to_owned());
        let watch = sandbox.engine().ticker.watch(
            &control,
            HOST_CALL_GRACE,
            Box::new(move |kind| {
                let mut outcome = Outcome::empty(kind, &overdue.1);
                outcome.rolled_back = true;
                overdue.0.send(outcome);
            }),
        );
        let stdin = std::mem::take(&mut script.stdin);
        let output = std::mem::replace(&mut script.output, Output::Nobody);
        let (sink, relay) = Relay::between(output, &control);
        let exec = sandbox.exec_record(script);
        let limits = sandbox.limits();
        let instance = match self.ready(shared, &control, (limits.wall, limits.cpu)) {
            Ok(instance) => instance,
            Err(outcome) => return self.tell(answer.claim(), *outcome, shared),
        };
        let host = instance.host();
        host.broker.begin_cell(Arc::clone(&stdin), sink);
        if let Err(error) = host.broker.begin_run(&exec.filename, &exec.source) {
            return answer.send(*sandbox.refused(error.to_string(), shared.id()));
        }
        if let Some(metered) = &mut host.metered {
            metered.transcript.cell(&exec, &stdin);
        }
        let ran = instance.arm().and_then(|()| instance.exec(&exec));
        let mut ended = ran.unwrap_or_else(|error| instance.classify(&error));
        if let Some(Err(cause)) = relay.as_ref().map(|relay| relay.finish()) {
            ended = Ended::Kind(cause.into());
        }
        // An answer that was given without the cell said that it is undone. From
        // here on none is.
        let answer = answer.claim();
        let trapped = ended.is_trap() || answer.is_none();
        let faulty = matches!(ended, Ended::Kind(OutcomeKind::SandboxFault { .. }));
        self.usage.cells = self.usage.cells.saturating_add(1);
        if trapped {
            self.usage.rolled_back = self.usage.rolled_back.saturating_add(1);
            self.roll_back_broker();
        }
        let open = self.open_for_writing(shared);
        if let Some(instance) = &mut self.instance {
            let mut outcome = instance.conclude(ended, shared.id(), &stopwatch);
            outcome.rolled_back = trapped;
            // Bringing changes back is no part of the cell's time.
            drop(watch);
            if let Some(using) = using {
                using.end(&mut outcome, shared.id(), open);
            }
            // Whoever listens is told by the drop that nothing more comes.
            instance.host().broker.end_cell();
            drop(relay);
            self.tell(answer, outcome, shared);
        }
        if trapped {
            self.start_again(shared, &control, faulty);
        } else {
            self.keep();
        }
    }

    /// Answers with what was not told yet; where there is an answer already,
    /// what was denied and done is for the next one.
    fn tell(&mut self, answer: Option<Answer>, mut outcome: Outcome, shared: &Shared) {
        match answer {
            Some(answer) => {
                self.unreported.put_into(&mut outcome);
                answer.send(outcome);
            }
            None => self.unreported.take_from(outcome, shared.sandbox.limits()),
        }
    }

    /// Files of the project that the session holds open for writing, or would
    /// after going back: what is written to them must be found again.
    fn open_for_writing(&mut self, shared: &Shared) -> Vec<Vec<u8>> {
        let Some(project) = &shared.sandbox.project else { return Vec::new() };
        let mut open = Vec::new();
        if let Some(instance) = &mut self.instance {
            open.append(&mut instance.host().broker.open_for_writing(project.at()));
        }
        for state in self.history.states().chain(self.state.clone()) {
            open.append(&mut state.broker.open_for_writing(project.at()));
        }
        open.sort_unstable();
        open.dedup();
        open
    }

    /// Goes back with descriptors and files in memory, so that the report has
    /// only what stays.
    fn roll_back_broker(&mut self) {
        if let (Some(instance), Some(state)) = (&mut self.instance, &self.state) {
            instance.host().broker.restore(state.broker.clone());
        }
    }

    /// An instance in the present state that can run a cell now.
    fn ready(
        &mut self,
        shared: &Shared,
        control: &Arc<Control>,
        (wall, cpu): (Duration, Duration),
    ) -> Result<&mut Instance, NotReady> {
        control.arm(wall, cpu);
        self.enter(shared, control)?;
        if let Some(seed) = self.reseed {
            self.guest_call(shared, |instance| {
                instance.arm()?;
                instance.reseed(&seed)
            })?;
            self.reseed = None;
            self.take_state().map_err(|reason| self.lose(shared, &reason))?;
        }
        match &mut self.instance {
            Some(instance) => Ok(instance),
            None => Err(fault_outcome(shared, "a session has no instance")),
        }
    }

    /// Makes an instance of the present state, if there is none, and gives it
    /// its stop conditions.
    fn enter(&mut self, shared: &Shared, control: &Arc<Control>) -> Result<(), NotReady> {
        shared.waiter.enter(control);
        if let Some(reason) = &self.lost {
            return Err(fault_outcome(shared, reason));
        }
        if let Some(instance) = &mut self.instance {
            instance.host().control = Arc::clone(control);
            return Ok(());
        }
        let sandbox = &shared.sandbox;
        let resume = match &self.state {
            Some(_) => None,
            None => {
                let sources = sandbox.sources();
                let resume = sandbox.session_record(sources.as_ref(), shared.id())?;
                let metered = sources.map(|sources| sandbox.metered(sources, &resume));
                self.kept = Kept { broker: None, metered };
                Some(resume)
            }
        };
        let metered = self.kept.metered.take();
        let broker = match self.kept.broker.take() {
            Some(broker) => broker,
            None => self.new_broker(shared, metered.as_ref())?,
        };
        let host = sandbox.host(broker, control, metered);
        let engine = sandbox.engine();
        let mut instance = Instance::new(engine, host, sandbox.limits());
        let state = self.state.clone();
        let start = Start::Session(state.as_ref().map(|state| &state.instance.memory));
        let entered = instance.enter(engine, start).and_then(|()| match &state {
            Some(state) => instance.put_back(&state.instance),
            None => Ok(()),
        });
        self.instance = Some(instance);
        self.guest_call(shared, |_| entered)?;
        if let Some(resume) = resume {
            self.guest_call(shared, |instance| instance.resume(&resume))?;
            self.take_state().map_err(|reason| self.lose(shared, &reason))?;
        }
        Ok(())
    }

    /// A broker in the present state.
    fn new_broker(&self, shared: &Shared, metered: Option<&Metered>) -> Result<Broker, NotReady> {
        let mut broker = shared.sandbox.broker(Wiring {
            identity: &shared.identity,
            stdin: Arc::from([]),
            output: Arc::new(NoStreaming),
            waiter: Arc::clone(&shared.waiter) as Arc<dyn Waiter>,
            sources: metered.map(Metered::sources),
            // A state has its files.
            with_files: self.state.is_none(),
        })?;
        if let Some(state) = &self.state {
            broker.restore(state.broker.clone());
        }
        Ok(broker)
    }

    /// Does something with the instance that is not a cell of the program. On
    /// failure there is no instance any more, and the state is as before.
    fn guest_call(
        &mut self,
        shared: &Shared,
        call: impl FnOnce(&mut Instance) -> wasmtime::Result<()>,
    ) -> Result<(), NotReady> {
        let Some(instance) = &mut self.instance else {
            return Err(fault_outcome(shared, "a session has no instance"));
        };
        let Err(error) = call(instance) else { return Ok(()) };
        let ended = instance.classify(&error);
        let outcome = instance.conclude(ended, shared.id(), &Stopwatch::start());
        // What a half-made session has opened is of no use.
        self.give_up();
        Err(Box::new(outcome))
    }

    /// After a cell that ended by itself: its state is the session's.
    fn keep(&mut self) {
        let before = self.state.clone();
        match self.take_state() {
            Ok(()) => {
                if let (Some(before), Some(state)) = (before, &self.state) {
                    self.history.before_cell(before);
                    self.history.trim(state);
                }
            }
            Err(reason) => {
                self.give_up();
                self.lost = Some(reason);
            }
        }
    }

    /// Makes the instance as it is the session's state.
    fn take_state(&mut self) -> Result<(), String> {
        let stopwatch = Stopwatch::start();
        let instance = self.instance.as_mut().ok_or("there is no instance")?;
        let state = instance
            .checkpoint()
            .map_err(|error| format!("a checkpoint could not be taken: {error:#}"))?;
        let broker = instance.host().broker.snapshot();
        self.state = Some(Arc::new(State::new(state, broker)));
        self.usage.last_checkpoint = stopwatch.elapsed();
        Ok(())
    }

    fn lose(&mut self, shared: &Shared, reason: &str) -> NotReady {
        self.give_up();
        fault_outcome(shared, reason)
    }

    /// Gives the instance up and makes another of the session's state, ahead
    /// of the next cell. If that fails, the next cell tries again.
    fn start_again(&mut self, shared: &Shared, control: &Arc<Control>, faulty: bool) {
        let stopwatch = Stopwatch::start();
        self.lost = None;
        self.put_away();
        if faulty {
            // What panicked in the middle of its work is not used again.
            self.kept.broker = None;
        }
        if let (Some(broker), Some(state)) = (&mut self.kept.broker, &self.state) {
            broker.restore(state.broker.clone());
        }
        let _ = self.enter(shared, control);
        self.usage.last_rollback = stopwatch.elapsed();
    }

    /// Makes sure that there is a state. A program may have put code of its own
    /// where a fork is made different, so that this has a time limit.
    fn started(&mut self, shared: &Shared) -> Result<Arc<State>, SessionError> {
        let sandbox = &shared.sandbox;
        let limits = sandbox.limits();
        let control = shared.waiter.control();
        // Whoever asked waits for this thread.
        let watch = sandbox.engine().ticker.watch(&control, HOST_CALL_GRACE, Box::new(|_| {}));
        let time = (limits.wall.min(MAX_PREPARATION), limits.cpu.min(MAX_PREPARATION));
        let ready = self.ready(shared, &control, time).map(|_| ());
        drop(watch);
        if let Err(outcome) = ready {
            let reason = match &outcome.kind {
                OutcomeKind::SandboxFault { reference } => reference.clone(),
                OutcomeKind::Timeout { .. } => {
                    format!(
                        "its interpreter was not ready in {} ms; start another session",
                        time.0.as_millis()
                    )
                }
                kind => kind.as_str().to_owned(),
            };
            self.unreported.take_from(*outcome, limits);
            return Err(SessionError::Unavailable(reason));
        }
        let missing = || SessionError::Unavailable("it has no state".to_owned());
        self.state.clone().ok_or_else(missing)
    }

    pub(super) fn checkpoint(&mut self, shared: &Shared) -> Result<CheckpointId, SessionError> {
        let state = self.started(shared)?;
        let id = self.history.name(Arc::clone(&state));
        self.history.trim(&state);
        Ok(id)
    }

    pub(super) fn restore(
        &mut self,
        shared: &Shared,
        id: CheckpointId,
    ) -> Result<(), SessionError> {
        let kept = self.history.restore(id);
        let (state, number) = kept.ok_or(SessionError::UnknownCheckpoint(id))?;
        self.go_back(shared, state, ("restore", number));
        Ok(())
    }

    pub(super) fn undo(&mut self, shared: &Shared, cells: usize) -> Result<(), SessionError> {
        if cells == 0 {
            return Ok(());
        }
        let state = self.history.undo(cells);
        let state = state.map_err(|kept| SessionError::NotSoFar { asked: cells, kept })?;
        self.go_back(shared, state, ("undo", cells as u64));
        Ok(())
    }

    fn go_back(&mut self, shared: &Shared, state: Arc<State>, (how, number): (&str, u64)) {
        self.history.trim(&state);
        self.state = Some(state);
        self.put_away();
        if let Some(metered) = &mut self.kept.metered {
            metered.transcript.went_back(how, number);
        }
        let control = shared.waiter.control();
        self.start_again(shared, &control, false);
    }

    pub(super) fn fork(&mut self, shared: &Shared) -> Result<Session, SessionError> {
        self.fork_as(shared, shared.identity.is_mute)
    }

    /// A fork whose code reaches nothing but its memory.
    pub(super) fn fork_mute(&mut self, shared: &Shared) -> Result<Session, SessionError> {
        self.fork_as(shared, true)
    }

    fn fork_as(&mut self, shared: &Shared, is_mute: bool) -> Result<Session, SessionError> {
        let state = self.started(shared)?;
        let instance = self.instance.as_mut();
        let metered = instance.and_then(|instance| instance.host().metered.as_ref());
        let metered = metered.map(Metered::fork);
        let seed = shared.sandbox.seed(metered.as_ref().map(Metered::sources));
        let seed = seed.map_err(|reason| SessionError::Unavailable(reason.to_owned()))?;
        let mut kernel = Self::new();
        kernel.state = Some(state);
        kernel.reseed = Some(seed);
        kernel.kept.metered = metered;
        let meter = shared.identity.meter.clone();
        let identity = shared.sandbox.identity_with(meter, is_mute);
        let sandbox = Arc::clone(&shared.sandbox);
        if let Some(project) = &sandbox.project {
            project.inherit(shared.id(), &identity.id);
        }
        let child = Session::with(Arc::clone(&sandbox), identity, kernel);
        let of_child = &child.shared;
        // What fails here is tried again by its first cell, which can tell.
        let _ = lock(&of_child.kernel).enter(of_child, &of_child.waiter.control());
        sandbox.engine().awake.waits(of_child);
        Ok(child)
    }

    pub(super) fn usage(&self, shared: &Shared) -> SessionUsage {
        let mut usage = self.usage.clone();
        if let Some(state) = &self.state {
            let memory = &state.instance.memory;
            usage.memory_bytes = memory.size() as u64;
            usage.changed_pages = memory.pages();
            let (checkpoints, bytes) = self.history.size(state);
            usage.checkpoints = checkpoints;
            usage.checkpoint_bytes = bytes as u64;
        }
        let meter = &shared.identity.meter;
        let budgets = Budget::ALL.iter();
        usage.budgets =
            budgets.map(|budget| (*budget, meter.used(*budget), meter.left(*budget))).collect();
        usage
    }

    pub(super) fn files(&mut self, shared: &Shared, most: usize) -> Result<Files, SessionError> {
        self.started(shared)?;
        let (files, more) = match (&mut self.instance, &self.kept.broker) {
            (Some(instance), _) => instance.host().broker.memory_files(most),
            (None, Some(broker)) => broker.memory_files(most),
            (None, None) => (Vec::new(), false),
        };
        Ok(Files { files, more })
    }
}

fn fault_outcome(shared: &Shared, reason: &str) -> NotReady {
    let reference = fault::report(reason);
    Box::new(Outcome::empty(OutcomeKind::SandboxFault { reference }, shared.id()))
}
