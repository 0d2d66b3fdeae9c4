//! The embedder's output listener, on a thread of its own.
//!
//! Why: a listener that blocks must hold up neither the guest's deadline nor a
//! cancel, and the guest's thread cannot be taken out of a call that blocks.
//!
//! Invariant: at most [`MAX_WAITING_BYTES`] wait for the listener; a guest that
//! is faster waits for it, inside its time limits. A run is over when its
//! output was delivered; if its time is over first, that is how it ended, and
//! the outcome has everything that was not delivered.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fumehood_host_fns::{NoStreaming, OutputSink, Stream};

use crate::clock;
use crate::control::{Control, StopCause};
use crate::script::Output;

/// Output that may wait for a slow listener, in bytes. A single longer piece
/// waits alone.
pub(crate) const MAX_WAITING_BYTES: usize = 1 << 20;
/// What a listener is given to catch up once the run has to stop.
pub(crate) const LAST_CALL: Duration = Duration::from_millis(20);
/// How often a thread that waits for the listener looks whether it has to stop.
pub(crate) const LOOK: Duration = Duration::from_millis(5);

/// What a listener is called with.
pub(crate) type Receive = dyn Fn(Stream, &[u8]) + Send + Sync;

#[derive(Default)]
struct Queue {
    pieces: VecDeque<(Stream, Box<[u8]>)>,
    bytes: usize,
    /// The thread is there.
    started: bool,
    /// The listener is being called.
    busy: bool,
    /// Nothing more comes; what waits is delivered.
    ended: bool,
    /// Nothing more is delivered.
    given_up: bool,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `done`, or for `grace` after the run has to stop.
    fn wait_for<'q>(
        &self,
        mut queue: MutexGuard<'q, Queue>,
        control: &Control,
        grace: Duration,
        done: impl Fn(&Queue) -> bool,
    ) -> Result<MutexGuard<'q, Queue>, (StopCause, MutexGuard<'q, Queue>)> {
        let mut stopped = None;
        while !done(&queue) {
            if let Some(cause) = control.stop_cause() {
                let since = *stopped.get_or_insert_with(clock::now);
                if clock::now().saturating_duration_since(since) >= grace {
                    return Err((cause, queue));
                }
            }
            let waited = self.changed.wait_timeout(queue, LOOK);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(queue)
    }
}

/// Between the broker and a listener; one for each run.
pub(crate) struct Relay {
    shared: Arc<Shared>,
    control: Arc<Control>,
    receive: Arc<Receive>,
}

impl Relay {
    pub(crate) fn new(receive: Arc<Receive>, control: Arc<Control>) -> Self {
        Self { shared: Arc::default(), control, receive }
    }

    /// Where a run's output goes: the sink for its broker, and the relay whose
    /// [`Relay::finish`] is to be called at its end, if there is one.
    pub(crate) fn between(
        output: Output,
        control: &Arc<Control>,
    ) -> (Arc<dyn OutputSink>, Option<Arc<Self>>) {
        match output {
            Output::Nobody => (Arc::new(NoStreaming), None),
            Output::Sink(sink) => (sink, None),
            Output::Listener(receive) => {
                let relay = Arc::new(Self::new(receive, Arc::clone(control)));
                (Arc::clone(&relay) as _, Some(relay))
            }
        }
    }

    /// Waits until everything was delivered. Called on the guest's thread when
    /// the guest has ended.
    ///
    /// # Errors
    /// Why the run had to stop first; nothing is delivered after that but what
    /// the listener is busy with.
    pub(crate) fn finish(&self) -> Result<(), StopCause> {
        let mut queue = self.shared.lock();
        queue.ended = true;
        self.shared.changed.notify_all();
        let delivered = |queue: &Queue| queue.pieces.is_empty() && !queue.busy;
        match self.shared.wait_for(queue, &self.control, LAST_CALL, delivered) {
            Ok(_) => Ok(()),
            Err((cause, mut queue)) => {
                queue.given_up = true;
                queue.pieces.clear();
                self.shared.changed.notify_all();
                Err(cause)
            }
        }
    }

    fn start(&self) -> bool {
        let (shared, receive) = (Arc::clone(&self.shared), Arc::clone(&self.receive));
        std::thread::Builder::new()
            .name("fumehood-output".to_owned())
            .spawn(move || deliver(&shared, &*receive))
            .is_ok()
    }
}

