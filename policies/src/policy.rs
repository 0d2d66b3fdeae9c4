//! The policy and its decision.
//!
//! What: which mounts exist, and what may be done below each.
//! Why: one pure function decides for every tier, for `check` and for
//! `explain` alike.
//!
//! Invariant: default deny. A request is allowed only if every path it names
//! lies in a mount whose access covers the action, and no layer of rules takes
//! it away. The order in which mounts were added changes nothing: no two mounts
//! overlap except with the in-memory root, and the deepest mount decides.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::budget::BudgetLimits;
use crate::layer::Layer;
use crate::path::GuestPath;
use crate::request::{Canonical, FsRequest};
use crate::rules::fs::FsFacts;
use crate::weaken;

/// Rule id of the in-memory root.
pub const MEMORY_RULE: &str = "memory";
/// Rule id of a denial that no rule stated.
pub const DEFAULT_DENY: &str = "default-deny";

/// How long a request waits for an approver, in milliseconds, if nothing says
/// otherwise.
pub const DEFAULT_ASK_TTL_MS: u64 = 300_000;

/// How a mount may be used.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// Looking and reading.
    ReadOnly,
    /// Everything.
    ReadWrite,
}

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountRule {
    /// Unique name, shown in denials.
    pub id: Arc<str>,
    /// Where the guest sees it.
    pub at: GuestPath,
    /// How it may be used.
    pub access: Access,
}

/// Whether the request may be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It may.
    Allow,
    /// It may not.
    Deny,
    /// An approver is to be asked; without one it may not.
    Ask,
}

/// Why the verdict is what it is, for callers that must map it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A rule allows it.
    Allowed,
    /// No mount holds the path.
    NoMount,
    /// The mount is read-only.
    ReadOnly,
    /// A rule denies it.
    Rule,
    /// Rules allow other requests and not this one.
    Unlisted,
    /// A rule sends it to an approver.
    Ask,
    /// It is larger than the rule that allows it says.
    TooLarge,
}

/// The outcome of [`Policy::decide`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The verdict.
    pub verdict: Verdict,
    /// Id of the rule that decided.
    pub rule: Arc<str>,
    /// Why; empty if allowed.
    pub reason: Cow<'static, str>,
    /// What the operator could change; empty if allowed.
    pub hint: Cow<'static, str>,
    /// The reason in a form to match on.
    pub cause: Cause,
}

/// Why a set of rules is no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// `/` is the in-memory root and cannot be a mount of something else.
    #[error(
        "rule `{id}`: a mount cannot be at `/`; mount it at a directory of its own, such as `/work/data`"
    )]
    MountAtRoot {
        /// Of the rule.
        id: Arc<str>,
    },
    /// Two mounts are at the same path or one lies in the other.
    #[error(
        "rules `{first}` and `{second}`: the mounts `{first_at}` and `{second_at}` overlap; keep one of them"
    )]
    Overlap {
        /// One rule.
        first: Arc<str>,
        /// Its mount point.
        first_at: GuestPath,
        /// The other rule.
        second: Arc<str>,
        /// Its mount point.
        second_at: GuestPath,
    },
    /// Two rules have one id.
    #[error("two rules have the id `{id}`; give each its own")]
    DuplicateId {
        /// The id.
        id: Arc<str>,
    },
}

impl PolicyError {
    /// A stable identifier.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::MountAtRoot { .. } => "policy_mount_at_root",
            Self::Overlap { .. } => "policy_mounts_overlap",
            Self::DuplicateId { .. } => "policy_duplicate_id",
        }
    }
}

/// A set of rules that has been checked. Cloning is a reference count.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    pub(crate) mounts: Arc<[MountRule]>,
    pub(crate) default_deny: Arc<str>,
    /// Who has a say; the strictest of them decides.
    pub(crate) layers: Arc<[Layer]>,
    pub(crate) budget: Arc<BudgetLimits>,
    pub(crate) environment: Arc<BTreeMap<String, String>>,
    pub(crate) ask_ttl_ms: u64,
    pub(crate) generation: u64,
}

/// Collects rules; [`PolicyBuilder::build`] checks them.
#[derive(Clone, Debug)]
pub struct PolicyBuilder {
    memory: Option<Access>,
    mounts: Vec<MountRule>,
}

impl Policy {
    /// Starts with the in-memory root, readable and writable, and nothing else.
    #[must_use]
    pub fn builder() -> PolicyBuilder {
        PolicyBuilder { memory: Some(Access::ReadWrite), mounts: Vec::new() }
    }

    /// Every mount, the in-memory root included, sorted by mount point.
    #[must_use]
    pub fn mounts(&self) -> &[MountRule] {
        &self.mounts
    }

    /// The mount that holds a path: the deepest one.
    #[must_use]
    pub fn mount_of(&self, path: &GuestPath) -> Option<&MountRule> {
        // Sorted by mount point, a mount comes after every mount that holds it.
        self.mounts.iter().rev().find(|rule| path.starts_with(&rule.at))
    }

