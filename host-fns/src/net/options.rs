//! What an operator can set about connections.
//!
//! Invariant: nothing here is read from the environment, and nothing here
//! changes which addresses may be reached.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::{Connector, Resolver};

/// Longest time of each phase of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phases {
    /// Looking the name up.
    pub resolve: Duration,
    /// Connecting, all addresses together.
    pub connect: Duration,
    /// The handshake of TLS.
    pub tls: Duration,
    /// From the end of the request to the head of the response.
    pub head: Duration,
    /// Between two pieces of a body, each way.
    pub idle: Duration,
    /// Everything together.
    pub total: Duration,
}

impl Default for Phases {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            resolve: seconds(10),
            connect: seconds(15),
            tls: seconds(15),
            head: seconds(120),
            idle: seconds(60),
            total: seconds(1800),
        }
    }
}

impl Phases {
    /// The same, and no step longer than `most`; everything together may take
    /// as long as it may.
    pub(super) fn within(self, most: Option<Duration>) -> Self {
        let Some(most) = most else { return self };
        let Self { resolve, connect, tls, head, idle, total } = self;
        Self {
            resolve: resolve.min(most),
            connect: connect.min(most),
            tls: tls.min(most),
            head: head.min(most),
            idle: idle.min(most),
            total,
        }
    }
}

/// An HTTP proxy through which every connection goes. It is asked for
/// addresses that were judged, never for names.
#[derive(Clone, PartialEq, Eq)]
pub struct Proxy {
    /// Where it listens.
    pub address: SocketAddr,
    /// `Proxy-Authorization`, if it wants one.
    pub authorization: Option<String>,
}

impl fmt::Debug for Proxy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let authorization = self.authorization.as_ref().map(|_| "…");
        formatter
            .debug_struct("Proxy")
            .field("address", &self.address)
            .field("authorization", &authorization)
            .finish()
    }
}

/// Settings of [`super::HttpEgress`].
#[derive(Clone, Default)]
pub struct EgressOptions {
    /// Longest times.
    pub phases: Phases,
    /// Certificates, as PEM text, that are trusted beside the public ones.
    pub extra_certificates: Vec<u8>,
    /// The upstream proxy.
    pub proxy: Option<Proxy>,
    /// Name servers in place of those of the system.
    pub name_servers: Vec<SocketAddr>,
    /// Where servers of this program listen; they are never connected to.
    pub own_addresses: Vec<SocketAddr>,
    /// Looks names up, in place of name servers.
    pub resolver: Option<Arc<dyn Resolver>>,
    /// Makes connections, in place of the system.
    pub connector: Option<Arc<dyn Connector>>,
}

impl fmt::Debug for EgressOptions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("EgressOptions")
            .field("phases", &self.phases)
            .field("proxy", &self.proxy)
            .field("name_servers", &self.name_servers)
            .field("own_addresses", &self.own_addresses)
            .finish_non_exhaustive()
    }
}

/// Why there is no egress.
#[derive(Debug, thiserror::Error)]
pub enum EgressSetupError {
    /// The extra certificates are none.
    #[error("the extra certificates hold none that can be read: give certificates as PEM text")]
    Certificates,
    /// TLS cannot be set up.
    #[error("TLS cannot be set up")]
    Tls(#[source] rustls::Error),
    /// No proxy listens where one was said to.
    #[error("no proxy listens at {address}: check the address, or leave the proxy out")]
    Proxy {
        /// Where.
        address: SocketAddr,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The threads that carry connections cannot be started.
    #[error("the threads for connections cannot be started")]
    Threads(#[source] std::io::Error),
}

impl EgressSetupError {
    /// A stable identifier.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Certificates => "egress_certificates",
            Self::Tls(_) => "egress_tls",
            Self::Proxy { .. } => "egress_proxy",
            Self::Threads(_) => "egress_threads",
        }
    }
}
