//! Rules over network requests.
//!
//! What: [`NetRule`] names hosts, ports, methods and paths, and what a request
//! may carry.
//!
//! Invariant: what an allow rule leaves out is narrow (https on port 443, GET
//! and HEAD, public addresses); what a deny rule leaves out is everything.

use std::sync::Arc;

use super::{Action, HostLimit, Obligations, Rule, Ruled};
use crate::address::AddressGrant;
use crate::glob::PathGlob;
use crate::host::HostPattern;
use crate::network::NetRequest;

/// One rule over network requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetRule {
    /// Unique name.
    pub id: Arc<str>,
    /// What it does.
    pub action: Action,
    /// To which hosts.
    pub hosts: Vec<HostPattern>,
    /// To which ports; `None` is every port.
    pub ports: Option<Vec<u16>>,
    /// Whether it matches https alone.
    pub https_only: bool,
    /// With which methods; `None` is every method. `GET` includes `HEAD`.
    pub methods: Option<Vec<&'static str>>,
    /// To which paths; `None` is every path.
    pub paths: Option<Vec<PathGlob>>,
    /// Secrets that may be put in.
    pub secrets: Vec<Arc<str>>,
    /// Most bytes of the request body and of the response body, each.
    pub max_bytes: Option<u64>,
    /// Which answers a name may lead to.
    pub addresses: AddressGrant,
    /// Most requests to each host in a session.
    pub max_requests: Option<u64>,
    /// Most bytes to and from each host in a session, together.
    pub max_total_bytes: Option<u64>,
    /// Line in the policy text.
    pub line: usize,
}

impl Rule for NetRule {
    fn action(&self) -> Action {
        self.action
    }
}

impl NetRule {
    pub(crate) fn matches(&self, request: &NetRequest) -> bool {
        self.matches_place(request)
            && self.admits_method(request.method)
            && self.admits_path(&request.path)
    }

    /// Whether scheme, host and port match.
    pub(crate) fn matches_place(&self, request: &NetRequest) -> bool {
        self.hosts.iter().any(|host| host.matches(&request.host))
            && self.ports.as_ref().is_none_or(|ports| ports.contains(&request.port))
            && (request.https || !self.https_only)
    }

    pub(crate) fn admits_path(&self, path: &str) -> bool {
        let paths = self.paths.as_ref();
        paths.is_none_or(|paths| paths.iter().any(|pattern| pattern.matches_url(path)))
    }

