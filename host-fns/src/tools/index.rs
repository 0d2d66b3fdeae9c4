//! The words of a catalogue, and which tools have them.
//!
//! What: an index from lower-case words to tools, made while the set is built.
//! Why: a large catalogue is searched from inside the guest, so that it costs
//! the model no context and the host no time.
//!
//! Invariant: the same set and the same query give the same answer; the order
//! is by score, then by name.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use crate::tools::Tool;

/// Most tools that one search gives.
pub const MAX_SEARCH_RESULTS: usize = 100;
/// What is beyond these of a query is not looked at.
pub(crate) const MAX_QUERY_BYTES: usize = 1024;
pub(crate) const MAX_QUERY_WORDS: usize = 16;

/// How much a word of a query counts for a tool.
const NAME_WORD: u32 = 8;
const NAME_PREFIX: u32 = 4;
const TEXT_WORD: u32 = 2;
const TEXT_PREFIX: u32 = 1;
/// The query is the name.
const WHOLE_NAME: u32 = 1000;

#[derive(Clone, Copy, Debug)]
struct Place {
    tool: u32,
    in_name: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Index {
    words: BTreeMap<Box<str>, Vec<Place>>,
}

/// The words of a text: runs of letters and digits, lower-case; a capital after
/// a small letter begins another.
fn words(text: &str) -> Vec<String> {
    let mut found = vec![String::new()];
    let mut small = false;
    for character in text.chars() {
        if !character.is_alphanumeric() || (small && character.is_uppercase()) {
            found.push(String::new());
        }
        small = character.is_lowercase();
        if let Some(word) = found.last_mut().filter(|_| character.is_alphanumeric()) {
            word.extend(character.to_lowercase());
        }
    }
    found.retain(|word| !word.is_empty());
    found
}

impl Index {
    pub(super) fn add(&mut self, number: u32, tool: &Tool) {
        let texts = [(tool.name(), true), (tool.description(), false)];
        for (text, in_name) in texts {
            for word in words(text) {
                let places = self.words.entry(word.into()).or_default();
                if places.last().is_none_or(|last| last.tool != number) {
                    places.push(Place { tool: number, in_name });
                }
            }
        }
    }

    /// The numbers of the best tools, best first. `tools` are those that were
    /// added, by number.
    pub(super) fn search(&self, tools: &[Arc<Tool>], query: &str, limit: usize) -> Vec<u32> {
        let query = query.get(..query.floor_char_boundary(MAX_QUERY_BYTES)).unwrap_or_default();
        let mut asked = words(query);
        asked.sort_unstable();
        asked.dedup();
        asked.truncate(MAX_QUERY_WORDS);
        let mut scores = vec![0_u32; tools.len()];
        for word in &asked {
            let mut best = vec![0_u32; tools.len()];
            let starting =
                self.words.range::<str, _>((Bound::Included(word.as_str()), Bound::Unbounded));
            for (found, places) in starting.take_while(|(found, _)| found.starts_with(&**word)) {
                let whole = found.len() == word.len();
                for Place { tool, in_name } in places {
                    let score = match (in_name, whole) {
                        (true, true) => NAME_WORD,
                        (true, false) => NAME_PREFIX,
                        (false, true) => TEXT_WORD,
                        (false, false) => TEXT_PREFIX,
                    };
                    if let Some(slot) = best.get_mut(*tool as usize) {
                        *slot = score.max(*slot);
                    }
                }
            }
            for (score, best) in scores.iter_mut().zip(best) {
                *score = score.saturating_add(best);
            }
        }
        let trimmed = query.trim();
        let mut ranked: Vec<(u32, &str, u32)> = Vec::new();
        for ((number, tool), score) in (0..).zip(tools).zip(scores) {
            let name = tool.name();
            let whole = name.eq_ignore_ascii_case(trimmed);
            if score != 0 || whole {
                ranked.push((
                    score.saturating_add(if whole { WHOLE_NAME } else { 0 }),
                    name,
                    number,
                ));
            }
        }
        let order = |left: &(u32, &str, u32), right: &(u32, &str, u32)| {
            right.0.cmp(&left.0).then_with(|| left.1.cmp(right.1))
        };
        let limit = limit.min(MAX_SEARCH_RESULTS);
        // Sorting every match of a common word would cost more than finding it.
        if ranked.len() > limit {
            ranked.select_nth_unstable_by(limit, order);
            ranked.truncate(limit);
        }
        ranked.sort_unstable_by(order);
        ranked.into_iter().map(|(_, _, number)| number).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_split_and_lowered() {
        assert_eq!(
            words("get_HTTPPage2 of userName, ok?"),
            ["get", "httppage2", "of", "user", "name", "ok"]
        );
        assert!(words(" _-").is_empty());
    }
}
