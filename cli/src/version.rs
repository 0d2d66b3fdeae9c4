//! `fumehood version`.

use serde_json::json;

use crate::args::VersionArgs;
use crate::error::CliError;
use crate::output;

/// Of the engine.
const WASMTIME: &str = env!("FUMEHOOD_WASMTIME_VERSION");
/// The tiers of this build.
const TIERS: &[&str] = &["wasm"];

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
            "tiers": TIERS,
        }));
    } else {
        output::print(&format!(
            "fumehood {version}\nguest     {}\nwasmtime  {WASMTIME}\nmemory    {memory}\ntiers     {}\n",
            fumehood::GUEST_DIGEST,
            TIERS.join(", "),
        ));
    }
    Ok(0)
}
