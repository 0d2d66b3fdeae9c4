//! The records of network requests.
//!
//! A message is a frame: the length of a JSON text as four bytes, least
//! significant first, the text, and any bytes behind it. Python has a fast
//! reader for JSON and none for records, and bodies stay bytes.
//!
//! Header values are bytes; as JSON strings they are ISO 8859-1, one character
//! for each byte, as `http.client` has them.

use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// Fixed numbers of the operations on requests. A number is never reused.
///
/// An operation that waits is given `"wait": false` by a guest that has other
/// things to do: if it cannot be answered at once, the answer is
/// [`super::FetchReply::Pending`] with a number, and `TOOL_WAIT` later tells of
/// that number, as of a tool's call, with the frame as its value.
pub mod op {
    /// Starts a request: [`super::FetchStart`] and, if its body is
    /// [`super::FetchBody::Bytes`], the body; to [`super::FetchReply::Started`].
    pub const FETCH_START: u32 = 48;
    /// Sends a piece of a streamed body: [`super::FetchWrite`] and the bytes.
    pub const FETCH_WRITE: u32 = 49;
    /// Waits for the head of the response: [`super::FetchHandle`] to
    /// [`super::FetchReply::Head`].
    pub const FETCH_HEAD: u32 = 50;
    /// Waits for a piece of the response: [`super::FetchRead`] to
    /// [`super::FetchReply::Data`] and the bytes.
    pub const FETCH_READ: u32 = 51;
    /// Gives a request up, or forgets one that has ended: [`super::FetchHandle`].
    pub const FETCH_CLOSE: u32 = 52;
}

/// The request of [`op::FETCH_START`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FetchStart {
    /// One of the methods of policies, in capitals.
    pub method: String,
    /// A whole URL, http or https.
    pub url: String,
    /// Names and values, in order.
    #[serde(default)]
    pub headers: Vec<(String, String)>,
    /// Where the body comes from.
    #[serde(default)]
    pub body: FetchBody,
    /// What is done with a redirect.
    #[serde(default)]
    pub redirect: FetchRedirect,
    /// Whether the body is decompressed on the way; then the guest does not
    /// choose `Accept-Encoding`.
    #[serde(default)]
    pub decode: bool,
    /// Longest wait for the response to begin, and for each piece of it, in
    /// milliseconds. The host's own limits hold beside it.
    #[serde(default)]
    pub timeout_ms: Option<u64>,
}

/// Where the body of a request comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FetchBody {
    /// There is none.
    #[default]
    None,
    /// It follows the text of the frame.
    Bytes,
    /// It comes in pieces by [`op::FETCH_WRITE`].
    Stream {
        /// Its length, if it is known.
        #[serde(default)]
        length: Option<u64>,
    },
}

/// What is done with a redirect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FetchRedirect {
    /// It is followed, as a new request.
    #[default]
    Follow,
    /// It is a response like any other.
    Manual,
}

/// Names a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FetchHandle {
    /// What [`op::FETCH_START`] returned.
    pub id: u64,
    /// Whether to wait.
    #[serde(default = "yes")]
    pub wait: bool,
}

/// The request of [`op::FETCH_WRITE`]; the bytes follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FetchWrite {
    /// The request.
    pub id: u64,
    /// Whether this is the last piece.
    pub end: bool,
    /// Whether to wait.
    #[serde(default = "yes")]
    pub wait: bool,
}

/// The request of [`op::FETCH_READ`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FetchRead {
    /// The request.
    pub id: u64,
    /// Most bytes to return; fewer may come.
    pub max: u64,
    /// Whether to wait.
    #[serde(default = "yes")]
    pub wait: bool,
}

fn yes() -> bool {
    true
}

/// What every operation answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FetchReply {
    /// The request is on its way.
    Started {
        /// Names it.
        id: u64,
    },
    /// `TOOL_WAIT` will tell.
    Pending {
        /// The number that it will tell of.
        id: u64,
    },
    /// The response has begun.
    Head(FetchHead),
    /// Bytes follow; none if the body has ended.
    Data {
        /// Whether the body has ended.
        end: bool,
    },
    /// It was done.
    Done {},
    /// It failed.
    Error {
        /// How.
        kind: FetchErrorKind,
        /// Why, for a person.
        message: String,
    },
}

/// The head of a response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FetchHead {
    /// The status.
    pub status: u16,
    /// Its text, if the server gave one that is not the usual one.
    pub reason: String,
    /// 10, 11 or 20.
    pub version: u8,
    /// The URL that answered.
    pub url: String,
    /// The method that it was asked with.
    pub method: String,
    /// Names, in small letters, and values, in order.
    pub headers: Vec<(String, String)>,
    /// Whether the body is decompressed on the way.
    pub decoded: bool,
    /// The redirects that were followed.
    pub hops: Vec<FetchHop>,
}

/// One redirect that was followed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FetchHop {
    /// Its status.
    pub status: u16,
    /// The URL that answered with it.
    pub url: String,
    /// Its headers.
    pub headers: Vec<(String, String)>,
}

/// How a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FetchErrorKind {
    /// The policy or a budget refused it: no fault of the network.
    Denied,
    /// It is no request that can be made.
    Invalid,
    /// The name has no address.
    Name,
    /// No connection came about.
    Connect,
    /// The encrypted connection could not be made.
    Tls,
    /// It took longer than it may.
    Timeout,
    /// What the server sent is no HTTP.
    Protocol,
    /// The connection ended too early.
    Closed,
    /// The response is larger than it may be.
    TooLarge,
    /// The body could not be decompressed.
    Decode,
    /// Redirects that lead nowhere.
    Redirect,
    /// There is no request of that number.
    Unknown,
}

/// A frame of a text and some bytes; `None` if the text has 4 GiB or more.
#[must_use]
pub fn frame(text: &[u8], bytes: &[u8]) -> Option<Vec<u8>> {
    let length = u32::try_from(text.len()).ok()?.to_le_bytes();
    let mut frame = Vec::with_capacity(4_usize.checked_add(text.len())?.checked_add(bytes.len())?);
    frame.extend_from_slice(&length);
    frame.extend_from_slice(text);
    frame.extend_from_slice(bytes);
    Some(frame)
}

/// The text and the bytes of a frame; `None` if it is none.
#[must_use]
pub fn unframe(frame: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = frame.split_first_chunk::<4>()?;
    rest.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?)
}
