//! `fumehood doctor`: what this machine can give, tier by tier.

use std::fmt::Write as _;
use std::path::Path;

use clap::Args;
use fumehood::native::{Guarantee, GuaranteeReport, GuaranteeState, NativeTier, Probe};
use fumehood_native_tiers::{
    Diagnosis, DockerTier, HelperTier, InsideReport, TierName, doctor, probe_inside,
};
use serde_json::json;

use crate::error::{BAD_FINDING, CliError};
use crate::native::TierArgs;
use crate::output;

/// Why there is nothing to ask about containers, and what to do.
const NO_ENGINE: &str = "there is no container engine here";
const START_ONE: &str = "start one or set DOCKER_HOST";

/// `fumehood doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    tier: TierArgs,
    /// Try every forbidden thing from inside
    #[arg(long)]
    probe: bool,
    /// Remove containers whose maker is gone
    #[arg(long)]
    clean: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Tells what every tier gives, or the one that is named; 1 if none of them is
/// a boundary or something was not prevented.
///
/// # Errors
/// One sentence.
pub(crate) fn run(args: &DoctorArgs) -> Result<i32, CliError> {
    let tried = tried_inside(args)?;
    let socket = DockerTier::find_socket();
    let removed = match (args.clean, &socket) {
        (false, _) => Vec::new(),
        (true, Some(socket)) => DockerTier::clean(socket)
            .map_err(|error| CliError::cannot_tell(format!("{error}; see that the engine runs")))?,
        (true, None) => return Err(CliError::cannot_tell(format!("{NO_ENGINE}; {START_ONE}"))),
    };
    let diagnosis = diagnosis(&args.tier, socket.as_deref());
    let inside = tried.map(|tier| probe_inside(&tier)).transpose();
    let inside = inside.map_err(|error| {
        CliError::cannot_tell(format!("{error}; `fumehood doctor` says what the tier lacks"))
    })?;
    if args.json {
        let _ = output::print_json(&json!({
            "diagnosis": diagnosis, "inside": inside, "removed_containers": removed,
        }));
    } else {
        let mut text = format!("{}\n", diagnosis.kernel);
        diagnosis.tiers.iter().for_each(|probe| tell(&mut text, probe));
        for id in &removed {
            let _ = writeln!(text, "removed the container {id}");
        }
        if let Some(report) = &inside {
            tell_inside(&mut text, report);
        }
        output::print(&text);
    }
    let open = inside.as_ref().is_some_and(|report| report.open().next().is_some());
    Ok(if diagnosis.has_boundary() && !open { 0 } else { BAD_FINDING })
}

/// The tier that `--probe` tries from inside.
fn tried_inside(args: &DoctorArgs) -> Result<Option<HelperTier>, CliError> {
    if !args.probe {
        return Ok(None);
    }
    match args.tier.tier.unwrap_or(TierName::Landlock) {
        TierName::Landlock => Ok(Some(HelperTier::landlock(args.tier.helper()))),
        TierName::Process => Ok(Some(HelperTier::process(args.tier.helper()))),
        name => Err(CliError::usage(format!(
            "nothing is tried from inside {}; leave --probe out, or name landlock or process",
            name.as_str()
        ))),
    }
}

/// What the tiers say of themselves, or the one that is named.
fn diagnosis(named: &TierArgs, socket: Option<&Path>) -> Diagnosis {
    let wanted = |name: TierName| named.tier.is_none_or(|tier| tier == name);
    let landlock = wanted(TierName::Landlock).then(|| HelperTier::landlock(named.helper()));
    let process = wanted(TierName::Process).then(|| HelperTier::process(named.helper()));
    let docker = socket.zip(named.image.clone()).filter(|_| wanted(TierName::Docker));
    let docker = docker.map(|(socket, image)| DockerTier::new(socket, image));
    let mut tiers: Vec<&dyn NativeTier> = Vec::new();
    tiers.extend(landlock.as_ref().map(|tier| tier as &dyn NativeTier));
    tiers.extend(docker.as_ref().map(|tier| tier as &dyn NativeTier));
    tiers.extend(process.as_ref().map(|tier| tier as &dyn NativeTier));
    let mut diagnosis = doctor(&tiers);
    if docker.is_none() {
        let at = diagnosis.tiers.iter().take_while(|probe| probe.tier == "landlock").count();
        diagnosis.tiers.insert(at, without_image(socket.is_some()));
    }
    diagnosis.tiers.retain(|probe| named.tier.is_none_or(|tier| tier.as_str() == probe.tier));
    diagnosis
}

