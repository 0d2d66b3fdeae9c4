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

/// Every attack of this kind.
pub(super) fn all() -> Vec<Attack> {
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

/// Cases of this section whose capability is not there.
pub(super) const WAITING: &[(&str, Capability)] =
    &[("C-02", Capability::SupplyChainGate), ("C-07", Capability::SupplyChainGate)];
