//! The calls of the embedder's tools.
//!
//! What: one call that is waited for, and calls that are started, waited for
//! together and given up.
//!
//! Invariant: arguments are measured, parsed and checked against the schema
//! before anything is recorded; then the pipeline decides. Every started call
//! is in `running` until its outcome is written. Arguments and values that are
//! held for started calls have at most `tool_waiting_bytes`. A started call
//! whose time is over is stopped at the next host call, whichever it is. In
//! order, what the guest is told of started calls does not depend on when they
//! end: a wait is for the oldest.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Poll, Waker};
use std::time::Duration;

use fumehood_guest_abi::{CallError, ToolErrorKind, ToolSearch, ToolWait, decode, encode};
use fumehood_policies::{Canonical, JsonError, ToolRequest, ToolRequestError};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use crate::audit::preview::preview;
use crate::audit::{Outcome, Payload, Target};
use crate::broker::file_tools::Fault;
use crate::broker::{Broker, StopReason};
use crate::environment::{Stopwatch, WaitResult, Wake};
use crate::pipeline::{Effect as _, Refused};
use crate::tools::{
    Ended, Executor, FileTool, MAX_RESULT_DEPTH, MAX_TOOL_MESSAGE_BYTES, Task, Tool, Unfit, capped,
    cut, to_json,
};

mod running;

use running::Running;
pub(super) use running::Tools;

/// What a record has around a value: its tags, its id and its length.
pub(super) const RECORD_BYTES: u64 = 32;

/// Room that the longest message of a failed call takes in a response.
const MESSAGE_ROOM: u64 = MAX_TOOL_MESSAGE_BYTES as u64 + 2 * RECORD_BYTES;

/// Why an operation gives no record.
#[derive(Debug)]
pub(super) enum Fail {
    /// The guest gets this code.
    Code(CallError),
    /// The run must end.
    Stop(StopReason),
}

impl From<CallError> for Fail {
    fn from(code: CallError) -> Self {
        Self::Code(code)
    }
}

/// JSON text, encoded as the bytes of the record's `Vec<u8>`.
#[derive(Debug)]
pub(super) struct Json(Vec<u8>);

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

/// `ToolCall`, borrowed from the request.
#[derive(Deserialize)]
struct CallRecord<'r> {
    name: &'r str,
    arguments: &'r [u8],
}

/// `ToolReply`, encoded without a step for each byte.
#[derive(Debug, Serialize)]
pub(super) enum Reply {
    Value(Json),
    Raised { kind: ToolErrorKind, message: String },
}

/// `ToolStarted`.
#[derive(Debug, Serialize)]
enum Started {
    Ended(Reply),
    Running { id: u64 },
}

/// `ToolEnded`.
#[derive(Debug, Serialize)]
pub(super) struct EndedRecord {
    pub(super) id: u64,
    pub(super) reply: Reply,
}

impl Reply {
    fn raised(kind: ToolErrorKind, message: String) -> Self {
        Self::Raised { kind, message: cut(message) }
    }

    fn denied(refused: &Refused) -> Self {
        Self::raised(ToolErrorKind::Denied, refused.sentence())
    }

    /// A frame, as the value that `op::TOOL_WAIT` tells of.
    pub(super) fn frame(frame: Vec<u8>) -> Self {
        Self::Value(Json(frame))
    }

    pub(super) fn bytes(&self) -> u64 {
        let text = match self {
            Self::Value(Json(text)) => text.len(),
            Self::Raised { message, .. } => message.len(),
        };
        (text as u64).saturating_add(RECORD_BYTES)
    }
}

fn record<T: Serialize>(value: &T) -> Result<Vec<u8>, Fail> {
    encode(value).map_err(|_| Fail::Code(CallError::Failed))
}

/// Why a call from the embedder gave nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ToolCallError {
    /// What kind of failure; `None` if the run is to end.
    pub kind: Option<ToolErrorKind>,
    /// One or two sentences, as the guest would see them.
    pub message: String,
}

impl ToolCallError {
    fn failed(message: &str) -> Self {
        Self { kind: Some(ToolErrorKind::Failed), message: message.to_owned() }
    }
}

