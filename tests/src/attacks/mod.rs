//! Every attack, as data, and the catalogue they answer to.
//!
//! Invariant: each case of the catalogue is an attack here or waits for a
//! named capability; `harness::check_suite` says which is neither.

mod audit;
mod broker;
mod determinism;
mod engine;
mod isolation;
mod links;
mod native;
mod network;
mod paths;
mod projects;
mod python;
mod resources;
mod sessions;
mod supply_chain;
mod wasi_calls;
mod wasi_descriptors;
mod wasi_paths;

use crate::harness::{Attack, Capability, Tier};

/// The cases that this suite has to answer, in the words they were given.
const CATALOGUE: &str = include_str!("catalogue.md");

/// Every attack.
#[must_use]
pub fn all() -> Vec<Attack> {
    let mut all = wasi_paths::all();
    all.extend(wasi_descriptors::all());
    all.extend(wasi_calls::all());
    all.extend(engine::all());
    all.extend(paths::all());
    all.extend(links::all());
    all.extend(projects::all());
    all.extend(python::all());
    all.extend(resources::all());
    all.extend(isolation::all());
    all.extend(broker::all());
    all.extend(determinism::all());
    all.extend(sessions::all());
    all.extend(supply_chain::all());
    all.extend(audit::all());
    all.extend(network::all());
    all.extend(native::all());
    all
}

/// The ids of the catalogue and what each says.
#[must_use]
pub fn catalogue() -> Vec<(&'static str, &'static str)> {
    CATALOGUE.lines().filter_map(|line| line.strip_prefix("- ")?.split_once(' ')).collect()
}

/// Cases of the catalogue whose capability is not there yet.
#[must_use]
pub fn waiting() -> Vec<(&'static str, Tier, Capability)> {
    let attacks = all();
    let named = [
        paths::WAITING,
        python::WAITING,
        resources::WAITING,
        // Bind the adapter for other systems; W-08b and W-10b hold here.
        &[("W-08", Capability::WindowsFiles), ("W-10", Capability::WindowsFiles)],
    ]
    .concat();
    let of_section = |id: &str| match id.split('-').next() {
        Some("X") => Some(Capability::Secrets),
        Some("S") => Some(Capability::Sessions),
        Some("H") => Some(Capability::Server),
        _ => None,
    };
    catalogue()
        .into_iter()
        .filter(|(id, _)| !attacks.iter().any(|attack| attack.id == *id))
        .filter_map(|(id, _)| {
            let by_name =
                named.iter().find(|(name, _)| *name == id).map(|(_, capability)| *capability);
            Some((id, Tier::Wasm, by_name.or_else(|| of_section(id))?))
        })
        .chain(native::WAITING.iter().copied())
        .collect()
}
