//! What the cases share: the engine, places, and how a difference is shown.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use fumehood::{Engine, Outcome, Sandbox, SandboxBuilder, Script};

/// The root of the repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ is below the root")
}

/// A place below `tests/`.
pub fn tests(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Where compiled code is kept between test runs; below the target directory.
pub fn cache_directory() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("code-cache")
}

/// The engine of all cases.
pub fn engine() -> Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    ENGINE
        .get_or_init(|| {
            Engine::builder().cache_directory(cache_directory()).build().expect("the engine starts")
        })
        .clone()
}

/// Settings with the shared engine.
pub fn sandbox() -> SandboxBuilder {
    Sandbox::builder().engine(engine())
}

/// Runs in a sandbox of its own.
pub fn run(builder: SandboxBuilder, script: impl Into<Script>) -> Result<Outcome, String> {
    let sandbox = builder.build().map_err(|error| error.to_string())?;
    Ok(sandbox.run(script).wait())
}

/// The `fumehood` command, brought up to date once, or the program that
/// `FUMEHOOD_TEST_COMMAND` names.
///
/// Built together with the whole workspace's features, so that the engine is
/// not compiled a second time for it.
pub fn command_binary() -> Result<PathBuf, String> {
    static BINARY: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    BINARY.get_or_init(build_command).clone()
}

fn build_command() -> Result<PathBuf, String> {
    if let Some(given) = std::env::var_os("FUMEHOOD_TEST_COMMAND") {
        return Ok(PathBuf::from(given));
    }
    let test = std::env::current_exe().map_err(|error| error.to_string())?;
    let profile = test.parent().and_then(Path::parent).ok_or("the test binary has no directory")?;
    let binary = profile.join("fumehood");
    if let Some(cargo) = std::env::var_os("CARGO") {
        let mut build = Command::new(cargo);
        build.args(["build", "--quiet", "--workspace", "--bins"]).current_dir(root());
        if !cfg!(debug_assertions) {
            build.arg("--release");
        }
        let output = build.output().map_err(|error| error.to_string())?;
        if !output.status.success() {
            return Err(format!(
                "the command `fumehood` does not build:\n{}",
                String::from_utf8_lossy(&output.stderr)
            ));
        }
    }
    if binary.is_file() {
        Ok(binary)
    } else {
        Err("there is no command `fumehood` beside the tests; run them through cargo".to_owned())
    }
}

/// Files of a directory with this extension, by stem, in order.
pub fn stems(directory: &Path, extension: &str) -> Vec<String> {
    let mut stems: Vec<String> = std::fs::read_dir(directory)
        .unwrap_or_else(|error| panic!("{}: {error}", directory.display()))
        .map(|entry| entry.expect("a directory entry").path())
        .filter(|path| path.extension().is_some_and(|found| found == extension))
        .filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()))
        .collect();
    stems.sort();
    stems
}

/// Reads a committed text file.
pub fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// `Ok` when equal, else the lines that differ.
pub fn same_text(expected: &str, actual: &str) -> Result<(), String> {
    if expected == actual {
        return Ok(());
    }
    let (expected, actual): (Vec<_>, Vec<_>) =
        (expected.lines().collect(), actual.lines().collect());
    let mut report = String::from("(- expected, + actual)\n");
    let mut shown = 0;
    for at in 0..expected.len().max(actual.len()) {
        let (left, right) = (expected.get(at), actual.get(at));
        if left != right {
            shown += 1;
            for (sign, line) in [('-', left), ('+', right)] {
                if let Some(line) = line {
                    report.push_str(&format!("{:4} {sign} {line}\n", at + 1));
                }
            }
        }
        if shown == 12 {
            report.push_str("     … and more\n");
            break;
        }
    }
    if shown == 0 {
        report.push_str("     only the end of the last line differs\n");
    }
    Err(report)
}

/// How a run ended, in one line, for messages.
pub fn ending(outcome: &Outcome) -> String {
    let error = outcome.error.as_ref().map_or_else(String::new, |error| {
        format!("; {}: {}\n{}", error.type_name, error.message, error.traceback)
    });
    format!("{} (exit {}){error}", outcome.kind.as_str(), outcome.exit_code)
}
