//! The one pipeline: policy → audit (intent) → budget (reserve) → execute →
//! audit (outcome) → budget (settle).
//!
//! What: [`Pipeline::check`] turns a [`Canonical`] request into a [`Checked`]
//! one, which is what executors take. An effect that outlives its host call
//! becomes a [`Suspended`] one, which the pipeline concludes when it ends.
//! Why: an executor cannot be reached with a request that was not decided,
//! recorded and paid for.
//!
//! Invariant: for every [`Checked`] there is exactly one intent and exactly one
//! outcome (or one place in a sum), on every path, panics included: it is
//! written when the value is dropped. What is suspended is kept by the ledger,
//! which writes the outcome if nobody else does. Its fields are private and
//! only `check` builds it.
//!
//! An executor can be written, and not be called with what was not checked:
//!
//! ```
//! use fumehood_host_fns::{Checked, Suspended};
//! use fumehood_policies::{FsAction, FsRequest, GuestPath};
//! fn executor(checked: &Checked<'_, FsRequest>) -> GuestPath {
//!     checked.get().path.clone()
//! }
//! let request = FsRequest::canonical(FsAction::Read, GuestPath::root());
//! let nothing: Option<Suspended> = None;
//! ```
//!
//! ```compile_fail
//! use fumehood_host_fns::Checked;
//! use fumehood_policies::{FsAction, FsRequest, GuestPath};
//! fn executor(checked: &Checked<'_, FsRequest>) -> GuestPath {
//!     checked.get().path.clone()
//! }
//! let request = FsRequest::canonical(FsAction::Read, GuestPath::root());
//! executor(&request); // decided by nobody
//! ```
//!
//! ```compile_fail
//! use fumehood_host_fns::Checked;
//! use fumehood_policies::{FsAction, FsRequest, GuestPath};
//! let request = FsRequest::canonical(FsAction::Read, GuestPath::root());
//! let forged: Checked<'_, FsRequest> = Checked { request }; // private
//! ```
//!
//! ```compile_fail
//! use fumehood_host_fns::Suspended;
//! let forged = Suspended { call: 1 }; // private
//! ```

use std::borrow::Cow;
use std::sync::Arc;

use fumehood_policies::{
    Canonical, Cause, Decision, FsAction, FsRequest, NetRequest, Obligations, Policy, Ruling,
    ToolRequest, Verdict,
};

use crate::approval::Approved;
use crate::audit::{AuditNumbers, AuditSink, AuditUnavailable, Outcome, Payload, Target};
use crate::errno::Errno;
use crate::ledger::{Ledger, OpenEffect};
use crate::limits::Limits;
use crate::meter::{Budget, SharedMeter};

/// Rule id of denials by an exhausted budget.
pub const BUDGET_RULE: &str = "budget";
/// Rule id of denials because the audit sink takes no record.
pub const AUDIT_RULE: &str = "audit";

/// A kind of request that can go through the pipeline.
pub trait Effect {
    /// Stable name of the operation.
    fn operation(&self) -> &'static str;
    /// What it acts on.
    fn target(&self) -> Target;
    /// Whether it is recorded in a sum rather than one by one.
    fn summed(&self) -> bool {
        false
    }
    /// The most entries it may create.
    fn may_create(&self) -> u64 {
        0
    }
    /// The budget that its audit records show.
    fn budget(&self) -> Budget {
        Budget::HostCalls
    }
    /// Whether it cannot be taken back. A strict audit makes the intent
    /// durable before such an effect.
    fn irreversible(&self) -> bool {
        false
    }
    /// The tool among whose calls it counts.
    fn tool(&self) -> Option<&str> {
        None
    }
    /// The host among whose requests it counts.
    fn host(&self) -> Option<Arc<str>> {
        None
    }
    /// The decision, and what the effect is held to.
    fn decide(policy: &Policy, request: &Canonical<Self>) -> Ruling
    where
        Self: Sized;
}

