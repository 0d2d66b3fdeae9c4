//! Requests to the network.
//!
//! What: [`NetRequest`] is made from a method and a URL.
//! Why: decision, connection, bytes sent and log all read this one value.
//!
//! Invariant: one parse; a URL that two parsers could read differently
//! (credentials, backslashes, control characters, escaped slashes or dots,
//! other spellings of the host) is an error and never a guess.

use crate::host::{HostError, HostName, shown};
use crate::request::Canonical;

/// Longest URL in bytes.
pub const MAX_URL_BYTES: usize = 8192;

/// The methods a request can have.
pub const METHODS: &[&str] = &["GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"];

/// A named set of methods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MethodPreset {
    /// GET, HEAD, OPTIONS.
    ReadOnly,
    /// Also POST, PUT, PATCH.
    ReadWrite,
    /// Every method.
    Full,
}

impl MethodPreset {
    /// Every set with its name in policy text.
    pub const ALL: [(&'static str, Self); 3] =
        [("read-only", Self::ReadOnly), ("read-write", Self::ReadWrite), ("full", Self::Full)];

    /// The methods; `None` is every method.
    #[must_use]
    pub fn methods(self) -> Option<Vec<&'static str>> {
        match self {
            Self::ReadOnly => Some(vec!["GET", "HEAD", "OPTIONS"]),
            Self::ReadWrite => Some(vec!["GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH"]),
            Self::Full => None,
        }
    }
}

/// Why a method and a URL are no request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetRequestError {
    /// Not one of [`METHODS`], in capitals.
    #[error(
        "`{method}` is not a method; use one of GET, HEAD, OPTIONS, POST, PUT, PATCH, DELETE in capitals"
    )]
    Method {
        /// The method, escaped.
        method: String,
    },
    /// Longer than [`MAX_URL_BYTES`].
    #[error("the URL is longer than 8192 bytes")]
    TooLong,
    /// Not a URL.
    #[error("`{url}` is not a URL; write it whole, such as https://api.example.com/v1")]
    NotAUrl {
        /// The URL, escaped.
        url: String,
    },
    /// Neither http nor https.
    #[error("the scheme `{scheme}` is not accepted; only http and https are")]
    Scheme {
        /// The scheme.
        scheme: String,
    },
    /// A name or password before the host.
    #[error("a URL with credentials before its host is not accepted; bind a secret instead")]
    Credentials,
    /// The host is not in its one form.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The path can be read in two ways.
    #[error("the path can be read in two ways: {what}; write it in its shortest form")]
    AmbiguousPath {
        /// What makes it so.
        what: &'static str,
    },
}

impl NetRequestError {
    /// A stable identifier.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Method { .. } => "net_method",
            Self::TooLong => "net_url_too_long",
            Self::NotAUrl { .. } => "net_not_a_url",
            Self::Scheme { .. } => "net_scheme",
            Self::Credentials => "net_credentials",
            Self::Host(_) => "net_host",
            Self::AmbiguousPath { .. } => "net_ambiguous_path",
        }
    }
}

/// One request to the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetRequest {
    /// One of [`METHODS`].
    pub method: &'static str,
    /// Whether the connection is encrypted.
    pub https: bool,
    /// The host.
    pub host: HostName,
    /// The port.
    pub port: u16,
    /// The path, beginning with `/`.
    pub path: String,
    /// The query without its question mark.
    pub query: Option<String>,
}

impl NetRequest {
    /// Canonicalises a method and a URL.
    ///
    /// # Errors
    /// [`NetRequestError`] if it is no request or can be read in two ways.
    pub fn parse(method: &str, url: &str) -> Result<Canonical<Self>, NetRequestError> {
        let known = METHODS.iter().find(|known| **known == method);
        let Some(method) = known else {
            return Err(NetRequestError::Method { method: shown(method) });
        };
        if url.len() > MAX_URL_BYTES {
            return Err(NetRequestError::TooLong);
        }
        let not_a_url = || NetRequestError::NotAUrl { url: shown(url) };
        // The URL standard removes or rewrites these without a word.
        if url.chars().any(|character| {
            character.is_control() || character.is_whitespace() || character == '\\'
        }) {
            return Err(not_a_url());
        }
        let (scheme, rest) = url.split_once("://").ok_or_else(not_a_url)?;
        let https = match scheme.to_ascii_lowercase().as_str() {
            "https" => true,
            "http" => false,
            _ => return Err(NetRequestError::Scheme { scheme: shown(scheme) }),
        };
        let authority_end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let authority = rest.get(..authority_end).unwrap_or_default();
        if authority.contains('@') {
            return Err(NetRequestError::Credentials);
        }
        let after_brackets = authority.rfind(']').unwrap_or(0);
        let colon = authority.get(after_brackets..).and_then(|tail| tail.find(':'));
        let written_host = colon.map_or(authority, |at| {
            authority.get(..after_brackets.saturating_add(at)).unwrap_or_default()
        });
        let host = HostName::parse(written_host)?;
        let parsed = url::Url::parse(url).map_err(|_| not_a_url())?;
        // The URL parser must have seen the host that was judged.
        let seen = parsed.host_str().map(|seen| seen.strip_suffix('.').unwrap_or(seen).to_owned());
        if seen.as_deref() != Some(host.to_string().as_str()) {
            return Err(not_a_url());
        }
        let port =
            parsed.port_or_known_default().filter(|port| *port != 0).ok_or_else(not_a_url)?;
        let written_path = rest
            .get(authority_end..)
            .unwrap_or_default()
            .split(['?', '#'])
            .next()
            .unwrap_or_default();
        let path = canonical_path(written_path, parsed.path())?;
        let query = parsed.query().map(str::to_owned);
        let request = Self { method, https, host, port, path, query };
        // Escapes make the one form of a URL longer than what was written.
        if request.url().len() > MAX_URL_BYTES {
            return Err(NetRequestError::TooLong);
        }
        Ok(Canonical::new(request))
    }

