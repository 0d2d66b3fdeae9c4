//! Environment variables.
//!
//! What: [`EnvRequest`] asks for one variable of the host by name.
//! Invariant: a name is not empty, has at most [`MAX_VARIABLE_NAME_BYTES`]
//! bytes and holds neither `=` nor NUL.

use crate::host::shown;
use crate::request::Canonical;

/// Longest name of a variable in bytes.
pub const MAX_VARIABLE_NAME_BYTES: usize = 255;

/// Text that cannot name a variable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{name}` is not the name of an environment variable; use 1 to 255 bytes without `=` and NUL"
)]
pub struct EnvRequestError {
    /// The text, escaped and cut.
    pub name: String,
}

impl EnvRequestError {
    /// A stable identifier.
    #[must_use]
    pub fn code(&self) -> &'static str {
        "env_name"
    }
}

/// One request for a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvRequest {
    name: Box<str>,
}

impl EnvRequest {
    /// Canonicalises a name.
    ///
    /// # Errors
    /// [`EnvRequestError`] if it cannot name a variable.
    pub fn parse(name: &str) -> Result<Canonical<Self>, EnvRequestError> {
        let good =
            (1..=MAX_VARIABLE_NAME_BYTES).contains(&name.len()) && !name.contains(['=', '\0']);
        if !good {
            return Err(EnvRequestError { name: shown(name) });
        }
        Ok(Canonical::new(Self { name: name.into() }))
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}
