//! How much a real process has written into a workspace while it runs.
//!
//! Invariant: looking takes at most one part in [`SHARE`] of the time, however
//! much there is to look through; so a command can go beyond the quota by what
//! it writes between two looks, and is ended then. A whole copy of a project has
//! no quota but that of its file system.

use std::time::Duration;

use crate::environment::Stopwatch;
use crate::native::{NativeMount, NativeOverlay};

/// Least time between two looks.
const INTERVAL: Duration = Duration::from_millis(250);
/// Looks take at most this part of the time.
const SHARE: u32 = 20;

/// The workspaces of a command that runs.
pub(super) struct Growth<'c> {
    overlays: Vec<&'c NativeOverlay>,
    /// Since the start of the command.
    next: Duration,
}

impl<'c> Growth<'c> {
    pub(super) fn of(mounts: &'c [NativeMount]) -> Self {
        let overlays = mounts.iter().filter_map(|mount| mount.overlay.as_deref()).collect();
        Self { overlays, next: INTERVAL }
    }

    /// How long nothing has to be looked at; without a workspace for good.
    pub(super) fn until_next_look(&self, now: Duration) -> Duration {
        if self.overlays.is_empty() { Duration::MAX } else { self.next.saturating_sub(now) }
    }

    /// Looks if it is time to, and says whether a workspace is beyond its quota.
    pub(super) fn is_too_much(&mut self, watch: &Stopwatch) -> bool {
        let start = watch.elapsed();
        if start < self.next || self.overlays.is_empty() {
            return false;
        }
        let full = self.overlays.iter().any(|overlay| overlay.is_full());
        let took = watch.elapsed().saturating_sub(start);
        self.next = watch.elapsed().saturating_add(took.saturating_mul(SHARE).max(INTERVAL));
        full
    }
}
