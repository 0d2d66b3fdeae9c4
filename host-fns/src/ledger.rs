//! The books of one session: audit records, budgets and denials.
//!
//! Invariant: an effect that has begun is either in the hands of a guard of
//! [`crate::pipeline`] or in `open`; both write its outcome. Numbers of records
//! and calls only go up.

use std::collections::BTreeMap;
use std::sync::Arc;

use fumehood_policies::{Policy, Verdict};

use crate::audit::{
    AuditNumbers, AuditRecord, AuditSink, AuditUnavailable, Outcome, Payload, Phase, PolicyId,
    Target,
};
use crate::errno::Errno;
use crate::limits::Limits;
use crate::meter::{Budget, Exhausted, Reservation, SharedMeter};
use crate::pipeline::{AUDIT_RULE, BUDGET_RULE, Effect, Refused};
use crate::report::{Denials, Repeated};

/// Audit, budgets and denials of one session.
pub(crate) struct Ledger {
    session: Arc<str>,
    policy: Arc<PolicyId>,
    audit: Arc<dyn AuditSink>,
    budget_rule: Arc<str>,
    audit_rule: Arc<str>,
    stream_rule: Arc<str>,
    numbers: AuditNumbers,
    /// The present request.
    calls: u64,
    pub(crate) meter: SharedMeter,
    pub(crate) denials: Denials,
    /// No denial is left: the run ends.
    pub(crate) denials_used_up: bool,
    sums: BTreeMap<&'static str, (u64, u64)>,
    pub(crate) created: u64,
    pub(crate) tool_calls: u64,
    /// Effects that outlive their host call, by call.
    open: BTreeMap<u64, OpenEffect>,
}

/// An effect that has an intent and no outcome yet.
#[derive(Debug)]
pub(crate) struct OpenEffect {
    call: u64,
    operation: &'static str,
    /// `None` if it is summed.
    target: Option<Target>,
    rule: Arc<str>,
    reserved: u64,
}

struct Entry {
    call: u64,
    operation: &'static str,
    target: Target,
    verdict: Verdict,
    rule: Arc<str>,
    phase: Phase,
    /// What went to the guest.
    given: Payload,
    /// What came from the guest.
    asked: Payload,
}

impl Ledger {
    pub(crate) fn new(
        session: &str,
        policy: &Policy,
        audit: Arc<dyn AuditSink>,
        numbers: AuditNumbers,
        meter: SharedMeter,
        limits: &Limits,
    ) -> Self {
        let policy = PolicyId { generation: policy.generation(), digest: policy.digest() };
        Self {
            session: Arc::from(session),
            policy: Arc::new(policy),
            audit,
            budget_rule: Arc::from(BUDGET_RULE),
            audit_rule: Arc::from(AUDIT_RULE),
            stream_rule: Arc::from("granted-at-open"),
            numbers,
            calls: 0,
            meter,
            denials: Denials::new(limits.denials_kept),
            denials_used_up: false,
            sums: BTreeMap::new(),
            created: 0,
            tool_calls: 0,
            open: BTreeMap::new(),
        }
    }

    /// Gives the next request its number.
    pub(crate) fn next_call(&mut self) {
        self.calls = self.numbers.next_call();
    }

    fn record(&mut self, entry: Entry) -> Result<(), AuditUnavailable> {
        let Entry { call, operation, target, verdict, rule, phase, given, asked } = entry;
        let record = |sequence| AuditRecord {
            sequence,
            call,
            session: Arc::clone(&self.session),
            operation,
            target,
            verdict,
            rule,
            policy: Arc::clone(&self.policy),
            phase,
            bytes_in: given.bytes,
            bytes_out: asked.bytes,
            digest: given.digest.or(asked.digest),
        };
        self.numbers.in_order(|sequence| self.audit.record(record(sequence)))
    }

