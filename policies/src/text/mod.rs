//! Policy text.
//!
//! What: [`PolicyFile::parse`] turns TOML into a [`PolicyFile`] or into every
//! problem it has.
//! Why: a policy with a typo must not run, and one run must show all typos.
//!
//! Invariant: a [`PolicyFile`] has no unknown key, no rule that can never
//! match, no two rules that contradict or disagree, and every one of its
//! examples holds. Parsing never panics and text is at most
//! [`MAX_POLICY_BYTES`].

mod conflicts;
mod effects;
pub(crate) mod problem;
mod section;
mod sections;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use toml::de::DeTable;

use crate::budget::BudgetSettings;
use crate::host::HostPattern;
use crate::path::GuestPath;
use crate::policy::{Access, Verdict};
use crate::question::Question;
use crate::rules::Action;
use crate::rules::fs::FsRule;
use crate::rules::net::NetRule;
use crate::rules::tools::ToolRule;
use problem::{PolicyErrors, Problem, Report};
use section::Section;

/// Longest policy text in bytes.
pub const MAX_POLICY_BYTES: usize = 1 << 20;

/// Sections, in the order of the documentation.
pub const SECTIONS: &[&str] = &[
    "version", "flags", "fs", "net", "env", "secrets", "bash", "tools", "budget", "ask", "native",
    "example",
];

/// What command-line flags may do to a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlagMode {
    /// Only narrow it.
    #[default]
    Narrow,
    /// Also add to it.
    Extend,
}

/// A mount as text or flags declare it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountDeclaration {
    /// Unique name.
    pub id: Arc<str>,
    /// Where the guest sees it.
    pub at: GuestPath,
    /// The host directory, absolute; text that only the runtime interprets.
    pub host: String,
    /// How it may be used.
    pub access: Access,
    /// Line in the policy text; 0 for flags.
    pub line: usize,
}

/// The section `[fs]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FsSection {
    /// How the in-memory root may be used, if that is said: `Some(None)` takes
    /// it away.
    pub memory: Option<Option<Access>>,
    /// The mounts.
    pub mounts: Vec<MountDeclaration>,
    /// The rules.
    pub rules: Vec<FsRule>,
}

/// The section `[env]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnvironmentSection {
    /// Variables with their values.
    pub set: BTreeMap<String, String>,
    /// Variables of the host that may be passed on.
    pub allow: BTreeSet<String>,
}

/// One entry of `[secrets]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretBinding {
    /// Its name, which rules use.
    pub name: Arc<str>,
    /// Where the value comes from: `env:NAME` or `vault:NAME`.
    pub from: String,
    /// To which hosts it may go.
    pub hosts: Vec<HostPattern>,
    /// Where in the request: `header:NAME`, `basic`, `query:NAME` or
    /// `json:POINTER`.
    pub slot: String,
    /// Line in the policy text.
    pub line: usize,
}

/// The section `[bash]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BashSection {
    /// What is done with commands.
    pub action: Action,
}

/// The section `[native]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NativeSection {
    /// Tiers in the order in which they are tried.
    pub tiers: Vec<String>,
    /// Guarantees without which nothing runs.
    pub guarantees: Vec<String>,
}

/// One `[[example]]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Example {
    /// The request as it was written.
    pub request: String,
    /// The request.
    pub question: Question,
    /// The verdict it must get.
    pub expect: Verdict,
    /// Line in the policy text.
    pub line: usize,
}

/// A policy text that was read completely and has no problem.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PolicyFile {
    pub(crate) name: String,
    pub(crate) flags: FlagMode,
    pub(crate) fs: Option<FsSection>,
    pub(crate) net: Option<Vec<NetRule>>,
    pub(crate) environment: Option<EnvironmentSection>,
    pub(crate) secrets: Option<Vec<SecretBinding>>,
    pub(crate) bash: Option<BashSection>,
    pub(crate) tools: Option<Vec<ToolRule>>,
    pub(crate) budget: BudgetSettings,
    pub(crate) ask_ttl_ms: Option<u64>,
    pub(crate) native: Option<NativeSection>,
    pub(crate) examples: Vec<Example>,
}

