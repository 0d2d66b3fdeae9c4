//! What an attempt led to, as evidence.
//!
//! Invariant: every outcome that an attempt saw is kept, so that the check for
//! details of the host sees all of them.

use std::time::Duration;

use fumehood::Outcome;

use super::attack::Capability;

/// One run and how long its caller waited for it.
#[derive(Clone, Debug)]
pub struct Ran {
    /// What it gave.
    pub outcome: Outcome,
    /// From start to answer.
    pub took: Duration,
    /// The wall-clock limit it had.
    pub wall: Duration,
}

/// What an attempt led to.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// Every run, the judged one last.
    pub ran: Vec<Ran>,
    /// Why nothing was started.
    pub refused: Option<String>,
    /// What the host saw, in a word that is compared.
    pub fact: Option<String>,
    /// Measurements for the table.
    pub notes: Vec<String>,
    /// The attempt itself could not be made.
    pub broken: Option<String>,
    /// The attempt needs something that is not here.
    pub waiting: Option<Capability>,
}

impl Observed {
    /// One run.
    #[must_use]
    pub fn run(ran: Ran) -> Self {
        Self { ran: vec![ran], ..Self::default() }
    }

    /// Nothing was started.
    pub fn refused(reason: impl Into<String>) -> Self {
        Self { refused: Some(reason.into()), ..Self::default() }
    }

    /// What the host saw.
    pub fn fact(fact: impl Into<String>) -> Self {
        Self { fact: Some(fact.into()), ..Self::default() }
    }

    /// The attempt could not be made.
    pub fn broken(why: impl Into<String>) -> Self {
        Self { broken: Some(why.into()), ..Self::default() }
    }

    /// Something is not here.
    #[must_use]
    pub fn waiting(capability: Capability) -> Self {
        Self { waiting: Some(capability), ..Self::default() }
    }

    /// Adds runs that are evidence too.
    #[must_use]
    pub fn seen(mut self, ran: impl IntoIterator<Item = Ran>) -> Self {
        self.ran.extend(ran);
        self
    }

    /// Adds a measurement.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.notes.push(note.into());
        self
    }
}
