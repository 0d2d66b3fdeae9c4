//! Every command that README.md and docs/*.md show is either run here or named
//! in `tests/commands.toml` as covered elsewhere, with the reason.
//!
//! A command is a line `$ …` of a `console` block or any line of a `sh`,
//! `bash` or `shell` block that is not a comment; a trailing `\` and a here
//! document continue it. The lines after it in a `console` block are what it
//! prints; `…` stands for any text. An unknown command fails the test, and so
//! does an entry that no page shows any more.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use libtest_mimic::{Failed, Trial};
use serde::Deserialize;

use crate::support::{cache_directory, command_binary, read, root, tests};

/// One entry of the table.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    /// The command as it is written, continuation lines joined by a space.
    command: String,
    /// Where it is covered instead, and why it is not run here.
    covered: Option<String>,
    /// Runs it: what its standard output must contain.
    prints: Option<String>,
    /// Runs it: it must print what the page shows.
    #[serde(default)]
    as_shown: bool,
    /// The exit code it must have; 0 if not given.
    #[serde(default)]
    exit: i32,
    /// Files that must be there, by name.
    #[serde(default)]
    files: BTreeMap<String, String>,
    /// Commands that are run first.
    #[serde(default)]
    before: Vec<String>,
    /// Gives it a cache of its own, because it changes the cache.
    #[serde(default)]
    own_cache: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Table {
    command: Vec<Entry>,
}

/// How a command that runs through cargo is spelled without it.
const THROUGH_CARGO: &[(&str, &str)] = &[
    ("cargo run --release --bin fumehood -- ", "fumehood "),
    ("cargo run --release --bin log-analysis", "log-analysis"),
    ("target/release/fumehood ", "fumehood "),
];

/// All cases.
pub fn trials() -> Vec<Trial> {
    let table: Table = toml::from_str(&read(&tests("commands.toml")))
        .unwrap_or_else(|error| panic!("commands.toml: {error}"));
    let pages = pages();
    let mut trials = Vec::new();
    let mut shown = Vec::new();
    for page in &pages {
        let name = page.file_name().expect("a name").to_string_lossy().into_owned();
        for Shown { line, command, output } in commands(&read(page)) {
            let entry = table.command.iter().find(|entry| entry.command == command).cloned();
            let unknown = entry.is_none().then(|| {
                format!("{name}:{line} shows `{command}`, which tests/commands.toml does not know")
                    .into()
            });
            if shown.contains(&command) {
                continue;
            }
            shown.push(command.clone());
            trials.push(Trial::test(format!("documented_command::{name}:{line}"), move || {
                match entry {
                    None => Err(unknown.unwrap_or_else(|| "unknown command".into())),
                    Some(entry) => check(&entry, &output),
                }
            }));
        }
    }
    let gone: Vec<String> = table
        .command
        .iter()
        .filter(|entry| !shown.contains(&entry.command))
        .map(|entry| entry.command.clone())
        .collect();
    trials.push(Trial::test("documented_command::the_table_names_what_is_documented", move || {
        if gone.is_empty() { Ok(()) } else { Err(format!("no page shows {gone:?}").into()) }
    }));
    trials.push(Trial::test("documented_command::control_the_parser_finds_commands", parses));
    trials
}

fn pages() -> Vec<PathBuf> {
    let mut pages: Vec<PathBuf> = vec![root().join("README.md")];
    pages.extend(std::fs::read_dir(root().join("docs")).into_iter().flatten().filter_map(
        |entry| {
            let path = entry.ok()?.path();
            path.extension().is_some_and(|extension| extension == "md").then_some(path)
        },
    ));
    pages.retain(|page| page.is_file());
    pages.sort();
    pages
}

/// A command on a page.
struct Shown {
    line: usize,
    command: String,
    output: String,
}

/// The commands of a page.
fn commands(page: &str) -> Vec<Shown> {
    let mut found: Vec<Shown> = Vec::new();
    let mut block = None;
    let mut lines = page.lines().enumerate();
    // Whether lines of the block belong to the latest command.
    let mut within = false;
    while let Some((at, line)) = lines.next() {
        let trimmed = line.trim();
        if let Some(language) = trimmed.strip_prefix("```") {
            block = if block.is_some() { None } else { Some(language.trim().to_owned()) };
            within = false;
            continue;
        }
        let first = match block.as_deref() {
            Some("console") => trimmed.strip_prefix("$ "),
            Some("sh" | "bash" | "shell") if !trimmed.is_empty() && !trimmed.starts_with('#') => {
                Some(trimmed)
            }
            _ => None,
        };
        let Some(first) = first else {
            if let (true, Some(shown)) = (within, found.last_mut()) {
                shown.output.push_str(line);
                shown.output.push('\n');
            }
            continue;
        };
        let mut command = first.to_owned();
        while let Some(start) = command.strip_suffix('\\') {
            let start = start.trim_end().to_owned();
            let Some((_, next)) = lines.next() else { break };
            let next = next.trim();
            command = format!("{start} {}", next.strip_prefix("> ").unwrap_or(next));
        }
        if let Some(end) = here_document(&command) {
            for (_, next) in lines.by_ref() {
                let next = next.strip_prefix("> ").unwrap_or(next);
                command.push('\n');
                command.push_str(next);
                if next.trim() == end {
                    break;
                }
            }
        }
        within = block.as_deref() == Some("console");
        found.push(Shown { line: at + 1, command, output: String::new() });
    }
    found
}

