//! What a tool gave, as JSON text of a bounded length.
//!
//! Why: a value of a gigabyte must not become text of a gigabyte before it is
//! found to be too long.
//!
//! Invariant: at most `limit` bytes are ever written, and nesting deeper than
//! [`MAX_RESULT_DEPTH`] is not followed.

use std::io;

use serde_json::Value;

/// Deepest nesting of a result, as deep as `serde_json` parses.
pub(crate) const MAX_RESULT_DEPTH: usize = 128;

/// Why a value is no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unfit {
    TooLong,
    TooDeep,
}

/// Writes a value without spaces.
///
/// # Errors
/// [`Unfit`]; what was written is dropped.
pub(crate) fn to_json(value: &Value, limit: usize) -> Result<Vec<u8>, Unfit> {
    let mut out = Bounded { bytes: Vec::new(), limit };
    write(value, MAX_RESULT_DEPTH, &mut out)?;
    Ok(out.bytes)
}

/// Drops a value however deep it nests; its own destructor would recurse.
pub(crate) fn take_apart(value: Value) {
    let mut rest = vec![value];
    while let Some(value) = rest.pop() {
        match value {
            Value::Array(items) => rest.extend(items),
            Value::Object(members) => rest.extend(members.into_iter().map(|(_, member)| member)),
            _ => {}
        }
    }
}

struct Bounded {
    bytes: Vec<u8>,
    limit: usize,
}

impl Bounded {
    fn push(&mut self, bytes: &[u8]) -> Result<(), Unfit> {
        if bytes.len() > self.limit.saturating_sub(self.bytes.len()) {
            return Err(Unfit::TooLong);
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }
}

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.push(bytes).map_err(|_| io::ErrorKind::StorageFull)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The only way in which writing a scalar fails is the bound.
fn scalar(value: &impl serde::Serialize, out: &mut Bounded) -> Result<(), Unfit> {
    serde_json::to_writer(out, value).map_err(|_| Unfit::TooLong)
}

fn write(value: &Value, depth: usize, out: &mut Bounded) -> Result<(), Unfit> {
    let inner = || depth.checked_sub(1).ok_or(Unfit::TooDeep);
    match value {
        Value::Array(items) => {
            let depth = inner()?;
            let mut before: &[u8] = b"[";
            for item in items {
                out.push(std::mem::replace(&mut before, b","))?;
                write(item, depth, out)?;
            }
            out.push(if items.is_empty() { b"[]" } else { b"]" })
        }
        Value::Object(members) => {
            let depth = inner()?;
            let mut before: &[u8] = b"{";
            for (name, member) in members {
                out.push(std::mem::replace(&mut before, b","))?;
                scalar(name, out)?;
                out.push(b":")?;
                write(member, depth, out)?;
            }
            out.push(if members.is_empty() { b"{}" } else { b"}" })
        }
        value => scalar(value, out),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn text_is_that_of_serde_json() {
        for value in [
            json!(null),
            json!([]),
            json!({}),
            json!([1, -2.5, "a\n\u{1f600}", true, [[]], {"k": {"x": []}, "l": null}]),
        ] {
            let text = value.to_string();
            assert_eq!(to_json(&value, text.len()).as_deref(), Ok(text.as_bytes()));
            assert_eq!(to_json(&value, text.len() - 1), Err(Unfit::TooLong));
        }
    }

    #[test]
    fn depth_is_bounded() {
        let nested = |depth| (0..depth).fold(json!(0), |inner, _| Value::Array(vec![inner]));
        assert!(to_json(&nested(128), 1000).is_ok());
        assert_eq!(to_json(&nested(129), 1000), Err(Unfit::TooDeep));
        assert_eq!(to_json(&nested(5000), 100_000), Err(Unfit::TooDeep));
    }
}
