//! `glob` and `grep`.
//!
//! Invariant: matching takes time linear in what is matched, times the size of
//! the pattern; what is visited, shown and kept is bounded, and so is what is
//! matched before the run can be ended; links are not walked.

use fumehood_policies::GuestPath;
use regex::bytes::{Regex, RegexBuilder};

use super::{Arguments, Fault, Told, fault, message, shown};
use crate::broker::Broker;
use crate::call::FileType;
use crate::errno::Errno;
use crate::tools::{
    MAX_FILE_TOOL_COMPILED_BYTES, MAX_FILE_TOOL_DEPTH, MAX_FILE_TOOL_ENTRIES,
    MAX_FILE_TOOL_PATTERN_BYTES, MAX_FILE_TOOL_READ_BYTES, MAX_FILE_TOOL_VISITS,
    MAX_GREP_LINE_BYTES, MAX_GREP_LINE_CHARACTERS,
};

/// Bytes of the cache of one pattern; the library's own default.
const CACHE_BYTES: usize = 2 << 20;
/// Entries of a walk before it looks whether the run is to end.
const VISITS_AT_ONCE: u64 = 64;

/// Lines that `grep` found.
#[derive(Default)]
struct Lines {
    found: Vec<String>,
    /// A line was searched only so far.
    cut: bool,
}

/// A pattern of Python's `fnmatch`: `*` stands for anything, `/` included.
fn fnmatch(pattern: &str) -> Result<Regex, Fault> {
    let mut text = String::from("(?s-u)^");
    let mut rest = pattern;
    while let Some(character) = rest.chars().next() {
        rest = rest.get(character.len_utf8()..).unwrap_or_default();
        match character {
            '*' => text.push_str(".*"),
            '?' => text.push_str("(?:(?u:.)|.)"),
            '[' => match class(rest) {
                Some((class, after)) => {
                    text.push_str(&class);
                    rest = after;
                }
                None => text.push_str("\\["),
            },
            plain => {
                for byte in plain.encode_utf8(&mut [0; 4]).bytes() {
                    text.push_str(&format!("\\x{byte:02x}"));
                }
            }
        }
    }
    text.push('$');
    compile(&text)
}

/// A class in brackets, and what comes after it.
fn class(rest: &str) -> Option<(String, &str)> {
    let (negated, inner) = match rest.strip_prefix('!') {
        Some(inner) => (true, inner),
        None => (false, rest),
    };
    // A bracket that comes first is a member.
    let skip = inner.chars().next()?.len_utf8();
    let end = inner.get(skip..)?.find(']')?.checked_add(skip)?;
    let (members, after) = (inner.get(..end)?, inner.get(end.checked_add(1)?..)?);
    let mut class = String::from(if negated { "(?u:[^" } else { "(?u:[" });
    let mut characters = members.chars().peekable();
    while let Some(from) = characters.next() {
        let to = if characters.peek() == Some(&'-') {
            let mut ahead = characters.clone();
            ahead.next();
            ahead.next()
        } else {
            None
        };
        match to {
            Some(to) => {
                characters.next();
                characters.next();
                if from <= to {
                    class.push_str(&format!(
                        "\\u{{{:x}}}-\\u{{{:x}}}",
                        u32::from(from),
                        u32::from(to)
                    ));
                }
            }
            None => class.push_str(&format!("\\u{{{:x}}}", u32::from(from))),
        }
    }
    if class.ends_with('[') {
        // Only empty ranges: nothing matches.
        return Some(("[^\\s\\S]".to_owned(), after));
    }
    class.push_str("])");
    Some((class, after))
}

fn compile(text: &str) -> Result<Regex, Fault> {
    let built = RegexBuilder::new(text)
        .multi_line(false)
        .size_limit(MAX_FILE_TOOL_COMPILED_BYTES)
        .dfa_size_limit(CACHE_BYTES)
        .build();
    match built {
        Ok(regex) => Ok(regex),
        Err(error) => {
            let text = error.to_string();
            let last = text.lines().last().unwrap_or_default();
            message("ValueError", format_args!("the pattern cannot be used: {last}"))
        }
    }
}

fn check_length(pattern: &str) -> Result<(), Fault> {
    if pattern.len() > MAX_FILE_TOOL_PATTERN_BYTES {
        return message(
            "ValueError",
            format_args!("the pattern has more than {MAX_FILE_TOOL_PATTERN_BYTES} bytes"),
        );
    }
    Ok(())
}

/// Whether a relative path or its last name matches.
fn matches(pattern: &Regex, relative: &[u8]) -> bool {
    let name = relative.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    pattern.is_match(relative) || pattern.is_match(name)
}

/// What a walk does with an entry; `false` ends the walk.
type Visit<'v> = dyn FnMut(&mut Broker, &GuestPath, &[u8], FileType) -> Result<bool, Fault> + 'v;

impl Broker {
    /// Visits everything below a directory, sorted, without going through
    /// links. What cannot be listed is left out, but for the beginning.
    fn walk_plain(&mut self, top: &GuestPath, visit: &mut Visit<'_>) -> Result<bool, Fault> {
        let mut visits = 0_u64;
        self.walk_below(top, top, 0, &mut visits, visit)
    }

