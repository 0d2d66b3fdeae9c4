//! What the guest artefact is and asks for, compared with committed snapshots,
//! and what the engine refuses to be asked for.
//!
//! The module is read here with `wasmparser` alone, not with the code that
//! built it. `FUMEHOOD_BLESS=1` rewrites the snapshots in `tests/pins/`.

use std::collections::BTreeSet;

use fumehood::{Engine, EngineError};
use libtest_mimic::{Failed, Trial};
use serde::Deserialize;
use wasmparser::{ExternalKind, Parser, Payload, TypeRef, Validator, WasmFeatures};

use crate::support::{read, root, same_text, tests};

#[path = "../../../xtask/src/guest/digest.rs"]
#[allow(dead_code, reason = "shared with the tool that builds the guest")]
mod digest;
#[path = "refused_modules.rs"]
mod refused_modules;

use refused_modules::{BASE, FEATURES, FOREIGN, WASI_FUNCTIONS};

/// The most the artefact may have, compressed.
const MOST_COMPRESSED_BYTES: usize = 13_000_000;

/// All cases.
pub fn trials() -> Vec<Trial> {
    let mut trials = vec![
        Trial::test("pin::imports", || pinned("imports.txt", &surface()?.imports)),
        Trial::test("pin::exports", || pinned("exports.txt", &surface()?.exports)),
        Trial::test("pin::features", || pinned("features.txt", &features()?)),
        Trial::test("pin::functions_the_host_offers", functions_the_host_offers),
        Trial::test("pin::only_wasi_and_the_one_call_are_imported", only_known_modules),
        Trial::test("pin::every_mutable_global_is_exported", every_mutable_global),
        Trial::test("pin::the_recorded_surface_is_the_modules", recorded_surface),
        Trial::test("pin::provenance_matches_the_sources", provenance_sources),
        Trial::test("pin::provenance_matches_the_artefact", provenance_artefact),
        Trial::test("pin::the_artefact_is_small", small),
        Trial::test("pin::every_unused_feature_has_a_refused_module", every_feature),
    ];
    for (name, imported, text) in FOREIGN {
        trials.push(Trial::test(format!("refused_import::{name}"), move || {
            let message = refusal(text)?;
            if message.contains(imported) {
                Ok(())
            } else {
                Err(format!("the refusal does not name `{imported}`: {message}").into())
            }
        }));
    }
    for (feature, text) in FEATURES {
        trials.push(Trial::test(format!("refused_feature::{feature}"), move || {
            let wasm = wat::parse_str(text).map_err(|error| error.to_string())?;
            let all = WasmFeatures::all();
            Validator::new_with_features(all)
                .validate_all(&wasm)
                .map_err(|error| error.to_string())?;
            // Whoever has `gc` has these types too.
            let implied =
                if *feature == "function_references" { WasmFeatures::GC } else { flag(feature) };
            let without = all - flag(feature) - implied;
            if Validator::new_with_features(without).validate_all(&wasm).is_ok() {
                return Err("the module does not need the feature; the case proves nothing".into());
            }
            refusal(text)?;
            Ok(())
        }));
    }
    trials.push(Trial::test("refused_feature::control_a_plain_module_is_accepted", || {
        let engine =
            engine_for(r#"(module (memory (export "memory") 1) (func (export "_start")))"#)?;
        engine.map(|_| ()).map_err(|error| error.to_string().into())
    }));
    trials
}

struct Surface {
    imports: Vec<String>,
    exports: Vec<String>,
    modules: BTreeSet<String>,
    mutable_globals: usize,
    exported_globals: usize,
}

fn module() -> Result<Vec<u8>, String> {
    fumehood::guest_module().map_err(|error| error.to_string())
}

fn surface() -> Result<Surface, String> {
    read_surface(&module()?).map_err(|error| error.to_string())
}

fn read_surface(module: &[u8]) -> Result<Surface, Box<dyn std::error::Error>> {
    let mut types = Vec::new();
    let mut surface = Surface {
        imports: Vec::new(),
        exports: Vec::new(),
        modules: BTreeSet::new(),
        mutable_globals: 0,
        exported_globals: 0,
    };
    for payload in Parser::new(0).parse_all(module) {
        match payload? {
            Payload::TypeSection(reader) => {
                for group in reader {
                    for one in group?.into_types() {
                        types.push(one.composite_type.inner.to_string());
                    }
                }
            }
            Payload::ImportSection(reader) => {
                for import in reader.into_imports() {
                    let import = import?;
                    let TypeRef::Func(index) = import.ty else {
                        return Err(
                            format!("{}.{} is no function", import.module, import.name).into()
                        );
                    };
                    let signature = &types[usize::try_from(index)?];
                    surface.modules.insert(import.module.to_owned());
                    surface.imports.push(format!("{}.{} {signature}", import.module, import.name));
                }
            }
            Payload::GlobalSection(reader) => {
                for global in reader {
                    surface.mutable_globals += usize::from(global?.ty.mutable);
                }
            }
            Payload::ExportSection(reader) => {
                for export in reader {
                    let export = export?;
                    surface.exported_globals += usize::from(export.kind == ExternalKind::Global);
                    surface.exports.push(format!("{:?} {}", export.kind, export.name));
                }
            }
            _ => {}
        }
    }
    surface.imports.sort();
    surface.exports.sort();
    Ok(surface)
}

/// The features without which the guest does not validate.
fn features() -> Result<Vec<String>, String> {
    let module = module()?;
    let all = WasmFeatures::all();
    Validator::new_with_features(all).validate_all(&module).map_err(|error| error.to_string())?;
    let mut needed: Vec<String> = all
        .iter_names()
        .filter(|(name, _)| !BASE.contains(name))
        .filter(|(_, one)| Validator::new_with_features(all - *one).validate_all(&module).is_err())
        .map(|(name, _)| name.to_lowercase())
        .collect();
    needed.sort();
    Ok(needed)
}

fn flag(name: &str) -> WasmFeatures {
    WasmFeatures::from_name(&name.to_uppercase()).unwrap_or_else(|| panic!("no feature {name}"))
}

fn pinned(file: &str, lines: &[String]) -> Result<(), Failed> {
    let path = tests("pins").join(file);
    let actual = lines.iter().map(|line| format!("{line}\n")).collect::<String>();
    if std::env::var_os("FUMEHOOD_BLESS").is_some() {
        std::fs::write(&path, &actual)?;
    }
    same_text(&read(&path), &actual).map_err(|difference| {
        format!("tests/pins/{file} is out of date; look at the change, then FUMEHOOD_BLESS=1\n{difference}")
            .into()
    })
}

fn only_known_modules() -> Result<(), Failed> {
    let modules: Vec<String> = surface()?.modules.into_iter().collect();
    if modules == ["fumehood", "wasi_snapshot_preview1"] {
        Ok(())
    } else {
        Err(format!("imports come from {modules:?}").into())
    }
}

fn every_mutable_global() -> Result<(), Failed> {
    let surface = surface()?;
    if surface.mutable_globals > 0 && surface.mutable_globals == surface.exported_globals {
        Ok(())
    } else {
        Err(format!(
            "{} globals are mutable and {} exported",
            surface.mutable_globals, surface.exported_globals
        )
        .into())
    }
}

/// Of all functions of WASI preview 1, those a module can link to here. More
/// than the guest imports is reach without a use.
fn functions_the_host_offers() -> Result<(), Failed> {
    let mut offered = Vec::new();
    for name in WASI_FUNCTIONS {
        // No function has this type, so one that is offered is refused for it.
        let text = format!(
            r#"(module (import "wasi_snapshot_preview1" "{name}" (func (param f32)))
                (memory (export "memory") 1) (func (export "_start")))"#
        );
        if !refusal(&text)?.contains("unknown import") {
            offered.push((*name).to_owned());
        }
    }
    let used: BTreeSet<String> = surface()?
        .imports
        .iter()
        .filter_map(|line| {
            line.strip_prefix("wasi_snapshot_preview1.")?.split(' ').next().map(str::to_owned)
        })
        .collect();
    let unknown: Vec<&String> =
        used.iter().filter(|name| !WASI_FUNCTIONS.contains(&name.as_str())).collect();
    if !unknown.is_empty() {
        return Err(format!("not functions of WASI preview 1: {unknown:?}").into());
    }
    pinned("offered.txt", &offered)
}

