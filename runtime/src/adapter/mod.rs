//! The guest's imports: `wasi_snapshot_preview1` and `fumehood.call`, between
//! guest memory and the broker.
//!
//! Invariant: an import only decodes its arguments into one
//! [`HostCall`](fumehood_host_fns::HostCall), hands that to the broker, and
//! writes the answer back; it decides nothing and touches nothing of the host.
//! Every length from the guest is clamped before it sizes anything, every
//! pointer is checked against the memory's size.

/// Defines one WASI function: its name, and a body over guest memory, the host
/// and the guest's arguments that says which error number the guest gets.
macro_rules! import {
    ($linker:expr, $name:expr,
     |$memory:pat_param, $host:pat_param $(, $argument:ident: $kind:ty)*| $body:block) => {
        $linker.func_wrap(
            $crate::adapter::WASI,
            $name,
            move |caller: ::wasmtime::Caller<'_, $crate::host::Host> $(, $argument: $kind)*| {
                $crate::adapter::respond(caller, |$memory, $host| $body)
            },
        )?
    };
}

mod descriptors;
mod memory;
mod paths;
mod process;
mod recorded;

use fumehood_host_fns::{Errno, HostAnswer, HostCall, Refusal};
use wasmtime::{Caller, Linker};

use crate::determinism;
use crate::host::{GuestStop, Host};
use recorded::dispatch;

const WASI: &str = "wasi_snapshot_preview1";

/// Adds every import that a guest may name; a module that names another is
/// refused when it is linked.
///
/// # Errors
/// When a name is defined twice.
pub(crate) fn add_to_linker(linker: &mut Linker<Host>) -> wasmtime::Result<()> {
    descriptors::add(linker)?;
    paths::add(linker)?;
    process::add(linker)
}

/// The result of an import body: an error number for the guest, or a stop.
type Answer<T = ()> = Result<T, Refusal>;

/// Runs an import body over guest memory and turns its result into the error
/// number that WASI functions return.
fn respond(
    mut caller: Caller<'_, Host>,
    body: impl FnOnce(&mut [u8], &mut Host) -> Answer,
) -> wasmtime::Result<i32> {
    match with_memory(&mut caller, body) {
        Ok(()) => Ok(0),
        Err(Refusal::Errno(errno)) => Ok(i32::from(errno.raw())),
        Err(Refusal::Stop(reason)) => Err(stop(caller.data(), reason)),
    }
}

fn with_memory<T>(
    caller: &mut Caller<'_, Host>,
    body: impl FnOnce(&mut [u8], &mut Host) -> Answer<T>,
) -> Answer<T> {
    determinism::note_work(&*caller);
    let _import = tracing::trace_span!("import").entered();
    match caller.data().memory {
        Some(memory) => {
            let (bytes, host) = memory.data_and_store_mut(caller);
            body(bytes, host)
        }
        // A start function runs before the memory is known.
        None => body(&mut [], caller.data_mut()),
    }
}

/// The error that leaves guest code: the run's own stop condition where that
/// is why a wait was interrupted, else the broker's reason.
fn stop(host: &Host, reason: fumehood_host_fns::StopReason) -> wasmtime::Error {
    match (reason, host.control.stop_cause()) {
        (fumehood_host_fns::StopReason::Interrupted, Some(cause)) => GuestStop::Cause(cause).into(),
        (reason, _) => GuestStop::Broker(reason).into(),
    }
}

/// One call through the broker. A panic in a host function ends this run as a
/// fault; the process lives and the guest sees nothing of it.
fn carry_out(host: &mut Host, call: HostCall<'_>) -> Answer<HostAnswer> {
    let broker = std::panic::AssertUnwindSafe(|| host.broker.dispatch(call));
    match std::panic::catch_unwind(broker) {
        Ok(answer) => answer,
        Err(_) => Err(Refusal::Stop(fumehood_host_fns::StopReason::Fault(crate::fault::report(
            "a host function panicked",
        )))),
    }
}

/// An answer of another shape than the call's is a bug of the host.
fn unexpected() -> Refusal {
    Refusal::Stop(fumehood_host_fns::StopReason::Fault(crate::fault::report(
        "a host call got an answer of another shape",
    )))
}

fn errno(errno: Errno) -> Refusal {
    Refusal::Errno(errno)
}
