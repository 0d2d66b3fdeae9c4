//! The exports of the Python guest.
//!
//! Invariant: what the guest returns is measured before it is copied and
//! decoded without trust.

use fumehood_guest_abi::{Exec, ExecResult, Resume, decode, encode};
use wasmtime::{Instance, Memory, Store, Trap, TypedFunc};

use crate::host::{GuestStop, Host};

/// Room in a result record beyond the value limit: message and traceback.
pub(crate) const RESULT_ROOM_BYTES: u32 = 16 << 20;

/// The guest's functions.
pub(crate) struct Guest {
    memory: Memory,
    alloc: TypedFunc<u32, u32>,
    free: TypedFunc<(u32, u32), ()>,
    resume: TypedFunc<(u32, u32), i32>,
    reseed: TypedFunc<(u32, u32), i32>,
    exec: TypedFunc<(u32, u32), i64>,
}

impl Guest {
    pub(crate) fn new(
        instance: &Instance,
        store: &mut Store<Host>,
        memory: Memory,
    ) -> wasmtime::Result<Self> {
        Ok(Self {
            memory,
            alloc: instance.get_typed_func(&mut *store, "fh_alloc")?,
            free: instance.get_typed_func(&mut *store, "fh_free")?,
            resume: instance.get_typed_func(&mut *store, "fh_resume")?,
            reseed: instance.get_typed_func(&mut *store, "fh_reseed")?,
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

    /// Calls a function that accepts a record or says why not.
    fn tell(
        &self,
        store: &mut Store<Host>,
        function: &TypedFunc<(u32, u32), i32>,
        record: &[u8],
    ) -> wasmtime::Result<()> {
        let (at, len) = self.give(store, record)?;
        let accepted = function.call(&mut *store, (at, len))?;
        self.free.call(&mut *store, (at, len))?;
        match accepted {
            0 => Ok(()),
            code => Err(wasmtime::Error::msg(format!("the guest refused a record ({code})"))),
        }
    }

    /// `fh_resume`.
    pub(crate) fn resume(&self, store: &mut Store<Host>, resume: &Resume) -> wasmtime::Result<()> {
        let record = encode(resume).map_err(|_| wasmtime::Error::msg("resume record"))?;
        self.tell(store, &self.resume, &record).map_err(no_program_yet)
    }

    /// `fh_reseed`.
    pub(crate) fn reseed(&self, store: &mut Store<Host>, seed: &[u8; 32]) -> wasmtime::Result<()> {
        self.tell(store, &self.reseed, seed)
    }

    /// `fh_exec`.
    pub(crate) fn exec(
        &self,
        store: &mut Store<Host>,
        exec: &Exec,
    ) -> wasmtime::Result<ExecResult> {
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

/// A guest that breaks before it has seen a program is a fault of ours.
fn no_program_yet(error: wasmtime::Error) -> wasmtime::Error {
    match error.downcast_ref::<Trap>() {
        None | Some(Trap::StackOverflow | Trap::OutOfFuel) => error,
        Some(trap) => wasmtime::Error::msg(format!("the guest could not resume: {trap}")),
    }
}

/// `fh_exec` returns address and length in the two halves of an `i64`.
fn unpack(packed: u64) -> (u32, u32) {
    let half = |value: u64| u32::try_from(value & u64::from(u32::MAX)).unwrap_or(0);
    (half(packed >> 32), half(packed))
}
