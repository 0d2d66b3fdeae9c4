//! Requests as text, for examples, `check` and `explain`.
//!
//! What: [`Question::parse`] reads one line:
//! `fs.read /work/x`, `fs.rename /work/a -> /work/b`, `tool NAME {json}`,
//! `net GET https://api.example.com/v1`, `env NAME`, `bash COMMAND`. What is
//! written, truncated or created is not read as well.
//!
//! Invariant: the request is made by the canonicaliser that also makes the
//! guest's, so an example cannot ask what a guest could not.

use crate::environment::{EnvRequest, EnvRequestError};
use crate::host::shown;
use crate::network::{NetRequest, NetRequestError};
use crate::path::{GuestPath, PathError};
use crate::policy::{Decision, Policy};
use crate::request::{Canonical, FsAction, FsRequest};
use crate::rules::Obligations;
use crate::rules::fs::FS_OPERATIONS;
use crate::tool::{ToolRequest, ToolRequestError};

/// Longest request text in bytes.
pub const MAX_QUESTION_BYTES: usize = 64 << 10;

/// Why text is no request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuestionError {
    /// It begins with no known word.
    #[error("`{text}` is not a request")]
    Unknown {
        /// The text, escaped and cut.
        text: String,
    },
    /// A path is missing or wrong.
    #[error("`{text}` is not a request over files: {reason}")]
    Path {
        /// The text, escaped and cut.
        text: String,
        /// What is wrong.
        reason: String,
    },
    /// The tool call cannot be made.
    #[error(transparent)]
    Tool(#[from] ToolRequestError),
    /// The network request cannot be made.
    #[error(transparent)]
    Net(#[from] NetRequestError),
    /// The variable cannot be named.
    #[error(transparent)]
    Environment(#[from] EnvRequestError),
}

impl QuestionError {
    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> String {
        match self {
            Self::Unknown { .. } => {
                "write fs.OPERATION PATH, tool NAME {json}, net METHOD URL, env NAME or bash COMMAND".to_owned()
            }
            Self::Path { .. } => "write an absolute path, and for rename and link: FROM -> TO".to_owned(),
            Self::Tool(_) => "write tool NAME {\"argument\": 1}".to_owned(),
            Self::Net(_) => "write net GET https://api.example.com/v1".to_owned(),
            Self::Environment(_) => "write env NAME".to_owned(),
        }
    }
}

/// One request that a policy can be asked about.
#[derive(Clone, Debug, PartialEq)]
pub enum Question {
    /// Over files.
    File(Canonical<FsRequest>),
    /// Of a tool.
    Tool(Canonical<ToolRequest>),
    /// To the network.
    Net(Canonical<NetRequest>),
    /// For a variable of the host.
    Environment(Canonical<EnvRequest>),
    /// To run a command.
    Bash(String),
}

impl Question {
    /// Reads a request.
    ///
    /// # Errors
    /// [`QuestionError`] says what is wrong.
    pub fn parse(text: &str) -> Result<Self, QuestionError> {
        let unknown = || QuestionError::Unknown { text: shown(text) };
        if text.len() > MAX_QUESTION_BYTES {
            return Err(unknown());
        }
        let (word, rest) = text.trim().split_once(char::is_whitespace).ok_or_else(unknown)?;
        let rest = rest.trim();
        match word {
            "tool" => {
                let (name, arguments) =
                    rest.split_once(char::is_whitespace).unwrap_or((rest, "{}"));
                Ok(Self::Tool(ToolRequest::parse(name, arguments.as_bytes(), MAX_QUESTION_BYTES)?))
            }
            "net" => {
                let (method, url) = rest.split_once(char::is_whitespace).ok_or_else(unknown)?;
                Ok(Self::Net(NetRequest::parse(method, url.trim())?))
            }
            "env" => Ok(Self::Environment(EnvRequest::parse(rest)?)),
            "bash" => Ok(Self::Bash(rest.to_owned())),
            _ => {
                let operation = word
                    .strip_prefix("fs.")
                    .filter(|name| FS_OPERATIONS.contains(name))
                    .ok_or_else(unknown)?;
                file_question(operation, rest, text)
            }
        }
    }

    /// What a policy says about it. What is renamed counts as a directory.
    #[must_use]
    pub fn decide(&self, policy: &Policy) -> Decision {
        self.ask(policy).0
    }

    pub(crate) fn ask(&self, policy: &Policy) -> (Decision, Obligations) {
        match self {
            Self::File(request) => (policy.decide(request), Obligations::default()),
            Self::Tool(request) => {
                let ruling = policy.decide_tool(request);
                (ruling.decision, ruling.obligations)
            }
            Self::Net(request) => {
                let ruling = policy.decide_network(request);
                (ruling.decision, ruling.obligations)
            }
            Self::Environment(request) => {
                (policy.decide_environment(request), Obligations::default())
            }
            Self::Bash(_) => (policy.decide_bash(), Obligations::default()),
        }
    }
}

fn file_question(operation: &str, rest: &str, text: &str) -> Result<Question, QuestionError> {
    let wrong = |reason: String| QuestionError::Path { text: shown(text), reason };
    let path = |raw: &str| {
        let raw = raw.trim();
        if !raw.starts_with('/') {
            return Err(wrong("the path does not start with `/`".to_owned()));
        }
        let parsed = GuestPath::parse(&GuestPath::root(), raw.as_bytes());
        parsed.map(|found| found.path).map_err(|error: PathError| wrong(error.to_string()))
    };
    let two = matches!(operation, "rename" | "link");
    let (from, to) = match rest.split_once(" -> ") {
        Some((from, to)) if two => (path(from)?, Some(path(to)?)),
        None if two => return Err(wrong("it needs two paths".to_owned())),
        _ => (path(rest)?, None),
    };
    let action = match (operation, to) {
        ("rename", Some(to)) => FsAction::Rename { to },
        ("link", Some(to)) => FsAction::Link { to },
        ("list", _) => FsAction::List,
        ("read_link", _) => FsAction::ReadLink,
        ("read", _) => FsAction::Read,
        ("write", _) => FsAction::Write { reads: false },
        ("truncate", _) => FsAction::Truncate { reads: false },
        ("create", _) => FsAction::Create { reads: false },
        ("create_directory", _) => FsAction::CreateDirectory,
        ("remove", _) => FsAction::Remove,
        ("remove_directory", _) => FsAction::RemoveDirectory,
        ("symlink", _) => FsAction::Symlink,
        ("set_times", _) => FsAction::SetTimes,
        _ => FsAction::Metadata,
    };
    Ok(Question::File(FsRequest::canonical(action, from)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_operation_can_be_asked() {
        for name in FS_OPERATIONS {
            let second = if matches!(name, "rename" | "link") { " -> /b c" } else { "" };
            let Ok(Question::File(request)) = Question::parse(&format!("fs.{name} /a{second}"))
            else {
                panic!("{name}")
            };
            assert_eq!(request.get().action.name(), format!("fs.{name}"));
        }
        assert!(matches!(Question::parse("tool search"), Ok(Question::Tool(_))));
        assert!(matches!(Question::parse("net GET https://a.example/"), Ok(Question::Net(_))));
        for text in [
            "",
            "fs.read",
            "fs.read x",
            "fs.reed /x",
            "fs.rename /a",
            "tool x []",
            "net GET",
            "env A=B",
            "x y",
        ] {
            let error = Question::parse(text).unwrap_err();
            assert!(!error.to_string().is_empty() && !error.remedy().is_empty(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn parsing_never_panics(text in "\\PC{0,60}", word in "(fs\\.read|tool|net GET|env) ") {
            let _ = Question::parse(&text);
            let _ = Question::parse(&format!("{word}{text}"));
        }
    }
}
