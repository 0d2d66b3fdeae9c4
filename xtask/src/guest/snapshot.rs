//! Runs `fh_init` and keeps the state it leaves as a new module.
//!
//! Invariant: the snapshot is a function of the module alone. Clock and random
//! source are fixed, there is no directory, no environment and no argument.

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use wasmparser::ValType;
use wasmtime::{Config, Engine, Instance, Linker, Module, OptLevel, Result, Store, Val};
use wasmtime_wasi::p1::{self, WasiP1Ctx};
use wasmtime_wasi::{HostMonotonicClock, HostWallClock, WasiCtxBuilder};
use wasmtime_wizer::{InstanceState, SnapshotVal, Wizer};

/// The export that builds the state.
const INITIALISE: &str = "fh_init";
/// The moment every snapshot is taken at, in seconds since 1970.
const MOMENT: Duration = Duration::from_secs(1_700_000_000);
/// Answers `fumehood.call` before there is a host: the operation failed.
const NOT_YET: i64 = -6;
/// The interpreter is built with deep native recursion.
const STACK_BYTES: usize = 16 << 20;

struct StoppedClock;

impl HostWallClock for StoppedClock {
    fn resolution(&self) -> Duration {
        Duration::from_micros(1)
    }
    fn now(&self) -> Duration {
        MOMENT
    }
}

impl HostMonotonicClock for StoppedClock {
    fn resolution(&self) -> u64 {
        1_000
    }
    fn now(&self) -> u64 {
        0
    }
}

/// Returns `module` in the state that its `fh_init` leaves.
///
/// # Errors
/// The module does not compile, imports something else than WASI and
/// `fumehood.call`, or its `fh_init` traps.
pub(crate) fn initialise(module: &[u8]) -> Result<Vec<u8>> {
    let mut config = Config::new();
    // The module runs once: compiling it well would take longer.
    config.cranelift_opt_level(OptLevel::None);
    config.max_wasm_stack(STACK_BYTES);
    config.async_stack_size(STACK_BYTES * 2);
    let engine = Engine::new(&config)?;
    let mut linker: Linker<WasiP1Ctx> = Linker::new(&engine);
    p1::add_to_linker_sync(&mut linker, |context| context)?;
    linker.func_wrap("fumehood", "call", |_: u32, _: u32, _: u32, _: u32, _: u32| NOT_YET)?;
    let seed = wasmtime_wasi::random::Deterministic::new((0..=250).collect());
    let context = WasiCtxBuilder::new()
        .inherit_stdout()
        .inherit_stderr()
        .secure_random(seed)
        .wall_clock(StoppedClock)
        .monotonic_clock(StoppedClock)
        .build_p1();
    let mut store = Store::new(&engine, context);
    let mut wizer = Wizer::new();
    wizer.init_func(INITIALISE);
    let (parsed, instrumented) = wizer.instrument(module)?;
    let instance = linker.instantiate(&mut store, &Module::new(&engine, &instrumented)?)?;
    instance.get_typed_func::<(), ()>(&mut store, INITIALISE)?.call(&mut store, ())?;
    wait(wizer.snapshot(&parsed, &mut Initialised { store, instance }))
}

/// The instance whose state becomes the snapshot.
struct Initialised {
    store: Store<WasiP1Ctx>,
    instance: Instance,
}

impl InstanceState for Initialised {
    async fn global_get(&mut self, name: &str, _: ValType) -> SnapshotVal {
        let global = self.instance.get_global(&mut self.store, name);
        match global.map(|global| global.get(&mut self.store)) {
            Some(Val::I32(value)) => SnapshotVal::I32(value),
            Some(Val::I64(value)) => SnapshotVal::I64(value),
            Some(Val::F32(value)) => SnapshotVal::F32(value),
            Some(Val::F64(value)) => SnapshotVal::F64(value),
            Some(Val::V128(value)) => SnapshotVal::V128(value.as_u128()),
            // Wizer asks for the number globals that it exported itself.
            other => unreachable!("global {name} is {other:?}"),
        }
    }

    async fn memory_contents(&mut self, name: &str, contents: impl FnOnce(&[u8]) + Send) {
        match self.instance.get_memory(&mut self.store, name) {
            Some(memory) => contents(memory.data(&self.store)),
            // Wizer asks for the memory that it exported itself.
            None => unreachable!("memory {name} is missing"),
        }
    }
}

/// Drives a future that never has to wait for anything outside.
fn wait<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
    }
}
