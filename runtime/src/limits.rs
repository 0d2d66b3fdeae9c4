//! The numbers that end a run.
//!
//! Invariant: every limit has a value; there is no "unlimited".

use std::time::Duration;

use fumehood_policies::{BudgetLimits, BudgetSettings};

use crate::error::BuildError;

/// Limits of one run. The limits on files, output and host calls are those of
/// [`fumehood_host_fns::Limits`].
#[derive(Clone, Debug)]
pub struct Limits {
    /// Wall-clock time of a run, waiting included; `timeout{wall}` at its end.
    pub wall: Duration,
    /// Processor time of the guest's thread; `timeout{cpu}` at its end.
    pub cpu: Duration,
    /// Linear memory in bytes, the interpreter's own included; a growth beyond
    /// it fails, and the run ends with `memory_limit` unless Python handles it.
    pub memory_bytes: u64,
    /// Longest `repr` and JSON value of a cell, in bytes.
    pub value_bytes: u32,
    /// Source text of one run, in bytes; longer is refused.
    pub source_bytes: usize,
    /// JSON inputs of one run, in bytes; longer is refused.
    pub input_bytes: usize,
    /// What the broker counts.
    pub broker: fumehood_host_fns::Limits,
}

/// Smallest memory limit that the interpreter itself fits in, in bytes.
pub const MIN_MEMORY_BYTES: u64 = 64 << 20;
/// Largest memory limit: what a 32-bit linear memory can hold, in bytes.
pub const MAX_MEMORY_BYTES: u64 = 4 << 30;

/// Longest any time limit may be: a year.
pub(crate) const MAX_TIME: Duration = Duration::from_secs(365 * 24 * 3600);

impl Limits {
    /// Takes over every number of a policy's budget.
    pub(crate) fn with_budget(self, budget: &BudgetLimits) -> Self {
        Self {
            wall: Duration::from_millis(budget.wall_ms),
            cpu: Duration::from_millis(budget.cpu_ms),
            memory_bytes: budget.memory_bytes,
            broker: self.broker.with_budget(budget),
            ..self
        }
    }

    /// The numbers of a policy's budget, all named but those of the network.
    pub(crate) fn to_budget(&self) -> BudgetSettings {
        BudgetSettings {
            wall_ms: Some(milliseconds(self.wall)),
            cpu_ms: Some(milliseconds(self.cpu)),
            memory_bytes: Some(self.memory_bytes),
            ..self.broker.to_budget()
        }
    }
}

