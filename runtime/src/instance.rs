//! One instance of the guest: instantiate, resume, execute, classify.
//!
//! Invariant: deadlines and limiter are armed before the module is
//! instantiated; whatever the guest returns is bounded before it is copied and
//! decoded without trust. An instance is not used again after a trap.

use std::sync::Arc;

use fumehood_guest_abi::{ABI_VERSION, Exec, ExecResult, Resume, Status};
use fumehood_host_fns::{Broker, StopReason};
use fumehood_policies::parse_json;
use wasmtime::{Global, Memory, Store, Trap, UpdateDeadline, Val};

use crate::clock;
use crate::determinism::{self, Metered};
use crate::engine::Inner;
use crate::fault;
use crate::guest::Guest;
use crate::host::{GuestStop, Host};
use crate::limits::Limits;
use crate::memory::{LiveMemory, MemoryState, Slots, Start};
use crate::outcome::{
    CellValue, DisplayData, Dropped, FileChanges, NotListed, Outcome, OutcomeKind, ScriptError,
    TimeoutClock, Usage,
};

/// The shadow stack is used up when fewer bytes than this are left of it.
pub(crate) const SHADOW_STACK_MARGIN: i32 = 64 << 10;
/// Longest class name of an exception.
const MAX_TYPE_NAME_BYTES: usize = 1024;
/// Longest traceback.
const MAX_TRACEBACK_BYTES: usize = 1 << 20;
/// The guest's exported globals are named `__fh_g` and a number; the first is
/// the shadow stack pointer.
const STACK_POINTER: &str = "__fh_g0";

/// How guest code ended.
pub(crate) enum Ended {
    /// By itself.
    Returned(ExecResult),
    /// In the middle, by `proc_exit`.
    Exit(i32),
    /// In the middle.
    Kind(OutcomeKind),
    /// Code of the guest broke the interpreter it runs in.
    Crashed(String),
}

impl Ended {
    /// Whether the guest was left in the middle of its work.
    pub(crate) fn is_trap(&self) -> bool {
        !matches!(self, Self::Returned(_))
    }
}

/// What one run is given.
pub(crate) struct Job {
    pub(crate) host: Host,
    pub(crate) resume: Resume,
    pub(crate) exec: Exec,
    pub(crate) session: String,
    pub(crate) limits: Arc<Limits>,
}

/// The whole state of an instance but its broker's.
#[derive(Clone, Debug)]
pub(crate) struct InstanceState {
    pub(crate) memory: MemoryState,
    stack_pointer: i32,
}

/// An instance and its store; dropping it gives its memory back.
pub(crate) struct Instance {
    store: Store<Host>,
    parts: Option<Parts>,
    value_bytes: u32,
}

/// What is known of an instance once its module is instantiated.
struct Parts {
    memory: Memory,
    live: Option<LiveMemory>,
    stack_pointer: Option<Global>,
    program: Program,
}

enum Program {
    Python(Box<Guest>),
    /// A module that exports `_start`.
    Module(wasmtime::Instance),
}

/// Runs the job to its end. The second value frees the instance when dropped,
/// so that the outcome need not wait for it.
pub(crate) fn run(engine: &Inner, job: Job) -> (Outcome, Instance) {
    let Job { host, resume, exec, session, limits } = job;
    let stopwatch = Stopwatch::start();
    host.control.arm(limits.wall, limits.cpu);
    let mut instance = Instance::new(engine, host, &limits);
    let ended = match instance.enter(engine, Start::Once) {
        Ok(()) if engine.is_python => instance.resume(&resume).and_then(|()| instance.exec(&exec)),
        Ok(()) => instance.start(),
        Err(error) => Err(error),
    };
    let ended = ended.unwrap_or_else(|error| instance.classify(&error));
    let outcome = instance.conclude(ended, &session, &stopwatch);
    (outcome, instance)
}

impl Instance {
    /// A store with its limits armed and nothing in it.
    pub(crate) fn new(engine: &Inner, host: Host, limits: &Limits) -> Self {
        let mut store = Store::new(engine.instance.module().engine(), host);
        store.limiter(|host| &mut host.limiter);
        store.epoch_deadline_callback(|context| match context.data().control.stop_cause() {
            None => Ok(UpdateDeadline::Continue(1)),
            Some(cause) => Err(GuestStop::Cause(cause).into()),
        });
        store.set_epoch_deadline(1);
        Self { store, parts: None, value_bytes: limits.value_bytes }
    }

