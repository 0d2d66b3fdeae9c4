//! Clocks, randomness and waiting.
//!
//! Invariant: what a guest sees of time is whole microseconds. A wait is
//! always through the waiter, so it can be interrupted; between two pieces of a
//! long fill it is asked, too.

use std::time::Duration;

use crate::audit::Target;
use crate::broker::{Answer, Broker, Refusal, StopReason};
use crate::call::{Event, HostAnswer, MAX_SUBSCRIPTIONS, MAX_TRANSFER_BYTES, Subscription};
use crate::descriptors::{Descriptor, Handle, rights};
use crate::environment::WaitResult;
use crate::errno::Errno;
use crate::meter::Budget;

const RESOLUTION_NS: u64 = 1_000;

const CLOCK: u8 = 0;
const READ: u8 = 1;
const WRITE: u8 = 2;

/// Cuts to the granularity the guest may see.
pub(super) fn coarse(nanoseconds: u64) -> u64 {
    nanoseconds.saturating_sub(nanoseconds % RESOLUTION_NS)
}

impl Broker {
    pub(super) fn clock_resolution(&mut self, clock: u32) -> Answer {
        self.clock_now(clock)?;
        Ok(HostAnswer::Time(RESOLUTION_NS))
    }

    pub(super) fn clock_time(&mut self, clock: u32) -> Answer {
        let now = self.clock_now(clock)?;
        self.totals.clock.count(8, 0);
        Ok(HostAnswer::Time(now))
    }

    /// Clock 0 is the wall clock; 1 to 3 (monotonic and the two CPU clocks)
    /// count from the start of the session.
    fn clock_now(&self, clock: u32) -> Result<u64, Errno> {
        match clock {
            0 => Ok(coarse(self.clock.wall_ns())),
            1..=3 => Ok(coarse(self.since_start(self.clock.monotonic_ns()))),
            _ => Err(Errno::Inval),
        }
    }

    /// What the guest's monotonic clock would show, without a reading.
    pub(super) fn elapsed_ns(&self) -> u64 {
        self.since_start(self.clock.peek_monotonic_ns())
    }

    fn since_start(&self, monotonic_ns: u64) -> u64 {
        monotonic_ns.saturating_sub(self.started_ns).saturating_add(self.ahead_ns)
    }

    pub(super) fn random(&mut self, into: &mut [u8]) -> Answer {
        let length = into.len() as u64;
        if let Err(exhausted) = self.pipeline.ledger.meter.take(Budget::RandomBytes, length) {
            self.pipeline.ledger.deny_budget("random.read", &Target::Name("random"), exhausted);
            return Err(Refusal::Stop(StopReason::BudgetExceeded { name: exhausted.0.name() }));
        }
        let mut filled = 0_u64;
        let mut result = Ok(HostAnswer::Unit);
        for piece in into.chunks_mut(MAX_TRANSFER_BYTES) {
            // A short one costs no look.
            if filled != 0
                && let Err(stopped) = self.yield_now()
            {
                result = Err(stopped);
                break;
            }
            if self.random.fill(piece).is_err() {
                result = Err(Refusal::Stop(StopReason::Fault("random_source".to_owned())));
                break;
            }
            filled = filled.saturating_add(piece.len() as u64);
        }
        if result.is_ok() || filled != 0 {
            self.totals.random.count(filled, 0);
        }
        self.usage.bytes_in = self.usage.bytes_in.saturating_add(filled);
        result
    }

    /// Gives an interruption its chance.
    pub(super) fn yield_now(&mut self) -> Answer {
        match self.wait_for(Duration::ZERO) {
            WaitResult::Elapsed => Ok(HostAnswer::Unit),
            WaitResult::Interrupted => Err(Refusal::Stop(StopReason::Interrupted)),
        }
    }

    /// Waiting is no time of the broker's own.
    pub(super) fn wait_for(&self, time: Duration) -> WaitResult {
        let _executing = crate::fs::executing();
        self.waiter.wait(time)
    }

    /// The same for what another thread wakes.
    pub(super) fn park(&self, time: Duration) -> crate::environment::Wake {
        let _executing = crate::fs::executing();
        self.waiter.park(time)
    }

    /// Answers with every subscription that is ready; if none is, waits for
    /// the earliest timer. Descriptors are always ready.
    pub(super) fn poll(&mut self, subscriptions: &[Subscription]) -> Answer {
        if subscriptions.is_empty() || subscriptions.len() > MAX_SUBSCRIPTIONS {
            return Err(Errno::Inval.into());
        }
        let count = subscriptions.len() as u64;
        self.usage.host_calls = self.usage.host_calls.saturating_add(count);
        if self.pipeline.ledger.meter.take(Budget::HostCalls, count).is_err() {
            return Err(Refusal::Stop(StopReason::HostCallsExhausted));
        }
        self.totals.wait.count(0, 0);
        let mut events = Vec::new();
        let mut timers = Vec::new();
        for subscription in subscriptions {
            match *subscription {
                Subscription::Clock { userdata, clock, timeout_ns, absolute } => {
                    match self.clock_now(clock) {
                        Ok(now) if absolute => {
                            timers.push((userdata, timeout_ns.saturating_sub(now)))
                        }
                        Ok(_) => timers.push((userdata, timeout_ns)),
                        Err(errno) => {
                            events.push(Event { userdata, result: Err(errno), kind: CLOCK })
                        }
                    }
                }
                Subscription::Read { userdata, fd } => {
                    events.push(Event {
                        userdata,
                        result: self.ready(fd, rights::FD_READ),
                        kind: READ,
                    });
                }
                Subscription::Write { userdata, fd } => {
                    events.push(Event {
                        userdata,
                        result: self.ready(fd, rights::FD_WRITE),
                        kind: WRITE,
                    });
                }
            }
        }
        let earliest = timers.iter().map(|(_, timeout)| *timeout).min().unwrap_or(0);
        let waited = if events.is_empty() { earliest } else { 0 };
        if self.wait_for(Duration::from_nanos(waited)) == WaitResult::Interrupted {
            return Err(Refusal::Stop(StopReason::Interrupted));
        }
        let expired = timers.iter().filter(|(_, timeout)| *timeout <= waited);
        events.extend(expired.map(|(userdata, _)| Event {
            userdata: *userdata,
            result: Ok(0),
            kind: CLOCK,
        }));
        Ok(HostAnswer::Events(events))
    }

    /// How many bytes a descriptor would move without waiting.
    fn ready(&self, fd: u32, right: u64) -> Result<u64, Errno> {
        let descriptor: &Descriptor = self.descriptors.get(fd)?;
        descriptor.may(right)?;
        match &descriptor.handle {
            Handle::Stdin => Ok((self.stdin.len() as u64).saturating_sub(descriptor.offset)),
            Handle::Output(_) => Ok(1 << 16),
            Handle::Node(_) if right == rights::FD_WRITE => Ok(1 << 16),
            Handle::Node(node) => {
                Ok(self.vfs.length(node).unwrap_or(0).saturating_sub(descriptor.offset))
            }
        }
    }
}
