//! K: what real processes get out of, in the native tiers.
//!
//! What: each attack puts the boundary up and runs a real program or makes the
//! real system call in it. In the tier `landlock` its control is the same
//! attempt in the tier `process`; there the attempt itself is what gets
//! through, a known gap, unless it is something that every tier bounds.
//!
//! Invariant: an attempt counts as stopped only if it ran to its end and the
//! kernel's answer is among those it is known to give; a result that is neither
//! that nor the attacker's success is an error of the attack.

mod calls;
mod containers;
mod limits;
mod outside;
mod programs;
mod projects;
mod refusals;
mod variables;

use std::sync::Arc;
use std::time::Duration;

use fumehood_host_fns::{
    CancelToken, NativeCommand, NativeError, NativeLimits, NativeResult, NativeTier, NoStreaming,
    Variables,
};

use crate::harness::{Attack, Capability, Observed, Tier};

/// Cases of the catalogue that cannot be tried yet.
pub(super) const WAITING: &[(&str, Tier, Capability)] = &[
    ("K-23", Tier::Landlock, Capability::NativeNetwork),
    ("K-25", Tier::Landlock, Capability::NativeNetwork),
    ("K-41", Tier::Seatbelt, Capability::MacOs),
];

/// How the kernel says no.
const KERNEL_SAYS: &[&str] = &[
    "No such file or directory",
    "Permission denied",
    "Operation not permitted",
    "Read-only file system",
    "Function not implemented",
    "No such process",
];

/// Why what gets through in the tier `process` is a known gap.
const NO_BOUNDARY: &str = "The tier `process` is no boundary and says so: what it starts is a process of the \
     user who started it and can do what that user can. It is used only where it is named alone; \
     whoever runs code that is not trusted uses `landlock`.";
/// Why there is no control for that.
const ITSELF: &str = "the attempt itself gets through, which is what a control would show";

/// Every attack of this kind.
pub(super) fn all() -> Vec<Attack> {
    let mut all = programs::all();
    all.extend(calls::all());
    all.extend(limits::all());
    all.extend(variables::all());
    all.extend(refusals::all());
    all.extend(projects::all());
    all.extend(containers::all());
    all
}

/// A command of the shell.
fn command(tier: &dyn NativeTier, text: &str) -> NativeCommand {
    let mut argv = tier.shell();
    argv.push(text.to_owned());
    NativeCommand {
        argv,
        variables: Variables::default(),
        cwd: "/work".to_owned(),
        stdin: Arc::from([].as_slice()),
        timeout: Duration::from_secs(60),
        limits: NativeLimits::default(),
        mounts: Vec::new(),
    }
}

fn run(tier: &dyn NativeTier, command: &NativeCommand) -> Result<NativeResult, NativeError> {
    tier.run(command, &CancelToken::new(), &NoStreaming)
}

/// What a command gave, or what this machine lacks, or why it did not run.
fn run_in(
    stage: &crate::harness::Stage,
    tier: Tier,
    text: &str,
    change: impl FnOnce(&mut NativeCommand),
) -> Result<NativeResult, Observed> {
    let tier = stage.native(tier).map_err(Observed::waiting)?;
    let mut command = command(&*tier, text);
    change(&mut command);
    run(&*tier, &command).map_err(|error| Observed::broken(error.to_string()))
}

/// Both streams and the end, for messages.
fn said(result: &NativeResult) -> String {
    let tail = |text: String| {
        let skip = text.chars().count().saturating_sub(300);
        text.chars().skip(skip).collect::<String>()
    };
    format!("{:?} {:?} {:?}", result.end, tail(result.stdout.text()), tail(result.stderr.text()))
}

/// The attempt in both tiers, as [`NO_BOUNDARY`] says.
fn in_both(
    id: &'static str,
    property: &'static str,
    reason: &'static str,
    attempt: impl Fn(Tier, &crate::harness::World<'_>) -> Observed + Clone + Send + Sync + 'static,
) -> [Attack; 2] {
    use crate::harness::{Attempt, Expected, REACHED};
    let in_tier = |tier: Tier| {
        let attempt = attempt.clone();
        move |world: &crate::harness::World<'_>, _: &crate::harness::Setting| attempt(tier, world)
    };
    let control = Attempt::Host(Arc::new(in_tier(Tier::Process)));
    let stopped = Attack::host(id, property, in_tier(Tier::Landlock))
        .tier(Tier::Landlock)
        .control(control, Expected::Harmless(REACHED))
        .expect(Expected::Stopped, reason);
    let through = Attack::host(id, property, in_tier(Tier::Process))
        .tier(Tier::Process)
        .no_control(ITSELF)
        .expect(Expected::Stopped, reason)
        .known_gap(NO_BOUNDARY);
    [stopped, through]
}