    /// Records the intent of an allowed request that was paid for, unless it is
    /// summed.
    ///
    /// # Errors
    /// [`Refused`] if the sink takes no record; then nothing may happen.
    pub(crate) fn begin<R: Effect>(
        &mut self,
        request: &R,
        rule: Arc<str>,
        reserved: u64,
        asked: Payload,
    ) -> Result<OpenEffect, Refused> {
        let (call, operation) = (self.calls, request.operation());
        if request.summed() {
            return Ok(OpenEffect { call, operation, target: None, rule, reserved });
        }
        let target = request.target();
        let entry = Entry {
            call,
            operation,
            target: target.clone(),
            verdict: Verdict::Allow,
            rule: Arc::clone(&rule),
            phase: Phase::Intent,
            given: Payload::default(),
            asked,
        };
        if self.record(entry).is_err() {
            let why = Refused {
                errno: Errno::Io,
                rule: Arc::clone(&self.audit_rule),
                reason: "denied: the audit log takes no record, and no effect happens unrecorded. Do not retry.".into(),
                hint: "the operator could make room for the audit log".into(),
            };
            self.count_denial(operation, &target, Verdict::Deny, &why);
            return Err(why);
        }
        Ok(OpenEffect { call, operation, target: Some(target), rule, reserved })
    }

    /// Settles the budget and writes the outcome, or counts it in a sum.
    pub(crate) fn conclude(
        &mut self,
        effect: OpenEffect,
        outcome: Outcome,
        created: u64,
        given: Payload,
    ) {
        let OpenEffect { call, operation, target, rule, reserved } = effect;
        let created = created.min(reserved);
        self.meter.give_back(Budget::CreatedEntries, reserved.saturating_sub(created));
        self.created = self.created.saturating_add(created);
        let Some(target) = target else {
            let sum = self.sums.entry(operation).or_default();
            sum.0 = sum.0.saturating_add(1);
            let failed = !matches!(outcome, Outcome::Done | Outcome::Redirected);
            sum.1 = sum.1.saturating_add(u64::from(failed));
            return;
        };
        if matches!(target, Target::Tool(_)) {
            self.tool_calls = self.tool_calls.saturating_add(1);
        }
        let (verdict, phase) = (Verdict::Allow, Phase::Outcome(outcome));
        let asked = Payload::default();
        // A sink that took the intent has promised room for the outcome.
        let _ = self.record(Entry { call, operation, target, verdict, rule, phase, given, asked });
    }

    /// Keeps an effect that outlives its host call, and returns its number.
    pub(crate) fn keep_open(&mut self, effect: OpenEffect) -> u64 {
        let call = effect.call;
        self.open.insert(call, effect);
        call
    }

    /// Gives an effect back that [`Ledger::keep_open`] kept.
    pub(crate) fn take_open(&mut self, call: u64) -> Option<OpenEffect> {
        self.open.remove(&call)
    }

    /// Concludes every effect that is kept open, as cancelled.
    pub(crate) fn conclude_open(&mut self) {
        while let Some((_, effect)) = self.open.pop_first() {
            self.conclude(effect, Outcome::Cancelled, 0, Payload::default());
        }
    }

    /// Counts a denial; whether it is the first of its kind since the report.
    fn count_denial(
        &mut self,
        operation: &'static str,
        target: &Target,
        verdict: Verdict,
        why: &Refused,
    ) -> bool {
        self.denials_used_up |= self.meter.take(Budget::Denials, 1).is_err();
        self.denials.add(operation, target, verdict, why)
    }

    /// Records a denial and returns it.
    pub(crate) fn deny(
        &mut self,
        operation: &'static str,
        target: &Target,
        verdict: Verdict,
        why: Refused,
    ) -> Refused {
        if self.count_denial(operation, target, verdict, &why) {
            let rule = Arc::clone(&why.rule);
            // Nothing happens, so nothing is lost if the sink is full.
            let _ = self.record_plain(operation, target.clone(), verdict, rule, Phase::Intent);
        }
        why
    }

