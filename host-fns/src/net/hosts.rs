//! What a session sent to and received from single hosts.
//!
//! Invariant: what was used never goes down, except a request that was never
//! made; there are at most as many hosts as the budget says.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fumehood_policies::HostLimit;

/// Used under one rule.
#[derive(Clone, Copy, Debug, Default)]
struct Used {
    requests: u64,
    bytes: u64,
}

type Hosts = BTreeMap<Arc<str>, BTreeMap<Arc<str>, Used>>;

/// The hosts of a session and what each of them used under each rule.
#[derive(Debug)]
pub(crate) struct HostMeter {
    most: u64,
    hosts: Mutex<Hosts>,
}

impl HostMeter {
    pub(crate) fn new(most: u64) -> Self {
        Self { most, hosts: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Hosts> {
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many hosts there were.
    pub(crate) fn count(&self) -> u64 {
        self.lock().len() as u64
    }

    /// Counts one request to a host under all rules, or under none.
    ///
    /// # Errors
    /// The name of what is used up.
    pub(crate) fn take(&self, host: &Arc<str>, limits: &[HostLimit]) -> Result<(), String> {
        let mut hosts = self.lock();
        if !hosts.contains_key(host) && hosts.len() as u64 >= self.most {
            return Err("distinct_hosts".to_owned());
        }
        let rules = hosts.entry(Arc::clone(host)).or_default();
        for limit in limits {
            let used = rules.get(&limit.rule).copied().unwrap_or_default();
            if limit.requests.is_some_and(|most| used.requests >= most) {
                return Err(format!("max_requests of rule {}", limit.rule));
            }
            if limit.bytes.is_some_and(|most| used.bytes >= most) {
                return Err(format!("max_total_bytes of rule {}", limit.rule));
            }
        }
        for limit in limits {
            let used = rules.entry(Arc::clone(&limit.rule)).or_default();
            used.requests = used.requests.saturating_add(1);
        }
        Ok(())
    }

    /// Gives back a request that was never made.
    pub(crate) fn give_back(&self, host: &Arc<str>, limits: &[HostLimit]) {
        let mut hosts = self.lock();
        let Some(rules) = hosts.get_mut(host) else { return };
        for limit in limits {
            if let Some(used) = rules.get_mut(&limit.rule) {
                used.requests = used.requests.saturating_sub(1);
            }
        }
    }

    /// Counts bytes to or from a host under all rules, or under none.
    ///
    /// # Errors
    /// The name of what is used up.
    pub(crate) fn take_bytes(
        &self,
        host: &Arc<str>,
        limits: &[HostLimit],
        bytes: u64,
    ) -> Result<(), String> {
        if limits.iter().all(|limit| limit.bytes.is_none()) {
            return Ok(());
        }
        let mut hosts = self.lock();
        let rules = hosts.entry(Arc::clone(host)).or_default();
        let total = |rules: &BTreeMap<Arc<str>, Used>, limit: &HostLimit| {
            rules.get(&limit.rule).copied().unwrap_or_default().bytes.saturating_add(bytes)
        };
        if let Some(limit) =
            limits.iter().find(|limit| limit.bytes.is_some_and(|most| total(rules, limit) > most))
        {
            return Err(format!("max_total_bytes of rule {}", limit.rule));
        }
        for limit in limits {
            let now = total(rules, limit);
            rules.entry(Arc::clone(&limit.rule)).or_default().bytes = now;
        }
        Ok(())
    }
}
