//! JSON from a guest, with bounds.
//!
//! What: text becomes a [`serde_json::Value`] or a [`JsonError`].
//! Why: the value is parsed once, and what the policy judges is what the tool
//! gets; so nothing that two parsers could read differently is accepted.
//!
//! Invariant: length, depth and number of values are bounded before memory is
//! spent on them; no object has a key twice; no string has half a surrogate
//! pair; no whole number loses digits.

use std::cell::Cell;
use std::collections::HashSet;
use std::fmt;

use serde::de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Deepest nesting of arrays and objects.
pub const MAX_JSON_DEPTH: usize = 64;
/// Most values (scalars, arrays, objects) in one text.
pub const MAX_JSON_VALUES: usize = 1_000_000;

/// Why text is not acceptable JSON.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JsonError {
    /// Longer than the caller allows.
    #[error("the JSON text has {length} bytes; at most {limit} are accepted")]
    TooLarge {
        /// Its length.
        length: usize,
        /// The limit.
        limit: usize,
    },
    /// Not UTF-8.
    #[error("the JSON text is not UTF-8")]
    NotUtf8,
    /// Deeper than [`MAX_JSON_DEPTH`].
    #[error("the JSON text nests deeper than 64")]
    TooDeep,
    /// More values than [`MAX_JSON_VALUES`].
    #[error("the JSON text has more than 1000000 values")]
    TooManyValues,
    /// One object has a key twice.
    #[error("the JSON text has the key {key:?} twice in one object")]
    DuplicateKey {
        /// The key, cut to 64 characters.
        key: String,
    },
    /// Half a surrogate pair, which no text has.
    #[error("a string of the JSON text holds half a surrogate pair")]
    LoneSurrogate,
    /// A whole number of more than 64 bits.
    #[error("the JSON text has a whole number that does not fit 64 bits; pass it as a string")]
    IntegerTooLarge,
    /// Not JSON; `NaN` and `Infinity` are not.
    #[error("not JSON at column {column}")]
    Syntax {
        /// Where the parser stopped, in bytes from 1.
        column: usize,
    },
}

impl JsonError {
    /// A stable identifier.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::TooLarge { .. } => "json_too_large",
            Self::NotUtf8 => "json_not_utf8",
            Self::TooDeep => "json_too_deep",
            Self::TooManyValues => "json_too_many_values",
            Self::DuplicateKey { .. } => "json_duplicate_key",
            Self::LoneSurrogate => "json_lone_surrogate",
            Self::IntegerTooLarge => "json_integer_too_large",
            Self::Syntax { .. } => "json_syntax",
        }
    }
}

/// Parses JSON text of at most `limit` bytes.
///
/// # Errors
/// [`JsonError`].
pub fn parse_json(text: &[u8], limit: usize) -> Result<Value, JsonError> {
    if text.len() > limit {
        return Err(JsonError::TooLarge { length: text.len(), limit });
    }
    let text = std::str::from_utf8(text).map_err(|_| JsonError::NotUtf8)?;
    scan(text.as_bytes())?;
    let state = State { values: Cell::new(0), refusal: Cell::new(None) };
    let mut parser = serde_json::Deserializer::from_str(text);
    let parsed =
        ValueSeed(&state).deserialize(&mut parser).and_then(|value| parser.end().map(|()| value));
    parsed.map_err(|error| {
        state.refusal.take().unwrap_or(JsonError::Syntax { column: error.column() })
    })
}

/// Checks what a parser would not report: depth, digits and surrogates.
fn scan(text: &[u8]) -> Result<(), JsonError> {
    let mut depth = 0_usize;
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        match byte {
            b'"' => at = scan_string(text, at.saturating_add(1))?,
            b'[' | b'{' => {
                depth = depth.saturating_add(1);
                if depth > MAX_JSON_DEPTH {
                    return Err(JsonError::TooDeep);
                }
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            b'-' | b'0'..=b'9' => {
                let rest = text.get(at..).unwrap_or_default();
                let number =
                    |byte: &u8| matches!(byte, b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9');
                let length = rest.iter().position(|byte| !number(byte)).unwrap_or(rest.len());
                let digits =
                    std::str::from_utf8(rest.get(..length).unwrap_or_default()).unwrap_or_default();
                let whole = !digits.contains(['.', 'e', 'E']);
                if whole
                    && length > 18
                    && digits.parse::<i64>().is_err()
                    && digits.parse::<u64>().is_err()
                {
                    return Err(JsonError::IntegerTooLarge);
                }
                at = at.saturating_add(length.saturating_sub(1));
            }
            _ => {}
        }
        at = at.saturating_add(1);
    }
    Ok(())
}

/// Goes to the closing quote of a string, or to the end of the text.
fn scan_string(text: &[u8], mut at: usize) -> Result<usize, JsonError> {
    loop {
        match text.get(at) {
            None | Some(b'"') => return Ok(at),
            Some(b'\\') if text.get(at.saturating_add(1)) == Some(&b'u') => {
                match code_unit(text, at) {
                    Some(0xD800..=0xDBFF) => match code_unit(text, at.saturating_add(6)) {
                        Some(0xDC00..=0xDFFF) => at = at.saturating_add(12),
                        _ => return Err(JsonError::LoneSurrogate),
                    },
                    Some(0xDC00..=0xDFFF) => return Err(JsonError::LoneSurrogate),
                    _ => at = at.saturating_add(2),
                }
            }
            Some(b'\\') => at = at.saturating_add(2),
            Some(_) => at = at.saturating_add(1),
        }
    }
}

/// The number of the `\uHHHH` at a place.
fn code_unit(text: &[u8], at: usize) -> Option<u16> {
    let rest = text.get(at..at.checked_add(6)?)?.strip_prefix(b"\\u")?;
    rest.iter().try_fold(0_u16, |unit, byte| {
        let digit = char::from(*byte).to_digit(16)?;
        u16::try_from(digit).ok().map(|digit| unit.wrapping_shl(4) | digit)
    })
}

struct State {
    values: Cell<usize>,
    refusal: Cell<Option<JsonError>>,
}

impl State {
    fn refuse<E: serde::de::Error>(&self, error: JsonError) -> E {
        self.refusal.set(Some(error));
        E::custom("refused")
    }
}

struct ValueSeed<'s>(&'s State);

