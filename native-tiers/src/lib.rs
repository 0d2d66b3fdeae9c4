//! Native tiers: real processes inside the strongest boundary that the machine
//! offers, behind the same broker as the WASM tier.
//!
//! Invariant: a tier that is asked for and cannot give every guarantee it
//! names is refused before anything runs; there is no fall-back.
//!
//! What: the tiers `landlock` and `process` through `fumehood-helper`, `docker`
//! through the engine's own interface, `seatbelt` as the profile that macOS is
//! given, and [`doctor`], which tells what of all that this machine can give.

#[cfg(all(feature = "docker", target_os = "linux"))]
mod docker;
mod doctor;
#[cfg(target_os = "linux")]
mod helper;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
#[doc(hidden)]
pub mod protocol;
mod seatbelt;

use serde::Serialize;

#[cfg(all(feature = "docker", target_os = "linux"))]
pub use docker::{DockerTier, ImageError, ImageId};
pub use doctor::{Diagnosis, doctor};
#[cfg(target_os = "linux")]
pub use doctor::{InsideReport, probe_inside};
#[cfg(target_os = "linux")]
pub use helper::{HELPER_NAME, Helper};
#[cfg(target_os = "linux")]
pub use linux::HelperTier;
#[cfg(target_os = "linux")]
pub use protocol::Attempt;
pub use seatbelt::{SANDBOX_EXEC, SeatbeltError, SeatbeltMount, SeatbeltProfile};

/// The tiers by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TierName {
    /// RustPython inside wasmtime.
    Wasm,
    /// Landlock and seccomp, no root needed.
    Landlock,
    /// A container of a Docker-compatible engine.
    Docker,
    /// macOS Seatbelt.
    Seatbelt,
    /// A plain process: no boundary.
    Process,
}

/// A tier cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TierError {
    /// No tier has that name.
    #[error("`{0}` is not a tier; use one of wasm, landlock, docker, seatbelt, process")]
    Unknown(String),
    /// The tier is named correctly but this build cannot run it.
    #[error("the {} tier is missing from this build; use the wasm tier", .0.as_str())]
    Missing(TierName),
}

impl TierName {
    /// The name as it is written in policies and on the command line.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Wasm => "wasm",
            Self::Landlock => "landlock",
            Self::Docker => "docker",
            Self::Seatbelt => "seatbelt",
            Self::Process => "process",
        }
    }

    /// The tier itself, if this build can run it on some machine.
    ///
    /// # Errors
    /// [`TierError::Missing`] names the tier that cannot run.
    pub fn require(self) -> Result<Self, TierError> {
        let here = match self {
            Self::Wasm => true,
            Self::Landlock | Self::Process => cfg!(target_os = "linux"),
            Self::Docker => cfg!(all(feature = "docker", target_os = "linux")),
            Self::Seatbelt => false,
        };
        if here { Ok(self) } else { Err(TierError::Missing(self)) }
    }
}

impl std::str::FromStr for TierName {
    type Err = TierError;

    fn from_str(name: &str) -> Result<Self, TierError> {
        [Self::Wasm, Self::Landlock, Self::Docker, Self::Seatbelt, Self::Process]
            .into_iter()
            .find(|tier| tier.as_str() == name)
            .ok_or_else(|| TierError::Unknown(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiers_are_known_by_name_and_refused_by_it() {
        for name in ["wasm", "landlock", "docker", "seatbelt", "process"] {
            let tier: TierName = name.parse().unwrap();
            assert_eq!(tier.as_str(), name);
            if let Err(error) = tier.require() {
                assert!(error.to_string().contains(name));
            }
        }
        assert!(TierName::Seatbelt.require().is_err());
        assert!(matches!("wsam".parse::<TierName>(), Err(TierError::Unknown(_))));
    }
}
