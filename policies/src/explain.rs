//! Why a request gets its verdict, and what would change it.
//!
//! What: [`Policy::explain`] answers one request in words; [`PolicyFile::summary`]
//! says what a file contains.
//! Why: an operator must be able to read what a policy does without running it.
//!
//! Invariant: the decision shown is that of the function the broker calls.

use std::fmt;

use crate::combine::{Flags, access_name, in_unit, memory_name};
use crate::digest::hexadecimal;
use crate::path::GuestPath;
use crate::policy::{Cause, Decision, Policy, Verdict};
use crate::question::{Question, QuestionError};
use crate::request::{FsAction, FsRequest};
use crate::rules::fs::{FsFacts, FsOperations};
use crate::rules::{Action, Obligations};
use crate::text::{FlagMode, PolicyFile, verdict_name};

/// A rule that speaks about a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Speaks {
    /// Its id.
    pub rule: String,
    /// What it does.
    pub action: Action,
    /// The file, the ceiling or the command line.
    pub source: String,
    /// Its line; 0 if it has none.
    pub line: usize,
}

/// The answer about one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The request in its canonical form.
    pub request: String,
    /// The decision.
    pub decision: Decision,
    /// What the executor would hold it to.
    pub obligations: Obligations,
    /// Every rule that speaks about it.
    pub rules: Vec<Speaks>,
    /// The nearest change that would allow it, a sentence or text to add to
    /// the policy; empty if it is allowed.
    pub nearest_change: String,
}

impl Policy {
    /// Explains one request, written as [`Question::parse`] reads it.
    ///
    /// # Errors
    /// [`QuestionError`] if the text is no request.
    pub fn explain(&self, text: &str) -> Result<Explanation, QuestionError> {
        let question = Question::parse(text)?;
        let (decision, obligations) = question.ask(self);
        let rules = self.speaking(&question);
        let nearest_change = match decision.verdict {
            Verdict::Allow => String::new(),
            _ => self.nearest_change(&question, &decision, &rules),
        };
        Ok(Explanation {
            request: canonical_text(&question),
            decision,
            obligations,
            rules,
            nearest_change,
        })
    }

    fn speaking(&self, question: &Question) -> Vec<Speaks> {
        let mut speaking = Vec::new();
        for layer in self.layers.iter() {
            let mut add = |id: &str, action, line| {
                speaking.push(Speaks {
                    rule: id.to_owned(),
                    action,
                    source: layer.name.to_string(),
                    line,
                });
            };
            match question {
                Question::File(request) => {
                    for rule in layer
                        .fs
                        .iter()
                        .filter(|rule| rule.speaks_about(request.get(), FsFacts::default()))
                    {
                        add(&rule.id, rule.action, rule.line);
                    }
                }
                Question::Tool(request) => {
                    for rule in layer
                        .tools
                        .iter()
                        .flat_map(|rules| rules.iter())
                        .filter(|rule| rule.matches(request.get()))
                    {
                        add(&rule.id, rule.action, rule.line);
                    }
                }
                Question::Net(request) => {
                    for rule in layer
                        .net
                        .iter()
                        .flat_map(|rules| rules.iter())
                        .filter(|rule| rule.matches(request.get()))
                    {
                        add(&rule.id, rule.action, rule.line);
                    }
                }
                Question::Environment(_) | Question::Bash(_) => {}
            }
        }
        speaking
    }

    fn nearest_change(&self, question: &Question, decision: &Decision, rules: &[Speaks]) -> String {
        let against: Vec<String> = rules
            .iter()
            .filter(|rule| rule.action != Action::Allow)
            .map(|rule| {
                format!(
                    "rule `{}` ({}, {}:{})",
                    rule.rule,
                    rule.action.name(),
                    rule.source,
                    rule.line
                )
            })
            .collect();
        if !against.is_empty() && matches!(decision.cause, Cause::Rule | Cause::Ask) {
            return format!("narrow or remove {}", against.join(" and "));
        }
        match (decision.cause, question) {
            (Cause::NoMount, Question::File(request)) => {
                let directory = self.unmounted(request.get());
                format!(
                    "[[fs.mounts]]\nid = \"new\"\nat = \"{directory}\"\nhost = \"/THE/DIRECTORY\"\naccess = \"read-only\""
                )
            }
            (Cause::ReadOnly, _) => {
                format!("set access = \"read-write\" in mount `{}`", decision.rule)
            }
            (Cause::TooLarge, _) => {
                format!("raise `max_request_bytes` of rule `{}`", decision.rule)
            }
            (_, Question::File(request)) => fs_needs(request.get()).join("\n"),
            (_, Question::Tool(request)) => self.tool_change(request.get()),
            (_, Question::Net(request)) => {
                let request = request.get();
                format!(
                    "[[net]]\nid = \"new\"\nhosts = [\"{}\"]\nports = [{}]\nmethods = [\"{}\"]\npaths = ['{}']",
                    request.host,
                    request.port,
                    request.method,
                    escape_pattern(request.path.as_bytes())
                )
            }
            (_, Question::Environment(request)) => {
                format!("[env]\nallow = [{:?}]", request.get().name())
            }
            (_, Question::Bash(_)) => "[bash]\naction = \"allow\"".to_owned(),
        }
    }

