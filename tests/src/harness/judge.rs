//! Compares what was seen with what was expected.
//!
//! Invariant: an expectation is met by evidence alone: a typed outcome, an
//! error number, an exception's name, a rule's id, or exact output; never by
//! the absence of something.

use fumehood::{Outcome, OutcomeKind, TimeoutClock};

use super::attack::{Expected, STOPPED};
use super::observed::Observed;
use super::wat;

/// Whether the expectation is met; else what was seen instead.
///
/// # Errors
/// One sentence.
pub fn judge(expected: &Expected, observed: &Observed) -> Result<(), String> {
    if met(expected, observed) {
        Ok(())
    } else {
        Err(format!("expected {}, saw {}", describe(expected), seen(observed)))
    }
}

fn met(expected: &Expected, observed: &Observed) -> bool {
    match expected {
        Expected::AnyOf(list) => list.iter().any(|expected| met(expected, observed)),
        Expected::Refused(parts) => {
            refusal(observed).is_some_and(|reason| parts.iter().all(|part| reason.contains(part)))
        }
        Expected::Harmless(text) => match &observed.fact {
            Some(fact) => fact == text,
            None => observed.ran.last().is_some_and(|ran| {
                ran.outcome.is_success() && ran.outcome.stdout_text().trim_end() == *text
            }),
        },
        Expected::Stopped => observed.fact.as_deref() == Some(STOPPED),
        _ => observed.ran.last().is_some_and(|ran| met_by(expected, &ran.outcome)),
    }
}

fn met_by(expected: &Expected, outcome: &Outcome) -> bool {
    match expected {
        Expected::Denied { rule } => {
            goes_on(&outcome.kind) && outcome.denials.iter().any(|denial| denial.rule == *rule)
        }
        Expected::Errno(list) => {
            outcome.kind == OutcomeKind::Exit
                && list.iter().any(|errno| i32::from(errno.raw()) == outcome.exit_code)
        }
        Expected::Exception(names) => {
            outcome.kind == OutcomeKind::ScriptError
                && outcome
                    .error
                    .as_ref()
                    .is_some_and(|error| names.iter().any(|name| *name == error.type_name))
        }
        Expected::Ends(kinds) => {
            kinds.contains(&outcome.kind.as_str()) || kinds.contains(&with_clock(&outcome.kind))
        }
        Expected::AnyOf(_) | Expected::Refused(_) | Expected::Harmless(_) | Expected::Stopped => {
            false
        }
    }
}

/// A timeout with its clock, where an attack is about one of them.
fn with_clock(kind: &OutcomeKind) -> &'static str {
    match kind {
        OutcomeKind::Timeout { clock: TimeoutClock::Cpu } => "timeout cpu",
        OutcomeKind::Timeout { clock: TimeoutClock::Wall } => "timeout wall",
        other => other.as_str(),
    }
}

fn goes_on(kind: &OutcomeKind) -> bool {
    matches!(kind, OutcomeKind::Completed | OutcomeKind::ScriptError | OutcomeKind::Exit)
}

fn refusal(observed: &Observed) -> Option<String> {
    if observed.refused.is_some() {
        return observed.refused.clone();
    }
    match &observed.ran.last()?.outcome.kind {
        OutcomeKind::Refused { missing } => Some(missing.join("; ")),
        _ => None,
    }
}

fn describe(expected: &Expected) -> String {
    match expected {
        Expected::Denied { rule } => format!("a denial by rule `{rule}`"),
        Expected::Errno(list) => format!("one of the errors {list:?}"),
        Expected::Exception(names) => format!("one of the exceptions {names:?}"),
        Expected::Ends(kinds) => format!("an end by {kinds:?}"),
        Expected::Refused(parts) => format!("a refusal that names {parts:?}"),
        Expected::Harmless(text) => format!("nothing but {text:?}"),
        Expected::Stopped => "the error that it is known to end with".to_owned(),
        Expected::AnyOf(list) => list.iter().map(describe).collect::<Vec<_>>().join(", or "),
    }
}

fn seen(observed: &Observed) -> String {
    if let Some(reason) = &observed.refused {
        return format!("a refusal: {reason}");
    }
    let mut text = match &observed.fact {
        Some(fact) => format!("{fact:?}"),
        None => String::new(),
    };
    if let Some(ran) = observed.ran.last() {
        let outcome = &ran.outcome;
        text.push_str(&format!(
            " {:?}, exit code {}{}, stdout {:?}, stderr {:?}, denials {:?}",
            outcome.kind,
            outcome.exit_code,
            wat::step_of(outcome.exit_code),
            shorten(&outcome.stdout_text()),
            shorten(&outcome.stderr_text()),
            outcome.denials.iter().map(|denial| &denial.rule).collect::<Vec<_>>(),
        ));
    } else if observed.fact.is_none() {
        text.push_str("nothing");
    }
    text
}

/// The last part, where a traceback has its message.
fn shorten(text: &str) -> String {
    let characters = text.chars().count();
    text.chars().skip(characters.saturating_sub(400)).collect()
}
