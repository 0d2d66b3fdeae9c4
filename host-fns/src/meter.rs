//! Budgets of the session.
//!
//! What: [`SharedMeter`] counts what is left; brokers of one session share it,
//! so that a new run does not start from zero.
//!
//! Invariant: what was used never goes down, whatever is rolled back; only a
//! reservation that was not used is given back, and no counter passes its
//! limit or zero.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use fumehood_policies::{BudgetLimits, CallLimit, HostLimit};

use crate::limits::Limits;

/// A budget that is counted against a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Budget {
    /// Calls of the host.
    HostCalls,
    /// Random bytes.
    RandomBytes,
    /// Bytes read from files.
    ReadBytes,
    /// Bytes written to files.
    WrittenBytes,
    /// Files, directories and links created.
    CreatedEntries,
    /// Calls of all tools.
    ToolCalls,
    /// Denials.
    Denials,
    /// Network requests.
    Requests,
    /// Bytes of request bodies.
    BytesUp,
    /// Bytes of response bodies.
    BytesDown,
}

impl Budget {
    const COUNT: usize = 10;

    /// Every budget.
    pub const ALL: [Self; Self::COUNT] = [
        Self::HostCalls,
        Self::RandomBytes,
        Self::ReadBytes,
        Self::WrittenBytes,
        Self::CreatedEntries,
        Self::ToolCalls,
        Self::Denials,
        Self::Requests,
        Self::BytesUp,
        Self::BytesDown,
    ];

    /// The budget's stable name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::HostCalls => "host_calls",
            Self::RandomBytes => "random_bytes",
            Self::ReadBytes => "read_bytes",
            Self::WrittenBytes => "written_bytes",
            Self::CreatedEntries => "created_entries",
            Self::ToolCalls => "tool_calls_total",
            Self::Denials => "denials",
            Self::Requests => "requests",
            Self::BytesUp => "bytes_up",
            Self::BytesDown => "bytes_down",
        }
    }

    fn limit(self, limits: &Limits) -> u64 {
        match self {
            Self::HostCalls => limits.host_calls,
            Self::RandomBytes => limits.random_bytes,
            Self::ReadBytes => limits.read_bytes,
            Self::WrittenBytes => limits.written_bytes,
            Self::CreatedEntries => limits.created_entries,
            Self::ToolCalls => limits.tool_calls_total,
            Self::Denials => limits.denials,
            Self::Requests => limits.requests,
            Self::BytesUp => limits.bytes_up,
            Self::BytesDown => limits.bytes_down,
        }
    }
}

/// The budget has nothing left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the budget `{}` is used up", .0.name())]
pub struct Exhausted(pub Budget);

/// One counter. It guards nothing but itself, so relaxed ordering is enough.
#[derive(Debug, Default)]
struct Counter {
    limit: u64,
    left: AtomicU64,
}

impl Counter {
    fn new(limit: u64) -> Self {
        Self { limit, left: AtomicU64::new(limit) }
    }

    fn left(&self) -> u64 {
        self.left.load(Ordering::Relaxed)
    }

    /// Takes up to `amount`, at least `least`, and returns how much.
    fn take(&self, least: u64, amount: u64) -> Option<u64> {
        let mut left = self.left();
        loop {
            let taken = amount.min(left);
            if taken < least {
                return None;
            }
            let rest = left.saturating_sub(taken);
            match self.left.compare_exchange_weak(left, rest, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => return Some(taken),
                Err(now) => left = now,
            }
        }
    }

    fn give_back(&self, amount: u64) {
        if amount == 0 {
            return;
        }
        let mut left = self.left();
        loop {
            let more = left.saturating_add(amount).min(self.limit);
            match self.left.compare_exchange_weak(left, more, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => return,
                Err(now) => left = now,
            }
        }
    }
}

/// What is left of every budget of a session. Cloning shares it.
#[derive(Clone, Debug)]
pub struct SharedMeter(Arc<Counters>);

#[derive(Debug)]
struct Counters {
    budgets: [Counter; Budget::COUNT],
    tools: BTreeMap<Box<str>, Counter>,
    /// Calls under rules of the policy that bound them; at most one entry for
    /// each rule.
    rules: Mutex<BTreeMap<Arc<str>, u64>>,
    pub(crate) hosts: crate::net::HostMeter,
}

impl SharedMeter {
    /// Nothing used yet of these limits.
    #[must_use]
    pub fn new(limits: &Limits) -> Self {
        let tools = limits.tool_calls_by_name.iter();
        Self(Arc::new(Counters {
            budgets: Budget::ALL.map(|budget| Counter::new(budget.limit(limits))),
            tools: tools
                .map(|(name, calls)| (name.as_str().into(), Counter::new(*calls)))
                .collect(),
            rules: Mutex::default(),
            hosts: crate::net::HostMeter::new(limits.distinct_hosts),
        }))
    }

