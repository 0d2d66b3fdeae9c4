//! CPython's own tests of its library, run in the guest.
//!
//! `tests/cpython/NAME.toml` is for CPython's `test_NAME`: what is known to
//! fail, why, and how many pass at least. `tests/cpython/run.py` runs inside
//! and says what happens; here a test that hangs is ended, and a run that ended
//! early goes on behind the test that ended it. The tests themselves come from
//! Debian's package `libpython3.11-testsuite`, or from the directory that
//! `FUMEHOOD_TEST_CPYTHON` names.
//!
//! Invariant: the lists can only shrink. A test that fails and is not listed
//! fails the case, and so does a listed one that no longer fails. Whoever
//! changes the guest looks at what differs, then `FUMEHOOD_BLESS=1` rewrites
//! the lists; what is new in one gets the error as its reason, to be replaced
//! by a real one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fumehood::{Limits, Outcome, Script};
use fumehood_tests::harness::machine::is_full;
use libtest_mimic::{Failed, Trial};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::support::{ending, read, sandbox, stems, tests};

const PACKAGE: &str = "Debian package libpython3.11-testsuite";
const PLACE: &str = "/usr/lib/python3.11/test";
/// Where the guest finds the package `test`.
const MOUNT: &str = "/cpython/test";
/// A test that takes longer hangs; the slowest takes 15 s on an idle machine, and
/// test machines are not idle.
const TEST_TIME: Duration = Duration::from_secs(600);
/// One module altogether.
const MODULE_TIME: Duration = Duration::from_secs(1800);
const MEMORY_BYTES: u64 = 1 << 30;
/// How often the guest may end early before the module is given up.
const MOST_RUNS: usize = 20;
const HEAD: &str = "# What fails of CPython's tests in the guest; tests/tests/conformance/cpython.rs says more.\n\n";

/// What is known of one module's tests.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Expected {
    /// Runs only with `FUMEHOOD_TEST_FULL=1`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    slow: bool,
    /// How many pass at least; the package gets a few more with its updates.
    passed: usize,
    /// Not run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    left_out: Vec<Group>,
    /// Run, and fail.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    failing: Vec<Group>,
}

/// Tests with one reason.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Group {
    reason: String,
    tests: Vec<String>,
}

/// All cases.
pub fn trials() -> Vec<Trial> {
    let place = place();
    let in_ci = std::env::var("CI").is_ok_and(|value| value == "true");
    let mut trials = Vec::new();
    for name in stems(&tests("cpython"), "toml") {
        let case = format!("cpython::{name}");
        let file = tests("cpython").join(format!("{name}.toml"));
        let expected: Expected = toml::from_str(&read(&file))
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let missing = format!("missing: {PACKAGE}");
        trials.push(match &place {
            None if in_ci => Trial::test(case, move || Err(missing.into())),
            None => Trial::test(case, || Ok(())).with_kind(missing).with_ignored_flag(true),
            Some(_) if expected.slow && !is_full() => Trial::test(case, || Ok(()))
                .with_kind("only with FUMEHOOD_TEST_FULL=1")
                .with_ignored_flag(true),
            Some(place) => {
                let place = place.clone();
                Trial::test(case, move || check(&place, &name, &file, &expected))
            }
        });
    }
    trials
}

/// Where the tests are, if this machine has them.
fn place() -> Option<PathBuf> {
    let place =
        std::env::var_os("FUMEHOOD_TEST_CPYTHON").map_or_else(|| PLACE.into(), PathBuf::from);
    place.join("test_json/__init__.py").is_file().then_some(place)
}

fn check(place: &Path, name: &str, file: &Path, expected: &Expected) -> Result<(), Failed> {
    let left_out = expected.left_out.iter().flat_map(|group| group.tests.clone());
    let seen = run_module(place, name, left_out.collect())?;
    if std::env::var_os("FUMEHOOD_BLESS").is_some() {
        let text = toml::to_string_pretty(&blessed(expected, &seen))?;
        std::fs::write(file, format!("{HEAD}{text}"))?;
        return Ok(());
    }
    let complaints = complaints(expected, &seen);
    if complaints.is_empty() {
        return Ok(());
    }
    let list = format!("tests/cpython/{name}.toml");
    Err(format!("{} against {list}:\n{}", complaints.len(), complaints.join("\n")).into())
}

/// In what the results differ from the list.
fn complaints(expected: &Expected, seen: &Seen) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut listed = BTreeSet::new();
    for group in &expected.failing {
        assert!(!group.reason.trim().is_empty(), "a group has no reason");
        for test in &group.tests {
            assert!(listed.insert(test.as_str()), "{test} is listed twice");
            match seen.0.get(test) {
                Some(result) if result.status == Status::Failed => {}
                Some(result) if result.status == Status::Passed => {
                    complaints.push(format!("passes now, remove it: {test}"));
                }
                Some(result) => {
                    complaints.push(format!("is skipped now, remove it: {test}: {}", result.why));
                }
                None => complaints.push(format!("is not there any more: {test}")),
            }
        }
    }
    for (test, result) in seen.failed() {
        if !listed.contains(test.as_str()) {
            complaints.push(format!("fails: {test}: {}", result.why));
        }
    }
    if seen.passed() < expected.passed {
        let (now, before) = (seen.passed(), expected.passed);
        complaints.push(format!("only {now} tests pass, {before} did"));
    }
    complaints
}

