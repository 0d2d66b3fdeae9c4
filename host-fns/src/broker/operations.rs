//! The brokered operations behind `fumehood.call`.
//!
//! Invariant: a request is measured before it is parsed; at most one response
//! waits, and it is no longer than a request may be.

use std::sync::Arc;

use bytes::Bytes;
use fumehood_guest_abi::{CallError, Display, decode, fetch_op, op};

use crate::audit::Target;
use crate::broker::fetch::Answer;
use crate::broker::tools::Fail;
use crate::broker::{Broker, Refusal};

/// The content types of a display.
pub const DISPLAY_TYPES: [&str; 5] =
    ["text/plain", "text/html", "image/svg+xml", "image/png", "application/json"];

/// The longest content type, so that a record's size can be bounded.
const MIME_BYTES: u64 = 64;

/// A response before it is copied.
enum Response {
    Own(Vec<u8>),
    Shared(Bytes),
    Framed(Answer),
}

impl Response {
    /// Its two parts, one after the other.
    fn parts(&self) -> [&[u8]; 2] {
        match self {
            Self::Own(bytes) => [bytes, &[]],
            Self::Shared(bytes) => [bytes, &[]],
            Self::Framed(answer) => [&answer.head, &answer.body],
        }
    }

    fn into_bytes(self) -> Bytes {
        match self {
            Self::Own(bytes) => bytes.into(),
            Self::Shared(bytes) => bytes,
            Self::Framed(answer) => answer.joined().into(),
        }
    }
}

impl Broker {
    /// Carries one operation out: the length of its response, or a
    /// [`CallError`].
    ///
    /// # Errors
    /// [`Refusal::Stop`] only.
    pub(super) fn operate(
        &mut self,
        number: u32,
        request: &[u8],
        response: &mut [u8],
    ) -> Result<i64, Refusal> {
        if request.len() as u64 > u64::from(self.limits.request_bytes) {
            return Ok(CallError::TooLarge as i64);
        }
        self.usage.bytes_out = self.usage.bytes_out.saturating_add(request.len() as u64);
        match self.record_of(number, request) {
            Ok(bytes) => Ok(self.respond(bytes, response)),
            Err(Fail::Code(error)) => Ok(error as i64),
            Err(Fail::Stop(reason)) => Err(Refusal::Stop(reason)),
        }
    }

    /// The response of an operation.
    fn record_of(&mut self, number: u32, request: &[u8]) -> Result<Response, Fail> {
        let nothing = Response::Own(Vec::new());
        match number {
            op::TAKE => {
                Ok(self.pending.take().map(Response::Shared).ok_or(CallError::NothingPending)?)
            }
            op::NOOP => Ok(nothing),
            op::DISPLAY => Ok(self.display(request).map(|()| nothing)?),
            op::TOOL_LIST => {
                Ok(Response::Shared(Bytes::from_owner(Arc::clone(self.tools.set().list()))))
            }
            op::TOOL_CALL => self.tool_call(request).map(Response::Own),
            op::TOOL_START => self.tool_start(request).map(Response::Own),
            op::TOOL_WAIT => self.tool_wait(request).map(Response::Own),
            op::TOOL_CANCEL => self.tool_cancel(request).map(|()| nothing),
            op::TOOL_SEARCH => self.tool_search(request).map(Response::Own),
            op::TOOL_DESCRIBE => self.tool_describe(request).map(Response::Own),
            op::BASH_RUN => self.bash_run(request).map(Response::Own),
            op::BASH_TIER => self.bash_tier().map(Response::Own),
            fetch_op::FETCH_START => self.fetch_start(request).map(Response::Framed),
            fetch_op::FETCH_WRITE => self.fetch_write(request).map(Response::Framed),
            fetch_op::FETCH_HEAD => self.fetch_head(request).map(Response::Framed),
            fetch_op::FETCH_READ => self.fetch_read(request).map(Response::Framed),
            fetch_op::FETCH_CLOSE => self.fetch_close(request).map(Response::Framed),
            _ => Err(CallError::UnknownOperation.into()),
        }
    }

    /// Copies a response, or keeps it for [`op::TAKE`] if it does not fit.
    fn respond(&mut self, bytes: Response, response: &mut [u8]) -> i64 {
        let [first, second] = bytes.parts();
        let length = first.len().saturating_add(second.len());
        if length as u64 > u64::from(self.limits.request_bytes) {
            return CallError::TooLarge as i64;
        }
        match response.get_mut(..length).and_then(|into| into.split_at_mut_checked(first.len())) {
            Some((into_first, into_second)) => {
                into_first.copy_from_slice(first);
                into_second.copy_from_slice(second);
                self.pending = None;
                self.usage.bytes_in = self.usage.bytes_in.saturating_add(length as u64);
            }
            None => self.pending = Some(bytes.into_bytes()),
        }
        i64::try_from(length).unwrap_or(CallError::Failed as i64)
    }

    fn display(&mut self, request: &[u8]) -> Result<(), CallError> {
        if request.len() as u64 > self.limits.display_bytes.saturating_add(MIME_BYTES) {
            return Err(CallError::TooLarge);
        }
        let display: Display = decode(request).map_err(|_| CallError::Malformed)?;
        if !DISPLAY_TYPES.contains(&display.mime.as_str()) {
            return Err(CallError::Malformed);
        }
        if display.bytes.len() as u64 > self.limits.display_bytes {
            return Err(CallError::TooLarge);
        }
        if self.displays.len() as u64 >= u64::from(self.limits.displays) {
            self.pipeline.ledger.deny_limit("display", &Target::Name("display"), "displays");
            return Err(CallError::Denied);
        }
        self.totals.display.count(0, request.len() as u64);
        self.displays.push(display);
        Ok(())
    }
}
