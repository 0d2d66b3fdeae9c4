//! One call of a tool, from its start to its end.
//!
//! What: a [`Task`] is the embedder's future with its panics caught and its
//! result made text; [`Completions`] is where tasks that run elsewhere end.
//!
//! Invariant: a panic of the embedder's function, of its future or of that
//! future's destructor ends in [`Ended::Panicked`] or the log and goes no
//! further. A task that was spawned ends in exactly one completion, also if its
//! runtime drops it.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use serde_json::Value;

use crate::environment::{Stopwatch, Waiter, Wake};
use crate::tools::result::{Unfit, to_json};
use crate::tools::{Executor, Tool, ToolError, ToolFuture};

/// How a call ended.
#[derive(Debug)]
pub(crate) enum Ended {
    /// With JSON text within the limit.
    Value(Vec<u8>),
    /// The function said that it failed.
    Failed(ToolError),
    /// What it gave does not fit; a sentence.
    TooLarge(&'static str),
    /// It took too long.
    TimedOut,
    /// The run was interrupted while it waited.
    Interrupted,
    /// The runtime dropped it, or it was given up.
    Dropped,
    /// It panicked; the detail is for the log only.
    Panicked(String),
}

impl Ended {
    /// The length of its value.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Self::Value(json) => json.len() as u64,
            _ => 0,
        }
    }
}

/// A call that is going on.
pub(crate) struct Task {
    future: Option<ToolFuture>,
    /// Most bytes of the result.
    limit: usize,
}

impl Task {
    /// Calls the function.
    ///
    /// # Errors
    /// [`Ended::Panicked`].
    pub(crate) fn start(tool: &Tool, arguments: Value, limit: usize) -> Result<Self, Ended> {
        let future = catch_unwind(AssertUnwindSafe(|| tool.call(arguments))).map_err(panicked)?;
        Ok(Self { future: Some(future), limit })
    }

    /// Polls it once, within the executor's context.
    pub(crate) fn poll_within(
        &mut self,
        executor: Option<&dyn Executor>,
        waker: &Waker,
    ) -> Poll<Ended> {
        let mut polled = Poll::Pending;
        let mut poll = || polled = self.poll_once(&mut Context::from_waker(waker));
        match executor {
            Some(executor) => executor.enter(&mut poll),
            None => poll(),
        }
        polled
    }

    /// Polls it on this thread until it ends, times out or the run is
    /// interrupted.
    pub(crate) fn drive(
        mut self,
        executor: Option<&dyn Executor>,
        waiter: &dyn Waiter,
        timeout: Duration,
    ) -> Ended {
        let (waker, watch) = (waiter.waker(), Stopwatch::start());
        loop {
            if let Poll::Ready(ended) = self.poll_within(executor, &waker) {
                return ended;
            }
            let left = timeout.saturating_sub(watch.elapsed());
            if waiter.park(left) == Wake::Interrupted {
                return Ended::Interrupted;
            }
            if left.is_zero() {
                return Ended::TimedOut;
            }
        }
    }

    fn poll_once(&mut self, context: &mut Context<'_>) -> Poll<Ended> {
        let Some(future) = &mut self.future else { return Poll::Ready(Ended::Dropped) };
        let limit = self.limit;
        let polled = catch_unwind(AssertUnwindSafe(|| match future.as_mut().poll(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(value)) => Poll::Ready(match to_json(&value, limit) {
                Ok(json) => Ended::Value(json),
                Err(Unfit::TooLong) => Ended::TooLarge("the result is larger than the limit"),
                Err(Unfit::TooDeep) => Ended::TooLarge("the result nests deeper than 128"),
            }),
            Poll::Ready(Err(error)) => Poll::Ready(Ended::Failed(error)),
        }));
        let polled = polled.unwrap_or_else(|panic| Poll::Ready(panicked(panic)));
        if polled.is_ready() {
            self.discard();
        }
        polled
    }

    fn discard(&mut self) {
        let future = self.future.take();
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(future))) {
            let detail = text_of(&*panic);
            tracing::error!(detail, "the future of a tool panicked while it was dropped");
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.discard();
    }
}

impl Future for Task {
    type Output = Ended;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Ended> {
        self.poll_once(context)
    }
}

fn panicked(panic: Box<dyn Any + Send>) -> Ended {
    Ended::Panicked(text_of(&*panic))
}

pub(crate) fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}

/// Where calls that run elsewhere leave how they ended, by their id.
pub(crate) struct Completions {
    /// Woken at every completion.
    waker: Waker,
    /// Most bytes of arguments of running calls and of values that wait.
    room: u64,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    ended: BTreeMap<u64, Ended>,
    bytes: u64,
}

impl Completions {
    pub(crate) fn new(waker: Waker, room: u64) -> Self {
        Self { waker, room, waiting: Mutex::default() }
    }

    /// Sets bytes aside for the arguments of a call; whether they fit.
    pub(crate) fn charge(&self, bytes: u64) -> bool {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let total = waiting.bytes.saturating_add(bytes);
        let fits = total <= self.room;
        if fits {
            waiting.bytes = total;
        }
        fits
    }

    /// Gives back what [`Completions::charge`] set aside.
    pub(crate) fn release(&self, bytes: u64) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.bytes = waiting.bytes.saturating_sub(bytes);
    }

    fn push(&self, id: u64, ended: Ended) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let total = waiting.bytes.saturating_add(ended.bytes());
        let ended = if total <= self.room {
            waiting.bytes = total;
            ended
        } else {
            Ended::TooLarge("too many bytes of other results wait to be taken")
        };
        waiting.ended.insert(id, ended);
        drop(waiting);
        self.waker.wake_by_ref();
    }

    /// Takes how this call ended, if it has.
    pub(crate) fn take(&self, id: u64) -> Option<Ended> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let ended = waiting.ended.remove(&id)?;
        waiting.bytes = waiting.bytes.saturating_sub(ended.bytes());
        Some(ended)
    }

    /// Whether this call has ended and its end was not taken.
    pub(crate) fn has(&self, id: u64) -> bool {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).ended.contains_key(&id)
    }

    /// Takes the first end whose value has at most `room` bytes; the first that
    /// has more stays, and nothing behind it is taken.
    pub(crate) fn take_first(&self, room: u64) -> Option<(u64, Ended)> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let (id, ended) =
            waiting.ended.first_entry().filter(|first| first.get().bytes() <= room)?.remove_entry();
        waiting.bytes = waiting.bytes.saturating_sub(ended.bytes());
        Some((id, ended))
    }

    /// The future that runs a task elsewhere and leaves its end here.
    pub(crate) fn follow(
        self: &Arc<Self>,
        id: u64,
        task: Task,
    ) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let mut end = End { id, completions: Some(Arc::clone(self)) };
        Box::pin(async move {
            let ended = task.await;
            end.leave(ended);
        })
    }
}

/// Leaves an end also if the future that owns it is dropped.
struct End {
    id: u64,
    completions: Option<Arc<Completions>>,
}

impl End {
    fn leave(&mut self, ended: Ended) {
        if let Some(completions) = self.completions.take() {
            completions.push(self.id, ended);
        }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.leave(Ended::Dropped);
    }
}
