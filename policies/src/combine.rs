//! From files and flags to a policy.
//!
//! What: [`Policy::combine`] puts a file, the command line and an operator's
//! ceiling together.
//! Why: each of them is written by someone else, and who may grant what must
//! not depend on the order of arguments.
//!
//! Invariant: a ceiling only takes away; flags only take away from a file,
//! unless it says `flags = "extend"`. What was asked for and cannot be granted
//! is an error; a number or an access that was lowered is reported.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use crate::allow::{HostGrant, rules_of};
use crate::budget::{BudgetLimits, BudgetSettings};
use crate::host::shown;
use crate::layer::Layer;
use crate::policy::{Access, DEFAULT_ASK_TTL_MS, Policy};
use crate::rules::Action;
use crate::rules::fs::FsRules;
use crate::rules::net::{NetRule, NetRules};
use crate::rules::tools::{ToolRule, ToolRules};
use crate::text::{FlagMode, MountDeclaration, PolicyFile};
use crate::wildcard::Wildcard;

/// Rule id of tools that flags name.
pub const FLAGS_RULE: &str = "flags";

/// What the command line or the embedder asks for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Flags {
    /// How the in-memory root may be used; `Some(None)` takes it away.
    pub memory: Option<Option<Access>>,
    /// Mounts.
    pub mounts: Vec<MountDeclaration>,
    /// Variables with their values.
    pub environment: BTreeMap<String, String>,
    /// Variables of the host to pass on.
    pub pass_environment: BTreeSet<String>,
    /// The only tools that may be called.
    pub tools: Option<Vec<Wildcard>>,
    /// Hosts that requests may go to.
    pub allow: Vec<HostGrant>,
    /// Numbers.
    pub budget: BudgetSettings,
}

/// What was lowered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limited {
    /// What: `budget.wall_s`, `mount /work/data`, `memory`.
    pub what: String,
    /// What was asked for.
    pub asked: String,
    /// What was granted.
    pub kept: String,
    /// Who lowered it: the name of the file or of the ceiling.
    pub by: String,
}

impl fmt::Display for Limited {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, asked, kept, by } = self;
        write!(formatter, "{what}: {asked} was asked for, {} allows {kept}", shown(by))
    }
}

/// Something that was asked for and cannot be granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// What, and who does not allow it.
    pub message: String,
    /// What to do.
    pub remedy: String,
}

/// Everything that was asked for and cannot be granted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(|refused| format!("{}; {}", refused.message, refused.remedy)).collect::<Vec<_>>().join("\n"))]
pub struct CombineErrors(pub Vec<Refused>);

impl CombineErrors {
    /// A stable identifier.
    #[must_use]
    pub fn code(&self) -> &'static str {
        "policy_widened"
    }
}

/// A policy, and what its runner needs to know beside it.
#[derive(Clone, Debug, PartialEq)]
pub struct Combined {
    /// The policy.
    pub policy: Policy,
    /// The host directories to mount, with the access that was granted.
    pub mounts: Vec<MountDeclaration>,
    /// Variables to pass on from the host, if it has them.
    pub pass_environment: BTreeSet<String>,
    /// What was lowered.
    pub limited: Vec<Limited>,
    /// Sections of the file and the ceiling that this build cannot carry out;
    /// running is to be refused if there are any.
    pub unsupported: Vec<&'static str>,
}

/// The policy while it is put together.
struct Draft {
    memory: Option<Access>,
    mounts: Vec<MountDeclaration>,
    environment: BTreeMap<String, String>,
    pass: BTreeSet<String>,
    budget: BudgetLimits,
    ask_ttl_ms: u64,
    layers: Vec<Layer>,
    limited: Vec<Limited>,
    refused: Vec<Refused>,
}

