//! One thread per engine that advances the epoch while a guest runs.
//!
//! Invariant: the ticker only advances the engine's epoch; which store stops is
//! decided by that store's own [`Control`]. It sleeps for good while no guest
//! runs.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::Duration;

use crate::clock;
use crate::control::Control;

/// Time between two epochs, and so the longest a stop can go unnoticed.
pub(crate) const TICK: Duration = Duration::from_millis(5);
/// How long after its deadline a run may still be inside a host call before
/// its future is answered without it.
pub(crate) const HOST_CALL_GRACE: Duration = Duration::from_millis(500);

type Abandon = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Watched {
    next_id: u64,
    runs: BTreeMap<u64, (Arc<Control>, Option<Abandon>)>,
    closed: bool,
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

    /// Ticks until the returned guard is dropped. `abandon` is called when the
    /// run is still going [`HOST_CALL_GRACE`] after its deadline.
    pub(crate) fn watch(&self, control: &Arc<Control>, abandon: Abandon) -> Watch {
        let mut watched = self.shared.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let id = watched.next_id;
        watched.next_id = id.wrapping_add(1);
        if watched.runs.insert(id, (Arc::clone(control), Some(abandon))).is_none()
            && watched.runs.len() == 1
        {
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
        if let Some(shared) = self.shared.upgrade() {
            shared.watched.lock().unwrap_or_else(PoisonError::into_inner).runs.remove(&self.id);
        }
    }
}

fn tick(shared: &Shared, engine: &wasmtime::EngineWeak) {
    loop {
        let mut overdue = Vec::new();
        {
            let mut watched = shared.watched.lock().unwrap_or_else(PoisonError::into_inner);
            while watched.runs.is_empty() && !watched.closed {
                watched = shared.changed.wait(watched).unwrap_or_else(PoisonError::into_inner);
            }
            if watched.closed {
                return;
            }
            let now = clock::now();
            for (control, abandon) in watched.runs.values_mut() {
                if let Some(deadline) = control.deadline()
                    && now.saturating_duration_since(deadline) > HOST_CALL_GRACE
                    && let Some(abandon) = abandon.take()
                {
                    overdue.push(abandon);
                }
            }
        }
        for abandon in overdue {
            abandon();
        }
        std::thread::sleep(TICK);
        match engine.upgrade() {
            Some(engine) => engine.increment_epoch(),
            None => return,
        }
    }
}
