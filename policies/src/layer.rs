//! Layers: everyone who has a say about a request.
//!
//! What: a [`Layer`] is what one policy file (or the command line, or the
//! operator's ceiling) says; [`Policy`] asks all of them.
//! Why: if the strictest layer decides, a layer more can never allow more, so
//! that narrowing needs no proof by cases.
//!
//! Invariant: a section that a layer does not have says nothing. The first
//! layer, of the file or else of the command line, has them all, except that
//! without a file the tools are those that the embedder registered; so no
//! later layer can be the first to speak and thereby allow.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::address::AddressClass;
use crate::budget::BudgetLimits;
use crate::environment::EnvRequest;
use crate::explain::escape_pattern;
use crate::glob::PathGlob;
use crate::network::NetRequest;
use crate::policy::{Cause, DEFAULT_DENY, Decision, Policy, Verdict};
use crate::request::{Canonical, FsRequest};
use crate::rules::fs::{FsFacts, FsOperations, FsRule, FsRules};
use crate::rules::net::NetRules;
use crate::rules::tools::ToolRules;
use crate::rules::{Action, Obligations, Ruled};
use crate::tool::ToolRequest;

/// Rule id of tools that no policy speaks about: registering them allowed them.
pub const REGISTERED_RULE: &str = "registered";
/// Rule id of variables that `[env]` grants.
pub const ENVIRONMENT_RULE: &str = "env";
/// Rule id of what `[bash]` says.
pub const BASH_RULE: &str = "bash";

/// Rule id of what is denied to code that may only look.
const MEMORY_ALONE: &str = "memory-alone";

const FINAL: &str = "This is a decision, not a fault: do not retry.";

/// What one side says.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Layer {
    /// Whose it is, as `check` and hints name it.
    pub(crate) name: Arc<str>,
    pub(crate) fs: FsRules,
    pub(crate) tools: Option<ToolRules>,
    pub(crate) net: Option<NetRules>,
    /// Variables of the host that may be passed on.
    pub(crate) environment: Option<Arc<BTreeSet<String>>>,
    /// Says nothing, or denies (`Some(None)`), or what is done with commands.
    pub(crate) bash: Option<Option<Action>>,
}

/// A decision and what the executor must still hold the request to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ruling {
    /// The decision.
    pub decision: Decision,
    /// What remains to be held to; nothing if it is denied.
    pub obligations: Obligations,
}

impl Policy {
    /// What the layers say about a request over files; `None` if nothing.
    pub(crate) fn decide_by_layers(&self, request: &FsRequest, facts: FsFacts) -> Option<Decision> {
        let ruled = self.layers.iter().map(|layer| layer.fs.decide(request, facts));
        let strictest = strictest(ruled)?;
        let what = || match request.action.second_path() {
            Some(to) => format!("`{}` of `{}` to `{to}`", request.action.name(), request.path),
            None => format!("`{}` of `{}`", request.action.name(), request.path),
        };
        Some(self.decision(strictest, "[[fs.rules]]", what))
    }

    /// Decides one call of a tool. Pure; counters are the caller's.
    #[must_use]
    pub fn decide_tool(&self, request: &Canonical<ToolRequest>) -> Ruling {
        let request = request.get();
        let answers = self
            .layers
            .iter()
            .filter_map(|layer| layer.tools.as_ref())
            .map(|rules| rules.decide(request));
        let base = Ruled::Rule(Action::Allow, Arc::from(REGISTERED_RULE));
        let (ruled, obligations) = combine(answers, base);
        let what = || format!("calling the tool `{}` with these arguments", request.name());
        let decision = self.decision(ruled, "[[tools.rules]]", what);
        let limit = obligations.max_request_bytes.filter(|limit| request.bytes() > *limit);
        match limit {
            Some(limit) if decision.verdict != Verdict::Deny => Ruling {
                decision: Decision {
                    verdict: Verdict::Deny,
                    reason: Cow::Owned(format!(
                        "denied by policy (rule {}): the arguments have {} bytes and at most {limit} are allowed. {FINAL}",
                        decision.rule,
                        request.bytes()
                    )),
                    hint: Cow::Owned(format!(
                        "the operator could raise `max_request_bytes` of rule `{}`",
                        decision.rule
                    )),
                    cause: Cause::TooLarge,
                    rule: decision.rule,
                },
                obligations: Obligations::default(),
            },
            _ => ruling(decision, obligations),
        }
    }

    /// Decides one network request. Pure. The addresses that its host leads to
    /// are judged apart; see [`crate::DialAddress::admit`].
    #[must_use]
    pub fn decide_network(&self, request: &Canonical<NetRequest>) -> Ruling {
        let request = request.get();
        let answers = self
            .layers
            .iter()
            .filter_map(|layer| layer.net.as_ref())
            .map(|rules| rules.decide(request));
        let (ruled, obligations) = combine(answers, Ruled::Unlisted);
        let unlisted = matches!(ruled, Ruled::Unlisted | Ruled::Silent);
        let what = || format!("{} `{}`", request.method, crate::host::shown(&request.url()));
        let mut decision = self.decision(ruled, "[[net]]", what);
        if unlisted {
            decision.hint = Cow::Owned(self.network_hint(request));
        }
        ruling(decision, obligations)
    }