/// A call that was understood and fits its tool.
struct Prepared {
    tool: Arc<Tool>,
    request: Canonical<ToolRequest>,
    asked: Payload,
}

/// What an end means: for the audit, and for the guest or the run.
struct Meaning {
    outcome: Outcome,
    given: Payload,
    reply: Result<Reply, StopReason>,
}

fn meaning(tool: &Tool, ended: Ended) -> Meaning {
    let name = tool.name();
    let raised = |outcome, kind, message| Meaning {
        outcome,
        given: Payload::default(),
        reply: Ok(Reply::raised(kind, message)),
    };
    let stop = |outcome, reason| Meaning { outcome, given: Payload::default(), reply: Err(reason) };
    match ended {
        Ended::Value(json) => {
            let given = Payload::of(&json);
            Meaning { outcome: Outcome::Done, given, reply: Ok(Reply::Value(Json(json))) }
        }
        Ended::Failed { message, source } => {
            if let Some(source) = &source {
                tracing::warn!(tool = name, %source, "a tool failed");
            }
            raised(Outcome::ToolError, ToolErrorKind::Failed, message)
        }
        Ended::TooLarge(what) => {
            raised(Outcome::TooLarge, ToolErrorKind::TooLarge, format!("`{name}`: {what}"))
        }
        Ended::TimedOut => {
            let limit = tool.time_limit();
            let message = format!("`{name}` took longer than {limit:?}");
            raised(Outcome::TimedOut, ToolErrorKind::TimedOut, message)
        }
        Ended::Dropped => {
            let message = format!("`{name}` was stopped by its host before it ended");
            raised(Outcome::Cancelled, ToolErrorKind::Failed, message)
        }
        Ended::Interrupted => stop(Outcome::Cancelled, StopReason::Interrupted),
        Ended::Panicked(detail) => {
            stop(Outcome::Unknown, StopReason::Fault(report_fault(name, &detail)))
        }
    }
}

/// Logs a panic and returns the reference under which it was logged.
pub(super) fn report_fault(tool: &str, detail: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let reference = format!("tool-fault-{}-{number}", std::process::id());
    tracing::error!(reference, tool, detail, "a tool panicked");
    reference
}

impl Broker {
    /// Understands a call and checks it against the tool's schema. Nothing is
    /// decided or recorded yet.
    fn prepare(&self, request: &[u8]) -> Result<Result<Prepared, Reply>, CallError> {
        let CallRecord { name, arguments } = decode(request).map_err(|_| CallError::Malformed)?;
        let Some(tool) = self.tools.set.get(name) else {
            let shown = capped(format_args!("{}", name.escape_debug()), 64);
            let message = format!("no tool has the name `{shown}`");
            return Ok(Err(Reply::raised(ToolErrorKind::Unknown, message)));
        };
        let limit = usize::try_from(self.limits.request_bytes).unwrap_or(usize::MAX);
        let request = match ToolRequest::parse(tool.name(), arguments, limit) {
            Ok(request) => request,
            Err(error) => {
                let kind = match error {
                    ToolRequestError::Json(
                        JsonError::TooLarge { .. } | JsonError::TooManyValues,
                    ) => ToolErrorKind::TooLarge,
                    _ => ToolErrorKind::Arguments,
                };
                return Ok(Err(Reply::raised(kind, format!("`{}`: {error}", tool.name()))));
            }
        };
        if let Err(message) = tool.check_arguments(request.get().arguments()) {
            return Ok(Err(Reply::raised(ToolErrorKind::Arguments, message)));
        }
        let tool = Arc::clone(tool);
        Ok(Ok(Prepared { tool, request, asked: Payload::of(arguments) }))
    }

    /// `op::TOOL_CALL`.
    pub(super) fn tool_call(&mut self, request: &[u8]) -> Result<Vec<u8>, Fail> {
        let prepared = match self.prepare(request)? {
            Ok(prepared) => prepared,
            Err(reply) => return record(&reply),
        };
        record(&self.call_now(prepared)?)
    }