/// The tier `docker` where there is nothing to ask: no engine, or no image to
/// ask it about.
fn without_image(engine: bool) -> Probe {
    let (reason, remedy) = if engine {
        ("no image is named", "name one with --image")
    } else {
        (NO_ENGINE, START_ONE)
    };
    let report = |guarantee| GuaranteeReport {
        guarantee,
        state: GuaranteeState::Missing,
        reason: reason.to_owned(),
        remedy: remedy.to_owned(),
    };
    Probe {
        tier: TierName::Docker.as_str().to_owned(),
        available: false,
        reason: reason.to_owned(),
        remedy: remedy.to_owned(),
        guarantees: Guarantee::ALL.into_iter().map(report).collect(),
    }
}

fn tell(text: &mut String, probe: &Probe) {
    let available = if probe.available { "can be used" } else { "cannot be used" };
    let _ = writeln!(text, "\n{}: {available}", probe.tier);
    if !probe.available {
        let _ = writeln!(text, "  {}; {}", probe.reason, probe.remedy);
        return;
    }
    for report in &probe.guarantees {
        let state = match report.state {
            GuaranteeState::Enforced => "enforced",
            GuaranteeState::Partial => "partial",
            GuaranteeState::Missing => "missing",
        };
        let _ = writeln!(text, "  {:<15} {state:<9} {}", report.guarantee.name(), report.reason);
        if !report.remedy.is_empty() {
            let _ = writeln!(text, "  {:<25} {}", "", report.remedy);
        }
    }
}

fn tell_inside(text: &mut String, report: &InsideReport) {
    let _ = writeln!(text, "\ntried from inside {}:", report.tier);
    for attempt in &report.attempts {
        let state = if attempt.prevented { "prevented" } else { "NOT PREVENTED" };
        let _ = writeln!(text, "  {:<32} {state:<14} {}", attempt.name, attempt.detail);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(tier: Option<TierName>) -> TierArgs {
        let helper = Some("/nowhere/fumehood-helper".into());
        TierArgs { tier, image: None, helper }
    }

    fn names(diagnosis: &Diagnosis) -> Vec<&str> {
        diagnosis.tiers.iter().map(|probe| probe.tier.as_str()).collect()
    }

    #[test]
    fn every_tier_is_told_of_also_one_that_cannot_be_asked() {
        for (socket, why) in [(Some(Path::new("/nowhere")), "image"), (None, "engine")] {
            let found = diagnosis(&named(None), socket);
            assert_eq!(names(&found), ["landlock", "docker", "process", "seatbelt"]);
            let docker = found.tiers.iter().find(|probe| probe.tier == "docker").unwrap();
            assert!(!docker.available && docker.reason.contains(why), "{docker:?}");
            assert_eq!(docker.guarantees.len(), Guarantee::ALL.len());
        }
    }

    #[test]
    fn the_tier_that_is_named_is_told_of_alone() {
        for name in [TierName::Landlock, TierName::Docker, TierName::Process, TierName::Seatbelt] {
            assert_eq!(names(&diagnosis(&named(Some(name)), None)), [name.as_str()]);
        }
        let args = |tier, probe| DoctorArgs { tier: named(tier), probe, clean: false, json: false };
        for (name, helper) in [
            (None, true),
            (Some(TierName::Landlock), true),
            (Some(TierName::Process), true),
            (Some(TierName::Docker), false),
            (Some(TierName::Seatbelt), false),
        ] {
            let tried = tried_inside(&args(name, true)).map(|tier| tier.is_some());
            assert_eq!(tried.is_ok_and(|tried| tried), helper, "{name:?}");
            assert!(matches!(tried_inside(&args(name, false)), Ok(None)), "{name:?}");
        }
    }
}