/// Whole milliseconds; a part of one is one.
pub(crate) fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// Refuses what cannot be.
///
/// # Errors
/// [`BuildError::Limit`].
pub(crate) fn check_limits(limits: &Limits) -> Result<(), BuildError> {
    let out_of_range = |name, least, most| BuildError::Limit { name, least, most };
    for (name, time) in [("wall (seconds)", limits.wall), ("cpu (seconds)", limits.cpu)] {
        if time.is_zero() || time > MAX_TIME {
            return Err(out_of_range(name, 1, MAX_TIME.as_secs()));
        }
    }
    if !(MIN_MEMORY_BYTES..=MAX_MEMORY_BYTES).contains(&limits.memory_bytes) {
        return Err(out_of_range("memory (MiB)", MIN_MEMORY_BYTES >> 20, MAX_MEMORY_BYTES >> 20));
    }
    Ok(())
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            wall: Duration::from_secs(60),
            cpu: Duration::from_secs(60),
            memory_bytes: 512 << 20,
            value_bytes: 64 << 10,
            source_bytes: 16 << 20,
            input_bytes: 64 << 20,
            broker: fumehood_host_fns::Limits::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = include_str!("../../docs/limits.md");

    /// Names and numbers of the table below a heading, without the gaps
    /// between groups of digits.
    fn table(heading: &str) -> Vec<(String, String)> {
        let section = PAGE.split("\n## ").find(|section| section.starts_with(heading));
        let rows = section.unwrap_or_default().lines().filter(|line| line.starts_with("| `"));
        rows.map(|row| {
            let mut cells = row.split('|').skip(1).map(|cell| cell.trim().trim_matches('`'));
            let name = cells.next().unwrap_or_default().to_owned();
            (name, cells.next().unwrap_or_default().replace(' ', ""))
        })
        .collect()
    }

    fn rows<const N: usize>(numbers: [(&str, u64); N]) -> Vec<(String, String)> {
        numbers.map(|(name, number)| (name.to_owned(), number.to_string())).to_vec()
    }

    #[test]
    fn the_page_has_every_limit_and_no_other() {
        // A new field has to be named here.
        let Limits { wall, cpu, memory_bytes, value_bytes, source_bytes, input_bytes, broker } =
            Limits::default();
        let want = rows([
            ("wall", milliseconds(wall)),
            ("cpu", milliseconds(cpu)),
            ("memory_bytes", memory_bytes),
            ("value_bytes", u64::from(value_bytes)),
            ("source_bytes", source_bytes as u64),
            ("input_bytes", input_bytes as u64),
        ]);
        assert_eq!(table("`fumehood::Limits`"), want);
        assert_eq!(broker, fumehood_host_fns::Limits::default());
    }

    #[test]
    fn the_page_has_every_constant_and_no_other() {
        let want = rows([
            ("MIN_MEMORY_BYTES", MIN_MEMORY_BYTES),
            ("MAX_MEMORY_BYTES", MAX_MEMORY_BYTES),
            ("MAX_TIME", milliseconds(MAX_TIME)),
            ("MAX_ENVIRONMENT_BYTES", crate::grants::MAX_ENVIRONMENT_BYTES as u64),
            ("DEFAULT_FUEL", crate::determinism::DEFAULT_FUEL),
            ("MAX_TIME_SECONDS", crate::determinism::MAX_TIME_SECONDS),
            ("MAX_THREADS", crate::threads::MAX_THREADS as u64),
            ("MAX_BLOCKING_CALLS", crate::executor::MAX_BLOCKING_CALLS as u64),
            ("IDLE", milliseconds(crate::threads::IDLE)),
            ("TICK", milliseconds(crate::ticker::TICK)),
            ("HOST_CALL_GRACE", milliseconds(crate::ticker::HOST_CALL_GRACE)),
            ("WASM_STACK_BYTES", crate::engine::WASM_STACK_BYTES as u64),
            ("THREAD_STACK_BYTES", crate::engine::THREAD_STACK_BYTES as u64),
            ("SHADOW_STACK_MARGIN", u64::from(crate::instance::SHADOW_STACK_MARGIN.unsigned_abs())),
            ("MAX_TABLE_ELEMENTS", crate::host::MAX_TABLE_ELEMENTS as u64),
            ("MAX_GUEST_BYTES", crate::engine::MAX_GUEST_BYTES as u64),
            ("RESULT_ROOM_BYTES", u64::from(crate::guest::RESULT_ROOM_BYTES)),
            ("MAX_INPUT_DEPTH", crate::inputs::MAX_INPUT_DEPTH as u64),
            ("MAX_WAITING_BYTES", crate::listener::MAX_WAITING_BYTES as u64),
            ("LAST_CALL", milliseconds(crate::listener::LAST_CALL)),
            ("LOOK", milliseconds(crate::listener::LOOK)),
            ("MAX_CHECKPOINTS", crate::session::MAX_CHECKPOINTS as u64),
            ("MAX_CHECKPOINT_BYTES", crate::session::MAX_CHECKPOINT_BYTES as u64),
            ("MAX_WAITING", crate::session::MAX_WAITING as u64),
            ("MAX_FILES", crate::session::MAX_FILES as u64),
            ("MAX_PREPARATION", milliseconds(crate::session::MAX_PREPARATION)),
            ("MAX_AWAKE", crate::session::MAX_AWAKE as u64),
            ("MAX_FREE", crate::memory::MAX_FREE as u64),
            ("MAX_RESIDENT_PAGES", crate::memory::MAX_RESIDENT_PAGES as u64),
            ("MAX_GROWN_PAGES", crate::memory::MAX_GROWN_PAGES as u64),
            ("MAX_CHANGED_PAGES", crate::memory::MAX_CHANGED_PAGES as u64),
            ("MAX_PARTS", crate::memory::MAX_PARTS as u64),
        ]);
        assert_eq!(table("Constants of `fumehood`"), want);
    }

    #[test]
    fn a_budget_goes_to_limits_and_back() {
        let large = BudgetLimits::preset(fumehood_policies::BudgetPreset::Large);
        let limits = Limits::default().with_budget(&large);
        assert_eq!((limits.wall.as_secs(), limits.memory_bytes), (600, 2 << 30));
        assert_eq!(limits.broker.host_calls, large.host_calls);
        let named = limits.to_budget();
        assert_eq!((named.wall_ms, named.cpu_ms), (Some(600_000), Some(600_000)));
        assert_eq!(milliseconds(Duration::from_nanos(1)), 1);
        assert_eq!(milliseconds(Duration::MAX), u64::MAX);
    }
}
