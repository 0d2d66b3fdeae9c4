//! The broker of one session.
//!
//! What: state and limits of a session, and the dispatch of its host calls.
//!
//! Invariant: every call is charged before it is looked at. Budgets, audit and
//! host files are of the session and survive [`Broker::restore`]; descriptors
//! and the in-memory tree are of the [`BrokerState`] and go back with it. Calls
//! of tools that were started end with the run at the latest.

mod bash;
mod checkpoint;
mod config;
mod fetch;
mod file_tools;
#[cfg(test)]
mod file_tools_tests;
mod files;
mod growth;
mod operations;
mod output;
mod paths;
mod program;
mod tools;
mod wait;

#[cfg(test)]
mod bash_tests;
#[cfg(test)]
mod bounds_tests;
#[cfg(test)]
mod checkpoint_tests;
#[cfg(test)]
mod determinism_tests;
#[cfg(test)]
mod places_tests;
#[cfg(test)]
mod policy_tests;
#[cfg(test)]
mod random_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tools_pairs_tests;
#[cfg(test)]
mod tools_tests;

use std::sync::Arc;

use bytes::Bytes;
use fumehood_guest_abi::Display;
use fumehood_policies::{FsAction, FsRequest, GuestPath, RequestedPath};

use crate::approval::Approvals;
use crate::audit::{Outcome, Payload, Target};
use crate::call::{HostAnswer, HostCall};
use crate::changes::Changes;
use crate::descriptors::Descriptors;
use crate::environment::{Clock, OutputSink, RandomSource, Waiter};
use crate::errno::Errno;
use crate::fs::{Spelling, Step, Vfs};
use crate::limits::Limits;
use crate::live::LivePolicy;
use crate::meter::Budget;
use crate::pipeline::{Checked, Pipeline};
use crate::report::{Report, Usage};
use fumehood_policies::weaken;

pub use bash::{BASH_GRACE, DEFAULT_BASH_TIMEOUT, MAX_BASH_CWD_BYTES, NativeSession};
pub use checkpoint::{BrokerState, MemoryFile};
pub use config::{BrokerConfig, SetupError, policy_for};
#[cfg(test)]
pub(crate) use files::MAX_LISTED_ENTRIES;
pub use operations::DISPLAY_TYPES;
use output::Output;
pub use program::{NativeWork, Program, ProgramEnd};
pub use tools::ToolCallError;

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
    pending: Option<Bytes>,
    clock: Arc<dyn Clock>,
    started_ns: u64,
    /// How much the guest's monotonic clock is ahead of the time since then.
    ahead_ns: u64,
    random: Arc<dyn RandomSource>,
    waiter: Arc<dyn Waiter>,
    tools: tools::Tools,
    fetches: fetch::Fetches,
    approvals: Option<Arc<Approvals>>,
    live_policy: Option<Arc<LivePolicy>>,
    native: Option<NativeSession>,
    host_names: Vec<(GuestPath, GuestPath)>,
}

impl Broker {
    /// Carries out one call.
    ///
    /// Blocks the calling thread in [`HostCall::Poll`], in calls of tools and in
    /// commands of the native tier, through the waiter, and on file input and output of the host; nothing
    /// else waits, unless a tool's own function blocks.
    ///
    /// # Errors
    /// [`Refusal::Errno`] goes to the guest; [`Refusal::Stop`] ends the run.
    pub fn dispatch(&mut self, call: HostCall<'_>) -> Answer {
        let span = tracing::debug_span!("host_call", call = call.name());
        let _entered = span.enter();
        self.usage.host_calls = self.usage.host_calls.saturating_add(1);
        let off = weaken::off(weaken::Defence::CallBudget);
        if !off && self.pipeline.ledger.meter.take(Budget::HostCalls, 1).is_err() {
            return Err(Refusal::Stop(StopReason::HostCallsExhausted));
        }
        self.follow_policy();
        self.tools.stop_overdue();
        let answer = self.carry_out(call);
        if self.pipeline.ledger.denials_used_up {
            let name = Budget::Denials.name();
            return Err(Refusal::Stop(StopReason::BudgetExceeded { name }));
        }
        answer
    }

