//! The broker of one session.
//!
//! What: state and limits of a session, and the dispatch of its host calls.
//!
//! Invariant: every call is charged before it is looked at. Budgets, audit and
//! host files are of the session and survive [`Broker::restore`]; descriptors
//! and the in-memory tree are of the [`BrokerState`] and go back with it. Calls
//! of tools that were started end with the run at the latest.

mod config;
mod files;
mod operations;
mod output;
mod paths;
mod tools;
mod wait;

#[cfg(test)]
mod random_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tools_pairs_tests;
#[cfg(test)]
mod tools_tests;

use std::sync::Arc;

use fumehood_guest_abi::Display;
use fumehood_policies::{FsAction, FsRequest, GuestPath, RequestedPath, Verdict};

use crate::audit::{Outcome, Target};
use crate::call::{HostAnswer, HostCall};
use crate::changes::Changes;
use crate::descriptors::{Descriptors, rights};
use crate::environment::{Clock, OutputSink, RandomSource, Waiter};
use crate::errno::Errno;
use crate::fs::{MemoryTree, Spelling, Step, Vfs};
use crate::limits::Limits;
use crate::meter::Budget;
use crate::pipeline::{Checked, Pipeline};
use crate::report::{Report, Usage};

pub use config::{BrokerConfig, SetupError, policy_for};
pub use operations::DISPLAY_TYPES;
use output::Output;

/// Most symbolic links one request follows.
pub(crate) const MAX_LINKS: u32 = 40;

/// Why the run must end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// A wait was interrupted: the run was cancelled or hit its deadline.
    Interrupted,
    /// The budget of host calls is used up.
    HostCallsExhausted,
    /// A budget without which no program can go on is used up.
    BudgetExceeded {
        /// Its name.
        name: &'static str,
    },
    /// Something on the host failed that must not.
    Fault(
        /// A reference without host detail.
        String,
    ),
}

/// Why a call gave no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The guest gets an error number and goes on.
    Errno(Errno),
    /// The run must end.
    Stop(StopReason),
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno)
    }
}

type Answer = Result<HostAnswer, Refusal>;

/// What a stream moved since its last record.
#[derive(Clone, Copy, Debug, Default)]
struct StreamUse {
    calls: u64,
    bytes_in: u64,
    bytes_out: u64,
    /// The file is already known as modified since the last report.
    marked: bool,
}

impl StreamUse {
    fn count(&mut self, bytes_in: u64, bytes_out: u64) {
        self.calls = self.calls.saturating_add(1);
        self.bytes_in = self.bytes_in.saturating_add(bytes_in);
        self.bytes_out = self.bytes_out.saturating_add(bytes_out);
    }
}

/// Streams that belong to no descriptor.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    stdin: StreamUse,
    stdout: StreamUse,
    stderr: StreamUse,
    clock: StreamUse,
    random: StreamUse,
    wait: StreamUse,
    display: StreamUse,
}

/// Carries out the host calls of one session.
pub struct Broker {
    limits: Arc<Limits>,
    pipeline: Pipeline,
    vfs: Vfs,
    descriptors: Descriptors,
    streams: Vec<StreamUse>,
    totals: Totals,
    changes: Changes,
    usage: Usage,
    stdin: Arc<[u8]>,
    output: Output,
    sink: Arc<dyn OutputSink>,
    displays: Vec<Display>,
    pending: Option<Arc<[u8]>>,
    clock: Arc<dyn Clock>,
    started_ns: u64,
    random: Arc<dyn RandomSource>,
    waiter: Arc<dyn Waiter>,
    tools: tools::Tools,
}

/// Descriptors and in-memory files at one moment. Cloning is O(1).
///
/// It belongs to the broker it came from, or to one made of the same mounts in
/// the same order.
#[derive(Clone, Debug)]
pub struct BrokerState {
    descriptors: Descriptors,
    memory: MemoryTree,
    changes: Changes,
    pending: Option<Arc<[u8]>>,
}

