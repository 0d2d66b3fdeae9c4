//! What is wrong with policy text.
//!
//! Invariant: every problem has a line, says what is wrong and what to do, and
//! shows text of others escaped.

use std::cell::RefCell;
use std::fmt;
use std::ops::Range;

/// Most problems that are kept; further ones are counted.
pub const MAX_PROBLEMS: usize = 100;

/// One problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// The key that it is about, such as `fs.rules[0].paths`; empty for the
    /// whole text.
    pub key: String,
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub remedy: String,
}

/// Every problem of a text, in the order of lines.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct PolicyErrors {
    /// The name of the text, such as the file's.
    pub name: String,
    /// The problems, by line.
    pub problems: Vec<Problem>,
    /// Problems beyond [`MAX_PROBLEMS`].
    pub more: usize,
}

impl PolicyErrors {
    /// A stable identifier.
    #[must_use]
    pub fn code(&self) -> &'static str {
        "policy_invalid"
    }
}

impl fmt::Display for PolicyErrors {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = crate::host::shown(&self.name);
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                formatter.write_str("\n")?;
            }
            write!(formatter, "{name}:{}: {}; {}", problem.line, problem.message, problem.remedy)?;
        }
        if self.more > 0 {
            write!(formatter, "\n{name}: and {} more; fix these first", self.more)?;
        }
        Ok(())
    }
}

/// Collects problems of one text and knows its lines.
pub(crate) struct Report<'t> {
    text: &'t str,
    /// Byte offset of the start of every line.
    starts: Vec<usize>,
    found: RefCell<(Vec<Problem>, usize)>,
}

impl<'t> Report<'t> {
    pub(crate) fn new(text: &'t str) -> Self {
        let after_feeds = text
            .bytes()
            .enumerate()
            .filter(|(_, byte)| *byte == b'\n')
            .map(|(at, _)| at.saturating_add(1));
        Self {
            text,
            starts: std::iter::once(0).chain(after_feeds).collect(),
            found: RefCell::default(),
        }
    }

    /// Line and column of a byte offset.
    pub(crate) fn place(&self, offset: usize) -> (usize, usize) {
        let line = self.starts.partition_point(|start| *start <= offset).max(1);
        let start = self.starts.get(line.saturating_sub(1)).copied().unwrap_or(0);
        let before =
            self.text.as_bytes().get(start..offset.min(self.text.len())).unwrap_or_default();
        (line, String::from_utf8_lossy(before).chars().count().saturating_add(1))
    }

    /// The span of the start of a line.
    pub(crate) fn span_of_line(&self, line: usize) -> Range<usize> {
        let start = self.starts.get(line.saturating_sub(1)).copied().unwrap_or(0);
        start..start
    }

    pub(crate) fn line(&self, span: &Range<usize>) -> usize {
        self.place(span.start).0
    }

    pub(crate) fn add(
        &self,
        span: &Range<usize>,
        key: &str,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        let (line, column) = self.place(span.start);
        let problem = Problem {
            line,
            column,
            key: key.to_owned(),
            message: message.into(),
            remedy: remedy.into(),
        };
        let mut found = self.found.borrow_mut();
        if found.0.len() < MAX_PROBLEMS {
            found.0.push(problem);
        } else {
            found.1 = found.1.saturating_add(1);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.found.borrow().0.is_empty()
    }

    pub(crate) fn finish(self, name: &str) -> Option<PolicyErrors> {
        let (mut problems, more) = self.found.into_inner();
        problems.sort_by_key(|problem| (problem.line, problem.column));
        (!problems.is_empty()).then(|| PolicyErrors { name: name.to_owned(), problems, more })
    }
}
