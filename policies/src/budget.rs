//! Budgets as numbers.
//!
//! What: [`BudgetLimits`] has every number of a session; [`BudgetSettings`] is
//! what a policy or the command line names; [`BudgetPreset`] names three sets.
//! Why: the numbers are data that documentation, `check` and `diff` read.
//!
//! Invariant: every number has a value; settings of a narrowing side can only
//! lower it.

use std::collections::BTreeMap;

/// A named set of numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum BudgetPreset {
    /// For graders and many small programs.
    Small,
    /// For one agent session.
    #[default]
    Default,
    /// For long work.
    Large,
}

impl BudgetPreset {
    /// Every preset with its name in policy text.
    pub const ALL: [(&'static str, Self); 3] =
        [("small", Self::Small), ("default", Self::Default), ("large", Self::Large)];

    /// The name in policy text.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Small => "small",
            Self::Default => "default",
            Self::Large => "large",
        }
    }

    /// The preset of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find_map(|(known, preset)| (*known == name).then_some(*preset))
    }
}

/// One number of a budget: its key in policy text, the unit of that key in the
/// unit it is kept in, its bounds and its presets, all in the kept unit.
#[derive(Clone, Copy, Debug)]
pub struct BudgetNumber {
    /// Key in policy text.
    pub key: &'static str,
    /// What one of the key's unit is in the unit it is kept in.
    pub scale: u64,
    /// The least that is accepted.
    pub least: u64,
    /// The most that is accepted.
    pub most: u64,
    /// In the presets small, default and large.
    pub presets: [u64; 3],
    /// What it bounds, and what happens at the bound.
    pub meaning: &'static str,
}

const K: u64 = 1 << 10;
const M: u64 = 1 << 20;
const G: u64 = 1 << 30;
const DAY_MS: u64 = 24 * 60 * 60 * 1000;

