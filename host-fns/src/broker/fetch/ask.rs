//! Requests that someone is asked about.
//!
//! Invariant: time that a call waits for a person is not the run's; it has a
//! time to live of its own, after which the request is denied. Every question,
//! answer, use of a grant and expiry is recorded.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use fumehood_policies::{Canonical, Decision, NetRequest, Verdict};

use crate::approval::{Approvals, Approved, Question};
use crate::audit::Payload;
use crate::broker::{Broker, StopReason};
use crate::environment::{Stopwatch, Wake};
use crate::errno::Errno;
use crate::pipeline::{Effect as _, Refused};

/// Why a request does not go on.
pub(super) enum Unapproved {
    Refused(Box<Refused>),
    Stop(StopReason),
}

impl Broker {
    /// What lets a request through that a rule asks about; `None` if no rule
    /// asks, so that the pipeline decides alone.
    pub(super) fn approval(
        &mut self,
        request: &Canonical<NetRequest>,
        asked: &Payload,
        length_known: bool,
    ) -> Result<Option<Approved>, Unapproved> {
        let decision = NetRequest::decide(self.pipeline.policy(), request).decision;
        let Some(approvals) = self.approvals.clone() else { return Ok(None) };
        self.record_revoked();
        if decision.verdict != Verdict::Ask {
            return Ok(None);
        }
        let bytes = if length_known { asked.bytes } else { u64::MAX };
        if let Some(approved) = approvals.granted(&decision.rule, request, bytes) {
            self.record_approval("approval.use", request, &decision.rule, Verdict::Allow);
            return Ok(Some(approved));
        }
        self.ask(&approvals, request, &decision, asked, length_known)
    }

    fn ask(
        &mut self,
        approvals: &Arc<Approvals>,
        request: &Canonical<NetRequest>,
        decision: &Decision,
        asked: &Payload,
        length_known: bool,
    ) -> Result<Option<Approved>, Unapproved> {
        let rule = &decision.rule;
        let ttl = Duration::from_millis(self.pipeline.policy().ask_ttl_ms());
        self.record_approval("approval.ask", request, rule, Verdict::Ask);
        let session = self.pipeline.ledger.session();
        let (_, mut answer) = approvals.ask(Question {
            session: &session,
            request: request.get(),
            rule,
            body_bytes: length_known.then_some(asked.bytes),
            body_digest: asked.digest,
            ttl,
        });
        let waker = self.waiter.waker();
        let watch = Stopwatch::start();
        self.waiter.hold();
        let waited = loop {
            if let Poll::Ready(answer) = answer.as_mut().poll(&mut Context::from_waker(&waker)) {
                break Ok(Some(answer));
            }
            let left = ttl.saturating_sub(watch.elapsed());
            if left.is_zero() {
                break Ok(None);
            }
            if self.waiter.park(left) == Wake::Interrupted {
                break Err(Unapproved::Stop(StopReason::Interrupted));
            }
        };
        self.waiter.release();
        drop(answer);
        let bytes = if length_known { asked.bytes } else { u64::MAX };
        let Some(answer) = waited? else {
            self.pipeline.ledger.time_limit_fired = true;
            self.record_approval("approval.expired", request, rule, Verdict::Deny);
            return Err(self.unapproved(request, rule, "nobody answered in time".to_owned()));
        };
        match approvals.take(answer, rule, request, bytes) {
            Ok((approved, grant)) => {
                let operation = if grant.is_some() { "approval.grant" } else { "approval.once" };
                self.record_approval(operation, request, rule, Verdict::Allow);
                Ok(Some(approved))
            }
            Err(reason) => {
                self.record_approval("approval.deny", request, rule, Verdict::Deny);
                let reason = crate::tools::capped(format_args!("{}", reason.escape_debug()), 256);
                let why = if reason.is_empty() {
                    "the approver said no".to_owned()
                } else {
                    format!("the approver said no: {reason}")
                };
                Err(self.unapproved(request, rule, why))
            }
        }
    }

    /// Records the grants that were taken back since the last look.
    pub(in crate::broker) fn record_revoked(&mut self) {
        let Some(approvals) = self.approvals.clone() else { return };
        for (rule, origin) in approvals.take_revoked() {
            let ledger = &mut self.pipeline.ledger;
            ledger.record_decision("approval.revoked", origin.target(), &rule, Verdict::Deny);
        }
    }

    fn record_approval(
        &mut self,
        operation: &'static str,
        request: &Canonical<NetRequest>,
        rule: &Arc<str>,
        verdict: Verdict,
    ) {
        self.pipeline.ledger.record_decision(operation, request.get().target(), rule, verdict);
    }

    fn unapproved(
        &mut self,
        request: &Canonical<NetRequest>,
        rule: &Arc<str>,
        why: String,
    ) -> Unapproved {
        let refused = Refused {
            errno: Errno::Acces,
            rule: Arc::clone(rule),
            reason: format!(
                "denied by policy (rule {rule}): {why}. This is a decision, not a network fault: do not retry."
            )
            .into(),
            hint: format!("the operator could approve it, or change rule `{rule}`").into(),
        };
        let target = request.get().target();
        Unapproved::Refused(Box::new(self.deny_fetch(&target, refused)))
    }
}
