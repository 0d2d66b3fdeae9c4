//! A sink that does not slow the guest: records wait in a bounded queue for a
//! thread that passes them on.
//!
//! Why: a sink that sends records over a network must not hold a run up, and
//! must not make memory grow either.
//!
//! Invariant: at most `capacity` records wait. An intent takes the room of its
//! outcome with it; when there is none within the patience, it is refused. A
//! record that was taken is passed on, unless the inner sink refuses it, and
//! then no further intent is taken. The inner sink holds room for sums until
//! those that were taken before the room was given back are passed on.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use fumehood_policies::Verdict;

use crate::audit::record::{AuditRecord, Phase};
use crate::audit::sink::{AuditSink, AuditUnavailable};

const SLOW: AuditUnavailable = AuditUnavailable("it is too slow");
const CLOSED: AuditUnavailable = AuditUnavailable("it is closed");

/// Passes records on from a thread of its own.
pub struct QueuedSink {
    shared: Arc<Shared>,
    patience: Duration,
    worker: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    inner: Arc<dyn AuditSink>,
    capacity: usize,
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    records: VecDeque<AuditRecord>,
    /// Records that were ever taken, and passed on.
    taken: u64,
    passed: u64,
    /// Room to give back to the inner sink once so many are passed on.
    give_back: VecDeque<(u64, u32)>,
    /// Calls whose outcome has its room.
    promised: BTreeSet<u64>,
    held: usize,
    failed: Option<AuditUnavailable>,
    closed: bool,
}

impl Queue {
    fn room(&self, capacity: usize) -> usize {
        capacity.saturating_sub(self.records.len() + self.promised.len() + self.held)
    }

    /// Room that the inner sink need not hold any longer.
    fn due(&mut self) -> u32 {
        let mut due = 0_u32;
        while let Some((_, sums)) = self.give_back.front().filter(|(at, _)| *at <= self.passed) {
            due = due.saturating_add(*sums);
            self.give_back.pop_front();
        }
        due
    }
}

impl std::fmt::Debug for QueuedSink {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("QueuedSink")
            .field("capacity", &self.shared.capacity)
            .finish_non_exhaustive()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn give_back(&self, queue: &mut Queue) {
        let due = queue.due();
        if due > 0 {
            self.inner.give_back_room(due);
        }
    }

    fn pass_on(&self) {
        let mut queue = self.lock();
        loop {
            if let Some(record) = queue.records.pop_front() {
                drop(queue);
                let taken = self.inner.record(record);
                queue = self.lock();
                queue.failed = queue.failed.or(taken.err());
                queue.passed = queue.passed.saturating_add(1);
                self.give_back(&mut queue);
                self.changed.notify_all();
            } else if queue.closed {
                return;
            } else {
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

impl QueuedSink {
    /// At most `capacity` records wait for `inner`; an intent waits at most
    /// `patience` for room.
    ///
    /// # Errors
    /// The system's reason if there is no thread.
    pub fn new(
        inner: Arc<dyn AuditSink>,
        capacity: usize,
        patience: Duration,
    ) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            inner,
            capacity: capacity.max(2),
            queue: Mutex::default(),
            changed: Condvar::new(),
        });
        let of_thread = Arc::clone(&shared);
        let worker = std::thread::Builder::new()
            .name("fumehood-audit".to_owned())
            .spawn(move || of_thread.pass_on())?;
        Ok(Self { shared, patience, worker: Mutex::new(Some(worker)) })
    }

    /// Records that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.shared.lock().records.len()
    }
}

impl AuditSink for QueuedSink {
    fn record(&self, record: AuditRecord) -> Result<(), AuditUnavailable> {
        let begins = record.phase == Phase::Intent && record.verdict == Verdict::Allow;
        let mut queue = self.shared.lock();
        if queue.closed {
            return Err(CLOSED);
        }
        match record.phase {
            Phase::Outcome(_) => {
                queue.promised.remove(&record.call);
            }
            // Their room is held.
            Phase::Sum { .. } if queue.held > 0 => {}
            _ => {
                if let Some(why) = queue.failed {
                    return Err(why);
                }
                let needed = if begins { 2 } else { 1 };
                let capacity = self.shared.capacity;
                let waited =
                    self.shared.changed.wait_timeout_while(queue, self.patience, |queue| {
                        queue.room(capacity) < needed && !queue.closed && queue.failed.is_none()
                    });
                queue = waited.unwrap_or_else(PoisonError::into_inner).0;
                if queue.closed || queue.room(capacity) < needed {
                    return Err(queue.failed.unwrap_or(SLOW));
                }
                if begins {
                    queue.promised.insert(record.call);
                }
            }
        }
        queue.taken = queue.taken.saturating_add(1);
        queue.records.push_back(record);
        self.shared.changed.notify_all();
        Ok(())
    }

    fn hold_room(&self, sums: u32) -> Result<(), AuditUnavailable> {
        let sums = usize::try_from(sums).unwrap_or(usize::MAX);
        let mut queue = self.shared.lock();
        if queue.closed {
            return Err(CLOSED);
        }
        if queue.held.saturating_add(sums) > self.shared.capacity.saturating_sub(2) {
            return Err(AuditUnavailable("its queue is too short"));
        }
        self.shared.inner.hold_room(u32::try_from(sums).unwrap_or(u32::MAX))?;
        queue.held = queue.held.saturating_add(sums);
        Ok(())
    }

    fn give_back_room(&self, sums: u32) {
        let mut queue = self.shared.lock();
        queue.held = queue.held.saturating_sub(usize::try_from(sums).unwrap_or(usize::MAX));
        let taken = queue.taken;
        // At most one entry for each record that waits.
        let last = queue.give_back.back_mut().filter(|(at, _)| *at == taken);
        if let Some((_, more)) = last {
            *more = more.saturating_add(sums);
        } else {
            queue.give_back.push_back((taken, sums));
        }
        self.shared.give_back(&mut queue);
        self.shared.changed.notify_all();
    }

    /// Waits until everything was passed on.
    fn close(&self) -> Result<(), AuditUnavailable> {
        self.shared.lock().closed = true;
        self.shared.changed.notify_all();
        let worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner).take();
        let ended = worker.is_none_or(|worker| worker.join().is_ok());
        let closed = self.shared.inner.close();
        let failed = self.shared.lock().failed;
        failed.map_or(Ok(()), Err).and(closed).and(if ended { Ok(()) } else { Err(CLOSED) })
    }
}

impl Drop for QueuedSink {
    fn drop(&mut self) {
        let _ = self.close();
    }
}
