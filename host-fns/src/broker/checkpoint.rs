//! The broker's side of a session: what a checkpoint holds and what it does
//! not, and what changes from cell to cell.
//!
//! Invariant: going back to a state never raises what a budget has left and
//! never takes back a record, a denial or an effect on the host; it only
//! changes what the guest finds in its descriptors and in memory.

use std::sync::Arc;

use bytes::Bytes;
use fumehood_policies::{FsAction, FsRequest, GuestPath, Verdict};

use crate::broker::Broker;
use crate::changes::Changes;
use crate::descriptors::{Descriptors, Handle, rights};
use crate::environment::{NoStreaming, OutputSink};
use crate::fs::MemoryTree;
use crate::meter::SharedMeter;

/// Descriptors, in-memory files and the monotonic clock at one moment. Cloning
/// is O(1).
///
/// It belongs to the broker it came from, or to one made of the same mounts in
/// the same order.
#[derive(Clone, Debug)]
pub struct BrokerState {
    descriptors: Descriptors,
    memory: MemoryTree,
    changes: Changes,
    pending: Option<Bytes>,
    /// What the monotonic clock showed.
    monotonic_ns: u64,
}

impl BrokerState {
    /// Bytes of host memory that this state takes and `other` does not share,
    /// about: in-memory files, listings of open directories, and an answer that
    /// the guest has not fetched. What the two share is passed over without
    /// being looked at.
    #[must_use]
    pub fn bytes_beyond(&self, other: &Self) -> u64 {
        let pending = match (&self.pending, &other.pending) {
            (Some(own), Some(other)) if own.as_ptr() == other.as_ptr() => 0,
            (Some(own), _) => own.len() as u64,
            (None, _) => 0,
        };
        self.memory
            .bytes_beyond(&other.memory)
            .saturating_add(self.descriptors.listing_bytes_beyond(&other.descriptors))
            .saturating_add(pending)
    }

    /// Paths relative to the mount `at` that the guest would hold open for
    /// writing in this state.
    #[must_use]
    pub fn open_for_writing(&self, at: &GuestPath) -> Vec<Vec<u8>> {
        self.descriptors.written_below(at)
    }
}

/// A regular file of the in-memory tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryFile {
    /// Its path, escaped.
    pub path: String,
    /// Its length in bytes.
    pub bytes: u64,
}

impl Broker {
    /// Descriptors and in-memory files as they are now. O(1).
    #[must_use]
    pub fn snapshot(&self) -> BrokerState {
        BrokerState {
            descriptors: self.descriptors.clone(),
            memory: self.vfs.memory.clone(),
            changes: self.changes.clone(),
            pending: self.pending.clone(),
            monotonic_ns: self.elapsed_ns(),
        }
    }

    /// Goes back to a state. Host files, budgets, audit, denials, output and
    /// the list of lasting effects stay as they are. A descriptor that the
    /// policy would not open now is gone, and calls of tools that were started
    /// are given up. The monotonic clock does not go back: where this broker's
    /// is behind the state's, as that of a fork is, it goes on from there.
    pub fn restore(&mut self, state: BrokerState) {
        self.follow_policy();
        self.give_up_tool_calls();
        self.give_up_fetches();
        self.flush_streams();
        let BrokerState { descriptors, memory, changes, pending, monotonic_ns } = state;
        let behind = monotonic_ns.saturating_sub(self.elapsed_ns());
        self.ahead_ns = self.ahead_ns.saturating_add(behind);
        self.descriptors = descriptors;
        self.vfs.memory = memory;
        self.pending = pending;
        let vfs = &self.vfs;
        self.changes.replace_where(&changes, |path| vfs.in_memory(path));
        let refused = self.descriptors.numbers_where(|descriptor| {
            let may = |right| descriptor.may(right).is_ok();
            let action = if may(rights::FD_WRITE) {
                FsAction::Write { reads: may(rights::FD_READ) }
            } else {
                FsAction::Read
            };
            let request = FsRequest::canonical(action, descriptor.path.clone());
            !descriptor.preopen
                && descriptor.node().is_some()
                && self.pipeline.policy().decide(&request).verdict != Verdict::Allow
        });
        for fd in refused {
            if let Ok(descriptor) = self.descriptors.remove(fd)
                && let Some(node) = descriptor.node()
            {
                self.vfs.close(node);
            }
        }
    }

    /// Gives the next cell its standard input, read from its start, and its
    /// receiver of output.
    pub fn begin_cell(&mut self, stdin: Arc<[u8]>, output: Arc<dyn OutputSink>) {
        self.stdin = stdin;
        self.sink = output;
        let streams = self.descriptors.numbers_where(|fd| matches!(fd.handle, Handle::Stdin));
        for fd in streams {
            if let Ok(descriptor) = self.descriptors.get_mut(fd) {
                descriptor.offset = 0;
            }
        }
    }

    /// Lets go of the last cell's standard input and receiver of output.
    pub fn end_cell(&mut self) {
        self.begin_cell(Arc::from([]), Arc::new(NoStreaming));
    }

    /// The regular files of the in-memory tree, sorted by path: the first
    /// `most` of them, and whether there are more.
    #[must_use]
    pub fn memory_files(&self, most: usize) -> (Vec<MemoryFile>, bool) {
        self.vfs.memory.files(most)
    }

    /// The budgets that this broker draws on.
    #[must_use]
    pub fn meter(&self) -> &SharedMeter {
        &self.pipeline.ledger.meter
    }
}