impl Broker {
    /// Carries out one call.
    ///
    /// Blocks the calling thread in [`HostCall::Poll`] and in calls of tools,
    /// through the waiter, and on file input and output of the host; nothing
    /// else waits, unless a tool's own function blocks.
    ///
    /// # Errors
    /// [`Refusal::Errno`] goes to the guest; [`Refusal::Stop`] ends the run.
    pub fn dispatch(&mut self, call: HostCall<'_>) -> Answer {
        let span = tracing::debug_span!("host_call", call = call.name());
        let _entered = span.enter();
        self.usage.host_calls = self.usage.host_calls.saturating_add(1);
        if self.pipeline.ledger.meter.take(Budget::HostCalls, 1).is_err() {
            return Err(Refusal::Stop(StopReason::HostCallsExhausted));
        }
        let answer = self.carry_out(call);
        if self.pipeline.ledger.denials_used_up {
            let name = Budget::Denials.name();
            return Err(Refusal::Stop(StopReason::BudgetExceeded { name }));
        }
        answer
    }

    fn carry_out(&mut self, call: HostCall<'_>) -> Answer {
        use HostCall as C;
        match call {
            C::ClockResolution { clock } => self.clock_resolution(clock),
            C::ClockTime { clock } => self.clock_time(clock),
            C::Random { into } => self.random(into),
            C::Yield => self.yield_now(),
            C::Poll { subscriptions } => self.poll(&subscriptions),
            C::Brokered { op, request, response } => {
                self.operate(op, request, response).map(HostAnswer::Brokered)
            }
            C::PathCreateDirectory { dir, path } => self.path_create_directory(dir, path),
            C::PathFilestatGet { dir, follow, path } => self.path_filestat(dir, path, follow),
            C::PathFilestatSetTimes { dir, follow, path, accessed, modified } => {
                self.path_set_times(dir, path, follow, accessed, modified)
            }
            C::PathLink { old_dir, follow, old, new_dir, new } => {
                self.path_link((old_dir, old), (new_dir, new), follow)
            }
            C::PathOpen {
                dir,
                follow,
                path,
                open_flags,
                rights_base,
                rights_inheriting,
                fd_flags,
            } => {
                let how = paths::OpenCall {
                    follow,
                    open_flags,
                    rights_base,
                    rights_inheriting,
                    fd_flags,
                };
                self.path_open(dir, path, how)
            }
            C::PathReadlink { dir, path, into } => self.path_read_link(dir, path, into),
            C::PathRemoveDirectory { dir, path } => self.path_remove_directory(dir, path),
            C::PathRename { old_dir, old, new_dir, new } => {
                self.path_rename((old_dir, old), (new_dir, new))
            }
            C::PathSymlink { target, dir, path } => self.path_symlink(target, dir, path),
            C::PathUnlinkFile { dir, path } => self.path_unlink(dir, path),
            call => self.dispatch_descriptor(call),
        }
    }

    /// Descriptors and in-memory files as they are now. O(1).
    #[must_use]
    pub fn snapshot(&self) -> BrokerState {
        BrokerState {
            descriptors: self.descriptors.clone(),
            memory: self.vfs.memory.clone(),
            changes: self.changes.clone(),
            pending: self.pending.clone(),
        }
    }

