//! `guest/dist/provenance.json`: where the artefact came from.

use serde::{Deserialize, Serialize};

/// What is written beside the artefact.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Provenance {
    /// Version of this record.
    pub(crate) version: u32,
    /// Digest of the sources; see `digest.rs`.
    pub source_sha256: String,
    /// Digest of `guest/Cargo.lock`.
    pub lock_sha256: String,
    /// Digest and size of the module.
    pub(crate) module: File,
    /// Digest and size of the compressed module.
    pub(crate) compressed: File,
    /// What it was built with.
    pub(crate) toolchain: Built,
}

/// A file's digest and size.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct File {
    /// Lower-case hexadecimal.
    pub sha256: String,
    /// In bytes.
    pub(crate) bytes: usize,
}

/// Compilers and flags.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Built {
    /// Which of the known toolchains.
    pub(crate) name: String,
    /// `rustc -vV`, one line each.
    pub(crate) rustc: Vec<String>,
    /// The C library's package, where it is not the compiler's own.
    pub(crate) c_library: Option<String>,
    /// Compiler flags, without paths.
    pub(crate) flags: Vec<String>,
    /// Cargo profile.
    pub(crate) profile: String,
}
