//! Started calls: what is going on, when its time is over, and what has ended.
//!
//! Invariant: a call is here from its start until its outcome is written.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::environment::Waiter;
use crate::limits::Limits;
use crate::pipeline::Suspended;
use crate::tools::{AbortOnDrop, Completions, Ended, Executor, Tool, ToolSet};

/// A call that was started.
pub(super) struct Running {
    pub(super) suspended: Suspended,
    pub(super) tool: Arc<Tool>,
    pub(super) argument_bytes: u64,
    pub(super) deadline: Duration,
    /// Held to be dropped: that gives the call up.
    pub(super) handle: Option<Box<dyn AbortOnDrop>>,
}

/// The tools of a broker and their started calls.
pub(in crate::broker) struct Tools {
    pub(super) set: Arc<ToolSet>,
    pub(super) executor: Option<Arc<dyn Executor>>,
    pub(super) completions: Arc<Completions>,
    pub(super) running: BTreeMap<u64, Running>,
    /// When each running call times out, on the clock of `completions`; those
    /// that were stopped are left out.
    deadlines: BTreeSet<(Duration, u64)>,
    next: u64,
    /// Started calls end in the order in which they were started.
    in_order: bool,
}

impl Tools {
    pub(in crate::broker) fn new(
        set: Arc<ToolSet>,
        executor: Option<Arc<dyn Executor>>,
        waiter: &dyn Waiter,
        limits: &Limits,
        in_order: bool,
    ) -> Self {
        Self {
            set,
            executor,
            completions: Arc::new(Completions::new(waiter.waker(), limits.tool_waiting_bytes)),
            running: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            next: 0,
            in_order,
        }
    }

    pub(in crate::broker) fn set(&self) -> &ToolSet {
        &self.set
    }

    /// Whether started calls end for the guest in the order of their start.
    pub(in crate::broker) fn are_in_order(&self) -> bool {
        self.in_order
    }

    /// A number that no started call has.
    pub(in crate::broker) fn next_id(&mut self) -> u64 {
        self.next = self.next.saturating_add(1);
        self.next
    }

    /// Sets bytes aside that are held for the guest; whether they fit.
    pub(in crate::broker) fn charge(&self, bytes: u64) -> bool {
        self.completions.charge(bytes)
    }

    /// Gives back what [`Tools::charge`] set aside.
    pub(in crate::broker) fn release(&self, bytes: u64) {
        self.completions.release(bytes);
    }

    pub(super) fn insert(&mut self, id: u64, running: Running) {
        self.deadlines.insert((running.deadline, id));
        self.running.insert(id, running);
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<Running> {
        let running = self.running.remove(&id)?;
        self.deadlines.remove(&(running.deadline, id));
        self.completions.release(running.argument_bytes);
        Some(running)
    }

    /// Stops the calls whose time is over; the guest is told when it waits.
    pub(in crate::broker) fn stop_overdue(&mut self) {
        while let Some((deadline, id)) = self.deadlines.first().copied()
            && deadline <= self.completions.now()
        {
            self.deadlines.pop_first();
            self.completions.push(id, Ended::TimedOut);
            if let Some(running) = self.running.get_mut(&id) {
                drop(running.handle.take());
            }
        }
    }

    /// How long until the next running call times out.
    pub(super) fn next_timeout(&self) -> Option<Duration> {
        let first = if self.in_order {
            self.running.values().next().map(|running| running.deadline)
        } else {
            self.deadlines.first().map(|(at, _)| *at)
        };
        first.map(|at| at.saturating_sub(self.completions.now()))
    }

    /// The oldest running call, if it has ended.
    pub(super) fn oldest_ended(&mut self) -> Option<(u64, Running, Ended)> {
        let id = *self.running.keys().next()?;
        let ended = self.completions.take(id)?;
        self.remove(id).map(|running| (id, running, ended))
    }

    /// A running call that has ended or timed out; one whose value has more
    /// than `room` bytes waits.
    pub(super) fn next_ended(&mut self, room: u64) -> Option<(u64, Running, Ended)> {
        self.stop_overdue();
        if self.in_order {
            return self.oldest_ended();
        }
        while let Some((id, ended)) = self.completions.take_first(room) {
            // A call that was given up may still leave its end.
            if let Some(running) = self.remove(id) {
                return Some((id, running, ended));
            }
        }
        None
    }
}
