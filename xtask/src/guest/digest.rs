//! The digest of everything the guest artefact is made from.
//!
//! Needs `sha2` and the standard library only, so that a test can hold the
//! committed artefact to its sources without the build tools.
//! Invariant: the digest depends on relative names and contents, never on the
//! place of the checkout or on file times.

use sha2::{Digest, Sha256};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Files and directories below the repository that the artefact is made from.
const SOURCES: &[&str] = &[
    "guest-abi/Cargo.toml",
    "guest-abi/src",
    "guest/Cargo.lock",
    "guest/Cargo.toml",
    "guest/build.rs",
    "guest/python",
    "guest/src",
    "guest/vendor",
];

/// The lower-case hexadecimal SHA-256 of the guest's sources below `root`.
///
/// # Errors
/// A source cannot be read.
pub(crate) fn source_digest(root: &Path) -> io::Result<String> {
    let mut files = Vec::new();
    for source in SOURCES {
        collect(root, Path::new(source), &mut files)?;
    }
    files.sort();
    let mut hasher = Sha256::new();
    for file in files {
        let content = fs::read(root.join(&file))?;
        let name = file.to_string_lossy().replace('\\', "/");
        hasher.update(format!("{name}\0{}\0", content.len()));
        hasher.update(&content);
    }
    Ok(hex(&hasher.finalize()))
}

/// The lower-case hexadecimal SHA-256 of some bytes.
#[must_use]
pub(crate) fn digest(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn collect(root: &Path, relative: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    let path = root.join(relative);
    if !path.is_dir() {
        files.push(relative.to_owned());
        return Ok(());
    }
    for entry in fs::read_dir(path)? {
        let name = entry?.file_name();
        // What the interpreter and editors leave behind is no source.
        if name != "__pycache__" && !name.to_string_lossy().starts_with('.') {
            collect(root, &relative.join(name), files)?;
        }
    }
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