    /// Sets aside all of `amount`, or denies.
    ///
    /// # Errors
    /// [`Exhausted`]; the denial is recorded.
    pub(crate) fn reserve(
        &mut self,
        budget: Budget,
        amount: u64,
        operation: &'static str,
        target: impl FnOnce() -> Target,
    ) -> Result<Reservation<'_>, Exhausted> {
        self.reserve_between(budget, amount, amount, operation, target)
    }

    /// Sets aside up to `amount`, at least one unless that is zero, or denies.
    ///
    /// # Errors
    /// [`Exhausted`]; the denial is recorded.
    pub(crate) fn reserve_up_to(
        &mut self,
        budget: Budget,
        amount: u64,
        operation: &'static str,
        target: impl FnOnce() -> Target,
    ) -> Result<Reservation<'_>, Exhausted> {
        self.reserve_between(budget, amount.min(1), amount, operation, target)
    }

    fn reserve_between(
        &mut self,
        budget: Budget,
        least: u64,
        most: u64,
        operation: &'static str,
        target: impl FnOnce() -> Target,
    ) -> Result<Reservation<'_>, Exhausted> {
        match self.meter.take_between(budget, least, most) {
            Ok(amount) => Ok(Reservation::of(&self.meter, budget, amount)),
            Err(exhausted) => {
                self.deny_budget(operation, &target(), exhausted);
                Err(exhausted)
            }
        }
    }

    /// Records a denial by an exhausted budget.
    pub(crate) fn deny_budget(
        &mut self,
        operation: &'static str,
        target: &Target,
        exhausted: Exhausted,
    ) {
        self.deny_limit(operation, target, exhausted.0.name());
    }

    /// Records a denial by a limit and returns it.
    pub(crate) fn deny_limit(
        &mut self,
        operation: &'static str,
        target: &Target,
        limit: &str,
    ) -> Refused {
        let why = Refused {
            errno: Errno::Nospc,
            rule: Arc::clone(&self.budget_rule),
            reason: format!(
                "denied by policy (rule {BUDGET_RULE}): `{limit}` is used up. This is a decision, not a fault: do not retry."
            )
            .into(),
            hint: format!("the operator could raise `{limit}`").into(),
        };
        self.deny(operation, target, Verdict::Deny, why)
    }

    /// A record without payload, under the present call.
    fn record_plain(
        &mut self,
        operation: &'static str,
        target: Target,
        verdict: Verdict,
        rule: Arc<str>,
        phase: Phase,
    ) -> Result<(), AuditUnavailable> {
        let (given, asked) = (Payload::default(), Payload::default());
        let call = self.calls;
        self.record(Entry { call, operation, target, verdict, rule, phase, given, asked })
    }

    /// Records one sum over a stream that was decided when it was opened.
    pub(crate) fn record_stream(
        &mut self,
        operation: &'static str,
        target: Target,
        count: u64,
        bytes_in: u64,
        bytes_out: u64,
    ) {
        self.next_call();
        let entry = Entry {
            call: self.calls,
            operation,
            target,
            verdict: Verdict::Allow,
            rule: Arc::clone(&self.stream_rule),
            phase: Phase::Sum { count, failed: 0 },
            given: Payload { bytes: bytes_in, digest: None },
            asked: Payload { bytes: bytes_out, digest: None },
        };
        // The effects are over; a full sink can no longer prevent them.
        let _ = self.record(entry);
    }

    /// Writes the sums of everything that only looked and of denials that came
    /// again, and starts anew.
    pub(crate) fn flush_sums(&mut self) {
        for (operation, (count, failed)) in std::mem::take(&mut self.sums) {
            self.next_call();
            let rule = Arc::clone(&self.stream_rule);
            let phase = Phase::Sum { count, failed };
            let _ = self.record_plain(operation, Target::None, Verdict::Allow, rule, phase);
        }
        for Repeated { operation, target, rule, verdict, times } in self.denials.repeated() {
            self.next_call();
            let phase = Phase::Sum { count: times, failed: times };
            let _ = self.record_plain(operation, target, verdict, rule, phase);
        }
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        self.conclude_open();
    }
}
