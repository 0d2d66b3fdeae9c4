//! Files that the user names on the command line.
//!
//! Invariant: they are read once, through one handle, and never past a limit.
#![allow(clippy::disallowed_methods, reason = "this module reads what the user named")]

use std::ffi::OsStr;
use std::fs::File;
use std::io::{ErrorKind, Read, Write as _};
use std::path::{Path, PathBuf};

use crate::error::CliError;

/// Reads a file, or standard input if it is named `-`.
///
/// # Errors
/// One sentence with the file's `role`, such as "the program".
pub(crate) fn read(name: &OsStr, role: &str, limit: usize) -> Result<Vec<u8>, CliError> {
    if name == "-" {
        return read_bounded(std::io::stdin().lock(), "standard input", role, limit, LARGE_DATA);
    }
    read_file(Path::new(name), role, limit)
}

/// What to do with data that is too large to be handed over.
const LARGE_DATA: &str = "mount a directory and open the file from the program";

/// Reads the text of a policy.
///
/// # Errors
/// One sentence.
pub(crate) fn read_policy(path: &Path, limit: usize) -> Result<Vec<u8>, CliError> {
    read_to(path, "the policy", limit, "shorten it")
}

/// Reads a file.
///
/// # Errors
/// One sentence with the file's `role`.
pub(crate) fn read_file(path: &Path, role: &str, limit: usize) -> Result<Vec<u8>, CliError> {
    read_to(path, role, limit, LARGE_DATA)
}

fn read_to(path: &Path, role: &str, limit: usize, remedy: &str) -> Result<Vec<u8>, CliError> {
    let shown = path.display().to_string();
    let file = File::open(path).map_err(|error| unreadable(&shown, role, &error))?;
    let is_directory = file.metadata().is_ok_and(|metadata| metadata.is_dir());
    if is_directory {
        return Err(CliError::usage(format!("{role} `{shown}` is a directory; name a file")));
    }
    read_bounded(file, &shown, role, limit, remedy)
}

fn read_bounded(
    from: impl Read,
    shown: &str,
    role: &str,
    limit: usize,
    remedy: &str,
) -> Result<Vec<u8>, CliError> {
    let mut bytes = Vec::new();
    let most = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
    from.take(most).read_to_end(&mut bytes).map_err(|error| unreadable(shown, role, &error))?;
    if bytes.len() > limit {
        return Err(CliError::usage(format!(
            "{role} `{shown}` has more than {} MiB; {remedy}",
            limit >> 20
        )));
    }
    Ok(bytes)
}

fn unreadable(shown: &str, role: &str, error: &std::io::Error) -> CliError {
    CliError::usage(match error.kind() {
        ErrorKind::NotFound => format!("{role} `{shown}` does not exist; check the path"),
        ErrorKind::PermissionDenied => {
            format!("{role} `{shown}` may not be read by this user; change its permissions")
        }
        ErrorKind::IsADirectory => format!("{role} `{shown}` is a directory; name a file"),
        _ => format!("{role} `{shown}` cannot be read ({error}); check the path"),
    })
}

/// Says why `directory` cannot be mounted, before anything takes long; the
/// library opens and checks it again.
///
/// # Errors
/// One sentence.
pub(crate) fn check_directory(directory: &Path) -> Result<(), CliError> {
    let shown = directory.display();
    let metadata = std::fs::metadata(directory).map_err(|error| {
        let hint = match directory.to_str().and_then(|text| text.rsplit_once(':')) {
            Some((_, access)) if !access.contains('/') => {
                "; the access after the colon is `ro` or `rw`"
            }
            _ => "; check the path after `=`",
        };
        let what = match error.kind() {
            ErrorKind::NotFound => "does not exist".to_owned(),
            _ => format!("cannot be opened ({error})"),
        };
        CliError::usage(format!("the directory `{shown}` to mount {what}{hint}"))
    })?;
    if metadata.is_dir() {
        Ok(())
    } else {
        Err(CliError::usage(format!("`{shown}` is not a directory; mount the directory it is in")))
    }
}

