//! Rules: what a section of a policy says about a request.
//!
//! What: one module per resource, each with its rule type and a function from
//! request to [`Ruled`].
//! Why: deny wins, then ask, then allow, in one place for all of them.
//!
//! Invariant: rules are kept sorted by id, so that neither the verdict nor the
//! rule that is named depends on the order in the file.

use std::sync::Arc;

use crate::address::AddressGrant;

pub(crate) mod constraint;
pub(crate) mod fs;
pub(crate) mod net;
pub(crate) mod tools;

/// What a rule does with the requests that it matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// Allows them, unless another rule denies or asks.
    Allow,
    /// Sends them to an approver, unless another rule denies.
    Ask,
    /// Denies them.
    Deny,
}

impl Action {
    /// The name in policy text.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Ask => "ask",
            Self::Deny => "deny",
        }
    }
}

/// What the executor must still hold the request to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Obligations {
    /// Calls the session may make under a rule, this one included; each is a
    /// counter of its own.
    pub max_calls: Vec<CallLimit>,
    /// Most bytes of the request; already checked where the request has them.
    pub max_request_bytes: Option<u64>,
    /// Most bytes of the response.
    pub max_response_bytes: Option<u64>,
    /// Names of the secrets that may be put in.
    pub secrets: Vec<Arc<str>>,
    /// A name may lead to public addresses only.
    pub public_only: bool,
    /// Budgets of the request's host, each a counter of its own.
    pub host_limits: Vec<HostLimit>,
}

/// How much a rule lets through to each host in a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostLimit {
    /// The rule.
    pub rule: Arc<str>,
    /// Most requests.
    pub requests: Option<u64>,
    /// Most bytes in both directions together.
    pub bytes: Option<u64>,
}

/// How often a rule may be used in a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallLimit {
    /// The rule, which is also the name of the counter.
    pub rule: Arc<str>,
    /// Its bound.
    pub calls: u64,
}

impl Obligations {
    /// Whether there is nothing to hold the request to.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Which answers a name may lead to.
    #[must_use]
    pub fn addresses(&self) -> AddressGrant {
        if self.public_only { AddressGrant::Public } else { AddressGrant::Private }
    }

    /// Takes the stricter of both in everything.
    pub(crate) fn tighten(&mut self, other: Self) {
        let least = |left: Option<u64>, right: Option<u64>| left.into_iter().chain(right).min();
        self.max_request_bytes = least(self.max_request_bytes, other.max_request_bytes);
        self.max_response_bytes = least(self.max_response_bytes, other.max_response_bytes);
        self.public_only |= other.public_only;
        for limit in other.host_limits {
            if !self.host_limits.contains(&limit) {
                self.host_limits.push(limit);
            }
        }
        for limit in other.max_calls {
            if !self.max_calls.contains(&limit) {
                self.max_calls.push(limit);
            }
        }
    }
}

/// What a set of rules says about one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ruled {
    /// Nothing.
    Silent,
    /// Some rules allow, none of them this.
    Unlisted,
    /// A rule of this id spoke.
    Rule(Action, Arc<str>),
}

/// What all rules have.
pub(crate) trait Rule {
    fn action(&self) -> Action;
}

/// The verdict of the rules that match: deny wins, then ask, then allow; of
/// equal ones the first.
pub(crate) fn strongest<'r, R: Rule + 'r>(matching: impl Iterator<Item = &'r R>) -> Option<&'r R> {
    matching.fold(None, |best: Option<&R>, rule| match best {
        Some(best) if best.action() >= rule.action() => Some(best),
        _ => Some(rule),
    })
}
