//! Programs of the kind agents write, each with everything it shows.
//!
//! `tests/programs/NAME.py` may begin with a line `#: {…}`, its [`Header`];
//! `NAME.out` is the transcript: standard output, then a section for each of
//! the other things that were asked for. Transcripts come from CPython
//! (`conformance __record PYTHON VERSION`) unless the header says
//! `oracle: false`: those were read and approved by hand.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use base64::Engine as _;
use fumehood::{FIXED_ENVIRONMENT, Outcome, OutcomeKind, Script};
use libtest_mimic::Trial;
use serde::Deserialize;

use crate::pinned::Pinned;
use crate::support::{ending, read, run, same_text, sandbox, stems, tests};

/// How a program is run and what of it is compared.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Header {
    /// `sys.argv[1:]`.
    args: Vec<String>,
    /// Standard input.
    stdin: String,
    /// Runs as a cell, and its value is compared.
    cell: bool,
    /// Globals.
    inputs: Option<serde_json::Map<String, serde_json::Value>>,
    /// Compares standard error too.
    stderr: bool,
    /// Whether CPython can record the transcript.
    oracle: Option<bool>,
    /// The version that records it, 3.11 unless given: some text that Python
    /// prints changed since, and the guest is a Python 3.14.
    python: Option<String>,
}

struct Program {
    name: String,
    source: String,
    header: Header,
}

impl Program {
    fn load(name: &str) -> Self {
        let source = read(&tests("programs").join(format!("{name}.py")));
        let header = match source.lines().next().and_then(|line| line.strip_prefix("#: ")) {
            Some(json) => {
                serde_json::from_str(json).unwrap_or_else(|error| panic!("{name}: {error}"))
            }
            None => Header::default(),
        };
        Self { name: name.to_owned(), source, header }
    }

    fn all() -> Vec<Self> {
        stems(&tests("programs"), "py").iter().map(|name| Self::load(name)).collect()
    }

    fn expected_file(&self) -> std::path::PathBuf {
        tests("programs").join(format!("{}.out", self.name))
    }

    /// Runs it in the sandbox.
    fn check(&self) -> Result<(), String> {
        let guest_path = format!("/work/{}.py", self.name);
        let header = &self.header;
        let source = self.source.as_str();
        let script = if header.cell { Script::cell(source) } else { Script::new(source) };
        let mut script = script
            .filename(&guest_path)
            .args(header.args.clone())
            .stdin(header.stdin.clone())
            .import_from("/work");
        if let Some(inputs) = &header.inputs {
            script = script.inputs(inputs);
        }
        let outcome = run(sandbox().file(&guest_path, source), script)?;
        same_text(&read(&self.expected_file()), &self.transcript(&outcome))
            .map_err(|difference| format!("{difference}{}", ending(&outcome)))
    }

    fn transcript(&self, outcome: &Outcome) -> String {
        let mut text = Transcript::new(&outcome.stdout_text());
        if self.header.stderr {
            text.section("stderr", &outcome.stderr_text());
        }
        if let Some(repr) = &outcome.result.repr {
            text.section("value", repr);
        }
        if let Some(json) = &outcome.result.json {
            text.section("json", &json.to_string());
        }
        for display in &outcome.displays {
            let content = match std::str::from_utf8(&display.bytes) {
                Ok(content) => content.to_owned(),
                Err(_) => base64::engine::general_purpose::STANDARD.encode(&display.bytes),
            };
            text.section(&format!("display {}", display.mime), &content);
        }
        match &outcome.kind {
            OutcomeKind::Completed | OutcomeKind::Exit | OutcomeKind::ScriptError => {}
            other => text.section("outcome", other.as_str()),
        }
        text.exit(outcome.exit_code);
        text.0
    }

    /// Records what CPython shows.
    fn record(&self, python: &Path) -> std::io::Result<()> {
        let place = tempfile::tempdir()?;
        let file = place.path().join(format!("{}.py", self.name));
        // Programs write to /tmp; the recorded one gets a directory of its own.
        let temporary = place.path().join("tmp");
        std::fs::create_dir(&temporary)?;
        let temporary = temporary.to_string_lossy();
        std::fs::write(&file, self.source.replace("/tmp", &temporary))?;
        let mut command = Command::new(python);
        command.arg("-B").arg(&file).args(&self.header.args).current_dir(place.path()).env_clear();
        for (name, value) in FIXED_ENVIRONMENT {
            command.env(name, value);
        }
        command.env("TMPDIR", &*temporary);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        child.stdin.take().expect("piped").write_all(self.header.stdin.as_bytes())?;
        let output = child.wait_with_output()?;
        let guest = |bytes: &[u8]| {
            String::from_utf8_lossy(bytes)
                .replace(&*temporary, "/tmp")
                .replace(&*place.path().to_string_lossy(), "/work")
        };
        let mut text = Transcript::new(&guest(&output.stdout));
        let stderr = guest(&output.stderr);
        if self.header.stderr {
            text.section("stderr", &stderr);
        } else if !stderr.is_empty() {
            eprintln!("{}: {stderr}", self.name);
        }
        text.exit(output.status.code().unwrap_or(-1));
        std::fs::write(self.expected_file(), text.0)
    }
}

struct Transcript(String);

impl Transcript {
    fn new(stdout: &str) -> Self {
        let mut text = Self(String::new());
        text.push(stdout);
        text
    }

    fn push(&mut self, text: &str) {
        self.0.push_str(text);
        if !text.is_empty() && !text.ends_with('\n') {
            self.0.push('\n');
        }
    }

    fn section(&mut self, title: &str, text: &str) {
        self.push(&format!("--- {title}\n"));
        self.push(text);
    }

    fn exit(&mut self, code: i32) {
        if code != 0 {
            self.push(&format!("--- exit {code}\n"));
        }
    }
}

/// All cases.
pub fn trials() -> Vec<Trial> {
    let pinned = Pinned::load(&tests("programs/failing.txt"));
    let programs = Program::all();
    let names: Vec<String> = programs.iter().map(|program| program.name.clone()).collect();
    let mut trials = vec![pinned.every_name_exists("program", &names)];
    for program in programs {
        let pinned = std::sync::Arc::clone(&pinned);
        trials.push(Trial::test(format!("program::{}", program.name), move || {
            pinned.judge(&program.name, program.check())
        }));
    }
    trials
}

/// Helper mode: writes the transcripts that this CPython is for; not part of
/// any test.
pub fn record(mut arguments: impl Iterator<Item = String>) -> ExitCode {
    let (Some(python), Some(version)) = (arguments.next(), arguments.next()) else {
        eprintln!("__record PYTHON VERSION, such as `python3.11 3.11`");
        return ExitCode::from(64);
    };
    for program in Program::all() {
        let wanted = program.header.python.as_deref().unwrap_or("3.11") == version;
        if wanted && program.header.oracle.unwrap_or(true) {
            program
                .record(Path::new(&python))
                .unwrap_or_else(|error| panic!("{}: {error}", program.name));
        }
    }
    ExitCode::SUCCESS
}
