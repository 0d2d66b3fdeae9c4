//! `docs/threat-model.md` and the attacks, compared both ways.

use std::collections::{BTreeMap, BTreeSet};

use fumehood_tests::attacks;
use libtest_mimic::Trial;

use crate::support::{read, root};

/// All cases.
pub fn trials() -> Vec<Trial> {
    vec![
        Trial::test("threats::every_attack_has_a_threat_and_every_threat_attacks", || {
            let problems = compare(&read(&root().join("docs/threat-model.md")));
            if problems.is_empty() { Ok(()) } else { Err(problems.join("\n").into()) }
        }),
        Trial::test("threats::control_a_page_that_lacks_or_invents_an_id_is_found", control),
    ]
}

/// The rows `| T-01 | … | W-01 W-02 |`, by id.
fn threats(page: &str) -> Vec<(&str, Vec<&str>)> {
    page.lines()
        .filter_map(|line| {
            let mut cells = line.strip_prefix("| T-")?.split('|');
            let id = cells.next()?.trim();
            Some((
                id,
                cells
                    .next_back()
                    .filter(|end| end.trim().is_empty())
                    .and_then(|_| cells.next_back())?
                    .split_whitespace()
                    .collect(),
            ))
        })
        .collect()
}

/// The id in the catalogue that a variant with a letter belongs to.
fn base(id: &str) -> &str {
    id.trim_end_matches(|c: char| c.is_ascii_lowercase())
}

fn compare(page: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let all = attacks::all();
    let mut known: BTreeSet<&str> = all.iter().map(|attack| base(attack.id)).collect();
    known.extend(attacks::catalogue().into_iter().map(|(id, _)| id));
    let mut named: BTreeMap<&str, &str> = BTreeMap::new();
    let mut ids = BTreeSet::new();
    for (threat, attacks) in threats(page) {
        if !ids.insert(threat) {
            problems.push(format!("T-{threat} is there twice"));
        }
        if attacks.is_empty() {
            problems.push(format!("T-{threat} names no attack"));
        }
        for attack in attacks {
            if !known.contains(attack) {
                problems.push(format!("T-{threat} names {attack}, which is no attack"));
            }
            if let Some(other) = named.insert(attack, threat) {
                problems.push(format!("{attack} is named by T-{other} and T-{threat}"));
            }
        }
    }
    for id in known {
        if !named.contains_key(id) {
            problems.push(format!("{id} belongs to no threat"));
        }
    }
    problems
}

fn control() -> Result<(), libtest_mimic::Failed> {
    let page = read(&root().join("docs/threat-model.md"));
    let without = page.replace(" P-05", "");
    let invented = page.replace(" P-05", " P-05 P-99");
    for (changed, expected) in [
        (without, "P-05 belongs to no threat"),
        (invented, "names P-99, which is no attack"),
        (page.replace("P-11", "P-13"), "P-13 is named by"),
    ] {
        let problems = compare(&changed);
        if !problems.iter().any(|problem| problem.contains(expected)) {
            return Err(format!("{expected} is not among {problems:?}").into());
        }
    }
    Ok(())
}
