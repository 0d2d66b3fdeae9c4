//! Native tiers: real processes inside the strongest boundary that the machine
//! offers, behind the same broker as the WASM tier.
//!
//! Invariant: a tier that is asked for and cannot give every guarantee it
//! names is refused before anything runs; there is no fall-back.
//!
//! This build has the names and the refusal only: no native tier can run yet,
//! and [`TierName::require`] says so.

use serde::Serialize;

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

    /// The tier itself, if this build can run it.
    ///
    /// # Errors
    /// [`TierError::Missing`] names the tier that cannot run.
    pub fn require(self) -> Result<Self, TierError> {
        match self {
            Self::Wasm => Ok(self),
            _ => Err(TierError::Missing(self)),
        }
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
    fn a_native_tier_is_refused_by_name() {
        for name in ["landlock", "docker", "seatbelt", "process"] {
            let tier: TierName = name.parse().unwrap_or(TierName::Wasm);
            assert_eq!(tier.as_str(), name);
            assert!(tier.require().is_err_and(|e| e.to_string().contains(name)));
        }
        assert!(matches!("wsam".parse::<TierName>(), Err(TierError::Unknown(_))));
    }
}
