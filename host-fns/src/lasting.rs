//! Effects that left the sandbox, so that no rollback undoes them.
//!
//! What: changes of mounted directories and every effect that is not on a file.
//! Why: after a rollback the embedder has to know what stayed.
//!
//! Invariant: what began and did not certainly fail is listed, or counted when
//! the list is full.

use std::collections::BTreeMap;

use fumehood_policies::GuestPath;

use crate::audit::{Outcome, Target};

/// Something that was done outside the sandbox, once or many times.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct LastingEffect {
    /// Stable name of the operation.
    pub operation: String,
    /// What it acted on, escaped.
    pub target: String,
    /// How often.
    pub count: u64,
}

/// Lasting effects since the last report, equal ones counted in one.
#[derive(Debug)]
pub(crate) struct Lasting {
    limit: usize,
    /// Where host directories are mounted.
    mounts: Vec<GuestPath>,
    seen: BTreeMap<(&'static str, Target), u64>,
    not_listed: u64,
}

impl Lasting {
    pub(crate) fn new(limit: u32, mounts: Vec<GuestPath>) -> Self {
        Self { limit: limit as usize, mounts, seen: BTreeMap::new(), not_listed: 0 }
    }

    fn on_host(&self, path: &GuestPath) -> bool {
        self.mounts.iter().any(|mount| path.starts_with(mount))
    }

    /// Takes note of an effect that was decided one by one.
    pub(crate) fn effect(&mut self, operation: &'static str, target: &Target, outcome: Outcome) {
        let leaves = match target {
            // A run is not an effect but what effects are part of.
            Target::None | Target::Name(_) | Target::Program(_) => false,
            // To open for reading changes nothing.
            Target::Path(path) => operation != "fs.read" && self.on_host(path),
            Target::Paths(from, to) => self.on_host(from) || self.on_host(to),
            _ => true,
        };
        if leaves && !matches!(outcome, Outcome::Failed(_) | Outcome::Redirected) {
            self.add(operation, target);
        }
    }

    /// Takes note of writes through an open descriptor.
    pub(crate) fn stream(&mut self, operation: &'static str, target: &Target, bytes_out: u64) {
        let leaves = matches!(target, Target::Path(path) if self.on_host(path));
        if leaves && bytes_out != 0 {
            self.add(operation, target);
        }
    }

    fn add(&mut self, operation: &'static str, target: &Target) {
        let full = self.seen.len() >= self.limit;
        let key = (operation, target.clone());
        if let Some(count) = self.seen.get_mut(&key) {
            *count = count.saturating_add(1);
        } else if full {
            self.not_listed = self.not_listed.saturating_add(1);
        } else {
            self.seen.insert(key, 1);
        }
    }

    /// The list, sorted by operation and target, and how many are not in it.
    pub(crate) fn take(&mut self) -> (Vec<LastingEffect>, u64) {
        let list =
            std::mem::take(&mut self.seen).into_iter().map(|((operation, target), count)| {
                LastingEffect { operation: operation.to_owned(), target: target.to_string(), count }
            });
        (list.collect(), std::mem::take(&mut self.not_listed))
    }
}
