//! `fumehood eval`: the tiers compared on this machine.
//!
//! Invariant: only in a build with the feature `eval`; what it calls, such as
//! the attack harness, is no part of the product.

mod attacks;
mod spans;
mod throughput;

use clap::Subcommand;

use crate::error::CliError;

/// What is compared.
#[derive(Debug, Subcommand)]
pub(crate) enum Eval {
    /// Try every attack in the tiers, and compare with the committed board
    Attacks(attacks::AttacksArgs),
    /// Let an agent's program do the same work in the tiers and in plain CPython
    Throughput(throughput::ThroughputArgs),
}

/// Runs an evaluation.
///
/// # Errors
/// One sentence.
pub(crate) fn run(which: &Eval) -> Result<i32, CliError> {
    match which {
        Eval::Attacks(args) => attacks::run(args),
        Eval::Throughput(args) => throughput::run(args),
    }
}
