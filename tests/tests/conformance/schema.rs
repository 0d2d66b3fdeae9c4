//! `docs/result.schema.json` describes the result: every kind of outcome that
//! can be produced, and any record that the types allow, satisfies it; a record
//! with a member missing, added or of another type does not.

use std::sync::Arc;
use std::time::Duration;

use fumehood::{
    CellValue, Denial, DisplayData, Dropped, Engine, FileChanges, Limits, Outcome, OutcomeKind,
    SandboxBuilder, Script, ScriptError, TimeoutClock, Usage,
};
use jsonschema::Validator;
use libtest_mimic::{Failed, Trial};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Map, Value, json};

use crate::support::{ending, read, root, run, sandbox};

/// `(kind, exit code or None for the program's own, a run that ends so)`.
type Case = (&'static str, Option<i32>, fn() -> Result<Outcome, String>);

const CASES: &[Case] = &[
    ("completed", Some(0), || run(sandbox(), RICH)),
    ("completed_with_changes_and_denials", Some(0), changes_and_denials),
    ("completed_with_dropped_output", Some(0), || {
        run(limited(|limits| limits.broker.output_bytes = 10), Script::new("print('é' * 100)"))
    }),
    ("script_error", Some(1), || run(sandbox(), Script::new("1 / 0"))),
    ("script_error_in_the_syntax", Some(1), || run(sandbox(), "def f(:")),
    ("script_error_of_bytes", Some(1), || {
        run(sandbox(), Script::new(vec![b'x', b'=', 0xff, 0xfe]))
    }),
    ("exit", Some(7), || run(sandbox(), Script::new("import sys; sys.exit(7)"))),
    ("timeout", Some(124), || {
        run(
            limited(|limits| limits.wall = Duration::from_millis(300)),
            Script::new("while True: pass"),
        )
    }),
    ("timeout_cpu", Some(124), || {
        run(
            limited(|limits| limits.cpu = Duration::from_millis(300)),
            Script::new("while True: pass"),
        )
    }),
    ("cancelled", Some(125), cancelled),
    ("memory_limit", Some(137), || {
        run(
            limited(|limits| limits.memory_bytes = 128 << 20),
            Script::new("x = []\nwhile True: x.append(bytearray(1 << 20))"),
        )
    }),
    ("stack_exhausted", Some(134), || module("(func $f (export \"_start\") (call $f) (call $f))")),
    ("script_error_of_a_broken_interpreter", Some(1), || {
        module("(func (export \"_start\") unreachable)")
    }),
    ("sandbox_fault", Some(65), || {
        struct Panics;
        impl fumehood::RandomSource for Panics {
            fn fill(&self, _: &mut [u8]) -> Result<(), fumehood_host_fns::RandomFailed> {
                panic!("a host function failed")
            }
        }
        run(sandbox().random(std::sync::Arc::new(Panics)), Script::new("1"))
    }),
    ("budget_exceeded", Some(68), || {
        run(
            limited(|limits| limits.broker.host_calls = 50),
            Script::new("import os\nwhile True: os.path.exists('/none')"),
        )
    }),
    ("refused", Some(66), || {
        run(limited(|limits| limits.source_bytes = 3), Script::new("print(1)"))
    }),
];

const RICH: &str = "import sys\nprint('out', chr(0xdcff).encode('utf-8', 'replace'))\nprint('err', file=sys.stderr)\n\
sys.stdout.buffer.write(b'\\xff\\xfe')\n\
class H:\n    def _repr_html_(self): return '<i>'\ndisplay(H())\n{'a': [1, 2.5, None, True]}";

/// All cases.
pub fn trials() -> Vec<Trial> {
    let mut trials: Vec<Trial> = CASES
        .iter()
        .map(|(name, code, produce)| {
            Trial::test(format!("schema::{name}"), move || {
                let outcome = produce()?;
                let kind = outcome.kind.as_str();
                if !name.starts_with(kind) || code.is_some_and(|code| code != outcome.exit_code) {
                    return Err(format!("it ended otherwise: {}", ending(&outcome)).into());
                }
                accepted(&outcome.to_json()).map_err(Into::into)
            })
        })
        .collect();
    trials.push(Trial::test("schema::any_record_of_the_types_is_described", any_record));
    trials.push(Trial::test("schema::a_changed_record_is_not", changed_records));
    trials
}

fn limited(change: impl FnOnce(&mut Limits)) -> SandboxBuilder {
    let mut limits = Limits::default();
    change(&mut limits);
    sandbox().limits(limits)
}

/// Runs a module instead of Python.
fn module(function: &str) -> Result<Outcome, String> {
    let text = format!("(module (memory (export \"memory\") 1) {function})");
    let wasm = wat::parse_str(text).map_err(|error| error.to_string())?;
    let engine = Engine::builder().module(wasm).build().map_err(|error| error.to_string())?;
    run(sandbox().engine(engine), "")
}

fn changes_and_denials() -> Result<Outcome, String> {
    let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
    std::fs::write(directory.path().join("there"), "old").map_err(|error| error.to_string())?;
    let code = "import os\nopen('/work/new', 'w').write('x')\nos.mkdir('/work/dir')\n\
        try:\n    open('/data/there', 'w')\nexcept OSError as error:\n    print(error)\n";
    let outcome = run(sandbox().mount_read_only("/data", directory.path()), Script::new(code))?;
    if outcome.denials.is_empty() || outcome.files.created.is_empty() {
        return Err(format!("no denials or changes: {}", outcome.to_json()));
    }
    Ok(outcome)
}

fn cancelled() -> Result<Outcome, String> {
    let sandbox = sandbox().build().map_err(|error| error.to_string())?;
    let run = sandbox.run(Script::new("while True: pass"));
    let canceller = Arc::new(run.canceller());
    let waiting = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        canceller.cancel();
    });
    let outcome = run.wait();
    waiting.join().map_err(|_| "the cancelling thread panicked".to_owned())?;
    Ok(outcome)
}