    fn walk_below(
        &mut self,
        top: &GuestPath,
        at: &GuestPath,
        depth: usize,
        visits: &mut u64,
        visit: &mut Visit<'_>,
    ) -> Result<bool, Fault> {
        self.check_time()?;
        let entries = match self.list_plain(at) {
            Ok(entries) => entries,
            Err(errno) if depth == 0 => return Err(fault(errno, at)),
            Err(_) => return Ok(true),
        };
        for entry in entries {
            *visits = visits.saturating_add(1);
            if *visits > MAX_FILE_TOOL_VISITS {
                return Ok(false);
            }
            if visits.is_multiple_of(VISITS_AT_ONCE) {
                self.check_time()?;
            }
            let Ok(path) = at.join(&entry.name) else { continue };
            let relative = path.strip_prefix(top).unwrap_or_default().to_vec();
            if !visit(self, &path, &relative, entry.file_type)? {
                return Ok(false);
            }
            if entry.file_type == FileType::Directory
                && depth < MAX_FILE_TOOL_DEPTH
                && !self.walk_below(top, &path, depth.saturating_add(1), visits, visit)?
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub(super) fn tool_glob(&mut self, arguments: &Arguments<'_>) -> Told {
        let path = self.tool_path(arguments)?;
        let pattern = arguments.text("pattern", "");
        check_length(pattern)?;
        let pattern = fnmatch(pattern)?;
        let mut lines: Vec<String> = Vec::new();
        let complete = self.walk_plain(&path, &mut |_, _, relative, kind| {
            if matches(&pattern, relative) {
                if lines.len() >= MAX_FILE_TOOL_ENTRIES {
                    return Ok(false);
                }
                let slash = if kind == FileType::Directory { "/" } else { "" };
                lines.push(format!("{}{slash}", shown(relative)));
            }
            Ok(true)
        })?;
        Ok(told(lines, complete, "No files match."))
    }

    pub(super) fn tool_grep(&mut self, arguments: &Arguments<'_>) -> Told {
        let path = self.tool_path(arguments)?;
        let (pattern, include) = (arguments.text("pattern", ""), arguments.text("include", ""));
        check_length(pattern)?;
        check_length(include)?;
        let pattern = compile(pattern)?;
        let include = if include.is_empty() { None } else { Some(fnmatch(include)?) };
        let mut lines = Lines::default();
        let stat = self.look(&path).map_err(|errno| fault(errno, &path))?;
        if stat.file_type == FileType::SymbolicLink {
            return Err(fault(Errno::Loop, &path));
        }
        if stat.file_type != FileType::Directory {
            let name = path.file_name().unwrap_or_default().to_vec();
            let complete = self.grep_file(&path, &name, &pattern, &mut lines)?;
            return Ok(lines.told(complete));
        }
        let complete = self.walk_plain(&path, &mut |broker, path, relative, kind| {
            let wanted = kind == FileType::RegularFile
                && include.as_ref().is_none_or(|include| matches(include, relative));
            if wanted { broker.grep_file(path, relative, &pattern, &mut lines) } else { Ok(true) }
        })?;
        Ok(lines.told(complete))
    }

    /// Whether there is room for more.
    fn grep_file(
        &mut self,
        path: &GuestPath,
        relative: &[u8],
        pattern: &Regex,
        lines: &mut Lines,
    ) -> Result<bool, Fault> {
        self.check_time()?;
        let Ok(file) = self.open_plain(path) else { return Ok(true) };
        let read = self.read_whole(&file, path, MAX_FILE_TOOL_READ_BYTES);
        self.vfs.close(&file);
        let Ok(Some(text)) = read else { return Ok(true) };
        if text.contains(&0) {
            return Ok(true);
        }
        let name = shown(relative);
        let mut searched = 0_usize;
        for (number, line) in text.split(|byte| *byte == b'\n').enumerate() {
            searched = searched.saturating_add(line.len()).saturating_add(1);
            if searched > MAX_GREP_LINE_BYTES {
                self.check_time()?;
                searched = 0;
            }
            let whole = line.strip_suffix(b"\r").unwrap_or(line);
            let line = whole.get(..MAX_GREP_LINE_BYTES).unwrap_or(whole);
            if !pattern.is_match(line) {
                lines.cut |= line.len() < whole.len();
                continue;
            }
            if lines.found.len() >= MAX_FILE_TOOL_ENTRIES {
                return Ok(false);
            }
            let line = String::from_utf8_lossy(line);
            let line: String = line.chars().take(MAX_GREP_LINE_CHARACTERS).collect();
            lines.found.push(format!("  {name}:{}: {line}", number.saturating_add(1)));
        }
        Ok(true)
    }
}

impl Lines {
    fn told(self, complete: bool) -> String {
        let mut text = told(self.found, complete, "No lines match.");
        if self.cut {
            text.push_str(&format!(
                "\n[truncated: of longer lines only {MAX_GREP_LINE_BYTES} bytes were searched]"
            ));
        }
        text
    }
}

fn told(mut lines: Vec<String>, complete: bool, nothing: &str) -> String {
    if lines.is_empty() {
        lines.push(nothing.to_owned());
    }
    if !complete {
        lines.push("[truncated: there is more]".to_owned());
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_those_of_fnmatch() {
        for (pattern, name, want) in [
            ("*.py", "a.py", true),
            ("*.py", "d/a.py", true),
            ("src/*", "src/a/b", true),
            ("?.py", "ab.py", false),
            ("?.py", "é.py", true),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[]]x", "]x", true),
            ("[x", "[x", true),
            ("[z-a]", "z", false),
            ("a.b", "axb", false),
            ("(a+)+$", "(a+)+$", true),
            ("a\\", "a\\", true),
        ] {
            let compiled = fnmatch(pattern);
            assert!(
                compiled.is_ok_and(|regex| regex.is_match(name.as_bytes()) == want),
                "{pattern} {name}"
            );
        }
        assert!(fnmatch("*").is_ok_and(|regex| regex.is_match(b"\xff\n")));
    }
}
