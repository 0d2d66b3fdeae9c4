//! What carries out one exchange.
//!
//! Invariant: an exchange is started with a [`Checked`] request and nothing
//! else; dropping it ends it. Its errors hold no address and no text of the
//! host.

use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use fumehood_policies::{AddressClass, NetRequest};
use http::{HeaderMap, StatusCode, Version};

use super::{Allowance, RequestHeaders};
use crate::pipeline::Checked;

/// Carries out exchanges: one request, one response, no redirect.
pub trait Egress: Send + Sync {
    /// Starts an exchange and returns at once. Called on the guest's thread.
    fn start(&self, checked: &Checked<'_, NetRequest>, order: Order) -> Box<dyn Exchange>;

    /// Gives up connections that are kept for later requests, because another
    /// policy holds now.
    fn forget(&self);
}

/// What an exchange needs beside the request.
#[derive(Debug)]
pub struct Order {
    /// The headers.
    pub headers: RequestHeaders,
    /// The body.
    pub body: OrderBody,
    /// What the response draws on.
    pub download: Allowance,
    /// Whether the response is decompressed.
    pub decode: bool,
    /// Longest wait for each step: the lookup, the connection, its encryption,
    /// the head, and each piece of a body.
    pub timeout: Option<Duration>,
}

/// The body of a request.
#[derive(Clone, Debug)]
pub enum OrderBody {
    /// There is none.
    None,
    /// All of it.
    Bytes(Bytes),
    /// It comes by [`Exchange::write`]; its length, if it is known.
    Stream(Option<u64>),
}

/// The head of a response.
#[derive(Clone, Debug)]
pub struct ResponseHead {
    /// The status.
    pub status: StatusCode,
    /// Its text, if it is not the usual one.
    pub reason: String,
    /// The protocol.
    pub version: Version,
    /// The headers.
    pub headers: HeaderMap,
    /// Whether the body is decompressed on the way.
    pub decoded: bool,
}

/// An exchange that is going on. Dropping it gives it up.
pub trait Exchange: Send {
    /// Ready when the response has begun.
    ///
    /// # Errors
    /// [`EgressError`]; after it the exchange is over.
    fn poll_head(&mut self, context: &mut Context<'_>) -> Poll<Result<ResponseHead, EgressError>>;

    /// Ready with up to `most` bytes of the body; `None` at its end.
    ///
    /// # Errors
    /// [`EgressError`]; after it the exchange is over.
    fn poll_body(
        &mut self,
        context: &mut Context<'_>,
        most: usize,
    ) -> Poll<Result<Option<Bytes>, EgressError>>;

    /// Ready when [`Exchange::write`] takes a piece; `false` if nobody takes
    /// pieces any more, which the head will explain.
    fn poll_room(&mut self, context: &mut Context<'_>) -> Poll<bool>;

    /// Gives a piece of a streamed body.
    fn write(&mut self, piece: Bytes);

    /// Ends a streamed body.
    fn end(&mut self);

    /// SHA-256 of the whole body of the response, once it has ended.
    fn digest(&self) -> Option<[u8; 32]> {
        None
    }
}

/// Why an exchange failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EgressError {
    /// The name leads to no address that the request may reach.
    #[error("the name leads to an address that is {}", .0.name())]
    Address(AddressClass),
    /// It would have connected to a server of this very program.
    #[error("the address is a server of this program")]
    Own,
    /// A budget or bound is used up.
    #[error("`{0}` is used up")]
    Limit(String),
    /// The name has no address.
    #[error("the name has no address")]
    Name,
    /// The name servers gave no answer.
    #[error("the name could not be looked up")]
    Lookup,
    /// No address accepted a connection.
    #[error("no connection could be made")]
    Connect,
    /// The operator's proxy did not make the connection.
    #[error("the upstream proxy did not make the connection")]
    Proxy,
    /// The encrypted connection could not be made.
    #[error("the encrypted connection could not be made: {0}")]
    Tls(String),
    /// It took longer than it may.
    #[error("{0} took too long")]
    Timeout(&'static str),
    /// What the server sent is no HTTP, or more than is accepted.
    #[error("the server sent {0}")]
    Protocol(&'static str),
    /// The connection ended too early.
    #[error("the connection ended before the response was complete")]
    Closed,
    /// The decompressed body is out of proportion.
    #[error("the body grows out of proportion when it is decompressed")]
    Bomb,
    /// The body is not what its encoding says.
    #[error("the body could not be decompressed")]
    Decode,
    /// The request's own body did not have the length that was announced.
    #[error("the request's body does not have the length that was announced")]
    Length,
    /// Host code failed.
    #[error("the broker failed")]
    Internal,
}
