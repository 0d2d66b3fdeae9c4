//! Small WebAssembly programs that drive the boundary directly, in text form.
//!
//! What: a body in WAT with a few shorthands, completed to a module with the
//! imports it names and functions for opening, checking and answering.
//! Why: the boundary has to hold against any guest, not only against the
//! Python one.
//!
//! Invariant: a module that is given `p` on standard input does nothing but
//! write `42`, so that the run after an attack uses the same engine and module.
//!
//! Shorthands: `%7` is `(i32.const 7)`, `%L7` is `(i64.const 7)`, `%R` and
//! `%W` are the rights to read and to write, `@"text"` is address and length of
//! the bytes of a WAT string. The locals `$i` and `$e` are there.

use fumehood_host_fns::Errno;

/// Where strings are put.
const STRINGS_AT: usize = 4096;
/// Free memory for buffers begins here.
pub const BUFFERS_AT: usize = 65536;
/// Exit codes of a step that had to succeed and did not.
const FAILED_STEP: i32 = 10_000;

/// Rights of `fd_read`, `fd_seek`, `fd_tell`, `fd_readdir`, `fd_filestat_get`.
const READ: i64 = (1 << 1) | (1 << 2) | (1 << 5) | (1 << 14) | (1 << 21) | (1 << 27);
/// The same for files, and those of every change.
const WRITE: i64 = (1 << 0)
    | (1 << 1)
    | (1 << 2)
    | (1 << 5)
    | (1 << 6)
    | (1 << 8)
    | (1 << 21)
    | (1 << 22)
    | (1 << 23)
    | (1 << 27);

/// Name, parameters and result of every import that a program may use.
const IMPORTS: &[(&str, &str)] = &[
    ("args_get", "i32 i32"),
    ("args_sizes_get", "i32 i32"),
    ("clock_res_get", "i32 i32"),
    ("clock_time_get", "i32 i64 i32"),
    ("environ_get", "i32 i32"),
    ("environ_sizes_get", "i32 i32"),
    ("fd_advise", "i32 i64 i64 i32"),
    ("fd_allocate", "i32 i64 i64"),
    ("fd_close", "i32"),
    ("fd_fdstat_get", "i32 i32"),
    ("fd_fdstat_set_flags", "i32 i32"),
    ("fd_filestat_get", "i32 i32"),
    ("fd_filestat_set_size", "i32 i64"),
    ("fd_filestat_set_times", "i32 i64 i64 i32"),
    ("fd_pread", "i32 i32 i32 i64 i32"),
    ("fd_prestat_dir_name", "i32 i32 i32"),
    ("fd_prestat_get", "i32 i32"),
    ("fd_pwrite", "i32 i32 i32 i64 i32"),
    ("fd_read", "i32 i32 i32 i32"),
    ("fd_readdir", "i32 i32 i32 i64 i32"),
    ("fd_renumber", "i32 i32"),
    ("fd_seek", "i32 i64 i32 i32"),
    ("fd_sync", "i32"),
    ("fd_tell", "i32 i32"),
    ("fd_write", "i32 i32 i32 i32"),
    ("path_create_directory", "i32 i32 i32"),
    ("path_filestat_get", "i32 i32 i32 i32 i32"),
    ("path_filestat_set_times", "i32 i32 i32 i32 i64 i64 i32"),
    ("path_link", "i32 i32 i32 i32 i32 i32 i32"),
    ("path_open", "i32 i32 i32 i32 i32 i64 i64 i32 i32"),
    ("path_readlink", "i32 i32 i32 i32 i32 i32"),
    ("path_remove_directory", "i32 i32 i32"),
    ("path_rename", "i32 i32 i32 i32 i32 i32"),
    ("path_symlink", "i32 i32 i32 i32 i32"),
    ("path_unlink_file", "i32 i32 i32"),
    ("poll_oneoff", "i32 i32 i32 i32"),
    ("random_get", "i32 i32"),
    ("sched_yield", ""),
];

