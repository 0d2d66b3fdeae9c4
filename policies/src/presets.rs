//! Policies that come with the build.
//!
//! Invariant: each is a commented file that parses and whose examples hold; a
//! test reads them.

/// A policy that comes with the build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preset {
    /// Its name.
    pub name: &'static str,
    /// Its text.
    pub text: &'static str,
}

/// Every preset.
pub const PRESETS: &[Preset] = &[
    Preset { name: "strict", text: include_str!("../presets/strict.toml") },
    Preset { name: "open-read", text: include_str!("../presets/open-read.toml") },
    Preset { name: "workspace", text: include_str!("../presets/workspace.toml") },
];

/// The preset of that name.
#[must_use]
pub fn preset(name: &str) -> Option<&'static Preset> {
    PRESETS.iter().find(|preset| preset.name == name)
}