    /// Carries one of the broker's own tools out: the call is decided and
    /// recorded, and then each of its steps.
    fn call_built_in(&mut self, tool: FileTool, prepared: Prepared) -> Result<Reply, Fail> {
        let Prepared { request, asked, .. } = prepared;
        let most = self.limits.request_bytes;
        let (arguments, suspended, limit) = match self.pipeline.check_with(request, asked) {
            Ok(checked) => {
                let limit = result_limit(most, checked.response_limit());
                (checked.get().arguments().clone(), checked.suspend(), limit)
            }
            Err(refused) => return Ok(Reply::denied(&refused)),
        };
        let told = self.file_tool(tool, &arguments);
        let nothing = Payload::default();
        let (outcome, given, reply) = match told {
            Ok(text) => {
                let json = Value::String(text).to_string().into_bytes();
                if json.len() > limit {
                    let message = format!("the result has more than {limit} bytes");
                    (
                        Outcome::TooLarge,
                        nothing,
                        Ok(Reply::raised(ToolErrorKind::TooLarge, message)),
                    )
                } else {
                    (Outcome::Done, Payload::of(&json), Ok(Reply::Value(Json(json))))
                }
            }
            Err(Fault::Message(message)) => {
                (Outcome::ToolError, nothing, Ok(Reply::raised(ToolErrorKind::Failed, message)))
            }
            Err(Fault::Interrupted) => {
                (Outcome::Cancelled, nothing, Err(Fail::Stop(StopReason::Interrupted)))
            }
        };
        self.pipeline.conclude(suspended, outcome, given);
        reply
    }

    /// Calls a tool from the embedder, as the guest would: the same schema,
    /// decision, audit and budgets. Waits for its end.
    ///
    /// # Errors
    /// [`ToolCallError`]: the tool's own message, a denial, or that the run is
    /// to end.
    pub fn call_tool(&mut self, name: &str, arguments: &Value) -> Result<Value, ToolCallError> {
        self.follow_policy();
        let most = usize::try_from(self.limits.request_bytes).unwrap_or(usize::MAX);
        let arguments = to_json(arguments, most).map_err(|unfit| match unfit {
            Unfit::TooLong => ToolCallError {
                kind: Some(ToolErrorKind::TooLarge),
                message: format!("the arguments have more than {most} bytes"),
            },
            Unfit::TooDeep => ToolCallError {
                kind: Some(ToolErrorKind::Arguments),
                message: format!("the arguments nest deeper than {MAX_RESULT_DEPTH}"),
            },
        })?;
        let record = fumehood_guest_abi::ToolCall { name: name.to_owned(), arguments };
        let request =
            encode(&record).map_err(|_| ToolCallError::failed("the call is malformed"))?;
        let reply = match self.prepare(&request) {
            Ok(Ok(prepared)) => self.call_now(prepared),
            Ok(Err(reply)) => Ok(reply),
            Err(code) => Err(Fail::Code(code)),
        };
        match reply {
            Ok(Reply::Value(Json(json))) => serde_json::from_slice(&json)
                .map_err(|_| ToolCallError::failed("the result is not JSON")),
            Ok(Reply::Raised { kind, message }) => Err(ToolCallError { kind: Some(kind), message }),
            Err(Fail::Code(_)) => Err(ToolCallError::failed("the call is malformed")),
            Err(Fail::Stop(_)) => {
                Err(ToolCallError { kind: None, message: "the run is to end".to_owned() })
            }
        }
    }

    fn call_now(&mut self, prepared: Prepared) -> Result<Reply, Fail> {
        if let Some(built_in) = prepared.tool.built_in() {
            return self.call_built_in(built_in, prepared);
        }
        let Prepared { tool, request, asked } = prepared;
        let most = self.limits.request_bytes;
        let shown = previewed(&tool, &request);
        let checked = match self.pipeline.check_previewed(request, asked, shown) {
            Ok(checked) => checked,
            Err(refused) => return Ok(Reply::denied(&refused)),
        };
        let limit = result_limit(most, checked.response_limit());
        let ended = match Task::start(&tool, &checked, limit) {
            Ok(task) => {
                let executor = self.tools.executor.as_deref();
                task.drive(executor, self.waiter.as_ref(), tool.time_limit())
            }
            Err(ended) => ended,
        };
        let Meaning { outcome, given, reply } = meaning(&tool, ended);
        checked.conclude_with(outcome, given);
        reply.map_err(Fail::Stop)
    }