    /// The request to which a `Location` leads from here.
    ///
    /// # Errors
    /// As [`NetRequest::parse`], for the URL that the two make.
    pub fn redirected(
        &self,
        method: &str,
        location: &str,
    ) -> Result<Canonical<Self>, NetRequestError> {
        let not_a_url = || NetRequestError::NotAUrl { url: shown(location) };
        let odd = |character: char| {
            character == '\\' || character.is_control() || character.is_whitespace()
        };
        if location.len() > MAX_URL_BYTES {
            return Err(NetRequestError::TooLong);
        }
        if location.contains(odd) {
            return Err(not_a_url());
        }
        let base = url::Url::parse(&self.url()).map_err(|_| not_a_url())?;
        // What names a host is read as it is written, so that nothing is lost
        // before it is judged.
        if url::Url::parse(location).is_ok() {
            return Self::parse(method, location);
        }
        if location.starts_with("//") {
            return Self::parse(method, &format!("{}:{location}", base.scheme()));
        }
        let joined = base.join(location).map_err(|_| not_a_url())?;
        Self::parse(method, joined.as_str())
    }

    /// Whether both have one scheme, host and port.
    #[must_use]
    pub fn same_origin(&self, other: &Self) -> bool {
        self.https == other.https && self.host == other.host && self.port == other.port
    }

    /// Path and query, as they are sent.
    #[must_use]
    pub fn path_and_query(&self) -> String {
        let query = self.query.as_deref().map(|query| format!("?{query}")).unwrap_or_default();
        format!("{}{query}", self.path)
    }

    /// Host and port as they are sent; the usual port is left out.
    #[must_use]
    pub fn authority(&self) -> String {
        let usual = if self.https { 443 } else { 80 };
        if self.port == usual {
            self.host.to_string()
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// The request as a URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!(
            "{}{}",
            self.place(),
            self.query.as_deref().map(|query| format!("?{query}")).unwrap_or_default()
        )
    }

    /// The request as a URL without its query, which may hold what must not be
    /// kept.
    #[must_use]
    pub fn place(&self) -> String {
        let scheme = if self.https { "https" } else { "http" };
        format!("{scheme}://{}{}", self.authority(), self.path)
    }
}

