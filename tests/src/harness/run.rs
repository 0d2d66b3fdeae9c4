//! Carries out one attack and everything that has to be looked at around it.
//!
//! Invariant: the verdict is an error unless the control was shown, the attempt
//! was made, and the host was found as it was before.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use fumehood::{Outcome, OutcomeKind, TimeoutClock};

use super::attack::{Attack, Attempt, Control, Expected, Setting};
use super::judge::judge;
use super::machine;
use super::observed::{Observed, Ran};
use super::report::{Bucket, Finding, Verdict};
use super::stage::Stage;
use super::world::{OUTSIDE, World};

/// How late a typed outcome may come after its deadline: ten times what is
/// promised, because other work may run on this machine. The figure itself is in
/// the notes of each finding, as `deadline + … ms`.
const MOST_OVERSHOOT: Duration = Duration::from_millis(500);
/// How much more memory may be resident after an attack than before it, and
/// how long the host has to give it back.
const MOST_MEMORY_KEPT: u64 = 48 << 20;
const TIME_TO_FREE: Duration = Duration::from_secs(15);
/// A property or reason that says less than this says nothing.
const LEAST_WORDS: usize = 4;
/// A gap needs a rationale.
const LEAST_GAP_BYTES: usize = 120;

/// Runs one attack.
#[must_use]
pub fn run(stage: &Stage, attack: &Attack) -> Finding {
    let bucket = Bucket::of(&attack.expected);
    let mut start = machine::now();
    let finding = |verdict, notes, start: Instant| Finding {
        id: attack.id,
        tier: attack.tier,
        bucket,
        verdict,
        notes,
        took: start.elapsed(),
    };
    if let Err(problem) = check_definition(attack) {
        return finding(Verdict::Error(problem), Vec::new(), start);
    }
    let _turn = stage.turn(attack.alone);
    start = machine::now();
    let panics_before = Stage::panics();
    let attempt = catch_unwind(AssertUnwindSafe(|| carry_out(stage, attack)));
    let (verdict, notes) = match attempt {
        Ok(Ok((verdict, notes))) => (verdict, notes),
        Ok(Err(problem)) => (Verdict::Error(problem), Vec::new()),
        Err(_) => (Verdict::Error("the attempt panicked in the harness".to_owned()), Vec::new()),
    };
    if !attack.panics && Stage::panics() != panics_before {
        return finding(Verdict::Unexpected("the host panicked".to_owned()), notes, start);
    }
    finding(verdict, notes, start)
}

fn check_definition(attack: &Attack) -> Result<(), String> {
    let words = |text: &str| text.split_whitespace().count();
    if words(attack.property) < LEAST_WORDS {
        return Err("the attack states no property".to_owned());
    }
    if words(attack.reason) < LEAST_WORDS {
        return Err("the attack gives no reason".to_owned());
    }
    if matches!(attack.control, Control::Absent(why) if words(why) < LEAST_WORDS) {
        return Err("the attack has no control and does not say why".to_owned());
    }
    if attack.known_gap.is_some_and(|why| why.len() < LEAST_GAP_BYTES) {
        return Err("the known gap has no rationale".to_owned());
    }
    Ok(())
}

fn carry_out(stage: &Stage, attack: &Attack) -> Result<(Verdict, Vec<String>), String> {
    if let Control::Shown { setting, attempt, expected } = &attack.control {
        let world = World::new(stage).map_err(|error| error.to_string())?;
        let observed = world.carry_out(setting, attempt);
        if let Some(capability) = observed.waiting {
            return Ok((Verdict::Waiting(capability), Vec::new()));
        }
        if let Some(why) = observed.broken {
            return Err(format!("the control could not be made: {why}"));
        }
        judge(expected, &observed).map_err(|why| format!("the control failed: {why}"))?;
    }
    let world = World::new(stage).map_err(|error| error.to_string())?;
    let memory_before = machine::resident_bytes();
    let observed = world.carry_out(&attack.setting, &attack.attempt);
    if let Some(capability) = observed.waiting {
        return Ok((Verdict::Waiting(capability), observed.notes));
    }
    if let Some(why) = observed.broken {
        return Err(format!("the attempt could not be made: {why}"));
    }
    let mut notes = observed.notes.clone();
    notes.extend(overshoot(&observed.ran));
    notes.extend(ended(&attack.expected, &observed));
    if let Err(harm) = host_unaffected(stage, &world, attack, &observed, memory_before, &mut notes)
    {
        return Ok((Verdict::Unexpected(harm), notes));
    }
    let verdict = match (judge(&attack.expected, &observed), attack.known_gap) {
        (Ok(()), None) => Verdict::Blocked,
        (Ok(()), Some(_)) => {
            Verdict::Unexpected("the known gap is closed: take its rationale away".to_owned())
        }
        (Err(_), Some(_)) => Verdict::KnownGap,
        (Err(why), None) => Verdict::Unexpected(why),
    };
    Ok((verdict, notes))
}

