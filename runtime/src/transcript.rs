//! The digest of a deterministic run.
//!
//! What: SHA-256 over what the run was given, everything its host answered, in
//! the order of the calls, and what it gave back.
//!
//! What was visible in a mounted directory is not hashed as a tree: names,
//! sizes and contents enter as the answers in which the guest saw them, so that
//! a directory that was never looked at costs nothing and changes nothing.
//!
//! Invariant: every part has its name and its length before it, so no two
//! transcripts have one text. Nothing of the host enters: no host path, no
//! session id, no usage.

use fumehood_guest_abi::{Exec, Mode, Resume};
use fumehood_host_fns::{Event, HostAnswer, Refusal, StopReason};
use sha2::{Digest as _, Sha256};

use crate::determinism::Determinism;
use crate::outcome::{Outcome, OutcomeKind};

/// The version of the encoding; it is the first part.
const VERSION: &str = "1";
/// What of the engine's settings decides what a guest sees.
const ENGINE: &str = "fuel, canonical NaNs";

/// The part that no cell changes.
pub(crate) struct Given<'a> {
    /// SHA-256 of the guest module, in hexadecimal.
    pub(crate) guest: &'a str,
    pub(crate) policy: [u8; 32],
    pub(crate) memory_bytes: u64,
    pub(crate) settings: Determinism,
    pub(crate) resume: &'a Resume,
}

/// Everything so far.
#[derive(Clone)]
pub(crate) struct Transcript(Sha256);

impl Transcript {
    pub(crate) fn new(given: &Given<'_>) -> Self {
        let mut this = Self(Sha256::new());
        this.part("fumehood run", VERSION);
        this.part("guest", given.guest);
        this.part("engine", ENGINE);
        this.number("stack", crate::engine::WASM_STACK_BYTES as u64);
        this.number("memory", given.memory_bytes);
        this.number("fuel", given.settings.fuel);
        this.number("seed", given.settings.seed);
        this.number("time", given.settings.time_ns());
        this.part("policy", given.policy);
        let Resume { abi, argv, env, cwd, import_path, seed, tools } = given.resume;
        this.number("abi", u64::from(*abi));
        this.list("argv", argv);
        this.number("env", env.len() as u64);
        for (name, value) in env {
            this.part("name", name);
            this.part("value", value);
        }
        this.part("cwd", cwd);
        this.list("import path", import_path);
        this.part("generator seed", seed);
        this.number("tools", u64::from(*tools));
        this
    }

    fn part(&mut self, name: &str, value: impl AsRef<[u8]>) {
        for bytes in [name.as_bytes(), value.as_ref()] {
            self.0.update((bytes.len() as u64).to_le_bytes());
            self.0.update(bytes);
        }
    }

    fn number(&mut self, name: &str, value: u64) {
        self.part(name, value.to_le_bytes());
    }

    fn list(&mut self, name: &str, values: &[String]) {
        self.number(name, values.len() as u64);
        for value in values {
            self.part("item", value);
        }
    }

    fn optional(&mut self, name: &str, value: Option<impl AsRef<[u8]>>) {
        self.number(name, u64::from(value.is_some()));
        if let Some(value) = value {
            self.part("value", value);
        }
    }

    /// What one run or cell is given.
    pub(crate) fn cell(&mut self, exec: &Exec, stdin: &[u8]) {
        let Exec { mode, filename, source, inputs_json, max_value_bytes } = exec;
        let mode = match mode {
            Mode::Script => "script",
            Mode::Cell => "cell",
        };
        self.part("mode", mode);
        self.part("filename", filename);
        self.part("code", source);
        self.optional("inputs", inputs_json.as_ref());
        self.number("value bytes", u64::from(*max_value_bytes));
        self.part("stdin", stdin);
    }

    /// A session went back by so many cells, or to a checkpoint.
    pub(crate) fn went_back(&mut self, how: &str, number: u64) {
        self.number(how, number);
    }

    /// What the host answered to a call: its number, and the bytes it put into
    /// guest memory. `written` is what the guest wrote with the call.
    pub(crate) fn answer(
        &mut self,
        call: &'static str,
        written: &[u8],
        answer: &Result<HostAnswer, Refusal>,
        data: &[u8],
    ) {
        self.part(call, written);
        let mut encoded = Vec::with_capacity(72);
        match answer {
            Ok(answer) => encode(answer, &mut encoded),
            Err(Refusal::Errno(errno)) => {
                encoded.push(b'e');
                encoded.extend(errno.raw().to_le_bytes());
            }
            Err(Refusal::Stop(reason)) => {
                encoded.push(b's');
                encoded.extend(stop_name(reason).as_bytes());
            }
        }
        self.part("answer", encoded);
        self.part("data", data);
    }

