//! What a new policy lets through that the old one did not.
//!
//! What: [`diff`] compares two files and lists new reach only.
//! Why: a reviewer reads a change for what it opens; what it closes breaks
//! loudly by itself.
//!
//! Invariant: if some request is allowed (or asked) by the new file and was
//! not by the old one, something is listed. What is listed may say too much:
//! coverage between patterns is judged without listing what they match.

use std::collections::BTreeSet;
use std::fmt;

use crate::address::AddressGrant;
use crate::budget::BudgetLimits;
use crate::combine::{access_name, in_unit};
use crate::glob::PathGlob;
use crate::path::GuestPath;
use crate::policy::Access;
use crate::rules::Action;
use crate::rules::fs::{FsOperations, FsRule};
use crate::rules::net::NetRule;
use crate::rules::tools::ToolRule;
use crate::text::{FlagMode, PolicyFile};

/// One thing that is newly reachable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewReach {
    /// The section that it is about.
    pub section: &'static str,
    /// What.
    pub what: String,
    /// Line in the new text; 0 if the cause is that something is gone.
    pub line: usize,
}

impl fmt::Display for NewReach {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(formatter, "[{}] {}", self.section, self.what),
            line => write!(formatter, "[{}] {} (line {line})", self.section, self.what),
        }
    }
}

/// Lists what the new policy lets through and the old one did not; empty if
/// nothing.
#[must_use]
pub fn diff(old: &PolicyFile, new: &PolicyFile) -> Vec<NewReach> {
    let mut found = Found(Vec::new());
    mounts(old, new, &mut found);
    files(old, new, &mut found);
    tools(old, new, &mut found);
    network(old, new, &mut found);
    secrets(old, new, &mut found);
    rest(old, new, &mut found);
    found.0
}

struct Found(Vec<NewReach>);

impl Found {
    fn add(&mut self, section: &'static str, line: usize, what: String) {
        self.0.push(NewReach { section, what, line });
    }
}

/// What a file grants at a path by its mounts: access, and which host
/// directory with the rest of the path in it, if any.
fn mounted(file: &PolicyFile, at: &GuestPath) -> (Option<Access>, Option<String>) {
    let mount = file
        .mounts()
        .iter()
        .filter(|mount| at.starts_with(&mount.at))
        .max_by_key(|mount| mount.at.depth());
    match mount {
        Some(mount) => {
            let rest = at.strip_prefix(&mount.at).unwrap_or_default();
            let slash = if rest.is_empty() { "" } else { "/" };
            (
                Some(mount.access),
                Some(format!("{}{slash}{}", mount.host, String::from_utf8_lossy(rest))),
            )
        }
        None => {
            (file.fs.as_ref().and_then(|fs| fs.memory).unwrap_or(Some(Access::ReadWrite)), None)
        }
    }
}

fn mounts(old: &PolicyFile, new: &PolicyFile, found: &mut Found) {
    let points = old.mounts().iter().chain(new.mounts()).map(|mount| mount.at.clone());
    let points: BTreeSet<GuestPath> = points.chain([GuestPath::root()]).collect();
    for at in points {
        let ((before, before_host), (after, after_host)) = (mounted(old, &at), mounted(new, &at));
        let line = new.mounts().iter().find(|mount| mount.at == at).map_or(0, |mount| mount.line);
        let Some(access) = after else { continue };
        if after_host.is_some() && after_host != before_host {
            let host = crate::host::shown(after_host.as_deref().unwrap_or_default());
            found.add(
                "fs",
                line,
                format!("the host directory `{host}` at `{at}`, {}", access_name(access)),
            );
        } else if after > before {
            let what = if after_host.is_some() { "the mount" } else { "the in-memory tree" };
            found.add("fs", line, format!("{what} at `{at}` is {}", access_name(access)));
        }
    }
}

fn fs_rules(file: &PolicyFile) -> &[FsRule] {
    file.fs.as_ref().map_or(&[], |fs| &fs.rules)
}

