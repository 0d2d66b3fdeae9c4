//! Every limit of the broker, as a number.
//!
//! What: [`Limits`] has every number, and [`Limits::entries`] lists them for
//! `docs/limits.md`, which a test compares with this table both ways.
//!
//! Invariant: nothing the broker keeps grows without one of these numbers, and
//! each says what happens when it is reached.

use std::collections::BTreeMap;

use fumehood_policies::{BudgetLimits, BudgetSettings};

macro_rules! limits {
    ($($(#[$doc:meta])* $field:ident: $number:ty = $default:expr;)*) => {
        /// Limits of one broker. [`Limits::default`] suits one agent session.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Limits {
            $($(#[$doc])* pub $field: $number,)*
            /// Calls of single tools in the session. Beyond it the call is
            /// denied. Default none: the calls of all tools bind.
            pub tool_calls_by_name: BTreeMap<String, u64>,
        }

        impl Default for Limits {
            fn default() -> Self {
                Self { $($field: $default,)* tool_calls_by_name: BTreeMap::new() }
            }
        }

        impl Limits {
            /// Names and values, in the order of the documentation.
            pub fn entries(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($field), u64::from(self.$field)),)*].into_iter()
            }
        }
    };
}

limits! {
    /// Bytes kept and streamed of standard output and of standard error, each,
    /// between two reports. Beyond it bytes are dropped and counted and the
    /// run goes on. Default 10 MiB.
    output_bytes: u64 = 10 << 20;
    /// Bytes of one display. A larger one is refused with `TooLarge`.
    /// Default 4 MiB.
    display_bytes: u64 = 4 << 20;
    /// Displays between two reports. A further one is denied. Default 64.
    displays: u32 = 64;
    /// Open descriptors, the standard streams and the root included. A further
    /// one is `EMFILE`. Default 256.
    descriptors: u32 = 256;
    /// Bytes of the in-memory tree: lengths of files, holes included, and of
    /// link targets. Beyond it `ENOSPC`. Default 256 MiB.
    memory_file_bytes: u64 = 256 << 20;
    /// Inodes, and separately names, of the in-memory tree. Beyond it
    /// `ENOSPC`. Default 100 000.
    memory_inodes: u64 = 100_000;
    /// Length of any one file in bytes. Beyond it `EFBIG`. Default 1 GiB.
    max_file_bytes: u64 = 1 << 30;
    /// Components of a path at which something is created. Beyond it
    /// `ENAMETOOLONG`. Default 256.
    path_depth: u32 = 256;
    /// Entries of one directory listing. A larger directory is `EOVERFLOW`.
    /// Default 200 000.
    directory_entries: u32 = 200_000;
    /// Host calls of the session. At the end of it the run ends.
    /// Default 50 000 000.
    host_calls: u64 = 50_000_000;
    /// Bytes of one brokered request or response. A larger one is `TooLarge`.
    /// Default 16 MiB.
    request_bytes: u32 = 16 << 20;
    /// Distinct denials kept between two reports; equal ones are counted in
    /// one. Further ones are only counted. Default 200.
    denials_kept: u32 = 200;
    /// Denials of the session, equal ones included. The next one ends the run.
    /// Default 1 000 000.
    denials: u64 = 1_000_000;
    /// Changed paths kept between two reports. Further ones are only counted.
    /// Default 100 000.
    changes_kept: u32 = 100_000;
    /// Distinct lasting effects kept between two reports; equal ones are
    /// counted in one. Further ones are only counted. Default 10 000.
    effects_kept: u32 = 10_000;
    /// Random bytes of the session. At the end of it the run ends, because no
    /// program can go on without. Default 256 MiB.
    random_bytes: u64 = 256 << 20;
    /// Bytes read from files by the session. Beyond it reads are denied.
    /// Default 64 GiB.
    read_bytes: u64 = 64 << 30;
    /// Bytes written to files by the session, holes of host files included.
    /// Beyond it writes are denied. Default 16 GiB.
    written_bytes: u64 = 16 << 30;
    /// Files, directories and links the session creates, in any mount. Beyond
    /// it creation is denied. Default 1 000 000.
    created_entries: u64 = 1_000_000;
    /// Calls of all tools together in the session. Beyond it the call is
    /// denied. Default 10 000.
    tool_calls_total: u64 = 10_000;
    /// Calls that were started and whose end the guest has not been told. A
    /// further one is denied. Default 10 000.
    tool_calls_in_flight: u32 = 10_000;
    /// Bytes of results of started calls that wait to be told. The result that
    /// does not fit is replaced by `TooLarge`. Default 64 MiB.
    tool_waiting_bytes: u64 = 64 << 20;
    /// Network requests of the session, each redirect one more. Beyond it the
    /// request is denied. Default 1 000.
    requests: u64 = 1_000;
    /// Different hosts of the session's network requests. A request to a
    /// further one is denied. Default 50.
    distinct_hosts: u64 = 50;
    /// Bytes of request bodies of the session. Beyond it the request is
    /// denied. Default 64 MiB.
    bytes_up: u64 = 64 << 20;
    /// Bytes of response bodies of the session, compressed or not, whichever
    /// is more. Beyond it the response is cut and the call fails.
    /// Default 1 GiB.
    bytes_down: u64 = 1 << 30;
    /// Network requests that were started and not closed. A further one is
    /// denied. Default 256.
    requests_open: u32 = 256;
}

