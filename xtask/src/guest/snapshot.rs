//! Runs `fh_init` and keeps the state it leaves as a new module.
//!
//! Invariant: the snapshot is a function of the module alone. Clock and random
//! source are fixed, there is no directory, no environment and no argument.

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use wasmtime::{Config, Engine, Linker, OptLevel, Result, Store};
use wasmtime_wasi::p1::{self, WasiP1Ctx};
use wasmtime_wasi::{HostMonotonicClock, HostWallClock, WasiCtxBuilder};
use wasmtime_wizer::Wizer;

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
    wizer.init_func("fh_init");
    let run = wizer.run(&mut store, module, async |store, module| {
        linker.instantiate_async(store, module).await
    });
    wait(run)
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
