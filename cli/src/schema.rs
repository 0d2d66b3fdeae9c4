//! `docs/result.schema.json` describes what the library gives, exactly.

use fumehood::project::{
    Conflict, GuardedPath, Listed, ProjectPath, ProjectSync, SyncReport, SyncState,
};
use fumehood::{
    CellValue, Denial, DisplayData, Dropped, FileChanges, LastingEffect, NotListed, Outcome,
    OutcomeKind, ScriptError, TimeoutClock, Usage,
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
        controls: vec!["wasm_isolation".into(), "memory_limit".into()],
        files: FileChanges { created: paths(), modified: paths(), deleted: paths() },
        project: full.then(project),
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
        effects: full
            .then(|| LastingEffect {
                operation: "fs.create".to_owned(),
                target: "/data/new".to_owned(),
                count: 1,
            })
            .into_iter()
            .collect(),
        not_listed: NotListed { denials: u64::from(full), effects: 0, files: 0 },
        usage: Usage { wall_ms: 1.5, fuel: full.then_some(1), ..Usage::default() },
        session: "fh-1".to_owned(),
        rolled_back: full,
        digest: full.then(|| "0".repeat(64)),
    }
}

/// What is said of a project, with something in every list.
fn project() -> ProjectSync {
    let path = |path: &[u8]| ProjectPath(path.to_vec());
    let paths = || Listed { list: vec![path(b"a"), path(b"d/")], not_listed: 3 };
    let guarded = || {
        let (rule, reason) = ("git", "git runs it");
        Listed {
            list: vec![GuardedPath { path: path(b".git/hooks/x"), rule, reason }],
            not_listed: 0,
        }
    };
    let conflict = |beside| Conflict { path: path(b"\xff\n"), beside, reason: "both changed it" };
    let conflicts = vec![conflict(None), conflict(Some(path(b"a.sandbox")))];
    ProjectSync {
        at: "/work/project".to_owned(),
        strategy: "live",
        workspace: "fh-1".to_owned(),
        state: SyncState::Failed,
        unsynced: true,
        error: Some(("sync_no_space", "there is no space".to_owned())),
        report: Some(SyncReport {
            updated: paths(),
            deleted: paths(),
            conflicts: Listed { list: conflicts, not_listed: 0 },
            held_back: guarded(),
            flagged: guarded(),
            picked_up: paths(),
            hidden: paths(),
        }),
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
fn what_is_in_no_list_is_counted_where_there_is_some() {
    let json = |full| outcome(OutcomeKind::Completed, full).to_json();
    assert_eq!(json(true)["not_listed"], json!({ "denials": 1, "effects": 0, "files": 0 }));
    assert!(json(false).get("not_listed").is_none());
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
        "/project",
        "/project/error",
        "/project/report",
        "/project/report/conflicts/0",
        "/project/report/held_back/0",
        "/denials/0",
        "/usage",
        "/not_listed",
        "/outcome",
    ] {
        objects.push(member.to_owned());
    }
    for at in objects {
        let names: Vec<String> =
            good.pointer(&at).and_then(Value::as_object).unwrap().keys().cloned().collect();
        // The one member that is there only where there is something to tell.
        for name in names.iter().filter(|name| !(at.is_empty() && *name == "not_listed")) {
            let mut broken = good.clone();
            broken.pointer_mut(&at).and_then(Value::as_object_mut).unwrap().remove(name);
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
