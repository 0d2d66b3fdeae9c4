//! The JSON object whose members become globals.
//!
//! Invariant: the text is checked and passed on as it is: the order of its
//! members and every digit of its numbers reach the code.

use std::collections::BTreeMap;

use serde::de::IgnoredAny;

/// Deepest nesting, as deep as `serde_json` parses; Python would go deeper,
/// and then run out of stack in the middle of a value.
pub const MAX_INPUT_DEPTH: usize = 128;

/// Why text cannot be the inputs of a script.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is not a JSON object ({0})")]
pub struct InputsError(String);

/// Checks that `text` is a JSON object in UTF-8.
///
/// # Errors
/// [`InputsError`] says where it is not.
pub(crate) fn check(text: &[u8]) -> Result<(), InputsError> {
    let text = std::str::from_utf8(text)
        .map_err(|error| InputsError(format!("not UTF-8 at byte {}", error.valid_up_to())))?;
    if depth(text) > MAX_INPUT_DEPTH {
        return Err(InputsError(format!("nested deeper than {MAX_INPUT_DEPTH}")));
    }
    serde_json::from_str::<BTreeMap<String, IgnoredAny>>(text)
        .map(drop)
        .map_err(|error| InputsError(error.to_string()))
}

/// Deepest nesting of brackets outside strings.
fn depth(text: &str) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    let (mut in_string, mut escaped) = (false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => {
                depth = depth.saturating_add(1);
                deepest = deepest.max(depth);
            }
            b']' | b'}' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_object_of_bounded_depth_is_accepted() {
        let nested = |depth| format!("{{\"a\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
        for good in [
            "{}",
            r#" {"b": 1, "a": [1.5, null, "\"[{"], "b": 2} "#,
            r#"{"huge": 123456789012345678901234567890, "float": 1e400}"#,
            &nested(127),
        ] {
            assert_eq!(check(good.as_bytes()), Ok(()), "{good}");
        }
        for bad in ["", "[]", "1", "{", "{}{}", "{\"a\": NaN}", "{a: 1}", "{\"a\":}", &nested(128)]
        {
            assert!(check(bad.as_bytes()).is_err(), "{bad}");
        }
        assert!(check(b"{\"\xff\": 1}").unwrap_err().to_string().contains("byte 2"));
        assert!(check(nested(1_000_000).as_bytes()).is_err());
    }
}
