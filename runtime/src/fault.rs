//! References that tie a `sandbox_fault` to its log entry.
//!
//! Invariant: what went wrong on the host goes to the log, never to the guest
//! or into a result; they carry the reference alone.

use std::sync::atomic::{AtomicU64, Ordering};

static NEXT: AtomicU64 = AtomicU64::new(1);

/// Logs `what` and returns the reference under which it was logged.
pub(crate) fn report(what: &str) -> String {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let reference = format!("fault-{}-{number}", rustix::process::getpid().as_raw_nonzero());
    tracing::error!(reference, what, "sandbox fault");
    reference
}