    /// The directory of the first path that no mount holds.
    fn unmounted(&self, request: &FsRequest) -> GuestPath {
        let second = request.action.second_path();
        let path =
            std::iter::once(&request.path).chain(second).find(|path| self.mount_of(path).is_none());
        let path = path.unwrap_or(&request.path);
        path.parent().filter(|parent| !parent.is_root()).unwrap_or_else(|| path.clone())
    }
}

/// The rules that a request over files needs, one per path.
fn fs_needs(request: &FsRequest) -> Vec<String> {
    let own = FsOperations::needed_by(&request.action);
    let names = |operations: FsOperations| {
        operations.names().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ")
    };
    let rename = matches!(request.action, FsAction::Rename { .. });
    let one = |id: &str, path: &GuestPath, operations: FsOperations| {
        let pattern = escape_pattern(path.as_bytes());
        let below = if rename { format!(", '{pattern}/**'") } else { String::new() };
        format!(
            "[[fs.rules]]\nid = \"{id}\"\npaths = ['{pattern}'{below}]\noperations = [{}]",
            names(operations)
        )
    };
    match request.action.second_path() {
        Some(to) => vec![
            one("new-source", &request.path, own.with(FsOperations::named_one("read"))),
            one("new", to, own),
        ],
        None => vec![one("new", &request.path, own)],
    }
}

/// A path as the pattern that matches it alone.
pub(crate) fn escape_pattern(path: &[u8]) -> String {
    let mut text = String::new();
    for chunk in path.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '*' | '?' | '[' | ']' | '{' | '}' | '\\' => text.extend(['\\', character]),
                '\'' => text.push_str("\\x27"),
                character if character.is_control() => {
                    let mut bytes = [0; 4];
                    for byte in character.encode_utf8(&mut bytes).bytes() {
                        text.push_str(&format!("\\x{byte:02x}"));
                    }
                }
                character => text.push(character),
            }
        }
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

fn canonical_text(question: &Question) -> String {
    match question {
        Question::File(request) => {
            let request = request.get();
            let second =
                request.action.second_path().map(|to| format!(" -> {to}")).unwrap_or_default();
            format!("{} {}{second}", request.action.name(), request.path)
        }
        Question::Tool(request) => {
            format!(
                "tool {} {}",
                request.get().name(),
                crate::host::shown(&request.get().canonical_arguments())
            )
        }
        Question::Net(request) => {
            format!("net {} {}", request.get().method, crate::host::shown(&request.get().url()))
        }
        Question::Environment(request) => {
            format!("env {}", crate::host::shown(request.get().name()))
        }
        Question::Bash(command) => format!("bash {}", crate::host::shown(command)),
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Decision { verdict, rule, reason, .. } = &self.decision;
        writeln!(formatter, "{}", self.request)?;
        writeln!(formatter, "  {} by rule `{rule}`", verdict_name(*verdict))?;
        if !reason.is_empty() {
            writeln!(formatter, "  {reason}")?;
        }
        for speaks in &self.rules {
            let source = crate::host::shown(&speaks.source);
            writeln!(
                formatter,
                "  rule `{}` ({}) says {}",
                speaks.rule,
                place(&source, speaks.line),
                speaks.action.name()
            )?;
        }
        for limit in &self.obligations.max_calls {
            writeln!(formatter, "  at most {} calls under rule `{}`", limit.calls, limit.rule)?;
        }
        for (what, limit) in [
            ("request", self.obligations.max_request_bytes),
            ("response", self.obligations.max_response_bytes),
        ] {
            if let Some(limit) = limit {
                writeln!(formatter, "  at most {limit} bytes of {what}")?;
            }
        }
        for limit in &self.obligations.host_limits {
            for (what, most) in [("requests", limit.requests), ("bytes", limit.bytes)] {
                if let Some(most) = most {
                    writeln!(
                        formatter,
                        "  at most {most} {what} for each host under rule `{}`",
                        limit.rule
                    )?;
                }
            }
        }
        if !self.nearest_change.is_empty() {
            writeln!(formatter, "  nearest change:")?;
            for line in self.nearest_change.lines() {
                writeln!(formatter, "    {line}")?;
            }
        }
        Ok(())
    }
}