/// Decodes what needs no escape and refuses what servers read differently.
fn canonical_path(written: &str, parsed: &str) -> Result<String, NetRequestError> {
    let ambiguous = |what| NetRequestError::AmbiguousPath { what };
    let mut decoded = String::with_capacity(parsed.len());
    let mut rest = parsed;
    while let Some(at) = rest.find('%') {
        decoded.push_str(rest.get(..at).unwrap_or_default());
        let digits = rest
            .get(at.saturating_add(1)..at.saturating_add(3))
            .ok_or_else(|| ambiguous("`%` without two digits"))?;
        let plain = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        let byte = u8::from_str_radix(digits, 16)
            .ok()
            .filter(|_| plain)
            .ok_or_else(|| ambiguous("`%` without two digits"))?;
        match byte {
            b'/' | b'\\' => return Err(ambiguous("an escaped slash")),
            b'%' => return Err(ambiguous("an escaped percent sign")),
            b';' => return Err(ambiguous("path parameters")),
            0..=0x1f | 0x7f => return Err(ambiguous("an escaped control character")),
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                decoded.push(char::from(byte))
            }
            _ => {
                decoded.push('%');
                decoded.push_str(&digits.to_ascii_uppercase());
            }
        }
        rest = rest.get(at.saturating_add(3)..).unwrap_or_default();
    }
    decoded.push_str(rest);
    if decoded.contains(';') {
        return Err(ambiguous("path parameters"));
    }
    if decoded.contains("//") {
        return Err(ambiguous("an empty component"));
    }
    let dots = |component: &str| {
        let lower = component.to_ascii_lowercase().replace("%2e", ".");
        lower == "." || lower == ".."
    };
    if written.split('/').any(dots) || decoded.split('/').any(dots) {
        return Err(ambiguous("a component of dots"));
    }
    Ok(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn code(method: &str, url: &str) -> &'static str {
        NetRequest::parse(method, url).map_or_else(|error| error.code(), |_| "ok")
    }

    #[test]
    fn the_one_form_of_a_url_has_its_bound_too() {
        // `}` is sent as `%7D`.
        let url = |count: usize| format!("http://a.test/{}", "}".repeat(count));
        for (count, fits) in [(2_000, true), (2_800, false), (8_000, false), (9_000, false)] {
            let parsed = NetRequest::parse("GET", &url(count));
            assert_eq!(parsed.is_ok(), fits, "{count}");
            if let Ok(request) = parsed {
                assert_eq!(NetRequest::parse("GET", &request.get().url()), Ok(request));
            }
        }
    }

    #[test]
    fn odd_requests_are_refused() {
        for (url, want) in [
            ("https://api.allowed.test/v1?x=1#part", "ok"),
            ("https://api.allowed.test:8443", "ok"),
            ("https://api.allowed.test@evil.test/", "net_credentials"),
            ("https://api.allowed.test%2f@evil.test", "net_credentials"),
            ("https://evil.test\\@api.allowed.test", "net_not_a_url"),
            ("https://a.test/x\r\ny", "net_not_a_url"),
            ("https://%61pi.allowed.test/", "net_host"),
            ("https://[::1].allowed.test/", "net_host"),
            ("https://ａpi.allowed.test/", "net_host"),
            ("http://127.1/", "net_host"),
            ("http://2130706433/", "net_host"),
            ("http://0x7f000001/", "net_host"),
            ("http://[::ffff:127.0.0.1]/", "net_host"),
            ("http://127.0.0.1/", "ok"),
            ("https://a.test/v1/../admin", "net_ambiguous_path"),
            ("https://a.test/v1/%2e%2e/admin", "net_ambiguous_path"),
            ("https://a.test//v1", "net_ambiguous_path"),
            ("https://a.test/v1;x", "net_ambiguous_path"),
            ("https://a.test/v1%2Fx", "net_ambiguous_path"),
            ("https://a.test/v1%252Fx", "net_ambiguous_path"),
            ("ftp://a.test/", "net_scheme"),
            ("a.test", "net_not_a_url"),
        ] {
            assert_eq!(code("GET", url), want, "{url}");
        }
        for method in ["get", "TRACE", "CONNECT", "GET\t", ""] {
            assert_eq!(code(method, "https://a.test/"), "net_method", "{method}");
        }
        let host = |url| NetRequest::parse("GET", url).unwrap().get().host.to_string();
        assert_eq!(host("https://evil.test#api.allowed.test"), "evil.test");
        assert_eq!(host("https://A.Test./x"), "a.test");
        assert_eq!(
            NetRequest::parse("GET", "http://a.test/%7ex%c3%bc").unwrap().get().path,
            "/~x%C3%BC"
        );
    }

    #[test]
    fn a_location_is_read_as_strictly_as_a_url() {
        let from = NetRequest::parse("GET", "https://a.test/v1/x?q=1").unwrap();
        let to = |location: &str| {
            from.get()
                .redirected("GET", location)
                .map_or_else(|error| error.code().to_owned(), |request| request.get().url())
        };
        for (location, want) in [
            ("/y", "https://a.test/y"),
            ("y?z=2", "https://a.test/v1/y?z=2"),
            ("?z=2", "https://a.test/v1/x?z=2"),
            ("//b.test/y", "https://b.test/y"),
            ("http://b.test:8080/y#part", "http://b.test:8080/y"),
            ("../../etc", "https://a.test/etc"),
            ("https://b.test/v1/../admin", "net_ambiguous_path"),
            ("/v1/%2e%2e%2fadmin", "net_ambiguous_path"),
            ("https://a.test@b.test/", "net_credentials"),
            ("//a.test@b.test/", "net_credentials"),
            ("https://b.test\\@a.test", "net_not_a_url"),
            ("/y\r\nSet-Cookie: x", "net_not_a_url"),
            ("file:///etc/passwd", "net_scheme"),
            ("javascript:alert(1)", "net_not_a_url"),
            ("http://2130706433/", "net_host"),
            ("http://[::ffff:127.0.0.1]/", "net_host"),
            ("//127.1/", "net_host"),
        ] {
            assert_eq!(to(location), want, "{location}");
        }
    }

    proptest! {
        #[test]
        fn canonical_is_idempotent(url in "https?://[a-z.:@\\[\\]0-9]{1,12}[/a-z.%20-9;?#\\\\]{0,20}") {
            if let Ok(request) = NetRequest::parse("GET", &url) {
                prop_assert_eq!(NetRequest::parse("GET", &request.get().url()), Ok(request));
            }
        }

        #[test]
        fn parsing_never_panics(url in "\\PC{0,60}") {
            let _ = NetRequest::parse("GET", &url);
            let whole = NetRequest::parse("GET", &format!("https://{url}"));
            if let Ok(request) = whole {
                let _ = request.get().redirected("GET", &url);
            }
        }
    }
}
