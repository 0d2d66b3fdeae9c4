//! Deterministic mode: what a run is given instead of the host's clocks and
//! randomness, and how much it may do.
//!
//! Why: the same program on the same files with the same seed has the same
//! output, and [`Outcome::digest`] proves it.
//!
//! Invariant: in this mode nothing that the guest can see depends on the time,
//! the user, the place or the load of the host. Limits of wall-clock and
//! processor time and a cancel still end a run, and then there is no digest.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fumehood_host_fns::{
    Clock, Purpose, RandomSource, SeededRandom, VirtualClock, VirtualWaiter, Waiter,
};
use wasmtime::{AsContext, Store};

use crate::error::BuildError;
use crate::host::Host;
use crate::outcome::{Outcome, OutcomeKind};
use crate::transcript::Transcript;

/// The time at which a deterministic run starts unless another is given, in
/// seconds since 1970: 2025-01-01T00:00:00Z.
const DEFAULT_TIME_SECONDS: u64 = 1_735_689_600;
/// The fuel of a deterministic run unless another amount is given. A unit is
/// about one WebAssembly instruction.
pub const DEFAULT_FUEL: u64 = 200_000_000_000;
/// Units of fuel that are a nanosecond of the guest's clock: about what a
/// processor of today does in one.
const FUEL_PER_NANOSECOND: u64 = 10;
/// The latest start, in seconds since 1970: the end of the year 2199. File
/// times are counted in nanoseconds and end in 2262.
pub(crate) const MAX_TIME_SECONDS: u64 = 7_258_118_399;

/// Settings of deterministic mode; see [`SandboxBuilder::deterministic`].
///
/// [`SandboxBuilder::deterministic`]: crate::SandboxBuilder::deterministic
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Determinism {
    /// Decides every random byte. The bytes are no secret: who knows the seed
    /// knows them.
    pub seed: u64,
    /// What the guest's clock shows at the start, from 1970 to 2199; the
    /// default is 2025-01-01T00:00:00Z. It moves
    /// by one microsecond for each reading, by what the program sleeps (which
    /// takes no real time), and by one nanosecond for every ten units of fuel.
    pub time: SystemTime,
    /// How much a run may do: about so many WebAssembly instructions. At the
    /// end of it the run ends as [`OutcomeKind::FuelExhausted`].
    pub fuel: u64,
}

impl Default for Determinism {
    fn default() -> Self {
        Self {
            seed: 0,
            time: UNIX_EPOCH + Duration::from_secs(DEFAULT_TIME_SECONDS),
            fuel: DEFAULT_FUEL,
        }
    }
}

impl Determinism {
    /// Whether the time is one that a run can start at.
    #[must_use]
    pub fn time_is_in_range(&self) -> bool {
        let time = self.time.duration_since(UNIX_EPOCH);
        time.is_ok_and(|time| time.as_secs() <= MAX_TIME_SECONDS)
    }

    /// # Errors
    /// [`BuildError::Limit`] names what is out of range.
    pub(crate) fn check(&self) -> Result<(), BuildError> {
        if !self.time_is_in_range() {
            let name = "time (seconds since 1970)";
            return Err(BuildError::Limit { name, least: 0, most: MAX_TIME_SECONDS });
        }
        if self.fuel == 0 {
            return Err(BuildError::Limit { name: "fuel", least: 1, most: u64::MAX });
        }
        Ok(())
    }

    pub(crate) fn time_ns(&self) -> u64 {
        let time = self.time.duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
    }
}

/// What stands for the host's clock and randomness in one run or session.
#[derive(Clone)]
pub(crate) struct Sources {
    pub(crate) settings: Determinism,
    clock: Arc<VirtualClock>,
    random: Arc<dyn RandomSource>,
    /// Seeds for the interpreter's own generators.
    seeds: Arc<dyn RandomSource>,
}

impl Sources {
    pub(crate) fn new(settings: Determinism) -> Self {
        Self {
            settings,
            clock: Arc::new(VirtualClock::starting_at(settings.time_ns())),
            random: Arc::new(SeededRandom::new(settings.seed, Purpose::Guest)),
            seeds: Arc::new(SeededRandom::new(settings.seed, Purpose::Interpreter)),
        }
    }

    pub(crate) fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.clock) as Arc<dyn Clock>
    }

    pub(crate) fn random(&self) -> Arc<dyn RandomSource> {
        Arc::clone(&self.random)
    }

    /// Sleeps on the virtual clock; `real` is what interrupts them.
    pub(crate) fn waiter(&self, real: Arc<dyn Waiter>) -> Arc<dyn Waiter> {
        Arc::new(VirtualWaiter::new(Arc::clone(&self.clock), real))
    }

    pub(crate) fn interpreter_seeds(&self) -> &Arc<dyn RandomSource> {
        &self.seeds
    }
}

/// The deterministic part of a store.
pub(crate) struct Metered {
    sources: Sources,
    pub(crate) transcript: Transcript,
    /// Fuel that was given to earlier cells and is used up.
    spent: u64,
    /// Fuel of the present run or cell.
    given: u64,
    /// What was told or done depends on the host's clocks: no digest any more.
    broken: bool,
}