/// Functions that every program has.
const PRELUDE: &str = r#"
  ;; Is this the run after the attack?
  (func $is_plain (result i32)
    (i32.store %64 %72) (i32.store %68 %1)
    (if (call $fd_read %0 %64 %1 %76) (then (return %0)))
    (i32.and (i32.eq (i32.load %76) %1) (i32.eq (i32.load8_u %72) %112)))
  ;; Writes bytes to standard output.
  (func $print (param $at i32) (param $len i32)
    (i32.store %64 (local.get $at)) (i32.store %68 (local.get $len))
    (drop (call $fd_write %1 %64 %1 %76)))
  ;; Ends the program with an error number as the answer.
  (func $answer (param $errno i32) (call $proc_exit (local.get $errno)))
  ;; A step that has to succeed.
  (func $must (param $errno i32)
    (if (local.get $errno) (then (call $proc_exit (i32.add %10000 (local.get $errno))))))
  ;; A condition that has to hold; the code tells which.
  (func $unless (param $holds i32) (param $code i32)
    (if (i32.eqz (local.get $holds)) (then (call $proc_exit (local.get $code)))))
  ;; Opens a path below the root; the descriptor is then `$fd`.
  (func $open (param $at i32) (param $len i32) (param $flags i32) (param $rights i64) (result i32)
    (call $path_open %3 %1 (local.get $at) (local.get $len) (local.get $flags)
      (local.get $rights) (local.get $rights) %0 %32))
  (func $fd (result i32) (i32.load %32))
  ;; Writes one byte to a descriptor.
  (func $put (param $fd i32) (result i32)
    (i32.store %64 %4096) (i32.store %68 %1)
    (call $fd_write (local.get $fd) %64 %1 %76))
"#;

/// A program.
#[derive(Clone, Debug)]
pub struct Program {
    body: String,
    functions: String,
    imports: String,
    pages: u32,
}

impl Program {
    /// A program whose entry is `body`.
    pub fn new(body: impl Into<String>) -> Self {
        Self { body: body.into(), functions: String::new(), imports: String::new(), pages: 4 }
    }

