//! The file tools: functions that come with the broker.
//!
//! What: `read_file, write_file, edit_file, delete, glob, grep,
//! list_directory` with the schemas that agents know; the broker carries them
//! out on the guest's own tree.
//! Why: one implementation for the library, for guest code and for servers.
//!
//! Invariant: each step of each tool is a request of its own that goes through
//! the pipeline; a tool can do nothing that guest code could not.

use serde_json::{Value, json};

use super::{Tool, ToolSetupError};

/// Bytes of file content that one call shows.
pub const MAX_FILE_TOOL_READ_BYTES: usize = 1_000_000;
/// Bytes of a file that one call writes or edits.
pub const MAX_FILE_TOOL_WRITE_BYTES: usize = 10_000_000;
/// Entries or matches that one call shows.
pub const MAX_FILE_TOOL_ENTRIES: usize = 1_000;
/// Entries that one call looks at.
pub const MAX_FILE_TOOL_VISITS: u64 = 1_000_000;
/// Directories within each other that one call walks.
pub const MAX_FILE_TOOL_DEPTH: usize = 25;
/// Longest pattern of `glob` and `grep`, in bytes.
pub const MAX_FILE_TOOL_PATTERN_BYTES: usize = 4096;
/// Memory of one compiled pattern of `glob` and `grep`, in bytes.
pub const MAX_FILE_TOOL_COMPILED_BYTES: usize = 256 << 10;
/// Bytes of a line that `grep` searches, and that it searches before it looks
/// whether the run is to end.
pub const MAX_GREP_LINE_BYTES: usize = 32 << 10;
/// Characters of a line that `grep` shows.
pub const MAX_GREP_LINE_CHARACTERS: usize = 200;

/// One of the file tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileTool {
    Read,
    Write,
    Edit,
    Delete,
    Glob,
    Grep,
    List,
}

fn text(description: &str) -> Value {
    json!({"type": "string", "description": description})
}

fn schema(required: &[&str], properties: Value) -> Value {
    json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
}

/// Name, what it does, schema and order of parameters.
type Declared = (FileTool, &'static str, &'static str, Value, &'static [&'static str]);

fn declared() -> [Declared; 7] {
    let path = || text("Path of the file");
    let whole = |default: u64| json!({"type": "integer", "minimum": 0, "default": default});
    let flag = || json!({"type": "boolean", "default": false});
    let here = || json!({"type": "string", "default": "."});
    [
        (
            FileTool::Read,
            "read_file",
            "Reads a text file: numbered lines, from the line after `offset` lines, at most `limit` lines.",
            schema(&["path"], json!({"path": path(), "offset": whole(0), "limit": whole(100_000)})),
            &["path", "offset", "limit"],
        ),
        (
            FileTool::Write,
            "write_file",
            "Writes a text file, with the directories above it. An existing file is replaced only with `overwrite`.",
            schema(
                &["path", "content"],
                json!({"path": path(), "content": text("The whole content"), "overwrite": flag()}),
            ),
            &["path", "content", "overwrite"],
        ),
        (
            FileTool::Edit,
            "edit_file",
            "Replaces one exact piece of a text file, or with `replace_all` every such piece.",
            schema(
                &["path", "old", "new"],
                json!({
                    "path": path(),
                    "old": text("The text to replace, exactly as it is in the file"),
                    "new": text("The text to put in its place"),
                    "replace_all": flag(),
                }),
            ),
            &["path", "old", "new", "replace_all"],
        ),
        (
            FileTool::Delete,
            "delete",
            "Deletes a file, a symbolic link or an empty directory; with `recursive` a directory and everything below it.",
            schema(&["path"], json!({"path": path(), "recursive": flag()})),
            &["path", "recursive"],
        ),
        (
            FileTool::Glob,
            "glob",
            "Lists paths below a directory whose relative path or name matches a pattern with `*`, `?` and `[...]`.",
            schema(&["pattern"], json!({"pattern": text("The pattern"), "path": here()})),
            &["pattern", "path"],
        ),
        (
            FileTool::Grep,
            "grep",
            "Lists lines of files below a directory that match a regular expression (without look-around and backreferences).",
            schema(
                &["pattern"],
                json!({
                    "pattern": text("The regular expression"),
                    "path": here(),
                    "include": {"type": "string", "default": "", "description": "Only files whose path or name matches this pattern"},
                }),
            ),
            &["pattern", "path", "include"],
        ),
        (
            FileTool::List,
            "list_directory",
            "Lists a directory.",
            schema(&[], json!({"path": here()})),
            &["path"],
        ),
    ]
}

/// The file tools. They act on the tree of the broker that they are given to.
///
/// # Errors
/// None that can happen: the names and schemas are constant.
pub fn file_tools() -> Result<Vec<Tool>, ToolSetupError> {
    let make = |(kind, name, description, schema, order): Declared| {
        // The broker never calls it: it carries the tool out itself.
        let unused = |_| -> super::ToolFuture { Box::pin(async { Err("not callable".into()) }) };
        let tool = Tool::new(name, description, schema, unused)?.parameter_order(order);
        Ok(Tool { built_in: Some(kind), ..tool })
    };
    declared().into_iter().map(make).collect()
}