impl Limits {
    /// Takes over every number of a policy's budget that the broker owns.
    #[must_use]
    pub fn with_budget(self, budget: &BudgetLimits) -> Self {
        Self {
            host_calls: budget.host_calls,
            read_bytes: budget.read_bytes,
            written_bytes: budget.written_bytes,
            memory_file_bytes: budget.created_bytes,
            created_entries: budget.created_entries,
            memory_inodes: budget.inodes,
            random_bytes: budget.random_bytes,
            output_bytes: budget.output_bytes,
            tool_calls_total: budget.tool_calls_total,
            requests: budget.requests,
            distinct_hosts: budget.distinct_hosts,
            bytes_up: budget.bytes_up,
            bytes_down: budget.bytes_down,
            tool_calls_by_name: budget.tool_calls.clone(),
            denials_kept: u32::try_from(budget.denials).unwrap_or(u32::MAX),
            ..self
        }
    }

    /// The numbers of a policy's budget that the broker owns, all named.
    #[must_use]
    pub fn to_budget(&self) -> BudgetSettings {
        BudgetSettings {
            host_calls: Some(self.host_calls),
            read_bytes: Some(self.read_bytes),
            written_bytes: Some(self.written_bytes),
            created_bytes: Some(self.memory_file_bytes),
            created_entries: Some(self.created_entries),
            inodes: Some(self.memory_inodes),
            random_bytes: Some(self.random_bytes),
            output_bytes: Some(self.output_bytes),
            tool_calls_total: Some(self.tool_calls_total),
            requests: Some(self.requests),
            distinct_hosts: Some(self.distinct_hosts),
            bytes_up: Some(self.bytes_up),
            bytes_down: Some(self.bytes_down),
            tool_calls: self.tool_calls_by_name.clone(),
            denials: Some(u64::from(self.denials_kept)),
            ..BudgetSettings::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use fumehood_policies::{BUDGET_NUMBERS, MAX_JSON_DEPTH, MAX_JSON_VALUES, MAX_TOOL_NAME_BYTES};

    use super::*;
    use crate::tools::{MAX_QUERY_BYTES, MAX_QUERY_WORDS, MAX_RESULT_DEPTH};

    const PAGE: &str = include_str!("../../docs/limits.md");

    /// Names and numbers of the table below a heading.
    fn table(heading: &str, numbers: usize) -> Vec<Vec<String>> {
        let section = PAGE.split("\n## ").find(|section| section.starts_with(heading));
        let lines = section.unwrap_or_default().lines().filter(|line| line.starts_with("| `"));
        let cell = |cell: &str| cell.trim().trim_matches('`').to_owned();
        lines.map(|line| line.split('|').skip(1).take(numbers + 1).map(cell).collect()).collect()
    }

    /// Digits in groups of three.
    fn shown(number: u64) -> String {
        if number == u64::MAX {
            return "2^64 − 1".to_owned();
        }
        let digits = number.to_string();
        let group = |(at, digit): (usize, char)| {
            let gap = at != 0 && (digits.len() - at).is_multiple_of(3);
            gap.then_some(' ').into_iter().chain([digit])
        };
        digits.chars().enumerate().flat_map(group).collect()
    }

    fn row(name: &str, numbers: &[u64]) -> Vec<String> {
        std::iter::once(name.to_owned())
            .chain(numbers.iter().map(|number| shown(*number)))
            .collect()
    }

    #[test]
    fn a_budget_goes_to_limits_and_back() {
        let mut budget = BudgetLimits::preset(fumehood_policies::BudgetPreset::Small);
        budget.tool_calls.insert("t".to_owned(), 3);
        let limits = Limits::default().with_budget(&budget);
        let settings = limits.to_budget();
        let own = BUDGET_NUMBERS.iter().filter(|number| settings.get(number.key).is_some());
        for (number, (_, value)) in
            own.clone().zip(budget.entries().filter(|(key, _)| settings.get(key).is_some()))
        {
            assert_eq!(settings.get(number.key), Some(value), "{}", number.key);
        }
        assert_eq!((own.count(), settings.tool_calls), (14, budget.tool_calls));
    }

    fn milliseconds(time: std::time::Duration) -> u64 {
        u64::try_from(time.as_millis()).unwrap_or(0)
    }

    #[test]
    fn the_page_has_every_native_limit_and_no_other() {
        let crate::NativeLimits {
            cpu,
            memory_bytes,
            processes,
            file_bytes,
            open_files,
            scratch_bytes,
            output_bytes,
        } = crate::NativeLimits::default();
        let want = [
            ("cpu", milliseconds(cpu)),
            ("memory_bytes", memory_bytes),
            ("processes", processes),
            ("file_bytes", file_bytes),
            ("open_files", open_files),
            ("scratch_bytes", scratch_bytes),
            ("output_bytes", output_bytes),
        ];
        let want: Vec<_> = want.iter().map(|(name, value)| row(name, &[*value])).collect();
        assert_eq!(table("`fumehood_host_fns::NativeLimits`", 1), want);
    }

    #[test]
    fn the_page_has_every_limit_and_no_other() {
        let limits = Limits::default();
        let want: Vec<_> = limits.entries().map(|(name, value)| row(name, &[value])).collect();
        assert_eq!(table("`fumehood_host_fns::Limits`", 1), want);
    }

    #[test]
    fn the_page_has_every_constant_and_no_other() {
        let kept = crate::records::Retention::default();
        let want = [
            ("MAX_TRANSFER_BYTES", crate::MAX_TRANSFER_BYTES as u64),
            ("MAX_SUBSCRIPTIONS", crate::MAX_SUBSCRIPTIONS as u64),
            ("MAX_LISTED_ENTRIES", crate::broker::MAX_LISTED_ENTRIES as u64),
            ("MAX_LINKS", u64::from(crate::broker::MAX_LINKS)),
            ("MAX_TOUCHED", crate::fs::MAX_TOUCHED as u64),
            ("MemorySink::DEFAULT_CAPACITY", crate::MemorySink::DEFAULT_CAPACITY as u64),
            ("MAX_TOOLS", crate::MAX_TOOLS as u64),
            ("MAX_TOOL_NAME_BYTES", MAX_TOOL_NAME_BYTES as u64),
            ("MAX_TOOL_DESCRIPTION_BYTES", crate::MAX_TOOL_DESCRIPTION_BYTES as u64),
            ("MAX_TOOL_SCHEMA_BYTES", crate::MAX_TOOL_SCHEMA_BYTES as u64),
            ("DEFAULT_TOOL_TIMEOUT", milliseconds(crate::DEFAULT_TOOL_TIMEOUT)),
            ("MAX_TOOL_MESSAGE_BYTES", crate::MAX_TOOL_MESSAGE_BYTES as u64),
            ("MAX_SEARCH_RESULTS", crate::MAX_SEARCH_RESULTS as u64),
            ("MAX_QUERY_BYTES", MAX_QUERY_BYTES as u64),
            ("MAX_QUERY_WORDS", MAX_QUERY_WORDS as u64),
            ("DEFAULT_BASH_TIMEOUT", milliseconds(crate::DEFAULT_BASH_TIMEOUT)),
            ("BASH_GRACE", milliseconds(crate::BASH_GRACE)),
            ("MAX_WATCHED", crate::MAX_WATCHED as u64),
            ("MAX_BASH_CWD_BYTES", crate::MAX_BASH_CWD_BYTES as u64),
            ("MAX_COMMAND_BYTES", fumehood_policies::MAX_COMMAND_BYTES as u64),
            ("MAX_NATIVE_ENVIRONMENT_BYTES", crate::MAX_NATIVE_ENVIRONMENT_BYTES as u64),
            ("MAX_JSON_DEPTH", MAX_JSON_DEPTH as u64),
            ("MAX_JSON_VALUES", MAX_JSON_VALUES as u64),
            ("MAX_RESULT_DEPTH", MAX_RESULT_DEPTH as u64),
            ("MAX_AUDIT_LINE_BYTES", crate::audit::MAX_AUDIT_LINE_BYTES as u64),
            ("DEFAULT_CHECKPOINT_LINES", crate::audit::DEFAULT_CHECKPOINT_LINES),
            ("MAX_SUM_LINE_BYTES", crate::audit::MAX_SUM_LINE_BYTES),
            ("MAX_PREVIEW_BYTES", crate::audit::MAX_PREVIEW_BYTES as u64),
            ("MAX_OPEN_CALLS", crate::audit::MAX_OPEN_CALLS as u64),
            ("MAX_RECOVERIES", crate::audit::MAX_RECOVERIES as u64),
            ("MAX_UNKNOWN_NAMED", crate::audit::MAX_UNKNOWN_NAMED as u64),
            ("Retention::age", u64::try_from(kept.age.as_millis()).unwrap_or(0)),
            ("Retention::sessions", kept.sessions as u64),
            ("Retention::bytes", kept.bytes),
            ("MAX_FILE_TOOL_READ_BYTES", crate::MAX_FILE_TOOL_READ_BYTES as u64),
            ("MAX_FILE_TOOL_WRITE_BYTES", crate::MAX_FILE_TOOL_WRITE_BYTES as u64),
            ("MAX_FILE_TOOL_ENTRIES", crate::MAX_FILE_TOOL_ENTRIES as u64),
            ("MAX_FILE_TOOL_VISITS", crate::MAX_FILE_TOOL_VISITS),
            ("MAX_FILE_TOOL_DEPTH", crate::MAX_FILE_TOOL_DEPTH as u64),
            ("MAX_FILE_TOOL_PATTERN_BYTES", crate::MAX_FILE_TOOL_PATTERN_BYTES as u64),
            ("MAX_FILE_TOOL_COMPILED_BYTES", crate::MAX_FILE_TOOL_COMPILED_BYTES as u64),
            ("MAX_GREP_LINE_BYTES", crate::MAX_GREP_LINE_BYTES as u64),
            ("MAX_GREP_LINE_CHARACTERS", crate::MAX_GREP_LINE_CHARACTERS as u64),
            ("MAX_WORKSPACE_BYTES", crate::MAX_WORKSPACE_BYTES),
            ("MAX_WORKSPACE_INODES", crate::MAX_WORKSPACE_INODES),
            ("MAX_REPORTED_PATHS", crate::MAX_REPORTED_PATHS as u64),
            ("MAX_SYNC_ATTEMPTS", u64::from(crate::MAX_SYNC_ATTEMPTS)),
            ("MAX_DIFF_BYTES", crate::MAX_DIFF_BYTES),
            ("MAX_DEPTH", crate::fs::handle::MAX_DEPTH as u64),
            ("MAX_DIRECTORY_ENTRIES", crate::fs::handle::MAX_DIRECTORY_ENTRIES as u64),
            ("CHUNK_BYTES", crate::fs::handle::CHUNK_BYTES as u64),
        ];
        let want: Vec<_> = want.iter().copied().chain(crate::net::constants()).collect();
        let want: Vec<_> = want.iter().map(|(name, value)| row(name, &[*value])).collect();
        assert_eq!(table("Constants of `fumehood_host_fns`", 1), want);
    }

    #[test]
    fn the_page_has_every_budget_and_no_other() {
        let numbers = BUDGET_NUMBERS.iter().map(|number| {
            let [small, default, large] = number.presets;
            row(number.key, &[small, default, large, number.least, number.most])
        });
        assert_eq!(table("`fumehood_policies::BudgetLimits`", 5), numbers.collect::<Vec<_>>());
        for number in BUDGET_NUMBERS {
            assert!(PAGE.contains(number.meaning), "{}", number.key);
        }
    }
}
