//! Carrying the file tools out.
//!
//! Invariant: a tool never goes through a symbolic link: one on the way or at
//! the end is refused, and `delete` removes the link itself. Names are bytes;
//! what is shown is escaped where a name would break the line or is not text,
//! and such a spelling is understood as a path, too. What fails has changed
//! nothing, but for directories above a file that were made, and for what
//! `delete` had removed before it failed.

mod access;
mod search;

use fumehood_policies::{GuestPath, escape};
use serde_json::Value;

use crate::broker::Broker;
use crate::call::FileType;
use crate::environment::Wake;
use crate::errno::Errno;
use crate::tools::{
    FileTool, MAX_FILE_TOOL_DEPTH, MAX_FILE_TOOL_ENTRIES, MAX_FILE_TOOL_READ_BYTES,
    MAX_FILE_TOOL_VISITS, MAX_FILE_TOOL_WRITE_BYTES,
};

/// Why a tool gave nothing.
#[derive(Debug)]
pub(super) enum Fault {
    /// A message for the guest, which begins with the name of an exception.
    Message(String),
    /// The run is to end.
    Interrupted,
}

type Told = Result<String, Fault>;

fn message<T>(kind: &str, text: impl std::fmt::Display) -> Result<T, Fault> {
    Err(Fault::Message(format!("{kind}: {text}")))
}

/// A path or name on one line.
pub(super) fn shown(bytes: &[u8]) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = escape(bytes, &mut text);
    text
}

fn fault(errno: Errno, path: &GuestPath) -> Fault {
    let (kind, what) = match errno {
        Errno::Noent => ("FileNotFoundError", "no such file or directory"),
        Errno::Exist => ("FileExistsError", "it exists already"),
        Errno::Isdir => ("IsADirectoryError", "it is a directory"),
        Errno::Notdir => ("NotADirectoryError", "a part of the path is not a directory"),
        Errno::Notempty => ("OSError", "the directory is not empty"),
        Errno::Loop => ("PermissionError", "symbolic links are not followed"),
        Errno::Rofs => ("PermissionError", "the file system is read-only"),
        Errno::Acces | Errno::Perm => ("PermissionError", "not permitted"),
        Errno::Nospc => ("OSError", "no space left"),
        Errno::Fbig => ("OSError", "the file would be too large"),
        Errno::Nametoolong => ("OSError", "the path is too long"),
        Errno::Busy => ("OSError", "it is in use"),
        Errno::Overflow => ("OSError", "the directory has too many entries"),
        _ => ("OSError", "input or output failed"),
    };
    Fault::Message(format!("{kind}: {what}: {path}"))
}

/// Checked arguments: the schema has seen to their types.
struct Arguments<'a>(&'a Value);

impl<'a> Arguments<'a> {
    fn text(&self, name: &str, default: &'a str) -> &'a str {
        self.0.get(name).and_then(Value::as_str).unwrap_or(default)
    }

    fn flag(&self, name: &str) -> bool {
        self.0.get(name).and_then(Value::as_bool).unwrap_or(false)
    }

    fn number(&self, name: &str, default: u64) -> u64 {
        self.0.get(name).and_then(Value::as_u64).unwrap_or(default)
    }
}

/// The bytes that [`shown`] wrote as this text; `None` if it is no such text.
fn unescaped(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        let (plain, escaped) = rest.split_at(at);
        bytes.extend_from_slice(plain.as_bytes());
        let mut characters = escaped.chars();
        characters.next();
        match characters.next()? {
            '\\' => bytes.push(b'\\'),
            'x' => {
                let digits = escaped.get(2..4)?;
                bytes.push(u8::from_str_radix(digits, 16).ok()?);
                characters = escaped.get(4..)?.chars();
            }
            'u' => {
                let inner = escaped.get(2..)?.strip_prefix('{')?;
                let (digits, after) = inner.split_once('}')?;
                let character = char::from_u32(u32::from_str_radix(digits, 16).ok()?)?;
                bytes.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                characters = after.chars();
            }
            _ => return None,
        }
        rest = characters.as_str();
    }
    bytes.extend_from_slice(rest.as_bytes());
    Some(bytes)
}