fn validator() -> Result<Validator, String> {
    let schema: Value = serde_json::from_str(&read(&root().join("docs/result.schema.json")))
        .map_err(|error| error.to_string())?;
    jsonschema::validator_for(&schema).map_err(|error| error.to_string())
}

fn accepted(record: &Value) -> Result<(), String> {
    let problems: Vec<String> = validator()?
        .iter_errors(record)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    if problems.is_empty() { Ok(()) } else { Err(format!("{}\n{record:#}", problems.join("\n"))) }
}

fn kinds() -> impl Strategy<Value = OutcomeKind> {
    prop_oneof![
        Just(OutcomeKind::Completed),
        Just(OutcomeKind::ScriptError),
        Just(OutcomeKind::Exit),
        Just(OutcomeKind::Timeout { clock: TimeoutClock::Wall }),
        Just(OutcomeKind::Timeout { clock: TimeoutClock::Cpu }),
        Just(OutcomeKind::Cancelled),
        Just(OutcomeKind::MemoryLimit),
        Just(OutcomeKind::StackExhausted),
        Just(OutcomeKind::FuelExhausted),
        any::<String>().prop_map(|name| OutcomeKind::BudgetExceeded { name }),
        proptest::collection::vec(any::<String>(), 1..4)
            .prop_map(|missing| OutcomeKind::Refused { missing }),
        any::<String>().prop_map(|reference| OutcomeKind::SandboxFault { reference }),
    ]
}

