//! One event for every execution.
//!
//! Why: an embedder counts, alerts and charges by it without looking into
//! results.
//!
//! Invariant: every execution that was started gives exactly one event, also
//! one that was refused, timed out or was given up by its caller.

use fumehood_host_fns::Denial;
use serde::Serialize;

use crate::outcome::{Outcome, OutcomeKind};

/// What one execution was. The first six fields have the names that other
/// runtimes use.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExecutionEvent {
    /// What was executed: `code`, or `command` for a command line.
    pub kind: &'static str,
    /// The tier that ran it.
    pub tier: &'static str,
    /// The program's own code, or that of its outcome.
    pub exit_code: i32,
    /// Whether a time limit fired.
    pub timed_out: bool,
    /// Wall-clock milliseconds.
    pub execution_time_ms: f64,
    /// What was denied, one text each, in order.
    pub denials: Vec<String>,
    /// The kind of its outcome.
    pub outcome: &'static str,
    /// The session.
    pub session: String,
    /// Processor milliseconds.
    pub cpu_ms: f64,
    /// Largest linear memory, in bytes.
    pub peak_memory_bytes: u64,
    /// Calls of the guest to its host.
    pub host_calls: u64,
}

impl ExecutionEvent {
    /// The event of an outcome.
    #[must_use]
    pub fn of(outcome: &Outcome) -> Self {
        Self {
            kind: "code",
            tier: outcome.tier,
            exit_code: outcome.exit_code,
            timed_out: matches!(outcome.kind, OutcomeKind::Timeout { .. }),
            execution_time_ms: outcome.usage.wall_ms,
            denials: outcome.denials.iter().map(shown).collect(),
            outcome: outcome.kind.as_str(),
            session: outcome.session.clone(),
            cpu_ms: outcome.usage.cpu_ms,
            peak_memory_bytes: outcome.usage.peak_memory_bytes,
            host_calls: outcome.usage.host_calls,
        }
    }
}

fn shown(denial: &Denial) -> String {
    let Denial { operation, target, rule, .. } = denial;
    format!("{operation} {target} (rule {rule})")
}

/// Hears of every execution of a sandbox.
pub trait Observer: Send + Sync {
    /// Called once an execution has its outcome and before the caller has it,
    /// on a thread of the engine: a slow observer delays this answer and what
    /// the thread would do next, and no other execution's limits. One that
    /// panics is not heard again for this execution.
    fn executed(&self, event: &ExecutionEvent);
}

impl<F: Fn(&ExecutionEvent) + Send + Sync> Observer for F {
    fn executed(&self, event: &ExecutionEvent) {
        self(event);
    }
}
