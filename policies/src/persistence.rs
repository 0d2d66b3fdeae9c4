//! Files through which a change outlives the sandbox.
//!
//! What: [`PersistenceGuard`] says of a path in a project whether a tool of the
//! host would later run or obey what is written there; [`is_secret_file_name`]
//! knows names of files that usually hold secrets.
//! Why: an agent that may not run anything on the host could otherwise leave a
//! file that the user's next `git commit`, test run or editor start runs.
//!
//! Invariant: pure; a path is judged by what file systems that fold case,
//! ignore invisible characters or have short names would make of it, too. A
//! path that cannot be judged is protected.

mod rules;

use std::sync::LazyLock;

use crate::glob::PathGlob;
use crate::path::GuestPath;
use crate::weaken;
use crate::wildcard::Wildcard;
use Guarded::{Flagged, Protected};
use rules::{EXAMPLE_NAMES, READ_BY_PEOPLE, RULES, SECRET_NAMES, SHADOWED_MODULES};

/// What becomes of a change to such a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Guarded {
    /// It is brought back and pointed out.
    Flagged,
    /// It is held back until the user takes it explicitly.
    Protected,
}

/// Why a path is guarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guard {
    /// What becomes of a change.
    pub action: Guarded,
    /// Stable name of the rule.
    pub rule: &'static str,
    /// Why, as one clause.
    pub reason: &'static str,
}

/// What the caller knows of a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is known or not by itself")]
pub struct GuardFacts {
    /// It is, or becomes, a directory.
    pub is_directory: bool,
    /// The directory that holds it, or the one above, has `HEAD`, `objects`
    /// and `refs`: git takes it for a repository.
    pub in_repository: bool,
    /// With the change the directory that holds it has `HEAD` and either
    /// `objects` and `refs` or `commondir`, and without it has not.
    pub completes_repository: bool,
    /// It is a link whose target is absolute, or climbs where that can lead out
    /// of the project.
    pub leads_out: bool,
}

const FILE_REPOSITORY: Guard =
    Guard { action: Protected, rule: "git-redirect", reason: "it leads git to another repository" };
const BARE_REPOSITORY: Guard = Guard {
    action: Protected,
    rule: "git-repository",
    reason: "git takes the directory for a repository and obeys it",
};
const LEADS_OUT: Guard = Guard {
    action: Protected,
    rule: "link-out",
    reason: "it is a link that can lead out of the project",
};
const SHADOWS: Guard = Guard {
    action: Flagged,
    rule: "python-shadow",
    reason: "Python imports it instead of its own module",
};
const PAGE: Guard =
    Guard { action: Flagged, rule: "agent-instructions", reason: "a coding agent may obey it" };
const UNJUDGED: Guard =
    Guard { action: Protected, rule: "unknown-path", reason: "its path is too long to be judged" };

/// The rules, ready to match.
#[derive(Debug)]
pub struct PersistenceGuard {
    rules: Vec<(Guard, Vec<PathGlob>)>,
}

static STANDARD: LazyLock<PersistenceGuard> = LazyLock::new(|| PersistenceGuard {
    rules: RULES
        .iter()
        .map(|rule| {
            let patterns = rule.patterns.iter().filter_map(|text| PathGlob::parse(text).ok());
            (rule.guard, patterns.collect())
        })
        .collect(),
});

impl PersistenceGuard {
    /// The rules that come with the build.
    #[must_use]
    pub fn standard() -> &'static Self {
        &STANDARD
    }

    /// Judges a path relative to the project, by its bytes. The strictest rule
    /// holds; `None` if none speaks about it.
    #[must_use]
    pub fn judge(&self, relative: &[u8], facts: GuardFacts) -> Option<Guard> {
        if weaken::off(weaken::Defence::GuardedFiles) {
            return None;
        }
        let mut folded = b"/".to_vec();
        for component in relative.split(|byte| *byte == b'/') {
            if folded.len() > 1 {
                folded.push(b'/');
            }
            folded.extend_from_slice(&fold(component));
        }
        let Ok(path) = GuestPath::parse(&GuestPath::root(), &folded) else {
            return Some(UNJUDGED);
        };
        let path = path.path;
        let spelled = relative.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        let name = path.file_name().unwrap_or_default();
        if name == b".git" && !facts.is_directory {
            return Some(FILE_REPOSITORY);
        }
        let obeyed = facts.in_repository && is_repository_file(&path);
        if obeyed || (facts.completes_repository && makes_repository(&path)) {
            return Some(BARE_REPOSITORY);
        }
        if facts.leads_out {
            return Some(LEADS_OUT);
        }
        let by_rule = self
            .rules
            .iter()
            .filter(|(_, patterns)| patterns.iter().any(|pattern| pattern.matches(&path)))
            .map(|(guard, _)| *guard)
            .max_by_key(|guard| guard.action);
        let shadows = name
            .strip_suffix(b".py")
            .is_some_and(|stem| SHADOWED_MODULES.contains(&stem))
            .then_some(SHADOWS);
        by_rule.or(shadows).or_else(|| is_instruction_page(spelled).then_some(PAGE))
    }
}

