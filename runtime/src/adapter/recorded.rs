//! The one place where host calls are recorded.
//!
//! Invariant: whatever of the host reaches the guest through a host call is in
//! the transcript: the answer itself, and the bytes of it that were put into
//! guest memory.

use fumehood_host_fns::{HostAnswer, HostCall};

use super::{Answer, carry_out};
use crate::host::Host;

/// One call through the broker; recorded in deterministic mode.
pub(super) fn dispatch(host: &mut Host, call: HostCall<'_>) -> Answer<HostAnswer> {
    if host.metered.is_none() {
        return carry_out(host, call);
    }
    let name = call.name();
    match call {
        HostCall::Random { into } => {
            let answer = carry_out(host, HostCall::Random { into: &mut *into });
            note(host, name, &[], answer, into)
        }
        HostCall::FdPrestatDirName { fd, into } => {
            let answer = carry_out(host, HostCall::FdPrestatDirName { fd, into: &mut *into });
            note(host, name, &[], answer, into)
        }
        HostCall::FdRead { fd, into } => {
            let answer = carry_out(host, HostCall::FdRead { fd, into: &mut *into });
            note(host, name, &[], answer, into)
        }
        HostCall::FdPread { fd, into, offset } => {
            let answer = carry_out(host, HostCall::FdPread { fd, into: &mut *into, offset });
            note(host, name, &[], answer, into)
        }
        HostCall::FdReaddir { fd, into, cookie } => {
            let answer = carry_out(host, HostCall::FdReaddir { fd, into: &mut *into, cookie });
            note(host, name, &[], answer, into)
        }
        HostCall::PathReadlink { dir, path, into } => {
            let answer = carry_out(host, HostCall::PathReadlink { dir, path, into: &mut *into });
            note(host, name, &[], answer, into)
        }
        HostCall::Brokered { op, request, response } => {
            let call = HostCall::Brokered { op, request, response: &mut *response };
            let answer = carry_out(host, call);
            note(host, name, &[], answer, response)
        }
        HostCall::FdWrite { data, .. } | HostCall::FdPwrite { data, .. } => {
            let answer = carry_out(host, call);
            note(host, name, data, answer, &[])
        }
        call => {
            let answer = carry_out(host, call);
            note(host, name, &[], answer, &[])
        }
    }
}

/// Records an answer and gives it back. Of `buffer`, the answer says how much
/// is its own.
fn note(
    host: &mut Host,
    call: &'static str,
    written: &[u8],
    answer: Answer<HostAnswer>,
    buffer: &[u8],
) -> Answer<HostAnswer> {
    let filled = match &answer {
        Ok(HostAnswer::Unit) => buffer.len(),
        Ok(HostAnswer::Size(size)) => usize::try_from(*size).unwrap_or(0),
        // A response that does not fit is not copied.
        Ok(HostAnswer::Brokered(size)) => {
            usize::try_from(*size).ok().filter(|size| *size <= buffer.len()).unwrap_or(0)
        }
        _ => 0,
    };
    if let Some(metered) = &mut host.metered {
        let data = buffer.get(..filled.min(buffer.len())).unwrap_or_default();
        metered.transcript.answer(call, written, &answer, data);
    }
    answer
}