macro_rules! budget_numbers {
    ($($field:ident, $key:literal, $scale:expr, [$least:expr, $most:expr], [$small:expr, $default:expr, $large:expr], $meaning:literal;)*) => {
        /// Every number of a session's budget.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct BudgetLimits {
            $(#[doc = $meaning] pub $field: u64,)*
            /// Calls of single tools; at it the call is denied.
            pub tool_calls: BTreeMap<String, u64>,
        }

        /// The numbers that a policy or the command line names.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct BudgetSettings {
            /// The set that the numbers start from.
            pub preset: Option<BudgetPreset>,
            $(#[doc = $meaning] pub $field: Option<u64>,)*
            /// Calls of single tools.
            pub tool_calls: BTreeMap<String, u64>,
        }

        /// Every number, in the order of the documentation.
        pub const BUDGET_NUMBERS: &[BudgetNumber] = &[$(BudgetNumber {
            key: $key, scale: $scale, least: $least, most: $most, presets: [$small, $default, $large], meaning: $meaning,
        },)*];

        impl BudgetLimits {
            /// The numbers of a preset.
            #[must_use]
            pub fn preset(preset: BudgetPreset) -> Self {
                match preset {
                    BudgetPreset::Small => Self { $($field: $small,)* tool_calls: BTreeMap::new() },
                    BudgetPreset::Default => Self { $($field: $default,)* tool_calls: BTreeMap::new() },
                    BudgetPreset::Large => Self { $($field: $large,)* tool_calls: BTreeMap::new() },
                }
            }

            /// Keys and values, in the order of [`BUDGET_NUMBERS`].
            pub fn entries(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$(($key, self.$field),)*].into_iter()
            }

            /// Takes every number that the settings name, larger or smaller.
            pub(crate) fn replace(&mut self, settings: &BudgetSettings) {
                if let Some(preset) = settings.preset {
                    *self = Self::preset(preset);
                }
                $(self.$field = settings.$field.unwrap_or(self.$field);)*
                self.tool_calls.extend(settings.tool_calls.clone());
            }

            /// Lowers every number to what the settings name, and returns what
            /// they named that would have been more: key, asked, kept.
            pub(crate) fn narrow(&mut self, settings: &BudgetSettings) -> Vec<(String, u64, u64)> {
                let mut refused = Vec::new();
                let preset = settings.preset.map(Self::preset);
                $(
                    let asked = settings.$field.or(preset.as_ref().map(|preset| preset.$field));
                    if let Some(asked) = asked {
                        if asked > self.$field && settings.$field.is_some() {
                            refused.push(($key.to_owned(), asked, self.$field));
                        }
                        self.$field = self.$field.min(asked);
                    }
                )*
                for (tool, asked) in &settings.tool_calls {
                    let kept = self.tool_calls.entry(tool.clone()).or_insert(*asked);
                    if *asked > *kept {
                        refused.push((format!("tool_calls.{tool}"), *asked, *kept));
                    }
                    *kept = (*kept).min(*asked);
                }
                refused
            }
        }

        impl BudgetSettings {
            /// The lower of both for every number that one of them names.
            #[must_use]
            pub fn tightened_by(mut self, other: &Self) -> Self {
                let (own, others) =
                    (self.preset.map(BudgetLimits::preset), other.preset.map(BudgetLimits::preset));
                $(
                    let own_number = self.$field.or(own.as_ref().map(|preset| preset.$field));
                    let other_number = other.$field.or(others.as_ref().map(|preset| preset.$field));
                    self.$field = own_number.into_iter().chain(other_number).min();
                )*
                // Every number of a preset is named now.
                self.preset = None;
                for (tool, calls) in &other.tool_calls {
                    let kept = self.tool_calls.entry(tool.clone()).or_insert(*calls);
                    *kept = (*kept).min(*calls);
                }
                self
            }

            /// Sets a number by its key, in the unit it is kept in. `false` if
            /// there is no such key.
            pub fn set(&mut self, key: &str, value: u64) -> bool {
                match key {
                    $($key => self.$field = Some(value),)*
                    _ => return false,
                }
                true
            }

            /// The value of a key, if it is named.
            #[must_use]
            pub fn get(&self, key: &str) -> Option<u64> {
                match key {
                    $($key => self.$field,)*
                    _ => None,
                }
            }
        }
    };
}

budget_numbers! {
    wall_ms, "wall_s", 1000, [1, 30 * DAY_MS], [10_000, 60_000, 600_000], "Wall-clock time of a run in milliseconds (seconds in policy text), waiting included; at it the run ends with `timeout`.";
    cpu_ms, "cpu_s", 1000, [1, 30 * DAY_MS], [5_000, 60_000, 600_000], "Processor time of a run in milliseconds (seconds in policy text); at it the run ends with `timeout`.";
    memory_bytes, "memory_mb", M, [64 * M, 4 * G], [256 * M, 512 * M, 2 * G], "Linear memory of the guest in bytes (MiB in policy text); growth beyond it fails.";
    host_calls, "host_calls", 1, [1, u64::MAX], [1_000_000, 50_000_000, 500_000_000], "Calls of the host; at it the run ends with `budget_exceeded`.";
    read_bytes, "read_bytes", 1, [0, u64::MAX], [G, 64 * G, 1024 * G], "Bytes read from files; at it reads are denied.";
    written_bytes, "written_bytes", 1, [0, u64::MAX], [256 * M, 16 * G, 256 * G], "Bytes written to files; at it writes are denied.";
    created_bytes, "created_bytes", 1, [0, u64::MAX], [64 * M, 256 * M, 2 * G], "Bytes of the in-memory tree; at it writes fail with `ENOSPC`.";
    created_entries, "created_entries", 1, [0, u64::MAX], [100_000, 1_000_000, 10_000_000], "Files, directories and links created in any mount; at it creation is denied.";
    inodes, "inodes", 1, [0, u64::MAX], [10_000, 100_000, 1_000_000], "Inodes of the in-memory tree; at it creation fails with `ENOSPC`.";
    random_bytes, "random_bytes", 1, [0, u64::MAX], [16 * M, 256 * M, 4 * G], "Random bytes; at it the run ends with `budget_exceeded`.";
    output_bytes, "output_bytes", 1, [0, u64::MAX], [M, 10 * M, 64 * M], "Bytes of stdout and of stderr, each, of a run; what is beyond is dropped and counted.";
    tool_calls_total, "tool_calls_total", 1, [0, u64::MAX], [1_000, 10_000, 1_000_000], "Calls of all tools together; at it the call is denied.";
    denials, "denials", 1, [1, u64::MAX], [100, 200, 1_000], "Distinct denials kept in a result; further ones are counted.";
    requests, "requests", 1, [0, u64::MAX], [20, 1_000, 100_000], "Network requests; at it the request is denied.";
    distinct_hosts, "distinct_hosts", 1, [0, u64::MAX], [5, 50, 1_000], "Different hosts of network requests; at it the request is denied.";
    bytes_up, "bytes_up", 1, [0, u64::MAX], [64 * K, 64 * M, 4 * G], "Bytes sent over the network; at it the request is denied.";
    bytes_down, "bytes_down", 1, [0, u64::MAX], [16 * M, G, 64 * G], "Bytes received over the network; at it the response is cut and the call fails.";
}

