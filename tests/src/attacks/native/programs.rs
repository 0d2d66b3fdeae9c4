//! Real programs, from the list that the tests of the tiers have too.

use std::sync::{Arc, OnceLock};

use serde::Deserialize;

use super::outside::Outside;
use super::{KERNEL_SAYS, in_both, run_in, said};
use crate::harness::machine;
use crate::harness::{
    Attack, Attempt, Capability, Expected, Observed, REACHED, STOPPED, Tier, World,
};

const REASON: &str = "the boundary gives no name, no right and no system call for it";
const BY_EVERY_TIER: &str = "the helper does it in every tier, before the program starts";

#[derive(Deserialize)]
struct File {
    attack: Vec<Program>,
}

/// One program; the list explains its members.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Program {
    id: String,
    case: String,
    property: String,
    attack: String,
    #[serde(default)]
    root_only: bool,
    control: Option<String>,
    stopped_by: Option<String>,
    needs: Option<String>,
    #[serde(rename = "gap_without_namespaces")]
    _gap: Option<String>,
}

/// The list, read once. An attack is data that lives as long as the process.
fn programs() -> &'static [Program] {
    static PROGRAMS: OnceLock<Vec<Program>> = OnceLock::new();
    PROGRAMS.get_or_init(|| {
        let text = include_str!("../../../../native-tiers/tests/boundary/attacks.toml");
        match toml::from_str::<File>(text) {
            Ok(file) => file.attack,
            Err(error) => panic!("the list of programs cannot be read: {error}"),
        }
    })
}

pub(super) fn all() -> Vec<Attack> {
    programs().iter().flat_map(attacks).collect()
}

fn attacks(program: &'static Program) -> Vec<Attack> {
    let (id, property) = (program.case.as_str(), program.property.as_str());
    let Some(control) = program.control.as_deref() else {
        return in_both(id, property, REASON, |tier, world| attempt(program, tier, world)).into();
    };
    // What the helper does without a boundary too.
    let without = move |world: &World<'_>| match control {
        "core-limit" if no_core_files() => Observed::waiting(Capability::Equipment),
        _ => plainly(program, world),
    };
    [Tier::Landlock, Tier::Process]
        .map(|tier| {
            Attack::host(id, property, move |world, _| attempt(program, tier, world))
                .tier(tier)
                .control(
                    Attempt::Host(Arc::new(move |world, _| without(world))),
                    Expected::Harmless(REACHED),
                )
                .expect(Expected::Stopped, BY_EVERY_TIER)
        })
        .into()
}

/// Whether what started this program has taken core files away already: then no
/// plain child can show that it may have them.
fn no_core_files() -> bool {
    use rustix::process::{Resource, getrlimit};
    getrlimit(Resource::Core).maximum.is_some()
}

/// What this machine lacks for it.
fn lacks(program: &Program) -> Option<Capability> {
    if program.root_only && !rustix::process::geteuid().is_root() {
        return Some(Capability::Root);
    }
    let needs = program.needs.as_ref()?;
    (!std::path::Path::new(needs).exists()).then_some(Capability::Equipment)
}

/// Runs it in a shell of its own, whose end is told.
fn attempt(program: &Program, tier: Tier, world: &World<'_>) -> Observed {
    if let Some(capability) = lacks(program) {
        return Observed::waiting(capability);
    }
    let outside = match Outside::new(world) {
        Ok(outside) => outside,
        Err(error) => return Observed::broken(error.to_string()),
    };
    let text = outside.fill(&program.attack);
    let result =
        run_in(world.stage(), tier, "\"$BASH\" -c \"$0\"; echo \"it ended with $?\"", |c| {
            c.argv.push(text.clone());
        });
    let result = match result {
        Ok(result) => result,
        Err(observed) => return observed,
    };
    let (stdout, stderr) = (result.stdout.text(), result.stderr.text());
    if !stdout.contains("it ended with ") {
        return Observed::broken(format!("{}: it did not end: {}", program.id, said(&result)));
    }
    if stdout.contains("REACHED") {
        return Observed::fact(REACHED);
    }
    let told = |text: &str| stdout.contains(text) || stderr.contains(text);
    let stopped = match &program.stopped_by {
        Some(text) => told(text),
        None => KERNEL_SAYS.iter().any(|text| told(text)),
    };
    if stopped {
        Observed::fact(STOPPED)
    } else {
        Observed::broken(format!("{}: it ended in a third way: {}", program.id, said(&result)))
    }
}

/// The same as a plain child of this process.
fn plainly(program: &Program, world: &World<'_>) -> Observed {
    let outside = match Outside::new(world) {
        Ok(outside) => outside,
        Err(error) => return Observed::broken(error.to_string()),
    };
    match machine::shell_output(&outside.fill(&program.attack)) {
        Ok(text) if text.contains("REACHED") => Observed::fact(REACHED),
        Ok(text) => Observed::fact(text),
        Err(error) => Observed::broken(error.to_string()),
    }
}
