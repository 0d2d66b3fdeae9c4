//! What stops a run: its deadline, its processor limit and its cancel flag.
//!
//! Invariant: stopping one run touches no other; everything here belongs to a
//! single run and is shared only with whoever holds its canceller.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use fumehood_host_fns::{WaitResult, Waiter};

use crate::clock::{self, thread_cpu_time};
use crate::outcome::TimeoutClock;

/// Why a run has to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopCause {
    Cancelled,
    Timeout(TimeoutClock),
}

/// One run's stop conditions.
#[derive(Debug)]
pub(crate) struct Control {
    cancelled: AtomicBool,
    armed: OnceLock<Armed>,
    bell: Arc<Bell>,
}

/// Set when the run starts on its thread.
#[derive(Clone, Copy, Debug)]
struct Armed {
    deadline: Instant,
    cpu_end: Duration,
}

/// What a parked guest thread listens to.
#[derive(Debug, Default)]
struct Bell {
    /// Whether a future that the guest waits for can go on.
    rung: Mutex<bool>,
    woken: Condvar,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        *self.rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.woken.notify_all();
    }
}

impl Control {
    pub(crate) fn new() -> Self {
        Self { cancelled: AtomicBool::new(false), armed: OnceLock::new(), bell: Arc::default() }
    }

    /// Starts both clocks; called once, on the thread that runs the guest.
    pub(crate) fn arm(&self, wall: Duration, cpu: Duration) {
        let now = clock::now();
        let _ = self.armed.set(Armed {
            deadline: now.checked_add(wall).unwrap_or(now),
            cpu_end: thread_cpu_time().saturating_add(cpu),
        });
    }

    /// Asks the run to stop; it does within one tick.
    pub(crate) fn cancel(&self) {
        // Held so that a waiter between its check and its wait is not missed.
        let _rung = self.bell.rung.lock().unwrap_or_else(PoisonError::into_inner);
        self.cancelled.store(true, Ordering::Release);
        self.bell.woken.notify_all();
    }

    /// When the wall clock ends the run, once it has started.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.armed.get().map(|armed| armed.deadline)
    }

    /// Whether the run has to stop now; called on the guest's thread.
    pub(crate) fn stop_cause(&self) -> Option<StopCause> {
        if self.cancelled.load(Ordering::Acquire) {
            return Some(StopCause::Cancelled);
        }
        let armed = self.armed.get()?;
        if clock::now() >= armed.deadline {
            Some(StopCause::Timeout(TimeoutClock::Wall))
        } else if thread_cpu_time() >= armed.cpu_end {
            Some(StopCause::Timeout(TimeoutClock::Cpu))
        } else {
            None
        }
    }

    /// Parks until `timeout` is over, the run has to stop, or, if `for_waker`,
    /// the waker was used.
    fn listen(&self, timeout: Duration, for_waker: bool) -> Woken {
        let start = clock::now();
        let mut rung = self.bell.rung.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if self.cancelled.load(Ordering::Acquire) {
                return Woken::Stopped;
            }
            if for_waker && std::mem::take(&mut *rung) {
                return Woken::Rung;
            }
            let now = clock::now();
            let left = timeout.saturating_sub(now.saturating_duration_since(start));
            if left.is_zero() {
                return Woken::Elapsed;
            }
            let until_deadline = match self.deadline() {
                Some(deadline) => deadline.saturating_duration_since(now),
                None => Duration::MAX,
            };
            if until_deadline.is_zero() {
                return Woken::Stopped;
            }
            // Bounded so that the sum never overflows the platform's clock.
            let park = left.min(until_deadline).min(Duration::from_secs(3600));
            let waited = self.bell.woken.wait_timeout(rung, park);
            rung = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Why [`Control::listen`] returned.
enum Woken {
    Elapsed,
    Rung,
    Stopped,
}

impl Waiter for Control {
    fn wait(&self, timeout: Duration) -> WaitResult {
        match self.listen(timeout, false) {
            Woken::Stopped => WaitResult::Interrupted,
            Woken::Elapsed | Woken::Rung => WaitResult::Elapsed,
        }
    }

    fn park(&self, timeout: Duration) -> fumehood_host_fns::Wake {
        match self.listen(timeout, true) {
            Woken::Stopped => fumehood_host_fns::Wake::Interrupted,
            Woken::Elapsed => fumehood_host_fns::Wake::Elapsed,
            Woken::Rung => fumehood_host_fns::Wake::Woken,
        }
    }

    fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.bell))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_sleep_ends_at_the_deadline_or_a_cancel() {
        let control = Arc::new(Control::new());
        control.arm(Duration::from_millis(20), Duration::from_secs(1));
        assert_eq!(control.wait(Duration::from_millis(1)), WaitResult::Elapsed);
        assert_eq!(control.wait(Duration::MAX), WaitResult::Interrupted);
        assert_eq!(control.stop_cause(), Some(StopCause::Timeout(TimeoutClock::Wall)));

        let control = Arc::new(Control::new());
        control.arm(Duration::from_secs(60), Duration::from_secs(60));
        let other = Arc::clone(&control);
        let thread = std::thread::spawn(move || other.wait(Duration::from_secs(60)));
        control.cancel();
        assert_eq!(thread.join().unwrap(), WaitResult::Interrupted);
        assert_eq!(control.stop_cause(), Some(StopCause::Cancelled));
    }
}