#[derive(Deserialize)]
struct Recorded {
    imports: Vec<String>,
    exports: Vec<String>,
    features: Vec<String>,
}

/// `guest/dist/surface.json` is written by the build; it must say the same.
fn recorded_surface() -> Result<(), Failed> {
    let recorded: Recorded = serde_json::from_str(&read(&root().join("guest/dist/surface.json")))?;
    let surface = surface()?;
    let names = |lines: &[String], at: usize| -> BTreeSet<String> {
        lines.iter().filter_map(|line| line.split(' ').nth(at).map(str::to_owned)).collect()
    };
    let recorded_names = |lines: &[String]| -> BTreeSet<String> {
        lines.iter().filter_map(|line| line.split(": ").next().map(str::to_owned)).collect()
    };
    assert_eq!(recorded_names(&recorded.imports), names(&surface.imports, 0));
    assert_eq!(recorded_names(&recorded.exports), names(&surface.exports, 1));
    let recorded: BTreeSet<String> =
        recorded.features.iter().map(|name| name.replace('-', "_")).collect();
    assert_eq!(recorded, features()?.into_iter().collect());
    Ok(())
}

#[derive(Deserialize)]
struct Provenance {
    source_sha256: String,
    lock_sha256: String,
    module: File,
    compressed: File,
}

