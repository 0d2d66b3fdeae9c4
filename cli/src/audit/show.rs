//! `fumehood audit show`: a log as a table or as a tree of calls.
//!
//! Invariant: nothing of a log reaches the terminal but through
//! [`escape_line`]; at most [`MAX_ROWS`] rows are held.

use std::collections::BTreeMap;
use std::io::BufRead;

use fumehood::audit::{Line, Verdict, VerifyReport};

use crate::args::DecisionArg;
use crate::audit::{Log, time, verdict};
use crate::error::CliError;
use crate::output;
use crate::terminal::escape_line;

/// Most calls that are shown; filters choose which.
const MAX_ROWS: usize = 100_000;
/// Deepest level that is indented.
const MAX_DEPTH: usize = 32;

/// Which calls are shown.
pub(crate) struct Filter {
    pub(crate) op: Option<String>,
    pub(crate) decision: Option<DecisionArg>,
    pub(crate) since_us: Option<u64>,
    pub(crate) until_us: Option<u64>,
}

impl Filter {
    fn takes(&self, row: &Row) -> bool {
        let decision = self.decision.map(|decision| match decision {
            DecisionArg::Allow => "allow",
            DecisionArg::Deny => "deny",
            DecisionArg::Ask => "ask",
        });
        self.op.as_ref().is_none_or(|op| row.op.starts_with(op.as_str()))
            && decision.is_none_or(|decision| row.decision == decision)
            && self.since_us.is_none_or(|since| row.time_us >= since)
            && self.until_us.is_none_or(|until| row.time_us <= until)
    }
}

/// One call.
struct Row {
    time_us: u64,
    call: u64,
    parent: u64,
    op: String,
    target: String,
    decision: String,
    rule: String,
    ended: String,
    us: Option<u64>,
    bytes_in: u64,
    bytes_out: u64,
}

impl Row {
    fn of(line: &Line<'_>) -> Self {
        let text = |field: &Option<fumehood::audit::Text<'_>>| {
            field.as_deref().unwrap_or_default().to_owned()
        };
        let mut target = text(&line.target);
        if let Some(to) = line.to.as_deref() {
            target = format!("{target} -> {to}");
        }
        if let Some(preview) = line.preview.as_deref() {
            target = format!("{target}({preview})");
        }
        let decision = text(&line.decision);
        let ended = match (line.count, decision.as_str()) {
            (Some(count), _) => match line.failed {
                Some(failed) if failed > 0 => format!("{count} times, {failed} failed"),
                _ => format!("{count} times"),
            },
            (None, "allow") => "unknown".to_owned(),
            (None, _) => "not done".to_owned(),
        };
        Self {
            time_us: line.time_us.unwrap_or_default(),
            call: line.call.unwrap_or_default(),
            parent: line.parent.unwrap_or_default(),
            op: text(&line.operation),
            target,
            decision,
            rule: text(&line.rule),
            ended,
            us: None,
            bytes_in: line.bytes_in.unwrap_or_default(),
            bytes_out: line.bytes_out.unwrap_or_default(),
        }
    }

    fn finish(&mut self, line: &Line<'_>) {
        self.ended = line.ended.as_deref().unwrap_or_default().to_owned();
        if let Some(error) = line.error.as_deref() {
            self.ended = error.to_owned();
        }
        self.us = line.duration_us;
        self.bytes_in = self.bytes_in.saturating_add(line.bytes_in.unwrap_or_default());
    }

    fn text(&self, depth: usize) -> String {
        let took = self.us.map_or_else(String::new, |us| format!("{us} us"));
        let indent = "  ".repeat(depth.min(MAX_DEPTH));
        let call = format!("{indent}{}", self.call);
        escape_line(&format!(
            "{}  {call:<6}  {:<20}  {:<5}  {:<14}  {:>10}  {:>9}  {:>9}  {}  [{}]",
            time::shown(self.time_us),
            self.op,
            self.decision,
            self.ended,
            took,
            self.bytes_in,
            self.bytes_out,
            self.target,
            self.rule,
        ))
    }
}

