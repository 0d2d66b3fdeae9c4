//! One thread per engine that advances the epoch while a guest runs.
//!
//! Invariant: the ticker only advances the engine's epoch; which store stops is
//! decided by that store's own [`Control`]. It sleeps for good while no guest
//! runs, and nothing of an embedder's is called on its thread.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use crate::clock;
use crate::control::{Control, StopCause};
use crate::outcome::{OutcomeKind, TimeoutClock};

/// Time between two epochs, and so the longest a stop can go unnoticed.
pub(crate) const TICK: Duration = Duration::from_millis(5);
/// How long after its deadline or its cancel a run may still be inside a host
/// call before its future is answered without it.
pub(crate) const HOST_CALL_GRACE: Duration = Duration::from_millis(500);

/// Answers a run without it; told how the run ended.
pub(crate) type Abandon = Box<dyn Fn(OutcomeKind) + Send + Sync>;

#[derive(Default)]
struct Watched {
    next_id: u64,
    runs: BTreeMap<u64, Entry>,
    closed: bool,
}

/// A run that goes on.
struct Entry {
    control: Arc<Control>,
    cancel_grace: Duration,
    abandon: Arc<dyn Fn(OutcomeKind) + Send + Sync>,
    /// When its cancel was first seen.
    cancelled: Option<Instant>,
    abandoned: bool,
}

impl Entry {
    /// Why it has to be answered now, if it has to.
    fn overdue(&mut self, now: Instant) -> Option<StopCause> {
        if self.abandoned {
            return None;
        }
        let over = |since: Instant, grace: Duration| now.saturating_duration_since(since) > grace;
        if self.control.is_cancelled() {
            let since = *self.cancelled.get_or_insert(now);
            if over(since, self.cancel_grace) {
                return Some(StopCause::Cancelled);
            }
        }
        let late = self.control.deadline().is_some_and(|at| over(at, HOST_CALL_GRACE));
        late.then_some(match self.cancelled {
            Some(_) => StopCause::Cancelled,
            None => StopCause::Timeout(TimeoutClock::Wall),
        })
    }

    /// Answers it on a thread of its own: an observer may take its time. Where
    /// the system gives no thread, the next tick tries again.
    fn abandon(&mut self, cause: StopCause) {
        let abandon = Arc::clone(&self.abandon);
        let spawned = std::thread::Builder::new()
            .name("fumehood-overdue".to_owned())
            .spawn(move || abandon(cause.into()));
        self.abandoned = spawned.is_ok();
    }
}

#[derive(Default)]
struct Shared {
    watched: Mutex<Watched>,
    changed: Condvar,
}

/// The ticker's handle; dropping it ends the thread.
pub(crate) struct Ticker {
    shared: Arc<Shared>,
}

/// Keeps the ticker ticking for one run.
pub(crate) struct Watch {
    shared: Weak<Shared>,
    id: u64,
}

impl Ticker {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub(crate) fn start(engine: wasmtime::EngineWeak) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let of_thread = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("fumehood-epoch".to_owned())
            .stack_size(256 << 10)
            .spawn(move || tick(&of_thread, &engine))?;
        Ok(Self { shared })
    }

    /// Ticks until the returned guard is dropped. `abandon` is called once, on
    /// another thread, when the run is still going [`HOST_CALL_GRACE`] after its
    /// deadline or `cancel_grace` after its cancel.
    pub(crate) fn watch(
        &self,
        control: &Arc<Control>,
        cancel_grace: Duration,
        abandon: Abandon,
    ) -> Watch {
        let entry = Entry {
            control: Arc::clone(control),
            cancel_grace,
            abandon: Arc::from(abandon),
            cancelled: None,
            abandoned: false,
        };
        let mut watched = self.shared.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let id = watched.next_id;
        watched.next_id = id.wrapping_add(1);
        if watched.runs.insert(id, entry).is_none() && watched.runs.len() == 1 {
            self.shared.changed.notify_one();
        }
        Watch { shared: Arc::downgrade(&self.shared), id }
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.shared.watched.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
        self.shared.changed.notify_one();
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let Some(shared) = self.shared.upgrade() else { return };
        let entry = {
            let mut watched = shared.watched.lock().unwrap_or_else(PoisonError::into_inner);
            watched.runs.remove(&self.id)
        };
        // It may hold the last answer, which tells an observer: not under the lock.
        drop(entry);
    }
}

