//! `fumehood cache`.

use std::path::{Path, PathBuf};

use fumehood::{CompiledFooter, EngineError};
use rustix::fs::{AtFlags, Mode, OFlags};
use serde_json::{Value, json};

use crate::args::Cache;
use crate::error::{BAD_FINDING, CliError};
use crate::progress::{COMPILING_BOTH, Waiting};
use crate::{files, output};

/// Runs a cache command and returns the exit code.
///
/// # Errors
/// One sentence.
pub(crate) fn run(which: &Cache) -> Result<i32, CliError> {
    match which {
        Cache::Info { json } => info(*json),
        Cache::Build { out, json } => build(out, *json),
        Cache::Verify { file, json } => verify(file.as_deref(), *json),
        Cache::Clear { json } => clear(*json),
    }
}

/// The user's directory for compiled code and this version's file in it.
fn location(deterministic: bool) -> Result<(PathBuf, String), CliError> {
    fumehood::cache_location(deterministic)?.ok_or_else(|| {
        CliError::cannot_tell(
            "there is no place for a cache because FUMEHOOD_CACHE_DIR is not set, and neither \
             XDG_CACHE_HOME nor HOME is an absolute path; set FUMEHOOD_CACHE_DIR",
        )
    })
}

fn size(path: &Path) -> Result<Option<u64>, CliError> {
    files::size(path).map_err(|error| {
        CliError::cannot_tell(format!("{}: {error}; check its permissions", path.display()))
    })
}

fn info(as_json: bool) -> Result<i32, CliError> {
    let (directory, name) = location(false)?;
    let (_, counting) = location(true)?;
    let (file, counting_file) = (directory.join(&name), directory.join(&counting));
    let (bytes, counting_bytes) = (size(&file)?, size(&counting_file)?);
    if as_json {
        let _ = output::print_json(&json!({
            "directory": directory.to_string_lossy(),
            "file": file.to_string_lossy(),
            "bytes": bytes,
            "guest": fumehood::GUEST_DIGEST,
            "deterministic": {
                "file": counting_file.to_string_lossy(),
                "bytes": counting_bytes,
            },
        }));
    } else {
        let state = |bytes: Option<u64>, next: &str| match bytes {
            Some(bytes) => format!("{bytes} bytes; `fumehood cache verify` checks them"),
            None => format!("not there yet; the next {next} compiles it"),
        };
        output::print(&format!(
            "directory {}\nguest     {}\nfile      {name}\ncompiled  {}\n\
             file      {counting}, for --deterministic\ncompiled  {}\n",
            directory.display(),
            fumehood::GUEST_DIGEST,
            state(bytes, "run"),
            state(counting_bytes, "run with --deterministic"),
        ));
    }
    Ok(0)
}

fn build(out: &Path, as_json: bool) -> Result<i32, CliError> {
    let shown = out.display();
    if files::is_directory(out) {
        return Err(CliError::usage(format!("`{shown}` is a directory; name a file with --out")));
    }
    let parent = out.parent().filter(|parent| !parent.as_os_str().is_empty());
    if parent.is_some_and(|parent| !files::is_directory(parent)) {
        return Err(CliError::usage(format!(
            "the directory of `{shown}` does not exist; make it first"
        )));
    }
    let waiting = Waiting::start(COMPILING_BOTH);
    let built = fumehood::build_compiled(out);
    drop(waiting);
    let footer = built.map_err(|error| match error {
        EngineError::File { .. } => {
            CliError::cannot_tell(format!("{error}; name a file that can be written with --out"))
        }
        other => other.into(),
    })?;
    describe(
        out,
        &footer,
        as_json,
        &format!("made {shown}; use it with `fumehood run --compiled {shown}`"),
    );
    Ok(0)
}

fn describe(file: &Path, footer: &CompiledFooter, as_json: bool, text: &str) {
    if as_json {
        let mut object = json!({ "file": file.to_string_lossy(), "good": true });
        if let (Value::Object(object), Ok(Value::Object(footer))) =
            (&mut object, serde_json::to_value(footer))
        {
            object.extend(footer);
        }
        let _ = output::print_json(&object);
    } else {
        output::print(&format!("{text}\n"));
    }
}

