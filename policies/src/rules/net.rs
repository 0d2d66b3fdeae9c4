//! Rules over network requests.
//!
//! What: [`NetRule`] names hosts, ports, methods and paths, and what a request
//! may carry.
//! Why now: nothing connects yet, but a policy is written, checked and
//! explained before it is needed.
//!
//! Invariant: what an allow rule leaves out is narrow (port 443, GET and
//! HEAD); what a deny rule leaves out is everything.

use std::sync::Arc;

use super::{Action, Obligations, Rule, Ruled};
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
    /// With which methods; `None` is every method. `GET` includes `HEAD`.
    pub methods: Option<Vec<&'static str>>,
    /// To which paths; `None` is every path.
    pub paths: Option<Vec<PathGlob>>,
    /// Secrets that may be put in.
    pub secrets: Vec<Arc<str>>,
    /// Most bytes of the request body and of the response body, each.
    pub max_bytes: Option<u64>,
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
        self.hosts.iter().any(|host| host.matches(&request.host))
            && self.ports.as_ref().is_none_or(|ports| ports.contains(&request.port))
            && self.admits_method(request.method)
            && self
                .paths
                .as_ref()
                .is_none_or(|paths| paths.iter().any(|path| path.matches_url(&request.path)))
    }

    pub(crate) fn admits_method(&self, method: &str) -> bool {
        let listed = |methods: &Vec<&'static str>| {
            methods.contains(&method) || (method == "HEAD" && methods.contains(&"GET"))
        };
        self.methods.as_ref().is_none_or(listed)
    }

    pub(crate) fn obligations(&self) -> Obligations {
        Obligations {
            max_calls: Vec::new(),
            max_request_bytes: self.max_bytes,
            max_response_bytes: self.max_bytes,
            secrets: self.secrets.clone(),
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
            && other.hosts.iter().all(|host| self.hosts.iter().any(|pattern| pattern.covers(host)))
    }

    /// Whether the two hold one request to different things.
    pub(crate) fn disagrees(&self, other: &Self) -> bool {
        self.obligations() != other.obligations()
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
        }
        (Ruled::Rule(rule.action, Arc::clone(&rule.id)), obligations)
    }
}
