//! Looking names up.
//!
//! Invariant: a name is asked for as it is, never with a search domain behind
//! it, and answers are addresses and nothing else: no ports, no hints.

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;

use fumehood_policies::HostName;
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{
    ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolverConfig, ResolverOpts,
};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use tokio::sync::OnceCell;

/// Why a name has no addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unresolved {
    /// It does not exist or has none.
    #[error("the name has no address")]
    NoAddress,
    /// No name server gave an answer.
    #[error("the name could not be looked up")]
    Failed,
}

/// What a lookup is.
pub type Lookup<'r> = Pin<Box<dyn Future<Output = Result<Vec<IpAddr>, Unresolved>> + Send + 'r>>;

/// Looks names up.
pub trait Resolver: Send + Sync {
    /// Every address of a name, in the order in which they are to be tried.
    fn resolve<'r>(&'r self, name: &'r HostName) -> Lookup<'r>;
}

/// Name servers, those of the system unless others are given.
pub(super) struct NameServers {
    given: Vec<SocketAddr>,
    resolver: OnceCell<TokioResolver>,
}

impl NameServers {
    pub(super) fn new(given: Vec<SocketAddr>) -> Self {
        Self { given, resolver: OnceCell::new() }
    }

    fn build(&self) -> Result<TokioResolver, Unresolved> {
        let provider = TokioRuntimeProvider::default();
        let builder = if self.given.is_empty() {
            TokioResolver::builder(provider).map_err(|_| Unresolved::Failed)?
        } else {
            let config = ResolverConfig::from_parts(None, Vec::new(), servers(&self.given));
            TokioResolver::builder_with_config(config, provider)
                .with_options(ResolverOpts::default())
        };
        let mut builder = builder;
        let options = builder.options_mut();
        options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
        builder.build().map_err(|_| Unresolved::Failed)
    }
}

fn servers(given: &[SocketAddr]) -> Vec<NameServerConfig> {
    let at = |address: &SocketAddr| {
        let port = |mut connection: ConnectionConfig| {
            connection.port = address.port();
            connection
        };
        let connections = vec![port(ConnectionConfig::udp()), port(ConnectionConfig::tcp())];
        NameServerConfig::new(address.ip(), true, connections)
    };
    given.iter().map(at).collect()
}

impl Resolver for NameServers {
    fn resolve<'r>(&'r self, name: &'r HostName) -> Lookup<'r> {
        Box::pin(async move {
            let resolver = self.resolver.get_or_try_init(|| async { self.build() }).await?;
            // The final dot keeps search domains away.
            match resolver.lookup_ip(format!("{name}.")).await {
                Ok(found) => Ok(found.iter().collect()),
                Err(error) if error.is_no_records_found() || error.is_nx_domain() => {
                    Err(Unresolved::NoAddress)
                }
                Err(error) => {
                    tracing::debug!(%error, "a name could not be looked up");
                    Err(Unresolved::Failed)
                }
            }
        })
    }
}
