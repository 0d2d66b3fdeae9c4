//! The scoreboard: every attack in every tier, and what came of it.
//!
//! What: `tests/attacks/SCOREBOARD.md` is generated from findings; the README
//! shows its counts between markers.
//! Why: whoever reads the page sees what the suite saw, and a row that changes
//! in either direction has to be looked at.
//!
//! Invariant: a row that this machine cannot try keeps the state that is
//! committed; every other row is what was seen.

mod page;
mod quotes;
mod reference;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::attacks;
use crate::harness::{Finding, Summary, Tier, Verdict, machine};

pub use quotes::wrong_quotes;
pub use reference::{Answer, REFERENCE, Reference};

/// Where the page is in the source tree.
pub const PAGE: &str = "tests/attacks/SCOREBOARD.md";
/// The marks around the counts in the README.
const BEGIN: &str = "<!-- counts of tests/attacks/SCOREBOARD.md, generated -->";
const END: &str = "<!-- end of the counts -->";

/// What came of one attack in one tier, as the page says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// As expected.
    Blocked,
    /// It gets through, and the reason says why that is so.
    KnownGap,
    /// It got through, or a documented gap is closed.
    Unexpected,
    /// The attack, its control or its definition is broken.
    Error,
    /// For what it waits.
    Waiting(String),
}

impl State {
    const NAMES: [&'static str; 5] = ["blocked", "known gap", "unexpected", "error", "waiting"];

    fn of(verdict: &Verdict) -> Self {
        match verdict {
            Verdict::Blocked => Self::Blocked,
            Verdict::KnownGap => Self::KnownGap,
            Verdict::Unexpected(_) => Self::Unexpected,
            Verdict::Error(_) => Self::Error,
            Verdict::Waiting(capability) => Self::Waiting(capability.name().to_owned()),
        }
    }

    /// Without what it waits for.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Blocked => "blocked",
            Self::KnownGap => "known gap",
            Self::Unexpected => "unexpected",
            Self::Error => "error",
            Self::Waiting(_) => "waiting",
        }
    }

    fn parse(cell: &str) -> Option<Self> {
        Some(match cell {
            "blocked" => Self::Blocked,
            "known gap" => Self::KnownGap,
            "unexpected" => Self::Unexpected,
            "error" => Self::Error,
            _ => Self::Waiting(cell.strip_prefix("waiting: ")?.to_owned()),
        })
    }
}

impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Waiting(what) => write!(f, "waiting: {what}"),
            other => f.write_str(other.name()),
        }
    }
}

/// States by attack and tier.
pub type States = BTreeMap<(String, Tier), State>;

/// One attack over the tiers.
#[derive(Clone, Debug)]
pub struct Row {
    /// The attack.
    pub id: &'static str,
    /// What holds.
    pub property: String,
    /// Where it applies, and why its state is what it is there.
    pub tiers: BTreeMap<Tier, String>,
}

/// The whole board.
#[derive(Clone, Debug)]
pub struct Board {
    rows: Vec<Row>,
    states: States,
}

impl Board {
    /// What was seen, and where nothing was tried what is committed.
    #[must_use]
    pub fn new(summary: &Summary, committed: &States) -> Self {
        let rows = rows();
        let mut states = States::new();
        for finding in &summary.findings {
            let key = (finding.id.to_owned(), finding.tier);
            let kept = of_this_machine(finding).then(|| committed.get(&key)).flatten();
            let state = kept.cloned().unwrap_or_else(|| State::of(&finding.verdict));
            states.insert(key, state);
        }
        for row in &rows {
            for tier in row.tiers.keys() {
                let key = (row.id.to_owned(), *tier);
                if let (false, Some(state)) = (states.contains_key(&key), committed.get(&key)) {
                    states.insert(key, state.clone());
                }
            }
        }
        Self { rows, states }
    }

    /// The states.
    #[must_use]
    pub fn states(&self) -> &States {
        &self.states
    }

    /// How many attacks have this state in this tier.
    #[must_use]
    pub fn count(&self, tier: Tier, name: &str) -> usize {
        let here =
            |((_, of), state): &(&(String, Tier), &State)| *of == tier && state.name() == name;
        self.states.iter().filter(here).count()
    }

