//! Runs the attacks of some tiers and tells what came of each.
//!
//! Invariant: an attack whose tier this machine does not have is waiting for
//! what is missing, by name; one whose tier is here is run.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::attacks;
use crate::harness::{Attack, Finding, Stage, Summary, Tier, run};

/// Attacks at a time: two cores are what is promised to be enough.
const AT_ONCE: usize = 2;

/// Which attacks.
#[derive(Clone, Debug)]
pub struct Selection {
    /// Those of these tiers.
    pub tiers: Vec<Tier>,
    /// Those whose id or property contains this.
    pub filter: String,
    /// None of these rows, by tier and id.
    pub without: BTreeSet<(Tier, String)>,
}

impl Default for Selection {
    fn default() -> Self {
        Self { tiers: Tier::ALL.to_vec(), filter: String::new(), without: BTreeSet::new() }
    }
}

impl Selection {
    fn takes(&self, id: &str, tier: Tier, property: &str) -> bool {
        let named = id.contains(&self.filter) || property.contains(&self.filter);
        self.tiers.contains(&tier) && named && !self.without.contains(&(tier, id.to_owned()))
    }
}

/// Runs the selected attacks; `progress` hears of each when it is over.
#[must_use]
pub fn evaluate(
    stage: &Stage,
    selection: &Selection,
    progress: &(dyn Fn(&Finding) + Sync),
) -> Summary {
    let catalogue = attacks::catalogue();
    let property = |id: &str| {
        catalogue.iter().find(|(known, _)| *known == id).map_or("", |(_, property)| *property)
    };
    let waiting = attacks::waiting().into_iter();
    let waiting = waiting.filter(|(id, tier, _)| selection.takes(id, *tier, property(id)));
    let findings: Vec<Finding> =
        waiting.map(|(id, tier, capability)| Finding::waiting(id, tier, capability)).collect();
    let attacks: Vec<Attack> = attacks::all()
        .into_iter()
        .filter(|attack| selection.takes(attack.id, attack.tier, attack.property))
        .collect();
    let summary = Mutex::new(Summary { findings });
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(attack) = attacks.get(next.fetch_add(1, Ordering::SeqCst)) {
                    let finding = run(stage, attack);
                    progress(&finding);
                    summary.lock().unwrap_or_else(PoisonError::into_inner).findings.push(finding);
                }
            });
        }
    });
    summary.into_inner().unwrap_or_else(PoisonError::into_inner)
}