    /// Goes back to a state. Host files, budgets, audit, denials and output
    /// stay as they are. A descriptor that the policy would not open now is
    /// gone, and calls of tools that were started are given up.
    pub fn restore(&mut self, state: BrokerState) {
        self.give_up_tool_calls();
        self.flush_streams();
        let BrokerState { descriptors, memory, changes, pending } = state;
        self.descriptors = descriptors;
        self.vfs.memory = memory;
        self.pending = pending;
        let vfs = &self.vfs;
        self.changes.replace_where(&changes, |path| vfs.in_memory(path));
        let refused = self.descriptors.numbers_where(|descriptor| {
            let writes = descriptor.may(rights::FD_WRITE).is_ok();
            let action = if writes { FsAction::Write } else { FsAction::Read };
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

    /// Everything since the last report. Gives up the calls of tools that are
    /// still going on, as the run is over, and writes the summed audit records.
    pub fn report(&mut self) -> Report {
        self.give_up_tool_calls();
        self.flush_streams();
        self.pipeline.ledger.flush_sums();
        let (denials, denials_not_listed) = self.pipeline.ledger.denials.take();
        let mut usage = std::mem::take(&mut self.usage);
        usage.entries_created = std::mem::take(&mut self.pipeline.ledger.created);
        usage.tool_calls = std::mem::take(&mut self.pipeline.ledger.tool_calls);
        let Output { stdout, stderr, dropped_stdout, dropped_stderr } =
            std::mem::take(&mut self.output);
        Report {
            stdout,
            stderr,
            dropped_stdout,
            dropped_stderr,
            displays: std::mem::take(&mut self.displays),
            denials,
            denials_not_listed,
            files: self.changes.take(),
            usage,
        }
    }

    fn now(&self) -> u64 {
        wait::coarse(self.clock.wall_ns())
    }

    /// The path a guest means by `raw` relative to the descriptor `dir`.
    fn path(&self, dir: u32, raw: &[u8]) -> Result<RequestedPath, Errno> {
        let descriptor = self.descriptors.get(dir)?;
        match descriptor.node().map(crate::fs::Node::file_type) {
            Some(crate::call::FileType::Directory) => {}
            _ => return Err(Errno::Notdir),
        }
        if descriptor.unlinked && raw.first() != Some(&b'/') {
            return Err(Errno::Noent);
        }
        GuestPath::parse(&descriptor.path, raw).map_err(crate::fs::path_errno)
    }

    /// Takes a request through the pipeline, once for each symbolic link it
    /// meets, and returns the answer with the request that gave it.
    fn act<T>(
        &mut self,
        request: FsRequest,
        mut spelling: Spelling,
        created: impl Fn(&T) -> u64,
        mut run: impl FnMut(&mut Vfs, &Checked<'_, FsRequest>, Spelling) -> Result<Step<T>, Errno>,
    ) -> Result<(T, FsRequest), Errno> {
        let FsRequest { mut action, mut path } = request;
        for _ in 0..=MAX_LINKS {
            let checked =
                self.pipeline.check(FsRequest::canonical(action.clone(), path.clone()))?;
            let (to, second) = match run(&mut self.vfs, &checked, spelling) {
                Ok(Step::Done(value)) => {
                    let entries = created(&value);
                    checked.conclude(Outcome::Done, entries);
                    return Ok((value, FsRequest { action, path }));
                }
                Ok(Step::Redirect { to, second }) => (to, second),
                Err(errno) => {
                    checked.conclude(Outcome::Failed(errno), 0);
                    return Err(errno);
                }
            };
            checked.conclude(Outcome::Redirected, 0);
            let old = if second { action.second_path().cloned() } else { Some(path.clone()) };
            if old.is_none_or(|old| !self.vfs.same_mount(&old, &to.path)) {
                return Err(Errno::Perm);
            }
            match &mut action {
                FsAction::Rename { to: slot } | FsAction::Link { to: slot } if second => {
                    *slot = to.path;
                    spelling.second |= to.must_be_dir;
                }
                _ => {
                    path = to.path;
                    spelling.first |= to.must_be_dir;
                }
            }
        }
        Err(Errno::Loop)
    }

    fn stream(&mut self, fd: u32) -> Option<&mut StreamUse> {
        let index = fd as usize;
        if index >= self.streams.len() {
            let limit = self.limits.descriptors.max(4) as usize;
            self.streams.resize(index.saturating_add(1).min(limit), StreamUse::default());
        }
        self.streams.get_mut(index)
    }

    /// Records what a descriptor's stream moved.
    fn flush_stream(&mut self, fd: u32) {
        let used = self.streams.get_mut(fd as usize).map(std::mem::take).unwrap_or_default();
        if used.calls == 0 {
            return;
        }
        let target = self
            .descriptors
            .get(fd)
            .map_or(Target::None, |descriptor| Target::Path(descriptor.path.clone()));
        self.pipeline.ledger.record_stream(
            "fs.stream",
            target,
            used.calls,
            used.bytes_in,
            used.bytes_out,
        );
    }

    fn flush_streams(&mut self) {
        for fd in 0..u32::try_from(self.streams.len()).unwrap_or(u32::MAX) {
            self.flush_stream(fd);
        }
        let Totals { stdin, stdout, stderr, clock, random, wait, display } =
            std::mem::take(&mut self.totals);
        for (operation, name, used) in [
            ("stdio.read", "stdin", stdin),
            ("stdio.write", "stdout", stdout),
            ("stdio.write", "stderr", stderr),
            ("clock.read", "clock", clock),
            ("random.read", "random", random),
            ("clock.wait", "clock", wait),
            ("display", "display", display),
        ] {
            if used.calls != 0 {
                let target = Target::Name(name);
                self.pipeline.ledger.record_stream(
                    operation,
                    target,
                    used.calls,
                    used.bytes_in,
                    used.bytes_out,
                );
            }
        }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.give_up_tool_calls();
    }
}

#[cfg(test)]
impl Broker {
    /// Bytes, names and inodes of the in-memory tree.
    pub(crate) fn memory_used(&self) -> (u64, u64, usize) {
        self.vfs.memory.used()
    }
}
