//! What the user is told on standard error after a run.
//!
//! Invariant: one line each; what happened, then what to do.

use std::time::Duration;

use fumehood::{Limits, Outcome, OutcomeKind, TimeoutClock};

use crate::output::note;

/// Denials that are shown one by one.
const SHOWN_DENIALS: usize = 20;

/// Tells what the program's own output does not.
/// With a policy or a budget, more is to be had from that.
pub(crate) fn tell(outcome: &Outcome, limits: &Limits, has_policy: bool, was_interrupted: bool) {
    for denial in outcome.denials.iter().take(SHOWN_DENIALS) {
        let times =
            if denial.count > 1 { format!(", {} times", denial.count) } else { String::new() };
        note(&format!(
            "denied {} {}{times}: {} ({}); {}",
            denial.operation, denial.target, denial.reason, denial.rule, denial.hint
        ));
    }
    if let Some(more) = outcome.denials.len().checked_sub(SHOWN_DENIALS).filter(|more| *more > 0) {
        note(&format!("{more} more calls were denied; --json lists them"));
    }
    for (name, dropped) in [("stdout", outcome.dropped.stdout), ("stderr", outcome.dropped.stderr)]
    {
        if dropped > 0 {
            note(&format!(
                "{dropped} bytes of {name} beyond the limit of {} were dropped; write large results \
                 to a file in a directory mounted with `:rw`",
                limits.broker.output_bytes
            ));
        }
    }
    match outcome.displays.len() {
        0 => {}
        1 => note("there was 1 rich output, which is not shown here; --json has it"),
        many => note(&format!(
            "there were {many} rich outputs, which are not shown here; --json has them"
        )),
    }
    if let Some(line) = ending(outcome, limits, has_policy, was_interrupted) {
        note(&line);
    }
}

/// How the run ended, unless the program itself has told.
fn ending(
    outcome: &Outcome,
    limits: &Limits,
    has_policy: bool,
    was_interrupted: bool,
) -> Option<String> {
    let more = |option: &str, key: &str| {
        if has_policy {
            format!("raise `{key}` of its [budget] or allow more with {option}")
        } else {
            format!("allow more with {option}")
        }
    };
    Some(match &outcome.kind {
        // A crash of the interpreter leaves no traceback.
        OutcomeKind::ScriptError => {
            let error = outcome.error.as_ref().filter(|error| error.traceback.is_empty())?;
            format!("{}; leave out what does that, such as bytecode made by hand", error.message)
        }
        // A traceback or the program's own words are on standard error.
        OutcomeKind::Completed | OutcomeKind::Exit => return None,
        OutcomeKind::Timeout { clock: TimeoutClock::Wall } => format!(
            "the run was stopped after {} of wall-clock time; {}",
            seconds(limits.wall),
            more("--timeout", "wall_s")
        ),
        OutcomeKind::Timeout { clock: TimeoutClock::Cpu } => format!(
            "the run was stopped after {} of processor time; {}",
            seconds(limits.cpu),
            more("--cpu", "cpu_s")
        ),
        OutcomeKind::Cancelled if was_interrupted => {
            "the run was stopped as you asked; what it had written to mounted directories is kept"
                .to_owned()
        }
        OutcomeKind::Cancelled => "the run was cancelled; start it again".to_owned(),
        OutcomeKind::MemoryLimit => format!(
            "the run needed more than {} MiB of memory and was stopped; {}",
            limits.memory_bytes >> 20,
            more("--memory", "memory_mb")
        ),
        OutcomeKind::StackExhausted => {
            "the run used up the stack and was stopped; nest less deeply, such as with a loop"
                .to_owned()
        }
        OutcomeKind::FuelExhausted => {
            "the run used up its fuel and was stopped; allow more with --fuel".to_owned()
        }
        OutcomeKind::BudgetExceeded { name } if name == "workspace" => {
            "the command wrote more than the workspace may hold and was stopped; remove what is not needed and run again".to_owned()
        }
        OutcomeKind::BudgetExceeded { name } => format!(
            "the run used up its budget `{name}` and was stopped; split the work into several runs"
        ),
        OutcomeKind::Refused { missing } => format!(
            "nothing was run because this is required: {}; provide it and run again",
            missing.join(", ")
        ),
        OutcomeKind::SandboxFault { reference } => format!(
            "the sandbox itself failed ({reference}); run again with FUMEHOOD_LOG=debug and report what it says"
        ),
    })
}

fn seconds(time: Duration) -> String {
    format!("{} s", time.as_secs_f64())
}
