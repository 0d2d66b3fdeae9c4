//! `bench startup`: from a new sandbox to its first result.

use std::time::Duration;

use fumehood::{Engine, Pool, Sandbox, Script};
use serde_json::json;

use super::clock::Stopwatch;
use super::{check, median, milliseconds, quantile, show};
use crate::args::BenchCommon;
use crate::error::CliError;
use crate::progress;

/// What each instance runs.
const PROGRAM: &str = "print(1+1)";
/// Runs before the first that counts.
const WARM_UP: u32 = 50;
/// How long instances are counted.
const COUNTED: Duration = Duration::from_secs(2);
/// Programs that a pool is given at a time.
const BATCH: usize = 500;
/// Threads that start instances while they are counted.
const THREADS: usize = 2;

pub(super) fn run(runs: u32, pool: bool, common: &BenchCommon) -> Result<i32, CliError> {
    let engine = progress::engine(common.compiled.as_deref()).build()?;
    for _ in 0..WARM_UP {
        create_to_result(&engine)?;
    }
    let mut times = Vec::new();
    for _ in 0..runs {
        times.push(milliseconds(create_to_result(&engine)?));
    }
    let per_second = instances_per_second(&engine)?;
    let of_pool = pool.then(|| programs_per_second(&engine)).transpose()?;
    times.sort_by(f64::total_cmp);
    let middle = median(times.clone());
    let (p95, least) = (quantile(&times, 0.95), quantile(&times, 0.0));
    show(
        common.json,
        &json!({
            "bench": "startup",
            "create_to_result_ms": middle,
            "create_to_result_ms_p95": p95,
            "create_to_result_ms_min": least,
            "instances_per_s": per_second,
            "pool_programs_per_s": of_pool,
            "runs": runs,
            "threads": THREADS,
        }),
        &format!(
            "new sandbox to the result of {PROGRAM}   median {middle:.3} ms   95 % {p95:.3} ms   \
             least {least:.3} ms   ({runs} runs)\ninstances on {THREADS} threads   {per_second:.0} a second\n{}",
            of_pool.map_or_else(String::new, |programs| format!(
                "programs of a pool on all cores   {programs:.0} a second\n"
            )),
        ),
    );
    Ok(0)
}

fn create_to_result(engine: &Engine) -> Result<Duration, CliError> {
    let start = Stopwatch::start();
    let sandbox = Sandbox::builder().engine(engine.clone()).build()?;
    let outcome = sandbox.run(Script::new(PROGRAM)).wait();
    let took = start.elapsed();
    check(&outcome)?;
    Ok(took)
}

fn instances_per_second(engine: &Engine) -> Result<f64, CliError> {
    let start = Stopwatch::start();
    let count = || {
        let mut done = 0_u32;
        while start.elapsed() < COUNTED {
            create_to_result(engine)?;
            done = done.saturating_add(1);
        }
        Ok::<_, CliError>(done)
    };
    let done = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(count)).collect();
        threads
            .into_iter()
            .map(|thread| {
                thread.join().map_err(|_| CliError::cannot_tell("a thread of the bench failed"))?
            })
            .sum::<Result<u32, CliError>>()
    })?;
    Ok(f64::from(done) / start.elapsed().as_secs_f64())
}

/// Isolated programs that a pool on all cores runs.
fn programs_per_second(engine: &Engine) -> Result<f64, CliError> {
    let sandbox = Sandbox::builder().engine(engine.clone()).build()?;
    let pool = Pool::new(&sandbox);
    let start = Stopwatch::start();
    let mut done = 0_usize;
    while start.elapsed() < COUNTED {
        let outcomes = pool.run_many((0..BATCH).map(|_| Script::new(PROGRAM)))?.wait();
        outcomes.iter().try_for_each(check)?;
        done = done.saturating_add(outcomes.len());
    }
    Ok(done as f64 / start.elapsed().as_secs_f64())
}