/// `HEAD`, `config` or a hook of a repository without a `.git` directory.
fn is_repository_file(path: &GuestPath) -> bool {
    let name = path.file_name().unwrap_or_default();
    let above = path.parent();
    let above = above.as_ref().and_then(GuestPath::file_name).unwrap_or_default();
    matches!(name, b"config" | b"config.worktree" | b"hooks" | b"commondir")
        || matches!((above, name), (b"hooks", _) | (b"info", b"attributes"))
}

/// What git knows a repository by. In a directory of git's own name everything
/// that it obeys is protected anyway.
fn makes_repository(path: &GuestPath) -> bool {
    let above = path.parent();
    let above = above.as_ref().and_then(GuestPath::file_name).unwrap_or_default();
    above != b".git" && matches!(path.file_name(), Some(b"head" | b"objects" | b"refs"))
}

fn is_instruction_page(name: &[u8]) -> bool {
    let stem = name.strip_suffix(b".md").or_else(|| name.strip_suffix(b".local.md"));
    stem.is_some_and(|stem| {
        let capital = |byte: &u8| byte.is_ascii_uppercase() || *byte == b'_' || *byte == b'-';
        !stem.is_empty() && stem.iter().all(capital) && !READ_BY_PEOPLE.contains(&stem)
    })
}

/// Characters that HFS+ ignores in names, and others that are not seen.
fn is_ignored(character: char) -> bool {
    matches!(
        character,
        '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{feff}' | '\u{180e}' | '\u{fe00}'..='\u{fe0f}'
    )
}

/// A name as a file system would take it that folds case, drops invisible
/// characters and final dots and spaces, knows streams, or short names of
/// `.git`.
fn fold(name: &[u8]) -> Vec<u8> {
    let mut folded = Vec::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        let kept = chunk.valid().chars().filter(|character| !is_ignored(*character));
        for character in kept.flat_map(char::to_lowercase) {
            // Long s and the Kelvin sign fold to ASCII letters.
            let character = match character {
                '\u{17f}' => 's',
                '\u{212a}' => 'k',
                '\u{131}' => 'i',
                other => other,
            };
            folded.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
        }
        folded.extend_from_slice(chunk.invalid());
    }
    if let Some(colon) = folded.iter().position(|byte| *byte == b':')
        && colon > 0
    {
        folded.truncate(colon);
    }
    while folded.len() > 1 && matches!(folded.last(), Some(b'.' | b' ')) {
        folded.pop();
    }
    let short = folded
        .strip_prefix(b"git~")
        .is_some_and(|rest| !rest.is_empty() && rest.iter().all(u8::is_ascii_digit));
    if short { b".git".to_vec() } else { folded }
}

static SECRETS: LazyLock<(Vec<Wildcard>, Vec<Wildcard>)> = LazyLock::new(|| {
    let all = |names: &[&str]| names.iter().map(|name| Wildcard::new(name)).collect();
    (all(&SECRET_NAMES), all(&EXAMPLE_NAMES))
});