    /// What the run or cell gave.
    pub(crate) fn outcome(&mut self, outcome: &Outcome) {
        self.part("outcome", outcome.kind.as_str());
        if let OutcomeKind::BudgetExceeded { name } = &outcome.kind {
            self.part("budget", name);
        }
        self.part("exit code", outcome.exit_code.to_le_bytes());
        self.part("stdout", &outcome.stdout);
        self.part("stderr", &outcome.stderr);
        self.number("dropped stdout", outcome.dropped.stdout);
        self.number("dropped stderr", outcome.dropped.stderr);
        self.optional("repr", outcome.result.repr.as_ref());
        self.optional("json", outcome.result.json.as_ref().map(ToString::to_string));
        self.number("displays", outcome.displays.len() as u64);
        for display in &outcome.displays {
            self.part("mime", &display.mime);
            self.part("bytes", &display.bytes);
        }
        self.number("error", u64::from(outcome.error.is_some()));
        if let Some(error) = &outcome.error {
            self.part("type", &error.type_name);
            self.part("message", &error.message);
            self.part("traceback", &error.traceback);
        }
        self.list("created", &outcome.files.created);
        self.list("modified", &outcome.files.modified);
        self.list("deleted", &outcome.files.deleted);
        self.number("denials", outcome.denials.len() as u64);
        for denial in &outcome.denials {
            self.part("operation", &denial.operation);
            self.part("target", &denial.target);
            self.part("rule", &denial.rule);
            self.part("reason", &denial.reason);
            self.part("hint", &denial.hint);
            self.number("count", denial.count);
        }
    }

    /// The digest of everything so far, in hexadecimal.
    pub(crate) fn digest(&self) -> String {
        crate::cache::hex(&self.0.clone().finalize())
    }
}

/// A reference in a fault is not part: it differs from process to process.
fn stop_name(reason: &StopReason) -> &str {
    match reason {
        StopReason::Interrupted => "interrupted",
        StopReason::HostCallsExhausted => "host_calls",
        StopReason::BudgetExceeded { name } => name,
        StopReason::Fault(_) => "fault",
    }
}

/// A letter for the kind, then every number as little-endian bytes.
fn encode(answer: &HostAnswer, to: &mut Vec<u8>) {
    match answer {
        HostAnswer::Unit => to.push(b'u'),
        HostAnswer::Size(size) => number(to, b'n', u64::from(*size)),
        HostAnswer::Offset(offset) => number(to, b'o', *offset),
        HostAnswer::Time(time) => number(to, b't', *time),
        HostAnswer::Descriptor(fd) => number(to, b'd', u64::from(*fd)),
        HostAnswer::Brokered(result) => number(to, b'b', result.cast_unsigned()),
        HostAnswer::Filestat(stat) => {
            to.push(b'f');
            let numbers = [
                stat.device,
                stat.inode,
                stat.file_type as u64,
                stat.links,
                stat.size,
                stat.accessed_ns,
                stat.modified_ns,
                stat.changed_ns,
            ];
            to.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        }
        HostAnswer::Fdstat(stat) => {
            to.push(b'r');
            let numbers = [
                stat.file_type as u64,
                u64::from(stat.flags),
                stat.rights_base,
                stat.rights_inheriting,
            ];
            to.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        }
        HostAnswer::Events(events) => {
            number(to, b'v', events.len() as u64);
            for Event { userdata, result, kind } in events {
                let (failed, value) = match result {
                    Ok(value) => (0, *value),
                    Err(errno) => (1, u64::from(errno.raw())),
                };
                let numbers = [*userdata, u64::from(*kind), failed, value];
                to.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
            }
        }
    }
}

