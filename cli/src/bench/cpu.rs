//! `bench cpu`: the same programs inside and with a native Python.
//!
//! Each program measures itself; its last line is `RESULT … SECONDS`. The two
//! sides take turns, so that a slow moment of the machine hits both.

use std::path::{Path, PathBuf};
use std::time::Duration;

use fumehood::{Engine, Limits, Sandbox, Script};
use serde_json::json;

use super::{check, geomean, median, native, show};
use crate::args::BenchCommon;
use crate::error::CliError;
use crate::{files, progress};

/// Most bytes of a program.
const MAX_PROGRAM_BYTES: usize = 16 << 20;
/// Longest that one program may run.
const PATIENCE: Duration = Duration::from_secs(600);
/// Memory of one program.
const MEMORY_BYTES: u64 = 2 << 30;

struct Program {
    path: PathBuf,
    name: String,
    source: Vec<u8>,
    answer: Option<String>,
    inside: Vec<f64>,
    native: Vec<f64>,
}

pub(super) fn run(
    directory: &Path,
    python: &Path,
    rounds: u32,
    common: &BenchCommon,
) -> Result<i32, CliError> {
    let mut programs = Vec::new();
    for path in files::python_files(directory)? {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let source = files::read_file(&path, "the program", MAX_PROGRAM_BYTES)?;
        let (inside, native) = (Vec::new(), Vec::new());
        programs.push(Program { path, name, source, answer: None, inside, native });
    }
    if programs.is_empty() {
        return Err(CliError::usage(format!(
            "there is no .py file in `{}`; name a directory with --programs",
            directory.display()
        )));
    }
    let engine = progress::engine(common.compiled.as_deref()).build()?;
    for round in 0..rounds {
        for program in &mut programs {
            // Who goes first alternates too.
            for side in [round, round.wrapping_add(1)] {
                if side % 2 == 0 {
                    program.run_inside(&engine)?
                } else {
                    program.run_native(python)?
                }
            }
        }
    }
    let rows: Vec<(String, f64, f64)> = programs
        .into_iter()
        .map(|program| (program.name, median(program.inside), median(program.native)))
        .collect();
    let ratios: Vec<f64> = rows.iter().map(|(_, inside, native)| inside / native).collect();
    let overall = geomean(&ratios);
    let mut table =
        format!("{:<16}{:>12}{:>12}{:>9}\n", "program", "inside, ms", "native, ms", "ratio");
    for (name, inside, native) in &rows {
        let (inside, native, ratio) = (inside * 1000.0, native * 1000.0, inside / native);
        table += &format!("{name:<16}{inside:>12.1}{native:>12.1}{ratio:>9.2}\n");
    }
    table += &format!("{:<40}{overall:>9.2}   (medians of {rounds} rounds)\n", "geometric mean");
    let listed: Vec<_> = rows
        .iter()
        .map(|(name, inside, native)| {
            json!({ "name": name, "wasm_s": inside, "native_s": native, "ratio": inside / native })
        })
        .collect();
    show(
        common.json,
        &json!({
            "bench": "cpu",
            "geomean_ratio": overall,
            "rounds": rounds,
            "native": python.to_string_lossy(),
            "programs": listed,
        }),
        &table,
    );
    Ok(0)
}

impl Program {
    fn run_inside(&mut self, engine: &Engine) -> Result<(), CliError> {
        let limits = Limits {
            wall: PATIENCE,
            cpu: PATIENCE,
            memory_bytes: MEMORY_BYTES,
            ..Limits::default()
        };
        let sandbox = Sandbox::builder().engine(engine.clone()).limits(limits).build()?;
        let script = Script::new(self.source.clone()).filename(format!("{}.py", self.name));
        let outcome = sandbox.run(script).wait();
        check(&outcome)?;
        let seconds = self.result(&outcome.stdout_text())?;
        self.inside.push(seconds);
        Ok(())
    }

    fn run_native(&mut self, python: &Path) -> Result<(), CliError> {
        let printed = native::run(python, &self.path)?;
        let seconds = self.result(&printed)?;
        self.native.push(seconds);
        Ok(())
    }

    /// Reads the last line and checks that the answer is always the same.
    fn result(&mut self, printed: &str) -> Result<f64, CliError> {
        let (answer, seconds) = parse_result(printed).ok_or_else(|| {
            CliError::usage(format!(
                "the last line of {} is not `RESULT … SECONDS`; print it so",
                self.path.display()
            ))
        })?;
        match &self.answer {
            Some(known) if known != answer => Err(CliError::cannot_tell(format!(
                "{} gave `{answer}` and `{known}`, so its times compare nothing; make it deterministic",
                self.path.display()
            ))),
            Some(_) => Ok(seconds),
            None => {
                self.answer = Some(answer.to_owned());
                Ok(seconds)
            }
        }
    }
}

/// The answer and the seconds of the last line.
fn parse_result(printed: &str) -> Option<(&str, f64)> {
    let line = printed.trim_end().lines().next_back()?.strip_prefix("RESULT ")?;
    let (answer, seconds) = line.trim_end().rsplit_once(' ').unwrap_or(("", line));
    let seconds: f64 = seconds.parse().ok()?;
    (seconds.is_finite() && seconds > 0.0).then_some((answer, seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_is_the_result() {
        assert_eq!(parse_result("x\nRESULT 5 True 0.25\n"), Some(("5 True", 0.25)));
        assert_eq!(parse_result("RESULT 0.25"), Some(("", 0.25)));
        for bad in ["", "RESULT", "RESULT x", "RESULT 1 0", "RESULT 1 nan", "RESULT 1 0.1\nmore"] {
            assert_eq!(parse_result(bad), None, "{bad}");
        }
    }
}