impl Effect for FsRequest {
    fn operation(&self) -> &'static str {
        self.action.name()
    }

    fn target(&self) -> Target {
        match self.action.second_path() {
            Some(to) => Target::Paths(self.path.clone(), to.clone()),
            None => Target::Path(self.path.clone()),
        }
    }

    fn summed(&self) -> bool {
        self.action.only_looks()
    }

    fn may_create(&self) -> u64 {
        match self.action {
            FsAction::Create { .. }
            | FsAction::CreateDirectory
            | FsAction::Link { .. }
            | FsAction::Symlink => 1,
            _ => 0,
        }
    }

    fn budget(&self) -> Budget {
        if self.may_create() > 0 { Budget::CreatedEntries } else { Budget::HostCalls }
    }

    fn irreversible(&self) -> bool {
        matches!(
            self.action,
            FsAction::Truncate { .. }
                | FsAction::Write { .. }
                | FsAction::Create { .. }
                | FsAction::Remove
                | FsAction::RemoveDirectory
                | FsAction::Rename { .. }
        )
    }

    fn decide(policy: &Policy, request: &Canonical<Self>) -> Ruling {
        Ruling { decision: policy.decide(request), obligations: Obligations::default() }
    }
}

impl Effect for ToolRequest {
    fn operation(&self) -> &'static str {
        "tool.call"
    }

    fn target(&self) -> Target {
        Target::Tool(Arc::from(self.name()))
    }

    fn budget(&self) -> Budget {
        Budget::ToolCalls
    }

    fn irreversible(&self) -> bool {
        true
    }

    fn tool(&self) -> Option<&str> {
        Some(self.name())
    }

    fn decide(policy: &Policy, request: &Canonical<Self>) -> Ruling {
        policy.decide_tool(request)
    }
}

impl Effect for NetRequest {
    fn operation(&self) -> &'static str {
        "fetch"
    }

    fn target(&self) -> Target {
        Target::Request(self.method, Arc::from(self.place()))
    }

    fn budget(&self) -> Budget {
        Budget::Requests
    }

    /// What was sent is sent.
    fn irreversible(&self) -> bool {
        true
    }

    fn host(&self) -> Option<Arc<str>> {
        Some(Arc::from(self.host.to_string()))
    }

    fn decide(policy: &Policy, request: &Canonical<Self>) -> Ruling {
        policy.decide_network(request)
    }
}

/// Why a request is not carried out; it is also a denial of the report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// What a caller that knows only numbers gets.
    pub errno: Errno,
    /// The rule or budget that refused.
    pub rule: Arc<str>,
    /// Why, in one sentence or two.
    pub reason: Cow<'static, str>,
    /// What the operator could change, without a capital or a full stop.
    pub hint: Cow<'static, str>,
}

impl Refused {
    /// Reason and hint as a person reads them.
    #[must_use]
    pub fn sentence(&self) -> String {
        let Self { reason, hint, .. } = self;
        let capital = hint.get(..1).unwrap_or_default().to_ascii_uppercase();
        let rest = hint.get(1..).unwrap_or_default();
        format!("{reason} {capital}{rest}.")
    }

    fn new(decision: Decision) -> Self {
        let Decision { rule, reason, hint, cause, .. } = decision;
        let errno = if cause == Cause::ReadOnly { Errno::Rofs } else { Errno::Acces };
        Self { errno, rule, reason, hint }
    }
}

impl From<Refused> for Errno {
    fn from(refused: Refused) -> Self {
        refused.errno
    }
}

/// Policy and ledger of one session.
pub struct Pipeline {
    policy: Policy,
    pub(crate) ledger: Ledger,
}

/// A request that was decided, recorded and paid for. Dropping it writes the
/// outcome.
pub struct Checked<'p, R: Effect> {
    request: Canonical<R>,
    obligations: Obligations,
    guard: Guard<'p>,
}

/// Writes the outcome of one effect when it is dropped.
struct Guard<'p> {
    effect: Option<OpenEffect>,
    outcome: Outcome,
    created: u64,
    given: Payload,
    ledger: &'p mut Ledger,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if let Some(effect) = self.effect.take() {
            self.ledger.conclude(effect, self.outcome, self.created, self.given);
        }
    }
}

