//! Diagnostics on standard error, only when `FUMEHOOD_LOG` asks for them.
#![allow(clippy::disallowed_methods, reason = "this module reads the environment")]

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

/// Starts logging if `FUMEHOOD_LOG` is set, such as to `debug`.
pub(crate) fn start() {
    let Some(wanted) = std::env::var_os("FUMEHOOD_LOG") else { return };
    let filter = EnvFilter::builder().parse_lossy(wanted.to_string_lossy());
    // Fails only if something else has started logging.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal() && !no_color())
        .try_init();
}

/// Whether the user asked for no colour: `NO_COLOR` is set and not empty.
fn no_color() -> bool {
    std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
}
