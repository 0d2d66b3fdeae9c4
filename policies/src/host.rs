//! Host names and patterns over them.
//!
//! What: [`HostName`] is the one form of a host; [`HostPattern`] is `name`,
//! `*.name` (exactly one label more) or `**.name` (one label or more), and
//! nothing else.
//! Why: whoever controls a public suffix controls every name below it, so a
//! wildcard directly over one is a grant to strangers and is refused.
//!
//! Invariant: names are ASCII, lower case, without a final dot; labels are
//! stored reversed, so that a pattern is a prefix.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use crate::address::AddressClass;

/// Why text is not a host or a pattern over hosts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// Not a name that can be looked up.
    #[error("`{text}` is not a host name")]
    NotAName {
        /// The text, escaped.
        text: String,
    },
    /// The name has another spelling that means the same.
    #[error("`{text}` is another spelling of `{canonical}`")]
    NotCanonical {
        /// The text, escaped.
        text: String,
        /// The form to write.
        canonical: String,
    },
    /// A star where the grammar has none.
    #[error("`{text}` is not a host pattern")]
    Grammar {
        /// The text, escaped.
        text: String,
    },
    /// A wildcard directly over a public suffix.
    #[error("`{text}` reaches every name below the public suffix `{suffix}`")]
    PublicSuffix {
        /// The text.
        text: String,
        /// The suffix.
        suffix: String,
    },
    /// An address at which no host can be.
    #[error("`{text}` is the address of no host")]
    NoHost {
        /// The text.
        text: String,
    },
}

impl HostError {
    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> String {
        match self {
            Self::NotAName { .. } => "write a name such as \"api.example.com\", without scheme, port or path".to_owned(),
            Self::NotCanonical { canonical, .. } => format!("write \"{canonical}\""),
            Self::Grammar { .. } => {
                "write \"name\", \"*.name\" for one label more or \"**.name\" for any depth; no other stars".to_owned()
            }
            Self::NoHost { .. } => "name the address at which the service listens".to_owned(),
            Self::PublicSuffix { .. } => "name the registered domain below it, such as \"*.example.com\"".to_owned(),
        }
    }
}

/// A host in its one form.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HostName {
    /// A DNS name; labels reversed.
    Name(Arc<[Box<str>]>),
    /// An address.
    Address(IpAddr),
}

impl HostName {
    /// Parses a name or an address as a policy or a request writes it.
    ///
    /// # Errors
    /// [`HostError`]; a spelling that is not the canonical one is refused
    /// with the canonical one.
    pub fn parse(text: &str) -> Result<Self, HostError> {
        if let Some(address) = parse_address(text) {
            let canonical = match address {
                IpAddr::V6(six) => six
                    .to_ipv4_mapped()
                    .map_or_else(|| display_address(address), |four| four.to_string()),
                IpAddr::V4(_) => display_address(address),
            };
            if canonical != text {
                return Err(HostError::NotCanonical { text: shown(text), canonical });
            }
            return Ok(Self::Address(address));
        }
        let bad = || HostError::NotAName { text: shown(text) };
        if text.len() > 1024 || text.contains('*') {
            return Err(bad());
        }
        let ascii = idna::domain_to_ascii_cow(text.as_bytes(), idna::AsciiDenyList::STD3)
            .map_err(|_| bad())?;
        let ascii = ascii.strip_suffix('.').unwrap_or(&ascii);
        let labels: Vec<Box<str>> = ascii.rsplit('.').map(Box::from).collect();
        let label_is_bad = |label: &str| {
            label.is_empty() || label.len() > 63 || label.starts_with('-') || label.ends_with('-')
        };
        let numeric = |label: &str| {
            label.bytes().all(|byte| byte.is_ascii_digit())
                || label
                    .strip_prefix("0x")
                    .is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_hexdigit()))
        };
        // A name whose last label is a number would be read as an address.
        if ascii.is_empty()
            || ascii.len() > 253
            || labels.iter().any(|label| label_is_bad(label))
            || labels.first().is_some_and(|label| numeric(label))
        {
            return Err(bad());
        }
        let lower = text.to_lowercase();
        let lower = lower.strip_suffix('.').unwrap_or(&lower);
        if lower != ascii && idna::domain_to_unicode(ascii).0 != lower {
            return Err(HostError::NotCanonical { text: shown(text), canonical: ascii.to_owned() });
        }
        Ok(Self::Name(labels.into()))
    }

    /// A name that is written with its labels reversed, as they are stored.
    #[must_use]
    pub fn from_reversed(text: &str) -> Option<Self> {
        let labels: Vec<&str> = text.rsplit('.').collect();
        Self::parse(&labels.join(".")).ok()
    }

    /// The address, if this is one.
    #[must_use]
    pub fn address(&self) -> Option<IpAddr> {
        match self {
            Self::Address(address) => Some(*address),
            Self::Name(_) => None,
        }
    }
}

