//! The generator at its small size: what it promises, and that its guards notice when it does not.

use std::collections::BTreeSet;
use std::error::Error as StdError;
use std::fs;
use std::io::Read as _;

use flate2::read::GzDecoder;

use super::*;
use crate::answers::{read_back, require_discrimination};
use crate::generate::{DAYS, REPEATED_DAY, SLOW_FROM, TRUNCATED_LINES, file_name};

type TestResult = Result<(), Box<dyn StdError>>;

fn small() -> Result<(tempfile::TempDir, Corpus), Box<dyn StdError>> {
    let dir = tempfile::tempdir()?;
    let corpus = Corpus::generate(dir.path(), Size::Small)?;
    Ok((dir, corpus))
}

fn raw(dir: &Path, day: u32) -> Result<String, Box<dyn StdError>> {
    let mut text = String::new();
    GzDecoder::new(fs::File::open(dir.join(file_name(day)))?).read_to_string(&mut text)?;
    Ok(text)
}

/// A change of these numbers is a change of the corpus: say so in the changelog.
#[test]
fn the_small_corpus_is_pinned() -> TestResult {
    let (_dir, corpus) = small()?;
    let key = AnswerKey { requests: 8833, breach_day: 25, busiest_hour: 15 };
    assert_eq!(corpus.key, key);
    assert_eq!((corpus.lines, corpus.raw_bytes), (9178, 1_514_537));
    Ok(())
}

#[test]
fn every_shortcut_goes_wrong() -> TestResult {
    let (_dir, corpus) = small()?;
    let wrong: Vec<_> = corpus.shortcuts.iter().map(|s| (s.question, s.answer)).collect();
    let requests = corpus.key.requests;
    let repeated = corpus.lines - requests - u64::from(TRUNCATED_LINES);
    assert!(repeated > 200, "{repeated}");
    assert_eq!(
        wrong,
        [
            (Question::Requests, Some(requests + repeated)),
            (Question::Requests, Some(requests + u64::from(TRUNCATED_LINES))),
            (Question::Requests, Some(corpus.lines)),
            (Question::BreachDay, Some(19)),
            (Question::BreachDay, None),
            (Question::BusiestHour, Some(11)),
        ]
    );
    Ok(())
}

#[test]
fn a_true_shortcut_is_an_error() -> TestResult {
    let (_dir, mut corpus) = small()?;
    if let Some(shortcut) = corpus.shortcuts.last_mut() {
        shortcut.answer = Some(corpus.key.busiest_hour);
    }
    let error = require_discrimination(&corpus.key, &corpus.shortcuts).err();
    assert_eq!(error.map(|e| e.code()), Some("not_discriminating"));
    Ok(())
}

#[test]
fn the_latencies_keep_their_distance_from_the_limit() -> TestResult {
    let (dir, _) = small()?;
    let reading = read_back(dir.path())?;
    for day in 1..=DAYS {
        let p95_ms = reading.checkout_p95_us(day).unwrap_or_default() / 1000;
        let expected = if day < SLOW_FROM { 240..380 } else { 620..1000 };
        assert!(expected.contains(&p95_ms), "day {day}: {p95_ms} ms");
    }
    Ok(())
}

#[test]
fn the_directory_holds_the_logs_and_nothing_else() -> TestResult {
    let (dir, _) = small()?;
    let names: BTreeSet<String> = fs::read_dir(dir.path())?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<std::io::Result<_>>()?;
    assert_eq!(names, (1..=DAYS).map(file_name).collect());
    Ok(())
}

#[test]
fn two_runs_write_the_same_bytes() -> TestResult {
    let (one, _) = small()?;
    let (two, _) = small()?;
    for day in 1..=DAYS {
        let bytes = fs::read(one.path().join(file_name(day)))?;
        assert_eq!(bytes, fs::read(two.path().join(file_name(day)))?, "day {day}");
        // The time of modification in the gzip header.
        assert_eq!(bytes.get(4..8), Some(&[0; 4][..]), "day {day}");
    }
    Ok(())
}

#[test]
fn lines_look_like_access_logs() -> TestResult {
    let (dir, _) = small()?;
    for (day, route, date) in [(1, "route", "2026-06-01"), (25, "path", "2026-06-24")] {
        let text = raw(dir.path(), day)?;
        let line = text.lines().next().unwrap_or_default();
        let row: serde_json::Map<String, serde_json::Value> = serde_json::from_str(line)?;
        let fields: BTreeSet<&str> = row.keys().map(String::as_str).collect();
        let expected =
            ["ts", "service", route, "status", "latency_ms", "upstream", "request_id", "bytes"];
        assert_eq!(fields, BTreeSet::from(expected), "day {day}");
        let stamp = row.get("ts").and_then(|ts| ts.as_str()).unwrap_or_default();
        assert!(stamp.starts_with(date) && stamp.ends_with('Z'), "{stamp}");
    }
    Ok(())
}

#[test]
fn a_directory_in_use_is_refused() -> TestResult {
    let (dir, _) = small()?;
    let before = raw(dir.path(), 1)?;
    let error = Corpus::generate(dir.path(), Size::Small).err();
    assert_eq!(error.map(|e| e.code()), Some("not_empty"));
    assert_eq!(raw(dir.path(), 1)?, before);
    Ok(())
}

#[test]
fn a_corpus_without_a_defect_is_noticed() -> TestResult {
    for (from, to) in [
        // Day 14 without its repetition; local time where UTC is due, and the other way round.
        (13, REPEATED_DAY),
        (8, 7),
        (7, 8),
        // The old name of the route.
        (9, 10),
    ] {
        let (dir, _) = small()?;
        fs::copy(dir.path().join(file_name(from)), dir.path().join(file_name(to)))?;
        let error = read_back(dir.path()).err();
        assert_eq!(error.map(|e| e.code()), Some("inconsistent"), "{from} for {to}");
    }
    Ok(())
}

#[test]
fn the_last_mention_of_an_answer_counts() {
    let report = AgentReport::parse(
        "requests: 7\nbreach day: none\nrequests: 8\nbusiest hour: 15\nRESULT 8 0 15 1.250\n",
    );
    let expected = AgentReport {
        requests: Some(8),
        breach_day: None,
        busiest_hour: Some(15),
        seconds: Some(1.25),
    };
    assert_eq!(report, expected);
    let key = AnswerKey { requests: 8, breach_day: 25, busiest_hour: 15 };
    assert_eq!(report.score(&key), 2);
    assert_eq!(AgentReport::parse("").score(&key), 0);
}
