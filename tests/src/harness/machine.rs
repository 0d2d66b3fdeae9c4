//! The harness's own view of the machine it runs on: time, memory, files and
//! the details that no attack may learn.
//!
//! Invariant: this is the only module of the harness that reads the host's
//! environment; nothing of it is given to a guest.
#![allow(clippy::disallowed_methods, reason = "this module is the adapter of the harness")]

use std::path::{Path, PathBuf};
use std::time::Instant;

/// Whether the long versions run: `FUMEHOOD_TEST_FULL=1`.
#[must_use]
pub fn is_full() -> bool {
    std::env::var("FUMEHOOD_TEST_FULL").is_ok_and(|value| value == "1")
}

/// Now, on the monotonic clock.
#[must_use]
pub fn now() -> Instant {
    Instant::now()
}

/// A figure of this process from `/proc/self/status`, in bytes.
fn status_bytes(field: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with(field))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Resident memory of this process that is not shared with files, in bytes.
#[must_use]
pub fn resident_bytes() -> Option<u64> {
    status_bytes("RssAnon:")
}

/// The variables whose values no attack may learn. The test binary starts
/// itself with values that occur nowhere else.
pub const HOST_VARIABLES: &[&str] = &["HOME", "USER", "LOGNAME", "FUMEHOOD_ATTACK_CANARY"];

/// Texts that identify this host or its user, where they are distinctive
/// enough to be looked for.
#[must_use]
pub fn host_details() -> Vec<String> {
    let mut details: Vec<String> =
        HOST_VARIABLES.iter().filter_map(|name| std::env::var(name).ok()).collect();
    details.extend(std::env::current_dir().ok().map(|path| path.display().to_string()));
    details.extend(std::env::current_exe().ok().map(|path| path.display().to_string()));
    details.extend(read(Path::new("/proc/sys/kernel/hostname")).map(|name| name.trim().to_owned()));
    details.push(std::env::temp_dir().join("").display().to_string());
    // Too short to be of this host alone, or the guest's own.
    details.retain(|detail| {
        detail.len() >= 8 && !"/home/agent /tmp/ fumehood localhost".contains(detail.as_str())
    });
    details.sort();
    details.dedup();
    details
}

/// The home directory of whoever runs the harness.
#[must_use]
pub fn home() -> PathBuf {
    std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default()
}

/// The text of a file of the host.
#[must_use]
pub fn read(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// The bytes of a file of the host.
#[must_use]
pub fn read_bytes(path: &Path) -> Option<Vec<u8>> {
    std::fs::read(path).ok()
}

/// Writes a file of the host.
///
/// # Errors
/// The system's reason.
pub fn write(path: &Path, contents: impl AsRef<[u8]>) -> std::io::Result<()> {
    std::fs::write(path, contents)
}

/// Makes a directory and those above it.
///
/// # Errors
/// The system's reason.
pub fn make_directory(path: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(path)
}

/// Moves a file or directory of the host.
///
/// # Errors
/// The system's reason.
pub fn rename(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::rename(from, to)
}

/// Removes a file of the host.
///
/// # Errors
/// The system's reason.
pub fn remove(path: &Path) -> std::io::Result<()> {
    std::fs::remove_file(path)
}

/// Everything below a directory, names and contents, in a comparable form.
#[must_use]
pub fn tree(root: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    let mut pending = vec![root.to_owned()];
    while let Some(directory) = pending.pop() {
        let Ok(entries) = std::fs::read_dir(&directory) else { continue };
        for entry in entries.flatten() {
            let path = entry.path();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                pending.push(path.clone());
                found.push((path, Vec::new()));
            } else {
                let contents = std::fs::read(&path).unwrap_or_default();
                found.push((path, contents));
            }
        }
    }
    found.sort();
    found
}

/// The top of the source tree, if this runs from one.
#[must_use]
pub fn source_tree() -> Option<PathBuf> {
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).parent()?;
    tree.join("runtime/src").is_dir().then(|| tree.to_owned())
}
