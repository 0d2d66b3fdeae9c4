//! `bench hostcall`: what a call of the host costs.
//!
//! Inside, a loop of many calls is timed by the program's own clock; on the
//! host, the broker and plain cap-std open, read and close the same file in
//! turn.

use std::io::Read as _;
use std::path::Path;
use std::time::Duration;

use cap_std::fs::Dir;
use fumehood::policy::{BudgetPreset, BudgetSettings};
use fumehood::{Access, Sandbox, Script};
use fumehood_host_fns::{Broker, BrokerConfig, HostAnswer, HostCall, HostMount};
use serde_json::{Value, json};

use super::clock::Stopwatch;
use super::{check, median, show};
use crate::args::BenchCommon;
use crate::error::CliError;
use crate::progress;

/// Gives microseconds of each call, by round. `add` is the tool.
const PROGRAM: &str = "
import time, _fumehood

def noop(calls):
    call, operation = _fumehood.call, _fumehood.NOOP
    start = time.perf_counter()
    for _ in range(calls):
        call(operation, b'')
    return (time.perf_counter() - start) / calls * 1e6

def tool(calls):
    start = time.perf_counter()
    for _ in range(calls):
        add(1, 2)
    return (time.perf_counter() - start) / calls * 1e6

assert add(1, 2) == 3
noop(calls), tool(calls)
[[noop(calls), tool(calls)] for _ in range(rounds)]
";
/// Calls of each kind in one round.
const CALLS: u32 = 2000;
/// Operations whose audit goes to a file: many checkpoints' worth.
const AUDITED_CALLS: u32 = 50_000;
/// Longest that the program may take.
const PATIENCE: Duration = Duration::from_secs(300);
/// The directory that a broker has at descriptor 3.
const ROOT: u32 = 3;
/// WASI's right to read.
const FD_READ: u64 = 1 << 1;

pub(super) fn run(rounds: u32, common: &BenchCommon) -> Result<i32, CliError> {
    let (noop, tool) = inside(rounds, common)?;
    let ratio = files(rounds)?;
    let audited = super::audit::audited_call_us(AUDITED_CALLS)?;
    show(
        common.json,
        &json!({
            "bench": "hostcall",
            "noop_call_us": noop,
            "tool_call_us": tool,
            "open_read_close_ratio": ratio,
            "audited_call_us": audited,
            "rounds": rounds,
            "calls": CALLS,
        }),
        &format!(
            "a call that does nothing           {noop:.2} µs\na tool with two arguments          \
             {tool:.2} µs\nopen, read, close against cap-std  {ratio:.2} times\nan \
             operation with its audit log    {audited:.2} µs   (medians of {rounds} rounds of {CALLS})\n"
        ),
    );
    Ok(0)
}

/// Microseconds of a no-op and of a tool, from Python.
fn inside(rounds: u32, common: &BenchCommon) -> Result<(f64, f64), CliError> {
    let engine = progress::engine(common.compiled.as_deref()).build()?;
    let schema = json!({
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    });
    let budget = BudgetSettings {
        tool_calls_total: Some(u64::MAX),
        cpu_ms: Some(u64::try_from(PATIENCE.as_millis()).unwrap_or(u64::MAX)),
        ..BudgetPreset::Large.into()
    };
    let sandbox = Sandbox::builder()
        .engine(engine)
        .budget(budget)
        .timeout(PATIENCE)
        .tool("add", schema, |arguments| async move {
            let number =
                |name: &str| arguments.get(name).and_then(Value::as_i64).unwrap_or_default();
            Ok(json!(number("a").saturating_add(number("b"))))
        })
        .build()?;
    let mut inputs = serde_json::Map::new();
    inputs.insert("calls".to_owned(), json!(CALLS));
    inputs.insert("rounds".to_owned(), json!(rounds));
    let outcome = sandbox.run(Script::cell(PROGRAM).inputs(&inputs)).wait();
    check(&outcome)?;
    let measured: Option<Vec<(f64, f64)>> =
        outcome.result.json.and_then(|json| serde_json::from_value(json).ok());
    let measured = measured.filter(|rounds| !rounds.is_empty()).ok_or_else(|| {
        CliError::cannot_tell("the program of the bench gave no figures; try fewer --rounds")
    })?;
    let (noop, tool) = measured.into_iter().unzip();
    Ok((median(noop), median(tool)))
}

/// How many times as long the broker takes to open, read and close a file.
fn files(rounds: u32) -> Result<f64, CliError> {
    let failed = |what: &dyn std::fmt::Display| {
        CliError::cannot_tell(format!(
            "the bench cannot use a temporary file ({what}); set TMPDIR to a directory of your own"
        ))
    };
    let place = tempfile::tempdir().map_err(|error| failed(&error))?;
    let dir = Dir::open_ambient_dir(place.path(), cap_std::ambient_authority())
        .and_then(|dir| dir.write("f", [7; 64]).map(|()| dir))
        .map_err(|error| failed(&error))?;
    let mut broker = broker(place.path()).map_err(|error| failed(&error))?;
    let mut ratios = Vec::new();
    for _ in 0..=rounds {
        let start = Stopwatch::start();
        for _ in 0..CALLS {
            plain(&dir).map_err(|error| failed(&error))?;
        }
        let without = start.elapsed();
        let start = Stopwatch::start();
        for _ in 0..CALLS {
            brokered(&mut broker).ok_or_else(|| failed(&"the broker refused"))?;
        }
        ratios.push(start.elapsed().as_secs_f64() / without.as_secs_f64());
    }
    // The first round warms up.
    Ok(median(ratios.split_off(1)))
}

fn broker(host: &Path) -> Result<Broker, CliError> {
    let wrong = |error: &dyn std::fmt::Display| CliError::cannot_tell(error.to_string());
    let mut config = BrokerConfig::new("bench");
    let mount =
        HostMount::open("/m", host, Access::ReadOnly, false).map_err(|error| wrong(&error))?;
    config.mounts.push(mount);
    Broker::new(config).map_err(|error| wrong(&error))
}

fn plain(dir: &Dir) -> std::io::Result<usize> {
    let mut buffer = [0; 64];
    dir.open("f")?.read(&mut buffer)
}

fn brokered(broker: &mut Broker) -> Option<u32> {
    let opened = broker.dispatch(HostCall::PathOpen {
        dir: ROOT,
        follow: true,
        path: b"m/f",
        open_flags: 0,
        rights_base: FD_READ,
        rights_inheriting: 0,
        fd_flags: 0,
    });
    let Ok(HostAnswer::Descriptor(fd)) = opened else { return None };
    let mut buffer = [0; 64];
    let read = broker.dispatch(HostCall::FdRead { fd, into: &mut buffer });
    broker.dispatch(HostCall::FdClose { fd }).ok()?;
    match read {
        Ok(HostAnswer::Size(bytes)) if bytes == 64 => Some(bytes),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_read_the_file() {
        let ratio = files(1).unwrap();
        assert!(ratio.is_finite() && ratio > 0.0);
    }
}
