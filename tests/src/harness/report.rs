//! Verdicts, and what the suite as a whole has to satisfy.
//!
//! Invariant: only `Blocked`, `KnownGap` and `Waiting` let a suite pass, and
//! waiting is counted, never hidden.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;

use super::attack::{Attack, Capability, Expected, Tier};

/// Kinds of expectation, for counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bucket {
    /// A typed denial.
    Denied,
    /// An error number or an exception.
    Error,
    /// The run is ended, typed.
    Trap,
    /// Nothing is started.
    Refused,
    /// Nothing comes of it.
    Harmless,
}

impl Bucket {
    pub(super) fn of(expected: &Expected) -> Self {
        match expected {
            Expected::Denied { .. } => Self::Denied,
            Expected::Errno(_) | Expected::Exception(_) | Expected::Stopped => Self::Error,
            Expected::Ends(_) => Self::Trap,
            Expected::Refused(_) => Self::Refused,
            Expected::Harmless(_) => Self::Harmless,
            Expected::AnyOf(list) => list.first().map_or(Self::Harmless, Self::of),
        }
    }
}

/// What came of one attack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// As expected.
    Blocked,
    /// It got through, as documented.
    KnownGap,
    /// It got through, or a documented gap is closed.
    Unexpected(String),
    /// The attack, its control or its definition is broken.
    Error(String),
    /// What it needs does not exist yet.
    Waiting(Capability),
}

impl Verdict {
    /// Whether the suite may pass with it.
    #[must_use]
    pub fn passes(&self) -> bool {
        !matches!(self, Self::Unexpected(_) | Self::Error(_))
    }

    /// The name in tables.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Blocked => "blocked",
            Self::KnownGap => "known_gap",
            Self::Unexpected(_) => "unexpected",
            Self::Error(_) => "error",
            Self::Waiting(_) => "waiting",
        }
    }

    /// Why, where there is something to say.
    #[must_use]
    pub fn detail(&self) -> Option<&str> {
        match self {
            Self::Unexpected(why) | Self::Error(why) => Some(why),
            Self::Waiting(capability) => Some(capability.name()),
            Self::Blocked | Self::KnownGap => None,
        }
    }
}

/// One line of the result.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The attack.
    pub id: &'static str,
    /// Where it was tried.
    pub tier: Tier,
    /// What was expected.
    pub bucket: Bucket,
    /// What came of it.
    pub verdict: Verdict,
    /// Measurements.
    pub notes: Vec<String>,
    /// How long it took, its control included.
    pub took: Duration,
}

impl Finding {
    /// A case of the catalogue that cannot be tried yet.
    #[must_use]
    pub fn waiting(id: &'static str, tier: Tier, capability: Capability) -> Self {
        Self {
            id,
            tier,
            bucket: Bucket::Harmless,
            verdict: Verdict::Waiting(capability),
            notes: Vec::new(),
            took: Duration::ZERO,
        }
    }
}

/// All findings.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// In the order they came.
    pub findings: Vec<Finding>,
}

impl Summary {
    /// Findings with this verdict.
    #[must_use]
    pub fn count(&self, verdict: &str) -> usize {
        self.findings.iter().filter(|finding| finding.verdict.name() == verdict).count()
    }

    /// Counts, measurements and what waits, as text.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut sorted: Vec<_> = self.findings.iter().collect();
        sorted.sort_by_key(|finding| finding.id);
        for finding in sorted {
            if !finding.notes.is_empty() {
                let _ = writeln!(text, "  {}: {}", finding.id, finding.notes.join("; "));
            }
        }
        let mut waiting: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for finding in &self.findings {
            if let Verdict::Waiting(capability) = finding.verdict {
                waiting.entry(capability.name()).or_default().push(finding.id);
            }
        }
        for (capability, mut ids) in waiting {
            ids.sort_unstable();
            let _ = writeln!(text, "  waiting for {capability} ({}): {}", ids.len(), ids.join(" "));
        }
        for finding in &self.findings {
            if let Verdict::Unexpected(why) | Verdict::Error(why) = &finding.verdict {
                let (verdict, tier) = (finding.verdict.name(), finding.tier.name());
                let _ = writeln!(text, "  {} in {tier}: {verdict}: {why}", finding.id);
            }
        }
        let mut buckets: BTreeMap<Bucket, usize> = BTreeMap::new();
        for finding in self.findings.iter().filter(|finding| finding.verdict == Verdict::Blocked) {
            let count = buckets.entry(finding.bucket).or_default();
            *count = count.saturating_add(1);
        }
        let buckets: Vec<_> = buckets
            .iter()
            .map(|(bucket, count)| format!("{bucket:?} {count}").to_lowercase())
            .collect();
        let _ = writeln!(
            text,
            "attacks: {} blocked ({}), {} known gaps, {} unexpected, {} errors, {} waiting",
            self.count("blocked"),
            buckets.join(", "),
            self.count("known_gap"),
            self.count("unexpected"),
            self.count("error"),
            self.count("waiting"),
        );
        text
    }

    /// The same for programs.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        let attacks: Vec<_> = self
            .findings
            .iter()
            .map(|finding| {
                serde_json::json!({
                    "id": finding.id,
                    "tier": finding.tier.name(),
                    "bucket": finding.bucket,
                    "verdict": finding.verdict.name(),
                    "detail": finding.verdict.detail(),
                    "notes": finding.notes,
                    "ms": u64::try_from(finding.took.as_millis()).unwrap_or(u64::MAX),
                })
            })
            .collect();
        serde_json::json!({
            "blocked": self.count("blocked"),
            "known_gap": self.count("known_gap"),
            "unexpected": self.count("unexpected"),
            "error": self.count("error"),
            "waiting": self.count("waiting"),
            "attacks": attacks,
        })
    }
}

/// Known gaps of the WASM tier that are accepted.
const MOST_WASM_GAPS: usize = 3;

/// What is wrong with the suite as a whole: ids given twice, cases of the
/// catalogue that are neither attacks nor waiting, more gaps than defences.
#[must_use]
pub fn check_suite(
    attacks: &[Attack],
    waiting: &[(&str, Tier, Capability)],
    catalogue: &[&str],
) -> Vec<String> {
    let mut problems = Vec::new();
    let mut ids = BTreeSet::new();
    let of_attacks = attacks.iter().map(|attack| (attack.id, attack.tier));
    for (id, tier) in of_attacks.chain(waiting.iter().map(|(id, tier, _)| (*id, *tier))) {
        if !ids.insert((id, tier)) {
            problems.push(format!("the id {id} is given twice in the tier {}", tier.name()));
        }
    }
    for id in catalogue {
        if !ids.iter().any(|(known, _)| known == id) {
            problems.push(format!("{id} of the catalogue is neither an attack nor waiting"));
        }
    }
    // The tier `process` is no boundary, and all of its gaps are known.
    let of_boundary = || attacks.iter().filter(|attack| attack.tier != Tier::Process);
    let gaps = of_boundary().filter(|attack| attack.known_gap.is_some()).count();
    if gaps >= of_boundary().count().saturating_sub(gaps) {
        problems.push(format!("{gaps} known gaps are as many as the defences"));
    }
    let in_wasm = |attack: &&Attack| attack.tier == Tier::Wasm && attack.known_gap.is_some();
    let gaps = attacks.iter().filter(in_wasm).count();
    if gaps > MOST_WASM_GAPS {
        problems.push(format!("{gaps} known gaps in the WASM tier, at most {MOST_WASM_GAPS}"));
    }
    problems
}