    /// A program that does `step` this many times.
    #[must_use]
    pub fn repeat(times: u32, step: &str) -> Self {
        Self::new(format!(
            "(loop $again {step}
               (local.set $i (i32.add (local.get $i) %1))
               (br_if $again (i32.lt_u (local.get $i) %{times})))"
        ))
    }

    /// This program after other code.
    #[must_use]
    pub fn after(mut self, code: &str) -> Self {
        self.body.insert_str(0, code);
        self
    }

    /// Adds fields to the module: functions, globals, a start function.
    #[must_use]
    pub fn functions(mut self, fields: impl Into<String>) -> Self {
        self.functions = fields.into();
        self
    }

    /// Adds imports to the module.
    #[must_use]
    pub fn imports(mut self, fields: impl Into<String>) -> Self {
        self.imports = fields.into();
        self
    }

    /// Starts with this many pages of 64 KiB.
    #[must_use]
    pub fn pages(mut self, pages: u32) -> Self {
        self.pages = pages;
        self
    }

    /// The module in binary form.
    ///
    /// # Errors
    /// Where the text is wrong.
    pub fn build(&self) -> Result<Vec<u8>, String> {
        wat::parse_str(self.text()).map_err(|error| error.to_string())
    }

    /// The module in text form.
    #[must_use]
    pub fn text(&self) -> String {
        let mut strings = Strings { data: String::new(), end: STRINGS_AT };
        // The prelude writes the byte at 4096.
        strings.place(r"!");
        let code = strings.expand(&format!(
            "{PRELUDE}\n{}\n(func (export \"_start\")
               (if (call $is_plain) (then (call $print @\"42\")) (else (call $attack))))
             (func $attack (local $i i32) (local $e i32) {})",
            self.functions, self.body
        ));
        let imports: String = IMPORTS
            .iter()
            .filter(|(name, _)| names(&code, name))
            .map(|(name, parameters)| {
                format!(
                    "(import \"wasi_snapshot_preview1\" \"{name}\" (func ${name} (param {parameters}) (result i32)))\n"
                )
            })
            .collect();
        format!(
            "(module {imports}
               (import \"wasi_snapshot_preview1\" \"proc_exit\" (func $proc_exit (param i32)))
               (import \"fumehood\" \"call\" (func $brokered (param i32 i32 i32 i32 i32) (result i64)))
               {}
               (memory (export \"memory\") {})
               {}
               {code})",
            self.imports, self.pages, strings.data
        )
    }
}

/// Whether the code calls `$name` and nothing that only begins like it.
fn names(code: &str, name: &str) -> bool {
    code.match_indices(&format!("${name}")).any(|(at, found)| {
        let after = code.as_bytes().get(at.saturating_add(found.len()));
        !after.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
    })
}

/// String constants, each at an address of its own.
struct Strings {
    data: String,
    end: usize,
}

impl Strings {
    fn place(&mut self, literal: &str) -> (usize, usize) {
        let (at, len) = (self.end, literal_length(literal));
        self.data.push_str(&format!("(data (i32.const {at}) \"{literal}\")\n"));
        self.end = at.saturating_add(len).saturating_add(1);
        (at, len)
    }

    /// Replaces the shorthands.
    fn expand(&mut self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find(['%', '@']) {
            let (before, shorthand) = rest.split_at(at);
            out.push_str(before);
            let (replaced, after) = self.one(shorthand);
            out.push_str(&replaced);
            rest = after;
        }
        out.push_str(rest);
        out
    }

    fn one<'t>(&mut self, text: &'t str) -> (String, &'t str) {
        if let Some(quoted) = text.strip_prefix("@\"")
            && let Some((literal, after)) = quoted.split_once('"')
        {
            let (at, len) = self.place(literal);
            return (format!("(i32.const {at}) (i32.const {len})"), after);
        }
        if let Some(after) = text.strip_prefix("%R") {
            return (format!("(i64.const {READ})"), after);
        }
        if let Some(after) = text.strip_prefix("%W") {
            return (format!("(i64.const {WRITE})"), after);
        }
        let (kind, number) = match text.strip_prefix("%L") {
            Some(number) => ("i64", number),
            None => ("i32", text.strip_prefix('%').unwrap_or(text)),
        };
        let end = number.find(|c: char| !c.is_ascii_digit() && c != '-').unwrap_or(number.len());
        let (digits, after) = number.split_at(end);
        (format!("({kind}.const {digits})"), after)
    }
}

/// Bytes of a WAT string literal: `\` and two hexadecimal digits are one.
fn literal_length(literal: &str) -> usize {
    let escapes = literal.matches('\\').count();
    literal.len().saturating_sub(escapes.saturating_mul(2))
}

/// What an exit code of a program says about the step that ended it.
#[must_use]
pub fn step_of(code: i32) -> String {
    match code.checked_sub(FAILED_STEP) {
        Some(errno) if (1..=100).contains(&errno) => {
            format!(" (a step that had to succeed failed with error {errno})")
        }
        _ => String::new(),
    }
}

/// Error numbers that say that a path leads nowhere the guest may go.
pub const NOT_REACHABLE: &[Errno] = &[Errno::Noent, Errno::Loop, Errno::Perm, Errno::Acces];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shorthands_become_a_valid_module() {
        let program = Program::new("(call $answer (call $open @\"a\\00b\" %2 %R))");
        let text = program.text();
        assert!(text.contains("(data (i32.const 4101) \"a\\00b\")"), "{text}");
        assert!(text.contains("(i32.const 4101) (i32.const 3)"), "{text}");
        assert!(text.contains("\"path_open\"") && !text.contains("\"fd_readdir\""));
        assert!(program.build().is_ok(), "{:?}", program.build());
    }
}