    /// Nothing used yet of a policy's budget; what it does not name is as
    /// [`Limits::default`] has it.
    #[must_use]
    pub fn from_budget(budget: &BudgetLimits) -> Self {
        Self::new(&Limits::default().with_budget(budget))
    }

    /// What was sent to and received from single hosts.
    pub(crate) fn hosts(&self) -> &crate::net::HostMeter {
        &self.0.hosts
    }

    fn counter(&self, budget: Budget) -> Option<&Counter> {
        self.0.budgets.get(budget as usize)
    }

    /// What is left of a budget.
    #[must_use]
    pub fn left(&self, budget: Budget) -> u64 {
        self.counter(budget).map_or(0, Counter::left)
    }

    /// What was used of a budget, running reservations included.
    #[must_use]
    pub fn used(&self, budget: Budget) -> u64 {
        self.counter(budget).map_or(0, |counter| counter.limit.saturating_sub(counter.left()))
    }

    /// What is left of the calls of one tool; `None` if only the calls of all
    /// tools are bounded.
    #[must_use]
    pub fn tool_calls_left(&self, tool: &str) -> Option<u64> {
        self.0.tools.get(tool).map(Counter::left)
    }

    /// Uses all of `amount` or nothing.
    pub(crate) fn take(&self, budget: Budget, amount: u64) -> Result<(), Exhausted> {
        self.take_between(budget, amount, amount).map(drop)
    }

    /// Takes up to `most`, and at least `least`; how much it was.
    pub(crate) fn take_between(
        &self,
        budget: Budget,
        least: u64,
        most: u64,
    ) -> Result<u64, Exhausted> {
        let taken = self.counter(budget).and_then(|counter| counter.take(least, most));
        taken.ok_or(Exhausted(budget))
    }

    /// Gives back what a reservation did not use.
    pub(crate) fn give_back(&self, budget: Budget, amount: u64) {
        if let Some(counter) = self.counter(budget) {
            counter.give_back(amount);
        }
    }

    /// Takes one call of a tool from all its budgets, or from none of them.
    ///
    /// # Errors
    /// The name of the budget that is used up.
    pub(crate) fn take_tool_call(&self, tool: &str, rules: &[CallLimit]) -> Result<(), String> {
        self.take(Budget::ToolCalls, 1).map_err(|exhausted| exhausted.0.name().to_owned())?;
        let by_name = self.0.tools.get(tool);
        if by_name.is_some_and(|counter| counter.take(1, 1).is_none()) {
            self.give_back(Budget::ToolCalls, 1);
            return Err(format!("tool_calls.{tool}"));
        }
        self.take_rule_calls(rules).map_err(|rule| {
            self.give_back(Budget::ToolCalls, 1);
            if let Some(counter) = by_name {
                counter.give_back(1);
            }
            format!("max_calls of rule {rule}")
        })
    }

    fn take_rule_calls(&self, limits: &[CallLimit]) -> Result<(), Arc<str>> {
        if limits.is_empty() {
            return Ok(());
        }
        let mut used = self.0.rules.lock().unwrap_or_else(PoisonError::into_inner);
        let full = |limit: &&CallLimit| used.get(&limit.rule).is_some_and(|n| *n >= limit.calls);
        if let Some(limit) = limits.iter().find(|limit| limit.calls == 0 || full(limit)) {
            return Err(Arc::clone(&limit.rule));
        }
        // Layers may bound one rule name differently; a call counts once.
        for (at, limit) in limits.iter().enumerate() {
            if !limits.iter().take(at).any(|earlier| earlier.rule == limit.rule) {
                let count = used.entry(Arc::clone(&limit.rule)).or_default();
                *count = count.saturating_add(1);
            }
        }
        Ok(())
    }

    /// Takes one request to a host from all its budgets, or from none of them.
    ///
    /// # Errors
    /// The name of the budget that is used up.
    pub(crate) fn take_request(&self, host: &Arc<str>, limits: &[HostLimit]) -> Result<(), String> {
        self.take(Budget::Requests, 1).map_err(|exhausted| exhausted.0.name().to_owned())?;
        self.hosts().take(host, limits).inspect_err(|_| self.give_back(Budget::Requests, 1))
    }

    /// Gives back a request that was never made.
    pub(crate) fn give_back_request(&self, host: &Arc<str>, limits: &[HostLimit]) {
        self.give_back(Budget::Requests, 1);
        self.hosts().give_back(host, limits);
    }