impl Broker {
    /// Carries a file tool out. Relative paths begin at the first mounted
    /// directory, or at `/work`.
    pub(super) fn file_tool(&mut self, tool: FileTool, arguments: &Value) -> Told {
        let arguments = Arguments(arguments);
        match tool {
            FileTool::Read => self.tool_read(&arguments),
            FileTool::Write => self.tool_write(&arguments),
            FileTool::Edit => self.tool_edit(&arguments),
            FileTool::Delete => self.tool_delete(&arguments),
            FileTool::Glob => self.tool_glob(&arguments),
            FileTool::Grep => self.tool_grep(&arguments),
            FileTool::List => self.tool_list(&arguments),
        }
    }

    fn tool_base(&self) -> GuestPath {
        let work = || GuestPath::root().join(b"work").unwrap_or_else(|_| GuestPath::root());
        self.vfs.first_mount().unwrap_or_else(work)
    }

    /// The path that an argument means.
    fn tool_path(&mut self, arguments: &Arguments<'_>) -> Result<GuestPath, Fault> {
        let text = arguments.text("path", ".");
        let base = self.tool_base();
        let meant = |path| self.meant(path);
        let parse = |bytes: &[u8]| GuestPath::parse(&base, bytes).map(|found| meant(found.path));
        let path = match parse(text.as_bytes()) {
            Ok(path) => path,
            Err(error) => return message("ValueError", error),
        };
        // The spelling of a listing is understood if nothing has it as a name.
        if text.contains('\\')
            && let Some(bytes) = unescaped(text)
            && let Ok(meant) = parse(&bytes)
            && matches!(self.look(&path), Err(Errno::Noent))
            && self.look(&meant).is_ok()
        {
            return Ok(meant);
        }
        Ok(path)
    }

    /// Ends a tool that goes on while the run is to end.
    fn check_time(&self) -> Result<(), Fault> {
        match self.waiter.park(std::time::Duration::ZERO) {
            Wake::Interrupted => Err(Fault::Interrupted),
            _ => Ok(()),
        }
    }

    fn tool_read(&mut self, arguments: &Arguments<'_>) -> Told {
        let path = self.tool_path(arguments)?;
        let (offset, limit) = (arguments.number("offset", 0), arguments.number("limit", 100_000));
        let file = self.open_plain(&path).map_err(|errno| fault(errno, &path))?;
        let told = self.numbered_lines(&file, &path, offset, limit);
        self.vfs.close(&file);
        told
    }

