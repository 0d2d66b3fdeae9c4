//! Each defence left out, one at a time: exactly the rows fail that are about
//! it.
//!
//! What: `tests/attacks/weakened.toml` names, for every defence of
//! `fumehood_policies::weaken`, the rows of the board that need it. The board is
//! run once with all of them in place and, its slowest rows left out, once
//! without each.
//! Why: a row that stays green without the defence it is about tests nothing.
//!
//! A build of its own with the feature `weaken`, which `cargo xtask test --full`
//! runs; one defence: `cargo test --release --workspace --features
//! fumehood-tests/weaken --test weaken -- NAME`, after the same for `build --bin
//! fumehood-helper-weakened`.
#![allow(clippy::disallowed_methods, clippy::panic, reason = "a test binary")]

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::time::Duration;

use fumehood_policies::weaken::{self, Defence};
use fumehood_tests::evaluate::{Selection, evaluate};
use fumehood_tests::harness::{Finding, Stage, Summary, Tier, Verdict, machine, start_again};
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    /// Ids of rows by tier that take long.
    slow: BTreeMap<String, Vec<String>>,
    /// Ids of rows by defence and tier.
    defence: BTreeMap<String, BTreeMap<String, Vec<String>>>,
}

type Rows = BTreeSet<(Tier, String)>;

/// The rows that a table names.
fn rows(named: &BTreeMap<String, Vec<String>>) -> Rows {
    let known = |name: &str| Tier::ALL.into_iter().find(|known| known.name() == name);
    named
        .iter()
        .flat_map(|(tier, ids)| ids.iter().filter_map(move |id| Some((known(tier)?, id.clone()))))
        .collect()
}

/// Defences whose code is in the helper and in what starts it, which no attack
/// in WebAssembly reaches.
const OF_NATIVE_TIERS: &[Defence] = &[
    Defence::Variables,
    Defence::HelperOwner,
    Defence::Filter,
    Defence::Capabilities,
    Defence::Landlock,
    Defence::MemoryWatch,
    Defence::OpenFiles,
    Defence::CoreFiles,
    Defence::Noexec,
];

/// What takes longer and is not listed as slow is told.
const LONG: Duration = Duration::from_millis(500);

