//! What the broker needs from the outside, as traits, and the real ones.
//!
//! Why: a run can be made deterministic, recorded or embedded by giving other
//! implementations; this is the only module that reads clocks and randomness.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Wake as TaskWake, Waker};
use std::time::Duration;

/// One of the two output streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Receives output while the run goes on; only bytes within the cap. Called on
/// the thread of the guest: a slow sink slows the guest.
pub trait OutputSink: Send + Sync {
    /// Takes some bytes.
    fn write(&self, stream: Stream, bytes: &[u8]);
}

/// Takes output and does nothing; the report still holds it.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoStreaming;

impl OutputSink for NoStreaming {
    fn write(&self, _stream: Stream, _bytes: &[u8]) {}
}

/// Two clocks in nanoseconds. The broker cuts both to whole microseconds.
pub trait Clock: Send + Sync {
    /// Since the Unix epoch.
    fn wall_ns(&self) -> u64;
    /// Since any fixed point; never goes back. The broker subtracts its value
    /// at the start of the session.
    fn monotonic_ns(&self) -> u64;
    /// The same for the broker's own use. To be given by a clock that moves when
    /// it is read: this must not move it.
    fn peek_monotonic_ns(&self) -> u64 {
        self.monotonic_ns()
    }
}

/// The clocks of the operating system.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    origin: std::time::Instant,
}

impl SystemClock {
    /// Starts the monotonic clock at zero.
    #[must_use]
    #[allow(clippy::disallowed_methods, reason = "the adapter for clocks")]
    pub fn new() -> Self {
        Self { origin: std::time::Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

fn saturating_ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Clock for SystemClock {
    #[allow(clippy::disallowed_methods, reason = "the adapter for clocks")]
    fn wall_ns(&self) -> u64 {
        let now = std::time::SystemTime::now();
        now.duration_since(std::time::UNIX_EPOCH).map_or(0, saturating_ns)
    }

    #[allow(clippy::disallowed_methods, reason = "the adapter for clocks")]
    fn monotonic_ns(&self) -> u64 {
        saturating_ns(self.origin.elapsed())
    }
}

/// The source has no randomness to give.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the random source failed")]
pub struct RandomFailed;

/// A source of random bytes.
pub trait RandomSource: Send + Sync {
    /// Fills the whole buffer.
    ///
    /// # Errors
    /// [`RandomFailed`] if it cannot; the run then ends with a fault.
    fn fill(&self, into: &mut [u8]) -> Result<(), RandomFailed>;
}

/// The random source of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsRandom;

impl RandomSource for OsRandom {
    #[cfg(target_os = "linux")]
    fn fill(&self, into: &mut [u8]) -> Result<(), RandomFailed> {
        let mut rest = into;
        while !rest.is_empty() {
            match rustix::rand::getrandom(&mut *rest, rustix::rand::GetRandomFlags::empty()) {
                Ok(0) => return Err(RandomFailed),
                Ok(filled) => rest = rest.get_mut(filled..).ok_or(RandomFailed)?,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return Err(RandomFailed),
            }
        }
        Ok(())
    }

    #[cfg(not(target_os = "linux"))]
    #[allow(clippy::disallowed_methods, reason = "the adapter for randomness")]
    fn fill(&self, into: &mut [u8]) -> Result<(), RandomFailed> {
        use std::io::Read as _;
        let mut device = std::fs::File::open("/dev/urandom").map_err(|_| RandomFailed)?;
        device.read_exact(into).map_err(|_| RandomFailed)
    }
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitResult {
    /// The time went by.
    Elapsed,
    /// The run was cancelled or hit its deadline.
    Interrupted,
}

/// How a park ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// The time went by.
    Elapsed,
    /// The run was cancelled or hit its deadline; wins over the other two.
    Interrupted,
    /// The waker was woken since the last park.
    Woken,
}

/// Parks the guest's thread.
pub trait Waiter: Send + Sync {
    /// Parks the calling thread for `timeout`, or less if the run was
    /// cancelled or hit its deadline. The waker does not end it, and is not
    /// forgotten by it.
    fn wait(&self, timeout: Duration) -> WaitResult;

    /// Parks the calling thread until the waker is woken, or for `timeout`, or
    /// less if the run was cancelled or hit its deadline. A waker that was
    /// woken before ends the next park at once; it may be woken for nothing.
    fn park(&self, timeout: Duration) -> Wake;

    /// Ends the present or the next park, from any thread.
    fn waker(&self) -> Waker;

    /// From now on time does not count against the run: it waits for a person.
    /// Being cancelled still ends a park.
    fn hold(&self) {}

    /// Ends [`Waiter::hold`].
    fn release(&self) {}
}

/// A waiter that anyone who holds it can interrupt. Once interrupted it stays
/// so: every later wait returns at once.
#[derive(Debug, Default)]
pub struct SimpleWaiter {
    shared: Arc<Parked>,
}

#[derive(Debug, Default)]
struct Parked {
    flags: Mutex<Flags>,
    changed: Condvar,
}

#[derive(Clone, Copy, Debug, Default)]
struct Flags {
    interrupted: bool,
    woken: bool,
}

impl Parked {
    fn change(&self, change: impl FnOnce(&mut Flags)) {
        change(&mut self.flags.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }

    fn park(&self, timeout: Duration, done: impl Fn(Flags) -> bool) -> MutexGuard<'_, Flags> {
        let flags = self.flags.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(flags, timeout, |flags| !done(*flags));
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl TaskWake for Parked {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.change(|flags| flags.woken = true);
    }
}

impl SimpleWaiter {
    /// Interrupts the present wait and every later one.
    pub fn interrupt(&self) {
        self.shared.change(|flags| flags.interrupted = true);
    }
}

impl Waiter for SimpleWaiter {
    fn wait(&self, timeout: Duration) -> WaitResult {
        let flags = self.shared.park(timeout, |flags| flags.interrupted);
        if flags.interrupted { WaitResult::Interrupted } else { WaitResult::Elapsed }
    }

    fn park(&self, timeout: Duration) -> Wake {
        let mut flags = self.shared.park(timeout, |flags| flags.interrupted || flags.woken);
        let woken = std::mem::take(&mut flags.woken);
        match (flags.interrupted, woken) {
            (true, _) => Wake::Interrupted,
            (false, true) => Wake::Woken,
            (false, false) => Wake::Elapsed,
        }
    }

    fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.shared))
    }
}

/// Measures how long something has been going on. Not the guest's clock, which
/// an embedder may have replaced by one that stands still.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopwatch(std::time::Instant);

impl Stopwatch {
    #[allow(clippy::disallowed_methods, reason = "the adapter for clocks")]
    pub(crate) fn start() -> Self {
        Self(std::time::Instant::now())
    }

