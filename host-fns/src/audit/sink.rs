//! Where audit records go.
//!
//! What: the trait, a bounded sink in memory, and one that passes on to others.
//!
//! Invariant: an effect whose intent a sink did not take does not happen, and
//! no sink is left with an intent for which it gets no outcome.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::audit::record::{AuditRecord, Outcome, Phase};
use fumehood_policies::Verdict;

/// The sink cannot take a record; the effect is then refused. The reason is
/// half a sentence without host detail: the guest may see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the audit takes no record: {0}")]
pub struct AuditUnavailable(pub &'static str);

/// Takes audit records in order.
pub trait AuditSink: Send + Sync {
    /// Takes one record. A sink that took an intent must be able to take its
    /// outcome.
    ///
    /// # Errors
    /// [`AuditUnavailable`] if it cannot; an effect whose intent was not taken
    /// is denied.
    fn record(&self, record: AuditRecord) -> Result<(), AuditUnavailable>;

    /// Promises that up to `sums` records of what is already allowed (streams,
    /// looks) will find room, until as many are given back.
    ///
    /// # Errors
    /// [`AuditUnavailable`] if there is no room; nothing is held then.
    fn hold_room(&self, sums: u32) -> Result<(), AuditUnavailable> {
        let _ = sums;
        Ok(())
    }

    /// Gives room back that [`AuditSink::hold_room`] held.
    fn give_back_room(&self, sums: u32) {
        let _ = sums;
    }

    /// Takes no more records and makes durable what was taken. Again: nothing.
    ///
    /// # Errors
    /// [`AuditUnavailable`] if what was taken may not all be kept.
    fn close(&self) -> Result<(), AuditUnavailable> {
        Ok(())
    }
}

/// The numbers of a session's records. Cloning shares them, so that the brokers
/// of one session count on, also if they work at the same time.
#[derive(Clone, Debug, Default)]
pub struct AuditNumbers(Arc<Numbers>);

#[derive(Debug, Default)]
struct Numbers {
    sequence: Mutex<u64>,
    calls: AtomicU64,
}

impl AuditNumbers {
    /// The number of a new request.
    pub(crate) fn next_call(&self) -> u64 {
        self.0.calls.fetch_add(1, Ordering::Relaxed).saturating_add(1)
    }

    /// Gives the next record its number, and nobody else one before it is
    /// taken.
    pub(crate) fn in_order<T>(&self, take: impl FnOnce(u64) -> T) -> T {
        let mut sequence = self.0.sequence.lock().unwrap_or_else(PoisonError::into_inner);
        *sequence = sequence.saturating_add(1);
        take(*sequence)
    }
}

/// Keeps the last records in memory and counts those it let go.
#[derive(Debug)]
pub struct MemorySink {
    capacity: usize,
    ring: Mutex<Ring>,
}

#[derive(Debug, Default)]
struct Ring {
    records: VecDeque<AuditRecord>,
    dropped: u64,
}

impl MemorySink {
    /// Records kept by default.
    pub const DEFAULT_CAPACITY: usize = 10_000;

    /// Keeps at most `capacity` records.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self { capacity: capacity.max(1), ring: Mutex::default() }
    }

    /// The records that are still there, oldest first.
    #[must_use]
    pub fn records(&self) -> Vec<AuditRecord> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner).records.iter().cloned().collect()
    }

    /// How many records were let go.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner).dropped
    }
}

impl Default for MemorySink {
    fn default() -> Self {
        Self::new(Self::DEFAULT_CAPACITY)
    }
}

impl AuditSink for MemorySink {
    fn record(&self, record: AuditRecord) -> Result<(), AuditUnavailable> {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        if ring.records.len() >= self.capacity {
            ring.records.pop_front();
            ring.dropped = ring.dropped.saturating_add(1);
        }
        ring.records.push_back(record);
        Ok(())
    }
}

/// Passes every record on to several sinks.
pub struct FanOut {
    sinks: Vec<Arc<dyn AuditSink>>,
}

impl std::fmt::Debug for FanOut {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("FanOut").field("sinks", &self.sinks.len()).finish()
    }
}

impl FanOut {
    /// All of these take every record, in this order.
    #[must_use]
    pub fn new(sinks: Vec<Arc<dyn AuditSink>>) -> Self {
        Self { sinks }
    }
}

impl AuditSink for FanOut {
    fn record(&self, record: AuditRecord) -> Result<(), AuditUnavailable> {
        let needs_all = record.phase == Phase::Intent && record.verdict == Verdict::Allow;
        let mut failed = None;
        for (at, sink) in self.sinks.iter().enumerate() {
            let Err(error) = sink.record(record.clone()) else { continue };
            failed = failed.or(Some(error));
            if needs_all {
                let mut undone = record;
                undone.phase = Phase::Outcome(Outcome::NotStarted);
                for earlier in self.sinks.iter().take(at) {
                    // It took the intent, so it has room for the outcome.
                    let _ = earlier.record(undone.clone());
                }
                return Err(error);
            }
        }
        failed.map_or(Ok(()), Err)
    }

    fn hold_room(&self, sums: u32) -> Result<(), AuditUnavailable> {
        for (at, sink) in self.sinks.iter().enumerate() {
            if let Err(error) = sink.hold_room(sums) {
                self.sinks.iter().take(at).for_each(|earlier| earlier.give_back_room(sums));
                return Err(error);
            }
        }
        Ok(())
    }

    fn give_back_room(&self, sums: u32) {
        self.sinks.iter().for_each(|sink| sink.give_back_room(sums));
    }

    fn close(&self) -> Result<(), AuditUnavailable> {
        // Every one is closed, also after one that failed.
        let mut failed = None;
        for sink in &self.sinks {
            failed = failed.or(sink.close().err());
        }
        failed.map_or(Ok(()), Err)
    }
}
