//! What is wrong between rules.
//!
//! What: ids that repeat, mounts that overlap, rules that contradict or hold
//! one request to different things, secrets that are not declared.
//! Why: with each of these, what the policy means would depend on an order
//! that it does not have.
//!
//! Invariant: two rules that are left either match no common request, or
//! agree on everything but their action.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::PolicyFile;
use super::problem::Report;
use crate::rules::Action;

/// Most patterns of one section, over all its rules: conflicts are looked for
/// between every two.
pub(crate) const MAX_PATTERNS: usize = 2000;

struct Conflicts<'r> {
    report: &'r Report<'r>,
}

impl Conflicts<'_> {
    fn add(&self, line: usize, key: &str, message: String, remedy: &str) {
        self.report.add(&self.report.span_of_line(line), key, message, remedy);
    }

    /// An allow or ask rule that a deny rule leaves nothing of.
    fn dead(&self, key: &str, denied: (&Arc<str>, usize), dead: (&Arc<str>, usize)) {
        let (first, first_line) = denied;
        let (second, line) = dead;
        let message = format!(
            "rule \"{second}\" contradicts rule \"{first}\" (line {first_line}), which denies all that it matches"
        );
        self.add(line, key, message, "remove one of the two, or make the denial narrower");
    }

    fn disagree(
        &self,
        key: &str,
        first: (&Arc<str>, usize),
        second: (&Arc<str>, usize),
        what: &str,
    ) {
        let message = format!(
            "rules \"{}\" (line {}) and \"{}\" can match one request and disagree on {what}",
            first.0, first.1, second.0
        );
        self.add(
            second.1,
            key,
            message,
            "give both the same bounds, or make their patterns exclude each other",
        );
    }
}

pub(super) fn check(file: &PolicyFile, report: &Report<'_>) {
    let conflicts = Conflicts { report };
    ids(file, &conflicts);
    mounts(file, &conflicts);
    let rules = file.fs.iter().flat_map(|fs| &fs.rules);
    if bounded(&conflicts, "fs.rules", rules.map(|rule| (rule.paths.len(), rule.line))) {
        fs_rules(file, &conflicts);
    }
    if bounded(
        &conflicts,
        "tools.rules",
        file.tools.iter().flatten().map(|rule| (rule.tools.len(), rule.line)),
    ) {
        tool_rules(file, &conflicts);
    }
    if bounded(&conflicts, "net", file.net.iter().flatten().map(net_patterns)) {
        secrets(file, &conflicts);
        net_rules(file, &conflicts);
    }
}

fn net_patterns(rule: &crate::rules::net::NetRule) -> (usize, usize) {
    (rule.hosts.len().saturating_add(rule.paths.as_ref().map_or(0, Vec::len)), rule.line)
}

fn bounded(
    conflicts: &Conflicts<'_>,
    key: &str,
    patterns: impl Iterator<Item = (usize, usize)>,
) -> bool {
    let mut total = 0_usize;
    for (count, line) in patterns {
        total = total.saturating_add(count);
        if total > MAX_PATTERNS {
            let message = format!("the rules of [{key}] have more than {MAX_PATTERNS} patterns");
            conflicts.add(line, key, message, "use patterns with stars instead of lists");
            return false;
        }
    }
    true
}

fn ids(file: &PolicyFile, conflicts: &Conflicts<'_>) {
    let fs = file.fs.iter();
    let mut all: Vec<(&Arc<str>, usize)> =
        fs.clone().flat_map(|fs| &fs.mounts).map(|mount| (&mount.id, mount.line)).collect();
    all.extend(fs.flat_map(|fs| &fs.rules).map(|rule| (&rule.id, rule.line)));
    all.extend(file.net.iter().flatten().map(|rule| (&rule.id, rule.line)));
    all.extend(file.tools.iter().flatten().map(|rule| (&rule.id, rule.line)));
    all.sort_by_key(|(_, line)| *line);
    let mut seen: BTreeMap<&Arc<str>, usize> = BTreeMap::new();
    for (id, line) in all {
        if let Some(first) = seen.get(id) {
            conflicts.add(
                line,
                "id",
                format!("the id \"{id}\" is already that of line {first}"),
                "give each rule its own",
            );
        } else {
            seen.insert(id, line);
        }
    }
}

