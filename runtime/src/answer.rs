//! Where the outcome of an execution goes.
//!
//! Invariant: an execution is answered once, by whoever is first: the guest's
//! thread or the ticker; the observer hears of that answer. One that everybody
//! let go of without an answer is answered as a `sandbox_fault`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;

use crate::fault;
use crate::observer::{ExecutionEvent, Observer};
use crate::outcome::{Outcome, OutcomeKind};

/// Where the outcome goes; the first sender wins.
#[derive(Clone)]
pub(crate) struct Answer(Arc<Inner>);

type Receive = Box<dyn FnOnce(Outcome) + Send>;

struct Inner {
    receive: Mutex<Option<Receive>>,
    observer: Option<Arc<dyn Observer>>,
    session: String,
    /// Whether a command line was executed, and not code.
    command: AtomicBool,
}

impl Answer {
    /// Goes to the receiver of `sender`, and is told to the observer.
    pub(crate) fn new(
        sender: oneshot::Sender<Outcome>,
        session: String,
        observer: Option<Arc<dyn Observer>>,
    ) -> Self {
        let receive = move |outcome| {
            // Nobody waits for a run that was dropped.
            let _ = sender.send(outcome);
        };
        Self::through(Box::new(receive), session, observer)
    }

    /// Goes to `receive`, and is told to the observer.
    pub(crate) fn through(
        receive: Receive,
        session: String,
        observer: Option<Arc<dyn Observer>>,
    ) -> Self {
        let receive = Mutex::new(Some(receive));
        Self(Arc::new(Inner { receive, observer, session, command: AtomicBool::new(false) }))
    }

    /// The answer to a command line.
    pub(crate) fn into_command(self) -> Self {
        self.0.command.store(true, Ordering::Relaxed);
        self
    }

    /// The right to answer, which nobody else has from then on; `None` if there
    /// is an outcome already.
    pub(crate) fn claim(&self) -> Option<Self> {
        let inner = &self.0;
        let receive = inner.receive.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        Some(Self(Arc::new(Inner {
            receive: Mutex::new(Some(receive)),
            observer: inner.observer.clone(),
            session: inner.session.clone(),
            command: AtomicBool::new(inner.command.load(Ordering::Relaxed)),
        })))
    }

    pub(crate) fn send(&self, outcome: Outcome) {
        self.0.send(outcome);
    }
}

impl Inner {
    fn send(&self, outcome: Outcome) {
        let receive = self.receive.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(receive) = receive {
            self.tell(&outcome);
            receive(outcome);
        }
    }

    fn tell(&self, outcome: &Outcome) {
        let Some(observer) = &self.observer else { return };
        let mut event = ExecutionEvent::of(outcome);
        if self.command.load(Ordering::Relaxed) {
            event.kind = "command";
        }
        if catch_unwind(AssertUnwindSafe(|| observer.executed(&event))).is_err() {
            tracing::error!("an observer panicked");
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let receive = self.receive.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(receive) = receive {
            let reference = fault::report("an execution ended without an outcome");
            let outcome = Outcome::empty(OutcomeKind::SandboxFault { reference }, &self.session);
            self.tell(&outcome);
            receive(outcome);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_observer_hears_of_every_execution_once() {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&heard);
        let observer: Arc<dyn Observer> = Arc::new(move |event: &ExecutionEvent| {
            into.lock().unwrap().push(serde_json::to_value(event).unwrap());
            panic!("an observer that fails changes nothing");
        });
        for (number, kind) in ["code", "command"].into_iter().enumerate() {
            let (sender, receiver) = oneshot::channel();
            let answer = Answer::new(sender, "s".to_owned(), Some(Arc::clone(&observer)));
            let answer = if kind == "command" { answer.into_command() } else { answer };
            answer.clone().send(Outcome::empty(OutcomeKind::Cancelled, "s"));
            answer.send(Outcome::empty(OutcomeKind::Completed, "s"));
            assert_eq!(receiver.blocking_recv().unwrap().kind, OutcomeKind::Cancelled);
            let heard = heard.lock().unwrap();
            assert_eq!(heard.len(), number + 1);
            let event = heard[number].as_object().unwrap();
            let keys: Vec<&str> = event.keys().take(6).map(String::as_str).collect();
            let wanted = ["kind", "tier", "exit_code", "timed_out", "execution_time_ms", "denials"];
            assert_eq!(keys, wanted);
            assert_eq!(event["kind"], kind);
        }
    }

    #[test]
    fn whoever_has_claimed_an_answer_gives_it() {
        let (sender, receiver) = oneshot::channel();
        let answer = Answer::new(sender, "s".to_owned(), None);
        let claimed = answer.claim().unwrap();
        assert!(answer.claim().is_none());
        answer.send(Outcome::empty(OutcomeKind::Cancelled, "s"));
        claimed.send(Outcome::empty(OutcomeKind::Completed, "s"));
        assert_eq!(receiver.blocking_recv().unwrap().kind, OutcomeKind::Completed);
    }

    #[test]
    fn an_answer_that_is_let_go_of_is_a_fault_that_the_observer_hears_of() {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&heard);
        let observer: Arc<dyn Observer> = Arc::new(move |event: &ExecutionEvent| {
            into.lock().unwrap().push((event.session.clone(), event.outcome));
        });
        let (sender, receiver) = oneshot::channel();
        let answer = Answer::new(sender, "s".to_owned(), Some(observer));
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _answer = answer;
            panic!("what was asked of a session panicked");
        }));
        assert!(panicked.is_err());
        let outcome = receiver.blocking_recv().unwrap();
        assert!(matches!(outcome.kind, OutcomeKind::SandboxFault { .. }), "{:?}", outcome.kind);
        assert_eq!(*heard.lock().unwrap(), [("s".to_owned(), "sandbox_fault")]);
    }
}
