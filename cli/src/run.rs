//! `fumehood run`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fumehood::{Limits, OutcomeKind, Sandbox};
use rustix::io::Errno;

use crate::args::RunArgs;
use crate::error::CliError;
use crate::events::Events;
use crate::output::{self, Live, Stop};
use crate::{files, program, progress, report, signals};

/// Where a program's output goes.
enum Show {
    /// Straight on, with notes after it.
    Live(Arc<Live>),
    /// Into the one record at the end.
    Json,
    /// Into events.
    Lines(Arc<Events>),
}

/// Runs the program and returns the exit code.
///
/// # Errors
/// One sentence; nothing has run.
pub(crate) fn run(args: &RunArgs) -> Result<i32, CliError> {
    let limits = limits(args);
    let mut script = program::script(args, &limits)?;
    let mut sandbox = Sandbox::builder().limits(limits.clone());
    for mount in args.mount.iter().chain(&args.force_mount) {
        files::check_directory(&mount.host)?;
        sandbox = sandbox.mount(&mount.guest, &mount.host, mount.access, mount.force);
    }
    for (name, value) in &args.env {
        sandbox = sandbox.env(name, value);
    }
    let stop = Arc::new(Stop::default());
    let show = if args.json_lines {
        let events = Arc::new(Events::new(Arc::clone(&stop)));
        sandbox = sandbox.audit(Arc::clone(&events) as Arc<dyn fumehood::AuditSink>);
        let sink = Arc::clone(&events);
        script = script.on_output(move |stream, bytes| sink.output(stream, bytes));
        Show::Lines(events)
    } else if args.json {
        Show::Json
    } else {
        let live = Arc::new(Live::new());
        let (sink, stop) = (Arc::clone(&live), Arc::clone(&stop));
        script = script.on_output(move |stream, bytes| sink.write(stream, bytes, &stop));
        Show::Live(live)
    };
    let sandbox = sandbox.engine(progress::engine(args.compiled.as_deref()).build()?).build()?;
    if let Show::Lines(events) = &show {
        events.start(sandbox.session_id());
    }
    let run = sandbox.run(script);
    stop.attach(run.canceller());
    let interrupted = Arc::new(AtomicBool::new(false));
    signals::listen(Arc::clone(&stop), Arc::clone(&interrupted));
    let outcome = run.wait();
    let failed = match &show {
        Show::Live(live) => {
            let value = outcome.result.repr.as_deref().filter(|_| args.cell);
            let failed = live.finish(value);
            // A run that was stopped because its reader went ends quietly.
            if failed != Some(Errno::PIPE) || outcome.kind != OutcomeKind::Cancelled {
                report::tell(&outcome, &limits, interrupted.load(Ordering::SeqCst));
            }
            failed
        }
        Show::Json => output::print_json(&outcome.to_json()).err(),
        Show::Lines(events) => events.end(&outcome),
    };
    if let Some(error) = failed.filter(|error| *error != Errno::PIPE) {
        output::note(&format!(
            "standard output could not be written ({error}); the result is not complete"
        ));
    }
    // The process ends now: the system takes the guest's memory and code back
    // at once, which unmapping them one by one would delay.
    std::mem::forget(sandbox);
    Ok(outcome.exit_code)
}

fn limits(args: &RunArgs) -> Limits {
    let mut limits = Limits::default();
    if let Some(wall) = args.timeout {
        limits.wall = wall;
        limits.cpu = limits.cpu.max(wall);
    }
    limits.cpu = args.cpu.unwrap_or(limits.cpu);
    limits.memory_bytes = args.memory.unwrap_or(limits.memory_bytes);
    limits
}