/// Prints the log and what it is worth.
///
/// # Errors
/// One sentence.
pub(crate) fn run(log: &Log, tree: bool, filter: &Filter) -> Result<i32, CliError> {
    let report = log.verify()?;
    let (rows, left_out) = rows(log, &report, filter)?;
    let mut text = format!(
        "{:<24}  {:<6}  {:<20}  {:<5}  {:<14}  {:>10}  {:>9}  {:>9}  target [rule]\n",
        "time", "call", "operation", "", "end", "took", "in", "out"
    );
    if tree {
        print_tree(&rows, &mut text);
    } else {
        rows.iter().for_each(|row| {
            text.push_str(&row.text(0));
            text.push('\n');
        });
    }
    output::print(&text);
    if left_out > 0 {
        output::note(&format!(
            "{left_out} more calls are not shown; choose some with --op or --since"
        ));
    }
    output::note(&format!("the log is {}", verdict::sentence(&report)));
    Ok(verdict::exit_code(&report))
}

/// The calls of the lines that hold.
fn rows(log: &Log, report: &VerifyReport, filter: &Filter) -> Result<(Vec<Row>, u64), CliError> {
    let end = match &report.verdict {
        Verdict::Broken { at, .. } => *at,
        _ => report.lines,
    };
    let mut rows: Vec<Row> = Vec::new();
    let mut open = BTreeMap::new();
    let mut left_out = 0_u64;
    for_each_line(log, end, |line| match line.name() {
        "intent" | "sum" => {
            let row = Row::of(line);
            if !filter.takes(&row) {
                return;
            }
            if rows.len() >= MAX_ROWS {
                left_out = left_out.saturating_add(1);
                return;
            }
            if line.name() == "intent" && row.decision == "allow" {
                open.insert(row.call, rows.len());
            }
            rows.push(row);
        }
        "outcome" => {
            let place = line.call.and_then(|call| open.remove(&call));
            if let Some(row) = place.and_then(|place| rows.get_mut(place)) {
                row.finish(line);
            }
        }
        _ => {}
    })?;
    Ok((rows, left_out))
}

/// Calls `each` for the lines of a log before line `end`. They were verified,
/// so what does not parse was set aside.
pub(crate) fn for_each_line(
    log: &Log,
    end: u64,
    mut each: impl FnMut(&Line<'_>),
) -> Result<(), CliError> {
    let mut reader = log.open()?;
    let mut bytes = Vec::new();
    let mut seen = 0;
    while seen < end {
        bytes.clear();
        let read = reader.read_until(b'\n', &mut bytes).map_err(|error| {
            CliError::cannot_tell(format!("the log cannot be read ({error}); try again"))
        })?;
        if read == 0 {
            break;
        }
        let line = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
        if let Ok(line) = Line::parse(line) {
            seen = seen.saturating_add(1);
            each(&line);
        }
    }
    Ok(())
}

fn print_tree(rows: &[Row], text: &mut String) {
    let mut children: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    let calls: BTreeMap<u64, usize> =
        rows.iter().enumerate().map(|(place, row)| (row.call, place)).collect();
    for (place, row) in rows.iter().enumerate() {
        // A call whose parent is not shown stands at the edge.
        let shown = row.parent != row.call && calls.get(&row.parent).is_some_and(|p| *p < place);
        children.entry(if shown { row.parent } else { 0 }).or_default().push(place);
    }
    let mut todo: Vec<(usize, usize)> =
        children.remove(&0).unwrap_or_default().into_iter().rev().map(|place| (place, 0)).collect();
    while let Some((place, depth)) = todo.pop() {
        let Some(row) = rows.get(place) else { continue };
        text.push_str(&row.text(depth));
        text.push('\n');
        let below = children.remove(&row.call).unwrap_or_default();
        todo.extend(below.into_iter().rev().map(|place| (place, depth.saturating_add(1))));
    }
}