    pub(crate) fn admits_method(&self, method: &str) -> bool {
        let listed = |methods: &Vec<&'static str>| {
            methods.contains(&method) || (method == "HEAD" && methods.contains(&"GET"))
        };
        self.methods.as_ref().is_none_or(listed)
    }

    pub(crate) fn obligations(&self) -> Obligations {
        let bounded = self.max_requests.is_some() || self.max_total_bytes.is_some();
        let limit = || HostLimit {
            rule: Arc::clone(&self.id),
            requests: self.max_requests,
            bytes: self.max_total_bytes,
        };
        Obligations {
            max_calls: Vec::new(),
            max_request_bytes: self.max_bytes,
            max_response_bytes: self.max_bytes,
            secrets: self.secrets.clone(),
            public_only: self.addresses == AddressGrant::Public,
            host_limits: bounded.then(limit).into_iter().collect(),
        }
    }

    /// Whether some request can match both.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        let any = |left: &[HostPattern], right: &[HostPattern]| {
            left.iter().any(|a| right.iter().any(|b| a.overlaps(b)))
        };
        let ports = self.ports.as_ref().zip(other.ports.as_ref());
        let methods = crate::network::METHODS
            .iter()
            .any(|method| self.admits_method(method) && other.admits_method(method));
        let paths = self.paths.as_ref().zip(other.paths.as_ref());
        any(&self.hosts, &other.hosts)
            && ports.is_none_or(|(left, right)| left.iter().any(|port| right.contains(port)))
            && methods
            && paths.is_none_or(|(left, right)| {
                left.iter().any(|a| right.iter().any(|b| a.overlaps(b)))
            })
    }

    /// Whether every scheme, host and port that `other` matches is matched
    /// here, and every answer that it admits. `true` is certain.
    pub(crate) fn covers_place(&self, other: &Self) -> bool {
        let ports = match (&self.ports, &other.ports) {
            (None, _) => true,
            (Some(mine), Some(ports)) => ports.iter().all(|port| mine.contains(port)),
            (Some(_), None) => false,
        };
        ports
            && (other.https_only || !self.https_only)
            && (self.addresses == other.addresses || other.addresses == AddressGrant::Public)
            && other.hosts.iter().all(|host| self.hosts.iter().any(|pattern| pattern.covers(host)))
    }

    /// Whether every request that `other` matches is matched here. `true` is
    /// certain.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        let ports = match (&self.ports, &other.ports) {
            (None, _) => true,
            (Some(mine), Some(ports)) => ports.iter().all(|port| mine.contains(port)),
            (Some(_), None) => false,
        };
        let paths = match (&self.paths, &other.paths) {
            (None, _) => true,
            (Some(mine), Some(paths)) => {
                paths.iter().all(|path| mine.iter().any(|pattern| pattern.covers(path)))
            }
            (Some(_), None) => false,
        };
        let methods = crate::network::METHODS
            .iter()
            .all(|method| self.admits_method(method) || !other.admits_method(method));
        ports
            && paths
            && methods
            && (other.https_only || !self.https_only)
            && other.hosts.iter().all(|host| self.hosts.iter().any(|pattern| pattern.covers(host)))
    }

    /// Whether the two hold one request to different things. Budgets of hosts
    /// are counted for each rule, and a request must fit all of them.
    pub(crate) fn disagrees(&self, other: &Self) -> bool {
        let own = |rule: &Self| Obligations { host_limits: Vec::new(), ..rule.obligations() };
        own(self) != own(other)
    }
}

/// The rules of one section.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NetRules {
    rules: Arc<[NetRule]>,
}

impl NetRules {
    pub(crate) fn new(rules: &[NetRule]) -> Self {
        let mut rules = rules.to_vec();
        rules.sort_by(|left, right| left.id.cmp(&right.id));
        Self { rules: rules.into() }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &NetRule> {
        self.rules.iter()
    }

    /// Whether some rule is no denial.
    pub(crate) fn lets_some_through(&self) -> bool {
        self.rules.iter().any(|rule| rule.action != Action::Deny)
    }

    /// What keeps a request out that no rule matches, as a clause; `None` if
    /// no rule names its host and port.
    pub(crate) fn near_miss(&self, request: &NetRequest) -> Option<String> {
        let allows = |rule: &&NetRule| rule.action != Action::Deny;
        let mut places =
            self.rules.iter().filter(allows).filter(|rule| rule.matches_place(request)).peekable();
        if let Some(rule) = places.peek() {
            let what = if rule.admits_method(request.method) { "path" } else { "method" };
            return Some(format!("rule `{}` allows this host but not this {what}", rule.id));
        }
        let named = |rule: &&NetRule| rule.hosts.iter().any(|host| host.matches(&request.host));
        let rule = self.rules.iter().filter(allows).find(named)?;
        Some(format!("rule `{}` allows this host but not this scheme and port", rule.id))
    }

    /// What the rules say, and to what they hold the request.
    pub(crate) fn decide(&self, request: &NetRequest) -> (Ruled, Obligations) {
        let matching = || self.rules.iter().filter(|rule| rule.matches(request));
        let Some(rule) = super::strongest(matching()) else {
            return (Ruled::Unlisted, Obligations::default());
        };
        let mut obligations = Obligations::default();
        if rule.action != Action::Deny {
            // Matching rules agree, or the policy would not have loaded.
            obligations.secrets = rule.secrets.clone();
            matching().for_each(|rule| obligations.tighten(rule.obligations()));
            // A grant and not a bound: one rule of a side is enough for it.
            obligations.public_only = matching().all(|rule| rule.addresses == AddressGrant::Public);
        }
        (Ruled::Rule(rule.action, Arc::clone(&rule.id)), obligations)
    }
}