    /// Instantiates the module.
    ///
    /// # Errors
    /// The engine's reason.
    pub(crate) fn enter(&mut self, engine: &Inner, start: Start<'_>) -> wasmtime::Result<()> {
        determinism::refuel(&mut self.store)?;
        let mut instantiate = || engine.instance.instantiate(&mut self.store);
        let (instance, live) = match engine.slots {
            Some(_) => Slots::instantiate(start, &mut instantiate),
            None => (instantiate(), None),
        };
        let instance = instance?;
        let store = &mut self.store;
        let memory = instance
            .get_memory(&mut *store, "memory")
            .ok_or_else(|| wasmtime::Error::msg("the guest exports no memory"))?;
        let size = memory.data_size(&*store);
        let host = store.data_mut();
        host.memory = Some(memory);
        host.limiter.peak = host.limiter.peak.max(size);
        let stack_pointer = instance.get_global(&mut *store, STACK_POINTER);
        let program = match engine.is_python {
            true => Program::Python(Box::new(Guest::new(&instance, store, memory)?)),
            false => Program::Module(instance),
        };
        self.parts = Some(Parts { memory, live, stack_pointer, program });
        Ok(())
    }

    /// Runs a module that is not the Python guest.
    fn start(&mut self) -> wasmtime::Result<Ended> {
        let (parts, store) = self.parts()?;
        if let Program::Module(instance) = &parts.program {
            instance.get_typed_func::<(), ()>(&mut *store, "_start")?.call(&mut *store, ())?;
        }
        let status = Status::Completed;
        Ok(Ended::Returned(ExecResult { status, repr: None, json: None, error: None }))
    }

    fn parts(&mut self) -> wasmtime::Result<(&mut Parts, &mut Store<Host>)> {
        match &mut self.parts {
            Some(parts) => Ok((parts, &mut self.store)),
            None => Err(wasmtime::Error::msg("there is no instance")),
        }
    }

    fn guest(&mut self) -> wasmtime::Result<(&Guest, &mut Store<Host>)> {
        let (parts, store) = self.parts()?;
        match &parts.program {
            Program::Python(guest) => Ok((guest, store)),
            Program::Module(_) => Err(wasmtime::Error::msg("the module is not the Python guest")),
        }
    }

    /// Tells the guest who it is.
    ///
    /// # Errors
    /// A trap, or the guest's refusal.
    pub(crate) fn resume(&mut self, resume: &Resume) -> wasmtime::Result<()> {
        let (guest, store) = self.guest()?;
        guest.resume(store, resume)
    }

    /// Gives every generator that the program never seeded another seed.
    ///
    /// # Errors
    /// A trap, or the guest's refusal.
    pub(crate) fn reseed(&mut self, seed: &[u8; 32]) -> wasmtime::Result<()> {
        let (guest, store) = self.guest()?;
        guest.reseed(store, seed)
    }

    /// Runs a cell or script.
    ///
    /// # Errors
    /// A trap; [`Instance::classify`] says which.
    pub(crate) fn exec(&mut self, exec: &Exec) -> wasmtime::Result<Ended> {
        let value_bytes = self.value_bytes;
        let (guest, store) = self.guest()?;
        Ok(Ended::Returned(bounded(guest.exec(store, exec)?, value_bytes)))
    }

    /// The host side of the store.
    pub(crate) fn host(&mut self) -> &mut Host {
        self.store.data_mut()
    }

    /// Gives the instance up and keeps its broker and what it has counted.
    pub(crate) fn into_kept(mut self) -> (Broker, Option<Metered>) {
        determinism::settle(&mut self.store);
        let host = self.store.into_data();
        (host.broker, host.metered)
    }

    /// Gives a new cell its epochs and its fuel.
    ///
    /// # Errors
    /// When the engine does not count fuel.
    pub(crate) fn arm(&mut self) -> wasmtime::Result<()> {
        determinism::refuel(&mut self.store)?;
        self.store.set_epoch_deadline(1);
        let size = self.parts.as_ref().map_or(0, |parts| parts.memory.data_size(&self.store));
        let limiter = &mut self.store.data_mut().limiter;
        limiter.refused = false;
        limiter.peak = size;
        Ok(())
    }

