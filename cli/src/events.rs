//! `--json-lines`: what happens, as it happens, one JSON object a line.
//!
//! Invariant: a line is written whole, under one lock; the first is `start`
//! and the last is `end` with the full record.

use std::sync::{Arc, Mutex, PoisonError};

use fumehood::{AuditRecord, AuditSink, Outcome, OutputSink, Stream};
use fumehood_host_fns::{AuditUnavailable, Phase};
use rustix::io::Errno;
use serde_json::{Value, json};

use crate::output::{self, Stop};
use crate::terminal::{Decoder, Invalid};

/// Version of the event lines.
const VERSION: u32 = 1;

/// Writes events to standard output.
#[derive(Debug)]
pub(crate) struct Events {
    inner: Mutex<Inner>,
    stop: Arc<Stop>,
}

#[derive(Debug)]
struct Inner {
    stdout: Decoder,
    stderr: Decoder,
    failed: Option<Errno>,
}

impl Events {
    /// A write that fails stops the run.
    pub(crate) fn new(stop: Arc<Stop>) -> Self {
        let decoder = || Decoder::new(Invalid::Replace);
        let inner = Inner { stdout: decoder(), stderr: decoder(), failed: None };
        Self { inner: Mutex::new(inner), stop }
    }

    /// The run is about to begin, in a native tier if one is named.
    pub(crate) fn start(&self, session: &str, native: Option<&str>) {
        let mut event = json!({
            "event": "start",
            "version": VERSION,
            "session": session,
            "tier": native.unwrap_or("wasm"),
        });
        if native.is_none()
            && let Some(event) = event.as_object_mut()
        {
            event.insert("guest".to_owned(), json!(fumehood::GUEST_DIGEST));
        }
        self.emit(&event);
    }

    /// The program wrote something.
    fn output(&self, stream: Stream, bytes: &[u8]) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let decoder = match stream {
            Stream::Stdout => &mut inner.stdout,
            Stream::Stderr => &mut inner.stderr,
        };
        let text = decoder.push(bytes);
        self.text(&mut inner, stream, &text);
    }

    /// The run is over. Returns why lines could not be written.
    pub(crate) fn end(&self, outcome: &Outcome) -> Option<Errno> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let rest = inner.stdout.finish();
        self.text(&mut inner, Stream::Stdout, &rest);
        let rest = inner.stderr.finish();
        self.text(&mut inner, Stream::Stderr, &rest);
        let record = outcome.to_json();
        let denials = record.get("denials").and_then(Value::as_array).cloned().unwrap_or_default();
        for denial in denials {
            let mut event = json!({ "event": "denial" });
            if let (Value::Object(event), Value::Object(denial)) = (&mut event, denial) {
                event.extend(denial);
            }
            self.write(&mut inner, &event);
        }
        self.write(&mut inner, &json!({ "event": "end", "result": record }));
        inner.failed
    }

    fn text(&self, inner: &mut Inner, stream: Stream, text: &str) {
        if !text.is_empty() {
            let stream = match stream {
                Stream::Stdout => "stdout",
                Stream::Stderr => "stderr",
            };
            self.write(inner, &json!({ "event": "output", "stream": stream, "text": text }));
        }
    }

    fn emit(&self, event: &Value) {
        self.write(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner), event);
    }

    fn write(&self, inner: &mut Inner, event: &Value) {
        if inner.failed.is_none() {
            inner.failed = output::print_json(event).err();
            if inner.failed.is_some() {
                self.stop.stop();
            }
        }
    }
}

impl OutputSink for Events {
    fn write(&self, stream: Stream, bytes: &[u8]) {
        self.output(stream, bytes);
    }
}

impl AuditSink for Events {
    fn record(&self, record: AuditRecord) -> Result<(), AuditUnavailable> {
        // `start` and `end` tell of the run itself.
        if record.operation == "run" {
            return Ok(());
        }
        let mut event = json!({
            "event": "host_call",
            "sequence": record.sequence,
            "call": record.call,
            "operation": record.operation,
            "target": record.target.to_string(),
            "verdict": format!("{:?}", record.verdict).to_lowercase(),
            "rule": &*record.rule,
            "bytes_in": record.bytes_in,
            "bytes_out": record.bytes_out,
        });
        let phase = match record.phase {
            Phase::Intent => json!({ "phase": "intent" }),
            Phase::Outcome(ended @ fumehood_host_fns::Outcome::Failed(errno)) => {
                json!({ "phase": "outcome", "ended": ended.name(), "errno": format!("{errno:?}") })
            }
            Phase::Outcome(ended) => json!({ "phase": "outcome", "ended": ended.name() }),
            Phase::Sum { count, failed } => {
                json!({ "phase": "sum", "count": count, "failed": failed })
            }
        };
        if let (Value::Object(event), Value::Object(phase)) = (&mut event, phase) {
            event.extend(phase);
        }
        self.emit(&event);
        Ok(())
    }
}