impl Default for BudgetLimits {
    fn default() -> Self {
        Self::preset(BudgetPreset::Default)
    }
}

impl BudgetSettings {
    /// Whether nothing is named.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl From<BudgetPreset> for BudgetSettings {
    fn from(preset: BudgetPreset) -> Self {
        Self { preset: Some(preset), ..Self::default() }
    }
}

/// The number of that key.
#[must_use]
pub fn budget_number(key: &str) -> Option<&'static BudgetNumber> {
    BUDGET_NUMBERS.iter().find(|number| number.key == key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_are_within_their_bounds_and_ordered() {
        for number in BUDGET_NUMBERS {
            let [small, default, large] = number.presets;
            assert!(
                number.least <= small && small < default && default < large && large <= number.most,
                "{}",
                number.key
            );
        }
    }

    #[test]
    fn narrowing_lowers_and_says_what_it_refused() {
        let mut limits = BudgetLimits::default();
        let mut settings =
            BudgetSettings { preset: Some(BudgetPreset::Large), ..BudgetSettings::default() };
        assert!(limits.narrow(&settings).is_empty());
        assert_eq!(limits, BudgetLimits::default());
        assert!(
            settings.set("wall_s", 61_000)
                && settings.set("cpu_s", 1_000)
                && !settings.set("wall", 1)
        );
        assert_eq!(limits.narrow(&settings), vec![("wall_s".to_owned(), 61_000, 60_000)]);
        assert_eq!((limits.wall_ms, limits.cpu_ms), (60_000, 1_000));
    }

    #[test]
    fn the_tighter_of_two_settings_has_the_lower_of_every_number() {
        let mut named = BudgetSettings::from(BudgetPreset::Small);
        named.wall_ms = Some(50_000);
        named.tool_calls = [("a".to_owned(), 5), ("b".to_owned(), 5)].into();
        let other = BudgetSettings {
            wall_ms: Some(20_000),
            host_calls: Some(7),
            tool_calls: [("b".to_owned(), 2), ("c".to_owned(), 9)].into(),
            ..BudgetSettings::default()
        };
        let tight = named.clone().tightened_by(&other);
        assert_eq!(tight, other.clone().tightened_by(&named));
        let mut limits = BudgetLimits::preset(BudgetPreset::Large);
        limits.replace(&tight);
        let mut one_by_one = BudgetLimits::preset(BudgetPreset::Large);
        one_by_one.narrow(&named);
        one_by_one.narrow(&other);
        assert_eq!(limits, one_by_one);
        assert_eq!((limits.wall_ms, limits.host_calls, limits.cpu_ms), (20_000, 7, 5_000));
        let nothing = BudgetSettings::default();
        assert!(nothing.clone().tightened_by(&nothing).is_empty());
    }
}
