//! Which engine this build has, from the lock file, for `fumehood version`.
#![allow(clippy::disallowed_methods, reason = "a build script reads its inputs")]

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let lock = "../Cargo.lock";
    println!("cargo:rerun-if-changed={lock}");
    let text = std::fs::read_to_string(lock)?;
    let version = text
        .split("[[package]]")
        .find(|package| package.lines().any(|line| line == "name = \"wasmtime\""))
        .and_then(|package| package.lines().find_map(|line| line.strip_prefix("version = ")))
        .ok_or("Cargo.lock has no wasmtime")?;
    println!("cargo:rustc-env=FUMEHOOD_WASMTIME_VERSION={}", version.trim_matches('"'));
    Ok(())
}
