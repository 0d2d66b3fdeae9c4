//! The rows of another runtime's contract that are about tiers, as data.

use std::path::Path;
use std::time::Duration;

use fumehood_host_fns::NativeTier;

use crate::{landlock, process, run_with, said};

#[derive(Debug, serde::Deserialize)]
struct File {
    row: Vec<Row>,
}

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    id: String,
    theirs: String,
    ours: Option<String>,
    // Proven elsewhere.
    test: Option<String>,
    #[serde(rename = "in")]
    file: Option<String>,
    // Run here.
    command: Option<String>,
    stdin: Option<String>,
    cpu_s: Option<u64>,
    file_bytes: Option<u64>,
    timeout_ms: Option<u64>,
    #[serde(default)]
    twice: bool,
    // What it must give.
    exit: Option<i32>,
    stdout: Option<String>,
    stdout_bytes: Option<usize>,
    stdout_one_of: Option<Vec<String>>,
    stderr: Option<String>,
    timed_out: Option<bool>,
    memory_exceeded: Option<bool>,
    wall_below_ms: Option<u128>,
}

fn rows() -> Vec<Row> {
    let file: File = toml::from_str(include_str!("contract.toml")).unwrap();
    file.row
}

fn check(tier: &dyn NativeTier, row: &Row) {
    let text = row.command.as_deref().unwrap();
    let result = run_with(tier, text, |c| {
        c.stdin = row.stdin.clone().unwrap_or_default().into_bytes().into();
        c.timeout = row.timeout_ms.map_or(c.timeout, Duration::from_millis);
        c.limits.cpu = row.cpu_s.map_or(c.limits.cpu, Duration::from_secs);
        c.limits.file_bytes = row.file_bytes.unwrap_or(c.limits.file_bytes);
    });
    let at = format!("{} in {}: {}", row.id, tier.name(), said(&result));
    let (stdout, stderr) = (result.stdout.text(), result.stderr.text());
    assert_eq!(result.end.code(), row.exit.unwrap_or(0), "{at}");
    assert_eq!(result.timed_out, row.timed_out.unwrap_or(false), "{at}");
    assert_eq!(result.memory_exceeded, row.memory_exceeded.unwrap_or(false), "{at}");
    assert!(row.stdout.as_ref().is_none_or(|wanted| *wanted == stdout), "{at}");
    assert!(row.stdout_bytes.is_none_or(|wanted| wanted == stdout.len()), "{}", row.id);
    let one_of = row.stdout_one_of.as_ref();
    assert!(one_of.is_none_or(|all| all.contains(&stdout)), "{at}");
    assert!(row.stderr.as_ref().is_none_or(|wanted| stderr.contains(wanted)), "{at}");
    assert!(row.wall_below_ms.is_none_or(|most| result.wall.as_millis() < most), "{at}");
}

#[test]
fn every_row_that_is_a_command_holds_in_every_tier_of_the_helper() {
    let commands: Vec<Row> = rows().into_iter().filter(|row| row.command.is_some()).collect();
    assert!(commands.len() > 15);
    for tier in [&landlock() as &dyn NativeTier, &process()] {
        for row in &commands {
            for _ in 0..=usize::from(row.twice) {
                check(tier, row);
            }
        }
    }
}

#[test]
fn every_other_row_names_a_test_that_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut ids = std::collections::BTreeSet::new();
    for row in rows() {
        assert!(ids.insert(row.id.clone()), "{} is there twice", row.id);
        assert!(!row.theirs.is_empty() && row.ours.as_deref() != Some(""), "{}", row.id);
        match (&row.command, &row.test, &row.file) {
            (Some(_), None, None) => {}
            (None, Some(test), Some(file)) => {
                let text = std::fs::read_to_string(root.join(file)).unwrap();
                let named = format!("fn {test}()");
                assert!(text.contains(&named), "{}: {file} has no {test}", row.id);
            }
            other => panic!("{}: {other:?}", row.id),
        }
    }
    for section in ["1.3", "1.4", "1.5", "1.6", "1.7", "1.8", "1.9"] {
        assert!(ids.iter().any(|id| id.starts_with(section)), "{section}");
    }
}
