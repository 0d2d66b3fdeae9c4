//! The numbers that end a run.
//!
//! Invariant: every limit has a value; there is no "unlimited".

use std::time::Duration;

/// Limits of one run. The limits on files, output and host calls are those of
/// [`fumehood_host_fns::Limits`].
#[derive(Clone, Debug)]
pub struct Limits {
    /// Wall-clock time of a run, waiting included; `timeout{wall}` at its end.
    pub wall: Duration,
    /// Processor time of the guest's thread; `timeout{cpu}` at its end.
    pub cpu: Duration,
    /// Linear memory in bytes, the interpreter's own included; a growth beyond
    /// it fails, and the run ends with `memory_limit` unless Python handles it.
    pub memory_bytes: u64,
    /// Longest `repr` and JSON value of a cell, in bytes.
    pub value_bytes: u32,
    /// Source text of one run, in bytes; longer is refused.
    pub source_bytes: usize,
    /// JSON inputs of one run, in bytes; longer is refused.
    pub input_bytes: usize,
    /// What the broker counts.
    pub broker: fumehood_host_fns::Limits,
}

/// Smallest memory limit that the interpreter itself fits in, in bytes.
pub const MIN_MEMORY_BYTES: u64 = 64 << 20;
/// Largest memory limit: what a 32-bit linear memory can hold, in bytes.
pub const MAX_MEMORY_BYTES: u64 = 4 << 30;

impl Default for Limits {
    fn default() -> Self {
        Self {
            wall: Duration::from_secs(60),
            cpu: Duration::from_secs(60),
            memory_bytes: 512 << 20,
            value_bytes: 64 << 10,
            source_bytes: 16 << 20,
            input_bytes: 64 << 20,
            broker: fumehood_host_fns::Limits::default(),
        }
    }
}