/// Operations of `wanted` that some rule covers for the pattern.
fn covered<'r>(
    rules: impl Iterator<Item = &'r FsRule>,
    pattern: &PathGlob,
    wanted: FsOperations,
) -> FsOperations {
    rules
        .filter(|rule| {
            rule.operations.intersects(wanted) && rule.paths.iter().any(|path| path.covers(pattern))
        })
        .fold(FsOperations::NONE, |all, rule| all.with(rule.operations))
}

/// One pattern that a file lists.
struct Granted<'f> {
    path: &'f PathGlob,
    operations: FsOperations,
    action: Action,
    id: &'f str,
    line: usize,
}

fn granted_paths(rule: &FsRule) -> impl Iterator<Item = Granted<'_>> {
    let FsRule { operations, action, line, .. } = *rule;
    rule.paths.iter().map(move |path| Granted { path, operations, action, id: &rule.id, line })
}

fn list(operations: FsOperations) -> String {
    match operations {
        FsOperations::ALL => "every operation".to_owned(),
        FsOperations::READ => "read".to_owned(),
        FsOperations::WRITE => "write".to_owned(),
        some => some.names().collect::<Vec<_>>().join(", "),
    }
}

fn files(old: &PolicyFile, new: &PolicyFile, found: &mut Found) {
    let allowing = |file| fs_rules(file).iter().filter(|rule| rule.action == Action::Allow);
    let (old_lists, new_lists) = (allowing(old).next().is_some(), allowing(new).next().is_some());
    // Beside an allow rule, an ask rule lists too.
    let listing = |file| fs_rules(file).iter().filter(|rule| rule.action != Action::Deny);
    if old_lists {
        // What the old list held back, by its complement: all that is granted
        // now and not covered there.
        let everything = PathGlob::subtree(&GuestPath::root());
        let granted: Vec<Granted<'_>> = if new_lists {
            listing(new).flat_map(granted_paths).collect()
        } else {
            let whole = |path| Granted {
                path,
                operations: FsOperations::ALL,
                action: Action::Allow,
                id: "",
                line: 0,
            };
            everything.iter().map(whole).collect()
        };
        for Granted { path, operations, action, id, line } in granted {
            let before = listing(old).filter(|rule| rule.action <= action);
            let missing = operations.without(covered(before, path, operations));
            if missing != FsOperations::NONE {
                let by = if id.is_empty() {
                    "no allow rule limits them any more".to_owned()
                } else {
                    format!("rule \"{id}\"")
                };
                found.add("fs", line, format!("{} of `{path}`: {by}", list(missing)));
            }
        }
    }
    for lost in fs_rules(old).iter().filter(|rule| rule.action != Action::Allow) {
        for path in &lost.paths {
            let holding = fs_rules(new).iter().filter(|rule| rule.action >= lost.action);
            let missing = lost.operations.without(covered(holding, path, lost.operations));
            let reachable = !new_lists
                || listing(new).any(|rule| rule.paths.iter().any(|allowed| allowed.overlaps(path)));
            if missing != FsOperations::NONE && reachable {
                let now = if lost.action == Action::Deny {
                    "no longer denied"
                } else {
                    "no longer asked about"
                };
                found.add(
                    "fs",
                    0,
                    format!("{} of `{path}`: {now} (rule \"{}\")", list(missing), lost.id),
                );
            }
        }
    }
}

fn at_most(new: Option<u64>, old: Option<u64>) -> bool {
    old.is_none_or(|old| new.is_some_and(|new| new <= old))
}

