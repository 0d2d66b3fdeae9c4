//! The headers of a request.
//!
//! Invariant: a [`RequestHeaders`] has no header that frames a message, names
//! another host, asks for another protocol or another method; those are the
//! broker's. No byte of a name or value can end a line.

use http::header::{HeaderMap, HeaderName, HeaderValue};

use crate::tools::capped;

/// Most headers of a request.
pub const MAX_REQUEST_HEADERS: usize = 128;
/// Most bytes of names and values of a request's headers together.
pub const MAX_REQUEST_HEADER_BYTES: usize = 64 << 10;

/// Headers that decide how bytes are framed, where they go or what they mean.
const RESERVED: &[&str] = &[
    "connection",
    "content-length",
    "expect",
    "host",
    "http2-settings",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
    "x-original-url",
    "x-rewrite-url",
];

/// Parts of names of headers that hold what must not follow a redirect to
/// another origin.
const CREDENTIALS: &[&str] = &[
    "auth",
    "cookie",
    "token",
    "secret",
    "password",
    "api-key",
    "apikey",
    "credential",
    "session",
    "signature",
];

/// Headers that describe a body.
const OF_BODY: &[&str] =
    &["content-encoding", "content-language", "content-location", "content-type", "digest"];

/// Why headers are none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderProblem {
    /// A name or value has a byte that none may have.
    #[error("the header `{name}` has a name or value that no header can have")]
    Malformed {
        /// The name, escaped and cut.
        name: String,
    },
    /// The broker sets it, or nobody may.
    #[error("the header `{name}` is the broker's own")]
    Reserved {
        /// The name.
        name: String,
    },
    /// There are too many, or they are too long.
    #[error(
        "the request has more than {MAX_REQUEST_HEADERS} headers or {MAX_REQUEST_HEADER_BYTES} bytes of them"
    )]
    TooMany,
}

/// Headers that a request may have.
#[derive(Clone, Debug, Default)]
pub struct RequestHeaders(HeaderMap);

impl RequestHeaders {
    /// Reads names and values; a value is ISO 8859-1, one character for each
    /// byte.
    ///
    /// # Errors
    /// [`HeaderProblem`] for the first header that cannot be.
    pub fn parse(list: &[(String, String)]) -> Result<Self, HeaderProblem> {
        let bytes = list.iter().fold(0_usize, |sum, (name, value)| {
            sum.saturating_add(name.len()).saturating_add(value.len())
        });
        if list.len() > MAX_REQUEST_HEADERS || bytes > MAX_REQUEST_HEADER_BYTES {
            return Err(HeaderProblem::TooMany);
        }
        let mut headers = HeaderMap::with_capacity(list.len());
        for (name, value) in list {
            let shown = || capped(format_args!("{}", name.escape_debug()), 64);
            let malformed = || HeaderProblem::Malformed { name: shown() };
            let known = HeaderName::from_bytes(name.as_bytes()).map_err(|_| malformed())?;
            if RESERVED.contains(&known.as_str()) || known.as_str().starts_with("sec-websocket-") {
                return Err(HeaderProblem::Reserved { name: shown() });
            }
            let latin: Option<Vec<u8>> =
                value.trim_matches(' ').chars().map(|c| u8::try_from(c).ok()).collect();
            let value = latin.and_then(|bytes| HeaderValue::from_bytes(&bytes).ok());
            headers.append(known, value.ok_or_else(malformed)?);
        }
        Ok(Self(headers))
    }

    /// The headers.
    #[must_use]
    pub fn get(&self) -> &HeaderMap {
        &self.0
    }

    fn without(&self, gone: impl Fn(&str) -> bool) -> Self {
        let mut kept = HeaderMap::with_capacity(self.0.len());
        for (name, value) in &self.0 {
            if !gone(name.as_str()) {
                kept.append(name.clone(), value.clone());
            }
        }
        Self(kept)
    }

    /// Without what must not follow to another origin.
    #[must_use]
    pub fn without_credentials(&self) -> Self {
        self.without(|name| CREDENTIALS.iter().any(|part| name.contains(part)))
    }

    /// Without what describes a body.
    #[must_use]
    pub fn without_body(&self) -> Self {
        self.without(|name| OF_BODY.contains(&name))
    }
}

/// A value as text, one character for each byte.
pub(crate) fn latin(value: &HeaderValue) -> String {
    value.as_bytes().iter().map(|byte| char::from(*byte)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(name: &str, value: &str) -> Result<RequestHeaders, HeaderProblem> {
        RequestHeaders::parse(&[(name.to_owned(), value.to_owned())])
    }

    #[test]
    fn what_could_end_a_line_or_frame_a_message_is_refused() {
        for (name, value) in [
            ("A\r\nB", "x"),
            ("A", "x\r\nB: y"),
            ("A", "x\ny"),
            ("A", "x\0y"),
            ("A", "x\u{7f}"),
            ("A", "\u{100}"),
            ("A B", "x"),
            ("A:", "x"),
            ("", "x"),
            ("Ä", "x"),
        ] {
            assert!(matches!(parse(name, value), Err(HeaderProblem::Malformed { .. })), "{name:?}");
        }
        for name in RESERVED.iter().copied().chain(["Sec-WebSocket-Key", "HOST", "Content-Length"])
        {
            assert!(matches!(parse(name, "x"), Err(HeaderProblem::Reserved { .. })), "{name}");
        }
        assert!(parse("X-Ok", "caf\u{e9}; a=\"b\"").is_ok());
        let many = vec![("a".to_owned(), "b".to_owned()); MAX_REQUEST_HEADERS + 1];
        assert_eq!(RequestHeaders::parse(&many).err(), Some(HeaderProblem::TooMany));
        assert_eq!(
            parse("a", &"b".repeat(MAX_REQUEST_HEADER_BYTES)).err(),
            Some(HeaderProblem::TooMany)
        );
    }

    #[test]
    fn credentials_are_known_by_their_names() {
        let list: Vec<_> = [
            "Authorization",
            "Cookie",
            "X-Api-Key",
            "X-Auth-Token",
            "PRIVATE-TOKEN",
            "X-Amz-Security-Token",
            "Accept",
            "Content-Type",
        ]
        .iter()
        .map(|name| ((*name).to_owned(), "x".to_owned()))
        .collect();
        let headers = RequestHeaders::parse(&list).unwrap_or_default();
        let left = headers.without_credentials();
        let names: Vec<_> = left.get().keys().map(HeaderName::as_str).collect();
        assert_eq!(names, ["accept", "content-type"]);
        assert_eq!(left.without_body().get().len(), 1);
    }
}
