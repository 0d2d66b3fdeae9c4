//! `fumehood run`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fumehood::policy::{BudgetSettings, Flags, PolicyFile};
use fumehood::{Limits, OutcomeKind, Sandbox};
use rustix::io::Errno;

use crate::args::{MountArg, RunArgs};
use crate::error::CliError;
use crate::events::Events;
use crate::output::{self, Live, Stop};
use crate::{files, policies, program, progress, report, signals};

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
    let policy = args.policy.as_deref().map(policies::load).transpose()?;
    let ceiling = args.ceiling.as_deref().map(policies::load).transpose()?;
    let mut script = program::script(args, &mounts(args, policy.as_ref()), &Limits::default())?;
    let mut sandbox = Sandbox::builder().budget(budget(args, policy.as_ref()));
    for mount in args.mount.iter().chain(&args.force_mount) {
        files::check_directory(&mount.host)?;
        sandbox = sandbox.mount(&mount.guest, &mount.host, mount.access, mount.force);
    }
    for (name, value) in &args.env {
        sandbox = sandbox.env(name, value);
    }
    let has_policy = policy.is_some() || ceiling.is_some() || args.budget.is_some();
    if let Some(policy) = policy {
        sandbox = sandbox.policy(policy);
    }
    if let Some(ceiling) = ceiling {
        sandbox = sandbox.ceiling(ceiling);
    }
    let stop = Arc::new(Stop::default());
    let show = if args.json_lines {
        let events = Arc::new(Events::new(Arc::clone(&stop)));
        sandbox = sandbox.audit(Arc::clone(&events) as Arc<dyn fumehood::AuditSink>);
        script = script.output_sink(Arc::clone(&events) as Arc<dyn fumehood::OutputSink>);
        Show::Lines(events)
    } else if args.json {
        Show::Json
    } else {
        let live = Arc::new(Live::new());
        let (sink, stop) = (Arc::clone(&live), Arc::clone(&stop));
        script = script.on_output(move |stream, bytes| sink.write(stream, bytes, &stop));
        Show::Live(live)
    };
    let engine = progress::engine(args.compiled.as_deref()).one_shot();
    let sandbox = sandbox.engine_settings(engine).build()?;
    for limited in sandbox.limited() {
        output::note(&format!("{limited}, which holds; change it there to have more"));
    }
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
            let failed = live.finish(&outcome, value);
            // A run that was stopped because its reader went ends quietly.
            if failed != Some(Errno::PIPE) || outcome.kind != OutcomeKind::Cancelled {
                let interrupted = interrupted.load(Ordering::SeqCst);
                report::tell(&outcome, sandbox.limits(), has_policy, interrupted);
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

/// Every mount that there will be, so that the program's own file is found in
/// one.
fn mounts(args: &RunArgs, policy: Option<&PolicyFile>) -> Vec<MountArg> {
    let declared = policy.map_or(&[][..], PolicyFile::mounts).iter().map(|mount| MountArg {
        guest: mount.at.to_string(),
        host: (&mount.host).into(),
        access: mount.access,
        force: false,
    });
    args.mount.iter().chain(&args.force_mount).cloned().chain(declared).collect()
}

/// The numbers that the arguments name.
fn budget(args: &RunArgs, policy: Option<&PolicyFile>) -> BudgetSettings {
    let mut budget = BudgetSettings { preset: args.budget, ..BudgetSettings::default() };
    if let (Some(wall), None) = (args.timeout, args.cpu)
        && policies::may_extend(policy)
    {
        // Who allows more time and names no processor time means both.
        let flags = Flags { budget: budget.clone(), ..Flags::default() };
        let without = policies::cpu_ms(policy, &flags);
        budget.cpu_ms = Some(without.max(milliseconds(wall)));
    }
    budget.wall_ms = args.timeout.map(milliseconds);
    budget.cpu_ms = args.cpu.map(milliseconds).or(budget.cpu_ms);
    budget.memory_bytes = args.memory;
    budget
}

/// Whole milliseconds; a part of one is one.
fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
