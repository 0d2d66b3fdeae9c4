//! What the guest is told of a request.
//!
//! Invariant: an answer holds no address and no text of the host.

use bytes::Bytes;
use fumehood_guest_abi::{CallError, FetchErrorKind, FetchReply, frame};
use http::{HeaderMap, Version};

use crate::broker::tools::Fail;
use crate::net::{EgressError, latin};
use crate::tools::cut;

/// A frame whose bytes are not copied until the guest gets them.
#[derive(Debug)]
pub(in crate::broker) struct Answer {
    /// The text with its length.
    pub(in crate::broker) head: Vec<u8>,
    pub(in crate::broker) body: Bytes,
}

impl Answer {
    /// The whole frame.
    pub(in crate::broker) fn joined(self) -> Vec<u8> {
        let Self { mut head, body } = self;
        head.extend_from_slice(&body);
        head
    }
}

/// An answer as the guest reads it.
pub(super) fn encode(reply: &FetchReply, body: Bytes) -> Result<Answer, Fail> {
    let text = serde_json::to_vec(reply).map_err(|_| CallError::Failed)?;
    Ok(Answer { head: frame(&text, &[]).ok_or(CallError::TooLarge)?, body })
}

pub(super) fn error(kind: FetchErrorKind, message: String) -> FetchReply {
    FetchReply::Error { kind, message: cut(message) }
}

pub(super) fn invalid(message: String) -> Box<FetchReply> {
    Box::new(error(FetchErrorKind::Invalid, message))
}

/// Names and values, one character for each byte.
pub(super) fn listed(headers: &HeaderMap) -> Vec<(String, String)> {
    headers.iter().map(|(name, value)| (name.as_str().to_owned(), latin(value))).collect()
}

pub(super) fn version_number(version: Version) -> u8 {
    match version {
        Version::HTTP_10 => 10,
        Version::HTTP_2 => 20,
        _ => 11,
    }
}

/// The kind of a fault of the network. What is a denial has none.
pub(super) fn kind_of(error: &EgressError) -> FetchErrorKind {
    match error {
        EgressError::Address(_) | EgressError::Own | EgressError::Limit(_) => {
            FetchErrorKind::Denied
        }
        EgressError::Name | EgressError::Lookup => FetchErrorKind::Name,
        EgressError::Connect | EgressError::Proxy => FetchErrorKind::Connect,
        EgressError::Tls(_) => FetchErrorKind::Tls,
        EgressError::Timeout(_) => FetchErrorKind::Timeout,
        EgressError::Protocol(_) => FetchErrorKind::Protocol,
        EgressError::Closed | EgressError::Internal => FetchErrorKind::Closed,
        EgressError::Bomb => FetchErrorKind::TooLarge,
        EgressError::Decode => FetchErrorKind::Decode,
        EgressError::Length => FetchErrorKind::Invalid,
    }
}
