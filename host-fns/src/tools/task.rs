//! One call of a tool, from its start to its end.
//!
//! What: a [`Task`] is the embedder's future with its panics caught and its
//! result made text; [`Completions`] is where tasks that run elsewhere end.
//!
//! Invariant: a panic of the embedder's function, of its future or of that
//! future's destructor ends in [`Ended::Panicked`] or the log and goes no
//! further. A task that was spawned ends in exactly one completion, also if its
//! runtime drops it. What waits to be told is cut when the call ends, and a call
//! that ends after its time has timed out, whenever its end is looked at.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use fumehood_policies::ToolRequest;
use serde_json::Value;

use crate::environment::{Stopwatch, Waiter, Wake};
use crate::pipeline::Checked;
use crate::tools::result::{Unfit, take_apart, to_json};
use crate::tools::{Executor, MAX_TOOL_MESSAGE_BYTES, Tool, ToolError, ToolFuture, capped, cut};

/// How a call ended.
#[derive(Debug)]
pub(crate) enum Ended {
    /// With JSON text within the limit.
    Value(Vec<u8>),
    /// The function said that it failed: the message, and its cause for the log;
    /// both are cut.
    Failed {
        /// What the guest sees.
        message: String,
        /// What it does not.
        source: Option<String>,
    },
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

    /// What a function's result becomes.
    fn of(result: Result<Value, ToolError>, limit: usize) -> Self {
        let value = match result {
            Ok(value) => value,
            Err(ToolError { message, source }) => {
                let source =
                    source.map(|cause| capped(format_args!("{cause}"), MAX_TOOL_MESSAGE_BYTES));
                return Self::Failed { message: cut(message), source };
            }
        };
        let unfit = match to_json(&value, limit) {
            Ok(json) => return Self::Value(json),
            Err(unfit) => unfit,
        };
        take_apart(value);
        Self::TooLarge(match unfit {
            Unfit::TooLong => "the result is larger than the limit",
            Unfit::TooDeep => "the result nests deeper than 128",
        })
    }

    /// This end, or that the call timed out if it came too late.
    pub(crate) fn unless_late(self, late: bool) -> Self {
        match self {
            Self::Value(_) | Self::Failed { .. } | Self::TooLarge(_) if late => Self::TimedOut,
            ended => ended,
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
    /// Calls the function with the arguments that were decided on.
    ///
    /// # Errors
    /// [`Ended::Panicked`], also if the decision was about another tool.
    pub(crate) fn start(
        tool: &Tool,
        checked: &Checked<'_, ToolRequest>,
        limit: usize,
    ) -> Result<Self, Ended> {
        let request = checked.get();
        if request.name() != tool.name() {
            return Err(Ended::Panicked("another tool was decided on".to_owned()));
        }
        let arguments = request.arguments().clone();
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
                return ended.unless_late(watch.elapsed() > timeout);
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
        let polled = catch_unwind(AssertUnwindSafe(|| {
            future.as_mut().poll(context).map(|result| Ended::of(result, limit))
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
    Ended::Panicked(cut(text_of(&*panic)))
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
    /// What deadlines and completions are measured on.
    clock: Stopwatch,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    ended: BTreeMap<u64, Ended>,
    bytes: u64,
}

impl Completions {
    pub(crate) fn new(waker: Waker, room: u64) -> Self {
        Self { waker, room, clock: Stopwatch::start(), waiting: Mutex::default() }
    }

    /// The time since it was made, on which deadlines are.
    pub(crate) fn now(&self) -> Duration {
        self.clock.elapsed()
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

    /// Leaves how a call ended, unless that is known already.
    pub(crate) fn push(&self, id: u64, ended: Ended) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.ended.contains_key(&id) {
            return;
        }
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

    /// Takes the first end whose value has at most `room` bytes; the first that
    /// has more stays, and nothing behind it is taken.
    pub(crate) fn take_first(&self, room: u64) -> Option<(u64, Ended)> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let (id, ended) =
            waiting.ended.first_entry().filter(|first| first.get().bytes() <= room)?.remove_entry();
        waiting.bytes = waiting.bytes.saturating_sub(ended.bytes());
        Some((id, ended))
    }

    /// The future that runs a task elsewhere and leaves its end here; one after
    /// `deadline` comes too late.
    pub(crate) fn follow(
        self: &Arc<Self>,
        id: u64,
        task: Task,
        deadline: Duration,
    ) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let mut end = End { id, deadline, completions: Some(Arc::clone(self)) };
        Box::pin(async move {
            let ended = task.await;
            end.leave(ended);
        })
    }
}

/// Leaves an end also if the future that owns it is dropped.
struct End {
    id: u64,
    deadline: Duration,
    completions: Option<Arc<Completions>>,
}

impl End {
    fn leave(&mut self, ended: Ended) {
        if let Some(completions) = self.completions.take() {
            let late = completions.now() > self.deadline;
            completions.push(self.id, ended.unless_late(late));
        }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.leave(Ended::Dropped);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn nested(depth: usize) -> Value {
        (0..depth).fold(Value::Null, |inner, at| {
            if at % 2 == 0 {
                Value::Array(vec![inner])
            } else {
                Value::Object([("a".to_owned(), inner)].into_iter().collect())
            }
        })
    }

    #[test]
    fn a_value_that_nests_without_end_is_dropped_on_a_small_stack() {
        let small = std::thread::Builder::new().stack_size(256 << 10);
        let thread = small.spawn(|| {
            let ended = Ended::of(Ok(nested(100_000)), 1 << 20);
            assert!(matches!(ended, Ended::TooLarge(_)), "{ended:?}");
            // Too long before the depth is seen.
            let long = Value::String("x".repeat(100));
            let ended = Ended::of(Ok(Value::Array(vec![long, nested(100_000)])), 50);
            assert!(matches!(ended, Ended::TooLarge(_)), "{ended:?}");
            let schema = Tool::new("t", "", nested(100_000), |_| Box::pin(std::future::pending()));
            assert_eq!(schema.map(drop).map_err(|error| error.code()), Err("tool_too_large"));
        });
        thread.unwrap().join().unwrap();
    }

    #[test]
    fn what_a_failed_call_says_is_cut_when_it_ends() {
        let error = ToolError::with_source("é".repeat(1 << 20), "x".repeat(1 << 20));
        match Ended::of(Err(error), 1 << 20) {
            Ended::Failed { message, source } => {
                assert_eq!((message.len(), source.unwrap().len()), (4096, 4096));
                assert!(message.capacity() <= 2 * MAX_TOOL_MESSAGE_BYTES);
            }
            other => unreachable!("{other:?}"),
        }
    }

    #[test]
    fn the_first_end_of_a_call_is_its_end_and_a_late_one_timed_out() {
        let completions = Arc::new(Completions::new(Waker::noop().clone(), 100));
        let end = |id, deadline| End { id, deadline, completions: Some(Arc::clone(&completions)) };
        let value = || Ended::Value(b"1".to_vec());
        end(1, Duration::ZERO).leave(value());
        end(1, Duration::MAX).leave(value());
        assert!(matches!(completions.take(1), Some(Ended::TimedOut)));
        end(2, Duration::MAX).leave(value());
        drop(end(2, Duration::ZERO));
        assert!(matches!(completions.take(2), Some(Ended::Value(_))));
        end(3, Duration::ZERO).leave(Ended::Panicked(String::new()));
        assert!(matches!(completions.take(3), Some(Ended::Panicked(_))));
        drop(end(4, Duration::ZERO));
        assert!(matches!(completions.take(4), Some(Ended::Dropped)));
    }
}
