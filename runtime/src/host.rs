//! What one store holds: the broker, the stop conditions and the limiter.
//!
//! Invariant: a store belongs to one run or one session; it is thrown away
//! after any trap.

use std::sync::Arc;

use fumehood_host_fns::{Broker, StopReason};
use wasmtime::{Memory, ResourceLimiter};

use crate::control::{Control, StopCause};
use crate::determinism::Metered;

/// The data of a store.
pub(crate) struct Host {
    pub(crate) broker: Broker,
    pub(crate) control: Arc<Control>,
    pub(crate) limiter: Limiter,
    /// Set right after instantiation; a start function sees `None`.
    pub(crate) memory: Option<Memory>,
    /// Longest request of `fumehood.call`, in bytes; longer is not copied.
    pub(crate) max_request: u32,
    /// In deterministic mode.
    pub(crate) metered: Option<Metered>,
}

/// Why guest code was left in the middle.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GuestStop {
    /// `proc_exit`.
    #[error("the guest exited with {0}")]
    Exit(i32),
    /// Deadline, processor limit or cancel.
    #[error("the run was stopped: {0:?}")]
    Cause(StopCause),
    /// What the guest gave back is not what its exports promise.
    #[error("{0}")]
    Crashed(&'static str),
    /// The broker ended the run.
    #[error("the broker stopped the run: {0:?}")]
    Broker(StopReason),
}

/// Bounds linear memory and tables, and remembers a refused growth, so that the
/// allocator's abort that follows is reported as the memory limit it was.
#[derive(Debug)]
pub(crate) struct Limiter {
    max_memory: usize,
    /// Largest size so far, in bytes.
    pub(crate) peak: usize,
    /// Whether the latest growth was refused.
    pub(crate) refused: bool,
    /// Whether a growth within the limit failed, for want of memory of the host.
    pub(crate) host_refused: bool,
}

/// Elements a table may have; the guest's has some thousands and never grows.
pub(crate) const MAX_TABLE_ELEMENTS: usize = 1 << 20;

impl Limiter {
    pub(crate) fn new(max_memory: u64) -> Self {
        Self {
            max_memory: usize::try_from(max_memory).unwrap_or(usize::MAX),
            peak: 0,
            refused: false,
            host_refused: false,
        }
    }
}

impl ResourceLimiter for Limiter {
    fn memory_growing(
        &mut self,
        _current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let allowed = desired <= self.max_memory && maximum.is_none_or(|most| desired <= most);
        self.refused = !allowed;
        if allowed {
            self.peak = self.peak.max(desired);
        }
        Ok(allowed)
    }

    fn memory_grow_failed(&mut self, _error: wasmtime::Error) -> wasmtime::Result<()> {
        // What the limit refuses does not come here.
        self.host_refused = true;
        self.refused = true;
        Ok(())
    }

    fn table_growing(
        &mut self,
        _current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        Ok(desired <= MAX_TABLE_ELEMENTS)
    }

    fn memories(&self) -> usize {
        1
    }

    fn instances(&self) -> usize {
        1
    }
}
