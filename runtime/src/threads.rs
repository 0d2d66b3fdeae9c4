//! The threads that guests run on.
//!
//! Invariant: a guest never runs on a thread of the embedder's async runtime,
//! so a spinning guest delays nobody's timers; at most [`MAX_THREADS`] guests
//! run at once, later ones wait in line and their clocks have not started.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Most guests that run at the same time in one engine.
pub const MAX_THREADS: usize = 2048;
/// How long an idle thread is kept for the next run.
pub(crate) const IDLE: Duration = Duration::from_secs(10);

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    available: Condvar,
}

/// A pool of guest threads.
pub(crate) struct GuestThreads {
    shared: Arc<Shared>,
    stack_bytes: usize,
}

impl GuestThreads {
    pub(crate) fn new(stack_bytes: usize) -> Self {
        Self { shared: Arc::default(), stack_bytes }
    }

    /// Runs `job` on a guest thread, at once if one is free or may be started.
    ///
    /// # Errors
    /// When no thread runs and the system gives none.
    pub(crate) fn spawn(&self, job: Job) -> std::io::Result<()> {
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.queue.push_back(job);
        if state.idle >= state.queue.len() {
            self.shared.available.notify_one();
            return Ok(());
        }
        if state.threads >= MAX_THREADS {
            return Ok(());
        }
        let shared = Arc::clone(&self.shared);
        let spawned = std::thread::Builder::new()
            .name("fumehood-guest".to_owned())
            .stack_size(self.stack_bytes)
            .spawn(move || work(&shared));
        match spawned {
            Ok(_) => {
                state.threads += 1;
                Ok(())
            }
            // Another thread will take the job when it is done with its own.
            Err(_) if state.threads > 0 => Ok(()),
            Err(error) => {
                state.queue.pop_back();
                Err(error)
            }
        }
    }
}

fn work(shared: &Shared) {
    let mut state = shared.state.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        if let Some(job) = state.queue.pop_front() {
            drop(state);
            // A job reports its own panics; this keeps the count right.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
            state = shared.state.lock().unwrap_or_else(PoisonError::into_inner);
            continue;
        }
        state.idle += 1;
        let (next, timeout) =
            shared.available.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
        state = next;
        state.idle -= 1;
        if timeout.timed_out() && state.queue.is_empty() {
            state.threads -= 1;
            return;
        }
    }
}