fn number(to: &mut Vec<u8>, letter: u8, value: u64) {
    to.push(letter);
    to.extend(value.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use fumehood_host_fns::Errno;
    use std::collections::BTreeSet;

    fn resume() -> Resume {
        Resume {
            abi: 1,
            argv: vec!["a".to_owned(), "bc".to_owned()],
            env: vec![("A".to_owned(), "1".to_owned())],
            cwd: "/work".to_owned(),
            import_path: vec!["/work".to_owned()],
            seed: [3; 32],
            tools: false,
        }
    }

    fn given(resume: &Resume) -> Given<'_> {
        Given {
            guest: "g",
            policy: [1; 32],
            memory_bytes: 1 << 28,
            settings: Determinism::default(),
            resume,
        }
    }

    fn exec() -> Exec {
        Exec {
            mode: Mode::Cell,
            filename: "<cell>".to_owned(),
            source: b"1".to_vec(),
            inputs_json: None,
            max_value_bytes: 9,
        }
    }

    /// Digests of transcripts that must all differ.
    fn digests() -> Vec<String> {
        let base = resume();
        let mut all = Vec::new();
        let mut start = |given: Given<'_>| all.push(Transcript::new(&given).digest());
        start(given(&base));
        start(Given { guest: "h", ..given(&base) });
        start(Given { policy: [2; 32], ..given(&base) });
        start(Given { memory_bytes: 1 << 29, ..given(&base) });
        let settings = Determinism::default();
        start(Given { settings: Determinism { seed: 1, ..settings }, ..given(&base) });
        start(Given { settings: Determinism { fuel: 1, ..settings }, ..given(&base) });
        let time = std::time::UNIX_EPOCH;
        start(Given { settings: Determinism { time, ..settings }, ..given(&base) });
        // The border between two arguments counts.
        let argv = vec!["ab".to_owned(), "c".to_owned()];
        start(given(&Resume { argv, ..resume() }));
        let env = vec![("A".to_owned(), "2".to_owned())];
        start(given(&Resume { env, ..resume() }));
        start(given(&Resume { cwd: "/".to_owned(), ..resume() }));
        start(given(&Resume { import_path: Vec::new(), ..resume() }));
        start(given(&Resume { seed: [4; 32], ..resume() }));
        let mut then = |change: &dyn Fn(&mut Transcript)| {
            let mut transcript = Transcript::new(&given(&base));
            change(&mut transcript);
            all.push(transcript.digest());
        };
        then(&|t| t.cell(&exec(), b""));
        then(&|t| t.cell(&exec(), b"1"));
        then(&|t| t.cell(&Exec { mode: Mode::Script, ..exec() }, b""));
        then(&|t| t.cell(&Exec { source: b"2".to_vec(), ..exec() }, b""));
        then(&|t| t.cell(&Exec { filename: "x".to_owned(), ..exec() }, b""));
        then(&|t| t.cell(&Exec { inputs_json: Some(Vec::new()), ..exec() }, b""));
        then(&|t| t.cell(&Exec { max_value_bytes: 8, ..exec() }, b""));
        let answers = [
            Ok(HostAnswer::Unit),
            Ok(HostAnswer::Size(1)),
            Ok(HostAnswer::Offset(1)),
            Ok(HostAnswer::Time(1)),
            Ok(HostAnswer::Descriptor(1)),
            Ok(HostAnswer::Brokered(1)),
            Ok(HostAnswer::Brokered(-1)),
            Ok(HostAnswer::Events(vec![Event { userdata: 1, result: Ok(2), kind: 0 }])),
            Ok(HostAnswer::Events(vec![Event { userdata: 1, result: Err(Errno::Badf), kind: 0 }])),
            Err(Refusal::Errno(Errno::Badf)),
            Err(Refusal::Errno(Errno::Noent)),
            Err(Refusal::Stop(StopReason::Interrupted)),
        ];
        for answer in &answers {
            then(&|t| t.answer("call", b"", answer, b""));
        }
        then(&|t| t.answer("call", b"", &answers[0], b"seen"));
        then(&|t| t.answer("call", b"written", &answers[0], b""));
        then(&|t| t.answer("other", b"", &answers[0], b""));
        let outcome = || Outcome::empty(OutcomeKind::Completed, "s");
        then(&|t| t.outcome(&outcome()));
        then(&|t| t.outcome(&Outcome { exit_code: 3, ..outcome() }));
        then(&|t| t.outcome(&Outcome { stdout: b"x".to_vec(), ..outcome() }));
        then(&|t| t.outcome(&Outcome { stderr: b"x".to_vec(), ..outcome() }));
        then(&|t| {
            let mut outcome = outcome();
            outcome.files.created.push("/x".to_owned());
            t.outcome(&outcome);
        });
        then(&|t| {
            let mut outcome = outcome();
            outcome.result.repr = Some(String::new());
            t.outcome(&outcome);
        });
        all
    }

    #[test]
    fn every_part_counts() {
        let all = digests();
        assert_eq!(all, digests());
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
    }

    #[test]
    fn what_differs_from_run_to_run_does_not_count() {
        let base = resume();
        let digest = |session: &str, wall_ms: f64| {
            let mut transcript = Transcript::new(&given(&base));
            let mut outcome = Outcome::empty(OutcomeKind::Completed, session);
            outcome.usage.wall_ms = wall_ms;
            outcome.usage.fuel = Some(wall_ms as u64);
            transcript.outcome(&outcome);
            transcript.digest()
        };
        assert_eq!(digest("fh-1", 1.0), digest("fh-2", 2.0));
    }
}