    /// What to ask an operator for.
    fn network_hint(&self, request: &NetRequest) -> String {
        let rules = || self.layers.iter().filter_map(|layer| layer.net.as_ref());
        let near = rules().find_map(|rules| rules.near_miss(request));
        let port = if request.https && request.port == 443 {
            String::new()
        } else {
            format!(":{}", request.port)
        };
        let never = |address| AddressClass::of(address) == AddressClass::Never;
        if request.host.address().is_some_and(never) {
            return "no operator can allow it: it is the address of no host".to_owned();
        }
        match near {
            Some(near) => format!("{near}; the operator could widen that rule"),
            None => format!(
                "the operator could allow it with `--allow {}{port}` or in [[net]]",
                request.host
            ),
        }
    }

    /// Decides whether a variable of the host may be passed on. Pure.
    #[must_use]
    pub fn decide_environment(&self, request: &Canonical<EnvRequest>) -> Decision {
        let name = request.get().name();
        let listed = |listed: bool| {
            if listed {
                Ruled::Rule(Action::Allow, Arc::from(ENVIRONMENT_RULE))
            } else {
                Ruled::Unlisted
            }
        };
        let names = self.layers.iter().filter_map(|layer| layer.environment.as_ref());
        let ruled = strictest(names.map(|names| listed(names.contains(name))));
        let ruled = if self.environment.contains_key(name) { Some(listed(true)) } else { ruled };
        let what = || format!("reading the environment variable `{}`", crate::host::shown(name));
        self.decision(ruled.unwrap_or(Ruled::Unlisted), "`allow` of [env]", what)
    }

    /// Decides whether a command may run in the native tier. Pure. Nothing
    /// runs in this build.
    #[must_use]
    pub fn decide_bash(&self) -> Decision {
        let rule = |action: Option<Action>| {
            action.map_or(Ruled::Unlisted, |action| Ruled::Rule(action, Arc::from(BASH_RULE)))
        };
        let ruled = strictest(self.layers.iter().filter_map(|layer| layer.bash).map(rule))
            .unwrap_or(Ruled::Unlisted);
        self.decision(ruled, "[bash]", || "running a command".to_owned())
    }

    /// The same for code that may have no effect on anything but memory: files
    /// of the host, requests, tools and commands are denied.
    #[must_use]
    pub fn of_memory_alone(&self) -> Self {
        let mounts = self.mounts.iter().filter(|mount| !mount.at.is_root());
        let paths: Result<Vec<PathGlob>, _> = mounts
            .flat_map(|mount| {
                let at = escape_pattern(mount.at.as_bytes());
                [PathGlob::parse(&format!("{at}/**")), PathGlob::parse(&at)]
            })
            .collect();
        // A mount that cannot be written as a pattern takes memory along.
        let paths = paths.unwrap_or_else(|_| PathGlob::parse("/**").into_iter().collect());
        let rule = FsRule {
            id: Arc::from(MEMORY_ALONE),
            action: Action::Deny,
            paths,
            operations: FsOperations::ALL,
            line: 0,
        };
        let layer = Layer {
            name: Arc::from(MEMORY_ALONE),
            fs: FsRules::new(&[rule]),
            tools: Some(ToolRules::new(&[])),
            net: Some(NetRules::new(&[])),
            environment: None,
            bash: Some(None),
        };
        let layers: Vec<Layer> = self.layers.iter().cloned().chain([layer]).collect();
        Self { layers: layers.into(), ..self.clone() }
    }

    /// Whether some request to the network can get through, or be asked about.
    #[must_use]
    pub fn has_network(&self) -> bool {
        let speak = |layer: &Layer| layer.net.as_ref().map(NetRules::lets_some_through);
        let mut layers = self.layers.iter().filter_map(speak).peekable();
        layers.peek().is_some() && layers.all(|some| some)
    }

    /// Every number of the session's budget.
    #[must_use]
    pub fn budget(&self) -> &BudgetLimits {
        &self.budget
    }

    /// Variables with the values that the guest sees.
    #[must_use]
    pub fn environment(&self) -> &BTreeMap<String, String> {
        &self.environment
    }

    /// Variables of the host that every layer which speaks of them passes on.
    #[must_use]
    pub fn passed_environment(&self) -> BTreeSet<&str> {
        let mut layers = self.layers.iter().filter_map(|layer| layer.environment.as_deref());
        let first = layers.next().into_iter().flatten().map(String::as_str);
        layers.fold(first.collect(), |mut passed: BTreeSet<&str>, names| {
            passed.retain(|name| names.contains(*name));
            passed
        })
    }

    /// How long a request waits for an approver, in milliseconds.
    #[must_use]
    pub fn ask_ttl_ms(&self) -> u64 {
        self.ask_ttl_ms
    }

