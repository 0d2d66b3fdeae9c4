//! Lists of cases that are known to fail, each with its reason.
//!
//! Invariant: a list can only shrink by accident, never grow: a listed case
//! that passes fails the test, and so does an unlisted one that fails.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use libtest_mimic::{Failed, Trial};

use crate::support::read;

/// One list: a line is `name: reason`, `#` starts a comment line.
#[derive(Debug)]
pub struct Pinned {
    file: String,
    reasons: BTreeMap<String, String>,
}

impl Pinned {
    /// Reads a list.
    pub fn load(path: &Path) -> Arc<Self> {
        let file = path.file_name().expect("a file name");
        let directory = path.parent().and_then(Path::file_name).expect("a directory");
        let reasons = read(path)
            .lines()
            .filter(|line| !line.trim().is_empty() && !line.starts_with('#'))
            .map(|line| {
                let (name, reason) = line.split_once(": ").expect("`name: reason`");
                assert!(!reason.trim().is_empty(), "{name} has no reason");
                (name.to_owned(), reason.trim().to_owned())
            })
            .collect();
        let file = format!("tests/{}/{}", directory.to_string_lossy(), file.to_string_lossy());
        Arc::new(Self { file, reasons })
    }

    /// Applies the list to one result.
    pub fn judge(&self, name: &str, result: Result<(), String>) -> Result<(), Failed> {
        match (self.reasons.get(name), result) {
            (None, Ok(())) | (Some(_), Err(_)) => Ok(()),
            (None, Err(why)) => Err(why.into()),
            (Some(_), Ok(())) => {
                Err(format!("it passes now; remove `{name}` from {}", self.file).into())
            }
        }
    }

    /// A case that fails when the list names something that does not exist.
    pub fn every_name_exists(self: &Arc<Self>, prefix: &str, names: &[String]) -> Trial {
        let (list, names) = (Arc::clone(self), names.to_vec());
        Trial::test(format!("{prefix}::the_list_of_failing_ones_names_what_exists"), move || {
            match list.reasons.keys().find(|name| !names.contains(name)) {
                Some(name) => {
                    Err(format!("{} names `{name}`, which does not exist", list.file).into())
                }
                None => Ok(()),
            }
        })
    }
}
