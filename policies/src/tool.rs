//! Calls of the embedder's tools.
//!
//! What: [`ToolRequest`] is made from a name and JSON text.
//! Why: the arguments the policy judges are the arguments the tool gets.
//!
//! Invariant: the name has 1 to [`MAX_TOOL_NAME_BYTES`] letters, digits, `_`,
//! `-` or `.`; the arguments are one object that [`crate::parse_json`] accepted.

use serde_json::{Map, Value};

use crate::host::shown;
use crate::json::{JsonError, canonical_json, parse_json};
use crate::request::Canonical;

/// Longest tool name in bytes.
pub const MAX_TOOL_NAME_BYTES: usize = 64;

/// Why a name and a text are no tool call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ToolRequestError {
    /// Not a tool name.
    #[error("`{name}` is not a tool name; use at most 64 letters, digits, `_`, `-` and `.`")]
    Name {
        /// The name, escaped and cut.
        name: String,
    },
    /// The arguments are no JSON value that can be accepted.
    #[error(transparent)]
    Json(#[from] JsonError),
    /// The arguments are not an object.
    #[error("the arguments of a tool are one JSON object")]
    NotAnObject,
}

impl ToolRequestError {
    /// A stable identifier.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Name { .. } => "tool_name",
            Self::Json(error) => error.code(),
            Self::NotAnObject => "tool_arguments_not_an_object",
        }
    }
}

/// One call of a tool.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolRequest {
    name: Box<str>,
    arguments: Value,
    bytes: u64,
}

impl ToolRequest {
    /// Canonicalises a name and the JSON text of the arguments, which may have
    /// at most `limit` bytes.
    ///
    /// # Errors
    /// [`ToolRequestError`].
    pub fn parse(
        name: &str,
        arguments: &[u8],
        limit: usize,
    ) -> Result<Canonical<Self>, ToolRequestError> {
        if !is_tool_name(name) {
            return Err(ToolRequestError::Name { name: shown(name) });
        }
        let bytes = u64::try_from(arguments.len()).unwrap_or(u64::MAX);
        let arguments = parse_json(arguments, limit)?;
        if !arguments.is_object() {
            return Err(ToolRequestError::NotAnObject);
        }
        Ok(Canonical::new(Self { name: name.into(), arguments, bytes }))
    }

    /// The tool's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The arguments; always an object.
    #[must_use]
    pub fn arguments(&self) -> &Value {
        &self.arguments
    }

    /// The arguments by name.
    #[must_use]
    pub fn argument_map(&self) -> Option<&Map<String, Value>> {
        self.arguments.as_object()
    }

    /// Length of the text that was parsed, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The arguments as canonical text: equal arguments give equal text.
    #[must_use]
    pub fn canonical_arguments(&self) -> String {
        canonical_json(&self.arguments)
    }
}

/// Whether text can name a tool.
#[must_use]
pub fn is_tool_name(text: &str) -> bool {
    (1..=MAX_TOOL_NAME_BYTES).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_parsed_once() {
        let code = |name: &str, text: &str| {
            ToolRequest::parse(name, text.as_bytes(), 1000)
                .map_or_else(|error| error.code(), |_| "ok")
        };
        assert_eq!(code("search", "{}"), "ok");
        assert_eq!(code("se arch", "{}"), "tool_name");
        assert_eq!(code(&"x".repeat(65), "{}"), "tool_name");
        assert_eq!(code("search", "[]"), "tool_arguments_not_an_object");
        assert_eq!(code("search", r#"{"a":1,"a":1}"#), "json_duplicate_key");
        let call = ToolRequest::parse("search", br#" {"b": 1.0, "a": [true]}"#, 1000).unwrap();
        assert_eq!(call.get().canonical_arguments(), r#"{"a":[true],"b":1.0}"#);
        let again = ToolRequest::parse("search", call.get().canonical_arguments().as_bytes(), 1000)
            .unwrap();
        assert_eq!(again.get().arguments(), call.get().arguments());
    }
}
