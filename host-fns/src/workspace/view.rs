//! Which names of a project the agent sees, and which never travel.
//!
//! Invariant: a name that is left out is left out in both directions, at every
//! depth. A name that is hidden is not seen by the agent; what the agent makes
//! under such a name never replaces the user's.

use fumehood_policies::{Wildcard, is_secret_file_name};

/// Names that are left out unless the caller says otherwise.
pub const DEFAULT_EXCLUDES: [&str; 4] = [".venv", "node_modules", "__pycache__", ".DS_Store"];
/// Begins the name of the directory in which a sync puts its files together.
pub(crate) const STAGE_PREFIX: &str = ".fumehood-sync-";

/// Why a pattern over names cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{pattern}` is no pattern over names: write one name such as `node_modules`, with `*` for any characters and without `/`"
)]
pub struct PatternError {
    /// As given, escaped.
    pub pattern: String,
}

/// Why a name is not seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unseen {
    /// Left out in both directions.
    Excluded,
    /// A file that usually holds secrets.
    Secret,
}

/// What is left out and what is hidden.
#[derive(Clone, Debug)]
pub struct View {
    excluded: Vec<Wildcard>,
    shown: Vec<Wildcard>,
}

impl Default for View {
    fn default() -> Self {
        Self {
            excluded: DEFAULT_EXCLUDES.iter().map(|name| Wildcard::new(name)).collect(),
            shown: Vec::new(),
        }
    }
}

fn parse(patterns: &[String]) -> Result<Vec<Wildcard>, PatternError> {
    let parse = |text: &String| {
        let odd = text.is_empty()
            || text.contains(['/', '\0', '?', '['])
            || matches!(text.as_str(), "." | "..");
        if odd {
            Err(PatternError { pattern: text.escape_debug().to_string() })
        } else {
            Ok(Wildcard::new(text))
        }
    };
    patterns.iter().map(parse).collect()
}

impl View {
    /// Leaves out what matches `excluded` (instead of [`DEFAULT_EXCLUDES`]),
    /// and shows what matches `shown` although it usually holds secrets.
    ///
    /// # Errors
    /// [`PatternError`] for the first that is no pattern over one name.
    pub fn new(excluded: &[String], shown: &[String]) -> Result<Self, PatternError> {
        Ok(Self { excluded: parse(excluded)?, shown: parse(shown)? })
    }

    /// The default with more left out and some secrets shown.
    ///
    /// # Errors
    /// [`PatternError`] for the first that is no pattern over one name.
    pub fn with(excluded: &[String], shown: &[String]) -> Result<Self, PatternError> {
        let mut view = Self::default();
        view.excluded.extend(parse(excluded)?);
        view.shown = parse(shown)?;
        Ok(view)
    }

    /// Why the agent does not see a name; `None` if it does.
    pub(crate) fn unseen(&self, name: &[u8]) -> Option<Unseen> {
        if name.starts_with(STAGE_PREFIX.as_bytes())
            || self.excluded.iter().any(|pattern| pattern.matches(name))
        {
            return Some(Unseen::Excluded);
        }
        let secret =
            is_secret_file_name(name) && !self.shown.iter().any(|pattern| pattern.matches(name));
        secret.then_some(Unseen::Secret)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_left_out_hidden_or_seen() {
        let view = View::with(&["*.log".to_owned()], &[".env.test".to_owned()]).unwrap();
        assert_eq!(view.unseen(b"node_modules"), Some(Unseen::Excluded));
        assert_eq!(view.unseen(b"a.log"), Some(Unseen::Excluded));
        assert_eq!(view.unseen(b".fumehood-sync-0"), Some(Unseen::Excluded));
        assert_eq!(view.unseen(b".env"), Some(Unseen::Secret));
        assert_eq!(view.unseen(b".env.test"), None);
        assert_eq!(view.unseen(b"main.py"), None);
        for odd in ["", "a/b", "..", "a?"] {
            assert!(View::new(&[odd.to_owned()], &[]).is_err(), "{odd}");
        }
    }
}
