//! Hosts that the command line or an embedder allows.
//!
//! What: [`HostGrant`] is `HOST[:PORT]`; [`companions`] are the hosts that a
//! well-known service needs beside its own name.
//!
//! Invariant: one grammar for hosts, that of policy text. Companions have the
//! port of the host they accompany and reach public addresses only, and
//! [`granted_hosts`] shows all of them before any is granted.

use std::fmt;
use std::sync::Arc;

use crate::address::AddressGrant;
use crate::host::{HostError, HostName, HostPattern, shown};
use crate::rules::Action;
use crate::rules::net::NetRule;

/// Why text is no `HOST[:PORT]`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrantError {
    /// The host is none.
    #[error(transparent)]
    Host(#[from] HostError),
    /// A scheme, path or something else stands around the host.
    #[error("`{text}` is more than a host and a port")]
    Extra {
        /// The text, escaped.
        text: String,
    },
    /// The port is none.
    #[error("`{text}` has no port from 1 to 65535 after its colon")]
    Port {
        /// The text, escaped.
        text: String,
    },
    /// An address that no host has.
    #[error("`{text}` is the address of no host")]
    Never {
        /// The text, escaped.
        text: String,
    },
}

impl GrantError {
    /// A stable identifier.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Host(_) => "allow_host",
            Self::Extra { .. } => "allow_extra",
            Self::Port { .. } => "allow_port",
            Self::Never { .. } => "allow_never",
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> String {
        match self {
            Self::Host(error) => error.remedy(),
            Self::Extra { .. } | Self::Port { .. } => {
                "write HOST or HOST:PORT, such as api.example.com, 127.0.0.1:8080 or [::1]:8080"
                    .to_owned()
            }
            Self::Never { .. } => "name the address at which the service listens".to_owned(),
        }
    }
}

/// A host, or pattern over hosts, that requests may go to with every method.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostGrant {
    host: HostPattern,
    port: Option<u16>,
    private: bool,
}

impl HostGrant {
    /// Reads `HOST[:PORT]`. Without a port it is https on 443; with one it is
    /// http and https on that port. `private` lets a name lead to addresses of
    /// private networks.
    ///
    /// # Errors
    /// [`GrantError`] says what is wrong.
    pub fn parse(text: &str, private: bool) -> Result<Self, GrantError> {
        if text.contains(['/', '@', '?', '#', '\\']) {
            return Err(GrantError::Extra { text: shown(text) });
        }
        let after_brackets = text.find(']').map_or(0, |at| at.saturating_add(1));
        let (brackets, rest) = text.split_at_checked(after_brackets).unwrap_or((text, ""));
        let (name, port) = match rest.split_once(':') {
            Some((name, port)) => (name, Some(port)),
            None => (rest, None),
        };
        let bad_port = || GrantError::Port { text: shown(text) };
        let port = match port {
            Some(port) => {
                let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
                let number = port.parse().ok().filter(|port| digits && *port != 0);
                Some(number.ok_or_else(bad_port)?)
            }
            None => None,
        };
        let host =
            HostPattern::parse(&format!("{brackets}{name}")).map_err(|error| match error {
                HostError::NoHost { .. } => GrantError::Never { text: shown(text) },
                other => other.into(),
            })?;
        Ok(Self { host, port, private })
    }

    /// The host or pattern.
    #[must_use]
    pub fn host(&self) -> &HostPattern {
        &self.host
    }

    fn rule(&self, host: HostPattern) -> NetRule {
        let text = self.port.map_or_else(|| host.to_string(), |port| format!("{host}:{port}"));
        NetRule {
            id: Arc::from(format!("allow:{text}")),
            action: Action::Allow,
            hosts: vec![host],
            ports: Some(vec![self.port.unwrap_or(443)]),
            https_only: self.port.is_none(),
            methods: None,
            paths: None,
            secrets: Vec::new(),
            max_bytes: None,
            addresses: AddressGrant::Public,
            max_requests: None,
            max_total_bytes: None,
            line: 0,
        }
    }
}

impl fmt::Display for HostGrant {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.host.fmt(formatter)?;
        self.port.map_or(Ok(()), |port| write!(formatter, ":{port}"))
    }
}

/// The rules of some grants, companions included; of equal ones the wider.
pub(crate) fn rules_of(grants: &[HostGrant]) -> Vec<NetRule> {
    let mut rules: Vec<NetRule> = Vec::new();
    let mut add = |rule: NetRule| match rules.iter_mut().find(|known| known.id == rule.id) {
        Some(known) if rule.addresses == AddressGrant::Private => *known = rule,
        Some(_) => {}
        None => rules.push(rule),
    };
    for grant in grants {
        let addresses = if grant.private { AddressGrant::Private } else { AddressGrant::Public };
        add(NetRule { addresses, ..grant.rule(grant.host.clone()) });
        companions(&grant.host).into_iter().for_each(|host| add(grant.rule(host)));
    }
    rules
}

/// A host that grants lead to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantedHost {
    /// `HOST` or `HOST:PORT`.
    pub host: String,
    /// The host that it accompanies, if nobody wrote it.
    pub companion_of: Option<String>,
}

/// Everything that some grants lead to, in their order, for showing it before
/// it is granted.
#[must_use]
pub fn granted_hosts(grants: &[HostGrant]) -> Vec<GrantedHost> {
    let mut hosts: Vec<GrantedHost> = Vec::new();
    let mut add = |host: String, companion_of: Option<String>| {
        if !hosts.iter().any(|known| known.host == host) {
            hosts.push(GrantedHost { host, companion_of });
        }
    };
    for grant in grants {
        add(grant.to_string(), None);
    }
    for grant in grants {
        for host in companions(&grant.host) {
            let with = HostGrant { host, ..grant.clone() };
            add(with.to_string(), Some(grant.host.to_string()));
        }
    }
    hosts
}

/// A service and the hosts that using it leads to, labels reversed, which is
/// the form that is matched.
const COMPANIONS: &[(&str, &[&str])] = &[
    (
        "com.github",
        &[
            "com.github.api",
            "com.github.codeload",
            "com.githubusercontent.objects",
            "com.githubusercontent.raw",
        ],
    ),
    ("org.pypi", &["org.pythonhosted.files"]),
    ("co.huggingface", &["co.huggingface.cdn-lfs", "co.hf.xethub.cas-bridge"]),
];

/// The hosts that using a well-known service leads to.
#[must_use]
pub fn companions(host: &HostPattern) -> Vec<HostPattern> {
    let known = COMPANIONS.iter().filter(|(service, _)| {
        HostName::from_reversed(service).map(HostPattern::exact).as_ref() == Some(host)
    });
    known
        .flat_map(|(_, others)| others.iter())
        .filter_map(|other| HostName::from_reversed(other).map(HostPattern::exact))
        .collect()
}

#[cfg(test)]
#[path = "allow_tests.rs"]
mod tests;
