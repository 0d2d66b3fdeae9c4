//! A clock that no clock of the host moves, and waits that pass on it.
//!
//! What: time starts at a given instant and moves by a fixed step for each
//! reading, by what the guest sleeps, and by the work it is known to have done.
//! Why: in deterministic mode what a program sees of time is a function of what
//! it did.
//!
//! Invariant: nothing here reads a clock of the host. Time never goes back, and
//! two readings are never equal until the numbers end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;
use std::time::Duration;

use crate::environment::{Clock, WaitResult, Waiter, Wake};

/// What one reading moves the clock, in nanoseconds: the finest that a guest
/// can see.
const STEP_NS: u64 = 1_000;

/// The clock of one deterministic run.
#[derive(Debug)]
pub struct VirtualClock {
    start_ns: u64,
    /// Readings and sleeps.
    passed_ns: AtomicU64,
    /// Work.
    worked_ns: AtomicU64,
}

impl VirtualClock {
    /// A clock that shows `start_ns` nanoseconds since the Unix epoch.
    #[must_use]
    pub fn starting_at(start_ns: u64) -> Self {
        Self { start_ns, passed_ns: AtomicU64::new(0), worked_ns: AtomicU64::new(0) }
    }

    /// Lets this much time pass.
    pub fn advance(&self, time: Duration) {
        add(&self.passed_ns, u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// The guest has worked `nanoseconds` since the clock was made. A smaller
    /// number than before changes nothing.
    pub fn worked(&self, nanoseconds: u64) {
        self.worked_ns.fetch_max(nanoseconds, Ordering::Relaxed);
    }

    fn read(&self) -> u64 {
        let before = add(&self.passed_ns, STEP_NS);
        before.saturating_add(self.worked_ns.load(Ordering::Relaxed))
    }

    fn peek(&self) -> u64 {
        let passed = self.passed_ns.load(Ordering::Relaxed);
        passed.saturating_add(self.worked_ns.load(Ordering::Relaxed))
    }
}

/// Adds without wrapping and returns what was there before.
fn add(to: &AtomicU64, amount: u64) -> u64 {
    let added = |value: u64| Some(value.saturating_add(amount));
    to.fetch_update(Ordering::Relaxed, Ordering::Relaxed, added).unwrap_or_else(|same| same)
}

impl Clock for VirtualClock {
    fn wall_ns(&self) -> u64 {
        self.start_ns.saturating_add(self.read())
    }

    fn monotonic_ns(&self) -> u64 {
        self.read()
    }

    fn peek_monotonic_ns(&self) -> u64 {
        self.peek()
    }
}

/// Sleeps on a [`VirtualClock`]: they are over at once. What waits for the host
/// (a tool) waits for real, and both can be interrupted.
pub struct VirtualWaiter {
    clock: Arc<VirtualClock>,
    real: Arc<dyn Waiter>,
}

impl VirtualWaiter {
    /// Sleeps move `clock`; `real` parks and interrupts.
    #[must_use]
    pub fn new(clock: Arc<VirtualClock>, real: Arc<dyn Waiter>) -> Self {
        Self { clock, real }
    }
}

impl Waiter for VirtualWaiter {
    fn wait(&self, timeout: Duration) -> WaitResult {
        let waited = self.real.wait(Duration::ZERO);
        if waited == WaitResult::Elapsed {
            self.clock.advance(timeout);
        }
        waited
    }

    fn park(&self, timeout: Duration) -> Wake {
        self.real.park(timeout)
    }

    fn waker(&self) -> Waker {
        self.real.waker()
    }

    fn hold(&self) {
        self.real.hold();
    }

    fn release(&self) {
        self.real.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::SimpleWaiter;

    const START: u64 = 1_735_689_600_000_000_000;

    #[test]
    fn time_is_a_function_of_what_was_done() {
        let run = || {
            let clock = Arc::new(VirtualClock::starting_at(START));
            let waiter = VirtualWaiter::new(Arc::clone(&clock), Arc::new(SimpleWaiter::default()));
            let first = clock.wall_ns();
            assert_eq!(waiter.wait(Duration::from_secs(3600)), WaitResult::Elapsed);
            clock.worked(5_000);
            clock.worked(4_000);
            [first, clock.monotonic_ns(), clock.wall_ns()]
        };
        let hour = 3_600_000_000_000;
        assert_eq!(run(), [START, hour + STEP_NS + 5_000, START + hour + 2 * STEP_NS + 5_000]);
        assert_eq!(run(), run());
    }

    #[test]
    fn a_look_that_is_no_reading_moves_nothing() {
        let clock = VirtualClock::starting_at(START);
        clock.worked(7_000);
        assert_eq!([clock.peek_monotonic_ns(), clock.peek_monotonic_ns()], [7_000; 2]);
        assert_eq!([clock.monotonic_ns(), clock.peek_monotonic_ns()], [7_000, 7_000 + STEP_NS]);
    }

    #[test]
    fn time_ends_and_does_not_wrap() {
        let clock = VirtualClock::starting_at(u64::MAX - 1);
        clock.advance(Duration::MAX);
        clock.worked(u64::MAX);
        assert_eq!((clock.wall_ns(), clock.monotonic_ns()), (u64::MAX, u64::MAX));
    }

    #[test]
    fn a_sleep_can_be_interrupted() {
        let real = Arc::new(SimpleWaiter::default());
        let clock = Arc::new(VirtualClock::starting_at(0));
        let waiter = VirtualWaiter::new(Arc::clone(&clock), Arc::clone(&real) as Arc<dyn Waiter>);
        real.interrupt();
        assert_eq!(waiter.wait(Duration::from_secs(1)), WaitResult::Interrupted);
        assert_eq!(clock.monotonic_ns(), 0);
        assert_eq!(waiter.park(Duration::from_secs(600)), Wake::Interrupted);
    }
}
