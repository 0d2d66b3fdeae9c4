//! The host's own clocks: deadlines and usage are measured with these, never
//! with what the guest sees.
//!
//! Invariant: only monotonic clocks; a jump of the wall clock ends no run.
#![allow(clippy::disallowed_methods, reason = "this module is the clock adapter")]

use std::time::{Duration, Instant};

/// Now, on the monotonic clock.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Processor time that the calling thread has used.
pub(crate) fn thread_cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanoseconds = u32::try_from(time.tv_nsec).unwrap_or(0);
    Duration::new(seconds, nanoseconds)
}