impl PolicyFile {
    /// Reads policy text. `name` is what problems call it, such as
    /// `policy.toml`.
    ///
    /// # Errors
    /// [`PolicyErrors`] with every problem, each with its line and a remedy.
    pub fn parse(text: &str, name: &str) -> Result<Self, PolicyErrors> {
        if text.len() > MAX_POLICY_BYTES {
            let message = format!("the text has {} bytes", text.len());
            let remedy = format!("keep it to {MAX_POLICY_BYTES}");
            let problem = Problem { line: 1, column: 1, key: String::new(), message, remedy };
            return Err(PolicyErrors { name: name.to_owned(), problems: vec![problem], more: 0 });
        }
        let report = Report::new(text);
        let (table, syntax) = DeTable::parse_recoverable(text);
        for error in &syntax {
            let span = error.span().unwrap_or(0..0);
            report.add(
                &span,
                "",
                crate::host::shown(error.message()),
                "correct the TOML syntax here",
            );
        }
        let syntax_is_good = report.is_empty();
        let root = Section::new(
            &report,
            table.get_ref(),
            0..0,
            "the text".to_owned(),
            String::new(),
            SECTIONS,
        );
        let mut file = sections::read(&root, name);
        // After a syntax error parts are missing, and what follows from them
        // would be noise.
        if syntax_is_good {
            conflicts::check(&file, &report);
            if report.is_empty() {
                file.check_examples(&report);
            }
        }
        match report.finish(name) {
            Some(errors) => Err(errors),
            None => {
                file.name = name.to_owned();
                Ok(file)
            }
        }
    }

    fn check_examples(&self, report: &Report<'_>) {
        let combined = match crate::Policy::combine(Some(self), &crate::Flags::default(), None) {
            Ok(combined) => combined,
            Err(errors) => {
                report.add(&(0..0), "", errors.to_string(), "correct the mounts");
                return;
            }
        };
        for example in &self.examples {
            let decision = example.question.decide(&combined.policy);
            if decision.verdict != example.expect {
                let message = format!(
                    "the example `{}` is expected to be {} and is {} (rule {})",
                    crate::host::shown(&example.request),
                    verdict_name(example.expect),
                    verdict_name(decision.verdict),
                    decision.rule
                );
                let span = report.span_of_line(example.line);
                report.add(&span, "example", message, "correct the rule or the example");
            }
        }
    }

    /// The name of the text.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What command-line flags may do.
    #[must_use]
    pub fn flags(&self) -> FlagMode {
        self.flags
    }

    /// The mounts, which the runtime has to open.
    #[must_use]
    pub fn mounts(&self) -> &[MountDeclaration] {
        self.fs.as_ref().map_or(&[], |fs| &fs.mounts)
    }

    /// The section `[native]`.
    #[must_use]
    pub fn native(&self) -> Option<&NativeSection> {
        self.native.as_ref()
    }

    /// Whether it says what is done with commands.
    #[must_use]
    pub fn has_bash(&self) -> bool {
        self.bash.is_some()
    }

    /// Sections whose rules are about single requests, which a process of a
    /// native tier does not make: running one of its own with them is to be
    /// refused.
    #[must_use]
    pub fn brokered_sections(&self) -> Vec<&'static str> {
        let rules = self.fs.as_ref().is_some_and(|fs| !fs.rules.is_empty());
        let sections =
            [("fs.rules", rules), ("net", self.net.is_some()), ("tools", self.tools.is_some())];
        sections.into_iter().filter_map(|(name, present)| present.then_some(name)).collect()
    }

    /// The section `[secrets]`.
    #[must_use]
    pub fn secrets(&self) -> &[SecretBinding] {
        self.secrets.as_deref().unwrap_or_default()
    }

    /// The examples, all of which hold.
    #[must_use]
    pub fn examples(&self) -> &[Example] {
        &self.examples
    }

    /// The sections that the command can check and explain but not carry out.
    /// `[native]` alone is about commands that `[bash]` allows none of.
    #[must_use]
    pub fn refused_sections(&self) -> Vec<&'static str> {
        let mut sections = self.unsupported_sections();
        sections.retain(|name| *name != "bash" && !(*name == "native" && self.bash.is_some()));
        sections
    }

    /// The sections that need more than the guest; running with one of them is
    /// to be refused where it is missing.
    #[must_use]
    pub fn unsupported_sections(&self) -> Vec<&'static str> {
        let sections = [
            ("secrets", self.secrets.is_some()),
            ("bash", self.bash.is_some()),
            ("native", self.native.is_some()),
        ];
        sections.into_iter().filter_map(|(name, present)| present.then_some(name)).collect()
    }
}

/// The name of a verdict in policy text.
#[must_use]
pub fn verdict_name(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Allow => "allow",
        Verdict::Deny => "deny",
        Verdict::Ask => "ask",
    }
}
