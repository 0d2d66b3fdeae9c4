//! One line of a log or of a witness, and its only writer and parser.
//!
//! What: [`Line`] has every key there is, in the order of the file; which keys
//! a line of some type has is in [`LOG_TYPES`] and [`WITNESS_TYPES`].
//! Why: two readers of one line cannot understand different things by it.
//!
//! Invariant: a line is accepted only if writing what was read gives the same
//! bytes. So there is one spelling of every line: no white space, keys in
//! order and once, plain ASCII, unsigned integers.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;

use serde::de::{Deserialize, Deserializer, Error as _, Visitor};

/// Longest line of a log or a witness, in bytes, its newline not counted.
pub const MAX_AUDIT_LINE_BYTES: usize = 128 << 10;

/// Version of the format, in the first line of a log.
pub(crate) const FORMAT_VERSION: u64 = 1;

/// A value that a line can hold.
trait Field: Sized {
    fn write(&self, to: &mut Vec<u8>);
}

impl Field for u64 {
    fn write(&self, to: &mut Vec<u8>) {
        let mut digits = [0_u8; 20];
        let mut rest = *self;
        let mut used = 0;
        for slot in digits.iter_mut().rev() {
            *slot = b'0'.wrapping_add(u8::try_from(rest % 10).unwrap_or(0));
            rest /= 10;
            used += 1;
            if rest == 0 {
                break;
            }
        }
        to.extend_from_slice(digits.get(digits.len().saturating_sub(used)..).unwrap_or_default());
    }
}

/// Text in a line; borrowed from it where it has no escapes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Text<'a>(pub Cow<'a, str>);

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl<'a> From<&'a str> for Text<'a> {
    fn from(text: &'a str) -> Self {
        Self(Cow::Borrowed(text))
    }
}

impl From<String> for Text<'_> {
    fn from(text: String) -> Self {
        Self(Cow::Owned(text))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Borrow;
        impl<'de> Visitor<'de> for Borrow {
            type Value = Text<'de>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("text")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(Borrow)
    }
}

const HEX: &[u8; 16] = b"0123456789abcdef";

fn push_hex(byte: u8, to: &mut Vec<u8>) {
    for digit in [byte >> 4, byte & 15] {
        to.push(HEX.get(usize::from(digit)).copied().unwrap_or(b'0'));
    }
}

/// Writes text as a JSON string of printable ASCII.
fn write_text(text: &str, to: &mut Vec<u8>) {
    to.push(b'"');
    for character in text.chars() {
        match character {
            '"' => to.extend_from_slice(b"\\\""),
            '\\' => to.extend_from_slice(b"\\\\"),
            ' '..='~' => to.push(u8::try_from(character).unwrap_or(b'?')),
            '\u{8}' => to.extend_from_slice(b"\\b"),
            '\t' => to.extend_from_slice(b"\\t"),
            '\n' => to.extend_from_slice(b"\\n"),
            '\u{c}' => to.extend_from_slice(b"\\f"),
            '\r' => to.extend_from_slice(b"\\r"),
            _ => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    to.extend_from_slice(b"\\u");
                    unit.to_be_bytes().into_iter().for_each(|byte| push_hex(byte, to));
                }
            }
        }
    }
    to.push(b'"');
}

impl Field for Text<'_> {
    fn write(&self, to: &mut Vec<u8>) {
        write_text(self, to);
    }
}

/// Bytes in a line, as lower-case hexadecimal.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Bytes<const N: usize>(pub [u8; N]);

/// A SHA-256 digest or an Ed25519 public key.
pub type Hash = Bytes<32>;
/// An Ed25519 signature.
pub type Signature = Bytes<64>;

impl<const N: usize> fmt::Display for Bytes<N> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl<const N: usize> fmt::Debug for Bytes<N> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl<const N: usize> Field for Bytes<N> {
    fn write(&self, to: &mut Vec<u8>) {
        to.push(b'"');
        self.0.into_iter().for_each(|byte| push_hex(byte, to));
        to.push(b'"');
    }
}

impl<const N: usize> std::str::FromStr for Bytes<N> {
    type Err = NotHex;

    fn from_str(text: &str) -> Result<Self, NotHex> {
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Ok(byte.wrapping_sub(b'0')),
            b'a'..=b'f' => Ok(byte.wrapping_sub(b'a').wrapping_add(10)),
            _ => Err(NotHex),
        };
        let mut bytes = [0; N];
        if text.len() != N.saturating_mul(2) {
            return Err(NotHex);
        }
        for (slot, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let [high, low] = pair else { return Err(NotHex) };
            *slot = digit(*high)? << 4 | digit(*low)?;
        }
        Ok(Self(bytes))
    }
}

