//! Connections that are kept for the next request.
//!
//! Invariant: a connection is kept under the scheme, host, port and grant that
//! it was made for, so that it carries no request that would have been judged
//! otherwise; there are at most [`MAX_IDLE_CONNECTIONS`].

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
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

/// A connection that is kept, and when it was last used.
struct Idle<S> {
    sender: S,
    since: Stopwatch,
}

#[derive(Default)]
struct Kept {
    one: BTreeMap<Key, Vec<Idle<http1::SendRequest<RequestBody>>>>,
    two: BTreeMap<Key, Idle<http2::SendRequest<RequestBody>>>,
    generation: u64,
    /// Whether a task lets go of what is not used.
    is_swept: bool,
}

impl Kept {
    fn count(&self) -> usize {
        self.one.values().map(Vec::len).sum::<usize>().saturating_add(self.two.len())
    }

    /// Lets go of what is closed or was not used for `idle`; when the next is
    /// due, if there is one.
    fn let_go(&mut self, idle: Duration) -> Option<Duration> {
        let fresh = |since: Stopwatch| since.elapsed() < idle;
        self.two.retain(|_, kept| !kept.sender.is_closed() && fresh(kept.since));
        for kept in self.one.values_mut() {
            kept.retain(|kept| !kept.sender.is_closed() && fresh(kept.since));
        }
        self.one.retain(|_, kept| !kept.is_empty());
        let one = self.one.values().flatten().map(|kept| kept.since);
        let all = self.two.values().map(|kept| kept.since).chain(one);
        all.map(|since| idle.saturating_sub(since.elapsed())).min()
    }
}

pub(super) struct Pool {
    kept: Mutex<Kept>,
    idle: Duration,
}

impl Pool {
    /// An empty one; what is kept is closed when no request used it for `idle`.
    pub(super) fn new(idle: Duration) -> Self {
        Self { kept: Mutex::default(), idle }
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts up whenever everything was forgotten.
    pub(super) fn generation(&self) -> u64 {
        self.lock().generation
    }

    /// A connection that can be used now.
    pub(super) fn take(&self, key: &Key) -> Option<Sender> {
        let mut kept = self.lock();
        if let Some(two) = kept.two.get_mut(key) {
            if !two.sender.is_closed() && two.since.elapsed() < self.idle {
                two.since = Stopwatch::start();
                return Some(Sender::Two(two.sender.clone()));
            }
            kept.two.remove(key);
        }
        let one = kept.one.get_mut(key)?;
        while let Some(candidate) = one.pop() {
            if candidate.sender.is_ready() && candidate.since.elapsed() < self.idle {
                return Some(Sender::One(candidate.sender));
            }
        }
        None
    }

    /// Keeps a connection, unless everything was forgotten since it was made.
    /// Called on the threads that carry connections.
    pub(super) fn keep(self: &Arc<Self>, key: Key, sender: Sender, generation: u64) {
        let mut kept = self.lock();
        if kept.generation != generation {
            return;
        }
        kept.let_go(self.idle);
        let is_known = matches!(sender, Sender::Two(_)) && kept.two.contains_key(&key);
        if kept.count() >= MAX_IDLE_CONNECTIONS && !is_known {
            return;
        }
        let since = Stopwatch::start();
        match sender {
            Sender::Two(sender) => {
                kept.two.insert(key, Idle { sender, since });
            }
            Sender::One(sender) => kept.one.entry(key).or_default().push(Idle { sender, since }),
        }
        if !std::mem::replace(&mut kept.is_swept, true) {
            tokio::spawn(sweep(Arc::downgrade(self), self.idle));
        }
    }

    /// Gives a shared connection up over which nothing came.
    pub(super) fn discard(&self, key: &Key) {
        self.lock().two.remove(key);
    }

    /// Gives all of them up.
    pub(super) fn forget(&self) {
        let mut kept = self.lock();
        let (generation, is_swept) = (kept.generation.saturating_add(1), kept.is_swept);
        *kept = Kept { generation, is_swept, ..Kept::default() };
    }

    /// Lets go of what is due; when the next is, or `None` if nothing is left.
    fn sweep(&self) -> Option<Duration> {
        let mut kept = self.lock();
        let next = kept.let_go(self.idle);
        kept.is_swept = next.is_some();
        next
    }
}

/// Closes connections that no request uses, until none is left.
async fn sweep(pool: Weak<Pool>, idle: Duration) {
    let mut next = idle;
    loop {
        tokio::time::sleep(next).await;
        match pool.upgrade().and_then(|pool| pool.sweep()) {
            Some(due) => next = due,
            None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper_util::rt::{TokioExecutor, TokioIo};

    fn key(host: &str) -> Key {
        Key { https: true, host: Arc::from(host), port: 443, private: false }
    }

    /// A connection over HTTP/2, and the other end of it.
    async fn connection() -> (Sender, tokio::io::DuplexStream) {
        let (ours, theirs) = tokio::io::duplex(64 << 10);
        let builder = http2::Builder::new(TokioExecutor::new());
        let (sender, connection) = builder.handshake(TokioIo::new(ours)).await.unwrap();
        tokio::spawn(connection);
        (Sender::Two(sender), theirs)
    }

    #[test]
    fn a_connection_that_no_request_uses_is_let_go_of() {
        super::super::runtime::handle().unwrap().block_on(async {
            let pool = Arc::new(Pool::new(Duration::from_millis(500)));
            let (sender, _theirs) = connection().await;
            pool.keep(key("a.test"), sender, 0);
            assert!(pool.take(&key("a.test")).is_some());
            let started = Stopwatch::start();
            // Nobody asks for it.
            while pool.lock().count() != 0 {
                assert!(started.elapsed() < Duration::from_secs(20));
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            assert!(pool.take(&key("a.test")).is_none());
            // And the next one is looked after again.
            let (sender, _theirs) = connection().await;
            pool.keep(key("a.test"), sender, 0);
            assert!(pool.lock().is_swept);
        });
    }

    #[test]
    fn what_is_given_up_is_not_used_again() {
        super::super::runtime::handle().unwrap().block_on(async {
            let pool = Arc::new(Pool::new(IDLE_CONNECTION));
            let (sender, _theirs) = connection().await;
            pool.keep(key("a.test"), sender, 0);
            pool.discard(&key("b.test"));
            assert!(pool.take(&key("a.test")).is_some());
            pool.discard(&key("a.test"));
            assert!(pool.take(&key("a.test")).is_none());
            let (sender, _theirs) = connection().await;
            pool.keep(key("a.test"), sender, 0);
            pool.forget();
            assert!(pool.take(&key("a.test")).is_none());
            let (sender, _theirs) = connection().await;
            pool.keep(key("a.test"), sender, 0);
            assert!(pool.take(&key("a.test")).is_none(), "it was made before");
        });
    }
}
