//! `bench memory`: what an instance that waits costs.

use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use fumehood::{Engine, Run, Sandbox, Script};
use serde_json::json;

use super::show;
use crate::args::BenchCommon;
use crate::error::CliError;
use crate::{files, progress};

/// Says that it is ready and then waits.
const PROGRAM: &str = "import time\nprint('ready')\ntime.sleep(3600)\n";
/// The longest that the bench waits for its programs.
const PATIENCE: Duration = Duration::from_secs(120);

/// Counts the programs that have said they are ready.
type Ready = Arc<(Mutex<u32>, Condvar)>;

pub(super) fn run(instances: u32, common: &BenchCommon) -> Result<i32, CliError> {
    let engine = progress::engine(common.compiled.as_deref()).build()?;
    let ready: Ready = Arc::default();
    // What the first instance brings with it is not repeated by the others.
    let first = park(&engine, &ready)?;
    wait_for(&ready, 1)?;
    let before = private_dirty()?;
    let mut parked = Vec::new();
    for _ in 0..instances {
        parked.push(park(&engine, &ready)?);
    }
    wait_for(&ready, instances.saturating_add(1))?;
    let after = private_dirty()?;
    drop(parked);
    drop(first);
    let each = after.saturating_sub(before) as f64 / f64::from(instances);
    show(
        common.json,
        &json!({
            "bench": "memory",
            "private_kb_per_session": each,
            "instances": instances,
            "private_kb_before": before,
            "private_kb_after": after,
        }),
        &format!("an instance that waits   {each:.0} kB private   ({instances} instances)\n"),
    );
    Ok(0)
}

fn park(engine: &Engine, ready: &Ready) -> Result<Run, CliError> {
    let sandbox =
        Sandbox::builder().engine(engine.clone()).timeout(Duration::from_secs(3600)).build()?;
    let ready = Arc::clone(ready);
    Ok(sandbox.run(Script::new(PROGRAM).on_output(move |_, _| {
        let mut count = ready.0.lock().unwrap_or_else(PoisonError::into_inner);
        *count = count.saturating_add(1);
        ready.1.notify_one();
    })))
}

fn wait_for(ready: &Ready, wanted: u32) -> Result<(), CliError> {
    let count = ready.0.lock().unwrap_or_else(PoisonError::into_inner);
    let (count, _) = ready
        .1
        .wait_timeout_while(count, PATIENCE, |count| *count < wanted)
        .unwrap_or_else(PoisonError::into_inner);
    let started = *count;
    drop(count);
    if started < wanted {
        return Err(CliError::cannot_tell(format!(
            "only {started} of {wanted} programs started; try fewer with --instances"
        )));
    }
    // The last of them still has to get from its output to its sleep.
    std::thread::sleep(Duration::from_millis(200));
    Ok(())
}

/// Private dirty kilobytes of this process.
pub(super) fn private_dirty() -> Result<u64, CliError> {
    let unknown = || {
        CliError::cannot_tell(
            "/proc/self/smaps_rollup does not say how much memory is private; run the bench on Linux",
        )
    };
    let text = files::read_file(Path::new("/proc/self/smaps_rollup"), "the memory map", 1 << 20)
        .map_err(|_| unknown())?;
    String::from_utf8_lossy(&text)
        .lines()
        .find_map(|line| line.strip_prefix("Private_Dirty:"))
        .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .ok_or_else(unknown)
}