fn verify(file: Option<&Path>, as_json: bool) -> Result<i32, CliError> {
    let Some(file) = file else { return verify_cache(as_json) };
    if size(file)?.is_none() {
        let shown = file.display();
        return Err(CliError::usage(format!("`{shown}` does not exist; check the path")));
    }
    verify_file(file, as_json)
}

/// Checks every file of this version in the user's cache.
fn verify_cache(as_json: bool) -> Result<i32, CliError> {
    let mut worst = None;
    for deterministic in [false, true] {
        let (directory, name) = location(deterministic)?;
        let path = directory.join(name);
        if size(&path)?.is_some() {
            worst = worst.max(Some(verify_file(&path, as_json)?));
        }
    }
    match worst {
        Some(code) => Ok(code),
        None => Err(CliError::cannot_tell(format!(
            "there is no compiled code in {} yet; the next run makes it",
            location(false)?.0.display()
        ))),
    }
}

fn verify_file(path: &Path, as_json: bool) -> Result<i32, CliError> {
    match fumehood::verify_compiled(path) {
        Ok(footer) => {
            describe(path, &footer, as_json, &format!("{} is good", path.display()));
            Ok(0)
        }
        Err(EngineError::Compiled { reason, .. }) => {
            if as_json {
                let _ = output::print_json(&json!({
                    "file": path.to_string_lossy(), "good": false, "reason": reason,
                }));
            } else {
                output::note(&format!(
                    "{} is not good: {reason}; remove it, it will be made again when it is needed",
                    path.display()
                ));
            }
            Ok(BAD_FINDING)
        }
        Err(other) => Err(CliError::cannot_tell(other.to_string())),
    }
}

fn clear(as_json: bool) -> Result<i32, CliError> {
    let (directory, _) = location(false)?;
    let failed = |error: rustix::io::Errno| {
        CliError::cannot_tell(format!(
            "compiled code in {} could not be removed ({error}); remove the directory yourself",
            directory.display()
        ))
    };
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
    let mut removed = Vec::new();
    match rustix::fs::open(&directory, flags, Mode::empty()) {
        Err(rustix::io::Errno::NOENT) => {}
        Err(error) => return Err(failed(error)),
        Ok(handle) => {
            for entry in rustix::fs::Dir::read_from(&handle).map_err(failed)? {
                let entry = entry.map_err(failed)?;
                let Ok(name) = entry.file_name().to_str() else { continue };
                if is_ours(name) {
                    rustix::fs::unlinkat(&handle, name, AtFlags::empty()).map_err(failed)?;
                    removed.push(name.to_owned());
                }
            }
        }
    }
    removed.sort();
    if as_json {
        let _ = output::print_json(&json!({
            "directory": directory.to_string_lossy(), "removed": removed,
        }));
    } else {
        output::print(&format!(
            "removed {} of {}\n",
            match removed.len() {
                1 => "1 file".to_owned(),
                many => format!("{many} files"),
            },
            directory.display()
        ));
    }
    Ok(0)
}

/// Whether the cache gave a file this name: two short digests and `.code`,
/// perhaps still being written.
fn is_ours(name: &str) -> bool {
    let Some((digests, rest)) = name.split_once('.') else { return false };
    let is_digest =
        |text: &str| text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    digests.split_once('-').is_some_and(|(guest, engine)| is_digest(guest) && is_digest(engine))
        && (rest == "code" || (rest.starts_with("code.") && rest.ends_with(".tmp")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_the_cache_are_removed() {
        assert!(is_ours("0123456789abcdef-0123456789abcdef.code"));
        assert!(is_ours("0123456789abcdef-0123456789abcdef.code.17-0f1e2d3c.tmp"));
        for other in ["x.code", "notes.txt", "0123456789abcdef-0123456789abcdef.code.bak", ".."] {
            assert!(!is_ours(other), "{other}");
        }
    }
}
