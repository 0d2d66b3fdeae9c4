//! `bench sessions`: many sessions at once, and forks of a large one.

use fumehood::{Engine, Sandbox, Session};
use serde_json::json;

use super::cell::{session, usage};
use super::clock::Stopwatch;
use super::memory::private_dirty;
use super::{check, median, milliseconds, show};
use crate::args::BenchCommon;
use crate::error::CliError;
use crate::progress;

/// What each of many sessions runs.
const CELL: &str = "x = [n * n for n in range(10)]\nprint(sum(x))";
/// Sessions that all keep their instance.
const FEW: u32 = 20;
/// Makes a session of 100 MB.
const LARGE: &str = "big = bytearray(b'xyz1') * 25_000_000\nver = 1";
/// What a fork of it runs first.
const CHECK: &str = "assert big[99_999_999] == 49 and len(big) == 100_000_000\nver = 2";

pub(super) fn run(sessions: u32, forks: u32, common: &BenchCommon) -> Result<i32, CliError> {
    let engine = progress::engine(common.compiled.as_deref()).build()?;
    let private = private(&engine, sessions)?;
    let small = fork_times(&small(&engine)?, forks, "x")?;
    let start = Stopwatch::start();
    let parent = session(&engine)?;
    check(&parent.exec(LARGE).wait())?;
    let large_cell = milliseconds(start.elapsed());
    let large = fork_times(&parent, forks, CHECK)?;
    check(&parent.exec("ver = 3").wait())?;
    let large_checkpoint = milliseconds(usage(&parent)?.last_checkpoint);
    show(
        common.json,
        &json!({
            "bench": "sessions",
            "private_kb_per_session": private.each,
            "private_kb_awake": private.awake,
            "changed_pages": private.changed,
            "fork_first_ms": large.first,
            "fork_next_ms": large.next,
            "fork_next_ms_min": large.least,
            "fork_child_cell_ms": large.cell,
            "fork_small_ms": small.next,
            "fork_small_child_cell_ms": small.cell,
            "large_cell_ms": large_cell,
            "large_checkpoint_ms": large_checkpoint,
            "sessions": sessions,
            "forks": forks,
        }),
        &format!(
            "a session that waits                     {:.0} kB private   ({sessions} sessions)\n\
             the same, of those that ran last         {:.0} kB private   ({} pages changed)\n\
             fork of a small session                  {:.3} ms, its first cell {:.3} ms\n\
             first fork of a session of 100 MB        {:.3} ms\n\
             further forks of it                      {:.3} ms, their first cell {:.3} ms\n\
             the cell that made the 100 MB            {large_cell:.1} ms\n\
             checkpoint of a small cell beside them   {large_checkpoint:.3} ms\n",
            private.each,
            private.awake,
            private.changed,
            small.next,
            small.cell,
            large.first,
            large.next,
            large.cell,
        ),
    );
    Ok(0)
}

/// What sessions with one cell behind them take.
struct Private {
    /// Kilobytes of one among many.
    each: f64,
    /// Kilobytes of one that has an instance, as those that ran last have.
    awake: f64,
    /// Pages by which it differs from the image.
    changed: usize,
}

fn private(engine: &Engine, sessions: u32) -> Result<Private, CliError> {
    let sandbox = Sandbox::builder().engine(engine.clone()).build()?;
    let some = |count| (0..count).map(|_| started(&sandbox)).collect::<Result<Vec<_>, _>>();
    // What the first ones bring with them is not repeated by the others.
    let first = some(FEW)?;
    let before = private_dirty()?;
    let few = some(FEW)?;
    let awake = private_dirty()?.saturating_sub(before) as f64 / f64::from(FEW);
    let changed = few.last().map_or(Ok(0), |session| usage(session).map(|u| u.changed_pages))?;
    let many = some(sessions.saturating_sub(FEW))?;
    let all = private_dirty()?.saturating_sub(before) as f64;
    let count = few.len().saturating_add(many.len());
    drop(first);
    Ok(Private { each: all / count as f64, awake, changed })
}

fn started(sandbox: &Sandbox) -> Result<Session, CliError> {
    let session = sandbox.session();
    check(&session.exec(CELL).wait())?;
    Ok(session)
}

fn small(engine: &Engine) -> Result<Session, CliError> {
    let session = session(engine)?;
    check(&session.exec("x = [1, 2, 3]\ndef f(a): return a + 1").wait())?;
    Ok(session)
}

/// What forks of one session took.
struct Forks {
    /// Until the first was ready.
    first: f64,
    /// The median of the others.
    next: f64,
    /// The least of them.
    least: f64,
    /// Their first cell.
    cell: f64,
}

fn fork_times(parent: &Session, forks: u32, cell: &str) -> Result<Forks, CliError> {
    let failed = |error: fumehood::SessionError| CliError::cannot_tell(error.to_string());
    let (mut times, mut cells) = (Vec::new(), Vec::new());
    for _ in 0..=forks {
        let start = Stopwatch::start();
        let child = parent.fork().wait().map_err(failed)?;
        times.push(milliseconds(start.elapsed()));
        let start = Stopwatch::start();
        check(&child.exec(cell).wait())?;
        cells.push(milliseconds(start.elapsed()));
    }
    let first = times.first().copied().unwrap_or(f64::NAN);
    let others = times.get(1..).unwrap_or_default();
    let least = others.iter().copied().fold(f64::NAN, f64::min);
    Ok(Forks { first, next: median(others.to_vec()), least, cell: median(cells) })
}
