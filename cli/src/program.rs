//! What is run: the source text, its name inside the guest and where its
//! imports come from.
//!
//! Invariant: no host path reaches the guest.

use std::path::Path;

use fumehood::{Script, WORKING_DIRECTORY};

use crate::args::{MountArg, RunArgs};
use crate::error::CliError;
use crate::files;

/// Most bytes of standard input that a program is given.
const MAX_STDIN_BYTES: usize = 64 << 20;

/// The script that the arguments describe.
///
/// # Errors
/// One sentence; nothing has run.
pub(crate) fn script(
    args: &RunArgs,
    mounts: &[MountArg],
    limits: &fumehood::Limits,
) -> Result<Script, CliError> {
    let directory = match args.reach.project.project {
        Some(_) => args.reach.project.place(),
        None => WORKING_DIRECTORY,
    };
    if args.stdin.as_deref().is_some_and(|stdin| stdin == "-")
        && args.file.as_deref().is_some_and(|file| file == "-")
    {
        return Err(CliError::usage(
            "standard input cannot be both the program and its input; give one of them as a file",
        ));
    }
    let mut import_from = None;
    let (source, name) = match (&args.code, &args.file) {
        (Some(code), _) if args.cell => (code.clone().into_bytes(), "<cell>".to_owned()),
        (Some(code), _) => (code.clone().into_bytes(), "<string>".to_owned()),
        (None, Some(file)) => {
            let source = files::read(file, "the program", limits.source_bytes)?;
            check_encoding(&source, &file.to_string_lossy())?;
            if file == "-" {
                (source, "<stdin>".to_owned())
            } else {
                let place = guest_place(Path::new(file), mounts);
                import_from = place.directory;
                (source, place.filename)
            }
        }
        (None, None) => {
            return Err(CliError::usage(
                "there is nothing to run; name a file, give -c CODE, or `-` to read standard input",
            ));
        }
    };
    let script = if args.cell { Script::cell(source) } else { Script::new(source) };
    let mut script = script.filename(name).args(args.args.iter().cloned());
    for directory in import_from.as_deref().into_iter().chain([directory]) {
        script = script.import_from(directory);
    }
    if let Some(stdin) = &args.stdin {
        script = script.stdin(files::read(stdin, "the standard input", MAX_STDIN_BYTES)?);
    }
    if let Some(file) = &args.input_json {
        let bytes = files::read_file(file, "the JSON input", limits.input_bytes)?;
        script = script.inputs_json(bytes).map_err(|error| {
            CliError::usage(format!(
                "the JSON input `{}` cannot be used: {error}; its members become variables",
                file.display()
            ))
        })?;
    }
    Ok(script)
}

/// Refuses source text that Python would not decode either, before anything
/// runs.
fn check_encoding(source: &[u8], shown: &str) -> Result<(), CliError> {
    match std::str::from_utf8(source) {
        Err(error) if !declares_encoding(source) => Err(CliError::usage(format!(
            "the program `{shown}` is not UTF-8 (byte {}) and declares no encoding; save it as UTF-8",
            error.valid_up_to()
        ))),
        _ => Ok(()),
    }
}

/// Whether one of the first two lines is a comment with a PEP 263 cookie.
fn declares_encoding(source: &[u8]) -> bool {
    source.split(|byte| *byte == b'\n').take(2).any(|line| {
        let line = String::from_utf8_lossy(line);
        let comment = line.trim_start_matches([' ', '\t', '\x0c', '\u{feff}']);
        comment.starts_with('#')
            && comment.match_indices("coding").any(|(at, word)| {
                let rest = comment.get(at + word.len()..).unwrap_or_default();
                rest.strip_prefix([':', '=']).is_some_and(|rest| {
                    rest.trim_start_matches([' ', '\t']).starts_with(|c: char| {
                        c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')
                    })
                })
            })
    })
}

/// Where the guest sees a file.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    filename: String,
    /// Where its siblings are, if the guest sees them.
    directory: Option<String>,
}

/// A file in a mounted directory has its path there, any other its bare name.
fn guest_place<'a>(file: &Path, mounts: impl IntoIterator<Item = &'a MountArg>) -> Place {
    let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let parent = match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let inside = files::canonical(parent).and_then(|parent| {
        mounts
            .into_iter()
            .filter_map(|mount| {
                let host = files::canonical(&mount.host)?;
                let below = parent.strip_prefix(&host).ok()?.to_str()?.to_owned();
                Some((host.as_os_str().len(), mount.guest.trim_end_matches('/'), below))
            })
            .max_by_key(|(depth, ..)| *depth)
    });
    match inside {
        Some((_, guest, below)) => {
            let directory =
                if below.is_empty() { guest.to_owned() } else { format!("{guest}/{below}") };
            Place { filename: format!("{directory}/{name}"), directory: Some(directory) }
        }
        None => Place { filename: name, directory: None },
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "tests make files")]
mod tests {
    use super::*;
    use fumehood::Access;

    #[test]
    fn a_file_is_named_as_the_guest_sees_it() {
        let root = tempfile::tempdir().unwrap();
        let deep = root.path().join("a/b");
        std::fs::create_dir_all(&deep).unwrap();
        let mount = |guest: &str, host: &Path| MountArg {
            guest: guest.to_owned(),
            host: host.to_owned(),
            access: Access::ReadOnly,
            force: false,
        };
        let place = |file: &Path, mounts: &[MountArg]| guest_place(file, mounts);
        let outer = mount("/src/", root.path());
        let inner = mount("/inner", &deep);
        let file = deep.join("x.py");
        let found = place(&file, std::slice::from_ref(&outer));
        assert_eq!(found.filename, "/src/a/b/x.py");
        assert_eq!(found.directory.as_deref(), Some("/src/a/b"));
        assert_eq!(place(&file, &[outer, inner]).filename, "/inner/x.py");
        assert_eq!(place(&file, &[]), Place { filename: "x.py".to_owned(), directory: None });
    }

    #[test]
    fn only_a_cookie_excuses_bytes_that_are_not_utf8() {
        assert!(check_encoding(b"x = 'caf\xe9'\n", "x").is_err());
        assert!(check_encoding(b"# -*- coding: latin-1 -*-\nx = 'caf\xe9'\n", "x").is_ok());
        assert!(check_encoding(b"#!/usr/bin/python\n# coding=latin-1\n'\xe9'", "x").is_ok());
        assert!(check_encoding(b"1\n2\n# coding: latin-1\n'\xe9'", "x").is_err());
        assert!(check_encoding(b"coding = 1\n'\xe9'", "x").is_err());
        assert!(check_encoding("x = 'café'".as_bytes(), "x").is_ok());
    }
}
