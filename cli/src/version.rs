//! `fumehood version`.

use fumehood_native_tiers::TierName;
use serde_json::json;

use crate::args::VersionArgs;
use crate::error::CliError;
use crate::output;

/// Of the engine.
const WASMTIME: &str = env!("FUMEHOOD_WASMTIME_VERSION");
/// Every tier there is.
const TIERS: [TierName; 5] =
    [TierName::Wasm, TierName::Landlock, TierName::Docker, TierName::Seatbelt, TierName::Process];

/// Those that this build can run; what this machine gives is for `doctor` to
/// say.
fn tiers() -> Vec<&'static str> {
    TIERS.into_iter().filter_map(|tier| tier.require().ok()).map(TierName::as_str).collect()
}

/// Prints it.
pub(crate) fn run(args: &VersionArgs) -> Result<i32, CliError> {
    let version = env!("CARGO_PKG_VERSION");
    let memory = fumehood::memory_path();
    if args.json {
        let _ = output::print_json(&json!({
            "version": version,
            "guest": fumehood::GUEST_DIGEST,
            "wasmtime": WASMTIME,
            "memory_path": memory,
            "tiers": tiers(),
        }));
    } else {
        output::print(&format!(
            "fumehood {version}\nguest     {}\nwasmtime  {WASMTIME}\nmemory    {memory}\ntiers     {}\n",
            fumehood::GUEST_DIGEST,
            tiers().join(", "),
        ));
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tier_that_can_be_named_and_run_is_told() {
        let known = TIERS.map(TierName::as_str);
        assert!(known.iter().all(|name| name.parse::<TierName>().is_ok()));
        assert_eq!(tiers().first(), Some(&"wasm"));
        assert!(!tiers().contains(&"seatbelt"));
        for name in ["landlock", "process"] {
            assert_eq!(tiers().contains(&name), cfg!(target_os = "linux"), "{name}");
        }
    }
}
