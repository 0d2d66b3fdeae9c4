//! The books of one session: audit records, budgets and denials.
//!
//! Invariant: an effect that has begun is either in the hands of a guard of
//! [`crate::pipeline`] or in `open`; both write its outcome. Numbers of records
//! and calls are of the session and only go up.

use std::collections::BTreeMap;
use std::sync::Arc;

use fumehood_policies::{Policy, Verdict};

use crate::audit::{
    AuditNumbers, AuditRecord, AuditSink, AuditUnavailable, Draw, Outcome, Payload, Phase,
    PolicyId, Target,
};
use crate::environment::Stopwatch;
use crate::errno::Errno;
use crate::lasting::Lasting;
use crate::limits::Limits;
use crate::meter::{Budget, Exhausted, Reservation, SharedMeter};
use crate::pipeline::{AUDIT_RULE, BUDGET_RULE, Effect, Refused};
use crate::report::{Denials, Repeated};

/// Sums that a run may write beside those of its descriptors: the streams
/// without one, and the operations that only look.
const OTHER_SUMS: u32 = 16;
/// Most sums of denials that came again for which room is held; further ones
/// are written only where there is room that nobody was promised.
const HELD_DENIALS: u32 = 1000;

/// Audit, budgets and denials of one session.
pub(crate) struct Ledger {
    session: Arc<str>,
    pub(crate) tier: &'static str,
    policy: Arc<PolicyId>,
    audit: Arc<dyn AuditSink>,
    budget_rule: Arc<str>,
    audit_rule: Arc<str>,
    stream_rule: Arc<str>,
    numbers: AuditNumbers,
    /// The present call.
    call: u64,
    /// The call that the next ones are part of.
    within: u64,
    /// The run's own effect.
    run: Option<OpenEffect>,
    held_sums: u32,
    pub(crate) meter: SharedMeter,
    pub(crate) denials: Denials,
    pub(crate) lasting: Lasting,
    /// No denial is left: the run ends.
    pub(crate) denials_used_up: bool,
    sums: BTreeMap<&'static str, (u64, u64)>,
    pub(crate) created: u64,
    pub(crate) tool_calls: u64,
    /// A limit on wall-clock time ended something.
    pub(crate) time_limit_fired: bool,
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
    parent: u64,
    budget: Budget,
    /// `None` if it is summed.
    since: Option<Stopwatch>,
}

impl OpenEffect {
    /// The rule that allowed it.
    pub(crate) fn rule(&self) -> Arc<str> {
        Arc::clone(&self.rule)
    }
}

