//! Digests of the committed guest, so that no start has to compute them.
#![allow(clippy::disallowed_methods, reason = "a build script reads its inputs")]
use sha2::{Digest, Sha256};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let artefact = "../guest/dist/guest.wasm.zst";
    println!("cargo:rerun-if-changed={artefact}");
    let bytes = std::fs::read(artefact)?;
    let digest: String = Sha256::digest(&bytes).iter().map(|b| format!("{b:02x}")).collect();
    println!("cargo:rustc-env=FUMEHOOD_GUEST_DIGEST={digest}");
    Ok(())
}