fn mounts(file: &PolicyFile, conflicts: &Conflicts<'_>) {
    let mounts = file.mounts();
    for (index, second) in mounts.iter().enumerate() {
        if second.at.is_root() {
            let message = format!("mount \"{}\" is at `/`, which is the in-memory root", second.id);
            conflicts.add(
                second.line,
                "fs.mounts",
                message,
                "mount it at a directory of its own, such as \"/work/data\"",
            );
            continue;
        }
        for first in mounts.iter().take(index).filter(|first| !first.at.is_root()) {
            if first.at.starts_with(&second.at) || second.at.starts_with(&first.at) {
                let message = format!(
                    "mount \"{}\" at `{}` overlaps mount \"{}\" at `{}` (line {})",
                    second.id, second.at, first.id, first.at, first.line
                );
                conflicts.add(second.line, "fs.mounts", message, "keep one of them");
            }
        }
    }
}

fn secrets(file: &PolicyFile, conflicts: &Conflicts<'_>) {
    for rule in file.net.iter().flatten() {
        for name in &rule.secrets {
            let Some(binding) = file.secrets().iter().find(|binding| binding.name == *name) else {
                let message = format!(
                    "rule \"{}\" names the secret \"{}\", which [secrets] does not have",
                    rule.id,
                    crate::host::shown(name)
                );
                conflicts.add(rule.line, "net.secrets", message, "declare it in [secrets.NAME]");
                continue;
            };
            if let Some(host) =
                rule.hosts.iter().find(|host| !binding.hosts.iter().any(|bound| bound.covers(host)))
            {
                let message = format!(
                    "rule \"{}\" would send the secret \"{name}\" to {host}, to which it is not bound",
                    rule.id
                );
                conflicts.add(
                    rule.line,
                    "net.secrets",
                    message,
                    "add the host to the secret's `hosts`, or give that host a rule of its own",
                );
            }
        }
    }
}

fn fs_rules(file: &PolicyFile, conflicts: &Conflicts<'_>) {
    let rules = file.fs.as_ref().map_or(&[][..], |fs| &fs.rules);
    let denying = || rules.iter().filter(|rule| rule.action == Action::Deny);
    for rule in rules.iter().filter(|rule| rule.action != Action::Deny) {
        let covered = |denied: &&crate::rules::fs::FsRule| {
            denied.operations.contains(rule.operations)
                && rule
                    .paths
                    .iter()
                    .all(|path| denied.paths.iter().any(|pattern| pattern.covers(path)))
        };
        if let Some(denied) = denying().find(covered) {
            conflicts.dead("fs.rules", (&denied.id, denied.line), (&rule.id, rule.line));
        }
    }
}

fn tool_rules(file: &PolicyFile, conflicts: &Conflicts<'_>) {
    let rules = file.tools.as_deref().unwrap_or_default();
    for (index, second) in rules.iter().enumerate() {
        for first in rules.iter().take(index) {
            let (denied, other) = match (first.action, second.action) {
                (Action::Deny, Action::Deny) => continue,
                (Action::Deny, _) => (first, second),
                (_, Action::Deny) => (second, first),
                _ if first.disagrees(second) && first.overlaps(second) => {
                    conflicts.disagree(
                        "tools.rules",
                        (&first.id, first.line),
                        (&second.id, second.line),
                        "bounds",
                    );
                    continue;
                }
                _ => continue,
            };
            // With the same constraints or none, nothing is left of the other.
            let constraints =
                denied.arguments.iter().all(|constraint| other.arguments.contains(constraint));
            if constraints
                && other
                    .tools
                    .iter()
                    .all(|tool| denied.tools.iter().any(|pattern| pattern.covers(tool)))
            {
                conflicts.dead("tools.rules", (&denied.id, denied.line), (&other.id, other.line));
            }
        }
    }
}

fn net_rules(file: &PolicyFile, conflicts: &Conflicts<'_>) {
    let rules = file.net.as_deref().unwrap_or_default();
    for (index, second) in rules.iter().enumerate() {
        for first in rules.iter().take(index) {
            let (denied, other) = match (first.action, second.action) {
                (Action::Deny, Action::Deny) => continue,
                (Action::Deny, _) => (first, second),
                (_, Action::Deny) => (second, first),
                _ if first.disagrees(second) && first.overlaps(second) => {
                    let what = "secrets, max_bytes or private";
                    conflicts.disagree(
                        "net",
                        (&first.id, first.line),
                        (&second.id, second.line),
                        what,
                    );
                    continue;
                }
                _ => continue,
            };
            if denied.covers(other) {
                conflicts.dead("net", (&denied.id, denied.line), (&other.id, other.line));
            }
        }
    }
}