fn place(source: &str, line: usize) -> String {
    if line == 0 { source.to_owned() } else { format!("{source}:{line}") }
}

/// What a policy file contains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Name of the text.
    pub name: String,
    /// Digest of the policy that the file alone makes; empty if its mounts
    /// cannot be put together.
    pub digest: String,
    /// One line for each thing that it says.
    pub lines: Vec<String>,
    /// Sections that this build cannot carry out.
    pub unsupported: Vec<&'static str>,
}

impl PolicyFile {
    /// Explains one request by this file alone.
    ///
    /// # Errors
    /// [`QuestionError`] if the text is no request.
    pub fn explain(&self, text: &str) -> Result<Explanation, QuestionError> {
        let refused = match Policy::combine(Some(self), &Flags::default(), None) {
            Ok(combined) => return combined.policy.explain(text),
            // A file that parsed combines; one that does not denies everything.
            Err(refused) => refused.to_string(),
        };
        let decision = Decision {
            verdict: Verdict::Deny,
            rule: crate::policy::DEFAULT_DENY.into(),
            reason: refused.clone().into(),
            hint: "correct the mounts".into(),
            cause: Cause::Unlisted,
        };
        let (request, obligations) =
            (canonical_text(&Question::parse(text)?), Obligations::default());
        Ok(Explanation {
            request,
            decision,
            obligations,
            rules: Vec::new(),
            nearest_change: refused,
        })
    }

    /// Says what the file contains.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let mut lines = Vec::new();
        let combined = Policy::combine(Some(self), &Flags::default(), None);
        lines.push(match self.flags {
            FlagMode::Narrow => "command-line flags can only take away".to_owned(),
            FlagMode::Extend => "command-line flags can add".to_owned(),
        });
        let fs = self.fs.clone().unwrap_or_default();
        let memory = fs.memory.unwrap_or(Some(crate::Access::ReadWrite));
        lines.push(format!("in-memory root: {}", memory_name(memory)));
        for mount in &fs.mounts {
            lines.push(format!(
                "mount \"{}\": `{}` at `{}`, {}",
                mount.id,
                crate::host::shown(&mount.host),
                mount.at,
                access_name(mount.access)
            ));
        }
        for (what, count) in [
            ("file rules", fs.rules.len()),
            ("tool rules", self.tools.as_ref().map_or(0, Vec::len)),
            ("network rules", self.net.as_ref().map_or(0, Vec::len)),
            ("examples, all of which hold", self.examples.len()),
        ] {
            lines.push(format!("{count} {what}"));
        }
        if let Some(environment) = &self.environment {
            let names: Vec<String> = environment
                .set
                .keys()
                .chain(&environment.allow)
                .map(|name| crate::host::shown(name))
                .collect();
            lines.push(format!(
                "variables: {}",
                if names.is_empty() { "none".to_owned() } else { names.join(", ") }
            ));
        }
        if let Ok(combined) = &combined {
            let budget = combined.policy.budget();
            let numbers: Vec<String> = budget
                .entries()
                .map(|(key, value)| format!("{key} = {}", in_unit(key, value)))
                .collect();
            lines.push(format!("budget: {}", numbers.join(", ")));
        }
        let unsupported = self.refused_sections();
        if !unsupported.is_empty() {
            lines.push(format!(
                "this build cannot run it: [{}] has no executor here",
                unsupported.join("], [")
            ));
        }
        let digest =
            combined.map(|combined| hexadecimal(&combined.policy.digest())).unwrap_or_default();
        Summary { name: self.name.clone(), digest, lines, unsupported }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "{}: good, sha256 {}", crate::host::shown(&self.name), self.digest)?;
        for line in &self.lines {
            writeln!(formatter, "  {line}")?;
        }
        Ok(())
    }
}
