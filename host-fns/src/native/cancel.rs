//! Ending a command from another thread.

use std::fmt;
use std::sync::{Mutex, PoisonError};

type Action = Box<dyn FnOnce() + Send>;

/// Ends the command that it was given to, from any thread, once.
#[derive(Default)]
pub struct CancelToken {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    cancelled: bool,
    action: Option<Action>,
}

impl CancelToken {
    /// A token that was not used.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends the command, or the next one that is given this token.
    pub fn cancel(&self) {
        let action = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.cancelled = true;
            state.action.take()
        };
        if let Some(action) = action {
            action();
        }
    }

    /// Whether [`CancelToken::cancel`] was called.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).cancelled
    }

    /// What a tier wants to be done at [`CancelToken::cancel`]; at once if that
    /// was already. It replaces what was there.
    pub fn on_cancel(&self, action: impl FnOnce() + Send + 'static) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.cancelled {
            drop(state);
            action();
        } else {
            state.action = Some(Box::new(action));
        }
    }
}

impl fmt::Debug for CancelToken {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("CancelToken").field("cancelled", &self.is_cancelled()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn the_action_is_done_once_whichever_comes_first() {
        let count = Arc::new(AtomicU32::new(0));
        let add = |by: u32| {
            let count = Arc::clone(&count);
            move || {
                count.fetch_add(by, Ordering::Relaxed);
            }
        };
        let token = CancelToken::new();
        token.on_cancel(add(1));
        token.cancel();
        token.cancel();
        assert_eq!(count.load(Ordering::Relaxed), 1);
        token.on_cancel(add(10));
        assert_eq!(count.load(Ordering::Relaxed), 11);
        assert!(token.is_cancelled());
    }
}