fn plain() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from)
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map(any::<String>(), inner, 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

fn denials() -> impl Strategy<Value = Vec<Denial>> {
    let one = (any::<[String; 5]>(), 1..u64::MAX).prop_map(|(text, count)| {
        let [operation, target, rule, reason, hint] = text;
        Denial { operation, target, rule, reason, hint, count }
    });
    proptest::collection::vec(one, 0..3)
}

/// Anything that the types of a result allow.
fn outcomes(template: Outcome) -> impl Strategy<Value = Outcome> {
    let bytes = || proptest::collection::vec(any::<u8>(), 0..40);
    let names = || proptest::collection::vec(any::<String>(), 0..3);
    let displays = proptest::collection::vec((any::<String>(), bytes()), 0..3);
    let numbers = (any::<[u32; 2]>(), any::<Option<u64>>(), any::<[u64; 6]>());
    let values =
        (any::<Option<String>>(), proptest::option::of(plain()), any::<Option<[String; 3]>>());
    let parts = (kinds(), any::<i32>(), bytes(), bytes(), displays, denials());
    (parts, numbers, values, names(), any::<bool>(), proptest::option::of("[0-9a-f]{64}")).prop_map(
        move |(
            (kind, exit_code, stdout, stderr, displays, denials),
            numbers,
            values,
            names,
            rolled_back,
            digest,
        )| {
            let (milliseconds, fuel, counts) = numbers;
            let (repr, json, error) = values;
            Outcome {
                kind,
                exit_code,
                stdout,
                stderr,
                dropped: Dropped { stdout: counts[0], stderr: counts[1] },
                result: CellValue { repr, json },
                displays: displays
                    .into_iter()
                    .map(|(mime, bytes)| DisplayData { mime, bytes })
                    .collect(),
                error: error.map(|[type_name, message, traceback]| ScriptError {
                    type_name,
                    message,
                    traceback,
                }),
                files: FileChanges { created: names.clone(), modified: Vec::new(), deleted: names },
                denials,
                usage: Usage {
                    wall_ms: f64::from(milliseconds[0]) / 7.0,
                    cpu_ms: f64::from(milliseconds[1]),
                    fuel,
                    peak_memory_bytes: counts[2],
                    host_calls: counts[3],
                    bytes_in: counts[4],
                    bytes_out: counts[5],
                },
                rolled_back,
                digest,
                ..template.clone()
            }
        },
    )
}

fn any_record() -> Result<(), Failed> {
    let template = run(sandbox(), "1")?;
    let mut runner = TestRunner::new_with_rng(
        Config { cases: 200, failure_persistence: None, ..Config::default() },
        proptest::test_runner::TestRng::deterministic_rng(
            proptest::test_runner::RngAlgorithm::ChaCha,
        ),
    );
    let validator = validator()?;
    runner
        .run(&outcomes(template), |outcome| {
            let record = outcome.to_json();
            let problem = validator.iter_errors(&record).next().map(|error| error.to_string());
            prop_assert!(problem.is_none(), "{problem:?}\n{record:#}");
            // It survives being written and read.
            let text = record.to_string();
            prop_assert_eq!(serde_json::from_str::<Value>(&text).ok(), Some(record));
            Ok(())
        })
        .map_err(|error| error.to_string().into())
}

/// Every member of every object, taken away, given another type, and a member
/// added: the schema must notice each.
fn changed_records() -> Result<(), Failed> {
    let mut record = changes_and_denials()?.to_json();
    record["error"] = json!({"type": "T", "message": "m", "traceback": ""});
    record["displays"] = json!([{"mime": "text/html", "bytes": "aGk="}]);
    accepted(&record)?;
    let validator = validator()?;
    let mut unnoticed = Vec::new();
    let mut checked = 0;
    for path in objects(&record, String::new()) {
        // Free data of the program.
        if path == "/result/json" {
            continue;
        }
        let members = record.pointer(&path).and_then(Value::as_object).map(Map::len).unwrap_or(0);
        for at in 0..=members {
            for change in ["remove", "retype"] {
                let mut changed = record.clone();
                let Some(object) = changed.pointer_mut(&path).and_then(Value::as_object_mut) else {
                    continue;
                };
                let what = match object.keys().nth(at).cloned() {
                    Some(name) if path == "/result" && name == "json" && change == "retype" => {
                        continue;
                    }
                    Some(name) => {
                        if change == "remove" {
                            object.remove(&name);
                        } else {
                            object.insert(name.clone(), json!({"unexpected": []}));
                        }
                        format!("{change} {path}/{name}")
                    }
                    None => {
                        object.insert("unexpected".to_owned(), Value::Null);
                        format!("add to {path}")
                    }
                };
                checked += 1;
                if validator.is_valid(&changed) {
                    unnoticed.push(what);
                }
            }
        }
    }
    if unnoticed.is_empty() && checked > 60 {
        Ok(())
    } else {
        Err(format!("of {checked} changes the schema does not notice: {unnoticed:?}").into())
    }
}

/// JSON pointers to every object of a value.
fn objects(value: &Value, at: String) -> Vec<String> {
    let children: Vec<(String, &Value)> = match value {
        Value::Object(members) => {
            members.iter().map(|(name, value)| (name.clone(), value)).collect()
        }
        Value::Array(items) => {
            items.iter().enumerate().map(|(at, value)| (at.to_string(), value)).collect()
        }
        _ => return Vec::new(),
    };
    let mut found: Vec<String> = children
        .into_iter()
        .flat_map(|(name, child)| objects(child, format!("{at}/{name}")))
        .collect();
    if value.is_object() {
        found.push(at);
    }
    found
}