/// Says why `path` cannot be an input, before anything takes long; the library
/// opens and checks it again.
///
/// # Errors
/// One sentence.
pub(crate) fn check_input(path: &Path) -> Result<(), CliError> {
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() || metadata.is_file() => Ok(()),
        Ok(_) => Err(CliError::usage(format!(
            "the input `{}` is neither a file nor a directory; name one",
            path.display()
        ))),
        Err(error) => Err(unreadable(&path.display().to_string(), "the input", &error)),
    }
}

/// Makes a file of this user's own; it is removed again if `write` fails.
///
/// # Errors
/// One sentence with the file's `role`, or that of `write`.
pub(crate) fn write_new(
    path: &Path,
    role: &str,
    write: impl FnOnce(File) -> Result<(), CliError>,
) -> Result<(), CliError> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let file = File::options().write(true).create_new(true).mode(0o600).open(path);
    let file = file.map_err(|error| {
        CliError::usage(format!(
            "{role} `{}` cannot be made ({error}); name a file that is not there yet",
            path.display()
        ))
    })?;
    write(file).inspect_err(|_| {
        let _ = std::fs::remove_file(path);
    })
}

/// Opens a file that the user named, to read it.
///
/// # Errors
/// The system's reason.
pub(crate) fn open(path: &Path) -> std::io::Result<File> {
    File::open(path)
}

/// The path with every link resolved.
pub(crate) fn canonical(path: &Path) -> Option<PathBuf> {
    std::fs::canonicalize(path).ok()
}

/// The same for a path that may not be there yet: links are resolved as far as
/// it is.
pub(crate) fn canonical_so_far(path: &Path) -> Option<PathBuf> {
    let path = std::path::absolute(path).ok()?;
    path.ancestors().find_map(|above| {
        let rest = path.strip_prefix(above).ok()?;
        Some(canonical(above)?.join(rest))
    })
}

/// Size of a regular file, `None` if there is none.
pub(crate) fn size(path: &Path) -> std::io::Result<Option<u64>> {
    match std::fs::symlink_metadata(path) {
        Ok(metadata) => Ok(Some(metadata.len())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether there is a directory.
pub(crate) fn is_directory(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.is_dir())
}

/// The files of `directory` whose name ends in `.py`, sorted.
///
/// # Errors
/// One sentence.
pub(crate) fn python_files(directory: &Path) -> Result<Vec<PathBuf>, CliError> {
    let failed = |error: std::io::Error| {
        CliError::usage(format!(
            "the directory `{}` of programs cannot be read ({error}); name one with --programs",
            directory.display()
        ))
    };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|extension| extension == "py") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Replaces a file whole; a link keeps leading to it, and it keeps its mode.
///
/// # Errors
/// The file is then as it was.
pub(crate) fn replace(file: &Path, text: &str) -> std::io::Result<()> {
    let there = canonical(file);
    let file = there.as_deref().unwrap_or(file);
    let directory = file.parent().filter(|parent| !parent.as_os_str().is_empty());
    let mut whole = tempfile::NamedTempFile::new_in(directory.unwrap_or(Path::new(".")))?;
    if there.is_some() {
        let mode = std::fs::metadata(file)?.permissions();
        whole.as_file().set_permissions(mode)?;
    }
    whole.write_all(text.as_bytes())?;
    whole.persist(file)?;
    Ok(())
}

/// The names in a directory; none if it cannot be read.
pub(crate) fn names(directory: &Path) -> impl Iterator<Item = std::ffi::OsString> {
    std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.file_name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_never_read_past_its_limit() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("f");
        std::fs::write(&file, b"12345").unwrap();
        assert_eq!(read_file(&file, "the file", 5).unwrap(), b"12345");
        assert!(read_file(&file, "the file", 4).unwrap_err().message.contains("more than"));
        assert!(read_file(Path::new("/dev/zero"), "the file", 1 << 20).is_err());
        assert!(
            read_file(directory.path(), "the file", 5).unwrap_err().message.contains("directory")
        );
    }
}
