//! One run on its guest thread: instantiate, resume, execute, classify.
//!
//! Invariant: deadlines and limiter are armed before the module is
//! instantiated; whatever the guest returns is bounded before it is copied and
//! decoded without trust.

use std::sync::Arc;

use fumehood_guest_abi::{ABI_VERSION, Exec, ExecResult, Resume, Status, decode, encode};
use fumehood_host_fns::StopReason;
use fumehood_policies::parse_json;
use wasmtime::{Instance, Memory, Store, Trap, TypedFunc, UpdateDeadline, Val};

use crate::clock;
use crate::engine::Inner;
use crate::fault;
use crate::host::{GuestStop, Host};
use crate::memory::Slots;
use crate::outcome::{
    CellValue, DisplayData, Dropped, FileChanges, Outcome, OutcomeKind, ScriptError, TimeoutClock,
    Usage,
};

/// Room in a result record beyond the value limit: message and traceback.
pub(crate) const RESULT_ROOM_BYTES: u32 = 16 << 20;
/// The shadow stack is used up when fewer bytes than this are left of it.
pub(crate) const SHADOW_STACK_MARGIN: i32 = 64 << 10;
/// Longest class name of an exception.
const MAX_TYPE_NAME_BYTES: usize = 1024;
/// Longest traceback.
const MAX_TRACEBACK_BYTES: usize = 1 << 20;
/// The guest's exported globals are named `__fh_g` and a number; the first is
/// the shadow stack pointer.
const STACK_POINTER: &str = "__fh_g0";

/// How the guest code ended.
enum Ended {
    Returned(ExecResult),
    Exit(i32),
    Kind(OutcomeKind),
    /// Code of the guest broke the interpreter it runs in.
    Crashed(String),
}

/// What one run is given.
pub(crate) struct Job {
    pub(crate) host: Host,
    pub(crate) resume: Resume,
    pub(crate) exec: Exec,
    pub(crate) session: String,
    pub(crate) limits: Arc<crate::Limits>,
}

/// Runs the job to its end. The second value frees the instance when dropped,
/// so that the outcome need not wait for it.
pub(crate) fn run(engine: &Inner, job: Job) -> (Outcome, Spent) {
    let Job { host, resume, exec, session, limits } = job;
    let start = clock::now();
    let cpu_start = clock::thread_cpu_time();
    host.control.arm(limits.wall, limits.cpu);
    let mut store = Store::new(engine.instance.module().engine(), host);
    store.limiter(|host| &mut host.limiter);
    store.epoch_deadline_callback(|context| match context.data().control.stop_cause() {
        None => Ok(UpdateDeadline::Continue(1)),
        Some(cause) => Err(GuestStop::Cause(cause).into()),
    });
    store.set_epoch_deadline(1);
    let mut stack_pointer = None;
    let ended = match enter(engine, &mut store, &resume, &exec, &mut stack_pointer) {
        Ok(result) => Ended::Returned(bounded(result, limits.value_bytes)),
        Err(error) => classify(&error, &mut store, stack_pointer),
    };
    let mut outcome = collect(ended, &mut store, &session);
    let wall = clock::now().saturating_duration_since(start);
    let cpu = clock::thread_cpu_time().saturating_sub(cpu_start);
    outcome.usage.wall_ms = wall.as_secs_f64() * 1000.0;
    outcome.usage.cpu_ms = cpu.as_secs_f64() * 1000.0;
    (outcome, Spent(store))
}