    /// `what` is the request as a clause, `section` the one that could allow it.
    fn decision(&self, ruled: Ruled, section: &str, what: impl FnOnce() -> String) -> Decision {
        let (verdict, cause, rule, reason, hint) = match ruled {
            Ruled::Rule(Action::Allow, rule) => {
                (Verdict::Allow, Cause::Allowed, rule, Cow::Borrowed(""), Cow::Borrowed(""))
            }
            Ruled::Rule(Action::Ask, rule) => {
                let reason = format!(
                    "rule {rule} sends {} to an approver; without one it is denied. {FINAL}",
                    what()
                );
                let hint = format!("the operator could approve it, or change rule `{rule}`");
                (Verdict::Ask, Cause::Ask, rule, reason.into(), hint.into())
            }
            Ruled::Rule(Action::Deny, rule) => {
                let reason = format!("denied by policy (rule {rule}): {}. {FINAL}", what());
                let hint = format!("the operator could narrow or remove rule `{rule}`");
                (Verdict::Deny, Cause::Rule, rule, reason.into(), hint.into())
            }
            Ruled::Unlisted | Ruled::Silent => {
                let reason = format!(
                    "denied by policy (rule {DEFAULT_DENY}): no rule allows {}. {FINAL}",
                    what()
                );
                let hint = format!("the operator could allow it in {section}");
                (
                    Verdict::Deny,
                    Cause::Unlisted,
                    Arc::clone(&self.default_deny),
                    reason.into(),
                    hint.into(),
                )
            }
        };
        Decision { verdict, rule, reason, hint, cause }
    }
}

fn ruling(decision: Decision, obligations: Obligations) -> Ruling {
    let obligations =
        if decision.verdict == Verdict::Deny { Obligations::default() } else { obligations };
    Ruling { decision, obligations }
}

/// How strict an answer is.
fn rank(ruled: &Ruled) -> u8 {
    match ruled {
        Ruled::Silent => 0,
        Ruled::Rule(Action::Allow, _) => 1,
        Ruled::Rule(Action::Ask, _) => 2,
        Ruled::Unlisted => 3,
        // A rule that can be named says more than a list that lacks it.
        Ruled::Rule(Action::Deny, _) => 4,
    }
}

/// The strictest answer, of equal ones the first; `None` if nobody speaks.
fn strictest(answers: impl Iterator<Item = Ruled>) -> Option<Ruled> {
    answers.filter(|ruled| *ruled != Ruled::Silent).fold(None, |best: Option<Ruled>, ruled| {
        match best {
            Some(best) if rank(&best) >= rank(&ruled) => Some(best),
            _ => Some(ruled),
        }
    })
}

fn combine(
    answers: impl Iterator<Item = (Ruled, Obligations)>,
    base: Ruled,
) -> (Ruled, Obligations) {
    let mut combined: Option<(Ruled, Obligations)> = None;
    for (ruled, obligations) in answers {
        combined = Some(match combined.take() {
            None => (ruled, obligations),
            Some((best, mut held)) => {
                held.secrets.retain(|secret| obligations.secrets.contains(secret));
                held.tighten(obligations);
                (if rank(&best) >= rank(&ruled) { best } else { ruled }, held)
            }
        });
    }
    combined.unwrap_or((base, Obligations::default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::combine::Flags;
    use crate::path::GuestPath;
    use crate::request::FsAction;
    use crate::text::PolicyFile;

    #[test]
    fn code_that_may_only_look_has_memory_alone() {
        let text = "version = 1\n[fs]\n[[fs.mounts]]\nid = \"m\"\nat = \"/work/m [1]\"\nhost = \"/m\"\naccess = \"read-write\"\n[[net]]\nid = \"n\"\nhosts = [\"a.test\"]\n[[tools.rules]]\nid = \"t\"\ntools = [\"*\"]\n[bash]\naction = \"allow\"\n";
        let file = PolicyFile::parse(text, "p").unwrap();
        let policy = Policy::combine(Some(&file), &Flags::default(), None).unwrap().policy;
        let alone = policy.of_memory_alone();
        assert_eq!(alone.mounts(), policy.mounts());
        let all = |policy: &Policy| {
            let file = |action, at: &str| {
                let path = GuestPath::parse(&GuestPath::root(), at.as_bytes()).unwrap().path;
                policy.decide(&FsRequest::canonical(action, path)).verdict
            };
            let request = NetRequest::parse("GET", "https://a.test/").unwrap();
            let tool = ToolRequest::parse("t", b"{}", 100).unwrap();
            [
                file(FsAction::Read, "/work/m [1]/x"),
                file(FsAction::Metadata, "/work/m [1]"),
                file(FsAction::Remove, "/work/m [1]/x"),
                policy.decide_network(&request).decision.verdict,
                policy.decide_tool(&tool).decision.verdict,
                policy.decide_bash().verdict,
                file(FsAction::Remove, "/tmp/x"),
            ]
        };
        assert_eq!(all(&policy), [Verdict::Allow; 7]);
        let mut want = [Verdict::Deny; 7];
        want[6] = Verdict::Allow;
        assert_eq!(all(&alone), want);
        assert!(!alone.has_network());
    }
}