/// The list as the results are; reasons stay.
fn blessed(expected: &Expected, seen: &Seen) -> Expected {
    let mut new: BTreeMap<&String, &Finished> = seen.failed().collect();
    let mut blessed = Expected { passed: seen.passed(), ..expected.clone() };
    for group in &mut blessed.failing {
        group.tests.retain(|test| new.remove(test).is_some());
    }
    for (test, result) in new {
        let reason = result.why.clone();
        match blessed.failing.iter_mut().find(|group| group.reason == reason) {
            Some(group) => group.tests.push(test.clone()),
            None => blessed.failing.push(Group { reason, tests: vec![test.clone()] }),
        }
    }
    blessed.failing.retain(|group| !group.tests.is_empty());
    blessed
}

/// Results by test.
#[derive(Default)]
struct Seen(BTreeMap<String, Finished>);

impl Seen {
    fn failed(&self) -> impl Iterator<Item = (&String, &Finished)> {
        self.0.iter().filter(|(_, result)| result.status == Status::Failed)
    }

    fn passed(&self) -> usize {
        self.0.values().filter(|result| result.status == Status::Passed).count()
    }
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum Status {
    Passed,
    Skipped,
    Failed,
}

#[derive(Debug, Deserialize)]
struct Finished {
    status: Status,
    why: String,
}

/// A line that `run.py` prints.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Line {
    Begin {
        begin: String,
    },
    End {
        end: String,
        #[serde(flatten)]
        result: Finished,
    },
    Done {
        done: usize,
    },
}

/// Runs a module's tests, again and again behind each that ends the guest.
fn run_module(place: &Path, name: &str, mut finished: BTreeSet<String>) -> Result<Seen, String> {
    let mut seen = Seen::default();
    for _ in 0..MOST_RUNS {
        let (outcome, heard) = run_once(place, name, &finished)?;
        finished.extend(heard.results.keys().cloned());
        seen.0.extend(heard.results);
        if heard.done.is_some() {
            return Ok(seen);
        }
        let Some((test, _)) = heard.running.filter(|(test, _)| test != "import") else {
            return Err(format!("it ended outside of a test: {}", told(&outcome)));
        };
        finished.insert(test.clone());
        let why = format!("ends the run: {}", outcome.kind.as_str());
        seen.0.insert(test, Finished { status: Status::Failed, why });
    }
    Err(format!("the guest ended {MOST_RUNS} times before all tests had run"))
}

fn told(outcome: &Outcome) -> String {
    format!("{}\n{}", ending(outcome), outcome.stderr_text())
}

fn run_once(
    place: &Path,
    name: &str,
    finished: &BTreeSet<String>,
) -> Result<(Outcome, Heard), String> {
    let limits = Limits {
        wall: MODULE_TIME,
        cpu: MODULE_TIME,
        memory_bytes: MEMORY_BYTES,
        ..Limits::default()
    };
    let sandbox = sandbox()
        .limits(limits)
        .mount_read_only(MOUNT, place)
        .build()
        .map_err(|error| error.to_string())?;
    let inputs = json!({ "module": format!("test_{name}"), "finished": finished });
    let inputs = inputs.as_object().ok_or("no object")?;
    let heard = Arc::new(Mutex::new(Heard::default()));
    let hears = Arc::clone(&heard);
    let script = Script::new(read(&tests("cpython/run.py")))
        .filename("run.py")
        .inputs(inputs)
        .on_output(move |_, bytes| lock(&hears).hear(bytes));
    let run = sandbox.run(script);
    let canceller = run.canceller();
    let (stop, stopped) = channel::<()>();
    let watched = Arc::clone(&heard);
    let watch = std::thread::spawn(move || {
        while stopped.recv_timeout(Duration::from_millis(200)) == Err(RecvTimeoutError::Timeout) {
            if lock(&watched).hangs() {
                canceller.cancel();
            }
        }
    });
    let outcome = run.wait();
    drop(stop);
    watch.join().map_err(|_| "the watching thread failed")?;
    let heard = std::mem::take(&mut *lock(&heard));
    match heard.bad {
        Some(line) => Err(format!("not understood: {line}")),
        None => Ok((outcome, heard)),
    }
}

fn lock(heard: &Mutex<Heard>) -> std::sync::MutexGuard<'_, Heard> {
    heard.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a run has said so far.
#[derive(Default)]
struct Heard {
    /// The line that is not complete yet.
    rest: Vec<u8>,
    running: Option<(String, Instant)>,
    results: BTreeMap<String, Finished>,
    done: Option<usize>,
    bad: Option<String>,
}

impl Heard {
    fn hangs(&self) -> bool {
        self.running.as_ref().is_some_and(|(_, since)| since.elapsed() > TEST_TIME)
    }

    /// Takes what the guest printed; tests print too, and only what follows a
    /// record separator is ours.
    fn hear(&mut self, bytes: &[u8]) {
        self.rest.extend_from_slice(bytes);
        while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            let Some(start) = line.iter().position(|byte| *byte == 0x1e) else { continue };
            let line = line.get(start.saturating_add(1)..).unwrap_or_default();
            match serde_json::from_slice(line) {
                Ok(Line::Begin { begin }) => self.running = Some((begin, Instant::now())),
                Ok(Line::End { end, result }) => {
                    self.running = None;
                    // Several tests can have one name: a failure of one counts.
                    let known = self.results.get(&end).map(|known| known.status);
                    if end != "import" && known != Some(Status::Failed) {
                        self.results.insert(end, result);
                    }
                }
                Ok(Line::Done { done }) => self.done = Some(done),
                Err(_) => self.bad = Some(String::from_utf8_lossy(line).into_owned()),
            }
        }
    }
}
