//! What the runtime learns from the process that embeds it.
//!
//! Invariant: this is the only place that reads the host's environment. A guest
//! gets of it the variables that its policy passes on, and nothing else.
#![allow(clippy::disallowed_methods, reason = "this module is the environment adapter")]

use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

/// What a variable names, if it names anything.
fn named(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// The same for a variable of the platform, where a relative name counts for
/// nothing (XDG Base Directory Specification).
fn absolute_named(name: &str) -> Option<PathBuf> {
    named(name).filter(|directory| directory.is_absolute())
}

/// The user's directory for compiled code: `$FUMEHOOD_CACHE_DIR`, else
/// `$XDG_CACHE_HOME/fumehood`, else `$HOME/.cache/fumehood`; `None` without any.
pub(crate) fn cache_directory() -> Option<PathBuf> {
    // What was named for us is used, or refused by name, but never passed over.
    named("FUMEHOOD_CACHE_DIR")
        .map(|directory| std::path::absolute(&directory).unwrap_or(directory))
        .or_else(|| absolute_named("XDG_CACHE_HOME").map(|directory| directory.join("fumehood")))
        .or_else(|| absolute_named("HOME").map(|directory| directory.join(".cache/fumehood")))
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

/// The name that an open directory has now.
pub(crate) fn name_of(open: &impl std::os::fd::AsRawFd) -> std::io::Result<PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{}", open.as_raw_fd()))
}

/// Whether a path leads to a regular file.
pub(crate) fn is_file(path: &Path) -> bool {
    path.is_file()
}

/// Where a command keeps session records: `$FUMEHOOD_HOME`, else the
/// platform's directory for data of this user; `None` without any. The library
/// itself writes nothing there unless it is asked to.
#[must_use]
pub fn records_location() -> Option<PathBuf> {
    let data = if cfg!(target_os = "macos") {
        absolute_named("HOME").map(|home| home.join("Library/Application Support"))
    } else {
        let data = absolute_named("XDG_DATA_HOME");
        data.or_else(|| absolute_named("HOME").map(|home| home.join(".local/share")))
    };
    // Never passed over either.
    named("FUMEHOOD_HOME").or_else(|| data.map(|directory| directory.join("fumehood")))
}
