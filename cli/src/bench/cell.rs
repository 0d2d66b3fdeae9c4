//! `bench cell`: what a cell of a live session costs, its checkpoint included.

use std::time::Duration;

use fumehood::{Engine, Outcome, Sandbox, Script, Session};
use serde_json::json;

use super::clock::Stopwatch;
use super::{check, median, milliseconds, show};
use crate::args::BenchCommon;
use crate::error::CliError;
use crate::progress;

/// A small cell with output.
const CELL: &str = "y = sum(i * i for i in range(50))\nprint(y)";
/// The smallest one.
const SMALL: &str = "x = 1 + 1";
/// Ends in the middle, after little work.
const TRAP: &str = "z = [str(n) for n in range(200)]\nimport os\nos._exit(0)";
/// Ends in the middle, when it is cancelled.
const LOOP: &str = "print('ready')\nq = []\nwhile True: q.append(str(len(q)))";
/// How long such a loop may go on.
const LOOPS: Duration = Duration::from_millis(50);
/// Cells before the first that counts.
const WARM_UP: u32 = 50;

pub(super) fn run(cells: u32, common: &BenchCommon) -> Result<i32, CliError> {
    let engine = progress::engine(common.compiled.as_deref()).build()?;
    let session = session(&engine)?;
    for _ in 0..WARM_UP {
        check(&session.exec(CELL).wait())?;
    }
    let cell = timed(&session, cells, CELL)?;
    let small = timed(&session, cells, SMALL)?;
    let mut checkpoints = Vec::new();
    for _ in 0..cells.min(200) {
        check(&session.exec(CELL).wait())?;
        checkpoints.push(milliseconds(usage(&session)?.last_checkpoint));
    }
    let (mut rollbacks, mut after) = (Vec::new(), Vec::new());
    for _ in 0..cells.min(200) {
        rolled_back(&session.exec(TRAP).wait())?;
        rollbacks.push(milliseconds(usage(&session)?.last_rollback));
        let start = Stopwatch::start();
        check(&session.exec(CELL).wait())?;
        after.push(milliseconds(start.elapsed()));
    }
    let killed = killed(&session, cells.min(20))?;
    let least = |times: &[f64]| times.iter().copied().fold(f64::NAN, f64::min);
    let (least_checkpoint, least_rollback) = (least(&checkpoints), least(&rollbacks));
    let (checkpoint, rollback) = (median(checkpoints), median(rollbacks));
    let (after, killed) = (median(after), median(killed));
    let changed = usage(&session)?.changed_pages;
    show(
        common.json,
        &json!({
            "bench": "cell",
            "cell_ms": cell.median,
            "cell_ms_min": cell.least,
            "small_cell_ms": small.median,
            "small_cell_ms_min": small.least,
            "checkpoint_ms_min": least_checkpoint,
            "rollback_ms_min": least_rollback,
            "checkpoint_ms": checkpoint,
            "rollback_ms": rollback,
            "rollback_killed_ms": killed,
            "cell_after_rollback_ms": after,
            "changed_pages": changed,
            "cells": cells,
        }),
        &format!(
            "a cell with output, checkpoint included   {:.3} ms, least {:.3} ms\n\
             the smallest cell, checkpoint included    {:.3} ms, least {:.3} ms\n\
             its checkpoint                            {checkpoint:.3} ms   ({changed} pages)\n\
             rollback of a small cell                  {rollback:.3} ms\n\
             rollback of a killed loop                 {killed:.3} ms\n\
             first cell after a rollback               {after:.3} ms\n",
            cell.median, cell.least, small.median, small.least,
        ),
    );
    Ok(0)
}

pub(super) fn session(engine: &Engine) -> Result<Session, CliError> {
    let sandbox = Sandbox::builder().engine(engine.clone()).timeout(Duration::from_secs(600));
    Ok(sandbox.build()?.session())
}

pub(super) fn usage(session: &Session) -> Result<fumehood::SessionUsage, CliError> {
    session.usage().wait().map_err(|error| CliError::cannot_tell(error.to_string()))
}

/// Cells that follow each other, so that a checkpoint that is
/// taken after an answer is inside the next.
fn timed(session: &Session, cells: u32, cell: &str) -> Result<Times, CliError> {
    let mut times = Vec::new();
    for _ in 0..cells {
        let start = Stopwatch::start();
        check(&session.exec(cell).wait())?;
        times.push(milliseconds(start.elapsed()));
    }
    let least = times.iter().copied().fold(f64::NAN, f64::min);
    Ok(Times { median: median(times), least })
}

/// What cells took, in milliseconds.
struct Times {
    median: f64,
    /// What is left of it on a machine that does nothing else.
    least: f64,
}

fn rolled_back(outcome: &Outcome) -> Result<(), CliError> {
    if outcome.rolled_back {
        return Ok(());
    }
    Err(CliError::cannot_tell("a cell of the bench that must be rolled back was not"))
}

/// Rollbacks after loops that made many objects.
fn killed(session: &Session, times: u32) -> Result<Vec<f64>, CliError> {
    let mut found = Vec::new();
    for _ in 0..times {
        let (sender, ready) = std::sync::mpsc::channel();
        let run = session.exec(Script::cell(LOOP).on_output(move |_, _| {
            let _ = sender.send(());
        }));
        let _ = ready.recv();
        std::thread::sleep(LOOPS);
        run.canceller().cancel();
        rolled_back(&run.wait())?;
        found.push(milliseconds(usage(session)?.last_rollback));
    }
    Ok(found)
}
