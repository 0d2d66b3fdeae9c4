//! Policies in OpenShell's YAML.
//!
//! What: [`PolicyFile::parse_openshell`] reads `network_policies` and
//! `filesystem_policy` as rules of ours.
//! Why: what someone has already reviewed should not be written anew.
//!
//! Invariant: a field either means here what it means there, or the text is
//! refused with that field's line. Rules are enforced: a text that asks for
//! logging alone is refused.

mod convert;
mod schema;

use serde_saphyr::options::{DuplicateKeyPolicy, MergeKeyPolicy};

use crate::host::shown;
use crate::text::PolicyFile;
use crate::text::problem::{PolicyErrors, Problem};

/// Longest policy in OpenShell's YAML, in bytes, as there.
pub const MAX_OPENSHELL_BYTES: usize = 256 << 10;

impl PolicyFile {
    /// Reads a policy in OpenShell's YAML. `name` is what problems call it.
    ///
    /// # Errors
    /// [`PolicyErrors`] with what is wrong or cannot be honoured, each with its
    /// line.
    pub fn parse_openshell(text: &str, name: &str) -> Result<Self, PolicyErrors> {
        let errors = |problems| PolicyErrors { name: name.to_owned(), problems, more: 0 };
        if text.len() > MAX_OPENSHELL_BYTES {
            let message = format!("the text has {} bytes", text.len());
            let remedy = format!("keep it to {MAX_OPENSHELL_BYTES}");
            return Err(errors(vec![problem((1, 1), "", message, remedy)]));
        }
        let options = serde_saphyr::options! {
            duplicate_keys: DuplicateKeyPolicy::Error,
            merge_keys: MergeKeyPolicy::Error,
            strict_booleans: true,
        };
        let read = serde_saphyr::from_str_with_options::<schema::Document>(text, options);
        let document = read.map_err(|error| {
            let place = error.location().map_or((1, 1), |at| place(&at));
            let message = error.to_string();
            let first = message.lines().next().unwrap_or_default();
            let remedy = "write it as OpenShell's policy schema (version 1) has it";
            errors(vec![problem(place, "", shown(first), remedy)])
        })?;
        convert::file(document, name).map_err(errors)
    }
}

fn place(at: &serde_saphyr::Location) -> (usize, usize) {
    let number = |number: u64| usize::try_from(number.max(1)).unwrap_or(usize::MAX);
    (number(at.line()), number(at.column()))
}

fn problem(
    (line, column): (usize, usize),
    key: &str,
    message: impl Into<String>,
    remedy: impl Into<String>,
) -> Problem {
    Problem { line, column, key: key.to_owned(), message: message.into(), remedy: remedy.into() }
}

#[cfg(test)]
mod tests;
