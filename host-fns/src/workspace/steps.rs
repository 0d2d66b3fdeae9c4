//! The places of a sync at which it can fail or be killed.
//!
//! Why: tests go through each of them.

use std::io;

/// Told before every step that changes something.
pub(crate) trait Steps {
    /// # Errors
    /// The step is then not taken and counts as failed.
    fn step(&self, what: &'static str) -> io::Result<()>;
}

/// Every step is taken.
pub(crate) struct Every;

impl Steps for Every {
    fn step(&self, _what: &'static str) -> io::Result<()> {
        Ok(())
    }
}