fn tools(old: &PolicyFile, new: &PolicyFile, found: &mut Found) {
    let (old, new) =
        (old.tools.as_deref().unwrap_or_default(), new.tools.as_deref().unwrap_or_default());
    let names_cover = |outer: &ToolRule, tool: &crate::Wildcard| {
        outer.tools.iter().any(|pattern| pattern.covers(tool))
    };
    // Fewer constraints match more.
    let looser = |outer: &ToolRule, inner: &ToolRule| {
        outer.arguments.iter().all(|one| inner.arguments.contains(one))
    };
    for rule in new.iter().filter(|rule| rule.action != Action::Deny) {
        for tool in &rule.tools {
            let covers = |before: &&ToolRule| {
                before.action <= rule.action && names_cover(before, tool) && looser(before, rule)
            };
            let within = |before: &ToolRule| {
                at_most(rule.max_calls, before.max_calls)
                    && at_most(rule.max_request_bytes, before.max_request_bytes)
                    && at_most(rule.max_response_bytes, before.max_response_bytes)
            };
            let mut before = old.iter().filter(covers).peekable();
            if before.peek().is_none() {
                found.add(
                    "tools",
                    rule.line,
                    format!(
                        "the tool `{tool}`{}: rule \"{}\" ({})",
                        constraints(rule),
                        rule.id,
                        rule.action.name()
                    ),
                );
            } else if !before.any(within) {
                found.add(
                    "tools",
                    rule.line,
                    format!("more calls or bytes of the tool `{tool}`: rule \"{}\"", rule.id),
                );
            }
        }
    }
    for lost in old.iter().filter(|rule| rule.action != Action::Allow) {
        for tool in &lost.tools {
            let held = new.iter().any(|rule| {
                rule.action >= lost.action && names_cover(rule, tool) && looser(rule, lost)
            });
            let reachable = new.iter().any(|rule| {
                rule.action < lost.action && rule.tools.iter().any(|name| name.overlaps(tool))
            });
            if !held && reachable {
                let now = if lost.action == Action::Deny {
                    "no longer denied"
                } else {
                    "no longer asked about"
                };
                found.add(
                    "tools",
                    0,
                    format!("the tool `{tool}`{}: {now} (rule \"{}\")", constraints(lost), lost.id),
                );
            }
        }
    }
}

fn constraints(rule: &ToolRule) -> String {
    if rule.arguments.is_empty() {
        return String::new();
    }
    let all: Vec<String> = rule.arguments.iter().map(ToString::to_string).collect();
    format!(" where {}", all.join(" and "))
}

/// The rule once per host, so that hosts are compared alone.
fn per_host(rule: &NetRule) -> impl Iterator<Item = NetRule> + '_ {
    rule.hosts.iter().map(|host| NetRule { hosts: vec![host.clone()], ..rule.clone() })
}

fn network(old: &PolicyFile, new: &PolicyFile, found: &mut Found) {
    let (old, new) =
        (old.net.as_deref().unwrap_or_default(), new.net.as_deref().unwrap_or_default());
    for rule in new.iter().filter(|rule| rule.action != Action::Deny).flat_map(per_host) {
        let within = |before: &&NetRule| {
            before.action <= rule.action
                && before.covers(&rule)
                && at_most(rule.max_bytes, before.max_bytes)
                && at_most(rule.max_requests, before.max_requests)
                && at_most(rule.max_total_bytes, before.max_total_bytes)
                && (rule.addresses == before.addresses || rule.addresses == AddressGrant::Public)
                && rule.secrets.iter().all(|secret| before.secrets.contains(secret))
        };
        if !old.iter().any(|before| within(&before)) {
            found.add(
                "net",
                rule.line,
                format!("{}: rule \"{}\" ({})", net_text(&rule), rule.id, rule.action.name()),
            );
        }
    }
    for lost in old.iter().filter(|rule| rule.action != Action::Allow).flat_map(per_host) {
        let held = new.iter().any(|rule| rule.action >= lost.action && rule.covers(&lost));
        let reachable = new.iter().any(|rule| rule.action < lost.action && rule.overlaps(&lost));
        if !held && reachable {
            let now = if lost.action == Action::Deny {
                "no longer denied"
            } else {
                "no longer asked about"
            };
            found.add("net", 0, format!("{}: {now} (rule \"{}\")", net_text(&lost), lost.id));
        }
    }
}