impl<'de> DeserializeSeed<'de> for ValueSeed<'_> {
    type Value = Value;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        let values = self.0.values.get().saturating_add(1);
        self.0.values.set(values);
        if values > MAX_JSON_VALUES {
            return Err(self.0.refuse(JsonError::TooManyValues));
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ValueSeed<'_> {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("not finite"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = sequence.next_element_seed(ValueSeed(self.0))? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        let mut seen = HashSet::new();
        while let Some(key) = entries.next_key::<String>()? {
            if !seen.insert(key.clone()) {
                let key = key.chars().take(64).collect();
                return Err(self.0.refuse(JsonError::DuplicateKey { key }));
            }
            if map.len() >= MAX_JSON_VALUES {
                return Err(A::Error::custom("too many keys"));
            }
            map.insert(key, entries.next_value_seed(ValueSeed(self.0))?);
        }
        Ok(Value::Object(map))
    }
}

/// Writes a value with its object keys sorted and no spaces: equal values give
/// equal text.
#[must_use]
pub fn canonical_json(value: &Value) -> String {
    let mut text = String::new();
    write_canonical(value, &mut text);
    text
}

fn write_canonical(value: &Value, text: &mut String) {
    match value {
        Value::Array(items) => {
            text.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    text.push(',');
                }
                write_canonical(item, text);
            }
            text.push(']');
        }
        Value::Object(map) => {
            let mut keys: Vec<_> = map.iter().collect();
            keys.sort_unstable_by_key(|(key, _)| *key);
            text.push('{');
            for (index, (key, item)) in keys.into_iter().enumerate() {
                if index > 0 {
                    text.push(',');
                }
                text.push_str(&Value::from(key.as_str()).to_string());
                text.push(':');
                write_canonical(item, text);
            }
            text.push('}');
        }
        scalar => text.push_str(&scalar.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn code(text: &str) -> &'static str {
        parse_json(text.as_bytes(), 1 << 20).map_or_else(|error| error.code(), |_| "ok")
    }

    #[test]
    fn hostile_texts_get_typed_errors() {
        for (text, want) in [
            (r#"{"a":1,"a":2}"#, "json_duplicate_key"),
            (r#"{"a":1,"\u0061":2}"#, "json_duplicate_key"),
            (r#"["\ud800"]"#, "json_lone_surrogate"),
            (r#"["\udc00\ud800"]"#, "json_lone_surrogate"),
            (r#"["\ud83d\ude00", "\\ud800"]"#, "ok"),
            ("[NaN]", "json_syntax"),
            ("[Infinity]", "json_syntax"),
            ("[1e999]", "json_syntax"),
            ("[18446744073709551615,-9223372036854775808]", "ok"),
            ("[18446744073709551616]", "json_integer_too_large"),
            ("[1] 2", "json_syntax"),
            ("", "json_syntax"),
            ("[1.5e3]", "ok"),
        ] {
            assert_eq!(code(text), want, "{text}");
        }
        assert_eq!(code(&"[".repeat(100_000)), "json_too_deep");
        assert_eq!(code(&format!("{}{}", "[".repeat(64), "]".repeat(64))), "ok");
        assert_eq!(parse_json(b"\"\xed\xa0\x80\"", 10), Err(JsonError::NotUtf8));
        assert_eq!(parse_json(b"[1,2]", 4), Err(JsonError::TooLarge { length: 5, limit: 4 }));
        let many = format!("[{}1]", "1,".repeat(MAX_JSON_VALUES));
        assert_eq!(parse_json(many.as_bytes(), many.len()), Err(JsonError::TooManyValues));
    }

    proptest! {
        #[test]
        fn canonical_text_is_idempotent(text in "[\\[\\]{}\",:0-9a-c\\\\ud.e-]{0,40}") {
            if let Ok(value) = parse_json(text.as_bytes(), 1000) {
                let once = canonical_json(&value);
                let again = parse_json(once.as_bytes(), 1000).map(|value| canonical_json(&value));
                prop_assert_eq!(again, Ok(once));
            }
        }
    }
}