impl Policy {
    /// Puts a file, flags and a ceiling together. Without a file, flags define
    /// the policy.
    ///
    /// # Errors
    /// [`CombineErrors`] if a mount, a variable or a tool was asked for that
    /// the file or the ceiling does not allow, or mounts overlap.
    pub fn combine(
        file: Option<&PolicyFile>,
        flags: &Flags,
        ceiling: Option<&PolicyFile>,
    ) -> Result<Combined, CombineErrors> {
        let mut draft = Draft::start(file);
        match file {
            Some(file) if file.flags == FlagMode::Narrow => draft.narrow_by_flags(file, flags),
            _ => draft.extend_by_flags(flags, file.is_some()),
        }
        if let Some(ceiling) = ceiling {
            draft.narrow_by_ceiling(ceiling);
        }
        let mut unsupported: Vec<_> =
            file.into_iter().chain(ceiling).flat_map(PolicyFile::unsupported_sections).collect();
        unsupported.sort_unstable();
        unsupported.dedup();
        draft.finish(unsupported)
    }
}

impl Draft {
    fn start(file: Option<&PolicyFile>) -> Self {
        let mut budget = BudgetLimits::default();
        let Some(file) = file else {
            return Self {
                memory: Some(Access::ReadWrite),
                mounts: Vec::new(),
                environment: BTreeMap::new(),
                pass: BTreeSet::new(),
                budget,
                ask_ttl_ms: DEFAULT_ASK_TTL_MS,
                layers: Vec::new(),
                limited: Vec::new(),
                refused: Vec::new(),
            };
        };
        budget.replace(&file.budget);
        let fs = file.fs.clone().unwrap_or_default();
        let environment = file.environment.clone().unwrap_or_default();
        let layer = Layer {
            name: Arc::from(file.name.as_str()),
            fs: FsRules::new(&fs.rules),
            tools: Some(ToolRules::new(file.tools.as_deref().unwrap_or_default())),
            net: Some(NetRules::new(file.net.as_deref().unwrap_or_default())),
            environment: Some(Arc::new(environment.allow.clone())),
            bash: Some(file.bash.map(|bash| bash.action)),
        };
        Self {
            memory: fs.memory.unwrap_or(Some(Access::ReadWrite)),
            mounts: fs.mounts,
            environment: environment.set,
            pass: environment.allow,
            budget,
            ask_ttl_ms: file.ask_ttl_ms.unwrap_or(DEFAULT_ASK_TTL_MS),
            layers: vec![layer],
            limited: Vec::new(),
            refused: Vec::new(),
        }
    }

    fn refuse(&mut self, message: String, remedy: impl Into<String>) {
        self.refused.push(Refused { message, remedy: remedy.into() });
    }

    fn limit(
        &mut self,
        what: impl Into<String>,
        asked: impl Into<String>,
        kept: impl Into<String>,
        by: &str,
    ) {
        self.limited.push(Limited {
            what: what.into(),
            asked: asked.into(),
            kept: kept.into(),
            by: by.to_owned(),
        });
    }

    fn narrow_by_flags(&mut self, file: &PolicyFile, flags: &Flags) {
        let by = shown(&file.name);
        if let Some(asked) = flags.memory {
            if asked > self.memory {
                self.limit("memory", memory_name(asked), memory_name(self.memory), &by);
            }
            self.memory = self.memory.min(asked);
        }
        for asked in &flags.mounts {
            let Some(index) = self
                .mounts
                .iter()
                .position(|mount| mount.at == asked.at && mount.host == asked.host)
            else {
                let message =
                    format!("{by} does not mount `{}` at `{}`", shown(&asked.host), asked.at);
                self.refuse(
                    message,
                    "add it to [[fs.mounts]], or let the file say flags = \"extend\"",
                );
                continue;
            };
            self.lower_mount(index, asked.access, &by, true);
        }
        for (name, value) in &flags.environment {
            let listed = file
                .environment
                .as_ref()
                .is_some_and(|env| env.allow.contains(name) || env.set.get(name) == Some(value));
            if listed {
                self.environment.insert(name.clone(), value.clone());
            } else {
                let message = format!("{by} does not let the variable `{}` be set", shown(name));
                self.refuse(
                    message,
                    "add it to `allow` of [env], or let the file say flags = \"extend\"",
                );
            }
        }
        for name in &flags.pass_environment {
            if !self.pass.contains(name) {
                let message =
                    format!("{by} does not let the variable `{}` be passed on", shown(name));
                self.refuse(
                    message,
                    "add it to `allow` of [env], or let the file say flags = \"extend\"",
                );
            }
        }
        for grant in &flags.allow {
            let rules = rules_of(std::slice::from_ref(grant));
            let listed = |rule: &NetRule| {
                let net = file.net.iter().flatten();
                net.filter(|own| own.action != Action::Deny).any(|own| own.covers_place(rule))
            };
            if !rules.iter().take(1).all(listed) {
                self.refuse(
                    format!("{by} does not let requests go to `{grant}`"),
                    "add it to [[net]], or let the file say flags = \"extend\"",
                );
            }
        }
        if let Some(tools) = &flags.tools {
            self.layers.push(flags_layer(Some(tools)));
        }
        for (key, asked, kept) in self.budget.narrow(&flags.budget) {
            self.limit(format!("budget.{key}"), in_unit(&key, asked), in_unit(&key, kept), &by);
        }
    }