    pub(crate) fn elapsed(self) -> Duration {
        self.0.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_can_be_interrupted() {
        let waiter = SimpleWaiter::default();
        assert_eq!(waiter.wait(Duration::from_millis(1)), WaitResult::Elapsed);
        std::thread::scope(|scope| {
            scope.spawn(|| waiter.interrupt());
            assert_eq!(waiter.wait(Duration::from_secs(600)), WaitResult::Interrupted);
        });
    }

    #[test]
    fn a_park_is_ended_by_the_waker_once() {
        let waiter = SimpleWaiter::default();
        let waker = waiter.waker();
        waker.wake_by_ref();
        assert_eq!(waiter.wait(Duration::from_millis(1)), WaitResult::Elapsed);
        assert_eq!(waiter.park(Duration::from_secs(600)), Wake::Woken);
        assert_eq!(waiter.park(Duration::from_millis(1)), Wake::Elapsed);
        std::thread::scope(|scope| {
            scope.spawn(|| waker.wake());
            assert_eq!(waiter.park(Duration::from_secs(600)), Wake::Woken);
        });
        waiter.waker().wake();
        waiter.interrupt();
        assert_eq!(waiter.park(Duration::ZERO), Wake::Interrupted);
    }

    #[test]
    fn randomness_differs() {
        let (mut first, mut second) = ([0; 32], [0; 32]);
        assert_eq!((OsRandom.fill(&mut first), OsRandom.fill(&mut second)), (Ok(()), Ok(())));
        assert_ne!(first, second);
    }
}