impl<'p> Guard<'p> {
    fn new(effect: OpenEffect, ledger: &'p mut Ledger) -> Self {
        let given = Payload::default();
        Self { effect: Some(effect), outcome: Outcome::Unknown, created: 0, given, ledger }
    }
}

/// An effect that goes on after its host call. The ledger keeps its record
/// open; dropping this value does not close it, the end of the run does, as
/// cancelled. The request is not kept: it was given to the executor.
#[derive(Debug)]
#[must_use = "what is not concluded is recorded as cancelled"]
pub struct Suspended {
    call: u64,
}

impl<R: Effect> Checked<'_, R> {
    /// The request as it was decided.
    pub fn get(&self) -> &R {
        self.request.get()
    }

    /// Most bytes that the answer may have by the rule that allowed the
    /// request; `None` if no rule says.
    pub fn response_limit(&self) -> Option<u64> {
        self.obligations.max_response_bytes
    }

    /// What the executor must still hold the effect to.
    pub fn obligations(&self) -> &Obligations {
        &self.obligations
    }

    /// The rule that allowed it.
    pub fn rule(&self) -> Arc<str> {
        self.guard.effect.as_ref().map_or_else(|| Arc::from(""), OpenEffect::rule)
    }

    /// Ends the effect with a known outcome; `created` entries stay paid for.
    pub(crate) fn conclude(mut self, outcome: Outcome, created: u64) {
        self.guard.outcome = outcome;
        self.guard.created = created;
    }

    /// Ends the effect with a known outcome and what it gave to the guest.
    pub(crate) fn conclude_with(mut self, outcome: Outcome, given: Payload) {
        self.guard.outcome = outcome;
        self.guard.given = given;
    }

    /// Lets the effect go on after this host call.
    pub(crate) fn suspend(self) -> Suspended {
        let Self { mut guard, .. } = self;
        let call = guard.effect.take().map_or(0, |effect| guard.ledger.keep_open(effect));
        Suspended { call }
    }
}

impl Pipeline {
    pub(crate) fn new(
        session: &str,
        policy: Policy,
        audit: Arc<dyn AuditSink>,
        numbers: AuditNumbers,
        meter: SharedMeter,
        limits: &Limits,
    ) -> Result<Self, AuditUnavailable> {
        let ledger = Ledger::new(session, &policy, audit, numbers, meter, limits)?;
        Ok(Self { policy, ledger })
    }

    pub(crate) fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Lets another policy hold from now on.
    pub(crate) fn replace_policy(&mut self, policy: Policy) {
        self.ledger.replace_policy(&policy);
        self.policy = policy;
    }