fn here_document(command: &str) -> Option<String> {
    let (_, after) = command.split_once("<<")?;
    let word = after.trim_start_matches('-').split_whitespace().next()?;
    Some(word.trim_matches(['\'', '"']).to_owned())
}

fn check(entry: &Entry, shown: &str) -> Result<(), Failed> {
    match (&entry.covered, &entry.prints, entry.as_shown) {
        (Some(reason), None, false) if !reason.trim().is_empty() => Ok(()),
        (None, Some(_), _) | (None, None, true) => run(entry, shown),
        _ => Err("an entry has one of `covered` (a reason), `prints` and `as_shown`".into()),
    }
}

/// Whether the text is what the page shows, `…` being any text.
fn is_as_shown(shown: &str, text: &str) -> bool {
    let mut rest = text.trim_end();
    let mut parts = shown.trim_end().split('…');
    let Some(start) = parts.next() else { return true };
    let Some(after) = rest.strip_prefix(start) else { return false };
    rest = after;
    let mut last = None;
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
        last = Some(part);
    }
    // What follows the last `…` must be the end.
    rest.is_empty() || last.is_some_and(|part| part.is_empty() || text.trim_end().ends_with(part))
}

/// Runs it with `fumehood` on the path: in a directory of its own if the entry
/// has files, else in the root of the repository. `/tmp` is the test's own.
fn run(entry: &Entry, shown: &str) -> Result<(), Failed> {
    let place = tempfile::tempdir()?;
    let home = tempfile::tempdir()?;
    for (name, contents) in &entry.files {
        let path = place.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
        std::fs::write(path, contents)?;
    }
    let cache = if entry.own_cache { home.path().join("cache") } else { cache_directory() };
    let binary = command_binary()?;
    let directory = binary.parent().ok_or("the command is in no directory")?;
    let mut command =
        entry.before.iter().map(|one| format!("{one} >/dev/null 2>&1 && ")).collect::<String>();
    command.push_str(&entry.command);
    command = command.replace("/tmp/", &format!("{}/", home.path().display()));
    for (spelled, name) in THROUGH_CARGO {
        command = command.replace(spelled, name);
    }
    let path = format!("{}:{}", directory.display(), std::env::var("PATH").unwrap_or_default());
    let output = Command::new("sh")
        .args(["-c", &command])
        .current_dir(if entry.files.is_empty() { root() } else { place.path() })
        .env("PATH", path)
        .env("HOME", home.path())
        .env_remove("FUMEHOOD_HOME")
        .env_remove("XDG_DATA_HOME")
        .env("FUMEHOOD_CACHE_DIR", cache)
        .stdin(Stdio::null())
        .output()?;
    let (stdout, stderr) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let contains = entry.prints.as_ref().is_none_or(|prints| stdout.contains(prints));
    let same = !entry.as_shown || is_as_shown(shown, &format!("{stdout}{stderr}"));
    if output.status.code() == Some(entry.exit) && contains && same {
        return Ok(());
    }
    Err(format!(
        "`{}` ended with {:?} (expected {})\n{}{}stdout: {stdout}\nstderr: {stderr}",
        entry.command,
        output.status.code(),
        entry.exit,
        if contains { String::new() } else { format!("should print {:?}\n", entry.prints) },
        if same { String::new() } else { format!("the page shows:\n{shown}\n") },
    )
    .into())
}

fn parses() -> Result<(), Failed> {
    let page = "text\n```console\n$ fumehood version\nfumehood 0.1\n$ cat <<'EOF' | fumehood run -\n> print(1)\n> EOF\n1\n```\n\
        ```sh\n# a comment\nfumehood run \\\n    --json a.py\n```\n```python\nprint('$ not')\n```\n```text\n$ neither\n```\n";
    let found: Vec<(String, String)> =
        commands(page).into_iter().map(|shown| (shown.command, shown.output)).collect();
    let expected = [
        ("fumehood version", "fumehood 0.1\n"),
        ("cat <<'EOF' | fumehood run -\nprint(1)\nEOF", "1\n"),
        ("fumehood run --json a.py", ""),
    ];
    assert_eq!(found.iter().map(|(c, o)| (c.as_str(), o.as_str())).collect::<Vec<_>>(), expected);
    assert!(is_as_shown("a … c\n…\n", "a b c\nmore\n") && is_as_shown("a\n", "a\n"));
    assert!(!is_as_shown("a …c\n", "a b d\n") && !is_as_shown("a\n", "a\nb\n"));
    Ok(())
}