    /// Decides one request without knowing more about it. Pure.
    ///
    /// What is renamed counts as a directory; see [`Policy::decide_with`].
    #[must_use]
    pub fn decide(&self, request: &Canonical<FsRequest>) -> Decision {
        self.decide_with(request, FsFacts::default())
    }

    /// Decides one request, knowing the facts. Pure.
    #[must_use]
    pub fn decide_with(&self, request: &Canonical<FsRequest>, facts: FsFacts) -> Decision {
        let by_mounts = self.decide_by_mounts(request);
        if by_mounts.verdict != Verdict::Allow || self.layers.is_empty() {
            return by_mounts;
        }
        self.decide_by_layers(request.get(), facts).unwrap_or(by_mounts)
    }

    fn decide_by_mounts(&self, request: &Canonical<FsRequest>) -> Decision {
        let request = request.get();
        let mutates = request.action.mutates();
        let first = match self.decide_path(&request.path, mutates) {
            Ok(rule) => rule,
            Err(denied) => return denied,
        };
        if let Some(Err(denied)) =
            request.action.second_path().map(|to| self.decide_path(to, mutates))
        {
            return denied;
        }
        Decision {
            verdict: Verdict::Allow,
            rule: Arc::clone(&first.id),
            reason: Cow::Borrowed(""),
            hint: Cow::Borrowed(""),
            cause: Cause::Allowed,
        }
    }

    fn decide_path(&self, path: &GuestPath, mutates: bool) -> Result<&MountRule, Decision> {
        match self.mount_of(path) {
            None => Err(self.no_mount(path)),
            Some(rule)
                if mutates
                    && rule.access == Access::ReadOnly
                    && !weaken::off(weaken::Defence::ReadOnlyMounts) =>
            {
                Err(read_only(rule))
            }
            Some(rule) => Ok(rule),
        }
    }

    fn no_mount(&self, path: &GuestPath) -> Decision {
        Decision {
            verdict: Verdict::Deny,
            rule: Arc::clone(&self.default_deny),
            reason: format!(
                "denied by policy (rule {DEFAULT_DENY}): no mount holds `{path}`. This is a decision, not a fault: do not retry."
            )
            .into(),
            hint: format!("the operator could mount a directory that holds `{path}`").into(),
            cause: Cause::NoMount,
        }
    }
}

fn read_only(rule: &MountRule) -> Decision {
    let MountRule { id, at, .. } = rule;
    Decision {
        verdict: Verdict::Deny,
        rule: Arc::clone(id),
        reason: format!(
            "denied by policy (rule {id}): `{at}` is mounted read-only. This is a decision, not a fault: do not retry."
        )
        .into(),
        hint: format!("the operator could mount `{at}` read-write; files below `/tmp` are writable by default").into(),
        cause: Cause::ReadOnly,
    }
}

impl PolicyBuilder {
    /// How the in-memory root may be used; `None` takes it away, so that only
    /// mounts remain.
    #[must_use]
    pub fn memory(mut self, access: Option<Access>) -> Self {
        self.memory = access;
        self
    }

    /// Adds a mount.
    #[must_use]
    pub fn mount(mut self, id: &str, at: GuestPath, access: Access) -> Self {
        self.mounts.push(MountRule { id: Arc::from(id), at, access });
        self
    }

