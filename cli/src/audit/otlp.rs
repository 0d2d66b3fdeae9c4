//! OpenTelemetry spans, as OTLP JSON: one `TracesData` a line, which is what
//! the collector's file receiver reads.
//!
//! Invariant: ids are digests of session and call, so that the same log gives
//! the same spans.

use std::collections::BTreeMap;

use fumehood::audit::{Line, Payload};
use serde_json::{Value, json};

use crate::audit::Log;
use crate::audit::show::for_each_line;
use crate::error::CliError;
use crate::output;

/// Spans in one line.
const SPANS_A_LINE: usize = 256;
/// Calls that may wait for their outcome.
const MAX_OPEN: usize = 100_000;

/// `SPAN_KIND_INTERNAL`.
const INTERNAL: u32 = 1;
/// `STATUS_CODE_OK` and `STATUS_CODE_ERROR`.
const OK: u32 = 1;
const ERROR: u32 = 2;

fn id(text: &str, bytes: usize) -> String {
    let digest = Payload::of(text.as_bytes()).digest.unwrap_or_default();
    digest.iter().take(bytes).map(|byte| format!("{byte:02x}")).collect()
}

fn text(key: &str, value: &str) -> Value {
    json!({ "key": key, "value": { "stringValue": value } })
}

fn number(key: &str, value: u64) -> Value {
    // OTLP JSON writes 64-bit integers as text.
    json!({ "key": key, "value": { "intValue": value.to_string() } })
}

struct Spans {
    session: String,
    ready: Vec<Value>,
    open: BTreeMap<u64, Value>,
}

impl Spans {
    fn flush(&mut self, least: usize) {
        if self.ready.len() < least.max(1) {
            return;
        }
        let spans = std::mem::take(&mut self.ready);
        let _ = output::print_json(&json!({ "resourceSpans": [{
            "resource": { "attributes": [
                text("service.name", "fumehood"),
                text("fumehood.session", &self.session),
            ] },
            "scopeSpans": [{
                "scope": { "name": "fumehood.audit", "version": env!("CARGO_PKG_VERSION") },
                "spans": spans,
            }],
        }]}));
    }

    fn begin(&mut self, line: &Line<'_>) -> Value {
        if self.session.is_empty() {
            line.session.as_deref().unwrap_or_default().clone_into(&mut self.session);
        }
        let call = line.call.unwrap_or_default();
        let parent = line.parent.unwrap_or_default();
        let span_id = |call: u64| id(&format!("{}/{call}", self.session), 8);
        let field = |value: &Option<fumehood::audit::Text<'_>>| {
            value.as_deref().unwrap_or_default().to_owned()
        };
        let mut attributes = vec![
            text("fumehood.target", &field(&line.target)),
            text("fumehood.decision", &field(&line.decision)),
            text("fumehood.rule", &field(&line.rule)),
            text("fumehood.tier", &field(&line.tier)),
            number("fumehood.call", call),
            number("fumehood.bytes_out", line.bytes_out.unwrap_or_default()),
        ];
        if let Some(count) = line.count {
            attributes.push(number("fumehood.count", count));
        }
        let denied = line.decision.as_deref() != Some("allow");
        let time = (u128::from(line.time_us.unwrap_or_default()) * 1000).to_string();
        json!({
            "traceId": id(&self.session, 16),
            "spanId": span_id(call),
            "parentSpanId": if parent == 0 { String::new() } else { span_id(parent) },
            "name": field(&line.operation),
            "kind": INTERNAL,
            "startTimeUnixNano": time,
            "endTimeUnixNano": time,
            "attributes": attributes,
            "status": { "code": if denied { ERROR } else { OK } },
        })
    }

    fn end(mut span: Value, line: &Line<'_>) -> Value {
        let ended = line.ended.as_deref().unwrap_or("unknown");
        let time = (u128::from(line.time_us.unwrap_or_default()) * 1000).to_string();
        let failed = !matches!(ended, "done" | "redirected" | "completed");
        if let Value::Object(span) = &mut span {
            span.insert("endTimeUnixNano".to_owned(), json!(time));
            span.insert("status".to_owned(), json!({ "code": if failed { ERROR } else { OK } }));
            if let Some(Value::Array(attributes)) = span.get_mut("attributes") {
                attributes.push(text("fumehood.ended", ended));
                attributes.push(number("fumehood.bytes_in", line.bytes_in.unwrap_or_default()));
                if let Some(error) = line.error.as_deref() {
                    attributes.push(text("fumehood.error", error));
                }
            }
        }
        span
    }
}

/// Prints the calls of the lines before `end` as spans.
///
/// # Errors
/// One sentence.
pub(crate) fn spans(log: &Log, end: u64) -> Result<(), CliError> {
    let mut spans = Spans { session: String::new(), ready: Vec::new(), open: BTreeMap::new() };
    for_each_line(log, end, |line| {
        match line.name() {
            "intent" | "sum" => {
                let span = spans.begin(line);
                let waits = line.name() == "intent" && line.decision.as_deref() == Some("allow");
                if waits && spans.open.len() < MAX_OPEN {
                    spans.open.insert(line.call.unwrap_or_default(), span);
                } else {
                    spans.ready.push(span);
                }
            }
            "outcome" => {
                if let Some(span) = line.call.and_then(|call| spans.open.remove(&call)) {
                    spans.ready.push(Spans::end(span, line));
                }
            }
            _ => {}
        }
        spans.flush(SPANS_A_LINE);
    })?;
    // What has no outcome is unknown.
    let nothing = Line::default();
    while let Some((_, mut span)) = spans.open.pop_first() {
        let start = span.get("startTimeUnixNano").cloned().unwrap_or_default();
        span = Spans::end(span, &nothing);
        if let Value::Object(span) = &mut span {
            span.insert("endTimeUnixNano".to_owned(), start);
        }
        spans.ready.push(span);
    }
    spans.flush(1);
    Ok(())
}
