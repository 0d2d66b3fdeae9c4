//! What the runtime learns from the process that embeds it.
//!
//! Invariant: this is the only place that reads the host's environment. A guest
//! gets of it the variables that its policy passes on, and nothing else.
#![allow(clippy::disallowed_methods, reason = "this module is the environment adapter")]

use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

/// The user's directory for compiled code: `$FUMEHOOD_CACHE_DIR`, else
/// `$XDG_CACHE_HOME/fumehood`, else `$HOME/.cache/fumehood`; `None` without any.
pub(crate) fn cache_directory() -> Option<PathBuf> {
    let absolute = |name: &str| {
        std::env::var_os(name).map(PathBuf::from).filter(|directory| directory.is_absolute())
    };
    absolute("FUMEHOOD_CACHE_DIR")
        .or_else(|| absolute("XDG_CACHE_HOME").map(|directory| directory.join("fumehood")))
        .or_else(|| absolute("HOME").map(|directory| directory.join(".cache/fumehood")))
}

/// A variable of the host; its value if that is not text.
pub(crate) fn variable(name: &str) -> Option<Result<String, OsString>> {
    std::env::var_os(name).map(OsString::into_string)
}

/// The absolute path by which a policy knows a directory. Links are followed
/// only where `..` makes the meaning depend on them. What does not exist is
/// left as it is: opening it will say so.
pub(crate) fn absolute(path: &Path) -> PathBuf {
    let climbs = path.components().any(|part| part == Component::ParentDir);
    let found = if climbs { std::fs::canonicalize(path) } else { std::path::absolute(path) };
    let found = found.unwrap_or_else(|_| path.to_owned());
    // Its shortest form: without a final slash.
    found.components().collect()
}

/// The directory that a path leads to, all links followed.
pub(crate) fn resolved(path: &Path) -> Option<PathBuf> {
    std::fs::canonicalize(path).ok()
}
