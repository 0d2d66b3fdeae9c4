//! `fumehood bench`: figures for this machine, as medians.

mod audit;
mod bash;
mod cell;
mod clock;
mod cpu;
mod files;
mod hostcall;
mod memory;
mod native;
mod net;
mod sessions;
mod startup;

use std::time::Duration;

use fumehood::{Outcome, OutcomeKind};
use serde_json::Value;

use crate::args::Bench;
use crate::error::CliError;
use crate::output;

/// Runs a bench and returns the exit code.
///
/// # Errors
/// One sentence.
pub(crate) fn run(which: &Bench) -> Result<i32, CliError> {
    match which {
        Bench::Startup { runs, pool, common } => startup::run(*runs, *pool, common),
        Bench::Cell { cells, common } => cell::run(*cells, common),
        Bench::Sessions { sessions, forks, common } => sessions::run(*sessions, *forks, common),
        Bench::Cpu { programs, native, rounds, common } => {
            cpu::run(programs, native, *rounds, common)
        }
        Bench::Files { rounds, native, common } => files::run(*rounds, native, common),
        Bench::Hostcall { rounds, common } => hostcall::run(*rounds, common),
        Bench::Audit { calls, records, json } => audit::run(*calls, *records, *json),
        Bench::Bash { runs, tier, json } => bash::run(*runs, tier, *json),
        Bench::Net { requests, megabytes, at_once, rounds, native, common } => {
            net::run([*requests, *megabytes, *at_once], *rounds, native, common)
        }
        Bench::Memory { instances, common } => memory::run(*instances, common),
    }
}

fn show(as_json: bool, json: &Value, table: &str) {
    if as_json {
        let _ = output::print_json(json);
    } else {
        output::print(table);
    }
}

/// A bench's own program has to end well.
fn check(outcome: &Outcome) -> Result<(), CliError> {
    if outcome.kind == OutcomeKind::Completed {
        return Ok(());
    }
    let said = outcome.stderr_text();
    let said = said.trim().lines().next_back().unwrap_or("nothing on stderr").to_owned();
    Err(CliError::cannot_tell(format!(
        "a program of the bench ended with {} ({said}); run it with `fumehood run`",
        outcome.kind.as_str()
    )))
}

/// The value that a share of `sorted` is not above, such as 0.5 for the median.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "small and positive"
    )]
    let at = (last as f64 * share).round() as usize;
    sorted.get(at).copied().unwrap_or(f64::NAN)
}

/// The median; the mean of the two in the middle of an even number.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.get(middle) {
        Some(upper) if values.len() % 2 == 1 => *upper,
        Some(upper) => {
            values.get(middle.wrapping_sub(1)).map_or(*upper, |lower| (lower + upper) / 2.0)
        }
        None => f64::NAN,
    }
}

/// The geometric mean.
fn geomean(values: &[f64]) -> f64 {
    (values.iter().map(|value| value.ln()).sum::<f64>() / values.len() as f64).exp()
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_means() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(vec![7.0]), 7.0);
        assert!(median(Vec::new()).is_nan());
        assert!((geomean(&[1.0, 4.0]) - 2.0).abs() < 1e-12);
        assert_eq!(quantile(&[1.0, 2.0, 3.0], 0.5), 2.0);
        assert_eq!(quantile(&[1.0, 2.0, 3.0], 1.0), 3.0);
    }
}