    /// `op::TOOL_START`. Without an executor the call is waited for.
    pub(super) fn tool_start(&mut self, request: &[u8]) -> Result<Vec<u8>, Fail> {
        let prepared = match self.prepare(request)? {
            Ok(prepared) => prepared,
            Err(reply) => return record(&Started::Ended(reply)),
        };
        let started = match self.tools.executor.clone() {
            Some(executor) if prepared.tool.built_in().is_none() => {
                self.start_on(executor.as_ref(), prepared)?
            }
            _ => Started::Ended(self.call_now(prepared)?),
        };
        record(&started)
    }

    fn start_on(&mut self, executor: &dyn Executor, prepared: Prepared) -> Result<Started, Fail> {
        let Prepared { tool, request, asked } = prepared;
        let argument_bytes = asked.bytes;
        let in_flight = self.tools.running.len() as u64;
        let full = if in_flight >= u64::from(self.limits.tool_calls_in_flight) {
            Some("tool_calls_in_flight")
        } else if !self.tools.completions.charge(argument_bytes) {
            Some("tool_waiting_bytes")
        } else {
            None
        };
        if let Some(limit) = full {
            let (operation, target) = (request.get().operation(), Target::Tool(tool.shared_name()));
            self.pipeline.ledger.next_call();
            let refused = self.pipeline.ledger.deny_limit(operation, &target, limit);
            return Ok(Started::Ended(Reply::denied(&refused)));
        }
        let most = self.limits.request_bytes;
        let shown = previewed(&tool, &request);
        let checked = match self.pipeline.check_previewed(request, asked, shown) {
            Ok(checked) => checked,
            Err(refused) => {
                self.tools.completions.release(argument_bytes);
                return Ok(Started::Ended(Reply::denied(&refused)));
            }
        };
        let limit = result_limit(most, checked.response_limit());
        let deadline = self.tools.completions.now().saturating_add(tool.time_limit());
        let first = Task::start(&tool, &checked, limit);
        let in_order = self.tools.are_in_order();
        let first = first.and_then(|mut task| {
            if in_order {
                return Ok(task);
            }
            // It is polled again where it goes on, with that place's waker.
            match task.poll_within(Some(executor), Waker::noop()) {
                Poll::Pending => Ok(task),
                Poll::Ready(ended) => {
                    Err(ended.unless_late(self.tools.completions.now() > deadline))
                }
            }
        });
        let task = match first {
            Ok(task) => task,
            Err(ended) => {
                self.tools.completions.release(argument_bytes);
                let Meaning { outcome, given, reply } = meaning(&tool, ended);
                checked.conclude_with(outcome, given);
                return reply.map(Started::Ended).map_err(Fail::Stop);
            }
        };
        let suspended = checked.suspend();
        let tools = &mut self.tools;
        let id = tools.next_id();
        let handle = Some(executor.spawn(tools.completions.follow(id, task, deadline)));
        tools.insert(id, Running { suspended, tool, argument_bytes, deadline, handle });
        Ok(Started::Running { id })
    }

    /// `op::TOOL_WAIT`: parks until a started call has ended, or the time is
    /// over. With nothing to wait for and no time it returns at once.
    pub(super) fn tool_wait(&mut self, request: &[u8]) -> Result<Vec<u8>, Fail> {
        let ToolWait { timeout_ns } = decode(request).map_err(|_| CallError::Malformed)?;
        let timeout = timeout_ns.map(Duration::from_nanos);
        if self.tools.are_in_order() {
            return self.wait_for_oldest(timeout);
        }
        let watch = Stopwatch::start();
        loop {
            let mut ended = self.ended_calls()?;
            self.ended_fetches(&mut ended)?;
            let left = timeout.map(|timeout| timeout.saturating_sub(watch.elapsed()));
            let waits = !self.tools.running.is_empty() || self.fetches.are_pending();
            let nothing = !waits && timeout.is_none();
            if !ended.is_empty() || nothing || left == Some(Duration::ZERO) {
                return record(&ended);
            }
            let park = left.into_iter().chain(self.tools.next_timeout()).min();
            if self.park(park.unwrap_or(Duration::MAX)) == Wake::Interrupted {
                return Err(Fail::Stop(StopReason::Interrupted));
            }
        }
    }