#[derive(Deserialize)]
struct File {
    sha256: String,
    bytes: usize,
}

fn provenance() -> Result<Provenance, Failed> {
    Ok(serde_json::from_str(&read(&root().join("guest/dist/provenance.json")))?)
}

fn provenance_sources() -> Result<(), Failed> {
    let recorded = provenance()?;
    if digest::source_digest(root())? != recorded.source_sha256 {
        return Err(
            "the guest's sources changed and the artefact did not; run `cargo xtask guest`".into(),
        );
    }
    let lock = std::fs::read(root().join("guest/Cargo.lock"))?;
    if digest::digest(&lock) != recorded.lock_sha256 {
        return Err("guest/Cargo.lock is not the one the artefact was built with".into());
    }
    Ok(())
}

fn provenance_artefact() -> Result<(), Failed> {
    let recorded = provenance()?;
    let compressed = std::fs::read(root().join("guest/dist/guest.wasm.zst"))?;
    let module = module()?;
    assert_eq!(
        (digest::digest(&compressed), compressed.len()),
        (recorded.compressed.sha256.clone(), recorded.compressed.bytes)
    );
    assert_eq!(
        (digest::digest(&module), module.len()),
        (recorded.module.sha256, recorded.module.bytes)
    );
    assert_eq!(
        fumehood::GUEST_DIGEST,
        recorded.compressed.sha256,
        "the library embeds the committed artefact"
    );
    Ok(())
}

fn small() -> Result<(), Failed> {
    let bytes = std::fs::read(root().join("guest/dist/guest.wasm.zst"))?.len();
    if bytes <= MOST_COMPRESSED_BYTES {
        Ok(())
    } else {
        Err(format!("{bytes} bytes, at most {MOST_COMPRESSED_BYTES}").into())
    }
}

/// A new proposal in the parser shows up here until someone decides on it.
fn every_feature() -> Result<(), Failed> {
    let used = features()?;
    let undecided: Vec<String> = WasmFeatures::all()
        .iter_names()
        .map(|(name, _)| name.to_lowercase())
        .filter(|name| !BASE.contains(&name.to_uppercase().as_str()) && !used.contains(name))
        .filter(|name| !FEATURES.iter().any(|(feature, _)| feature == name))
        .collect();
    if undecided.is_empty() {
        Ok(())
    } else {
        Err(format!(
            "the guest does not use {undecided:?}, and no case shows that they are refused"
        )
        .into())
    }
}

fn engine_for(text: &str) -> Result<Result<Engine, EngineError>, String> {
    let wasm = wat::parse_str(text).map_err(|error| error.to_string())?;
    Ok(Engine::builder().module(wasm).build())
}

/// The engine's reason for refusing a module.
fn refusal(text: &str) -> Result<String, String> {
    match engine_for(text)? {
        Err(EngineError::Guest(reason)) => Ok(reason),
        Err(other) => Err(format!("refused for another reason: {other}")),
        Ok(_) => Err("the module was accepted".to_owned()),
    }
}
