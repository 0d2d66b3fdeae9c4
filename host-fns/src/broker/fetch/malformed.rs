//! What is no request: a URL, a method or headers that nothing can be made of.
//!
//! Why: an attempt to have a request read in two ways is what an operator wants
//! to see, so it is a denial like any other, counted and recorded, although
//! there is nothing to decide on.
//!
//! Invariant: what is recorded of a URL is escaped, cut, and without what stands
//! before its host or after a question mark.

use std::sync::Arc;

use fumehood_policies::{METHODS, NetRequestError, escape};

use super::hop::{FINAL, refused};
use crate::audit::Target;
use crate::broker::Broker;
use crate::net::{HeaderProblem, MAX_MALFORMED_URL_BYTES};
use crate::pipeline::Refused;
use crate::tools::capped;

/// Rule id of denials of URLs.
const URL_RULE: &str = "url";
/// Rule id of denials of methods.
const METHOD_RULE: &str = "method";
/// Rule id of denials of headers.
const HEADER_RULE: &str = "header";

impl Broker {
    /// Records that a method and a URL were no request.
    pub(super) fn deny_malformed(&mut self, method: &str, url: &str, error: &NetRequestError) {
        let rule = match error {
            NetRequestError::Method { .. } => METHOD_RULE,
            _ => URL_RULE,
        };
        let known = METHODS.iter().find(|known| **known == method).copied();
        let target = Target::Request(known.unwrap_or("?"), Arc::from(recorded(url)));
        let reason = format!("denied by policy (rule {rule}): {}. {FINAL}", wrong(error));
        let hint = "nobody can allow it; write the request in its one form";
        self.deny_fetch(&target, refused(rule, reason, hint));
    }
}

/// Why a request with such headers is denied.
pub(super) fn header_refused(problem: &HeaderProblem) -> Refused {
    let reason = format!("denied by policy (rule {HEADER_RULE}): {problem}. {FINAL}");
    refused(HEADER_RULE, reason, "nobody can allow it; leave the header out")
}

/// What is wrong, without text that is kept nowhere else.
fn wrong(error: &NetRequestError) -> String {
    match error {
        NetRequestError::NotAUrl { .. } => "the text is not a URL".to_owned(),
        NetRequestError::Scheme { .. } => "the scheme is neither http nor https".to_owned(),
        error => error.to_string(),
    }
}

fn is_scheme(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'))
}

/// A URL as a record may have it, however many slashes or backslashes a parser
/// would pass over.
fn recorded(url: &str) -> String {
    let slash = |c: char| matches!(c, '/' | '\\');
    let place = url.split(['?', '#']).next().unwrap_or_default();
    let (scheme, rest) = match place.split_once(':') {
        Some((scheme, rest)) if is_scheme(scheme) => (format!("{scheme}:"), rest),
        _ => (String::new(), place),
    };
    let (slashes, rest) = rest.split_at(rest.find(|c: char| !slash(c)).unwrap_or(rest.len()));
    let (authority, path) = rest.split_at(rest.find(slash).unwrap_or(rest.len()));
    // What stands before the host can be a password.
    let authority = match authority.rsplit_once('@') {
        Some((_, host)) => format!("…@{host}"),
        None => authority.to_owned(),
    };
    let whole = capped(format_args!("{scheme}{slashes}{authority}{path}"), MAX_MALFORMED_URL_BYTES);
    let mut safe = String::new();
    // Writing to a string does not fail.
    let _ = escape(whole.as_bytes(), &mut safe);
    capped(format_args!("{safe}"), MAX_MALFORMED_URL_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_of_a_url_is_safe_short_and_without_secrets() {
        for (url, want) in [
            ("http://2130706433/", "http://2130706433/"),
            ("https://a.test/v1/../admin?token=s3cret#s3cret", "https://a.test/v1/../admin"),
            ("https://user:s3cret@a.test/x", "https://…@a.test/x"),
            ("https://user:s3@cret@a.test/@scope", "https://…@a.test/@scope"),
            ("https:user:s3cret@a.test", "https:…@a.test"),
            ("https:\\\\user:s3cret@a.test", "https:\\\\\\\\…@a.test"),
            ("//user:s3cret@a.test/", "//…@a.test/"),
            ("user:s3cret@a.test:80://x", "user:…@a.test:80://x"),
            ("https://a.test/\r\nHost: b.test", "https://a.test/\\u{d}\\u{a}Host: b.test"),
            ("", ""),
        ] {
            assert_eq!(recorded(url), want, "{url:?}");
        }
        for url in [format!("https://{}@a.test/", "s".repeat(9000)), "\u{1b}".repeat(9000)] {
            let recorded = recorded(&url);
            assert!(recorded.len() <= MAX_MALFORMED_URL_BYTES, "{recorded}");
            assert!(!recorded.contains(char::is_control) && !recorded.contains("ss"), "{recorded}");
        }
    }
}
