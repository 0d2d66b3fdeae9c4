//! `cargo xtask guest`: builds the Python guest and commits it to `guest/dist`.
//!
//! Steps: find a compiler (`toolchain`), build, pre-initialise
//! (`snapshot`), export the globals and check the result (`finish`), compress,
//! and write down where it came from (`provenance`). The steps that need the
//! engine are compiled only with the feature `guest`; without it the command
//! calls itself again with the feature switched on.

#[cfg_attr(not(feature = "guest"), allow(dead_code, reason = "the build uses it"))]
pub(crate) mod digest;
#[cfg(feature = "guest")]
mod finish;
#[cfg(feature = "guest")]
mod make;
#[cfg(feature = "guest")]
mod provenance;
#[cfg(feature = "guest")]
mod snapshot;
#[cfg_attr(not(feature = "guest"), allow(dead_code, reason = "the build uses the rest"))]
mod toolchain;

use anyhow::{Context as _, Result, bail};
use std::path::{Path, PathBuf};

const USAGE: &str = "usage: cargo xtask guest [--setup | --check | --quick]
  (nothing)  build guest/dist
  --setup    install the Debian compiler and C library this needs
  --check    build elsewhere and compare with guest/dist
  --quick    build without link-time optimisation, for development";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Action {
    Build,
    Check,
    Quick,
}

/// Runs the command with the arguments after `guest`.
///
/// # Errors
/// The arguments are not known, or a step failed.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let root = repository()?;
    let arguments: Vec<_> = args.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        [] => act(&root, Action::Build, args),
        ["--check"] => act(&root, Action::Check, args),
        ["--quick"] => act(&root, Action::Quick, args),
        ["--setup"] => toolchain::set_up(&root),
        _ => bail!("{USAGE}"),
    }
}

#[cfg(feature = "guest")]
fn act(root: &Path, action: Action, _: &[String]) -> Result<()> {
    match action {
        Action::Build => make::build(root, "release"),
        Action::Quick => make::build(root, "quick"),
        Action::Check => make::check(root),
    }
}

#[cfg(not(feature = "guest"))]
fn act(root: &Path, _: Action, args: &[String]) -> Result<()> {
    // Say at once what is missing, before the engine is compiled.
    toolchain::Toolchain::find(root)?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = std::process::Command::new(cargo)
        .current_dir(root)
        // Not `--package`: selecting everything keeps the features, and so the
        // build of the engine, that the rest of the workspace has.
        .args(["run", "--release", "--bin", "xtask", "--features", "xtask/guest", "--", "guest"])
        .args(args)
        .status()
        .context("cargo could not be started")?;
    if !status.success() {
        bail!("`cargo xtask guest` failed");
    }
    Ok(())
}

/// The directory that holds `guest/`.
fn repository() -> Result<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = here.parent().context("xtask lies outside a repository")?;
    if !root.join("guest/Cargo.toml").is_file() {
        bail!("{} holds no guest", root.display());
    }
    Ok(root.to_owned())
}
