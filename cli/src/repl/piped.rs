//! Cells from a pipe or a file, as they would be typed.

use super::source::{is_complete, starts_another};
use super::{Next, Source};
use crate::error::CliError;

/// Reads standard input line by line.
pub(super) struct Piped {
    /// A line that began the next cell.
    ahead: Option<String>,
    most: usize,
}

impl Piped {
    /// Cells of at most `most` bytes.
    pub(super) fn new(most: usize) -> Self {
        Self { ahead: None, most }
    }

    /// The next line with its end; `None` at the end of the input.
    fn line(&mut self) -> Result<Option<String>, CliError> {
        if let Some(line) = self.ahead.take() {
            return Ok(Some(line));
        }
        use std::io::{BufRead as _, Read as _};
        let mut line = Vec::new();
        let most = u64::try_from(self.most).unwrap_or(u64::MAX);
        let read = std::io::stdin().lock().take(most).read_until(b'\n', &mut line);
        match read {
            Ok(0) => Ok(None),
            Ok(_) => String::from_utf8(line).map(Some).map_err(|_| {
                CliError::usage("standard input is not UTF-8; convert it, since cells are text")
            }),
            Err(error) => Err(CliError::usage(format!(
                "standard input cannot be read ({error}); give cells through a pipe or a terminal"
            ))),
        }
    }
}

impl Source for Piped {
    fn next(&mut self) -> Result<Next, CliError> {
        let mut text = String::new();
        while let Some(line) = self.line()? {
            if starts_another(&text, &line) {
                self.ahead = Some(line);
                return Ok(Next::Text(text));
            }
            if text.len().saturating_add(line.len()) > self.most {
                return Err(CliError::usage(format!(
                    "a cell on standard input has more than {} bytes; split it",
                    self.most
                )));
            }
            text.push_str(&line);
            let whole = text.trim_end_matches(['\n', '\r']);
            let is_command = whole.trim_start().starts_with('%');
            // What a terminal would give: the text without the end of its last line.
            let typed = text.strip_suffix('\n').unwrap_or(&text);
            if is_command || (!whole.trim().is_empty() && is_complete(typed)) {
                return Ok(Next::Text(text));
            }
            if whole.trim().is_empty() {
                text.clear();
            }
        }
        Ok(if text.trim().is_empty() { Next::End } else { Next::Text(text) })
    }
}