    /// Decides, records the intent and reserves the budget.
    ///
    /// # Errors
    /// [`Refused`] with `EROFS` for a change in a read-only mount,
    /// `EACCES` for what no rule allows, `ENOSPC` for an exhausted budget,
    /// `EIO` if the audit sink takes no record. Each is also a denial.
    pub fn check<R: Effect>(&mut self, request: Canonical<R>) -> Result<Checked<'_, R>, Refused> {
        self.check_with(request, Payload::default())
    }

    /// The same for a request that came with a payload, whose size and digest
    /// go into the intent record.
    ///
    /// # Errors
    /// As [`Pipeline::check`].
    pub fn check_with<R: Effect>(
        &mut self,
        request: Canonical<R>,
        asked: Payload,
    ) -> Result<Checked<'_, R>, Refused> {
        self.check_previewed(request, asked, None)
    }

    /// The same, with a bounded and redacted preview of the payload.
    ///
    /// # Errors
    /// As [`Pipeline::check`].
    pub(crate) fn check_previewed<R: Effect>(
        &mut self,
        request: Canonical<R>,
        asked: Payload,
        preview: Option<Arc<str>>,
    ) -> Result<Checked<'_, R>, Refused> {
        let ruling = R::decide(&self.policy, &request);
        self.check_ruled(request, ruling, (asked, preview))
    }

    /// The same for a network request that someone approved, or that no rule
    /// asks about.
    ///
    /// # Errors
    /// As [`Pipeline::check`].
    pub fn check_approved(
        &mut self,
        request: Canonical<NetRequest>,
        asked: Payload,
        approved: Option<&Approved>,
    ) -> Result<Checked<'_, NetRequest>, Refused> {
        let mut ruling = NetRequest::decide(&self.policy, &request);
        let is_approved = approved.is_some_and(|approved| approved.is_for(&request));
        if ruling.decision.verdict == Verdict::Ask && is_approved {
            ruling.decision.verdict = Verdict::Allow;
        }
        self.check_ruled(request, ruling, (asked, None))
    }

    fn check_ruled<R: Effect>(
        &mut self,
        request: Canonical<R>,
        ruling: Ruling,
        (asked, preview): (Payload, Option<Arc<str>>),
    ) -> Result<Checked<'_, R>, Refused> {
        let Ruling { decision, obligations } = ruling;
        let ledger = &mut self.ledger;
        let asks = request.get();
        ledger.next_call();
        if decision.verdict != Verdict::Allow {
            // Nobody approved: to ask is to deny.
            let (verdict, why) = (decision.verdict, Refused::new(decision));
            return Err(ledger.deny(asks.operation(), &asks.target(), verdict, why));
        }
        let reserved = asks.may_create();
        if ledger.meter.take(Budget::CreatedEntries, reserved).is_err() {
            let name = Budget::CreatedEntries.name();
            return Err(ledger.deny_limit(asks.operation(), &asks.target(), name));
        }
        if let Some(tool) = asks.tool()
            && let Err(name) = ledger.meter.take_tool_call(tool, &obligations.max_calls)
        {
            ledger.meter.give_back(Budget::CreatedEntries, reserved);
            return Err(ledger.deny_limit(asks.operation(), &asks.target(), &name));
        }
        let host = asks.host();
        if let Some(host) = &host
            && let Err(name) = ledger.meter.take_request(host, &obligations.host_limits)
        {
            ledger.meter.give_back(Budget::CreatedEntries, reserved);
            return Err(ledger.deny_limit(asks.operation(), &asks.target(), &name));
        }
        let effect = match ledger.begin(asks, decision.rule, reserved, (asked, preview)) {
            Ok(effect) => effect,
            Err(refused) => {
                ledger.meter.give_back(Budget::CreatedEntries, reserved);
                if let Some(tool) = asks.tool() {
                    ledger.meter.give_back_tool_call(tool, &obligations.max_calls);
                }
                if let Some(host) = &host {
                    ledger.meter.give_back_request(host, &obligations.host_limits);
                }
                return Err(refused);
            }
        };
        Ok(Checked { request, obligations, guard: Guard::new(effect, ledger) })
    }

    /// Ends a suspended effect with a known outcome and what it gave to the
    /// guest. Nothing happens if its outcome is already written: the run that
    /// it belongs to has ended.
    pub(crate) fn conclude(&mut self, suspended: Suspended, outcome: Outcome, given: Payload) {
        if let Some(effect) = self.ledger.take_open(suspended.call) {
            self.ledger.conclude(effect, outcome, 0, given);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

    use super::*;
    use crate::audit::{AuditRecord, MemorySink, Phase};
    use crate::testing::path;

    fn pipeline(audit: Arc<dyn AuditSink>, created_entries: u64) -> Pipeline {
        let limits = Limits { created_entries, ..Limits::default() };
        let meter = SharedMeter::new(&limits);
        let policy = Policy::builder().build().unwrap();
        Pipeline::new("test", policy, audit, AuditNumbers::default(), meter, &limits).unwrap()
    }

    fn create() -> Canonical<FsRequest> {
        FsRequest::canonical(FsAction::Create { reads: false }, path("/tmp/f"))
    }

    fn errno<T>(result: Result<T, Refused>) -> Option<Errno> {
        result.err().map(Errno::from)
    }

    #[test]
    fn a_panic_leaves_an_unknown_outcome_and_returns_the_reservation() {
        let sink = Arc::new(MemorySink::default());
        let mut pipeline = pipeline(Arc::<MemorySink>::clone(&sink), 1);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _checked = pipeline.check(create()).unwrap();
            std::panic::resume_unwind(Box::new("host code fails"));
        }));
        assert!(panicked.is_err());
        let phases: Vec<_> = sink.records().iter().map(|record| record.phase).collect();
        assert_eq!(phases, [Phase::Intent, Phase::Outcome(Outcome::Unknown)]);
        pipeline.check(create()).unwrap().conclude(Outcome::Done, 1);
        assert_eq!(errno(pipeline.check(create())), Some(Errno::Nospc));
    }

    struct Full;

    impl AuditSink for Full {
        fn record(&self, _record: AuditRecord) -> Result<(), AuditUnavailable> {
            Err(AuditUnavailable("full"))
        }
    }

    #[test]
    fn no_effect_without_a_record() {
        let mut pipeline = pipeline(Arc::new(Full), 5);
        assert_eq!(errno(pipeline.check(create())), Some(Errno::Io));
        let (denials, _) = pipeline.ledger.denials.take();
        assert_eq!(denials.first().map(|denial| denial.rule.as_str()), Some(AUDIT_RULE));
    }

    #[test]
    fn the_ring_forgets_and_counts() {
        let sink = Arc::new(MemorySink::new(4));
        let mut pipeline = pipeline(Arc::<MemorySink>::clone(&sink), 100);
        for _ in 0..5 {
            pipeline.check(create()).unwrap().conclude(Outcome::Done, 1);
        }
        assert_eq!((sink.records().len(), sink.dropped()), (4, 6));
    }

    #[test]
    fn the_brokers_of_a_session_count_their_records_on() {
        let sink = Arc::new(MemorySink::default());
        let (numbers, limits) = (AuditNumbers::default(), Limits::default());
        let of_session = || {
            let policy = Policy::builder().build().unwrap();
            let (audit, meter) = (Arc::<MemorySink>::clone(&sink), SharedMeter::new(&limits));
            Pipeline::new("test", policy, audit, numbers.clone(), meter, &limits).unwrap()
        };
        of_session().check(create()).unwrap().conclude(Outcome::Done, 1);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut pipeline = of_session();
                    for _ in 0..100 {
                        pipeline.check(create()).unwrap().conclude(Outcome::Done, 1);
                    }
                });
            }
        });
        let records = sink.records();
        let sequence: Vec<u64> = records.iter().map(|record| record.sequence).collect();
        assert_eq!(sequence, (1..=802).collect::<Vec<_>>());
        let mut calls: Vec<u64> = records.iter().map(|record| record.call).collect();
        calls.sort_unstable();
        assert_eq!(calls, (1..=401).flat_map(|call| [call, call]).collect::<Vec<_>>());
    }

    fn phases(sink: &MemorySink) -> Vec<(u64, Phase)> {
        sink.records().iter().map(|record| (record.call, record.phase)).collect()
    }

    #[test]
    fn a_suspended_effect_has_one_outcome_whatever_becomes_of_it() {
        let sink = Arc::new(MemorySink::default());
        let mut pipeline = pipeline(Arc::<MemorySink>::clone(&sink), 3);
        let [ended, late, dropped] = [(); 3].map(|()| pipeline.check(create()).unwrap().suspend());
        assert_eq!(pipeline.ledger.meter.left(Budget::CreatedEntries), 0);
        pipeline.conclude(ended, Outcome::Done, Payload::default());
        drop(dropped);
        pipeline.ledger.conclude_open();
        pipeline.conclude(late, Outcome::Done, Payload::default());
        assert_eq!(pipeline.ledger.meter.left(Budget::CreatedEntries), 3);
        let _ = pipeline.check(create()).unwrap().suspend();
        drop(pipeline);
        let ended = Phase::Outcome(Outcome::Cancelled);
        assert_eq!(
            phases(&sink),
            [
                (1, Phase::Intent),
                (2, Phase::Intent),
                (3, Phase::Intent),
                (1, Phase::Outcome(Outcome::Done)),
                (2, ended),
                (3, ended),
                (4, Phase::Intent),
                (4, ended),
            ]
        );
    }
}
