//! A run or a cell that goes on on a guest thread: its outcome, and what stops
//! it.
//!
//! Invariant: every run has exactly one outcome, whatever becomes of its
//! thread. Dropping a [`Run`] stops it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::sync::oneshot;

use crate::answer::Answer;
use crate::control::Control;
use crate::fault;
use crate::observer::Observer;
use crate::outcome::{Outcome, OutcomeKind};

/// A run that has been started; await it for its [`Outcome`].
///
/// Cancel-safe: dropping it stops the guest within one tick and loses only the
/// outcome.
#[derive(Debug)]
#[must_use = "a run that is dropped is cancelled"]
pub struct Run {
    control: Arc<Control>,
    receiver: oneshot::Receiver<Outcome>,
    session: String,
    done: bool,
}

/// Stops one run from anywhere.
#[derive(Clone, Debug)]
pub struct Canceller(Arc<Control>);

impl Canceller {
    /// Stops the run; its outcome is `cancelled`. Does nothing if it has ended.
    pub fn cancel(&self) {
        self.0.cancel();
    }
}

impl Run {
    /// A run that `control` stops, and where its outcome is sent.
    pub(crate) fn new(
        control: Arc<Control>,
        session: String,
        observer: Option<Arc<dyn Observer>>,
    ) -> (Self, Answer) {
        let (sender, receiver) = oneshot::channel();
        let answer = Answer::new(sender, session.clone(), observer);
        (Self { control, receiver, session, done: false }, answer)
    }

    /// A handle that stops this run.
    #[must_use]
    pub fn canceller(&self) -> Canceller {
        Canceller(Arc::clone(&self.control))
    }

    /// Waits on the calling thread, which must not be one of an async runtime.
    #[must_use]
    pub fn wait(mut self) -> Outcome {
        self.done = true;
        let (_, closed) = oneshot::channel();
        let receiver = std::mem::replace(&mut self.receiver, closed);
        receiver.blocking_recv().unwrap_or_else(|_| lost(&self.session))
    }
}

impl Future for Run {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let outcome = std::task::ready!(Pin::new(&mut self.receiver).poll(context));
        self.done = true;
        Poll::Ready(outcome.unwrap_or_else(|_| lost(&self.session)))
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if !self.done {
            self.control.cancel();
        }
    }
}

/// The guest's thread ended without an answer.
fn lost(session: &str) -> Outcome {
    let reference = fault::report("a guest thread ended without an outcome");
    Outcome::empty(OutcomeKind::SandboxFault { reference }, session)
}