fn parse_address(text: &str) -> Option<IpAddr> {
    if let Some(inner) = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        return inner.parse::<Ipv6Addr>().ok().map(IpAddr::V6);
    }
    text.parse::<Ipv4Addr>().ok().map(IpAddr::V4)
}

fn display_address(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("[{address}]"),
    }
}

/// Text of others, safe to show and not too long.
pub(crate) fn shown(text: &str) -> String {
    let mut out = String::new();
    let cut = text.char_indices().nth(120).map_or(text.len(), |(at, _)| at);
    let _ = crate::path::escape(text.get(..cut).unwrap_or_default().as_bytes(), &mut out);
    if cut < text.len() {
        out.push('…');
    }
    out
}

impl fmt::Display for HostName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => formatter.write_str(&display_address(*address)),
            Self::Name(labels) => {
                for (index, label) in labels.iter().rev().enumerate() {
                    if index > 0 {
                        formatter.write_str(".")?;
                    }
                    formatter.write_str(label)?;
                }
                Ok(())
            }
        }
    }
}

impl fmt::Debug for HostName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// A label that no entry of the public suffix list has, so that only a wildcard
/// of the list holds it.
const ANY_LABEL: &str = "fumehood-any-label";

fn is_public_suffix(name: &str) -> bool {
    psl::suffix_str(name) == Some(name)
}

/// How many labels stand before the name of a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Depth {
    None,
    One,
    Any,
}

/// A pattern over hosts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostPattern {
    depth: Depth,
    name: HostName,
}

impl HostPattern {
    /// Parses a pattern.
    ///
    /// # Errors
    /// [`HostError`] says what is wrong and what to write.
    pub fn parse(text: &str) -> Result<Self, HostError> {
        let (depth, rest) = if let Some(rest) = text.strip_prefix("**.") {
            (Depth::Any, rest)
        } else if let Some(rest) = text.strip_prefix("*.") {
            (Depth::One, rest)
        } else {
            (Depth::None, text)
        };
        if rest.contains('*') {
            return Err(HostError::Grammar { text: shown(text) });
        }
        let name = HostName::parse(rest)?;
        if name.address().is_some_and(|address| AddressClass::of(address) == AddressClass::Never) {
            return Err(HostError::NoHost { text: shown(text) });
        }
        if depth != Depth::None {
            if name.address().is_some() {
                return Err(HostError::Grammar { text: shown(text) });
            }
            let base = name.to_string();
            if is_public_suffix(&base) {
                return Err(HostError::PublicSuffix { text: shown(text), suffix: base });
            }
            // `*.kawasaki.jp` of the list makes a suffix of every name one label
            // below, and none of the base itself.
            if is_public_suffix(&format!("{ANY_LABEL}.{base}")) {
                let suffix = format!("*.{base}");
                return Err(HostError::PublicSuffix { text: shown(text), suffix });
            }
        }
        Ok(Self { depth, name })
    }

    /// The pattern that matches one host.
    #[must_use]
    pub fn exact(name: HostName) -> Self {
        Self { depth: Depth::None, name }
    }

    /// The address, if it is the pattern of one.
    #[must_use]
    pub fn address(&self) -> Option<IpAddr> {
        self.name.address()
    }

    /// Whether a host matches.
    #[must_use]
    pub fn matches(&self, host: &HostName) -> bool {
        let (HostName::Name(pattern), HostName::Name(labels)) = (&self.name, host) else {
            return self.depth == Depth::None && self.name == *host;
        };
        if labels.get(..pattern.len()) != Some(pattern) {
            return false;
        }
        let more = labels.len().saturating_sub(pattern.len());
        match self.depth {
            Depth::None => more == 0,
            Depth::One => more == 1,
            Depth::Any => more >= 1,
        }
    }