    /// What a reader has to know before the page may be trusted: rows without a
    /// state or a reason.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for row in &self.rows {
            for (tier, why) in &row.tiers {
                match self.states.get(&(row.id.to_owned(), *tier)) {
                    None => problems.push(format!("{} in {}: never tried", row.id, tier.name())),
                    Some(State::Waiting(what)) if what.is_empty() => {
                        problems.push(format!("{} in {}: waits for nothing", row.id, tier.name()));
                    }
                    Some(State::Waiting(_)) => {}
                    Some(_) if why.trim().is_empty() => {
                        problems.push(format!("{} in {}: no reason", row.id, tier.name()));
                    }
                    Some(_) => {}
                }
            }
        }
        problems.extend(reference::problems(&self.rows));
        problems
    }

    /// Rows whose state is not the committed one, in either direction.
    #[must_use]
    pub fn differences(&self, committed: &States) -> Vec<String> {
        let mut differences = Vec::new();
        for (key @ (id, tier), state) in &self.states {
            match committed.get(key) {
                Some(known) if known == state => {}
                Some(known) => differences
                    .push(format!("{id} in {}: {state}, committed as {known}", tier.name())),
                None => {
                    differences.push(format!("{id} in {}: {state}, not committed", tier.name()))
                }
            }
        }
        for key @ (id, tier) in committed.keys() {
            if !self.states.contains_key(key) {
                differences.push(format!("{id} in {}: committed, but no attack", tier.name()));
            }
        }
        differences
    }

    /// The README with the counts of this board.
    ///
    /// # Errors
    /// It does not have both marks.
    pub fn in_readme(&self, readme: &str) -> Result<String, String> {
        let lacks = || format!("README.md does not have the lines `{BEGIN}` and `{END}`");
        let (before, rest) = readme.split_once(BEGIN).ok_or_else(lacks)?;
        let (_, after) = rest.split_once(END).ok_or_else(lacks)?;
        Ok(format!("{before}{BEGIN}\n\n{}\n{END}{after}", self.counts()))
    }
}

/// Whether it is this machine that could not try it.
fn of_this_machine(finding: &Finding) -> bool {
    matches!(finding.verdict, Verdict::Waiting(capability) if capability.is_of_machine())
}

/// Every attack once, with the tiers it applies to.
#[must_use]
pub fn rows() -> Vec<Row> {
    let mut rows: BTreeMap<(char, u32, &'static str), Row> = BTreeMap::new();
    let mut add = |id: &'static str, property: &str, tier, why: String| {
        let row = rows.entry(order(id)).or_insert_with(|| Row {
            id,
            property: property.to_owned(),
            tiers: BTreeMap::new(),
        });
        row.tiers.insert(tier, why);
    };
    for attack in attacks::all() {
        let why = attack.known_gap.unwrap_or(attack.reason);
        add(attack.id, attack.property, attack.tier, why.to_owned());
    }
    let catalogue: BTreeMap<_, _> = attacks::catalogue().into_iter().collect();
    for (id, tier, _) in attacks::waiting() {
        add(id, catalogue.get(id).copied().unwrap_or_default(), tier, String::new());
    }
    rows.into_values().collect()
}

/// By section, number and letter.
fn order(id: &'static str) -> (char, u32, &'static str) {
    let section = id.chars().next().unwrap_or(' ');
    let digits: String = id.chars().filter(char::is_ascii_digit).collect();
    (section, digits.parse().unwrap_or(u32::MAX), id)
}

/// The states of a page.
#[must_use]
pub fn parse(page: &str) -> States {
    page::parse(page)
}

/// The committed page and the README, with their paths.
///
/// # Errors
/// There is no source tree, or it lacks them.
pub fn committed() -> Result<[(PathBuf, String); 2], String> {
    let tree = machine::source_tree()
        .ok_or("the source tree that this was built from is not here any more")?;
    let read = |name: &str| {
        let path = tree.join(name);
        let text = machine::read(&path).unwrap_or_default();
        (path, text)
    };
    Ok([read(PAGE), read("README.md")])
}