impl OutputSink for Relay {
    fn write(&self, stream: Stream, bytes: &[u8]) {
        let queue = self.shared.lock();
        let room = |queue: &Queue| {
            queue.given_up
                || queue.pieces.is_empty()
                || queue.bytes.saturating_add(bytes.len()) <= MAX_WAITING_BYTES
        };
        let waited = self.shared.wait_for(queue, &self.control, Duration::ZERO, room);
        // A run that has to stop writes no more: it stops at its next tick.
        let Ok(mut queue) = waited else { return };
        if queue.given_up {
            return;
        }
        if !queue.started {
            queue.started = self.start();
            if !queue.started {
                // No thread is to be had: the listener is called from this one.
                drop(queue);
                (self.receive)(stream, bytes);
                return;
            }
        }
        queue.bytes = queue.bytes.saturating_add(bytes.len());
        queue.pieces.push_back((stream, Box::from(bytes)));
        self.shared.changed.notify_all();
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.lock().ended = true;
        self.shared.changed.notify_all();
    }
}

/// Calls the listener with piece after piece. One that panics is not called
/// again.
fn deliver(shared: &Shared, receive: &Receive) {
    let mut queue = shared.lock();
    loop {
        if let Some((stream, bytes)) = queue.pieces.pop_front() {
            queue.bytes = queue.bytes.saturating_sub(bytes.len());
            queue.busy = true;
            drop(queue);
            let called = catch_unwind(AssertUnwindSafe(|| receive(stream, &bytes)));
            queue = shared.lock();
            queue.busy = false;
            if called.is_err() {
                queue.given_up = true;
                queue.pieces.clear();
            }
            shared.changed.notify_all();
        } else if queue.ended || queue.given_up {
            return;
        } else {
            queue = shared.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "tests measure time")]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::time::Instant;

    fn armed(wall: Duration) -> Arc<Control> {
        let control = Arc::new(Control::new());
        control.arm(wall, Duration::from_secs(60));
        control
    }

    #[test]
    fn everything_is_delivered_in_order_before_the_end() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&seen);
        let receive: Arc<Receive> = Arc::new(move |_, bytes: &[u8]| {
            std::thread::sleep(Duration::from_micros(100));
            into.lock().unwrap().extend_from_slice(bytes);
        });
        let relay = Relay::new(receive, armed(Duration::from_secs(60)));
        for piece in 0..200_u8 {
            relay.write(Stream::Stdout, &[piece]);
        }
        assert_eq!(relay.finish(), Ok(()));
        assert_eq!(*seen.lock().unwrap(), (0..200).collect::<Vec<u8>>());
    }

    #[test]
    fn a_listener_that_blocks_delays_neither_deadline_nor_cancel() {
        for cancelled in [false, true] {
            let (release, blocked) = channel::<()>();
            let blocked = Mutex::new(blocked);
            let receive: Arc<Receive> = Arc::new(move |_, _: &[u8]| {
                let _ = blocked.lock().unwrap().recv();
            });
            let wall = if cancelled { 60_000 } else { 100 };
            let control = armed(Duration::from_millis(wall));
            let relay = Relay::new(receive, Arc::clone(&control));
            let start = Instant::now();
            if cancelled {
                control.cancel();
            }
            // More than may wait, so that the guest would wait for the listener.
            for _ in 0..40 {
                relay.write(Stream::Stdout, &vec![b'x'; MAX_WAITING_BYTES / 10]);
            }
            let stopped = relay.finish().unwrap_err();
            assert!(start.elapsed() < Duration::from_secs(10));
            assert_eq!(stopped == StopCause::Cancelled, cancelled);
            assert!(relay.shared.lock().pieces.is_empty());
            drop(release);
        }
    }

    #[test]
    fn what_was_written_before_the_deadline_is_delivered_after_it() {
        let seen = Arc::new(Mutex::new(0));
        let into = Arc::clone(&seen);
        let receive: Arc<Receive> = Arc::new(move |_, bytes: &[u8]| {
            *into.lock().unwrap() += bytes.len();
        });
        let relay = Relay::new(receive, armed(Duration::from_nanos(1)));
        relay.write(Stream::Stdout, b"before");
        let finished = relay.finish();
        // A machine that is busy may not run the listener in time.
        assert!(finished.is_err() || *seen.lock().unwrap() == 6);
    }

    #[test]
    fn a_listener_that_panics_is_not_called_again() {
        let receive: Arc<Receive> = Arc::new(|_, _: &[u8]| panic!("listener"));
        let relay = Relay::new(receive, armed(Duration::from_secs(60)));
        for _ in 0..3 {
            relay.write(Stream::Stderr, b"x");
        }
        assert_eq!(relay.finish(), Ok(()));
    }
}