    fn numbered_lines(
        &mut self,
        file: &crate::fs::Node,
        path: &GuestPath,
        offset: u64,
        limit: u64,
    ) -> Told {
        const TAIL: &str = "\n[truncated: read byte or line limit reached]\n";
        if limit == 0 {
            return Ok(String::new());
        }
        let mut out: Vec<u8> = Vec::new();
        let (mut at, mut line, mut begun, mut more) = (0_u64, 0_u64, false, false);
        let mut chunk = vec![0; access::READ_CHUNK];
        'reading: loop {
            self.check_time()?;
            let length =
                self.read_some(file, path, at, &mut chunk).map_err(|errno| fault(errno, path))?;
            if length == 0 {
                break;
            }
            at = at.saturating_add(length as u64);
            for piece in chunk.get(..length).unwrap_or_default().split_inclusive(|b| *b == b'\n') {
                let wanted = line >= offset;
                if line.saturating_sub(offset) >= limit && wanted {
                    more = true;
                    break 'reading;
                }
                if wanted && !begun {
                    let number = line.saturating_add(1);
                    out.extend_from_slice(format!("{number}\t").as_bytes());
                }
                begun = true;
                if wanted {
                    let room = MAX_FILE_TOOL_READ_BYTES.saturating_sub(out.len());
                    out.extend_from_slice(piece.get(..piece.len().min(room)).unwrap_or_default());
                    if piece.len() > room {
                        more = true;
                        break 'reading;
                    }
                }
                if piece.ends_with(b"\n") {
                    line = line.saturating_add(1);
                    begun = false;
                }
            }
        }
        let mut text = String::from_utf8_lossy(&out).into_owned();
        if more {
            text.push_str(TAIL);
        }
        Ok(text)
    }

    fn tool_write(&mut self, arguments: &Arguments<'_>) -> Told {
        let path = self.tool_path(arguments)?;
        let content = arguments.text("content", "").as_bytes();
        if content.len() > MAX_FILE_TOOL_WRITE_BYTES {
            return message(
                "ValueError",
                format_args!("more than {MAX_FILE_TOOL_WRITE_BYTES} bytes"),
            );
        }
        match self.look(&path) {
            Ok(stat) if stat.file_type == FileType::SymbolicLink => {
                return Err(fault(Errno::Loop, &path));
            }
            Ok(stat) if stat.file_type == FileType::Directory => {
                return Err(fault(Errno::Isdir, &path));
            }
            Ok(_) if !arguments.flag("overwrite") => {
                return message("FileExistsError", "File exists; set overwrite=True to replace it");
            }
            Ok(_) => self.replace(&path, content).map_err(|errno| fault(errno, &path))?,
            Err(Errno::Noent) => {
                self.make_parents(&path).map_err(|errno| fault(errno, &path))?;
                self.write_new(&path, content, None).map_err(|errno| fault(errno, &path))?;
            }
            Err(errno) => return Err(fault(errno, &path)),
        }
        Ok(format!("Written {} bytes to {path}", content.len()))
    }

    fn tool_edit(&mut self, arguments: &Arguments<'_>) -> Told {
        let path = self.tool_path(arguments)?;
        let (old, new) = (arguments.text("old", ""), arguments.text("new", ""));
        if old.is_empty() {
            return message("ValueError", "old_string is empty");
        }
        let file = self.open_plain(&path).map_err(|errno| fault(errno, &path))?;
        let read = self.read_whole(&file, &path, MAX_FILE_TOOL_WRITE_BYTES);
        self.vfs.close(&file);
        let text = match read.map_err(|errno| fault(errno, &path))? {
            Some(text) => text,
            None => {
                return message(
                    "ValueError",
                    format_args!("{path} has more than {MAX_FILE_TOOL_WRITE_BYTES} bytes"),
                );
            }
        };
        let finder = memchr::memmem::Finder::new(old);
        let count = finder.find_iter(&text).count();
        match count {
            0 => {
                return message(
                    "ValueError",
                    "old_string was not found; it must match the file exactly",
                );
            }
            1 => {}
            _ if arguments.flag("replace_all") => {}
            _ => {
                return message(
                    "ValueError",
                    format_args!(
                        "old_string matches {count} times; give more of the lines around it, or set replace_all=True"
                    ),
                );
            }
        }
        let grown = new.len().saturating_sub(old.len()).saturating_mul(count);
        if text.len().saturating_add(grown) > MAX_FILE_TOOL_WRITE_BYTES {
            return message(
                "ValueError",
                format_args!("more than {MAX_FILE_TOOL_WRITE_BYTES} bytes"),
            );
        }
        let (mut edited, mut at) = (Vec::new(), 0_usize);
        for found in finder.find_iter(&text) {
            edited.extend_from_slice(text.get(at..found).unwrap_or_default());
            edited.extend_from_slice(new.as_bytes());
            at = found.saturating_add(old.len());
        }
        edited.extend_from_slice(text.get(at..).unwrap_or_default());
        self.replace(&path, &edited).map_err(|errno| fault(errno, &path))?;
        Ok(format!("Replaced {count} occurrence(s) in {path}"))
    }

    fn tool_delete(&mut self, arguments: &Arguments<'_>) -> Told {
        let path = self.tool_path(arguments)?;
        if path.is_root() || path == self.tool_base() {
            return message("PermissionError", "Refusing to delete the base directory itself");
        }
        let stat = self.look(&path).map_err(|errno| fault(errno, &path))?;
        let done = |errno| fault(errno, &path);
        match stat.file_type {
            FileType::Directory => {
                let entries = self.list_plain(&path).map_err(done)?;
                if entries.is_empty() {
                    self.remove_directory_plain(&path).map_err(done)?;
                    return Ok(format!("Deleted empty directory {path}"));
                }
                if !arguments.flag("recursive") {
                    return message(
                        "OSError",
                        format_args!(
                            "{path} is not empty; set recursive=True to delete it with everything below it"
                        ),
                    );
                }
                let mut count = 0;
                self.delete_below(&path, 0, &mut count)?;
                self.remove_directory_plain(&path).map_err(done)?;
                Ok(format!("Deleted {path} and {count} entries below it"))
            }
            kind => {
                self.remove_plain(&path).map_err(done)?;
                let link = if kind == FileType::SymbolicLink { "symlink " } else { "" };
                Ok(format!("Deleted {link}{path}"))
            }
        }
    }

    fn delete_below(&mut self, at: &GuestPath, depth: usize, count: &mut u64) -> Result<(), Fault> {
        if depth > MAX_FILE_TOOL_DEPTH {
            return message(
                "OSError",
                format_args!("directories lie too deep within each other: {at}"),
            );
        }
        self.check_time()?;
        for entry in self.list_plain(at).map_err(|errno| fault(errno, at))? {
            let below = at.join(&entry.name).map_err(|_| fault(Errno::Nametoolong, at))?;
            let removed = if entry.file_type == FileType::Directory {
                self.delete_below(&below, depth.saturating_add(1), count)?;
                self.remove_directory_plain(&below)
            } else {
                self.remove_plain(&below)
            };
            removed.map_err(|errno| fault(errno, &below))?;
            *count = count.saturating_add(1);
            if *count > MAX_FILE_TOOL_VISITS {
                return message("OSError", "too many entries for one call; call again");
            }
        }
        Ok(())
    }

    fn tool_list(&mut self, arguments: &Arguments<'_>) -> Told {
        let path = self.tool_path(arguments)?;
        let entries = self.list_plain(&path).map_err(|errno| fault(errno, &path))?;
        let mut lines = vec![format!("Directory: {path}")];
        if entries.is_empty() {
            lines.push("(empty)".to_owned());
        }
        let count = entries.len();
        for entry in entries.into_iter().take(MAX_FILE_TOOL_ENTRIES) {
            let name = shown(&entry.name);
            lines.push(match entry.file_type {
                FileType::Directory => format!("  {name}/"),
                FileType::SymbolicLink => format!("  {name} [symlink; access disabled]"),
                _ => {
                    let below = path.join(&entry.name).map_err(|_| fault(Errno::Inval, &path))?;
                    match self.look(&below) {
                        Ok(stat) => format!("  {name} ({} bytes)", stat.size),
                        Err(_) => format!("  {name}"),
                    }
                }
            });
        }
        if count > MAX_FILE_TOOL_ENTRIES {
            lines.push(format!("[truncated: {MAX_FILE_TOOL_ENTRIES} of {count} entries shown]"));
        }
        Ok(lines.join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_is_understood() {
        for name in [&b"plain"[..], b"a\nb", b"\xff\\x", "\u{202e}é".as_bytes(), b"\x1b["] {
            assert_eq!(unescaped(&shown(name)).as_deref(), Some(name));
        }
        for odd in ["\\", "\\q", "\\xg0", "\\u{", "\\u{d800}"] {
            assert_eq!(unescaped(odd), None, "{odd}");
        }
    }
}
