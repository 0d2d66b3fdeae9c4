//! Rules over the embedder's tools.
//!
//! What: [`ToolRule`] names tools, constrains their arguments and bounds
//! their use.
//!
//! Invariant: no rule means no tool, once a policy has a `[tools]` section.

use std::sync::Arc;

use super::constraint::ArgumentConstraint;
use super::{Action, CallLimit, Obligations, Rule, Ruled};
use crate::tool::ToolRequest;
use crate::wildcard::Wildcard;

/// One rule over tools.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolRule {
    /// Unique name.
    pub id: Arc<str>,
    /// What it does.
    pub action: Action,
    /// Which tools.
    pub tools: Vec<Wildcard>,
    /// What must hold of the arguments, all of it.
    pub arguments: Vec<ArgumentConstraint>,
    /// Calls of the session under this rule.
    pub max_calls: Option<u64>,
    /// Bytes of the arguments.
    pub max_request_bytes: Option<u64>,
    /// Bytes of the result.
    pub max_response_bytes: Option<u64>,
    /// Line in the policy text.
    pub line: usize,
}

impl Rule for ToolRule {
    fn action(&self) -> Action {
        self.action
    }
}

impl ToolRule {
    pub(crate) fn matches(&self, request: &ToolRequest) -> bool {
        let strict = self.action != Action::Allow;
        self.names(request.name())
            && self.arguments.iter().all(|argument| argument.holds(request.arguments(), strict))
    }

    pub(crate) fn names(&self, name: &str) -> bool {
        self.tools.iter().any(|tool| tool.matches(name.as_bytes()))
    }

    pub(crate) fn obligations(&self) -> Obligations {
        Obligations {
            max_calls: self
                .max_calls
                .map(|calls| CallLimit { rule: Arc::clone(&self.id), calls })
                .into_iter()
                .collect(),
            max_request_bytes: self.max_request_bytes,
            max_response_bytes: self.max_response_bytes,
            ..Obligations::default()
        }
    }

    /// Whether some call can match both.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        let names =
            self.tools.iter().any(|tool| other.tools.iter().any(|name| tool.overlaps(name)));
        let excluded =
            |left: &ArgumentConstraint| other.arguments.iter().any(|right| left.excludes(right));
        // Deny and ask also match values of other types: no argument excludes.
        let exact = self.action == Action::Allow && other.action == Action::Allow;
        names && !(exact && self.arguments.iter().any(excluded))
    }

    /// Whether the two bound one call differently.
    pub(crate) fn disagrees(&self, other: &Self) -> bool {
        (self.max_calls, self.max_request_bytes, self.max_response_bytes)
            != (other.max_calls, other.max_request_bytes, other.max_response_bytes)
    }
}

/// The rules of one section.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ToolRules {
    rules: Arc<[ToolRule]>,
}

impl ToolRules {
    pub(crate) fn new(rules: &[ToolRule]) -> Self {
        let mut rules = rules.to_vec();
        rules.sort_by(|left, right| left.id.cmp(&right.id));
        Self { rules: rules.into() }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &ToolRule> {
        self.rules.iter()
    }

    /// What the rules say, and to what they hold the call.
    pub(crate) fn decide(&self, request: &ToolRequest) -> (Ruled, Obligations) {
        let matching = || self.rules.iter().filter(|rule| rule.matches(request));
        let Some(rule) = super::strongest(matching()) else {
            return (Ruled::Unlisted, Obligations::default());
        };
        let mut obligations = Obligations::default();
        if rule.action != Action::Deny {
            matching().for_each(|rule| obligations.tighten(rule.obligations()));
        }
        (Ruled::Rule(rule.action, Arc::clone(&rule.id)), obligations)
    }
}

#[cfg(test)]
mod tests {
    use super::super::constraint::Check;
    use super::*;
    use proptest::prelude::*;

    fn rule(id: &str, action: Action, tool: &str, equals: Option<u8>) -> ToolRule {
        let constraint = |value: u8| ArgumentConstraint {
            pointer: "/a".to_owned(),
            check: Check::Equals(value.into()),
        };
        ToolRule {
            id: id.into(),
            action,
            tools: vec![Wildcard::new(tool)],
            arguments: equals.map(constraint).into_iter().collect(),
            max_calls: None,
            max_request_bytes: None,
            max_response_bytes: None,
            line: 1,
        }
    }

    fn any_rule() -> impl Strategy<Value = ToolRule> {
        let action = prop_oneof![Just(Action::Allow), Just(Action::Ask), Just(Action::Deny)];
        ("[a-z]{6}", action, "[ab*]{1,3}", proptest::option::of(0_u8..3))
            .prop_map(|(id, action, tool, equals)| rule(&id, action, &tool, equals))
    }

    fn rank(ruled: &Ruled) -> u8 {
        match ruled {
            Ruled::Silent | Ruled::Rule(Action::Allow, _) => 0,
            Ruled::Rule(Action::Ask, _) => 1,
            Ruled::Unlisted | Ruled::Rule(Action::Deny, _) => 2,
        }
    }

    proptest! {
        #[test]
        fn deny_wins_and_order_is_irrelevant(
            rules in proptest::collection::vec(any_rule(), 0..5),
            extra in any_rule(),
            name in "[ab]{1,3}",
            argument in prop_oneof![Just("0"), Just("1"), Just("2.0"), Just("\"x\"")],
        ) {
            let call = ToolRequest::parse(&name, format!("{{\"a\":{argument}}}").as_bytes(), 100).unwrap();
            let decide = |rules: &[ToolRule]| ToolRules::new(rules).decide(call.get()).0;
            let before = decide(&rules);
            let mut reversed = rules.clone();
            reversed.reverse();
            prop_assert_eq!(&before, &decide(&reversed));
            let denied = ToolRule { action: Action::Deny, ..extra.clone() };
            let mut more = rules.clone();
            more.push(denied.clone());
            let after = decide(&more);
            prop_assert!(rank(&after) >= rank(&before), "a deny never allows more");
            prop_assert!(!denied.matches(call.get()) || rank(&after) == 2, "deny wins");
        }

        #[test]
        fn overlap_is_never_missed(left in any_rule(), right in any_rule(), name in "[ab]{1,3}", argument in 0_u8..3) {
            let call = ToolRequest::parse(&name, format!("{{\"a\":{argument}}}").as_bytes(), 100).unwrap();
            prop_assert!(!(left.matches(call.get()) && right.matches(call.get())) || left.overlaps(&right));
        }
    }
}
