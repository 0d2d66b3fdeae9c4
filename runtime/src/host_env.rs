//! What the runtime learns from the process that embeds it.
//!
//! Invariant: this is the only place that reads the host's environment, and
//! nothing read here reaches a guest.
#![allow(clippy::disallowed_methods, reason = "this module is the environment adapter")]

use std::path::PathBuf;

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
