//! `docs/result.schema.json` describes what the library gives, exactly.

use fumehood::{
    CellValue, Denial, DisplayData, Dropped, FileChanges, Outcome, OutcomeKind, ScriptError,
    TimeoutClock, Usage,
};
use serde_json::{Value, json};

const SCHEMA: &str = include_str!("../../docs/result.schema.json");

fn validator() -> jsonschema::Validator {
    let schema: Value = serde_json::from_str(SCHEMA).unwrap();
    jsonschema::validator_for(&schema).unwrap()
}

fn kinds() -> Vec<OutcomeKind> {
    vec![
        OutcomeKind::Completed,
        OutcomeKind::ScriptError,
        OutcomeKind::Exit,
        OutcomeKind::Timeout { clock: TimeoutClock::Wall },
        OutcomeKind::Timeout { clock: TimeoutClock::Cpu },
        OutcomeKind::Cancelled,
        OutcomeKind::MemoryLimit,
        OutcomeKind::StackExhausted,
        OutcomeKind::FuelExhausted,
        OutcomeKind::BudgetExceeded { name: "host_calls".to_owned() },
        OutcomeKind::Refused { missing: vec!["a thread".to_owned()] },
        OutcomeKind::SandboxFault { reference: "fault-1-1".to_owned() },
    ]
}

/// An outcome of `kind`; with everything in it that can be in one, or nothing.
fn outcome(kind: OutcomeKind, full: bool) -> Outcome {
    let text = |text: &str| if full { text.to_owned() } else { String::new() };
    let paths =
        || if full { vec!["/work/a".to_owned(), "/work/d/".to_owned()] } else { Vec::new() };
    Outcome {
        exit_code: kind.exit_code(),
        kind,
        stdout: if full { vec![b'a', 0xff, 0x1b] } else { Vec::new() },
        stderr: text("warning\n").into_bytes(),
        dropped: Dropped { stdout: u64::from(full) * u64::MAX, stderr: 0 },
        result: CellValue {
            repr: full.then(|| "{'a': 1}".to_owned()),
            json: full.then(|| json!({ "a": [1, null, 2.5] })),
        },
        displays: full
            .then(|| DisplayData { mime: "image/png".to_owned(), bytes: vec![0, 255, 1, 2] })
            .into_iter()
            .collect(),
        error: full.then(|| ScriptError {
            type_name: "ValueError".to_owned(),
            message: "no".to_owned(),
            traceback: "Traceback (most recent call last):\n".to_owned(),
        }),
        tier: "wasm",
        controls: vec!["wasm_isolation", "memory_limit"],
        files: FileChanges { created: paths(), modified: paths(), deleted: paths() },
        denials: full
            .then(|| Denial {
                operation: "fs.open".to_owned(),
                target: "/data/x".to_owned(),
                rule: "mount:/data".to_owned(),
                reason: "the mount is read-only".to_owned(),
                hint: "mount it with :rw".to_owned(),
                count: 2,
            })
            .into_iter()
            .collect(),
        usage: Usage { wall_ms: 1.5, fuel: full.then_some(1), ..Usage::default() },
        session: "fh-1".to_owned(),
        rolled_back: full,
        digest: full.then(|| "0".repeat(64)),
    }
}

#[test]
fn every_kind_of_outcome_is_valid() {
    let validator = validator();
    for kind in kinds() {
        for full in [false, true] {
            let json = outcome(kind.clone(), full).to_json();
            let errors: Vec<String> =
                validator.iter_errors(&json).map(|error| error.to_string()).collect();
            assert!(errors.is_empty(), "{kind:?}: {errors:?}\n{json:#}");
        }
    }
}

#[test]
fn nothing_may_be_missing_or_added() {
    let validator = validator();
    let good = outcome(OutcomeKind::Completed, true).to_json();
    let mut objects = vec![String::new()];
    for member in [
        "/dropped",
        "/result",
        "/displays/0",
        "/error",
        "/files",
        "/denials/0",
        "/usage",
        "/outcome",
    ] {
        objects.push(member.to_owned());
    }
    for at in objects {
        let names: Vec<String> =
            good.pointer(&at).and_then(Value::as_object).unwrap().keys().cloned().collect();
        for name in names {
            let mut broken = good.clone();
            broken.pointer_mut(&at).and_then(Value::as_object_mut).unwrap().remove(&name);
            assert!(!validator.is_valid(&broken), "{at}/{name} may be missing");
        }
        let mut broken = good.clone();
        broken
            .pointer_mut(&at)
            .and_then(Value::as_object_mut)
            .unwrap()
            .insert("x".to_owned(), json!(1));
        assert!(!validator.is_valid(&broken), "{at} may have more members");
    }
}