    fn extend_by_flags(&mut self, flags: &Flags, with_file: bool) {
        self.memory = flags.memory.unwrap_or(self.memory);
        for asked in &flags.mounts {
            match self
                .mounts
                .iter_mut()
                .find(|mount| mount.at == asked.at && mount.host == asked.host)
            {
                Some(mount) => mount.access = asked.access,
                None => self.mounts.push(asked.clone()),
            }
        }
        self.environment.extend(flags.environment.clone());
        self.pass.extend(flags.pass_environment.iter().cloned());
        self.budget.replace(&flags.budget);
        if !with_file {
            self.layers.push(Layer {
                net: Some(NetRules::new(&rules_of(&flags.allow))),
                environment: Some(Arc::new(self.pass.clone())),
                bash: Some(None),
                ..flags_layer(flags.tools.as_deref())
            });
            return;
        }
        let Some(layer) = self.layers.first_mut() else { return };
        layer.environment = Some(Arc::new(self.pass.clone()));
        if let (false, Some(net)) = (flags.allow.is_empty(), &layer.net) {
            let more: Vec<_> = net.iter().cloned().chain(rules_of(&flags.allow)).collect();
            layer.net = Some(NetRules::new(&more));
        }
        if let (Some(tools), Some(rules)) = (&flags.tools, &layer.tools) {
            let more: Vec<ToolRule> = rules.iter().cloned().chain([flags_rule(tools)]).collect();
            layer.tools = Some(ToolRules::new(&more));
        }
    }

    fn narrow_by_ceiling(&mut self, ceiling: &PolicyFile) {
        let by = shown(&ceiling.name);
        if let Some(fs) = &ceiling.fs {
            if let Some(most) = fs.memory.filter(|most| *most < self.memory) {
                self.limit("memory", memory_name(self.memory), memory_name(most), &by);
                self.memory = most;
            }
            for index in 0..self.mounts.len() {
                let Some(mount) = self.mounts.get(index) else { continue };
                let within = fs
                    .mounts
                    .iter()
                    .filter(|most| is_within(&mount.host, &most.host))
                    .map(|most| most.access)
                    .max();
                if let Some(access) = within {
                    self.lower_mount(index, access, &by, false);
                } else {
                    let message = format!(
                        "{by} does not allow mounting `{}` (mount \"{}\")",
                        shown(&mount.host),
                        mount.id
                    );
                    self.refuse(
                        message,
                        "mount a directory that the ceiling names, or ask its operator",
                    );
                }
            }
        }
        if let Some(environment) = &ceiling.environment {
            let named = |name: &String| {
                environment.allow.contains(name) || environment.set.contains_key(name)
            };
            let beyond: BTreeSet<String> = self
                .environment
                .keys()
                .chain(&self.pass)
                .filter(|name| !named(name))
                .cloned()
                .collect();
            for name in beyond {
                self.refuse(
                    format!("{by} does not allow the variable `{}`", shown(&name)),
                    "remove it, or ask the ceiling's operator",
                );
            }
        }
        self.layers.push(Layer {
            name: Arc::from(ceiling.name.as_str()),
            fs: FsRules::new(ceiling.fs.as_ref().map_or(&[][..], |fs| &fs.rules)),
            tools: ceiling.tools.as_deref().map(ToolRules::new),
            net: ceiling.net.as_deref().map(NetRules::new),
            environment: ceiling.environment.as_ref().map(|environment| {
                Arc::new(environment.allow.iter().chain(environment.set.keys()).cloned().collect())
            }),
            bash: ceiling.bash.map(|bash| Some(bash.action)),
        });
        let before = self.budget.clone();
        self.budget.narrow(&ceiling.budget);
        let lowered: Vec<_> = before
            .entries()
            .zip(self.budget.entries())
            .filter(|(before, after)| before != after)
            .collect();
        for ((key, asked), (_, kept)) in lowered {
            self.limit(format!("budget.{key}"), in_unit(key, asked), in_unit(key, kept), &by);
        }
        self.ask_ttl_ms = self.ask_ttl_ms.min(ceiling.ask_ttl_ms.unwrap_or(u64::MAX));
    }

