//! Freezes the Python part of the guest: the standard library of
//! `rustpython-pylib`, minus what cannot work here, plus our own overlay.
//!
//! Why not the `freeze-stdlib` feature of `rustpython-pylib`: it freezes every
//! file there is. Invariant: modules are encoded in the order of their names,
//! so that two builds give the same bytes.

use rustpython_compiler::{CompileOpts, Mode, compile};
use rustpython_compiler_core::frozen::{FrozenCodeObject, FrozenLib, FrozenModule};
use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

/// Modules (with all they contain) that need what the sandbox does not have:
/// a display, a terminal, sockets served from inside, native extensions.
const LEFT_OUT: &[&str] = &[
    "_aix_support",
    "_android_support",
    "_apple_support",
    "_dummy_os",
    "_dummy_thread",
    "_ios_support",
    "_osx_support",
    "antigravity",
    "compileall",
    "ctypes",
    "dbm",
    "dummy_threading",
    "ensurepip",
    "ftplib",
    "idlelib",
    "imaplib",
    "mailbox",
    "modulefinder",
    "multiprocessing",
    "nturl2path",
    "poplib",
    "pty",
    "pydoc_data",
    "smtplib",
    "socketserver",
    "sqlite3",
    "ssl",
    "tkinter",
    "turtle",
    "turtledemo",
    "venv",
    "webbrowser",
    "wsgiref",
    "xmlrpc",
    "zipapp",
];

/// Bytes of the stack that Rust code keeps in linear memory. The interpreter
/// measures this one and raises `RecursionError` when it is nearly used up, so
/// it must run out before the 2 MiB of the host's WebAssembly stack do.
const STACK_BYTES: usize = 1 << 20;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

struct Source {
    path: PathBuf,
    package: bool,
}

fn main() -> Result<()> {
    let overlay = Path::new("python");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=python");
    println!("cargo:rustc-link-arg-cdylib=-zstack-size={STACK_BYTES}");

    let mut sources = BTreeMap::new();
    collect(Path::new(rustpython_pylib::LIB_PATH), "", &mut sources)?;
    sources.retain(|name, _| !is_left_out(name));
    collect(overlay, "", &mut sources)?;

    let mut modules = BTreeMap::new();
    for (name, source) in &sources {
        let text = fs::read_to_string(&source.path)?;
        let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
        let shown = format!("<frozen {name}>");
        let code = compile(text, Mode::Exec, &shown, CompileOpts::default())
            .map_err(|error| format!("{name}: {error}"))?;
        let code = FrozenCodeObject::encode(&code);
        modules.insert(name.as_str(), FrozenModule { code, package: source.package });
    }
    let library = FrozenLib::encode(modules.iter().map(|(name, module)| {
        let code = FrozenCodeObject { bytes: module.code.bytes.as_slice() };
        (*name, FrozenModule { code, package: module.package })
    }));
    let output = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
    fs::write(output.join("library.frozen"), &library.bytes)?;
    Ok(())
}

fn is_left_out(name: &str) -> bool {
    LEFT_OUT.iter().any(|left_out| {
        name.strip_prefix(left_out).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    })
}

/// Adds the modules below `directory` under the package name `parent`; a later
/// module replaces an earlier one of the same name.
fn collect(directory: &Path, parent: &str, sources: &mut BTreeMap<String, Source>) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let Some(stem) = path.file_stem().and_then(|stem| stem.to_str()) else {
            return Err(format!("{} is not a module name", path.display()).into());
        };
        let name = if parent.is_empty() { stem.to_owned() } else { format!("{parent}.{stem}") };
        if path.is_dir() {
            if stem != "__pycache__" {
                collect(&path, &name, sources)?;
            }
        } else if path.extension().is_some_and(|extension| extension == "py") {
            let package = stem == "__init__";
            let name = if package { parent.to_owned() } else { name };
            sources.insert(name, Source { path, package });
        }
    }
    Ok(())
}