    /// How many different hosts requests went to.
    #[must_use]
    pub fn distinct_hosts(&self) -> u64 {
        self.hosts().count()
    }

    /// Gives back a call that was never made.
    pub(crate) fn give_back_tool_call(&self, tool: &str, rules: &[CallLimit]) {
        self.give_back(Budget::ToolCalls, 1);
        if let Some(counter) = self.0.tools.get(tool) {
            counter.give_back(1);
        }
        if rules.is_empty() {
            return;
        }
        let mut used = self.0.rules.lock().unwrap_or_else(PoisonError::into_inner);
        for (at, limit) in rules.iter().enumerate() {
            if !rules.iter().take(at).any(|earlier| earlier.rule == limit.rule)
                && let Some(count) = used.get_mut(&limit.rule)
            {
                *count = count.saturating_sub(1);
            }
        }
    }
}

/// A part of a budget that is set aside; dropped, it is given back.
#[derive(Debug)]
#[must_use = "a reservation that is dropped is given back"]
pub(crate) struct Reservation<'m> {
    meter: &'m SharedMeter,
    budget: Budget,
    amount: u64,
}

impl<'m> Reservation<'m> {
    /// Of an amount that was taken from the meter.
    pub(crate) fn of(meter: &'m SharedMeter, budget: Budget, amount: u64) -> Self {
        Self { meter, budget, amount }
    }

    /// How much is set aside.
    pub(crate) fn amount(&self) -> u64 {
        self.amount
    }

    /// Uses `used` of it and gives the rest back.
    pub(crate) fn settle(mut self, used: u64) {
        self.amount = self.amount.saturating_sub(used);
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.meter.give_back(self.budget, self.amount);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn meter() -> SharedMeter {
        SharedMeter::new(&Limits {
            tool_calls_total: 10,
            written_bytes: 1000,
            tool_calls_by_name: [("search".to_owned(), 3)].into(),
            ..Limits::default()
        })
    }

    #[test]
    fn every_budget_has_its_own_counter() {
        for (at, budget) in Budget::ALL.into_iter().enumerate() {
            assert_eq!(budget as usize, at);
            assert_eq!(
                meter().left(budget),
                budget.limit(&Limits {
                    tool_calls_total: 10,
                    written_bytes: 1000,
                    ..Limits::default()
                })
            );
        }
        assert_eq!(
            SharedMeter::from_budget(&BudgetLimits::default()).left(Budget::ToolCalls),
            10_000
        );
        assert_eq!(Limits::default(), Limits::default().with_budget(&BudgetLimits::default()));
    }

    #[test]
    fn a_call_is_taken_from_all_budgets_or_none() {
        let meter = meter();
        let rule = |calls| CallLimit { rule: "r".into(), calls };
        meter.take_tool_call("search", &[rule(2), rule(3)]).unwrap();
        meter.take_tool_call("other", &[rule(2)]).unwrap();
        assert_eq!(meter.take_tool_call("search", &[rule(2)]).unwrap_err(), "max_calls of rule r");
        assert_eq!((meter.left(Budget::ToolCalls), meter.tool_calls_left("search")), (8, Some(2)));
        meter.give_back_tool_call("other", &[rule(2)]);
        meter.take_tool_call("search", &[rule(2)]).unwrap();
        meter.take_tool_call("search", &[]).unwrap();
        assert_eq!(meter.take_tool_call("search", &[]).unwrap_err(), "tool_calls.search");
        assert_eq!(meter.left(Budget::ToolCalls), 7);
        for _ in 0..7 {
            meter.take_tool_call("other", &[]).unwrap();
        }
        assert_eq!(meter.take_tool_call("other", &[]).unwrap_err(), "tool_calls_total");
    }

    #[test]
    fn shared_counters_never_pass_zero_or_their_limit() {
        let meter = meter();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 0..5000_u64 {
                        if let Ok(taken) = meter.take_between(Budget::WrittenBytes, 1, 7) {
                            assert!((1..=7).contains(&taken));
                            let reservation = Reservation::of(&meter, Budget::WrittenBytes, taken);
                            reservation.settle(u64::from(round % 50 == 0));
                        }
                        assert!(meter.left(Budget::WrittenBytes) <= 1000);
                    }
                });
            }
        });
        assert_eq!(meter.used(Budget::WrittenBytes), 400);
        meter.give_back(Budget::WrittenBytes, u64::MAX);
        assert_eq!(meter.used(Budget::WrittenBytes), 0);
        assert!(meter.take(Budget::WrittenBytes, 1001).is_err());
        assert_eq!(meter.take_between(Budget::WrittenBytes, 0, 0), Ok(0));
    }
}
