//! A policy that can be replaced while a session runs.
//!
//! Invariant: what replaces it is a whole, valid policy over the same mounts,
//! with the same budget and variables, which a session takes over when it
//! begins; otherwise the old one stays. Each has a generation of its own, which
//! every audit record carries.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use fumehood_policies::{BudgetLimits, Policy};

/// What a session began with and a policy cannot change under it; the old
/// policy holds.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotReplaced {
    /// It has other mounts.
    #[error("the new policy has other mounts; start a new session to change them")]
    Mounts,
    /// A number of its budget is another.
    #[error(
        "the new policy has another number for `{key}` of [budget]; start a new session to change it"
    )]
    Budget {
        /// The key in policy text.
        key: String,
    },
    /// It gives the guest other variables.
    #[error(
        "the new policy has other variables in `{key}` of [env]; start a new session to change them"
    )]
    Environment {
        /// `set` or `allow`.
        key: &'static str,
    },
}

impl NotReplaced {
    /// A stable identifier.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Mounts => "policy_mounts",
            Self::Budget { .. } => "policy_budget",
            Self::Environment { .. } => "policy_environment",
        }
    }

    /// Whether one policy can take the place of another.
    fn check(old: &Policy, new: &Policy) -> Result<(), Self> {
        if old.mounts() != new.mounts() {
            return Err(Self::Mounts);
        }
        if let Some(key) = other_number(old.budget(), new.budget()) {
            return Err(Self::Budget { key });
        }
        if old.environment() != new.environment() {
            return Err(Self::Environment { key: "set" });
        }
        if old.passed_environment() != new.passed_environment() {
            return Err(Self::Environment { key: "allow" });
        }
        Ok(())
    }
}

/// The key of the first number that is not the same in both.
fn other_number(old: &BudgetLimits, new: &BudgetLimits) -> Option<String> {
    let differs = old.entries().zip(new.entries()).find(|(old, new)| old != new);
    if let Some(((key, _), _)) = differs {
        return Some(key.to_owned());
    }
    let (old, new) = (&old.tool_calls, &new.tool_calls);
    let mut tools = old.keys().chain(new.keys());
    let tool = tools.find(|tool| old.get(*tool) != new.get(*tool))?;
    Some(format!("tool_calls.{tool}"))
}

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
    /// [`NotReplaced`]; the old policy holds.
    pub fn replace(&self, policy: Policy) -> Result<u64, NotReplaced> {
        let mut current = self.policy.lock().unwrap_or_else(PoisonError::into_inner);
        NotReplaced::check(&current, &policy)?;
        let generation = current.generation().saturating_add(1);
        *current = policy.with_generation(generation);
        self.generation.store(generation, Ordering::Release);
        Ok(generation)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use fumehood_policies::{Flags, PolicyFile};

    use super::*;

    const TEXT: &str = "version = 1\n[fs]\n[budget]\nrequests = 7\ntool_calls = { pay = 2 }\n\
                        [env]\nset = { A = \"1\" }\nallow = [\"HOME\"]\n";

    fn policy(text: &str) -> Policy {
        let file = PolicyFile::parse(text, "test").unwrap();
        Policy::combine(Some(&file), &Flags::default(), None).unwrap().policy
    }

    #[test]
    fn what_a_session_began_with_is_not_replaced() {
        let live = LivePolicy::new(policy(TEXT));
        for (old, new, code, named) in [
            ("[fs]", "[fs]\nmemory = \"none\"", "policy_mounts", "mounts"),
            ("requests = 7", "requests = 8", "policy_budget", "`requests` of [budget]"),
            ("requests = 7", "", "policy_budget", "`requests` of [budget]"),
            ("pay = 2", "pay = 3", "policy_budget", "`tool_calls.pay` of [budget]"),
            ("pay = 2", "pay = 2, read = 1", "policy_budget", "`tool_calls.read` of [budget]"),
            ("A = \"1\"", "A = \"2\"", "policy_environment", "`set` of [env]"),
            ("allow = [\"HOME\"]\n", "", "policy_environment", "`allow` of [env]"),
        ] {
            let error = live.replace(policy(&TEXT.replacen(old, new, 1))).unwrap_err();
            assert_eq!(error.code(), code);
            assert!(error.to_string().contains(named), "{error}");
            assert_eq!((live.generation(), live.current()), (1, policy(TEXT)));
        }
        let rules = "[[tools.rules]]\nid = \"a\"\ntools = [\"a\"]\n[[fs.rules]]\nid = \"b\"\npaths = [\"/work/**\"]\n";
        assert_eq!(live.replace(policy(&format!("{TEXT}{rules}"))), Ok(2));
        assert_eq!(live.replace(policy(TEXT)), Ok(3));
    }
}
