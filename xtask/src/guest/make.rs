//! The whole build, and the comparison with what is committed.

use super::digest::{digest, source_digest};
use super::finish::{Surface, examine, finish};
use super::provenance::{Built, File, Provenance};
use super::snapshot;
use super::toolchain::Toolchain;
use anyhow::{Context as _, Result, anyhow, bail};
use std::fs;
use std::path::Path;

/// Highest zstd level; its window is what every decoder takes.
const LEVEL: i32 = 22;
/// The repository holds every version of the artefact: keep it small.
const MOST_COMPRESSED_BYTES: usize = 13 << 20;

const MODULE: &str = "guest.wasm.zst";
const SURFACE: &str = "surface.json";
const PROVENANCE: &str = "provenance.json";

struct Artefact {
    compressed: Vec<u8>,
    surface: Surface,
    provenance: Provenance,
}

/// Builds into `guest/dist`.
///
/// # Errors
/// A step failed; nothing was written then.
pub(crate) fn build(root: &Path, profile: &str) -> Result<()> {
    let target = root.join("guest/target");
    let artefact = make(root, &target, profile)?;
    let dist = root.join("guest/dist");
    fs::create_dir_all(&dist)?;
    fs::write(dist.join(MODULE), &artefact.compressed)?;
    fs::write(dist.join(SURFACE), json(&artefact.surface)?)?;
    fs::write(dist.join(PROVENANCE), json(&artefact.provenance)?)?;
    println!(
        "guest/dist/{MODULE}: {} bytes, {} uncompressed",
        artefact.provenance.compressed.bytes, artefact.provenance.module.bytes
    );
    Ok(())
}

/// Builds in a place of its own and compares with `guest/dist`.
///
/// # Errors
/// A step failed or the results differ.
pub(crate) fn check(root: &Path) -> Result<()> {
    let dist = root.join("guest/dist");
    let committed: Provenance = serde_json::from_slice(&fs::read(dist.join(PROVENANCE))?)
        .context("provenance.json is not of this version")?;
    let compressed = fs::read(dist.join(MODULE))?;
    if digest(&compressed) != committed.compressed.sha256 {
        bail!("{MODULE} is not what provenance.json describes");
    }
    let module = zstd::decode_all(compressed.as_slice())?;
    let surface = json(&examine(&module)?)?;
    if surface != fs::read_to_string(dist.join(SURFACE))? {
        bail!("{SURFACE} is not what {MODULE} has");
    }
    if source_digest(root)? != committed.source_sha256 {
        bail!("the sources changed since {MODULE} was built; run `cargo xtask guest`");
    }
    let toolchain = Toolchain::find(root)?;
    if built(root, &toolchain, &committed.toolchain.profile)? != committed.toolchain {
        println!(
            "This toolchain is another than the one {MODULE} was built with, so bytes cannot be \
             compared. Run the conformance suite instead: `cargo test --release --workspace --test conformance`."
        );
        return Ok(());
    }
    let target = root.join("guest/target/check");
    let artefact = make(root, &target, &committed.toolchain.profile)?;
    if artefact.provenance.module != committed.module {
        bail!("the rebuilt module differs from {MODULE}");
    }
    println!("The rebuilt module is the committed one, byte for byte.");
    Ok(())
}

fn make(root: &Path, target: &Path, profile: &str) -> Result<Artefact> {
    let toolchain = Toolchain::find(root)?;
    println!("toolchain: {}", toolchain.name);
    let built = built(root, &toolchain, profile)?;
    let plain = fs::read(toolchain.build(root, target, profile)?)?;
    println!("built: {} bytes; pre-initialising", plain.len());
    let snapshot = snapshot::initialise(&plain)
        .map_err(|error| anyhow!("the guest could not be initialised: {error:?}"))?;
    let finished = finish(&snapshot)?;
    refuse_paths(root, &finished.module)?;
    println!("initialised: {} bytes; compressing", finished.module.len());
    let compressed = zstd::encode_all(finished.module.as_slice(), LEVEL)?;
    if profile == "release" && compressed.len() > MOST_COMPRESSED_BYTES {
        bail!(
            "the artefact has {} bytes, at most {MOST_COMPRESSED_BYTES} are kept",
            compressed.len()
        );
    }
    let provenance = Provenance {
        version: 1,
        source_sha256: source_digest(root)?,
        lock_sha256: digest(&fs::read(root.join("guest/Cargo.lock"))?),
        module: file(&finished.module),
        compressed: file(&compressed),
        toolchain: built,
    };
    Ok(Artefact { compressed, surface: finished.surface, provenance })
}

fn built(root: &Path, toolchain: &Toolchain, profile: &str) -> Result<Built> {
    Ok(Built {
        name: toolchain.name.to_owned(),
        rustc: toolchain.version()?.lines().map(str::to_owned).collect(),
        c_library: toolchain.library_version(root)?,
        flags: toolchain.stated_flags(),
        profile: profile.to_owned(),
    })
}

/// A path of the building machine must not travel with the artefact.
fn refuse_paths(root: &Path, module: &[u8]) -> Result<()> {
    let home = std::env::var("HOME").unwrap_or_default();
    for path in [root.to_string_lossy().into_owned(), home] {
        let needle = format!("{path}/");
        let found = path.len() > 1
            && module.windows(needle.len()).any(|window| window == needle.as_bytes());
        if found {
            bail!("the artefact contains the path {path} of this machine");
        }
    }
    Ok(())
}

fn file(bytes: &[u8]) -> File {
    File { sha256: digest(bytes), bytes: bytes.len() }
}

fn json<T: serde::Serialize>(value: &T) -> Result<String> {
    Ok(serde_json::to_string_pretty(value)? + "\n")
}
