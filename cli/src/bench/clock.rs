//! The clock that the benches measure with.
#![allow(clippy::disallowed_methods, reason = "this module is the clock adapter of the benches")]

use std::time::{Duration, Instant};

/// A running measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stopwatch(Instant);

impl Stopwatch {
    pub(super) fn start() -> Self {
        Self(Instant::now())
    }

    pub(super) fn elapsed(self) -> Duration {
        self.0.elapsed()
    }
}