fn tick(shared: &Shared, engine: &wasmtime::EngineWeak) {
    loop {
        {
            let mut watched = shared.watched.lock().unwrap_or_else(PoisonError::into_inner);
            while watched.runs.is_empty() && !watched.closed {
                watched = shared.changed.wait(watched).unwrap_or_else(PoisonError::into_inner);
            }
            if watched.closed {
                return;
            }
            let now = clock::now();
            for entry in watched.runs.values_mut() {
                if let Some(cause) = entry.overdue(now) {
                    entry.abandon(cause);
                }
            }
        }
        std::thread::sleep(TICK);
        match engine.upgrade() {
            Some(engine) => engine.increment_epoch(),
            None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    const MINUTE: Duration = Duration::from_secs(60);

    /// A ticker and the engine that keeps it going.
    fn ticker() -> (wasmtime::Engine, Ticker) {
        let engine = wasmtime::Engine::default();
        let ticker = Ticker::start(engine.weak()).unwrap();
        (engine, ticker)
    }

    #[test]
    fn a_slow_answer_delays_no_other_run() {
        let (_engine, ticker) = ticker();
        let (sender, answered) = mpsc::channel();
        let controls = [Arc::new(Control::new()), Arc::new(Control::new())];
        let start = clock::now();
        let watches: Vec<Watch> = controls
            .iter()
            .enumerate()
            .map(|(number, control)| {
                control.arm(Duration::from_millis(1), MINUTE);
                let sender = sender.clone();
                let abandon = move |kind| {
                    if number == 0 {
                        std::thread::sleep(Duration::from_secs(4));
                    }
                    let _ = sender.send((number, kind));
                };
                ticker.watch(control, MINUTE, Box::new(abandon))
            })
            .collect();
        let first = answered.recv_timeout(MINUTE).unwrap();
        assert_eq!(first, (1, OutcomeKind::Timeout { clock: TimeoutClock::Wall }));
        assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
        drop(watches);
    }

    #[test]
    fn a_cancel_that_is_not_heard_is_answered_after_its_grace_and_once() {
        let (_engine, ticker) = ticker();
        let (sender, answered) = mpsc::channel();
        let control = Arc::new(Control::new());
        control.arm(MINUTE, MINUTE);
        let abandon = move |kind| sender.send(kind).unwrap();
        let watch = ticker.watch(&control, Duration::from_millis(50), Box::new(abandon));
        assert!(answered.recv_timeout(Duration::from_millis(100)).is_err());
        let start = clock::now();
        control.cancel();
        assert_eq!(answered.recv_timeout(MINUTE).unwrap(), OutcomeKind::Cancelled);
        assert!(start.elapsed() >= Duration::from_millis(50), "{:?}", start.elapsed());
        assert!(answered.recv_timeout(Duration::from_millis(100)).is_err());
        drop(watch);
    }

    #[test]
    fn a_cancelled_run_that_is_late_too_was_cancelled() {
        let control = Arc::new(Control::new());
        control.arm(Duration::ZERO, MINUTE);
        control.cancel();
        let mut entry = Entry {
            control,
            cancel_grace: MINUTE,
            abandon: Arc::new(|_| {}),
            cancelled: None,
            abandoned: false,
        };
        let now = clock::now();
        assert_eq!(entry.overdue(now), None);
        assert_eq!(entry.overdue(now + HOST_CALL_GRACE * 2), Some(StopCause::Cancelled));
        entry.abandoned = true;
        assert_eq!(entry.overdue(now + MINUTE * 2), None);
    }
}
