//! Asking a person.
//!
//! What: an [`Approver`] is asked about a request that a rule sends to one;
//! [`Approvals`] remembers what was granted, for every broker of a session.
//! Why: some requests are fine once someone has looked at them.
//!
//! Invariant: without an answer in time the request is denied. What goes
//! through is an [`Approved`] that only this module makes, for exactly the
//! request that was shown; the pipeline decides again and takes it only for a
//! request that is still asked about. A request that cannot be undone is asked
//! about each time.

mod desk;

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fumehood_policies::{Canonical, GrantTerms, NetRequest, RequestGrant, escape, is_grantable};
use sha2::{Digest as _, Sha256};

use crate::environment::Stopwatch;

pub use desk::{ApprovalDesk, ApprovalStatus, MAX_ANSWERED, MAX_WAITING, Waiting};

/// Most grants of a session; the oldest is given up for a further one.
pub const MAX_GRANTS: usize = 256;

/// What an approver is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApprovalRequest {
    /// Names it within the session.
    pub id: u64,
    /// The session.
    pub session: String,
    /// The method.
    pub method: &'static str,
    /// The URL, query included, in its one form.
    pub url: String,
    /// Bytes of the request's body, if they are known.
    pub body_bytes: Option<u64>,
    /// SHA-256 of the body, if it is known.
    pub body_digest: Option<[u8; 32]>,
    /// The rule that asks.
    pub rule: String,
    /// Whether more than this one request can be granted.
    pub grantable: bool,
    /// How long an answer is waited for.
    pub ttl: Duration,
}

impl ApprovalRequest {
    /// The digest of everything that is shown, which an answer from elsewhere
    /// must bring back.
    #[must_use]
    pub fn token(&self) -> String {
        let mut hash = Sha256::new();
        hash.update(b"fumehood approval 1\0");
        hash.update(format!("{self:?}").as_bytes());
        hash.finalize().iter().fold(String::new(), |mut text, byte| {
            let _ = fmt::Write::write_fmt(&mut text, format_args!("{byte:02x}"));
            text
        })
    }
}

impl fmt::Display for ApprovalRequest {
    /// For a person: one line, nothing in it can move a cursor.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut url = String::new();
        escape(self.url.as_bytes(), &mut url)?;
        write!(formatter, "{} {url}", self.method)?;
        match self.body_bytes {
            Some(0) => {}
            Some(bytes) => write!(formatter, " with {bytes} bytes")?,
            None => write!(formatter, " with a body of unknown length")?,
        }
        write!(formatter, " (rule {})", self.rule)
    }
}

/// What an approver says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// No, and why; the reason is shown to the program.
    Deny {
        /// In one sentence or none.
        reason: String,
    },
    /// This one request.
    Once,
    /// This one and others like it. Where nothing can be granted, or the terms
    /// do not cover the request itself, it counts as [`Answer::Once`].
    Grant(GrantTerms),
}

/// An answer that is waited for. It is polled on the guest's thread; dropping
/// it withdraws the question.
pub type Approving = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// Someone who can be asked.
pub trait Approver: Send + Sync {
    /// Asks. Called on the guest's thread, which it must not block.
    fn ask(&self, request: ApprovalRequest) -> Approving;
}

/// A request that someone approved.
#[derive(Debug)]
pub struct Approved {
    request: Canonical<NetRequest>,
}

impl Approved {
    /// Whether it is for this request.
    pub(crate) fn is_for(&self, request: &Canonical<NetRequest>) -> bool {
        self.request == *request
    }
}

/// A grant as an operator sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedGrant {
    /// Names it within the session.
    pub id: u64,
    /// What it covers.
    pub grant: RequestGrant,
}

/// What was asked and granted in a session.
pub struct Approvals {
    approver: Arc<dyn Approver>,
    clock: Stopwatch,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    asked: u64,
    granted: u64,
    grants: Vec<ListedGrant>,
    /// Rule and origin of grants that were taken back, to be recorded.
    revoked: Vec<(Arc<str>, NetRequest)>,
}

