//! Turns the snapshot into the artefact: exports every mutable global, drops
//! what no engine needs, and proves that memory and globals are all the state.
//!
//! Invariant: data segments stay active, so that an engine can map the module
//! as a copy-on-write image without knowing anything about this guest.

use anyhow::{Result, bail};
use serde::Serialize;
use std::collections::BTreeMap;
use wasm_encoder::reencode::{Reencode as _, RoundtripReencoder};
use wasm_encoder::{ExportKind, ExportSection, Module, RawSection};
use wasmparser::{DataKind, Operator, Parser, Payload, TypeRef, Validator, WasmFeatures};

/// The artefact and what a snapshot test pins about it.
pub(crate) struct Finished {
    /// The module.
    pub(crate) module: Vec<u8>,
    /// Its surface.
    pub(crate) surface: Surface,
}

/// What the module asks of a host and offers to it.
#[derive(Serialize)]
pub(crate) struct Surface {
    /// `module.name: type` of every import, in order of name.
    pub(crate) imports: Vec<String>,
    /// `name: kind` of every export, in order of name.
    pub(crate) exports: Vec<String>,
    /// The features the module does not validate without.
    pub(crate) features: Vec<String>,
    /// How often each operator occurs that changes more than memory contents.
    pub(crate) state_operators: BTreeMap<String, usize>,
    /// Pages of memory at the start.
    pub(crate) memory_pages: u64,
}

/// Adds the exports and drops custom sections.
///
/// # Errors
/// The module is malformed or holds state outside memory and globals.
pub(crate) fn finish(snapshot: &[u8]) -> Result<Finished> {
    let mut module = Module::new();
    let mut mutable = Vec::new();
    let mut global_imports = 0;
    for payload in Parser::new(0).parse_all(snapshot) {
        let payload = payload?;
        match &payload {
            Payload::ImportSection(reader) => {
                for import in reader.clone().into_imports() {
                    if matches!(import?.ty, TypeRef::Global(_)) {
                        global_imports += 1;
                    }
                }
            }
            Payload::GlobalSection(reader) => {
                for (index, global) in (global_imports..).zip(reader.clone()) {
                    if global?.ty.mutable {
                        mutable.push(index);
                    }
                }
            }
            Payload::ExportSection(reader) => {
                let mut exports = ExportSection::new();
                for export in reader.clone() {
                    let export = export?;
                    // The C code in the interpreter exports all it has.
                    if export.name == "memory" || export.name.starts_with("fh_") {
                        RoundtripReencoder.parse_export(&mut exports, export)?;
                    }
                }
                for index in &mutable {
                    exports.export(&format!("__fh_g{index}"), ExportKind::Global, *index);
                }
                module.section(&exports);
                continue;
            }
            Payload::CustomSection(_) => continue,
            _ => {}
        }
        if let Some((id, range)) = payload.as_section() {
            let Some(data) = snapshot.get(range) else {
                bail!("section {id} lies outside the module");
            };
            module.section(&RawSection { id, data });
        }
    }
    if mutable.is_empty() {
        bail!("no mutable global was found; the stack pointer must be one");
    }
    let module = module.finish();
    let surface = examine(&module)?;
    Ok(Finished { module, surface })
}

/// Lists the surface and refuses a module whose state is not all in sight.
///
/// # Errors
/// The module is malformed or holds state outside memory and globals.
pub(crate) fn examine(module: &[u8]) -> Result<Surface> {
    let features = needed_features(module)?;
    let mut surface = Surface {
        imports: Vec::new(),
        exports: Vec::new(),
        features,
        state_operators: BTreeMap::new(),
        memory_pages: 0,
    };
    for payload in Parser::new(0).parse_all(module) {
        match payload? {
            Payload::ImportSection(reader) => {
                for import in reader.into_imports() {
                    let import = import?;
                    let kind = match import.ty {
                        TypeRef::Func(_) => "function",
                        _ => bail!("{}.{} is no function", import.module, import.name),
                    };
                    surface.imports.push(format!("{}.{}: {kind}", import.module, import.name));
                }
            }
            Payload::ExportSection(reader) => {
                for export in reader {
                    let export = export?;
                    let kind = format!("{:?}", export.kind).to_lowercase();
                    surface.exports.push(format!("{}: {kind}", export.name));
                }
            }
            Payload::MemorySection(reader) => {
                for memory in reader {
                    surface.memory_pages += memory?.initial;
                }
            }
            Payload::DataSection(reader) => {
                for data in reader {
                    let data = data?;
                    if matches!(data.kind, DataKind::Passive) && !data.data.is_empty() {
                        bail!("a passive data segment holds {} bytes", data.data.len());
                    }
                }
            }
            Payload::CodeSectionEntry(body) => {
                for operator in body.get_operators_reader()? {
                    count(&operator?, &mut surface.state_operators);
                }
            }
            _ => {}
        }
    }
    surface.imports.sort();
    surface.exports.sort();
    let hidden = surface
        .state_operators
        .keys()
        .filter(|name| !matches!(name.as_str(), "global.set" | "memory.grow"));
    let hidden: Vec<_> = hidden.cloned().collect();
    if !hidden.is_empty() {
        bail!("the code changes state that a snapshot misses: {}", hidden.join(", "));
    }
    Ok(surface)
}

fn count(operator: &Operator<'_>, counts: &mut BTreeMap<String, usize>) {
    let name = match operator {
        Operator::GlobalSet { .. } => "global.set",
        Operator::MemoryGrow { .. } => "memory.grow",
        Operator::TableSet { .. } => "table.set",
        Operator::TableGrow { .. } => "table.grow",
        Operator::TableFill { .. } => "table.fill",
        Operator::TableCopy { .. } => "table.copy",
        Operator::TableInit { .. } => "table.init",
        Operator::ElemDrop { .. } => "elem.drop",
        Operator::MemoryInit { .. } => "memory.init",
        Operator::DataDrop { .. } => "data.drop",
        _ => return,
    };
    *counts.entry(name.to_owned()).or_default() += 1;
}

/// The features without which the module is not valid, in order of name.
fn needed_features(module: &[u8]) -> Result<Vec<String>> {
    let all = WasmFeatures::all();
    Validator::new_with_features(all).validate_all(module)?;
    let mut needed = Vec::new();
    for (name, feature) in all.iter_names() {
        // What the format itself always had is no feature to switch.
        let base = matches!(name, "FLOATS" | "GC_TYPES");
        if !base && Validator::new_with_features(all - feature).validate_all(module).is_err() {
            needed.push(name.to_lowercase().replace('_', "-"));
        }
    }
    needed.sort();
    Ok(needed)
}
