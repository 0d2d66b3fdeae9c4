//! Connections that are kept for the next request.
//!
//! Invariant: a connection is kept under the scheme, host, port and grant that
//! it was made for, so that it carries no request that would have been judged
//! otherwise; there are at most [`MAX_IDLE_CONNECTIONS`].

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fumehood_policies::AddressGrant;
use hyper::client::conn::{http1, http2};

use super::exchange::RequestBody;
use crate::environment::Stopwatch;

/// Most connections that are kept.
pub(crate) const MAX_IDLE_CONNECTIONS: usize = 64;
/// How long one is kept.
pub(crate) const IDLE_CONNECTION: Duration = Duration::from_secs(30);

/// What a connection was made for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) https: bool,
    pub(super) host: Arc<str>,
    pub(super) port: u16,
    pub(super) private: bool,
}

impl Key {
    pub(super) fn new(request: &fumehood_policies::NetRequest, grant: AddressGrant) -> Self {
        Self {
            https: request.https,
            host: Arc::from(request.host.to_string()),
            port: request.port,
            private: grant == AddressGrant::Private,
        }
    }
}

/// The sending side of a connection.
pub(super) enum Sender {
    One(http1::SendRequest<RequestBody>),
    Two(http2::SendRequest<RequestBody>),
}

struct Idle {
    sender: http1::SendRequest<RequestBody>,
    since: Stopwatch,
}

#[derive(Default)]
struct Kept {
    one: BTreeMap<Key, Vec<Idle>>,
    two: BTreeMap<Key, http2::SendRequest<RequestBody>>,
    generation: u64,
}

#[derive(Default)]
pub(super) struct Pool(Mutex<Kept>);

impl Pool {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts up whenever everything was forgotten.
    pub(super) fn generation(&self) -> u64 {
        self.lock().generation
    }

    /// A connection that can be used now.
    pub(super) fn take(&self, key: &Key) -> Option<Sender> {
        let mut kept = self.lock();
        if let Some(sender) = kept.two.get(key) {
            if !sender.is_closed() {
                return Some(Sender::Two(sender.clone()));
            }
            kept.two.remove(key);
        }
        let idle = kept.one.get_mut(key)?;
        while let Some(candidate) = idle.pop() {
            if candidate.sender.is_ready() && candidate.since.elapsed() < IDLE_CONNECTION {
                return Some(Sender::One(candidate.sender));
            }
        }
        None
    }

    /// Keeps a connection, unless everything was forgotten since it was made.
    pub(super) fn keep(&self, key: Key, sender: Sender, generation: u64) {
        let mut kept = self.lock();
        if kept.generation != generation {
            return;
        }
        match sender {
            Sender::Two(sender) => {
                kept.two.retain(|_, sender| !sender.is_closed());
                if kept.two.len() < MAX_IDLE_CONNECTIONS {
                    kept.two.insert(key, sender);
                }
            }
            Sender::One(sender) => {
                for idle in kept.one.values_mut() {
                    idle.retain(|idle| {
                        !idle.sender.is_closed() && idle.since.elapsed() < IDLE_CONNECTION
                    });
                }
                kept.one.retain(|_, idle| !idle.is_empty());
                let count: usize = kept.one.values().map(Vec::len).sum();
                if count < MAX_IDLE_CONNECTIONS {
                    let since = Stopwatch::start();
                    kept.one.entry(key).or_default().push(Idle { sender, since });
                }
            }
        }
    }

    /// Gives all of them up.
    pub(super) fn forget(&self) {
        let mut kept = self.lock();
        let generation = kept.generation.saturating_add(1);
        *kept = Kept { generation, ..Kept::default() };
    }
}