impl fmt::Debug for Approvals {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Approvals").finish_non_exhaustive()
    }
}

impl Approvals {
    /// Nothing granted yet.
    #[must_use]
    pub fn new(approver: Arc<dyn Approver>) -> Self {
        Self { approver, clock: Stopwatch::start(), state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.clock.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// The grants that still cover something.
    #[must_use]
    pub fn grants(&self) -> Vec<ListedGrant> {
        let now = self.now_ms();
        let mut state = self.lock();
        state.grants.retain(|listed| !listed.grant.is_over(now));
        state.grants.clone()
    }

    /// Takes a grant back; `false` if there is none of that number. The next
    /// request is asked about again.
    pub fn revoke(&self, id: u64) -> bool {
        let mut state = self.lock();
        let Some(at) = state.grants.iter().position(|listed| listed.id == id) else {
            return false;
        };
        let ListedGrant { grant, .. } = state.grants.remove(at);
        if state.revoked.len() < MAX_GRANTS {
            state.revoked.push((grant.rule(), grant.origin().clone()));
        }
        true
    }

    /// Grants that were taken back and not recorded yet.
    pub(crate) fn take_revoked(&self) -> Vec<(Arc<str>, NetRequest)> {
        std::mem::take(&mut self.lock().revoked)
    }

    /// A grant that covers a request, counted as used.
    pub(crate) fn granted(
        &self,
        rule: &str,
        request: &Canonical<NetRequest>,
        body_bytes: u64,
    ) -> Option<Approved> {
        let now = self.now_ms();
        let mut state = self.lock();
        state.grants.retain(|listed| !listed.grant.is_over(now));
        let listed = state
            .grants
            .iter_mut()
            .find(|listed| listed.grant.covers(rule, request.get(), body_bytes, now))?;
        listed.grant.count();
        Some(Approved { request: request.clone() })
    }

    /// Asks the approver.
    pub(crate) fn ask(&self, asked: Question<'_>) -> (ApprovalRequest, Approving) {
        let id = {
            let mut state = self.lock();
            state.asked = state.asked.saturating_add(1);
            state.asked
        };
        let Question { session, request, rule, body_bytes, body_digest, ttl } = asked;
        let request = ApprovalRequest {
            id,
            session: session.to_owned(),
            method: request.method,
            url: request.url(),
            body_bytes,
            body_digest,
            rule: rule.to_owned(),
            grantable: is_grantable(request.method),
            ttl,
        };
        let answer = self.approver.ask(request.clone());
        (request, answer)
    }

    /// What an answer lets through, and the grant that it made.
    ///
    /// # Errors
    /// The reason of a denial.
    pub(crate) fn take(
        &self,
        answer: Answer,
        rule: &Arc<str>,
        request: &Canonical<NetRequest>,
        body_bytes: u64,
    ) -> Result<(Approved, Option<u64>), String> {
        let approved = Approved { request: request.clone() };
        let terms = match answer {
            Answer::Deny { reason } => return Err(reason),
            Answer::Once => return Ok((approved, None)),
            Answer::Grant(terms) => terms,
        };
        let now = self.now_ms();
        let grant = RequestGrant::new(Arc::clone(rule), request.get(), terms, body_bytes, now);
        let Some(mut grant) = grant else { return Ok((approved, None)) };
        grant.count();
        let mut state = self.lock();
        state.granted = state.granted.saturating_add(1);
        let id = state.granted;
        if state.grants.len() >= MAX_GRANTS {
            state.grants.remove(0);
        }
        state.grants.push(ListedGrant { id, grant });
        Ok((approved, Some(id)))
    }
}

/// What is asked.
pub(crate) struct Question<'q> {
    pub(crate) session: &'q str,
    pub(crate) request: &'q NetRequest,
    pub(crate) rule: &'q str,
    pub(crate) body_bytes: Option<u64>,
    pub(crate) body_digest: Option<[u8; 32]>,
    pub(crate) ttl: Duration,
}