    /// Lowers a mount's access; `asked_more` says that the other side is who
    /// asked, so that wanting more is what is reported.
    fn lower_mount(&mut self, index: usize, access: Access, by: &str, asked_by_other: bool) {
        let Some(mount) = self.mounts.get_mut(index) else { return };
        let (before, what) = (mount.access, format!("mount {}", mount.at));
        mount.access = before.min(access);
        let (asked, kept) = if asked_by_other { (access, before) } else { (before, access) };
        if asked > kept {
            self.limit(what, access_name(asked), access_name(kept), by);
        }
    }

    fn finish(mut self, unsupported: Vec<&'static str>) -> Result<Combined, CombineErrors> {
        let mut builder = Policy::builder().memory(self.memory);
        for mount in &self.mounts {
            builder = builder.mount(&mount.id, mount.at.clone(), mount.access);
        }
        let built = builder.build();
        if let Err(error) = &built {
            self.refuse(error.to_string(), "correct the mounts");
        }
        match built {
            Ok(policy) if self.refused.is_empty() => Ok(Combined {
                policy: Policy {
                    layers: self.layers.into(),
                    budget: Arc::new(self.budget),
                    environment: Arc::new(self.environment),
                    ask_ttl_ms: self.ask_ttl_ms,
                    ..policy
                },
                mounts: self.mounts,
                pass_environment: self.pass,
                limited: self.limited,
                unsupported,
            }),
            _ => Err(CombineErrors(self.refused)),
        }
    }
}

fn flags_rule(tools: &[Wildcard]) -> ToolRule {
    ToolRule {
        id: Arc::from(FLAGS_RULE),
        action: Action::Allow,
        tools: tools.to_vec(),
        arguments: Vec::new(),
        max_calls: None,
        max_request_bytes: None,
        max_response_bytes: None,
        line: 0,
    }
}

/// A layer that speaks of tools at most.
fn flags_layer(tools: Option<&[Wildcard]>) -> Layer {
    Layer {
        name: Arc::from("command line"),
        fs: FsRules::default(),
        tools: tools.map(|tools| ToolRules::new(&[flags_rule(tools)])),
        net: None,
        environment: None,
        bash: None,
    }
}

/// Whether a host directory is another or lies in it, as they are written.
fn is_within(inner: &str, outer: &str) -> bool {
    outer == "/"
        || inner == outer
        || inner.strip_prefix(outer).is_some_and(|rest| rest.starts_with('/'))
}

/// A number in the unit of its key.
pub(crate) fn in_unit(key: &str, value: u64) -> String {
    let scale = crate::budget::budget_number(key).map_or(1, |number| number.scale);
    let (whole, part) = (value / scale, value % scale);
    if part == 0 {
        whole.to_string()
    } else {
        format!("{whole}.{:03}", part.saturating_mul(1000) / scale)
    }
}

pub(crate) fn access_name(access: Access) -> &'static str {
    match access {
        Access::ReadOnly => "read-only",
        Access::ReadWrite => "read-write",
    }
}

pub(crate) fn memory_name(access: Option<Access>) -> &'static str {
    access.map_or("none", access_name)
}