    /// Whether every host that `other` matches is matched here. Exact.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        if self == other {
            return true;
        }
        if other.depth == Depth::None {
            return self.matches(&other.name);
        }
        let (HostName::Name(pattern), HostName::Name(labels)) = (&self.name, &other.name) else {
            return false;
        };
        self.depth == Depth::Any && labels.starts_with(pattern)
    }

    /// Whether some host matches both. Exact.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        if self.covers(other) || other.covers(self) {
            return true;
        }
        let (HostName::Name(left), HostName::Name(right)) = (&self.name, &other.name) else {
            return false;
        };
        // What is left: `*.b.c` and `**.c`, where the first is one label deeper.
        match (self.depth, other.depth) {
            (Depth::Any, Depth::One) => right.starts_with(left),
            (Depth::One, Depth::Any) => left.starts_with(right),
            _ => false,
        }
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stars = match self.depth {
            Depth::None => "",
            Depth::One => "*.",
            Depth::Any => "**.",
        };
        write!(formatter, "{stars}{}", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn matches(pattern: &str, host: &str) -> bool {
        HostPattern::parse(pattern).unwrap().matches(&HostName::parse(host).unwrap())
    }

    #[test]
    fn a_rule_for_an_address_that_no_host_has_is_refused() {
        for text in ["0.0.0.0", "255.255.255.255", "[::]", "240.0.0.1"] {
            let error = HostPattern::parse(text).unwrap_err();
            assert!(matches!(error, HostError::NoHost { .. }), "{text}: {error}");
        }
        assert!(HostPattern::parse("127.0.0.1").is_ok(), "private ones are granted by name");
    }

    #[test]
    fn the_three_forms() {
        for (pattern, host, want) in [
            ("api.example.com", "API.example.com", true),
            ("api.example.com", "api.example.com.", true),
            ("*.example.com", "a.example.com", true),
            ("*.example.com", "a.b.example.com", false),
            ("*.example.com", "example.com", false),
            ("**.example.com", "a.b.example.com", true),
            ("**.example.com", "example.com", false),
            ("allowed.test", "evilallowed.test", false),
            ("allowed.test", "allowed.test.evil.test", false),
            ("**.allowed.test", "api-allowed.test", false),
            ("bücher.example", "xn--bcher-kva.example", true),
            ("xn--bcher-kva.example", "bücher.example", true),
            ("192.0.2.1", "192.0.2.1", true),
            ("[::1]", "[::1]", true),
        ] {
            assert_eq!(matches(pattern, host), want, "{pattern} {host}");
        }
    }

    #[test]
    fn everything_else_is_refused() {
        for text in [
            "*",
            "**",
            "*.com",
            "**.com",
            "foo.*",
            "**x.com",
            "*.co.uk",
            "a*.example.com",
            "*.*.example.com",
            "",
            "*.github.io",
            "a b.example",
            "http://a.example",
            "a.example:443",
            "a.example/x",
            "127.1",
            "2130706433",
            "0x7f.1",
            "0177.0.0.1",
            "*.192.0.2.1",
            "a..example",
            "-a.example",
            "%61pi.allowed.test",
            "a.example\0",
            "[::1].allowed.test",
            "ａpi.allowed.test",
            "api。allowed.test",
            "[0:0::1]",
            "*.test",
            // Every name one label below these is a public suffix.
            "*.kawasaki.jp",
            "**.kawasaki.jp",
            "*.ck",
            "**.ck",
        ] {
            let error = HostPattern::parse(text);
            assert!(error.is_err(), "{text}: {error:?}");
            assert!(!error.unwrap_err().remedy().is_empty());
        }
    }

    #[test]
    fn a_registered_domain_below_a_public_suffix_has_wildcards() {
        for text in ["*.example.co.uk", "**.example.co.uk", "*.example.jp", "*.a.b.kawasaki.jp"] {
            let pattern = HostPattern::parse(text).map(|pattern| pattern.to_string());
            assert_eq!(pattern.as_deref(), Ok(text));
        }
        // An exception of the list: a name like any other.
        assert!(HostPattern::parse("*.city.kawasaki.jp").is_ok());
        let error = HostPattern::parse("*.kawasaki.jp").unwrap_err().to_string();
        assert!(error.contains("the public suffix `*.kawasaki.jp`"), "{error}");
    }

    proptest! {
        #[test]
        fn relations_agree_with_matching(
            left in "(\\*\\.|\\*\\*\\.)?(a\\.|b\\.){0,2}example\\.com",
            right in "(\\*\\.|\\*\\*\\.)?(a\\.|b\\.){0,2}example\\.com",
            host in "(a\\.|b\\.){0,4}example\\.com",
        ) {
            let (left, right) = (HostPattern::parse(&left).unwrap(), HostPattern::parse(&right).unwrap());
            let host = HostName::parse(&host).unwrap();
            let (in_left, in_right) = (left.matches(&host), right.matches(&host));
            prop_assert!(!(in_left && in_right) || left.overlaps(&right));
            prop_assert!(!left.covers(&right) || !in_right || in_left);
            prop_assert_eq!(left.overlaps(&right), right.overlaps(&left));
        }

        #[test]
        fn canonical_is_idempotent(text in "\\PC{0,30}") {
            if let Ok(host) = HostName::parse(&text) {
                prop_assert_eq!(HostName::parse(&host.to_string()), Ok(host));
            }
            let _ = HostPattern::parse(&text);
        }
    }
}
