//! Benign file programs, each run on two hosts: ours with a host directory
//! mounted read-write, and `wasmtime-wasi` with the same tree preopened.
//!
//! What a program prints and the tree it leaves must be the same. Symbolic
//! links that a program needs are made on the host first (its first line,
//! `#: {"links": [["target", "name"], …]}`). Differences that are intended are
//! listed in `tests/differential/differences.toml`, with reasons; one that is no
//! longer seen fails the test.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use fumehood::{FIXED_ENVIRONMENT, OutcomeKind, Script};
use fumehood_guest_abi::Status;
use libtest_mimic::Trial;
use serde::Deserialize;

use crate::oracle;
use crate::support::{ending, read, run, same_text, sandbox, stems, tests};

/// The mount, on both hosts.
const MOUNT: &str = "/work/m";

/// One line that differs on purpose.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
struct Difference {
    program: String,
    /// What our host gives; empty if it gives no such line.
    ours: String,
    /// What `wasmtime-wasi` gives.
    theirs: String,
    reason: String,
}

/// The first line of a program.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    /// Targets and names of symbolic links that are there at the start.
    links: Vec<(String, String)>,
}

impl Header {
    fn of(program: &str) -> Self {
        match program.lines().next().and_then(|line| line.strip_prefix("#: ")) {
            Some(json) => {
                serde_json::from_str(json).unwrap_or_else(|error| panic!("{json}: {error}"))
            }
            None => Self::default(),
        }
    }

    fn prepare(&self, root: &Path) -> std::io::Result<()> {
        for (target, name) in &self.links {
            let at = root.join(name);
            std::fs::create_dir_all(at.parent().unwrap_or(root))?;
            std::os::unix::fs::symlink(target, at)?;
        }
        Ok(())
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Differences {
    difference: Vec<Difference>,
}

/// All cases.
pub fn trials() -> Vec<Trial> {
    let directory = tests("differential");
    let listed: Differences = toml::from_str(&read(&directory.join("differences.toml")))
        .unwrap_or_else(|error| panic!("differences.toml: {error}"));
    let prelude = read(&directory.join("_prelude.py"));
    let names: Vec<String> =
        stems(&directory, "py").into_iter().filter(|name| !name.starts_with('_')).collect();
    for difference in &listed.difference {
        assert!(names.contains(&difference.program), "no program {}", difference.program);
        assert!(!difference.reason.is_empty(), "a difference without a reason");
    }
    names
        .into_iter()
        .map(|name| {
            let program = read(&directory.join(format!("{name}.py")));
            let header = Header::of(&program);
            let source = format!("{prelude}\n{program}");
            let listed: Vec<Difference> =
                listed.difference.iter().filter(|one| one.program == name).cloned().collect();
            Trial::test(format!("differential::{name}"), move || {
                compare(&name, &header, &source, &listed).map_err(Into::into)
            })
        })
        .collect()
}

fn compare(name: &str, header: &Header, source: &str, listed: &[Difference]) -> Result<(), String> {
    let file = format!("{name}.py");
    let (our_stdout, our_tree) = ours(&file, header, source)?;
    let (their_stdout, their_tree) = theirs(&file, header, source)?;
    if their_stdout.is_empty() {
        return Err("the program prints nothing, so it compares nothing".to_owned());
    }
    let mut unseen = listed.to_vec();
    let our_stdout = settle(&our_stdout, &their_stdout, &mut unseen);
    same_text(&their_stdout, &our_stdout)
        .map_err(|difference| format!("output: wasmtime-wasi -, ours +\n{difference}"))?;
    same_text(&their_tree, &our_tree)
        .map_err(|difference| format!("tree: wasmtime-wasi -, ours +\n{difference}"))?;
    match unseen.first() {
        Some(gone) => Err(format!("a listed difference is no longer seen; remove it: {gone:?}")),
        None => Ok(()),
    }
}

/// Our output with every listed difference replaced by what the other gives.
fn settle(ours: &str, theirs: &str, unseen: &mut Vec<Difference>) -> String {
    let theirs: BTreeSet<&str> = theirs.lines().collect();
    ours.lines()
        .map(|line| {
            let place =
                unseen.iter().position(|one| one.ours == line && theirs.contains(&*one.theirs));
            let line =
                place.map_or_else(|| line.to_owned(), |place| unseen.swap_remove(place).theirs);
            line + "\n"
        })
        .collect()
}

fn ours(file: &str, header: &Header, source: &str) -> Result<(String, String), String> {
    let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
    header.prepare(directory.path()).map_err(|error| error.to_string())?;
    let outcome = run(
        sandbox().mount_read_write(MOUNT, directory.path()),
        Script::new(source).filename(file),
    )?;
    if outcome.kind != OutcomeKind::Completed {
        return Err(format!("ours: {}\n{}", outcome.stdout_text(), ending(&outcome)));
    }
    Ok((outcome.stdout_text(), tree(directory.path())))
}

fn theirs(file: &str, header: &Header, source: &str) -> Result<(String, String), String> {
    let root = tempfile::tempdir().map_err(|error| error.to_string())?;
    let mounted = root.path().join(MOUNT.trim_start_matches('/'));
    for directory in [mounted.as_path(), &root.path().join("tmp"), &root.path().join("home/agent")]
    {
        std::fs::create_dir_all(directory).map_err(|error| error.to_string())?;
    }
    header.prepare(&mounted).map_err(|error| error.to_string())?;
    let environment = FIXED_ENVIRONMENT.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned()));
    let shown = oracle::run(root.path(), environment.collect(), file, source)
        .map_err(|error| format!("wasmtime-wasi: {error:#}"))?;
    if shown.result.status != Status::Completed {
        return Err(format!("wasmtime-wasi: {}{}{:?}", shown.stdout, shown.stderr, shown.result));
    }
    Ok((shown.stdout, tree(&mounted)))
}

/// Names, types, permissions, lengths, link targets and contents of a host
/// tree, one line each. Times are compared by the programs that set them.
fn tree(root: &Path) -> String {
    let mut lines = BTreeMap::new();
    collect(root, root, &mut lines);
    lines.into_iter().map(|(name, line)| format!("{name} {line}\n")).collect()
}

fn collect(root: &Path, directory: &Path, lines: &mut BTreeMap<String, String>) {
    for entry in std::fs::read_dir(directory).expect("a directory of the test") {
        let path = entry.expect("an entry").path();
        let metadata = std::fs::symlink_metadata(&path).expect("metadata");
        let name = path.strip_prefix(root).expect("below the root").to_string_lossy().into_owned();
        let mode = metadata.mode() & 0o7777;
        let line = if metadata.is_dir() {
            collect(root, &path, lines);
            format!("directory {mode:o}")
        } else if metadata.is_symlink() {
            format!("-> {}", std::fs::read_link(&path).expect("a link").display())
        } else {
            let contents = std::fs::read(&path).expect("a file");
            let digest = <sha2::Sha256 as sha2::Digest>::digest(&contents);
            format!("file {mode:o} {} {digest:x} links {}", contents.len(), metadata.nlink())
        };
        lines.insert(name, line);
    }
}