/// An instance that has run; dropping it gives its memory back.
pub(crate) struct Spent(#[allow(dead_code, reason = "held to be dropped")] Store<Host>);

fn enter(
    engine: &Inner,
    store: &mut Store<Host>,
    resume: &Resume,
    exec: &Exec,
    stack_pointer: &mut Option<wasmtime::Global>,
) -> wasmtime::Result<ExecResult> {
    let instance = match engine.slots {
        Some(_) => Slots::instantiate(|| engine.instance.instantiate(&mut *store))?,
        None => engine.instance.instantiate(&mut *store)?,
    };
    let memory = instance
        .get_memory(&mut *store, "memory")
        .ok_or_else(|| wasmtime::Error::msg("the guest exports no memory"))?;
    let size = memory.data_size(&*store);
    let host = store.data_mut();
    host.memory = Some(memory);
    host.limiter.peak = host.limiter.peak.max(size);
    *stack_pointer = instance.get_global(&mut *store, STACK_POINTER);
    if !engine.is_python {
        instance.get_typed_func::<(), ()>(&mut *store, "_start")?.call(&mut *store, ())?;
        return Ok(ExecResult { status: Status::Completed, repr: None, json: None, error: None });
    }
    let guest = Guest::new(&instance, store, memory)?;
    let accepted = guest.resume(store, resume).map_err(no_program_yet)?;
    if accepted != 0 {
        return Err(wasmtime::Error::msg(format!("the guest refused to resume ({accepted})")));
    }
    guest.exec(store, exec)
}

/// A guest that breaks before it has seen a program is a fault of ours.
fn no_program_yet(error: wasmtime::Error) -> wasmtime::Error {
    match error.downcast_ref::<Trap>() {
        None | Some(Trap::StackOverflow | Trap::OutOfFuel) => error,
        Some(trap) => wasmtime::Error::msg(format!("the guest could not resume: {trap}")),
    }
}

/// The exports of the Python guest.
struct Guest {
    memory: Memory,
    alloc: TypedFunc<u32, u32>,
    free: TypedFunc<(u32, u32), ()>,
    resume: TypedFunc<(u32, u32), i32>,
    exec: TypedFunc<(u32, u32), i64>,
}

impl Guest {
    fn new(instance: &Instance, store: &mut Store<Host>, memory: Memory) -> wasmtime::Result<Self> {
        Ok(Self {
            memory,
            alloc: instance.get_typed_func(&mut *store, "fh_alloc")?,
            free: instance.get_typed_func(&mut *store, "fh_free")?,
            resume: instance.get_typed_func(&mut *store, "fh_resume")?,
            exec: instance.get_typed_func(&mut *store, "fh_exec")?,
        })
    }

    /// Puts a record into guest memory.
    fn give(&self, store: &mut Store<Host>, record: &[u8]) -> wasmtime::Result<(u32, u32)> {
        let len = u32::try_from(record.len())?;
        let at = self.alloc.call(&mut *store, len)?;
        self.memory.write(&mut *store, usize::try_from(at)?, record)?;
        Ok((at, len))
    }

    fn resume(&self, store: &mut Store<Host>, resume: &Resume) -> wasmtime::Result<i32> {
        let record = encode(resume).map_err(|_| wasmtime::Error::msg("resume record"))?;
        let (at, len) = self.give(store, &record)?;
        let accepted = self.resume.call(&mut *store, (at, len))?;
        self.free.call(&mut *store, (at, len))?;
        Ok(accepted)
    }

    fn exec(&self, store: &mut Store<Host>, exec: &Exec) -> wasmtime::Result<ExecResult> {
        let record = encode(exec).map_err(|_| wasmtime::Error::msg("exec record"))?;
        let (at, len) = self.give(store, &record)?;
        let packed = self.exec.call(&mut *store, (at, len))?.cast_unsigned();
        self.free.call(&mut *store, (at, len))?;
        let (at, len) = unpack(packed);
        let most = exec.max_value_bytes.saturating_mul(3).saturating_add(RESULT_ROOM_BYTES);
        if len > most {
            return Err(GuestStop::Crashed("the interpreter's result is too large").into());
        }
        let end = u64::from(at).saturating_add(u64::from(len));
        let range = usize::try_from(at)?..usize::try_from(end)?;
        let result = self
            .memory
            .data(&*store)
            .get(range)
            .and_then(|bytes| decode(bytes).ok())
            .ok_or(GuestStop::Crashed("the interpreter's result is not a record"))?;
        self.free.call(&mut *store, (at, len))?;
        Ok(result)
    }
}

/// `fh_exec` returns address and length in the two halves of an `i64`.
fn unpack(packed: u64) -> (u32, u32) {
    let half = |value: u64| u32::try_from(value & u64::from(u32::MAX)).unwrap_or(0);
    (half(packed >> 32), half(packed))
}

fn classify(
    error: &wasmtime::Error,
    store: &mut Store<Host>,
    stack_pointer: Option<wasmtime::Global>,
) -> Ended {
    if let Some(stop) = error.downcast_ref::<GuestStop>() {
        return match stop {
            GuestStop::Exit(code) => Ended::Exit(*code),
            GuestStop::Cause(cause) => Ended::Kind((*cause).into()),
            GuestStop::Crashed(what) => Ended::Crashed((*what).to_owned()),
            GuestStop::Broker(reason) => Ended::Kind(match reason {
                StopReason::Interrupted => OutcomeKind::Timeout { clock: TimeoutClock::Wall },
                StopReason::HostCallsExhausted => {
                    OutcomeKind::BudgetExceeded { name: "host_calls".to_owned() }
                }
                StopReason::BudgetExceeded { name } => {
                    OutcomeKind::BudgetExceeded { name: (*name).to_owned() }
                }
                StopReason::Fault(reference) => {
                    OutcomeKind::SandboxFault { reference: reference.clone() }
                }
            }),
        };
    }
    let shadow_stack_used_up = stack_pointer.is_some_and(|global| {
        matches!(global.get(&mut *store), Val::I32(pointer) if pointer < SHADOW_STACK_MARGIN)
    });
    let trap = error.downcast_ref::<Trap>();
    Ended::Kind(match trap {
        Some(Trap::StackOverflow) => OutcomeKind::StackExhausted,
        Some(Trap::OutOfFuel) => OutcomeKind::FuelExhausted,
        Some(_) if shadow_stack_used_up => OutcomeKind::StackExhausted,
        // An allocator that is refused memory aborts.
        Some(_) if store.data().limiter.refused => OutcomeKind::MemoryLimit,
        None if store.data().limiter.refused => OutcomeKind::MemoryLimit,
        // Bytecode of the program's own can do that: it is no fault of ours.
        Some(trap) => return Ended::Crashed(trap.to_string()),
        _ => OutcomeKind::SandboxFault { reference: fault::report(&format!("{error:#}")) },
    })
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

fn collect(ended: Ended, store: &mut Store<Host>, session: &str) -> Outcome {
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
    let host = store.data_mut();
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
    outcome
}

/// The record of `fh_resume`.
pub(crate) fn resume_record(
    argv: Vec<String>,
    env: Vec<(String, String)>,
    cwd: String,
    import_path: Vec<String>,
    seed: [u8; 32],
) -> Resume {
    Resume { abi: ABI_VERSION, argv, env, cwd, import_path, seed }
}
