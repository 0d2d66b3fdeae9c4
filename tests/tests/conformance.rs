//! What the Python guest, the engine and the command promise, held against
//! data: one binary, so that the engine is compiled once for all of it.
//!
//! `cargo test --release --workspace --test conformance [FILTER]`. Every
//! snippet, program and documented command is a case of its own. The binary
//! also has helper modes (first argument `__confined` or `__record`), because
//! some cases need a process that gives up its own privileges.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    unreachable_pub,
    reason = "a test program lives on the host and fails by panicking"
)]

#[path = "conformance/audit.rs"]
mod audit;
#[path = "conformance/commands.rs"]
mod commands;
#[path = "conformance/cpython.rs"]
mod cpython;
#[path = "conformance/determinism.rs"]
mod determinism;
#[path = "conformance/differential.rs"]
mod differential;
#[path = "conformance/evidence.rs"]
mod evidence;
#[path = "conformance/library.rs"]
mod library;
#[path = "conformance/oracle.rs"]
mod oracle;
#[path = "conformance/pinned.rs"]
mod pinned;
#[path = "conformance/pins.rs"]
mod pins;
#[cfg(target_os = "linux")]
#[path = "conformance/privileges.rs"]
mod privileges;
#[path = "conformance/programs.rs"]
mod programs;
#[path = "conformance/random_programs.rs"]
mod random_programs;
#[path = "conformance/repl.rs"]
mod repl;
#[path = "conformance/schema.rs"]
mod schema;
#[cfg(target_os = "linux")]
#[path = "conformance/seccomp.rs"]
mod seccomp;
#[path = "conformance/snippets.rs"]
mod snippets;
#[path = "conformance/support.rs"]
mod support;
#[path = "conformance/threats.rs"]
mod threats;
#[path = "conformance/tools.rs"]
mod tools;

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        #[cfg(target_os = "linux")]
        Some("__confined") => return privileges::confined(arguments),
        Some("__record") => return programs::record(arguments),
        _ => {}
    }
    let arguments = libtest_mimic::Arguments::from_args();
    let mut trials = Vec::new();
    trials.extend(snippets::trials());
    trials.extend(programs::trials());
    trials.extend(cpython::trials());
    trials.extend(differential::trials());
    trials.extend(determinism::trials());
    trials.extend(pins::trials());
    trials.extend(library::trials());
    #[cfg(target_os = "linux")]
    trials.extend(privileges::trials());
    trials.extend(commands::trials());
    trials.extend(repl::trials());
    trials.extend(schema::trials());
    trials.extend(tools::trials());
    trials.extend(threats::trials());
    trials.extend(audit::trials());
    libtest_mimic::run(&arguments, trials).exit_code()
}