    /// Takes the policy over that holds now. Whatever decides after it waited,
    /// or not within a host call, does this first.
    pub(super) fn follow_policy(&mut self) {
        let Some(live) = &self.live_policy else { return };
        if live.generation() != self.pipeline.policy().generation() {
            self.pipeline.replace_policy(live.current());
            self.fetches.forget_connections();
        }
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

    /// Everything since the last report. Gives up the calls of tools that are
    /// still going on, as the run is over, and writes the summed audit records.
    pub fn report(&mut self) -> Report {
        self.give_up_tool_calls();
        self.give_up_fetches();
        self.record_revoked();
        self.flush_streams();
        self.pipeline.ledger.flush_sums();
        let (denials, denials_not_listed) = self.pipeline.ledger.denials.take();
        let mut usage = std::mem::take(&mut self.usage);
        usage.entries_created = std::mem::take(&mut self.pipeline.ledger.created);
        usage.tool_calls = std::mem::take(&mut self.pipeline.ledger.tool_calls);
        let (effects, effects_not_listed) = self.pipeline.ledger.lasting.take();
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
            effects,
            effects_not_listed,
            usage,
        }
    }

    /// Records that a program begins to run, by the name that it has inside;
    /// what happens from now on is part of that run. Without it the calls of a
    /// session are part of nothing.
    ///
    /// # Errors
    /// [`SetupError::Audit`]; then nothing may run.
    pub fn begin_run(&mut self, name: &str, program: &[u8]) -> Result<(), SetupError> {
        let program = Payload::of(program);
        self.pipeline.ledger.begin_run(name, program).map_err(SetupError::Audit)
    }

    /// Writes the sums of the run and how it ended. A run that is not ended
    /// by this ends as unknown.
    pub fn end_run(&mut self, kind: &'static str) {
        self.give_up_tool_calls();
        self.flush_streams();
        self.pipeline.ledger.flush_sums();
        self.pipeline.ledger.end_run(Outcome::Ended(kind));
    }

    /// Whether a limit on wall-clock time ended a call of a tool, a command, a
    /// request or a question, so that another run may be told otherwise.
    #[must_use]
    pub fn time_limit_fired(&self) -> bool {
        self.pipeline.ledger.time_limit_fired
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
        let RequestedPath { path, must_be_dir } =
            GuestPath::parse(&descriptor.path, raw).map_err(crate::fs::path_errno)?;
        Ok(RequestedPath { path: self.meant(path), must_be_dir })
    }

    /// The path that is meant by one that may be the host's name of a mount.
    /// What is decided and acted on is what this gives.
    fn meant(&self, path: GuestPath) -> GuestPath {
        if self.host_names.is_empty() || !self.vfs.in_memory(&path) {
            return path;
        }
        let mut found = self.host_names.iter().filter_map(|(host, at)| path.rebase(host, at));
        found.next().unwrap_or(path)
    }

    /// Paths relative to the mount `at` that the guest holds open for writing.
    #[must_use]
    pub fn open_for_writing(&self, at: &GuestPath) -> Vec<Vec<u8>> {
        self.descriptors.written_below(at)
    }

    /// Takes a request through the pipeline, once for each symbolic link it
    /// meets, and returns the answer with the request that gave it.
    fn act<T>(
        &mut self,
        request: FsRequest,
        spelling: Spelling,
        created: impl Fn(&T) -> u64,
        run: impl FnMut(&mut Vfs, &Checked<'_, FsRequest>, Spelling) -> Result<Step<T>, Errno>,
    ) -> Result<(T, FsRequest), Errno> {
        let outer = self.pipeline.ledger.parent();
        let done = self.follow(request, spelling, created, run);
        self.pipeline.ledger.set_parent(outer);
        done
    }

    fn follow<T>(
        &mut self,
        request: FsRequest,
        mut spelling: Spelling,
        created: impl Fn(&T) -> u64,
        mut run: impl FnMut(&mut Vfs, &Checked<'_, FsRequest>, Spelling) -> Result<Step<T>, Errno>,
    ) -> Result<(T, FsRequest), Errno> {
        let FsRequest { mut action, mut path } = request;
        for round in 0..=MAX_LINKS {
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
            if round == 0 {
                // What a link leads to is part of the call that met it.
                let call = self.pipeline.ledger.call();
                self.pipeline.ledger.set_parent(call);
            }
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
        let opened_by = self.descriptors.get(fd).ok().and_then(|descriptor| descriptor.opened_by);
        let numbers = [used.calls, used.bytes_in, used.bytes_out];
        self.pipeline.ledger.record_stream("fs.stream", target, opened_by, numbers);
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
                let numbers = [used.calls, used.bytes_in, used.bytes_out];
                self.pipeline.ledger.record_stream(operation, target, None, numbers);
            }
        }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.give_up_tool_calls();
        self.give_up_fetches();
    }
}

#[cfg(test)]
impl Broker {
    /// Bytes, names and inodes of the in-memory tree.
    pub(crate) fn memory_used(&self) -> (u64, u64, usize) {
        self.vfs.memory.used()
    }
}
