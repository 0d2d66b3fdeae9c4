//! What a sandbox may reach over the network, and who is asked.
//!
//! What: hosts that the embedder allows, settings of connections, an approver.
//!
//! Invariant: connections are set up only if the policy that was put together
//! lets some request through, or may be replaced by one that does; what cannot
//! be used is an error before anything runs. Every sandbox has connections of
//! its own.

use std::sync::Arc;

use fumehood_host_fns::{Approvals, Approver, Egress, EgressOptions, HttpEgress, LivePolicy};
use fumehood_policies::{GrantError, HostGrant, Policy};

use crate::builder::SandboxBuilder;
use crate::error::BuildError;

/// What was asked for.
#[derive(Clone, Default)]
pub(crate) struct Network {
    pub(crate) allow: Vec<HostGrant>,
    error: Option<(String, GrantError)>,
    options: EgressOptions,
    egress: Option<Arc<dyn Egress>>,
    approver: Option<Arc<dyn Approver>>,
    on_demand: bool,
}

impl std::fmt::Debug for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Network").field("allow", &self.allow).finish_non_exhaustive()
    }
}

/// What a sandbox has of it.
pub(crate) struct Connected {
    pub(crate) egress: Option<Arc<dyn Egress>>,
    pub(crate) approvals: Option<Arc<Approvals>>,
    pub(crate) live: Arc<LivePolicy>,
}

impl Network {
    fn add(&mut self, text: &str, private: bool) {
        match HostGrant::parse(text, private) {
            Ok(grant) => self.allow.push(grant),
            Err(error) => {
                self.error.get_or_insert((text.to_owned(), error));
            }
        }
    }

    /// What is wrong with what was asked for.
    pub(crate) fn check(&self) -> Result<(), BuildError> {
        match &self.error {
            Some((host, error)) => {
                Err(BuildError::Host { host: host.clone(), reason: error.clone() })
            }
            None => Ok(()),
        }
    }

    /// Sets up what the policy makes use of.
    pub(crate) fn connect(self, policy: &Policy) -> Result<Connected, BuildError> {
        let egress = match self.egress {
            Some(egress) => Some(egress),
            None if policy.has_network() || self.on_demand => {
                Some(Arc::new(HttpEgress::new(self.options)?) as Arc<dyn Egress>)
            }
            None => None,
        };
        Ok(Connected {
            egress,
            approvals: self.approver.map(|approver| Arc::new(Approvals::new(approver))),
            live: Arc::new(LivePolicy::new(policy.clone())),
        })
    }
}

impl SandboxBuilder {
    /// Lets requests go to `HOST` (https on port 443) or `HOST:PORT` (http and
    /// https), with every method. Well-known services bring companions with
    /// them; [`fumehood_policies::granted_hosts`] lists all.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let sandbox = fumehood::Sandbox::builder().allow("api.example.com").build()?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn allow(mut self, host: &str) -> Self {
        self.network_mut().add(host, false);
        self
    }

    /// The same, and the name may lead to addresses of a private network.
    /// Loopback, link-local and metadata addresses are reached only where they
    /// are written as addresses.
    #[must_use]
    pub fn allow_private(mut self, host: &str) -> Self {
        self.network_mut().add(host, true);
        self
    }

    /// How connections are made: extra certificates, an upstream proxy, times.
    #[must_use]
    pub fn egress_options(mut self, options: EgressOptions) -> Self {
        self.network_mut().options = options;
        self
    }

    /// Sets connections up even if the policy lets no request through, because
    /// one that replaces it may.
    #[must_use]
    pub fn network_on_demand(mut self) -> Self {
        self.network_mut().on_demand = true;
        self
    }

    /// Carries out requests in place of the library's own connections. It gets
    /// only requests that were decided.
    #[must_use]
    pub fn egress(mut self, egress: Arc<dyn Egress>) -> Self {
        self.network_mut().egress = Some(egress);
        self
    }

    /// Who is asked about requests that a rule sends to an approver; without
    /// one they are denied. Time that it takes is not the run's.
    #[must_use]
    pub fn approver(mut self, approver: Arc<dyn Approver>) -> Self {
        self.network_mut().approver = Some(approver);
        self
    }
}