fn net_text(rule: &NetRule) -> String {
    let all = |values: Option<Vec<String>>| {
        values.map_or_else(|| "any".to_owned(), |values| values.join(", "))
    };
    let hosts: Vec<String> = rule.hosts.iter().map(ToString::to_string).collect();
    let private = if rule.addresses == AddressGrant::Private { " private" } else { "" };
    format!(
        "{}{private} port {} method {} path {}",
        hosts.join(", "),
        all(rule.ports.as_ref().map(|ports| ports.iter().map(ToString::to_string).collect())),
        all(rule.methods.as_ref().map(|methods| methods.iter().map(ToString::to_string).collect())),
        all(rule.paths.as_ref().map(|paths| paths.iter().map(ToString::to_string).collect()))
    )
}

fn secrets(old: &PolicyFile, new: &PolicyFile, found: &mut Found) {
    for binding in new.secrets() {
        let before = old.secrets().iter().find(|before| before.name == binding.name);
        let name = &binding.name;
        let Some(before) =
            before.filter(|before| before.from == binding.from && before.slot == binding.slot)
        else {
            found.add(
                "secrets",
                binding.line,
                format!(
                    "the secret \"{name}\" from {} in {}",
                    crate::host::shown(&binding.from),
                    crate::host::shown(&binding.slot)
                ),
            );
            continue;
        };
        for host in
            binding.hosts.iter().filter(|host| !before.hosts.iter().any(|bound| bound.covers(host)))
        {
            found.add("secrets", binding.line, format!("the secret \"{name}\" may go to {host}"));
        }
    }
}

fn rest(old: &PolicyFile, new: &PolicyFile, found: &mut Found) {
    if new.flags == FlagMode::Extend && old.flags == FlagMode::Narrow {
        found.add("flags", 0, "command-line flags can add to the policy".to_owned());
    }
    let empty = crate::text::EnvironmentSection::default();
    let (before, after) =
        (old.environment.as_ref().unwrap_or(&empty), new.environment.as_ref().unwrap_or(&empty));
    for name in after.allow.iter().filter(|name| !before.allow.contains(*name)) {
        found.add("env", 0, format!("the host's variable `{}`", crate::host::shown(name)));
    }
    for name in after
        .set
        .keys()
        .filter(|name| !before.set.contains_key(*name) && !before.allow.contains(*name))
    {
        found.add("env", 0, format!("the variable `{}` is set", crate::host::shown(name)));
    }
    // No section is a denial.
    let strictness = |file: &PolicyFile| file.bash.map_or(Action::Deny, |bash| bash.action);
    if strictness(new) < strictness(old) {
        found.add("bash", 0, format!("commands: {}", strictness(new).name()));
    }
    budgets(old, new, found);
    let none = crate::text::NativeSection::default();
    let (before, after) =
        (old.native.as_ref().unwrap_or(&none), new.native.as_ref().unwrap_or(&none));
    for tier in after.tiers.iter().filter(|tier| !before.tiers.contains(tier)) {
        found.add("native", 0, format!("the tier {tier}"));
    }
    for guarantee in
        before.guarantees.iter().filter(|guarantee| !after.guarantees.contains(guarantee))
    {
        found.add("native", 0, format!("the guarantee {guarantee} is no longer required"));
    }
}

fn budgets(old: &PolicyFile, new: &PolicyFile, found: &mut Found) {
    let resolved = |file: &PolicyFile| {
        let mut limits = BudgetLimits::default();
        limits.replace(&file.budget);
        limits
    };
    let (before, after) = (resolved(old), resolved(new));
    for ((key, less), (_, more)) in
        before.entries().zip(after.entries()).filter(|((_, less), (_, more))| more > less)
    {
        found.add(
            "budget",
            0,
            format!("{key} from {} to {}", in_unit(key, less), in_unit(key, more)),
        );
    }
    for (tool, calls) in &before.tool_calls {
        match after.tool_calls.get(tool) {
            Some(more) if more <= calls => {}
            Some(more) => {
                found.add("budget", 0, format!("tool_calls.{tool} from {calls} to {more}"))
            }
            None => found.add("budget", 0, format!("tool_calls.{tool} is no longer limited")),
        }
    }
}