/// Which of several ends it was.
fn ended(expected: &Expected, observed: &Observed) -> Option<String> {
    if !matches!(expected, Expected::AnyOf(_)) {
        return None;
    }
    let outcome = &observed.ran.last()?.outcome;
    let error =
        outcome.error.as_ref().map_or(String::new(), |error| format!(" {}", error.type_name));
    Some(format!("{}{error}", outcome.kind.as_str()))
}

/// How late timeouts came.
fn overshoot(ran: &[Ran]) -> Option<String> {
    let late = ran
        .iter()
        .filter(|ran| ran.outcome.kind == OutcomeKind::Timeout { clock: TimeoutClock::Wall })
        .map(|ran| ran.took.saturating_sub(ran.wall))
        .max()?;
    Some(format!("deadline + {:.1} ms", late.as_secs_f64() * 1000.0))
}

fn host_unaffected(
    stage: &Stage,
    world: &World<'_>,
    attack: &Attack,
    observed: &Observed,
    memory_before: Option<u64>,
    notes: &mut Vec<String>,
) -> Result<(), String> {
    for ran in &observed.ran {
        if ran.took > ran.wall.saturating_add(MOST_OVERSHOOT) {
            return Err(format!(
                "the answer came {:?} after the start, limit {:?}",
                ran.took, ran.wall
            ));
        }
        tells_nothing_of_the_host(stage, world, &ran.outcome)?;
    }
    if let Some(change) = world.changed_outside() {
        return Err(change);
    }
    // A module's own next run was made in `World::program`.
    if !matches!(attack.attempt, Attempt::Module(_)) {
        let next = world.cell(&Setting::plain(), "print(6 * 7)");
        let works = next
            .ran
            .last()
            .is_some_and(|ran| ran.outcome.is_success() && ran.outcome.stdout_text() == "42\n");
        if !works {
            return Err(format!(
                "the next run does not work: {:?}",
                next.ran.last().map(|ran| &ran.outcome.kind)
            ));
        }
    }
    if attack.about_memory {
        memory_is_back(memory_before, notes)?;
    }
    Ok(())
}

fn tells_nothing_of_the_host(
    stage: &Stage,
    world: &World<'_>,
    outcome: &Outcome,
) -> Result<(), String> {
    let json = outcome.to_json().to_string();
    let displays = outcome.displays.iter().map(|display| String::from_utf8_lossy(&display.bytes));
    let mut texts = vec![json, outcome.stdout_text(), outcome.stderr_text()];
    texts.extend(displays.map(std::borrow::Cow::into_owned));
    let top = world.path("").display().to_string();
    let host = stage.host_details().iter().map(String::as_str);
    for detail in host.chain([top.trim_end_matches('/'), "canary-host-directory", OUTSIDE]) {
        if texts.iter().any(|text| text.contains(detail)) {
            return Err(format!("a detail of the host is in the outcome: {detail:?}"));
        }
    }
    Ok(())
}

fn memory_is_back(before: Option<u64>, notes: &mut Vec<String>) -> Result<(), String> {
    let Some(before) = before else {
        notes.push("memory not measured: there is no /proc".to_owned());
        return Ok(());
    };
    let start = machine::now();
    loop {
        let kept = machine::resident_bytes().unwrap_or(0).saturating_sub(before);
        if kept <= MOST_MEMORY_KEPT {
            notes.push(format!("memory kept {} KiB", kept >> 10));
            return Ok(());
        }
        if start.elapsed() > TIME_TO_FREE {
            return Err(format!("the host still holds {} MiB more than before", kept >> 20));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