    /// Everything that a run or cell gave.
    pub(crate) fn conclude(
        &mut self,
        ended: Ended,
        session: &str,
        stopwatch: &Stopwatch,
    ) -> Outcome {
        let mut outcome = collect(ended, self.store.data_mut(), session);
        determinism::conclude(&mut self.store, &mut outcome);
        stopwatch.write(&mut outcome.usage);
        outcome
    }

    /// Memory and globals as they are.
    ///
    /// # Errors
    /// The system's reason; the instance must not be used any more.
    pub(crate) fn checkpoint(&mut self) -> wasmtime::Result<InstanceState> {
        let (parts, store) = self.parts()?;
        let live = parts.live.as_ref().ok_or_else(|| wasmtime::Error::msg("no mapped memory"))?;
        let stack_pointer = match parts.stack_pointer {
            Some(global) => match global.get(&mut *store) {
                Val::I32(pointer) => pointer,
                _ => return Err(wasmtime::Error::msg("the stack pointer is no i32")),
            },
            None => return Err(wasmtime::Error::msg("the stack pointer is not exported")),
        };
        let memory = live.checkpoint(parts.memory.data_mut(&mut *store))?;
        Ok(InstanceState { memory, stack_pointer })
    }

    /// Makes an instance that was entered with this state's memory that state.
    ///
    /// # Errors
    /// When it is not of that size.
    pub(crate) fn put_back(&mut self, state: &InstanceState) -> wasmtime::Result<()> {
        let (parts, store) = self.parts()?;
        if !state.memory.put_into(parts.memory.data_mut(&mut *store)) {
            return Err(wasmtime::Error::msg("the memory is not of the state's size"));
        }
        let pointer = parts.stack_pointer;
        let global = pointer.ok_or_else(|| wasmtime::Error::msg("no stack pointer"))?;
        global.set(&mut *store, Val::I32(state.stack_pointer))
    }

    /// What a trap was.
    pub(crate) fn classify(&mut self, error: &wasmtime::Error) -> Ended {
        if let Some(stop) = error.downcast_ref::<GuestStop>() {
            return match stop {
                GuestStop::Exit(code) => Ended::Exit(*code),
                GuestStop::Cause(cause) => Ended::Kind((*cause).into()),
                GuestStop::Crashed(what) => Ended::Crashed((*what).to_owned()),
                GuestStop::Broker(reason) => Ended::Kind(stopped(reason)),
            };
        }
        let store = &mut self.store;
        let pointer = self.parts.as_ref().and_then(|parts| parts.stack_pointer);
        let shadow_stack_used_up = pointer.is_some_and(|global| {
            matches!(global.get(&mut *store), Val::I32(pointer) if pointer < SHADOW_STACK_MARGIN)
        });
        let refused = store.data().limiter.refused;
        Ended::Kind(match error.downcast_ref::<Trap>() {
            Some(Trap::StackOverflow) => OutcomeKind::StackExhausted,
            Some(Trap::OutOfFuel) => OutcomeKind::FuelExhausted,
            Some(_) if shadow_stack_used_up => OutcomeKind::StackExhausted,
            // An allocator that is refused memory aborts.
            Some(_) | None if refused => OutcomeKind::MemoryLimit,
            // Bytecode of the program's own can do that: it is no fault of ours.
            Some(trap) => return Ended::Crashed(trap.to_string()),
            _ => OutcomeKind::SandboxFault { reference: fault::report(&format!("{error:#}")) },
        })
    }
}

fn stopped(reason: &StopReason) -> OutcomeKind {
    match reason {
        StopReason::Interrupted => OutcomeKind::Timeout { clock: TimeoutClock::Wall },
        StopReason::HostCallsExhausted => {
            OutcomeKind::BudgetExceeded { name: "host_calls".to_owned() }
        }
        StopReason::BudgetExceeded { name } => {
            OutcomeKind::BudgetExceeded { name: (*name).to_owned() }
        }
        StopReason::Fault(reference) => OutcomeKind::SandboxFault { reference: reference.clone() },
    }
}

