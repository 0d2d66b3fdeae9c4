//! Where the outcome of a run goes.
//!
//! Invariant: a run is answered once, by whoever is first: the guest's thread
//! or the ticker; the observer hears of that answer.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;

use crate::observer::{ExecutionEvent, Observer};
use crate::outcome::Outcome;

/// Where the outcome goes; the first sender wins.
#[derive(Clone)]
pub(crate) struct Answer {
    sender: Arc<Mutex<Option<oneshot::Sender<Outcome>>>>,
    observer: Option<Arc<dyn Observer>>,
    /// What was executed, as an observer is told.
    kind: &'static str,
}

impl Answer {
    /// Goes to the receiver of `sender`, and is told to the observer.
    pub(crate) fn new(
        sender: oneshot::Sender<Outcome>,
        observer: Option<Arc<dyn Observer>>,
    ) -> Self {
        Self { sender: Arc::new(Mutex::new(Some(sender))), observer, kind: "code" }
    }

    /// The answer to a command line.
    pub(crate) fn into_command(self) -> Self {
        Self { kind: "command", ..self }
    }

    /// Whether there is an outcome already.
    pub(crate) fn is_given(&self) -> bool {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    pub(crate) fn send(&self, outcome: Outcome) {
        let sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(sender) = sender {
            if let Some(observer) = &self.observer {
                let event = ExecutionEvent { kind: self.kind, ..ExecutionEvent::of(&outcome) };
                let told = std::panic::AssertUnwindSafe(|| observer.executed(&event));
                if std::panic::catch_unwind(told).is_err() {
                    tracing::error!("an observer panicked");
                }
            }
            // Nobody waits for a run that was dropped.
            let _ = sender.send(outcome);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::OutcomeKind;

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
            let answer = Answer::new(sender, Some(Arc::clone(&observer)));
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
}