struct Entry {
    call: u64,
    parent: u64,
    operation: &'static str,
    target: Target,
    verdict: Verdict,
    rule: Arc<str>,
    phase: Phase,
    draw: Draw,
    duration_us: Option<u64>,
    irreversible: bool,
    preview: Option<Arc<str>>,
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
    ) -> Result<Self, AuditUnavailable> {
        let denials = limits.denials_kept.min(HELD_DENIALS);
        let held_sums = limits.descriptors.saturating_add(OTHER_SUMS).saturating_add(denials);
        audit.hold_room(held_sums)?;
        let below_root = policy.mounts().iter().filter(|mount| !mount.at.is_root());
        let mounts = below_root.map(|mount| mount.at.clone()).collect();
        let policy = PolicyId { generation: policy.generation(), digest: policy.digest() };
        Ok(Self {
            session: Arc::from(session),
            tier: "wasm",
            policy: Arc::new(policy),
            audit,
            budget_rule: Arc::from(BUDGET_RULE),
            audit_rule: Arc::from(AUDIT_RULE),
            stream_rule: Arc::from("granted-at-open"),
            numbers,
            call: 0,
            within: 0,
            run: None,
            held_sums,
            meter,
            denials: Denials::new(limits.denials_kept),
            lasting: Lasting::new(limits.effects_kept, mounts),
            denials_used_up: false,
            sums: BTreeMap::new(),
            created: 0,
            tool_calls: 0,
            time_limit_fired: false,
            open: BTreeMap::new(),
        })
    }

    /// Gives the next request its number, which no other of the session has.
    pub(crate) fn next_call(&mut self) {
        self.call = self.numbers.next_call();
    }

    /// The present call.
    pub(crate) fn call(&self) -> u64 {
        self.call
    }

    /// The call that the next ones are part of.
    pub(crate) fn parent(&self) -> u64 {
        self.within
    }

    /// Makes calls from now on part of `parent`.
    pub(crate) fn set_parent(&mut self, parent: u64) {
        self.within = parent;
    }

    /// What an effect draws on, before it took `taken`.
    fn drawn(&self, budget: Budget, taken: u64) -> Draw {
        let after = self.meter.left(budget);
        Draw { budget: budget.name(), before: after.saturating_add(taken), after }
    }

    /// An entry of the present call without anything special.
    fn plain(
        &self,
        operation: &'static str,
        target: Target,
        verdict: Verdict,
        rule: Arc<str>,
        phase: Phase,
    ) -> Entry {
        Entry {
            call: self.call,
            parent: self.within,
            operation,
            target,
            verdict,
            rule,
            phase,
            draw: self.drawn(Budget::HostCalls, 0),
            duration_us: None,
            irreversible: false,
            preview: None,
            given: Payload::default(),
            asked: Payload::default(),
        }
    }

    /// Records that a run begins; what it does is then part of it.
    ///
    /// # Errors
    /// [`AuditUnavailable`]; then nothing may run.
    pub(crate) fn begin_run(
        &mut self,
        name: &str,
        program: Payload,
    ) -> Result<(), AuditUnavailable> {
        self.end_run(Outcome::Unknown);
        self.next_call();
        let (target, rule) = (Target::Program(Arc::from(name)), Arc::<str>::from("run"));
        let mut entry =
            self.plain("run", target.clone(), Verdict::Allow, Arc::clone(&rule), Phase::Intent);
        entry.asked = program;
        entry.parent = 0;
        self.record(entry)?;
        self.within = self.call;
        self.run = Some(OpenEffect {
            call: self.call,
            operation: "run",
            target: Some(target),
            rule,
            reserved: 0,
            parent: 0,
            budget: Budget::HostCalls,
            since: Some(Stopwatch::start()),
        });
        Ok(())
    }

    /// Records how the run ended, if one is going on.
    pub(crate) fn end_run(&mut self, outcome: Outcome) {
        if let Some(run) = self.run.take() {
            self.conclude_open();
            self.within = 0;
            self.conclude(run, outcome, 0, Payload::default());
        }
    }

    fn record(&mut self, entry: Entry) -> Result<(), AuditUnavailable> {
        let Entry { call, operation, target, verdict, rule, phase, given, asked, .. } = entry;
        let record = |sequence| AuditRecord {
            sequence,
            call,
            parent: entry.parent,
            session: Arc::clone(&self.session),
            tier: self.tier,
            operation,
            target,
            verdict,
            rule,
            policy: Arc::clone(&self.policy),
            phase,
            draw: entry.draw,
            bytes_in: given.bytes,
            bytes_out: asked.bytes,
            digest: given.digest.or(asked.digest),
            preview: entry.preview,
            duration_us: entry.duration_us,
            irreversible: entry.irreversible,
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
        (asked, preview): (Payload, Option<Arc<str>>),
    ) -> Result<OpenEffect, Refused> {
        let (call, operation) = (self.call, request.operation());
        let (parent, budget) = (self.within, request.budget());
        if request.summed() {
            let since = None;
            let target = None;
            return Ok(OpenEffect {
                call,
                operation,
                target,
                rule,
                reserved,
                parent,
                budget,
                since,
            });
        }
        let target = request.target();
        let taken = if budget == Budget::CreatedEntries { reserved } else { 1 };
        let mut entry =
            self.plain(operation, target.clone(), Verdict::Allow, Arc::clone(&rule), Phase::Intent);
        entry.draw = self.drawn(budget, taken);
        entry.irreversible = request.irreversible();
        entry.asked = asked;
        entry.preview = preview;
        if let Err(AuditUnavailable(why)) = self.record(entry) {
            let why = Refused {
                errno: Errno::Io,
                rule: Arc::clone(&self.audit_rule),
                reason: format!("denied: the audit takes no record ({why}), and no effect happens unrecorded. Do not retry.").into(),
                hint: "the operator could make room for the audit log".into(),
            };
            self.count_denial(operation, &target, Verdict::Deny, &why);
            return Err(why);
        }
        let since = Some(Stopwatch::start());
        let target = Some(target);
        Ok(OpenEffect { call, operation, target, rule, reserved, parent, budget, since })
    }

    /// Settles the budget and writes the outcome, or counts it in a sum.
    pub(crate) fn conclude(
        &mut self,
        effect: OpenEffect,
        outcome: Outcome,
        created: u64,
        given: Payload,
    ) {
        let OpenEffect { call, operation, target, rule, reserved, parent, budget, since } = effect;
        self.time_limit_fired |= outcome == Outcome::TimedOut;
        let created = created.min(reserved);
        let before = self.meter.left(budget);
        self.meter.give_back(Budget::CreatedEntries, reserved.saturating_sub(created));
        self.created = self.created.saturating_add(created);
        let Some(target) = target else {
            let sum = self.sums.entry(operation).or_default();
            sum.0 = sum.0.saturating_add(1);
            let failed = !matches!(outcome, Outcome::Done | Outcome::Redirected);
            sum.1 = sum.1.saturating_add(u64::from(failed));
            return;
        };
        self.lasting.effect(operation, &target, outcome);
        if matches!(target, Target::Tool(_)) {
            self.tool_calls = self.tool_calls.saturating_add(1);
        }
        let phase = Phase::Outcome(outcome);
        let mut entry = self.plain(operation, target, Verdict::Allow, rule, phase);
        (entry.call, entry.parent, entry.given) = (call, parent, given);
        entry.draw = Draw { before, ..self.drawn(budget, 0) };
        let elapsed = since.map(|since| since.elapsed().as_micros());
        entry.duration_us = elapsed.map(|elapsed| u64::try_from(elapsed).unwrap_or(u64::MAX));
        // A sink that took the intent has promised room for the outcome.
        let _ = self.record(entry);
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
        self.deny_previewed(operation, target, verdict, why, None)
    }

    /// The same, with a few words about it in the record.
    pub(crate) fn deny_previewed(
        &mut self,
        operation: &'static str,
        target: &Target,
        verdict: Verdict,
        why: Refused,
        preview: Option<Arc<str>>,
    ) -> Refused {
        if self.count_denial(operation, target, verdict, &why) {
            let rule = Arc::clone(&why.rule);
            let mut entry = self.plain(operation, target.clone(), verdict, rule, Phase::Intent);
            entry.preview = preview;
            // Nothing happens, so nothing is lost if the sink is full.
            let _ = self.record(entry);
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

    /// Lets records from now on name another policy, and records the change.
    pub(crate) fn replace_policy(&mut self, policy: &Policy) {
        let id = PolicyId { generation: policy.generation(), digest: policy.digest() };
        self.policy = Arc::new(id);
        let rule = Arc::clone(&self.stream_rule);
        self.record_decision("policy.replace", Target::Name("policy"), &rule, Verdict::Allow);
    }

    /// The session's name.
    pub(crate) fn session(&self) -> Arc<str> {
        Arc::clone(&self.session)
    }

    /// Records a decision of a person, under a call of its own.
    pub(crate) fn record_decision(
        &mut self,
        operation: &'static str,
        target: Target,
        rule: &Arc<str>,
        verdict: Verdict,
    ) {
        self.next_call();
        let phase = Phase::Sum { count: 1, failed: u64::from(verdict == Verdict::Deny) };
        // What it decides on has an intent of its own, without which nothing
        // happens.
        let entry = self.plain(operation, target, verdict, Arc::clone(rule), phase);
        let _ = self.record(entry);
    }

    /// Records one sum over a stream that was decided when it was opened.
    pub(crate) fn record_stream(
        &mut self,
        operation: &'static str,
        target: Target,
        opened_by: Option<u64>,
        [count, bytes_in, bytes_out]: [u64; 3],
    ) {
        self.next_call();
        self.lasting.stream(operation, &target, bytes_out);
        let rule = Arc::clone(&self.stream_rule);
        let phase = Phase::Sum { count, failed: 0 };
        let mut entry = self.plain(operation, target, Verdict::Allow, rule, phase);
        entry.parent = opened_by.unwrap_or(self.within);
        entry.given.bytes = bytes_in;
        entry.asked.bytes = bytes_out;
        entry.draw = match operation {
            "fs.stream" if bytes_out > 0 => self.drawn(Budget::WrittenBytes, bytes_out),
            "fs.stream" => self.drawn(Budget::ReadBytes, bytes_in),
            "random.read" => self.drawn(Budget::RandomBytes, bytes_in),
            _ => self.drawn(Budget::HostCalls, count),
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
            let mut entry = self.plain(operation, Target::None, Verdict::Allow, rule, phase);
            entry.draw = self.drawn(Budget::HostCalls, count);
            let _ = self.record(entry);
        }
        for Repeated { operation, target, rule, verdict, times } in self.denials.repeated() {
            self.next_call();
            let phase = Phase::Sum { count: times, failed: times };
            let entry = self.plain(operation, target, verdict, rule, phase);
            let _ = self.record(entry);
        }
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        self.conclude_open();
        self.end_run(Outcome::Unknown);
        self.audit.give_back_room(self.held_sums);
    }
}