/// Whether a file of that name usually holds secrets, such as `.env`.
#[must_use]
pub fn is_secret_file_name(name: &[u8]) -> bool {
    let folded = fold(name);
    let (secrets, examples) = &*SECRETS;
    secrets.iter().any(|pattern| pattern.matches(&folded))
        && !examples.iter().any(|pattern| pattern.matches(&folded))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(path: &str) -> Option<(Guarded, &'static str)> {
        let guard = PersistenceGuard::standard();
        guard.judge(path.as_bytes(), GuardFacts::default()).map(|found| (found.action, found.rule))
    }

    #[test]
    fn every_pattern_is_one() {
        for rule in RULES {
            for text in rule.patterns {
                assert!(PathGlob::parse(text).is_ok(), "{text}");
                assert_eq!(*text, text.to_lowercase(), "patterns are over folded paths");
            }
        }
    }

    #[test]
    fn what_tools_of_the_host_run_is_protected_or_flagged() {
        for (path, action, rule) in [
            (".git/hooks/pre-commit", Protected, "git-hooks"),
            ("sub/deep/.git/hooks/post-merge", Protected, "git-hooks"),
            (".git/modules/x/hooks/pre-commit", Protected, "git-hooks"),
            (".git/config", Protected, "git-config"),
            (".git/modules/a/b/config", Protected, "git-config"),
            ("a/config.worktree", Protected, "git-config"),
            ("a/commondir", Protected, "git-redirect"),
            ("CommonDir", Protected, "git-redirect"),
            (".git/info/attributes", Protected, "git-attributes"),
            (".git", Protected, "git-redirect"),
            ("sub/.git", Protected, "git-redirect"),
            (".GIT/hooks/x", Protected, "git-hooks"),
            (".git\u{200c}/hooks/x", Protected, "git-hooks"),
            ("git~1/hooks/x", Protected, "git-hooks"),
            (".git./config", Protected, "git-config"),
            (".git::$INDEX_ALLOCATION/config", Protected, "git-config"),
            (".bashrc", Protected, "shell-start"),
            ("home/.config/fish/config.fish", Protected, "shell-start"),
            (".ssh/authorized_keys", Protected, "login-start"),
            ("Library/LaunchAgents/x.plist", Protected, "login-start"),
            (".gitmodules", Flagged, "git-tree"),
            (".vscode/tasks.json", Flagged, "editor"),
            (".idea/workspace.xml", Flagged, "editor"),
            (".envrc", Flagged, "directory-environment"),
            ("AGENTS.md", Flagged, "agent-instructions"),
            ("TOOL.md", Flagged, "agent-instructions"),
            (".tool/rules/a.md", Flagged, "agent-instructions"),
            (".toolrules", Flagged, "agent-instructions"),
            (".github/workflows/ci.yml", Flagged, "continuous-integration"),
            ("tests/conftest.py", Flagged, "python-start"),
            ("sitecustomize.py", Flagged, "python-start"),
            ("x.pth", Flagged, "python-start"),
            ("json.py", Flagged, "python-shadow"),
            ("Makefile", Flagged, "build-script"),
            ("package.json", Flagged, "build-script"),
            (".cargo/config.toml", Flagged, "build-script"),
            ("build.rs", Flagged, "build-script"),
        ] {
            assert_eq!(judge(path), Some((action, rule)), "{path}");
        }
        for path in ["src/main.py", "README.md", "docs/hooks/x", "config", "notes.md", ".git/index"]
        {
            assert_eq!(judge(path), None, "{path}");
        }
    }

    #[test]
    fn a_repository_without_its_name_is_one() {
        let guard = PersistenceGuard::standard();
        let facts = GuardFacts { in_repository: true, ..GuardFacts::default() };
        for path in ["bare/config", "bare/hooks/pre-receive", "bare/info/attributes"] {
            let found = guard.judge(path.as_bytes(), facts).map(|found| found.rule);
            assert_eq!(found, Some("git-repository"), "{path}");
        }
        assert_eq!(guard.judge(b"bare/objects/x", facts), None);
        let directory = GuardFacts { is_directory: true, ..GuardFacts::default() };
        assert_eq!(guard.judge(b"sub/.git", directory), None);
        assert_eq!(
            guard.judge(&[b'a'; 5000], GuardFacts::default()).map(|found| found.action),
            Some(Protected)
        );
    }

    #[test]
    fn what_completes_a_repository_is_protected() {
        let guard = PersistenceGuard::standard();
        let facts = GuardFacts { completes_repository: true, ..GuardFacts::default() };
        let rule = |path: &str, facts| guard.judge(path.as_bytes(), facts).map(|found| found.rule);
        for path in ["HEAD", "x/HEAD", "x/head", "x/objects", "x/refs"] {
            assert_eq!(rule(path, facts), Some("git-repository"), "{path}");
            assert_eq!(rule(path, GuardFacts::default()), None, "{path}");
        }
        for path in [".git/HEAD", "sub/.git/refs", "x/index"] {
            assert_eq!(rule(path, facts), None, "{path}");
        }
    }

    #[test]
    fn a_link_that_leads_out_is_protected() {
        let guard = PersistenceGuard::standard();
        let facts = GuardFacts { leads_out: true, ..GuardFacts::default() };
        let found = guard.judge(b"build.log", facts);
        assert_eq!(found.map(|found| (found.action, found.rule)), Some((Protected, "link-out")));
        assert_eq!(guard.judge(b"build.log", GuardFacts::default()), None);
    }

    #[test]
    fn names_of_secrets() {
        for name in [".env", ".env.local", ".ENV", "prod.env", "id_rsa", ".npmrc", "a.p12"] {
            assert!(is_secret_file_name(name.as_bytes()), "{name}");
        }
        for name in [".env.example", "environment.py", "id_rsa.pub", "main.py", ".envrc"] {
            assert!(!is_secret_file_name(name.as_bytes()), "{name}");
        }
    }
}
