//! `fumehood doctor`: what this machine can give, tier by tier.

use std::fmt::Write as _;

use clap::Args;
use fumehood::native::{GuaranteeState, NativeTier, Probe};
use fumehood_native_tiers::{DockerTier, HelperTier, InsideReport, doctor, probe_inside};
use serde_json::json;

use crate::error::{BAD_FINDING, CliError};
use crate::native::TierArgs;
use crate::output;

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

/// Tells what every tier gives; 1 if none of them is a boundary or something
/// was not prevented.
///
/// # Errors
/// One sentence.
pub(crate) fn run(args: &DoctorArgs) -> Result<i32, CliError> {
    let landlock = HelperTier::landlock(args.tier.helper());
    let process = HelperTier::process(args.tier.helper());
    let socket = DockerTier::find_socket();
    let docker = socket.as_deref().zip(args.tier.image.clone());
    let docker = docker.map(|(socket, image)| DockerTier::new(socket, image));
    let mut tiers: Vec<&dyn NativeTier> = vec![&landlock];
    tiers.extend(docker.as_ref().map(|docker| docker as &dyn NativeTier));
    tiers.push(&process);
    let diagnosis = doctor(&tiers);
    let removed = match socket.as_deref().filter(|_| args.clean) {
        Some(socket) => DockerTier::clean(socket)
            .map_err(|error| CliError::cannot_tell(format!("{error}; see that the engine runs")))?,
        None => Vec::new(),
    };
    let inside = if args.probe {
        let report = probe_inside(&landlock);
        Some(
            report
                .map_err(|error| CliError::cannot_tell(format!("{error}; see the tier above")))?,
        )
    } else {
        None
    };
    if args.json {
        let _ = output::print_json(&json!({
            "diagnosis": diagnosis, "inside": inside, "removed_containers": removed,
        }));
    } else {
        let mut text = format!("{}\n", diagnosis.kernel);
        diagnosis.tiers.iter().for_each(|probe| tell(&mut text, probe));
        if docker.is_none() {
            text.push_str("\ndocker: not asked; name an image with --image\n");
        }
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