fn main() -> ExitCode {
    match start_again() {
        Ok(None) => {}
        Ok(Some(status)) => return ExitCode::from(u8::from(!status.success())),
        Err(error) => {
            eprintln!("the attacks could not be started with canaries: {error}");
            return ExitCode::FAILURE;
        }
    }
    let selected: Vec<String> =
        std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let mut problems = marked();
    let table = table();
    problems.extend(table.defence.keys().filter_map(|name| {
        let known = Defence::ALL.iter().any(|defence| defence.name() == name);
        (!known).then(|| format!("{name} is no defence"))
    }));
    let stage = Stage::new();
    if let Err(capability) = stage.native(Tier::Process) {
        problems.push(format!("the tier process is not here: {}", capability.name()));
    }
    let baseline = board(&stage, &[], Selection::default());
    let wrong = failing(&baseline);
    if !wrong.is_empty() {
        problems.push(format!("with every defence in place these fail: {wrong:?}"));
    }
    // They are about time and memory, and all of them without each defence would
    // take an hour: only the defences that they are about are tried with them.
    let slow = rows(&table.slow);
    let known: Rows = baseline.findings.iter().map(|one| (one.tier, one.id.to_owned())).collect();
    let named = table.defence.values().map(rows).fold(slow.clone(), |all, rows| &all | &rows);
    let unknown: Vec<_> = named.difference(&known).collect();
    if !unknown.is_empty() {
        problems.push(format!("these are no rows: {unknown:?}"));
    }
    for finding in &baseline.findings {
        let row = (finding.tier, finding.id.to_owned());
        if finding.took > LONG && !slow.contains(&row) {
            println!("{} in {} took {:?}", finding.id, finding.tier.name(), finding.took);
        }
    }
    // What this machine cannot try fails neither way.
    let waiting: Rows = baseline
        .findings
        .iter()
        .filter(|finding| matches!(finding.verdict, Verdict::Waiting(_)))
        .map(|finding| (finding.tier, finding.id.to_owned()))
        .collect();
    for defence in Defence::ALL {
        let name = defence.name();
        if !selected.is_empty() && !selected.iter().any(|wanted| wanted == name) {
            continue;
        }
        let start = machine::now();
        let listed = table.defence.get(name).map(rows).unwrap_or_default();
        if listed.is_empty() {
            problems.push(format!("{name}: no row is listed that needs it"));
        }
        let expected = &listed - &waiting;
        if expected.is_empty() {
            println!("{name}: none of its rows can be tried on this machine: {listed:?}");
        }
        let tiers = if OF_NATIVE_TIERS.contains(defence) {
            vec![Tier::Landlock, Tier::Process]
        } else {
            Tier::ALL.to_vec()
        };
        let without = slow.difference(&expected).cloned().collect();
        let selection = Selection { tiers, without, ..Selection::default() };
        let failing = failing(&board(&stage, &[*defence], selection));
        println!("{name}: {} rows fail ({:.0} s)", failing.len(), start.elapsed().as_secs_f64());
        let missing: Vec<_> = expected.iter().filter(|row| !failing.contains_key(row)).collect();
        let more: Vec<_> = failing.iter().filter(|(row, _)| !expected.contains(row)).collect();
        if !missing.is_empty() || !more.is_empty() {
            problems.push(format!("{name}: do not fail: {missing:?}; fail as well: {more:?}"));
        }
    }
    // As a test harness reports, so that whoever runs it can find the reasons.
    if !problems.is_empty() {
        println!("failures:");
    }
    for problem in &problems {
        println!("{problem}");
    }
    println!("test result: {}", if problems.is_empty() { "ok" } else { "FAILED" });
    println!("weakened: {} defences, {} problems", Defence::ALL.len(), problems.len());
    ExitCode::from(u8::from(!problems.is_empty()))
}

/// The rows that each defence is expected to have.
fn table() -> Table {
    let path = machine::source_tree().unwrap_or_default().join("tests/attacks/weakened.toml");
    let text = machine::read(&path).unwrap_or_default();
    match toml::from_str(&text) {
        Ok(table) => table,
        Err(error) => panic!("{}: {error}", path.display()),
    }
}

/// What comes of these rows without some defences.
fn board(stage: &Stage, off: &[Defence], selection: Selection) -> Summary {
    weaken::set(off);
    let summary = evaluate(stage, &selection, &|finding| {
        if !finding.verdict.passes() {
            println!("  {} in {}: {}", finding.id, finding.tier.name(), detail(finding));
        }
    });
    weaken::set(&[]);
    summary
}

/// The rows that fail, and why.
fn failing(summary: &Summary) -> BTreeMap<(Tier, String), String> {
    let failing = summary.findings.iter().filter(|finding| !finding.verdict.passes());
    failing.map(|finding| ((finding.tier, finding.id.to_owned()), detail(finding))).collect()
}

fn detail(finding: &Finding) -> String {
    finding.verdict.detail().unwrap_or_default().chars().take(300).collect()
}

/// The mark is in programs of this build, which is what makes its absence from
/// others mean something.
fn marked() -> Vec<String> {
    let own = std::env::current_exe().ok();
    let shipped = ["cli/tests/command/shipped.rs", "native-tiers/tests/boundary/refusals.rs"];
    let others = shipped.into_iter().filter_map(|name| {
        let text = machine::read(&machine::source_tree()?.join(name)).unwrap_or_default();
        (!text.contains(weaken::MARK)).then(|| format!("{name} looks for another mark"))
    });
    [own, machine::helper()]
        .into_iter()
        .filter_map(|path| {
            let Some(path) = path else { return Some("a program is missing".to_owned()) };
            let bytes = machine::read_bytes(&path).unwrap_or_default();
            let mark = weaken::MARK.as_bytes();
            let found = bytes.windows(mark.len()).any(|window| window == mark);
            (!found).then(|| format!("{} does not carry the mark", path.display()))
        })
        .chain(others)
        .collect()
}
