//! What a check gave, in words and as JSON.

use fumehood::audit::{Lines, Missing, Verdict, VerifyReport};
use serde_json::{Value, json};

use crate::error::{BAD_FINDING, CANNOT_TELL};

/// 0 intact, 1 broken, 2 unverifiable.
pub(crate) fn exit_code(report: &VerifyReport) -> i32 {
    match report.verdict {
        Verdict::Intact => 0,
        Verdict::Broken { .. } => BAD_FINDING,
        Verdict::Unverifiable { .. } => CANNOT_TELL,
    }
}

fn range(lines: &Lines) -> String {
    if lines.first == lines.last {
        lines.first.to_string()
    } else {
        format!("{}..{}", lines.first, lines.last)
    }
}

fn ranges(all: &[Lines]) -> String {
    all.iter().map(range).collect::<Vec<_>>().join(", ")
}

/// What holds, whatever the verdict.
fn extent(report: &VerifyReport) -> String {
    let mut text = match report.covered.first() {
        None => "nothing is covered".to_owned(),
        Some(first) => format!("to {}", first.last),
    };
    if !report.unsigned.is_empty() {
        text.push_str(&format!(", unsigned {}", ranges(&report.unsigned)));
    }
    if let Some(later @ [_, ..]) = report.covered.get(1..) {
        text.push_str(&format!(", then {}", ranges(later)));
    }
    if report.torn_bytes > 0 {
        text.push_str(&format!(", {} bytes of a torn line", report.torn_bytes));
    }
    if report.unknown > 0 {
        text.push_str(&format!(", {} calls with unknown outcome", report.unknown));
    }
    if !report.closed {
        text.push_str(", not closed");
    }
    text
}

/// One sentence.
pub(crate) fn sentence(report: &VerifyReport) -> String {
    match &report.verdict {
        Verdict::Intact => format!("intact {}", extent(report)),
        Verdict::Broken { at, why } => {
            let before = report.covered.last().map_or_else(String::new, |lines| {
                format!("; what is covered before ends at {}", lines.last)
            });
            format!("broken at {at}: {why}{before}")
        }
        Verdict::Unverifiable { missing } => {
            let missing: Vec<_> = missing.iter().map(Missing::to_string).collect();
            format!(
                "unverifiable without {}; nothing contradicts it {}",
                missing.join(" and without "),
                extent(report)
            )
        }
    }
}

/// The same for programs.
pub(crate) fn to_json(report: &VerifyReport) -> Value {
    let pairs = |all: &[Lines]| all.iter().map(|l| json!([l.first, l.last])).collect::<Vec<_>>();
    let mut value = json!({
        "session": report.session,
        "lines": report.lines,
        "covered": pairs(&report.covered),
        "unsigned": pairs(&report.unsigned),
        "torn_bytes": report.torn_bytes,
        "closed": report.closed,
        "unknown": report.unknown,
        "unknown_calls": report.unknown_calls,
        "install_key": report.install.map(|key| key.to_string()),
        "first_us": report.times_us.map(|(first, _)| first),
        "last_us": report.times_us.map(|(_, last)| last),
    });
    let verdict = match &report.verdict {
        Verdict::Intact => json!({ "verdict": "intact" }),
        Verdict::Broken { at, why } => json!({
            "verdict": "broken", "at": at, "why": why.code(), "reason": why.to_string(),
        }),
        Verdict::Unverifiable { missing } => json!({
            "verdict": "unverifiable",
            "missing": missing.iter().map(Missing::code).collect::<Vec<_>>(),
        }),
    };
    if let (Value::Object(value), Value::Object(verdict)) = (&mut value, verdict) {
        value.extend(verdict);
    }
    value
}
