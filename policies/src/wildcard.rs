//! A name pattern with `*`.
//!
//! What: [`Wildcard`] matches one name; `*` stands for any bytes, none
//! included. Tool names and single path components use it.
//! Why: the question "can two patterns match one name" has an exact, cheap
//! answer for this grammar, and policies are checked with it when they load.
//!
//! Invariant: matching takes no more than pattern length times name length
//! steps, whatever both are.

use std::fmt;
use std::sync::Arc;

/// A pattern over one name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Wildcard {
    /// The literal pieces between the stars; one piece if there is no star.
    pieces: Arc<[Box<[u8]>]>,
}

impl Wildcard {
    /// A pattern from text in which only `*` is special.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self { pieces: text.split('*').map(|piece| Box::from(piece.as_bytes())).collect() }
    }

    /// A pattern from its literal pieces; a star stands between two of them.
    pub(crate) fn from_pieces(pieces: Vec<Vec<u8>>) -> Self {
        let mut pieces: Vec<Box<[u8]>> = pieces.into_iter().map(Vec::into_boxed_slice).collect();
        if pieces.is_empty() {
            pieces.push(Box::default());
        }
        Self { pieces: pieces.into() }
    }

    fn first(&self) -> &[u8] {
        self.pieces.first().map_or(&[], |piece| piece)
    }

    fn last(&self) -> &[u8] {
        self.pieces.last().map_or(&[], |piece| piece)
    }

    fn middle(&self) -> &[Box<[u8]>] {
        self.pieces.get(1..self.pieces.len().saturating_sub(1)).unwrap_or_default()
    }

    /// Whether there is no star.
    #[must_use]
    pub fn is_literal(&self) -> bool {
        self.pieces.len() <= 1
    }

    /// Whether the pattern matches every name.
    #[must_use]
    pub fn matches_everything(&self) -> bool {
        !self.is_literal() && self.pieces.iter().all(|piece| piece.is_empty())
    }

    /// Whether a name matches.
    #[must_use]
    pub fn matches(&self, name: &[u8]) -> bool {
        if self.is_literal() {
            return self.first() == name;
        }
        let Some(mut rest) =
            name.strip_prefix(self.first()).and_then(|rest| rest.strip_suffix(self.last()))
        else {
            return false;
        };
        // The leftmost place for each piece leaves the most for the others.
        for piece in self.middle().iter().filter(|piece| !piece.is_empty()) {
            let Some(at) = rest.windows(piece.len()).position(|window| window == piece.as_ref())
            else {
                return false;
            };
            rest = rest.get(at.saturating_add(piece.len())..).unwrap_or_default();
        }
        true
    }

    /// Whether some name matches both. Exact.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        match (self.is_literal(), other.is_literal()) {
            (true, _) => other.matches(self.first()),
            (_, true) => self.matches(other.first()),
            // Both have a star: the longer prefix, every middle piece of both
            // and the longer suffix make a name that matches both.
            _ => {
                let (left, right) = (self.first(), other.first());
                let prefixes = left.starts_with(right) || right.starts_with(left);
                let (left, right) = (self.last(), other.last());
                prefixes && (left.ends_with(right) || right.ends_with(left))
            }
        }
    }

    /// Whether every name that `other` matches is matched here. `true` is
    /// certain; `false` can also mean that it is not obvious.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        if self == other || self.matches_everything() {
            return true;
        }
        if other.is_literal() {
            return self.matches(other.first());
        }
        self.pieces.len() == 2
            && other.first().starts_with(self.first())
            && other.last().ends_with(self.last())
    }
}

impl fmt::Display for Wildcard {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, piece) in self.pieces.iter().enumerate() {
            if index > 0 {
                formatter.write_str("*")?;
            }
            crate::path::escape(piece, formatter)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Wildcard {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn stars_match_any_bytes() {
        for (pattern, name, want) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("", "", true),
            ("*", "", true),
            ("a*c", "abc", true),
            ("a*c", "ac", true),
            ("a*a", "a", false),
            ("*.py", "x.py", true),
            ("*ab*ab*", "abab", true),
            ("*ab*ab*", "aba", false),
        ] {
            assert_eq!(Wildcard::new(pattern).matches(name.as_bytes()), want, "{pattern} {name}");
        }
    }

    proptest! {
        #[test]
        fn relations_agree_with_matching(left in "[ab*]{0,5}", right in "[ab*]{0,5}", name in "[ab]{0,6}") {
            let (left, right) = (Wildcard::new(&left), Wildcard::new(&right));
            let (in_left, in_right) = (left.matches(name.as_bytes()), right.matches(name.as_bytes()));
            prop_assert!(!(in_left && in_right) || left.overlaps(&right));
            prop_assert_eq!(left.overlaps(&right), right.overlaps(&left));
            prop_assert!(!left.covers(&right) || !in_right || in_left);
        }

        #[test]
        fn matching_agrees_with_a_regular_expression(pattern in "[ab*]{0,6}", name in "[ab]{0,8}") {
            let expression = regex::Regex::new(&format!("^{}$", pattern.replace('*', ".*"))).unwrap();
            prop_assert_eq!(Wildcard::new(&pattern).matches(name.as_bytes()), expression.is_match(&name));
        }
    }
}
