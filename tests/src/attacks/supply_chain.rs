//! C: what the guest and the engine are made of.
//!
//! Invariant: these attacks read the source tree; an installed copy without it
//! lists them as waiting.

use fumehood::{Engine, GUEST_DIGEST};
use sha2::{Digest, Sha256};

use crate::harness::{Attack, Attempt, Capability, Expected, Observed, machine};

fn in_source_tree(look: impl Fn(&std::path::Path) -> Observed) -> Observed {
    match machine::source_tree() {
        Some(tree) => look(&tree),
        None => Observed::waiting(Capability::SourceTree),
    }
}

/// Modules that reach the machine natively and have no place in the guest.
const NATIVE_MODULES: &str = "['ctypes', '_ctypes', 'multiprocessing', '_posixsubprocess', 'pty', 'resource', 'termios', 'mmap', 'ssl', '_ssl', 'sqlite3', 'dbm', 'socketserver', 'webbrowser', 'crypt', 'nis', 'spwd', 'syslog']";

/// Every attack of this kind.
pub(super) fn all() -> Vec<Attack> {
    let mut all = artefacts();
    all.extend(gates());
    all
}

fn artefacts() -> Vec<Attack> {
    vec![
        Attack::host("C-01", "the guest that runs is the artefact that is committed", |_, _| {
            in_source_tree(|tree| {
                let Some(artefact) = machine::read_bytes(&tree.join("guest/dist/guest.wasm.zst"))
                else {
                    return Observed::broken("there is no artefact");
                };
                let digest = Sha256::digest(&artefact)
                    .iter()
                    .fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
                Observed::fact(format!("same: {}", digest == GUEST_DIGEST))
            })
        })
        .no_control("the comparison itself is what is tried, and C-01b shows a difference")
        .expect(Expected::Harmless("same: true"), "the digest is taken when the runtime is built"),
        Attack::host(
            "C-01b",
            "a file of compiled code that was changed is not accepted",
            |world, _| {
                let file = world.path("compiled");
                if let Err(error) =
                    machine::write(&file, b"not compiled code, but long enough to have a footer")
                {
                    return Observed::broken(error.to_string());
                }
                match Engine::builder().compiled(&file).build() {
                    Err(error) => Observed::refused(error.to_string()),
                    Ok(_) => Observed::fact("accepted"),
                }
            },
        )
        .control(
            Attempt::Host(std::sync::Arc::new(|world, _| match world.stage().engine() {
                Ok(_) => Observed::fact("accepted"),
                Err(error) => Observed::broken(error),
            })),
            Expected::Harmless("accepted"),
        )
        .expect(
            Expected::Refused(&["compiled code"]),
            "the footer of a file of compiled code is checked before anything is mapped",
        ),
        Attack::host(
            "C-04",
            "the engine is not built without parts whose absence is known to end the process",
            |_, _| {
                in_source_tree(|tree| {
                    let manifest = machine::read(&tree.join("Cargo.toml")).unwrap_or_default();
                    let line = manifest.lines().find(|line| line.starts_with("wasmtime ="));
                    let there = line.is_some_and(|line| {
                        line.contains("\"gc\"") && line.contains("\"threads\"")
                    });
                    Observed::fact(format!("there: {there}"))
                })
            },
        )
        .no_control("the property is about a line of the manifest")
        .expect(
            Expected::Harmless("there: true"),
            "the proposals are switched off in the engine's settings instead",
        ),
        Attack::host("C-05", "the guest imports nothing but what this project wrote", |_, _| {
            let wasm = match fumehood::guest_module() {
                Ok(wasm) => wasm,
                Err(error) => return Observed::broken(error.to_string()),
            };
            let mut foreign = Vec::new();
            let mut known = 0_usize;
            for payload in wasmparser::Parser::new(0).parse_all(&wasm) {
                let Ok(wasmparser::Payload::ImportSection(imports)) = payload else { continue };
                for import in imports.into_imports() {
                    match import {
                        Ok(import)
                            if matches!(
                                (import.module, import.name),
                                ("wasi_snapshot_preview1", _) | ("fumehood", "call")
                            ) =>
                        {
                            known = known.saturating_add(1)
                        }
                        Ok(import) => foreign.push(format!("{}.{}", import.module, import.name)),
                        Err(error) => foreign.push(error.to_string()),
                    }
                }
            }
            Observed::fact(format!("some: {}, foreign: {foreign:?}", known > 5))
        })
        .no_control("a foreign import is shown to be refused by W-26")
        .expect(Expected::Harmless("some: true, foreign: []"), "the list of imports is pinned"),
    ]
}