    /// Checks the rules.
    ///
    /// # Errors
    /// [`PolicyError`] if mounts overlap, one is at `/`, or ids repeat.
    pub fn build(self) -> Result<Policy, PolicyError> {
        let mut mounts = self.mounts;
        mounts.sort_by(|left, right| left.at.cmp(&right.at).then_with(|| left.id.cmp(&right.id)));
        if let Some(rule) = mounts.iter().find(|rule| rule.at.is_root()) {
            return Err(PolicyError::MountAtRoot { id: Arc::clone(&rule.id) });
        }
        for (position, first) in mounts.iter().enumerate() {
            for second in mounts.iter().skip(position.saturating_add(1)) {
                let nested = first.at.starts_with(&second.at) || second.at.starts_with(&first.at);
                if nested && !weaken::off(weaken::Defence::MountOverlap) {
                    return Err(PolicyError::Overlap {
                        first: Arc::clone(&first.id),
                        first_at: first.at.clone(),
                        second: Arc::clone(&second.id),
                        second_at: second.at.clone(),
                    });
                }
            }
        }
        if let Some(access) = self.memory {
            mounts
                .insert(0, MountRule { id: Arc::from(MEMORY_RULE), at: GuestPath::root(), access });
        }
        let mut ids: Vec<_> = mounts.iter().map(|rule| &rule.id).collect();
        ids.sort_unstable();
        if let Some(id) = ids
            .windows(2)
            .find_map(|pair| (pair.first() == pair.get(1)).then(|| pair.first()).flatten())
        {
            return Err(PolicyError::DuplicateId { id: Arc::clone(id) });
        }
        Ok(Policy {
            mounts: mounts.into(),
            default_deny: Arc::from(DEFAULT_DENY),
            layers: Arc::from([]),
            budget: Arc::default(),
            environment: Arc::default(),
            ask_ttl_ms: DEFAULT_ASK_TTL_MS,
            generation: 1,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::FsAction;
    use proptest::prelude::*;

    fn path(raw: &str) -> GuestPath {
        GuestPath::parse(&GuestPath::root(), raw.as_bytes())
            .unwrap_or_else(|error| unreachable!("{error}"))
            .path
    }

    fn verdict(policy: &Policy, action: FsAction, at: &str) -> (Verdict, Cause, String) {
        let decision = policy.decide(&FsRequest::canonical(action, path(at)));
        (decision.verdict, decision.cause, decision.rule.to_string())
    }

    #[test]
    fn the_deepest_mount_decides() {
        let policy = Policy::builder().mount("data", path("/work/data"), Access::ReadOnly).build();
        let policy = policy.unwrap_or_else(|error| unreachable!("{error}"));
        assert_eq!(
            verdict(&policy, FsAction::Create { reads: false }, "/work/x").0,
            Verdict::Allow
        );
        assert_eq!(verdict(&policy, FsAction::Read, "/work/data/x").0, Verdict::Allow);
        assert_eq!(
            verdict(&policy, FsAction::Create { reads: false }, "/work/data/x"),
            (Verdict::Deny, Cause::ReadOnly, "data".to_owned())
        );
        let out = FsAction::Rename { to: path("/work/data/y") };
        assert_eq!(verdict(&policy, out, "/tmp/y").0, Verdict::Deny);
        assert_eq!(
            verdict(&policy, FsAction::Rename { to: path("/tmp/y") }, "/work/data/y").0,
            Verdict::Deny
        );
        assert_eq!(
            verdict(&policy, FsAction::Create { reads: false }, "/work/database").0,
            Verdict::Allow
        );
    }

    #[test]
    fn default_is_deny_and_says_so() {
        let policy =
            Policy::builder().memory(None).build().unwrap_or_else(|error| unreachable!("{error}"));
        let decision = policy.decide(&FsRequest::canonical(FsAction::Metadata, path("/etc/x")));
        assert_eq!(decision.verdict, Verdict::Deny);
        for part in ["policy", DEFAULT_DENY, "not a fault", "do not retry"] {
            assert!(decision.reason.contains(part), "{part}");
        }
        assert!(decision.hint.contains("operator"));
    }

    #[test]
    fn overlapping_and_duplicate_rules_are_refused() {
        let build = |list: &[(&str, &str)]| {
            list.iter()
                .fold(Policy::builder(), |builder, (id, at)| {
                    builder.mount(id, path(at), Access::ReadWrite)
                })
                .build()
                .map_err(|error| error.code())
        };
        assert_eq!(build(&[("a", "/a"), ("b", "/a/b")]).err(), Some("policy_mounts_overlap"));
        assert_eq!(build(&[("b", "/a/b"), ("a", "/a")]).err(), Some("policy_mounts_overlap"));
        assert_eq!(build(&[("a", "/a"), ("b", "/a")]).err(), Some("policy_mounts_overlap"));
        assert_eq!(build(&[("a", "/")]).err(), Some("policy_mount_at_root"));
        assert_eq!(build(&[("a", "/a"), ("a", "/b")]).err(), Some("policy_duplicate_id"));
        assert_eq!(build(&[("memory", "/a")]).err(), Some("policy_duplicate_id"));
        assert!(build(&[("a", "/a"), ("b", "/ab")]).is_ok());
    }

    proptest! {
        #[test]
        fn order_is_irrelevant_and_deny_wins(
            points in proptest::collection::btree_map("/[a-d]{1,2}", any::<bool>(), 0..5),
            first in "(/[a-d]{1,2}){1,3}",
            second in "(/[a-d]{1,2}){1,3}",
        ) {
            let build = |list: Vec<(&String, &bool)>| {
                list.into_iter().fold(Policy::builder().memory(None), |builder, (at, write)| {
                    let access = if *write { Access::ReadWrite } else { Access::ReadOnly };
                    builder.mount(at, path(at), access)
                }).build()
            };
            let forward = build(points.iter().collect());
            let backward = build(points.iter().rev().collect());
            prop_assert_eq!(&forward, &backward);
            let Ok(policy) = forward else { return Ok(()) };
            let alone = |at: &str| policy.decide(&FsRequest::canonical(FsAction::Remove, path(at))).verdict;
            let both = policy.decide(&FsRequest::canonical(FsAction::Rename { to: path(&second) }, path(&first))).verdict;
            prop_assert_eq!(both == Verdict::Allow, alone(&first) == Verdict::Allow && alone(&second) == Verdict::Allow);
        }
    }
}
