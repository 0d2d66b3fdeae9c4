//! Variables of native commands.
//!
//! Invariant: a [`Variables`] holds no name by which a loader, a shell or an
//! interpreter runs code that is not the command, no NUL and no doubled name.

use fumehood_policies::weaken;
use std::collections::BTreeMap;

/// Most bytes of all names and values together.
pub const MAX_NATIVE_ENVIRONMENT_BYTES: usize = 128 << 10;

/// Names that are refused; one that ends in `*` is a beginning. Each makes the
/// loader (`ld.so(8)`), a shell (`bash(1)`), an interpreter or git (`git(1)`,
/// "Environment Variables") run or load something before or beside the command.
pub const FORBIDDEN_VARIABLES: &[&str] = &[
    "BASHOPTS",
    "BASH_ENV",
    "BASH_FUNC_*",
    "DYLD_*",
    "EDITOR",
    "ENV",
    "GCONV_PATH",
    "GIT_*",
    "GLIBC_TUNABLES",
    "IFS",
    "JAVA_TOOL_OPTIONS",
    "LD_*",
    "LOCPATH",
    "NODE_OPTIONS",
    "NODE_PATH",
    "PERL5DB",
    "PERL5LIB",
    "PERL5OPT",
    "PROMPT_COMMAND",
    "PS4",
    "PYTHONBREAKPOINT",
    "PYTHONHOME",
    "PYTHONINSPECT",
    "PYTHONPATH",
    "PYTHONSTARTUP",
    "PYTHONUSERBASE",
    "PYTHONWARNINGS",
    "RUBYLIB",
    "RUBYOPT",
    "SHELLOPTS",
    "VISUAL",
    "_JAVA_OPTIONS",
];

/// A variable that no command is given.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VariableError {
    /// It would run something else.
    #[error(
        "the variable `{name}` is not passed to commands, because programs run or load what it names; set it inside the command if it is meant"
    )]
    Forbidden {
        /// Its name.
        name: String,
    },
    /// It is no variable.
    #[error(
        "`{name}` cannot be a variable: a name is not empty and has no `=`, and nothing has a NUL"
    )]
    Malformed {
        /// Its name, escaped and cut.
        name: String,
    },
    /// There are too many bytes.
    #[error("the variables have more than {MAX_NATIVE_ENVIRONMENT_BYTES} bytes; leave some out")]
    TooLarge,
}

/// Variables that were checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Variables {
    variables: BTreeMap<String, String>,
}

impl Variables {
    /// Checks variables; of equal names the last one counts.
    ///
    /// # Errors
    /// [`VariableError`] names the first that cannot be passed.
    pub fn new(
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, VariableError> {
        let mut bytes = 0_usize;
        let mut checked = BTreeMap::new();
        for (name, value) in variables {
            let nul = name.contains('\0') || value.contains('\0');
            if name.is_empty() || name.contains('=') || nul {
                let name = name.chars().take(64).collect::<String>().escape_debug().to_string();
                return Err(VariableError::Malformed { name });
            }
            if is_forbidden(&name) && !weaken::off(weaken::Defence::Variables) {
                return Err(VariableError::Forbidden { name });
            }
            bytes = bytes.saturating_add(name.len()).saturating_add(value.len()).saturating_add(2);
            if bytes > MAX_NATIVE_ENVIRONMENT_BYTES {
                return Err(VariableError::TooLarge);
            }
            checked.insert(name, value);
        }
        Ok(Self { variables: checked })
    }

    /// Names and values, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.variables.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// These, and beside them those of `other`, which win.
    #[must_use]
    pub fn with(mut self, other: &Self) -> Self {
        let pairs = other.variables.iter().map(|(name, value)| (name.clone(), value.clone()));
        self.variables.extend(pairs);
        self
    }
}

fn is_forbidden(name: &str) -> bool {
    FORBIDDEN_VARIABLES.iter().any(|pattern| match pattern.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => name == *pattern,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(name: &str, value: &str) -> Result<Variables, VariableError> {
        Variables::new([(name.to_owned(), value.to_owned())])
    }

    #[test]
    fn what_runs_other_code_is_refused_by_name() {
        for pattern in FORBIDDEN_VARIABLES {
            let name = pattern.replace('*', "X");
            assert_eq!(one(&name, "/tmp/x"), Err(VariableError::Forbidden { name }));
        }
        for name in ["BASH_FUNC_ls%%", "LD_PRELOAD", "LD_AUDIT", "GIT_SSH_COMMAND"] {
            assert!(one(name, "x").is_err(), "{name}");
        }
        for name in ["PATH", "HOME", "LANG", "TERM", "ENVIRONMENT", "MY_LD_PRELOAD"] {
            assert!(one(name, "x").is_ok(), "{name}");
        }
        for (name, value) in [("", "x"), ("A=B", "x"), ("A\0", "x"), ("A", "x\0")] {
            assert!(matches!(one(name, value), Err(VariableError::Malformed { .. })));
        }
        let long = "x".repeat(MAX_NATIVE_ENVIRONMENT_BYTES);
        assert_eq!(one("A", &long), Err(VariableError::TooLarge));
        let mut sorted = FORBIDDEN_VARIABLES.to_vec();
        sorted.sort_unstable();
        assert_eq!(sorted, FORBIDDEN_VARIABLES);
    }
}
