//! What stops a run: its deadline, its processor limit and its cancel flag.
//!
//! Invariant: stopping one run touches no other; a [`Control`] belongs to a
//! single run or cell and is shared only with whoever holds its canceller.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
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

/// One run's stop conditions; in a session, one cell's.
#[derive(Debug)]
pub(crate) struct Control {
    cancelled: AtomicBool,
    armed: OnceLock<Armed>,
    bell: Arc<Bell>,
    excused: Mutex<Excused>,
}

/// Time that does not count against the run.
#[derive(Debug, Default)]
struct Excused {
    /// Since when it does not count now.
    since: Option<Instant>,
    /// What did not count before.
    before: Duration,
}

/// The waiter of a session: what it waits for is the session's, what stops it
/// is that of the cell that runs.
#[derive(Debug)]
pub(crate) struct SessionWaiter {
    bell: Arc<Bell>,
    cell: Mutex<Arc<Control>>,
}

impl SessionWaiter {
    pub(crate) fn new() -> Self {
        let bell = Arc::<Bell>::default();
        let idle = Arc::new(Control::of(Arc::clone(&bell)));
        Self { bell, cell: Mutex::new(idle) }
    }

    /// Stop conditions for a cell of this session.
    pub(crate) fn control(&self) -> Arc<Control> {
        Arc::new(Control::of(Arc::clone(&self.bell)))
    }

    /// Says which cell runs now.
    pub(crate) fn enter(&self, control: &Arc<Control>) {
        *self.cell.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(control);
    }

    fn cell(&self) -> Arc<Control> {
        Arc::clone(&self.cell.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Waiter for SessionWaiter {
    fn wait(&self, timeout: Duration) -> WaitResult {
        self.cell().wait(timeout)
    }

    fn park(&self, timeout: Duration) -> fumehood_host_fns::Wake {
        self.cell().park(timeout)
    }

    fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.bell))
    }

    fn hold(&self) {
        self.cell().hold();
    }

    fn release(&self) {
        self.cell().release();
    }
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
        Self::of(Arc::default())
    }

    fn of(bell: Arc<Bell>) -> Self {
        Self {
            cancelled: AtomicBool::new(false),
            armed: OnceLock::new(),
            bell,
            excused: Mutex::default(),
        }
    }

    /// Starts both clocks; called once, on the thread that runs the guest.
    pub(crate) fn arm(&self, wall: Duration, cpu: Duration) {
        let now = clock::now();
        let _ = self.armed.set(Armed {
            deadline: now.checked_add(wall).unwrap_or(now),
            cpu_end: thread_cpu_time().saturating_add(cpu),
        });
    }

    /// Whether it was asked to stop.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    /// Asks the run to stop; it does within one tick.
    pub(crate) fn cancel(&self) {
        // Held so that a waiter between its check and its wait is not missed.
        let _rung = self.bell.rung.lock().unwrap_or_else(PoisonError::into_inner);
        self.cancelled.store(true, Ordering::Release);
        self.bell.woken.notify_all();
    }

    fn excused(&self) -> MutexGuard<'_, Excused> {
        self.excused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When the wall clock ends the run, once it has started; `None` also while
    /// time does not count.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let armed = self.armed.get()?;
        let excused = self.excused();
        if excused.since.is_some() {
            return None;
        }
        armed.deadline.checked_add(excused.before)
    }

    /// Whether the run has to stop now; called on the guest's thread.
    pub(crate) fn stop_cause(&self) -> Option<StopCause> {
        if self.cancelled.load(Ordering::Acquire) {
            return Some(StopCause::Cancelled);
        }
        let armed = self.armed.get()?;
        if self.deadline().is_some_and(|deadline| clock::now() >= deadline) {
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

    fn hold(&self) {
        self.excused().since.get_or_insert_with(clock::now);
    }

    fn release(&self) {
        let mut excused = self.excused();
        if let Some(since) = excused.since.take() {
            let time = clock::now().saturating_duration_since(since);
            excused.before = excused.before.saturating_add(time);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn held_time_does_not_count_and_cancelling_ends_it() {
        let control = Arc::new(Control::new());
        control.arm(Duration::from_millis(50), Duration::from_secs(60));
        control.hold();
        assert_eq!(control.wait(Duration::from_millis(100)), WaitResult::Elapsed);
        assert_eq!((control.deadline(), control.stop_cause()), (None, None));
        control.release();
        assert_eq!(control.stop_cause(), None);
        assert_eq!(control.wait(Duration::MAX), WaitResult::Interrupted);
        control.hold();
        control.cancel();
        assert_eq!(control.wait(Duration::MAX), WaitResult::Interrupted);
    }

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

    #[test]
    fn a_canceller_of_one_cell_does_not_stop_the_next() {
        let session = SessionWaiter::new();
        let (first, second) = (session.control(), session.control());
        session.enter(&first);
        first.cancel();
        assert_eq!(session.wait(Duration::from_secs(60)), WaitResult::Interrupted);
        session.enter(&second);
        first.cancel();
        assert_eq!(session.wait(Duration::from_millis(1)), WaitResult::Elapsed);
        session.waker().wake();
        assert_eq!(session.park(Duration::from_secs(60)), fumehood_host_fns::Wake::Woken);
    }
}
