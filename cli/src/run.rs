//! `fumehood run`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fumehood::native::{NativeSession, NativeTier};
use fumehood::policy::{BudgetSettings, Flags, PolicyFile};
use fumehood::{AuditSink, Limits, OutcomeKind, Sandbox};
use rustix::io::Errno;

use crate::args::RunArgs;
use crate::error::CliError;
use crate::events::Events;
use crate::output::{self, Live, Stop};
use crate::records::Recording;
use crate::{live, policies, program, progress, project, reach, report, signals};

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
    let text = args.reach.policy.as_deref().map(policies::text).transpose()?;
    let policy = text.as_ref().map(policies::PolicyText::parse).transpose()?;
    let ceiling = args.ceiling.as_deref().map(policies::load).transpose()?;
    let mounts = reach::mounts(&args.reach, policy.as_ref());
    let mut script = program::script(args, &mounts, &Limits::default())?;
    let sandbox = Sandbox::builder().budget(budget(args, policy.as_ref()));
    let mut sandbox = reach::apply(&args.reach, &mounts, args.ceiling.as_deref(), sandbox)?;
    let files = [policy.as_ref(), ceiling.as_ref()];
    let native = native(args, files)?;
    let recording = Recording::of(args.record, script.name(), Some(script.source_bytes()))?;
    let live = args.live.then(|| live::Live::prepare(args, text, files, &mounts)).transpose()?;
    let natively = match &native {
        Native::Program(tier) => Some(tier.name()),
        Native::Commands(_) | Native::Nothing => None,
    };
    match native {
        Native::Program(tier) => {
            sandbox = sandbox.native_only(NativeSession::new(tier));
            if policy.is_none() && ceiling.is_none() {
                sandbox = sandbox.policy(crate::native::allowed()?);
            }
        }
        Native::Commands(tier) => sandbox = sandbox.native(NativeSession::new(tier)),
        Native::Nothing => {}
    }
    let has_policy = policy.is_some() || ceiling.is_some() || args.budget.is_some();
    if let Some(policy) = policy {
        sandbox = sandbox.policy(policy);
    }
    if let Some(ceiling) = ceiling {
        sandbox = sandbox.ceiling(ceiling);
    }
    let stop = Arc::new(Stop::default());
    let mut also: Vec<Arc<dyn AuditSink>> = Vec::new();
    if let Some(live) = &live {
        also.push(live.sink());
        sandbox = sandbox.network_on_demand();
    }
    let show = if args.json_lines {
        let events = Arc::new(Events::new(Arc::clone(&stop)));
        also.push(Arc::clone(&events) as Arc<dyn AuditSink>);
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
    sandbox = recording.attach(sandbox, also);
    if let Some(settings) = args.determinism.settings() {
        sandbox = sandbox.deterministic(settings);
    }
    let engine = progress::engine(args.compiled.as_deref()).one_shot();
    let sandbox = sandbox.engine_settings(engine).build()?;
    for limited in sandbox.limited() {
        output::note(&format!("{limited}, which holds; change it there to have more"));
    }
    let live = live.map(|live| live.open(&sandbox)).transpose()?;
    if live.is_some() && !args.json && !args.json_lines {
        output::note(&format!("session {} takes approvals", sandbox.session_id()));
    }
    if let Show::Lines(events) = &show {
        events.start(sandbox.session_id(), natively);
    }
    let run = match natively {
        Some(_) => sandbox.run_natively(script),
        None => sandbox.run(script),
    };
    stop.attach(run.canceller());
    let interrupted = Arc::new(AtomicBool::new(false));
    signals::listen(Arc::clone(&stop), Arc::clone(&interrupted));
    let outcome = run.wait();
    drop(live);
    recording.finish(&outcome);
    let failed = match &show {
        Show::Live(live) => {
            let value = outcome.result.repr.as_deref().filter(|_| args.cell);
            let failed = live.finish(&outcome, value);
            // A run that was stopped because its reader went ends quietly.
            if failed != Some(Errno::PIPE) || outcome.kind != OutcomeKind::Cancelled {
                let interrupted = interrupted.load(Ordering::SeqCst);
                report::tell(&outcome, sandbox.limits(), has_policy, interrupted);
                project::tell(&outcome);
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
    project::close(&sandbox);
    recording.tidy();
    // The process ends now: the system takes the guest's memory and code back
    // at once, which unmapping them one by one would delay.
    std::mem::forget(sandbox);
    Ok(outcome.exit_code)
}

/// What runs as real processes.
enum Native {
    /// The program itself.
    Program(Arc<dyn NativeTier>),
    /// Commands that it asks for.
    Commands(Arc<dyn NativeTier>),
    Nothing,
}

/// The tier that is asked for, ready to run.
///
/// # Errors
/// What it lacks, and what is asked for that it cannot hold to.
fn native(args: &RunArgs, policies: [Option<&PolicyFile>; 2]) -> Result<Native, CliError> {
    let Some(tier) = args.tier.native() else {
        let tier = args.tier.for_commands(&policies)?;
        return Ok(tier.map_or(Native::Nothing, Native::Commands));
    };
    let net = &args.reach.net;
    let hosts = !net.allow.is_empty() || !net.allow_private.is_empty();
    let unable = [
        ("--cell", args.cell),
        ("--live", args.live),
        ("--file-tools", args.reach.file_tools),
        ("--compiled", args.compiled.is_some()),
        ("a deterministic run", args.determinism.settings().is_some()),
        ("--allow", hosts),
        ("--ask", net.ask),
        ("--proxy", net.proxy.is_some()),
        ("--ca-file", net.ca_file.is_some()),
    ];
    if let Some((what, _)) = unable.iter().find(|(_, asked)| *asked) {
        return Err(CliError::refused(format!(
            "a native tier cannot give this: {what}; leave it out, or leave --tier out"
        )));
    }
    let sections = policies.into_iter().flatten().flat_map(PolicyFile::brokered_sections);
    let sections: Vec<_> = sections.collect();
    if !sections.is_empty() {
        return Err(CliError::refused(format!(
            "a native tier cannot hold to [{}] of the policy, which is about single requests; use a \
             policy without it, or leave --tier out",
            sections.join("], [")
        )));
    }
    Ok(Native::Program(tier.prepared()?))
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
pub(crate) fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