impl Metered {
    pub(crate) fn new(sources: Sources, transcript: Transcript) -> Self {
        Self { sources, transcript, spent: 0, given: 0, broken: false }
    }

    /// That of a fork: what was told so far is the same, time goes on from
    /// here, and randomness starts anew from the seed.
    pub(crate) fn fork(&self) -> Self {
        let sources = Sources::new(self.sources.settings);
        let passed = self.sources.clock.monotonic_ns();
        sources.clock.advance(Duration::from_nanos(passed));
        let transcript = self.transcript.clone();
        Self { sources, transcript, spent: 0, given: 0, broken: self.broken }
    }

    /// What was done is no function of what was given any more.
    pub(crate) fn break_off(&mut self) {
        self.broken = true;
    }

    pub(crate) fn sources(&self) -> &Sources {
        &self.sources
    }
}

/// Gives a store its fuel; before every run and every cell.
///
/// # Errors
/// When the engine does not count fuel.
pub(crate) fn refuel(store: &mut Store<Host>) -> wasmtime::Result<()> {
    let Some(fuel) = store.data().metered.as_ref().map(|metered| metered.sources.settings.fuel)
    else {
        return Ok(());
    };
    let used = used(&*store).unwrap_or(0);
    store.set_fuel(fuel)?;
    if let Some(metered) = &mut store.data_mut().metered {
        metered.spent = metered.spent.saturating_add(used);
        metered.given = fuel;
    }
    Ok(())
}

/// Counts what was used, before a store is given up and another takes over.
pub(crate) fn settle(store: &mut Store<Host>) {
    let used = used(&*store).unwrap_or(0);
    if let Some(metered) = &mut store.data_mut().metered {
        metered.spent = metered.spent.saturating_add(used);
        metered.given = 0;
    }
}

/// Fuel that the present run or cell has used.
fn used(store: impl AsContext<Data = Host>) -> Option<u64> {
    let context = store.as_context();
    let given = context.data().metered.as_ref()?.given;
    Some(given.saturating_sub(context.get_fuel().ok()?))
}

/// Lets the guest's clock know how much the guest has worked; at every host
/// call.
pub(crate) fn note_work(store: impl AsContext<Data = Host>) {
    let context = store.as_context();
    if let (Some(metered), Some(used)) = (&context.data().metered, used(&context)) {
        let total = metered.spent.saturating_add(used);
        metered.sources.clock.worked(total / FUEL_PER_NANOSECOND);
    }
}

/// Writes fuel and digest into the outcome of a run or cell.
pub(crate) fn conclude(store: &mut Store<Host>, outcome: &mut Outcome) {
    let Some(used) = used(&*store) else { return };
    let host = store.data_mut();
    let by_the_clock = host.broker.time_limit_fired() || host.limiter.host_refused;
    let Some(metered) = &mut host.metered else { return };
    outcome.usage.fuel = Some(used);
    outcome.controls.push("fuel_limit".into());
    metered.broken |= by_the_clock || depends_on_the_host(&outcome.kind);
    metered.transcript.outcome(outcome);
    if !metered.broken {
        outcome.digest = Some(metered.transcript.digest());
    }
}

/// Whether another run may end otherwise: on clocks, on a cancel, or on a fault
/// of the host.
fn depends_on_the_host(kind: &OutcomeKind) -> bool {
    match kind {
        OutcomeKind::Timeout { .. }
        | OutcomeKind::Cancelled
        | OutcomeKind::Refused { .. }
        | OutcomeKind::SandboxFault { .. } => true,
        OutcomeKind::Completed
        | OutcomeKind::ScriptError
        | OutcomeKind::Exit
        | OutcomeKind::MemoryLimit
        | OutcomeKind::StackExhausted
        | OutcomeKind::FuelExhausted
        | OutcomeKind::BudgetExceeded { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_out_of_range_are_named() {
        let settings = Determinism::default();
        assert!(settings.check().is_ok());
        assert_eq!(settings.time_ns(), 1_735_689_600_000_000_000);
        let refused = |settings: Determinism| settings.check().unwrap_err().to_string();
        assert!(refused(Determinism { fuel: 0, ..settings }).contains("fuel"));
        let before = UNIX_EPOCH - Duration::from_secs(1);
        assert!(refused(Determinism { time: before, ..settings }).contains("time"));
        let after = UNIX_EPOCH + Duration::from_secs(MAX_TIME_SECONDS + 1);
        assert!(refused(Determinism { time: after, ..settings }).contains("time"));
        let last = UNIX_EPOCH + Duration::from_secs(MAX_TIME_SECONDS);
        assert!(Determinism { time: last, ..settings }.check().is_ok());
    }

    #[test]
    fn sources_are_the_same_for_the_same_settings() {
        let drawn = |seed| {
            let sources = Sources::new(Determinism { seed, ..Determinism::default() });
            let (mut guest, mut interpreter) = ([0; 16], [0; 16]);
            sources.random().fill(&mut guest).unwrap();
            sources.interpreter_seeds().fill(&mut interpreter).unwrap();
            assert_ne!(guest, interpreter);
            (guest, interpreter, sources.clock().wall_ns())
        };
        assert_eq!(drawn(1), drawn(1));
        assert_ne!(drawn(1), drawn(2));
    }
}
