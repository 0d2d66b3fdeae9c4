//! What this machine can give, tier by tier.
//!
//! What: [`doctor`] asks every tier what it guarantees here, by what or why not,
//! and what would change that; [`probe_inside`] shows the same from inside.
//!
//! Invariant: nothing is changed on the machine, and no guarantee is told that
//! was not found out by doing it.

use fumehood_host_fns::{
    Guarantee, GuaranteeReport, GuaranteeState, NativeError, NativeTier, Probe,
};
use serde::Serialize;

#[cfg(target_os = "linux")]
use crate::linux::HelperTier;
#[cfg(target_os = "linux")]
use crate::protocol::Attempt;

/// Everything that [`doctor`] found out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Diagnosis {
    /// The kernel, as it calls itself.
    pub kernel: String,
    /// Every native tier.
    pub tiers: Vec<Probe>,
}

impl Diagnosis {
    /// Whether a tier can be used here with everything that makes a boundary.
    #[must_use]
    pub fn has_boundary(&self) -> bool {
        let holds = |probe: &Probe, wanted: &Guarantee| {
            let mut states = probe.guarantees.iter().filter(|one| one.guarantee == *wanted);
            states.all(|one| one.state == GuaranteeState::Enforced)
        };
        self.tiers.iter().any(|probe| {
            probe.available && Guarantee::REQUIRED.iter().all(|wanted| holds(probe, wanted))
        })
    }
}

/// Asks every tier.
#[must_use]
pub fn doctor(tiers: &[&dyn NativeTier]) -> Diagnosis {
    let mut probes: Vec<Probe> = tiers.iter().map(|tier| tier.probe()).collect();
    if !probes.iter().any(|probe| probe.tier == "seatbelt") {
        probes.push(seatbelt());
    }
    Diagnosis { kernel: kernel(), tiers: probes }
}

/// The tier that only macOS has.
fn seatbelt() -> Probe {
    let reason = "this build makes the profile but starts nothing with it".to_owned();
    let remedy = "use another tier".to_owned();
    let report = |guarantee| GuaranteeReport {
        guarantee,
        state: GuaranteeState::Missing,
        reason: reason.clone(),
        remedy: remedy.clone(),
    };
    Probe {
        tier: "seatbelt".to_owned(),
        available: false,
        guarantees: Guarantee::ALL.into_iter().map(report).collect(),
        reason,
        remedy,
    }
}

#[cfg(target_os = "linux")]
fn kernel() -> String {
    let name = rustix::system::uname();
    let text = |part: &std::ffi::CStr| part.to_string_lossy().into_owned();
    format!("{} {} {}", text(name.sysname()), text(name.release()), text(name.machine()))
}

#[cfg(not(target_os = "linux"))]
fn kernel() -> String {
    std::env::consts::OS.to_owned()
}

/// What a tier of the helper prevents, tried from inside it.
#[cfg(target_os = "linux")]
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct InsideReport {
    /// The tier.
    pub tier: String,
    /// Every attempt, in a fixed order.
    pub attempts: Vec<Attempt>,
}

#[cfg(target_os = "linux")]
impl InsideReport {
    /// The attempts that were not prevented.
    pub fn open(&self) -> impl Iterator<Item = &Attempt> {
        self.attempts.iter().filter(|attempt| !attempt.prevented)
    }
}

/// Tries every forbidden thing from inside.
///
/// # Errors
/// [`NativeError`] if the tier cannot be used.
#[cfg(target_os = "linux")]
pub fn probe_inside(tier: &HelperTier) -> Result<InsideReport, NativeError> {
    let attempts = tier.attempts()?;
    Ok(InsideReport { tier: tier.name().to_owned(), attempts })
}
