//! `cargo xtask tidy`: what no compiler checks.
//!
//! Invariant: every rule names the file, the line and what to do.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};

/// Longest source file, in lines; split it along a seam a reader would see.
const MAX_LINES: usize = 650;

/// Hosts of package registries, labels reversed, so that this file does not
/// name them itself. No source file or document may.
const REGISTRY_HOSTS: &[&str] = &["io.crates", "org.pypi", "org.npmjs", "org.debian.deb"];

/// Starts of absolute paths that only exist on a developer's machine.
const MACHINE_PATHS: &[&[&str]] =
    &[&["", "work", "main"], &["", "root", ".pyenv"], &["", "root", ".cargo"]];

/// Modules that may contain `unsafe`, each with its SAFETY notes.
const UNSAFE_MODULES: &[&str] = &[
    "guest/src/",
    "native-tiers/src/bin/helper/raw.rs",
    "runtime/src/engine.rs",
    "runtime/src/memory/",
    "tests/",
    "xtask/src/guest/",
    "xtask/src/tidy.rs",
];

/// Third-party sources that are patched here, with their licence and a
/// documented difference; their style is their authors'.
const VENDORED: &str = "guest/vendor/";

/// Checks every tracked or new file of the tree.
///
/// # Errors
/// When git cannot list the files.
pub(crate) fn run() -> anyhow::Result<bool> {
    let root = super::root();
    let listed = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(&root)
        .output()
        .context("git is needed to list the files")?;
    if !listed.status.success() {
        bail!("git cannot list the files of this folder");
    }
    let mut findings = Vec::new();
    let mut variables = Variables::default();
    for name in String::from_utf8_lossy(&listed.stdout).lines() {
        check_file(&root, name, &mut findings);
        variables.look_at(&root, name);
    }
    findings.extend(variables.unset());
    for finding in &findings {
        eprintln!("{finding}");
    }
    Ok(findings.is_empty())
}

fn check_file(root: &Path, name: &str, findings: &mut Vec<String>) {
    let Ok(text) = std::fs::read_to_string(root.join(name)) else { return };
    if name.starts_with(VENDORED) {
        if REGISTRY_HOSTS.iter().any(|host| text.contains(&forward(host))) {
            findings.push(format!("{name}: names a package registry; say it without the host"));
        }
        return;
    }
    let is_configuration = name.ends_with("Cargo.lock") || name == "deny.toml";
    if name.ends_with(".rs") && text.lines().count() > MAX_LINES {
        findings.push(format!("{name}: more than {MAX_LINES} lines; split it"));
    }
    for (index, line) in text.lines().enumerate() {
        let at = format!("{name}:{}", index.saturating_add(1));
        if !is_configuration && REGISTRY_HOSTS.iter().any(|host| line.contains(&forward(host))) {
            findings.push(format!("{at}: names a package registry; say it without the host"));
        }
        if MACHINE_PATHS.iter().any(|path| line.contains(&path.join("/"))) {
            findings.push(format!("{at}: a path of one machine; make it relative"));
        }
        let unsafe_code = name.ends_with(".rs")
            && (line.contains("unsafe {") || line.contains("unsafe fn"))
            && !line.trim_start().starts_with("//");
        if unsafe_code && !UNSAFE_MODULES.iter().any(|module| name.starts_with(module)) {
            findings.push(format!(
                "{at}: unsafe code outside the listed modules; list it with its reason or remove it"
            ));
        }
    }
}

/// Variables of our own that some code reads, by name, and those that anything
/// else speaks of.
#[derive(Default)]
struct Variables {
    read: BTreeMap<String, String>,
    known: BTreeSet<String>,
}

impl Variables {
    const PREFIX: &str = "FUMEHOOD_";

    fn look_at(&mut self, root: &Path, name: &str) {
        let is_text = [".rs", ".md", ".toml"].iter().any(|end| name.ends_with(end));
        if !is_text || name.starts_with(VENDORED) {
            return;
        }
        let Ok(text) = std::fs::read_to_string(root.join(name)) else { return };
        for (index, line) in text.lines().enumerate() {
            for (at, _) in line.match_indices(Self::PREFIX) {
                let (before, from) = line.split_at(at);
                let end = from.find(|c: char| !c.is_ascii_uppercase() && c != '_');
                let variable = from.get(..end.unwrap_or(from.len())).unwrap_or_default();
                if before.ends_with("var(\"") || before.ends_with("var_os(\"") {
                    let place = format!("{name}:{}", index.saturating_add(1));
                    self.read.entry(variable.to_owned()).or_insert(place);
                } else {
                    self.known.insert(variable.to_owned());
                }
            }
        }
    }

    /// What is read and neither set nor written about: a name with a mistake.
    fn unset(&self) -> Vec<String> {
        let unset = self.read.iter().filter(|(variable, _)| !self.known.contains(*variable));
        unset
            .map(|(variable, at)| {
                format!(
                    "{at}: nothing sets {variable}; name the variable that is set, or document it"
                )
            })
            .collect()
    }
}

fn forward(reversed: &str) -> String {
    reversed.split('.').rev().collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_that_nothing_sets_is_found() {
        let root = tempfile::tempdir().unwrap();
        let [first, second] = ["FULL", "TEST_FULL"].map(|name| format!("{}{name}", "FUMEHOOD_"));
        let code = format!("std::env::var(\"{first}\");\nstd::env::var_os(\"{second}\");\n");
        std::fs::write(root.path().join("a.rs"), code).unwrap();
        std::fs::write(root.path().join("b.rs"), format!(".env(\"{second}\", \"1\")")).unwrap();
        let mut variables = Variables::default();
        ["a.rs", "b.rs"].iter().for_each(|name| variables.look_at(root.path(), name));
        let unset = variables.unset();
        let [one] = unset.as_slice() else { panic!("{unset:?}") };
        assert!(one.starts_with("a.rs:1") && one.contains(&first), "{one}");
    }
}
