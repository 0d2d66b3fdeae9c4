//! What was asked of a session and is not yet done.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::sync::oneshot;

use super::SessionError;
use crate::fault;

/// Await it, or [`Pending::wait`], for the answer. Dropping it loses the answer
/// and not what was asked.
#[derive(Debug)]
#[must_use = "the answer says whether it was done"]
pub struct Pending<T> {
    receiver: oneshot::Receiver<Result<T, SessionError>>,
}

/// Where the answer goes.
pub(super) struct Reply<T>(oneshot::Sender<Result<T, SessionError>>);

impl<T> Reply<T> {
    pub(super) fn send(self, answer: Result<T, SessionError>) {
        // Nobody has to wait for it.
        let _ = self.0.send(answer);
    }
}

impl<T> Pending<T> {
    pub(super) fn new() -> (Self, Reply<T>) {
        let (sender, receiver) = oneshot::channel();
        (Self { receiver }, Reply(sender))
    }

    pub(super) fn failed(error: SessionError) -> Self {
        let (pending, reply) = Self::new();
        reply.send(Err(error));
        pending
    }

    /// Waits on the calling thread, which must not be one of an async runtime.
    ///
    /// # Errors
    /// [`SessionError`] says what was not done.
    pub fn wait(self) -> Result<T, SessionError> {
        self.receiver.blocking_recv().unwrap_or_else(|_| Err(lost()))
    }
}

impl<T> Future for Pending<T> {
    type Output = Result<T, SessionError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = std::task::ready!(Pin::new(&mut self.receiver).poll(context));
        Poll::Ready(answer.unwrap_or_else(|_| Err(lost())))
    }
}

/// The guest's thread ended without an answer.
fn lost() -> SessionError {
    SessionError::Unavailable(fault::report("a session gave no answer"))
}