/// The text is not lower-case hexadecimal of the length that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not lower-case hexadecimal of the right length")]
pub struct NotHex;

impl<'de, const N: usize> Deserialize<'de> for Bytes<N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Text::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

macro_rules! line {
    ($($(#[doc = $doc:literal])+ $field:ident $key:literal $kind:ty;)*) => {
        /// One line, decoded. Which fields are there depends on its type.
        #[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
        #[serde(deny_unknown_fields, bound(deserialize = "'de: 'a"))]
        pub struct Line<'a> {
            $($(#[doc = $doc])+ #[serde(rename = $key, default)] pub $field: Option<$kind>,)*
        }

        /// Places of the keys, to make sets of them.
        #[allow(non_camel_case_types, dead_code, reason = "named after the fields")]
        #[derive(Clone, Copy)]
        enum Key { $($field,)* }

        impl Line<'_> {
            /// Writes the line, without a newline.
            pub(crate) fn write(&self, to: &mut Vec<u8>) {
                let start = to.len();
                $(if let Some(value) = &self.$field {
                    to.extend_from_slice(concat!(",\"", $key, "\":").as_bytes());
                    value.write(to);
                })*
                match to.get_mut(start) {
                    Some(first) => *first = b'{',
                    None => to.push(b'{'),
                }
                to.push(b'}');
            }

            /// The keys that are there.
            fn keys(&self) -> u64 {
                0 $(| u64::from(self.$field.is_some()) << Key::$field as u32)*
            }
        }
    };
}

line! {
    /// Version of the format.
    version "v" u64;
    /// One more than in the line before; 0 in the first.
    seq "seq" u64;
    /// Microseconds since the Unix epoch; never less than in the line before.
    time_us "time_us" u64;
    /// What the line is.
    kind "type" Text<'a>;
    /// The session.
    session "session" Text<'a>;
    /// The tier.
    tier "tier" Text<'a>;
    /// SHA-256 of the guest artefact.
    guest "guest" Hash;
    /// SHA-256 of the policy.
    policy "policy" Hash;
    /// SHA-256 of the program.
    program "program" Hash;
    /// Most lines between two signed lines.
    every "every" u64;
    /// `checkpoint` or `strict`.
    durability "durability" Text<'a>;
    /// Number of the session's entry in the witness.
    witness "witness" u64;
    /// The call; shared by intent and outcome.
    call "call" u64;
    /// The call that this one is part of.
    parent "parent" u64;
    /// The operation.
    operation "op" Text<'a>;
    /// What it acts on, canonical and escaped.
    target "target" Text<'a>;
    /// The second object of a rename or a link.
    to "to" Text<'a>;
    /// `allow`, `deny` or `ask`.
    decision "decision" Text<'a>;
    /// The rule that decided.
    rule "rule" Text<'a>;
    /// Edition of the session's policy.
    generation "generation" u64;
    /// How it ended.
    ended "ended" Text<'a>;
    /// The error number's name, where it failed with one.
    error "error" Text<'a>;
    /// How many calls are summed.
    count "count" u64;
    /// How many of them failed.
    failed "failed" u64;
    /// The budget that it draws on.
    budget "budget" Text<'a>;
    /// What was left of it before.
    before "before" u64;
    /// What was left of it after.
    after "after" u64;
    /// Bytes that went to the guest.
    bytes_in "bytes_in" u64;
    /// Bytes that came from the guest.
    bytes_out "bytes_out" u64;
    /// SHA-256 of the payload.
    sha256 "sha256" Hash;
    /// Bounded, redacted preview of the payload.
    preview "preview" Text<'a>;
    /// Microseconds from intent to outcome.
    duration_us "us" u64;
    /// Calls that have no outcome.
    unknown "unknown" u64;
    /// The last line that was signed before.
    last_signed "last_signed" u64;
    /// Length of the torn line that this one sets aside.
    torn_bytes "torn_bytes" u64;
    /// SHA-256 of that torn line.
    torn_sha256 "torn_sha256" Hash;
    /// The line of the log that the witness saw.
    at "at" u64;
    /// The hash of the log at that line.
    hash "hash" Hash;
    /// Public key that certifies session keys.
    install "install" Hash;
    /// Public key that signs from here on.
    key "key" Hash;
    /// The install key's signature over session and key.
    cert "cert" Signature;
    /// The hash of the chain before this line.
    prev "prev" Hash;
    /// The session key's signature over everything before it in this line.
    sig "sig" Signature;
}

const fn set(keys: &[Key]) -> u64 {
    let mut bits = 0;
    let mut rest = keys;
    while let [first, tail @ ..] = rest {
        bits |= 1 << *first as u32;
        rest = tail;
    }
    bits
}

/// A type of line: its name, the keys it has, and those it may have.
pub(crate) struct LineType {
    pub(crate) name: &'static str,
    required: u64,
    optional: u64,
}

const COMMON: u64 = set(&[Key::seq, Key::time_us, Key::kind, Key::session, Key::prev]);
const CALL: u64 = COMMON
    | set(&[
        Key::tier,
        Key::call,
        Key::parent,
        Key::operation,
        Key::target,
        Key::decision,
        Key::rule,
        Key::generation,
        Key::budget,
        Key::before,
        Key::after,
        Key::bytes_in,
        Key::bytes_out,
    ]);
const CERTIFIED: u64 = set(&[Key::install, Key::key, Key::cert, Key::sig]);
const TORN: u64 = set(&[Key::torn_bytes, Key::torn_sha256]);

/// The types of line in a log.
pub(crate) const LOG_TYPES: [LineType; 7] = [
    LineType {
        name: "header",
        required: COMMON
            | CERTIFIED
            | set(&[Key::version, Key::tier, Key::guest, Key::policy, Key::every, Key::durability]),
        optional: set(&[Key::program, Key::witness]),
    },
    LineType {
        name: "intent",
        required: CALL,
        optional: set(&[Key::to, Key::policy, Key::sha256, Key::preview]),
    },
    LineType {
        name: "outcome",
        required: CALL | set(&[Key::ended]),
        optional: set(&[Key::to, Key::policy, Key::error, Key::sha256, Key::duration_us]),
    },
    LineType {
        name: "sum",
        required: CALL | set(&[Key::count, Key::failed]),
        optional: set(&[Key::to, Key::policy]),
    },
    LineType { name: "checkpoint", required: COMMON | set(&[Key::sig]), optional: 0 },
    LineType {
        name: "recovery",
        required: COMMON | CERTIFIED | set(&[Key::last_signed, Key::unknown]),
        optional: TORN,
    },
    LineType { name: "close", required: COMMON | set(&[Key::sig, Key::unknown]), optional: 0 },
];

const ENTRY: u64 = COMMON | CERTIFIED | set(&[Key::at, Key::hash]);

/// The types of line in a witness.
pub(crate) const WITNESS_TYPES: [LineType; 5] = [
    LineType { name: "open", required: ENTRY, optional: TORN },
    LineType { name: "checkpoint", required: ENTRY, optional: TORN },
    LineType { name: "recovery", required: ENTRY, optional: TORN },
    LineType { name: "close", required: ENTRY, optional: TORN },
    LineType { name: "removed", required: COMMON | CERTIFIED, optional: TORN },
];

/// Why bytes are no line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// Not JSON, or not with these keys.
    #[error("it is not a record of this format")]
    Malformed,
    /// JSON, and not in the one spelling that is accepted.
    #[error("it is not spelled as a record is written")]
    NotCanonical,
    /// No such type, or not the keys of its type.
    #[error("it does not have the keys of its type")]
    Keys,
    /// Longer than [`MAX_AUDIT_LINE_BYTES`].
    #[error("it is longer than a record may be")]
    TooLong,
}

impl<'a> Line<'a> {
    /// Reads a line of a log, given without its newline. This says nothing of
    /// the chain.
    ///
    /// # Errors
    /// [`LineError`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, LineError> {
        Self::parse_as(bytes, &LOG_TYPES, &mut Vec::new())
    }

    /// Reads an entry of a witness, given without its newline. This says
    /// nothing of the chain.
    ///
    /// # Errors
    /// [`LineError`].
    pub fn parse_entry(bytes: &'a [u8]) -> Result<Self, LineError> {
        Self::parse_as(bytes, &WITNESS_TYPES, &mut Vec::new())
    }

    pub(crate) fn parse_as(
        bytes: &'a [u8],
        types: &[LineType],
        scratch: &mut Vec<u8>,
    ) -> Result<Self, LineError> {
        if bytes.len() > MAX_AUDIT_LINE_BYTES {
            return Err(LineError::TooLong);
        }
        let line: Line<'a> = serde_json::from_slice(bytes).map_err(|_| LineError::Malformed)?;
        scratch.clear();
        line.write(scratch);
        if scratch.as_slice() != bytes {
            return Err(LineError::NotCanonical);
        }
        let kind = types.iter().find(|kind| line.kind.as_deref() == Some(kind.name));
        let kind = kind.ok_or(LineError::Keys)?;
        let keys = line.keys();
        if keys & kind.required != kind.required || keys & !(kind.required | kind.optional) != 0 {
            return Err(LineError::Keys);
        }
        Ok(line)
    }

    /// The name of its type.
    #[must_use]
    pub fn name(&self) -> &str {
        self.kind.as_deref().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use proptest::prelude::*;

    use super::*;

    fn sum() -> Line<'static> {
        Line {
            seq: Some(7),
            time_us: Some(u64::MAX),
            kind: Some("sum".into()),
            session: Some("fh-1".into()),
            tier: Some("wasm".into()),
            call: Some(3),
            parent: Some(0),
            operation: Some("fs.stream".into()),
            target: Some("/w".into()),
            decision: Some("allow".into()),
            rule: Some("r".into()),
            generation: Some(1),
            count: Some(2),
            failed: Some(0),
            budget: Some("read_bytes".into()),
            before: Some(10),
            after: Some(9),
            bytes_in: Some(1),
            bytes_out: Some(0),
            prev: Some(Bytes([0xab; 32])),
            ..Line::default()
        }
    }

    fn written(line: &Line<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        line.write(&mut bytes);
        bytes
    }

    #[test]
    fn the_keys_fit_one_set_and_the_two_tables_name_each_type_once() {
        assert!((Key::sig as u32) < 64);
        for types in [LOG_TYPES.as_slice(), WITNESS_TYPES.as_slice()] {
            for kind in types {
                assert_eq!(types.iter().filter(|other| other.name == kind.name).count(), 1);
                assert_eq!(kind.required & kind.optional, 0, "{}", kind.name);
            }
        }
    }

    #[test]
    fn only_one_spelling_is_accepted() {
        let good = written(&sum());
        assert_eq!(Line::parse(&good).unwrap(), sum());
        let text = String::from_utf8(good).unwrap();
        let changed = |from: &str, to: &str| {
            let changed = text.replacen(from, to, 1);
            assert_ne!(changed, text, "{from}");
            Line::parse(changed.as_bytes()).unwrap_err()
        };
        assert_eq!(changed("\"seq\":7", "\"seq\": 7"), LineError::NotCanonical);
        assert_eq!(changed("\"seq\":7", "\"seq\":7,\"seq\":7"), LineError::Malformed);
        assert_eq!(changed("\"seq\":7", "\"seq\":07"), LineError::Malformed);
        assert_eq!(changed("\"seq\":7", "\"seq\":7.0"), LineError::Malformed);
        assert_eq!(changed("\"seq\":7", "\"seq\":-7"), LineError::Malformed);
        assert_eq!(changed("\"seq\":7,", ""), LineError::Keys);
        assert_eq!(changed("\"seq\":7", "\"seq\":7,\"why\":1"), LineError::Malformed);
        assert_eq!(changed("/w", "\\/w"), LineError::NotCanonical);
        assert_eq!(changed("/w", "\\u002fw"), LineError::NotCanonical);
        assert_eq!(changed("/w", "é"), LineError::NotCanonical);
        assert_eq!(changed("abab", "ABAB"), LineError::Malformed);
        assert_eq!(changed("\"type\":\"sum\"", "\"type\":\"checkpoint\""), LineError::Keys);
        assert_eq!(changed("\"type\":\"sum\"", "\"type\":\"total\""), LineError::Keys);
        assert_eq!(changed("\"failed\":0", "\"failed\":null"), LineError::NotCanonical);
        assert_eq!(Line::parse(&vec![b' '; MAX_AUDIT_LINE_BYTES + 1]), Err(LineError::TooLong));
    }

    proptest! {
        #[test]
        fn text_of_any_kind_is_printable_ascii_and_comes_back(target in ".*", number: u64) {
            let target = format!("{target}\n\u{202e}\u{1b}[2J\u{7f}\",\"seq\":9,\u{1f600}");
            let line =
                Line { target: Some(target.clone().into()), before: Some(number), ..sum() };
            let bytes = written(&line);
            prop_assert!(bytes.iter().all(|byte| (b' '..=b'~').contains(byte)));
            let back = Line::parse(&bytes).unwrap();
            prop_assert_eq!(back.target.as_deref(), Some(target.as_str()));
            prop_assert_eq!(back, line);
        }
    }
}
