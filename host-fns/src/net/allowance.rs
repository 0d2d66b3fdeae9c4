//! How much one direction of an exchange may still move.
//!
//! Invariant: bytes are taken before they are sent on, from the session's
//! budget, the host's and the rule's, or from none of them.

use std::sync::Arc;

use fumehood_policies::HostLimit;

use crate::meter::{Budget, SharedMeter};

/// A budget or bound that is used up; its name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is used up")]
pub struct Exceeded(pub String);

/// What one direction of one exchange draws on.
#[derive(Debug)]
pub struct Allowance {
    meter: SharedMeter,
    budget: Budget,
    host: Arc<str>,
    limits: Vec<HostLimit>,
    /// What the rule leaves, and the rule.
    left: Option<u64>,
    rule: Arc<str>,
    moved: u64,
}

impl Allowance {
    pub(crate) fn new(
        meter: SharedMeter,
        budget: Budget,
        host: Arc<str>,
        limits: Vec<HostLimit>,
        most: Option<u64>,
        rule: Arc<str>,
    ) -> Self {
        Self { meter, budget, host, limits, left: most, rule, moved: 0 }
    }

    /// Takes some bytes.
    ///
    /// # Errors
    /// [`Exceeded`]; nothing was taken.
    pub fn take(&mut self, bytes: u64) -> Result<(), Exceeded> {
        self.fits(bytes)?;
        self.meter
            .take(self.budget, bytes)
            .map_err(|exhausted| Exceeded(exhausted.0.name().to_owned()))?;
        if let Err(name) = self.meter.hosts().take_bytes(&self.host, &self.limits, bytes) {
            self.meter.give_back(self.budget, bytes);
            return Err(Exceeded(name));
        }
        self.left = self.left.map(|left| left.saturating_sub(bytes));
        self.moved = self.moved.saturating_add(bytes);
        Ok(())
    }

    /// Whether the rule leaves room for some bytes; nothing is taken.
    ///
    /// # Errors
    /// [`Exceeded`] if it does not.
    pub fn fits(&self, bytes: u64) -> Result<(), Exceeded> {
        match self.left {
            Some(left) if bytes > left => Err(Exceeded(format!("max_bytes of rule {}", self.rule))),
            _ => Ok(()),
        }
    }

    /// How many bytes were taken.
    #[must_use]
    pub fn moved(&self) -> u64 {
        self.moved
    }
}
