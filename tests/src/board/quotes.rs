//! Numbers of the board that pages quote.

use super::{Board, REFERENCE, State};
use crate::harness::Tier;

/// What a page says about the suite that the board does not: each "N attacks",
/// "N known gaps" and "N blocked" must be a number of the board.
#[must_use]
pub fn wrong_quotes(board: &Board, name: &str, page: &str) -> Vec<String> {
    let per_tier = |state: &'static str| -> Vec<usize> {
        Tier::ALL.into_iter().map(|tier| board.count(tier, state)).collect()
    };
    let of_tier =
        |tier: Tier| State::NAMES.iter().map(|state| board.count(tier, state)).sum::<usize>();
    let mut attacks: Vec<usize> = Tier::ALL.into_iter().map(of_tier).collect();
    attacks.extend([board.rows.len(), board.states.len(), REFERENCE.len()]);
    let known = [
        (&["attacks"][..], attacks),
        (&["known", "gaps"][..], per_tier("known gap")),
        (&["known", "gap"][..], per_tier("known gap")),
        (&["blocked"][..], per_tier("blocked")),
    ];
    let plain = |word: &str| word.trim_matches(|c: char| !c.is_alphanumeric()).to_lowercase();
    let words: Vec<String> = page.split_whitespace().map(plain).collect();
    let mut wrong = Vec::new();
    for (at, word) in words.iter().enumerate() {
        let Ok(number) = word.parse::<usize>() else { continue };
        let rest = words.get(at.saturating_add(1)..).unwrap_or_default();
        for (phrase, allowed) in &known {
            let says = rest.len() >= phrase.len() && rest.iter().zip(*phrase).all(|(a, b)| a == b);
            if says && !allowed.contains(&number) {
                wrong.push(format!(
                    "{name} says `{number} {}`, which the board does not",
                    phrase.join(" ")
                ));
            }
        }
    }
    wrong
}