    /// Parks until the oldest started call has ended, however long that takes:
    /// calls take no virtual time. With none, the time passes.
    fn wait_for_oldest(&mut self, timeout: Option<Duration>) -> Result<Vec<u8>, Fail> {
        loop {
            let ended = self.ended_calls()?;
            if !ended.is_empty() {
                return record(&ended);
            }
            let Some(park) = self.tools.next_timeout() else {
                return match timeout.map(|timeout| self.wait_for(timeout)) {
                    Some(WaitResult::Interrupted) => Err(Fail::Stop(StopReason::Interrupted)),
                    Some(WaitResult::Elapsed) | None => record(&ended),
                };
            };
            if self.park(park) == Wake::Interrupted {
                return Err(Fail::Stop(StopReason::Interrupted));
            }
        }
    }

    /// Concludes started calls that have ended, as many as fit one response; in
    /// order, one.
    fn ended_calls(&mut self) -> Result<Vec<EndedRecord>, Fail> {
        let most = u64::from(self.limits.request_bytes).saturating_sub(RECORD_BYTES);
        let mut room = most;
        let mut records = Vec::new();
        while room >= MESSAGE_ROOM || records.is_empty() {
            let fits = room.saturating_sub(RECORD_BYTES);
            let Some((id, running, ended)) = self.tools.next_ended(fits) else { break };
            let Meaning { outcome, given, reply } = meaning(&running.tool, ended);
            self.pipeline.conclude(running.suspended, outcome, given);
            let reply = reply.map_err(Fail::Stop)?;
            room = room.saturating_sub(reply.bytes());
            records.push(EndedRecord { id, reply });
            if self.tools.are_in_order() {
                break;
            }
        }
        Ok(records)
    }

    /// `op::TOOL_CANCEL`. A call that has ended in the meantime has its own
    /// outcome; one that is not known is none of this guest's any more.
    pub(super) fn tool_cancel(&mut self, request: &[u8]) -> Result<(), Fail> {
        let id: u64 = decode(request).map_err(|_| CallError::Malformed)?;
        self.give_up(id);
        Ok(())
    }

    fn give_up(&mut self, id: u64) {
        let Some(running) = self.tools.remove(id) else { return };
        let ended = self.tools.completions.take(id).unwrap_or(Ended::Dropped);
        let outcome = meaning(&running.tool, ended).outcome;
        // The guest is told nothing of it.
        self.pipeline.conclude(running.suspended, outcome, Payload::default());
    }

    /// Gives up every started call: the run is over or was taken back.
    pub(super) fn give_up_tool_calls(&mut self) {
        while let Some(id) = self.tools.running.keys().next().copied() {
            self.give_up(id);
        }
        // Of calls that were given up before.
        while self.tools.completions.take_first(u64::MAX).is_some() {}
    }

    /// `op::TOOL_SEARCH`.
    pub(super) fn tool_search(&self, request: &[u8]) -> Result<Vec<u8>, Fail> {
        let ToolSearch { query, limit } = decode(request).map_err(|_| CallError::Malformed)?;
        record(&self.tools.set.search(&query, limit as usize))
    }

    /// `op::TOOL_DESCRIBE`.
    pub(super) fn tool_describe(&self, request: &[u8]) -> Result<Vec<u8>, Fail> {
        let name: &str = decode(request).map_err(|_| CallError::Malformed)?;
        Ok(self.tools.set.describe(name).unwrap_or_default().into_bytes())
    }
}

/// Most bytes of one result: what fits a response of `most` bytes, with room
/// for the two records around it, or less if the rule says so.
fn result_limit(most: u32, by_rule: Option<u64>) -> usize {
    let most = u64::from(most).saturating_sub(RECORD_BYTES.saturating_mul(3));
    usize::try_from(most.min(by_rule.unwrap_or(u64::MAX))).unwrap_or(usize::MAX)
}

/// What the audit shows of the arguments.
fn previewed(tool: &Tool, request: &Canonical<ToolRequest>) -> Option<Arc<str>> {
    let arguments = request.get().argument_map().filter(|arguments| !arguments.is_empty())?;
    Some(preview(tool.schema(), arguments).into())
}