fn gates() -> Vec<Attack> {
    vec![
        Attack::host(
            "C-02",
            "no known fault of a dependency is passed over without a date and a reason",
            |_, _| {
                in_source_tree(|tree| {
                    let text = machine::read(&tree.join("deny.toml")).unwrap_or_default();
                    let steps = machine::read(&tree.join("xtask/src/test.rs")).unwrap_or_default();
                    Observed::fact(format!(
                        "undated: {:?}, both workspaces are checked: {}",
                        undated(&text),
                        [r#"name: "advisories""#, r#"name: "advisories of the guest""#].iter().all(|step| steps.contains(step))
                    ))
                })
            },
        )
        .control(
            Attempt::Host(std::sync::Arc::new(|_, _| {
                let text = "[advisories]\nignore = [\"RUSTSEC-1\", { id = \"RUSTSEC-2\" }, { id = \"RUSTSEC-3\", reason = \"soon\" }]";
                Observed::fact(format!("{:?}", undated(text)))
            })),
            Expected::Harmless("[\"RUSTSEC-1\", \"RUSTSEC-2\", \"RUSTSEC-3\"]"),
        )
        .expect(
            Expected::Harmless("undated: [], both workspaces are checked: true"),
            "an exception is a line of a file that this looks at, and the check is a step of the test run",
        ),
        Attack::cell(
            "C-07",
            "no module that reaches the machine natively is in the guest",
            format!("import importlib\nfound = []\nfor name in {NATIVE_MODULES}:\n    try:\n        importlib.import_module(name)\n        found.append(name)\n    except ImportError:\n        pass\nprint(found)"),
        )
        .control_cell("import importlib\nprint(importlib.import_module('json').__name__)", "json")
        .expect(Expected::Harmless("[]"), "they are left out when the library is frozen"),
        Attack::cell(
            "C-07c",
            "the module for processes starts none",
            "import subprocess, os\ntold = []\nfor start in (lambda: subprocess.run(['/bin/true']), lambda: subprocess.Popen('true', shell=True), lambda: os.system('true'), lambda: os.fork(), lambda: os.execv('/bin/true', ['true'])):\n    try:\n        start()\n        told.append('started')\n    except (OSError, RuntimeError, NotImplementedError, AttributeError):\n        pass\nprint(told)",
        )
        .control_cell("import subprocess\nprint(subprocess.PIPE)", "-1")
        .expect(Expected::Harmless("[]"), "the guest has no process to start"),
    ]
}

/// Exceptions for advisories whose reason does not begin with a date.
fn undated(text: &str) -> Vec<String> {
    let Ok(config) = text.parse::<toml::Table>() else { return vec!["not TOML".to_owned()] };
    let ignored = config.get("advisories").and_then(|section| section.get("ignore"));
    let Some(ignored) = ignored.and_then(toml::Value::as_array) else {
        return vec!["no list".to_owned()];
    };
    let dated = |reason: &str| {
        let date = reason.split(':').next().unwrap_or_default();
        date.len() == 10
            && date.split('-').count() == 3
            && date.chars().all(|c| c.is_ascii_digit() || c == '-')
            && reason.len() > 30
    };
    ignored
        .iter()
        .filter(|entry| !entry.get("reason").and_then(toml::Value::as_str).is_some_and(dated))
        .map(|entry| {
            let id = entry.get("id").and_then(toml::Value::as_str).or(entry.as_str());
            id.unwrap_or("an entry without an id").to_owned()
        })
        .collect()
}