/// The error of a program that broke the interpreter.
fn crash(what: &str) -> ScriptError {
    ScriptError {
        type_name: "InterpreterCrash".to_owned(),
        message: format!("the program made the Python interpreter fail: {what}"),
        traceback: String::new(),
    }
}

/// Holds the guest's record to the limits that the guest was asked to keep:
/// code in the guest can replace what keeps them.
fn bounded(mut result: ExecResult, value_bytes: u32) -> ExecResult {
    let most = usize::try_from(value_bytes).unwrap_or(usize::MAX);
    let cut = |text: &mut String, most: usize| {
        if text.len() > most {
            text.truncate(text.floor_char_boundary(most));
        }
    };
    if let Some(repr) = &mut result.repr {
        cut(repr, most);
    }
    if result.json.as_ref().is_some_and(|json| json.len() > most) {
        result.json = None;
    }
    if let Some(error) = &mut result.error {
        cut(&mut error.type_name, MAX_TYPE_NAME_BYTES);
        cut(&mut error.message, most);
        cut(&mut error.traceback, MAX_TRACEBACK_BYTES.max(most));
    }
    result
}

/// Measures a run or a cell; on the thread that it was started on.
pub(crate) struct Stopwatch {
    start: std::time::Instant,
    cpu: std::time::Duration,
}

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Self { start: clock::now(), cpu: clock::thread_cpu_time() }
    }

    /// Since the start.
    pub(crate) fn elapsed(&self) -> std::time::Duration {
        clock::now().saturating_duration_since(self.start)
    }

    fn write(&self, usage: &mut Usage) {
        usage.wall_ms = self.elapsed().as_secs_f64() * 1000.0;
        let cpu = clock::thread_cpu_time().saturating_sub(self.cpu);
        usage.cpu_ms = cpu.as_secs_f64() * 1000.0;
    }
}

fn collect(ended: Ended, host: &mut Host, session: &str) -> Outcome {
    let crash = match &ended {
        Ended::Crashed(what) => Some(crash(what)),
        _ => None,
    };
    let (kind, program_code, result) = match ended {
        Ended::Kind(kind) => (kind, None, None),
        Ended::Crashed(_) => (OutcomeKind::ScriptError, None, None),
        Ended::Exit(code) => (OutcomeKind::Exit, Some(code), None),
        Ended::Returned(result) => match result.status {
            Status::Completed => (OutcomeKind::Completed, None, Some(result)),
            Status::ScriptError => (OutcomeKind::ScriptError, None, Some(result)),
            Status::Exit(code) => (OutcomeKind::Exit, Some(code), Some(result)),
        },
    };
    let mut outcome = Outcome::empty(kind, session);
    if let Some(code) = program_code {
        outcome.exit_code = code;
    }
    outcome.error = crash;
    if let Some(result) = result {
        outcome.result = CellValue {
            repr: result.repr,
            json: result.json.and_then(|json| parse_json(json.as_bytes(), json.len()).ok()),
        };
        outcome.error = result.error.map(|error| ScriptError {
            type_name: error.type_name,
            message: error.message,
            traceback: error.traceback,
        });
    }
    tell(&mut outcome, host);
    outcome
}

/// Writes the broker's report into an outcome.
fn tell(outcome: &mut Outcome, host: &mut Host) {
    host.broker.end_run(outcome.kind.as_str());
    let report = host.broker.report();
    outcome.stdout = report.stdout;
    outcome.stderr = report.stderr;
    outcome.dropped = Dropped { stdout: report.dropped_stdout, stderr: report.dropped_stderr };
    outcome.displays = report
        .displays
        .into_iter()
        .map(|display| DisplayData { mime: display.mime, bytes: display.bytes })
        .collect();
    outcome.denials = report.denials;
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
    outcome.usage = Usage {
        peak_memory_bytes: host.limiter.peak as u64,
        host_calls: report.usage.host_calls,
        bytes_in: report.usage.bytes_in,
        bytes_out: report.usage.bytes_out,
        ..Usage::default()
    };
}

/// The record of `fh_resume`.
pub(crate) fn resume_record(
    argv: Vec<String>,
    env: Vec<(String, String)>,
    cwd: String,
    import_path: Vec<String>,
    seed: [u8; 32],
    tools: bool,
) -> Resume {
    Resume { abi: ABI_VERSION, argv, env, cwd, import_path, seed, tools }
}
