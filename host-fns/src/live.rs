//! A policy that can be replaced while a session runs.
//!
//! Invariant: what replaces it is a whole, valid policy over the same mounts;
//! otherwise the old one stays. Each has a generation of its own, which every
//! audit record carries.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use fumehood_policies::Policy;

/// Why a policy was not replaced; the old one holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the new policy has other mounts; start a new session to change them")]
pub struct OtherMounts;

/// The policy of a session, shared by its brokers.
#[derive(Debug)]
pub struct LivePolicy {
    generation: AtomicU64,
    policy: Mutex<Policy>,
}

impl LivePolicy {
    /// Begins with a policy.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        Self { generation: AtomicU64::new(policy.generation()), policy: Mutex::new(policy) }
    }

    /// The policy that holds.
    #[must_use]
    pub fn current(&self) -> Policy {
        self.policy.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The generation of the policy that holds.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Lets another policy hold from the next request on, and returns its
    /// generation.
    ///
    /// # Errors
    /// [`OtherMounts`]; the old policy holds.
    pub fn replace(&self, policy: Policy) -> Result<u64, OtherMounts> {
        let mut current = self.policy.lock().unwrap_or_else(PoisonError::into_inner);
        if current.mounts() != policy.mounts() {
            return Err(OtherMounts);
        }
        let generation = current.generation().saturating_add(1);
        *current = policy.with_generation(generation);
        self.generation.store(generation, Ordering::Release);
        Ok(generation)
    }
}
