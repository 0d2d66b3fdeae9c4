//! The board judged by itself: what is not so does not stay on the page.

use std::time::Duration;

use super::*;
use crate::harness::{Bucket, Capability};

fn finding(id: &'static str, tier: Tier, verdict: Verdict) -> Finding {
    Finding { id, tier, bucket: Bucket::Harmless, verdict, notes: Vec::new(), took: Duration::ZERO }
}

/// Every attack blocked, everything else waiting.
fn honest() -> Summary {
    let of_attack =
        |attack: &crate::harness::Attack| finding(attack.id, attack.tier, Verdict::Blocked);
    let mut findings: Vec<Finding> = attacks::all().iter().map(of_attack).collect();
    let waiting = attacks::waiting().into_iter();
    findings.extend(waiting.map(|(id, tier, what)| Finding::waiting(id, tier, what)));
    Summary { findings }
}

#[test]
fn a_page_says_what_was_seen_and_is_read_back() {
    let board = Board::new(&honest(), &States::new());
    assert!(board.problems().is_empty(), "{:?}", board.problems());
    assert_eq!(parse(&board.page()), *board.states());
    assert!(board.differences(&parse(&board.page())).is_empty());
    assert_eq!(REFERENCE.len(), 53);
}

#[test]
fn a_change_in_either_direction_is_a_difference() {
    let before = parse(&Board::new(&honest(), &States::new()).page());
    for (verdict, said) in [
        (Verdict::Unexpected(String::new()), "W-01 in wasm: unexpected, committed as blocked"),
        (Verdict::Error(String::new()), "W-01 in wasm: error, committed as blocked"),
        (Verdict::KnownGap, "W-01 in wasm: known gap, committed as blocked"),
    ] {
        let mut summary = honest();
        for found in summary.findings.iter_mut().filter(|found| found.id == "W-01") {
            found.verdict = verdict.clone();
        }
        let changed = Board::new(&summary, &before);
        assert_eq!(changed.differences(&before), [said]);
        // And back.
        let better = Board::new(&honest(), &States::new());
        assert_eq!(better.differences(&parse(&changed.page())).len(), 1);
    }
}

#[test]
fn a_row_that_this_machine_cannot_try_keeps_its_state_and_others_do_not() {
    let before = parse(&Board::new(&honest(), &States::new()).page());
    let mut summary = honest();
    for found in summary.findings.iter_mut().filter(|found| found.id == "K-50") {
        found.verdict = Verdict::Waiting(Capability::Equipment);
    }
    assert!(Board::new(&summary, &before).differences(&before).is_empty());
    for found in summary.findings.iter_mut().filter(|found| found.id == "K-50") {
        found.verdict = Verdict::Waiting(Capability::Secrets);
    }
    assert!(!Board::new(&summary, &before).differences(&before).is_empty());
    // A row that was never tried is a problem.
    summary.findings.retain(|found| found.id != "K-50");
    assert!(!Board::new(&summary, &States::new()).problems().is_empty());
}

#[test]
fn pages_quote_only_numbers_of_the_board() {
    let board = Board::new(&honest(), &States::new());
    let blocked = board.count(Tier::Wasm, "blocked");
    let right = format!("All {blocked} blocked, 0 known gaps, of the 53 attacks of the reference.");
    assert!(wrong_quotes(&board, "page", &right).is_empty());
    let wrong = format!("{} blocked, 7 known gaps", blocked.saturating_add(1));
    assert_eq!(wrong_quotes(&board, "page", &wrong).len(), 2);
}
