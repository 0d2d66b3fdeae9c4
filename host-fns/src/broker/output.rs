//! Standard output and standard error as they are kept for the report.

use crate::environment::Stream;

#[derive(Debug, Default)]
pub(super) struct Output {
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
    pub(super) dropped_stdout: u64,
    pub(super) dropped_stderr: u64,
}

impl Output {
    /// Keeps what fits below `limit` and counts the rest; returns what was
    /// kept.
    pub(super) fn push<'d>(&mut self, stream: Stream, data: &'d [u8], limit: u64) -> &'d [u8] {
        let (kept, dropped) = match stream {
            Stream::Stdout => (&mut self.stdout, &mut self.dropped_stdout),
            Stream::Stderr => (&mut self.stderr, &mut self.dropped_stderr),
        };
        let room = usize::try_from(limit.saturating_sub(kept.len() as u64)).unwrap_or(usize::MAX);
        let (fits, rest) = data.split_at(data.len().min(room));
        kept.extend_from_slice(fits);
        *dropped = dropped.saturating_add(rest.len() as u64);
        fits
    }
}
