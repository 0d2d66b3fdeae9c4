//! What a broker is made of, and its setup.
//!
//! Invariant: a broker that exists has a policy rule for every mount; what
//! does not fit together is an error that names it, before anything runs.

use std::sync::Arc;

use fumehood_policies::{Access, GuestPath, Policy, PolicyError, RequestedPath};

use crate::approval::Approvals;
use crate::audit::{AuditNumbers, AuditSink, AuditUnavailable, MemorySink};
use crate::broker::fetch::Fetches;
use crate::broker::tools::Tools;
use crate::broker::{Broker, NativeSession, Output, Totals, wait};
use crate::changes::Changes;
use crate::descriptors::Descriptors;
use crate::environment::{
    Clock, NoStreaming, OsRandom, OutputSink, RandomSource, SimpleWaiter, SystemClock, Waiter,
};
use crate::errno::Errno;
use crate::fs::{HostLimits, HostMount, MemoryTree, Node, OpenHow, Step, Vfs};
use crate::limits::Limits;
use crate::live::LivePolicy;
use crate::meter::SharedMeter;
use crate::net::Egress;
use crate::pipeline::Pipeline;
use crate::report::Usage;
use crate::tools::{Executor, ToolSet};

/// Directories every in-memory tree starts with.
const DIRECTORIES: [&[u8]; 3] = [b"/tmp", b"/home/agent", b"/work"];

/// Everything a broker is given. [`BrokerConfig::new`] gives it nothing but
/// memory, the system's clocks and randomness.
pub struct BrokerConfig {
    /// Name of the session, for audit records.
    pub session: String,
    /// What is allowed; `None` for [`policy_for`] the mounts.
    pub policy: Option<Policy>,
    /// Host directories.
    pub mounts: Vec<HostMount>,
    /// Files placed into the in-memory tree, parents made as needed; they
    /// count towards its limits but are no changes.
    pub files: Vec<(GuestPath, Vec<u8>)>,
    /// Every limit.
    pub limits: Limits,
    /// Standard input.
    pub stdin: Arc<[u8]>,
    /// Gets output while the run goes on.
    pub output: Arc<dyn OutputSink>,
    /// Gets audit records.
    pub audit: Arc<dyn AuditSink>,
    /// The numbers of its records, shared by the session's brokers.
    pub audit_numbers: AuditNumbers,
    /// The clocks.
    pub clock: Arc<dyn Clock>,
    /// The randomness.
    pub random: Arc<dyn RandomSource>,
    /// Parks the guest.
    pub waiter: Arc<dyn Waiter>,
    /// The embedder's tools.
    pub tools: Arc<ToolSet>,
    /// Runs calls of tools that the guest does not wait for; without one they
    /// are waited for.
    pub executor: Option<Arc<dyn Executor>>,
    /// Carries out network requests; without one they are denied.
    pub egress: Option<Arc<dyn Egress>>,
    /// The policy that holds, where it can be replaced; it begins as `policy`,
    /// or in its place.
    pub live_policy: Option<Arc<LivePolicy>>,
    /// Who is asked where a rule asks, and what was granted; without it such
    /// requests are denied.
    pub approvals: Option<Arc<Approvals>>,
    /// The session's budgets, shared with its other brokers; `None` for new
    /// ones of `limits`.
    pub meter: Option<SharedMeter>,
    /// Set in deterministic mode, to the time that it starts at, in nanoseconds
    /// since the Unix epoch: host files then show nothing of the host but kind,
    /// size and content, and started calls of tools end in the order in which
    /// they were started. The clock, the randomness and the waiter have to be
    /// virtual ones.
    pub deterministic_from_ns: Option<u64>,
    /// Where commands run; without one the guest is told so.
    pub native: Option<NativeSession>,
    /// Names that the host has for mounts, and the mounts: a guest that says
    /// the first, or something below it, means the second. One that covers a
    /// mount or a directory that every guest has is left out.
    pub host_names: Vec<(GuestPath, GuestPath)>,
}

impl BrokerConfig {
    /// No mounts, no files, no input, default limits, nothing streamed, a
    /// bounded audit in memory.
    #[must_use]
    pub fn new(session: &str) -> Self {
        Self {
            session: session.to_owned(),
            policy: None,
            mounts: Vec::new(),
            files: Vec::new(),
            limits: Limits::default(),
            stdin: Arc::from([].as_slice()),
            output: Arc::new(NoStreaming),
            audit: Arc::new(MemorySink::default()),
            audit_numbers: AuditNumbers::default(),
            clock: Arc::new(SystemClock::new()),
            random: Arc::new(OsRandom),
            waiter: Arc::new(SimpleWaiter::default()),
            tools: Arc::default(),
            executor: None,
            egress: None,
            approvals: None,
            live_policy: None,
            meter: None,
            deterministic_from_ns: None,
            native: None,
            host_names: Vec::new(),
        }
    }
}

/// Why there is no broker.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The mounts make no policy.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The policy has no rule for exactly this mount.
    #[error("the policy has no mount at `{at}`: add one to the policy or leave the directory out")]
    MountWithoutRule {
        /// The mount point.
        at: GuestPath,
    },
    /// The policy names a mount that was not given.
    #[error(
        "the policy has a mount at `{at}` but no directory was given for it: give one or remove the rule `{rule}`"
    )]
    RuleWithoutMount {
        /// The mount point.
        at: GuestPath,
        /// The rule.
        rule: String,
    },
    /// A mounted directory cannot be looked at any more.
    #[error("the directory for `{at}` cannot be used: check that it still exists")]
    Mount {
        /// The mount point.
        at: GuestPath,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A file cannot be placed.
    #[error(
        "the file `{path}` cannot be placed into the in-memory tree ({errno:?}): check its path and the limits"
    )]
    File {
        /// The guest path.
        path: GuestPath,
        /// Why.
        errno: Errno,
    },
    /// The names of the tools do not fit one response.
    #[error(
        "the list of tools has {bytes} bytes and a response at most {limit}: leave tools out or raise `request_bytes`"
    )]
    ToolList {
        /// Its length.
        bytes: usize,
        /// The limit.
        limit: u32,
    },
    /// The audit takes nothing.
    #[error("{0}, and nothing runs unrecorded: make room for the audit or give another sink")]
    Audit(AuditUnavailable),
    /// The random source failed.
    #[error("the random source failed: the broker needs it to hide host inode numbers")]
    Random,
}

impl SetupError {
    /// A stable identifier.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Policy(error) => error.code(),
            Self::MountWithoutRule { .. } => "setup_mount_without_rule",
            Self::RuleWithoutMount { .. } => "setup_rule_without_mount",
            Self::Mount { .. } => "setup_mount",
            Self::File { .. } => "setup_file",
            Self::ToolList { .. } => "setup_tool_list",
            Self::Audit(_) => "setup_audit",
            Self::Random => "setup_random",
        }
    }
}

/// The policy that allows exactly these mounts, with the rule ids
/// `mount:<mount point>`, and the in-memory root.
///
/// # Errors
/// [`PolicyError`] if the mounts overlap.
pub fn policy_for(mounts: &[HostMount]) -> Result<Policy, PolicyError> {
    let rule = |builder: fumehood_policies::PolicyBuilder, mount: &HostMount| {
        builder.mount(&format!("mount:{}", mount.at), mount.at.clone(), mount.access)
    };
    mounts.iter().fold(Policy::builder(), rule).build()
}

fn check_rules(policy: &Policy, mounts: &[HostMount]) -> Result<(), SetupError> {
    let rules = || policy.mounts().iter().filter(|rule| !rule.at.is_root());
    if let Some(mount) = mounts.iter().find(|mount| !rules().any(|rule| rule.at == mount.at)) {
        return Err(SetupError::MountWithoutRule { at: mount.at.clone() });
    }
    if let Some(rule) = rules().find(|rule| !mounts.iter().any(|mount| mount.at == rule.at)) {
        return Err(SetupError::RuleWithoutMount {
            at: rule.at.clone(),
            rule: rule.id.to_string(),
        });
    }
    Ok(())
}

/// Whether a mount, or a directory that every guest has, lies below a path.
fn covers(path: &GuestPath, mounts: &[HostMount]) -> bool {
    let fixed = DIRECTORIES.iter().filter_map(|raw| GuestPath::parse(&GuestPath::root(), raw).ok());
    let mut all = fixed.map(|found| found.path).chain(mounts.iter().map(|mount| mount.at.clone()));
    all.any(|at| at.starts_with(path))
}

fn settle<T>(step: Result<Step<T>, Errno>) -> Result<T, Errno> {
    match step? {
        Step::Done(value) => Ok(value),
        Step::Redirect { .. } => Err(Errno::Loop),
    }
}

fn make_directories(memory: &mut MemoryTree, path: &GuestPath, now: u64) -> Result<(), Errno> {
    let mut at = GuestPath::root();
    for name in path.components() {
        at = at.join(name).map_err(|_| Errno::Nametoolong)?;
        let wanted = RequestedPath { path: at.clone(), must_be_dir: true };
        match settle(memory.create_directory(&wanted, now)) {
            Ok(()) => {}
            Err(Errno::Exist) => {
                settle(memory.metadata(&wanted, false))?;
            }
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

fn place_file(
    memory: &mut MemoryTree,
    path: &GuestPath,
    content: &[u8],
    now: u64,
) -> Result<(), Errno> {
    make_directories(memory, &path.parent().ok_or(Errno::Isdir)?, now)?;
    let how = OpenHow { write: true, create: true, truncate: true, ..OpenHow::default() };
    let opened =
        settle(memory.open(&RequestedPath { path: path.clone(), must_be_dir: false }, how, now))?;
    let Node::MemoryFile(number) = opened.node else { return Err(Errno::Isdir) };
    let written = memory.write_at(number, 0, content, now);
    memory.close(number);
    written
}

impl Broker {
    /// Sets a session up.
    ///
    /// # Errors
    /// [`SetupError`] names what does not fit together.
    pub fn new(config: BrokerConfig) -> Result<Self, SetupError> {
        let BrokerConfig {
            session,
            policy,
            mounts,
            files,
            limits,
            stdin,
            output,
            audit,
            audit_numbers,
            clock,
            random,
            waiter,
            tools,
            executor,
            egress,
            approvals,
            live_policy,
            meter,
            deterministic_from_ns,
            native,
            mut host_names,
        } = config;
        let policy = match (&live_policy, policy) {
            (Some(live), _) => live.current(),
            (None, Some(policy)) => policy,
            (None, None) => policy_for(&mounts)?,
        };
        host_names.retain(|(host, _)| !covers(host, &mounts));
        check_rules(&policy, &mounts)?;
        let (bytes, limit) = (tools.list().len(), limits.request_bytes);
        if bytes as u64 > u64::from(limit) {
            return Err(SetupError::ToolList { bytes, limit });
        }
        let meter = meter.unwrap_or_else(|| SharedMeter::new(&limits));
        let now = wait::coarse(clock.wall_ns());
        let limits = Arc::new(limits);
        let mut vfs = Vfs::new(Arc::clone(&limits), now);
        populate(&mut vfs, &policy, mounts, files, &limits, random.as_ref(), now)?;
        if let Some(start_ns) = deterministic_from_ns {
            vfs.show_no_host_numbers(start_ns);
        }
        let in_order = deterministic_from_ns.is_some();
        let root = RequestedPath { path: GuestPath::root(), must_be_dir: true };
        let root = settle(vfs.memory.open(&root, OpenHow::default(), now))
            .map_err(|errno| SetupError::File { path: GuestPath::root(), errno })?;
        Ok(Self {
            pipeline: Pipeline::new(&session, policy, audit, audit_numbers, meter, &limits)
                .map_err(SetupError::Audit)?,
            tools: Tools::new(tools, executor, waiter.as_ref(), &limits, in_order),
            fetches: Fetches::new(egress, waiter.waker()),
            approvals,
            live_policy,
            descriptors: Descriptors::new(limits.descriptors, root.node),
            vfs,
            streams: Vec::new(),
            totals: Totals::default(),
            changes: Changes::new(limits.changes_kept),
            usage: Usage::default(),
            stdin,
            output: Output::default(),
            sink: output,
            displays: Vec::new(),
            pending: None,
            started_ns: clock.monotonic_ns(),
            ahead_ns: 0,
            clock,
            random,
            waiter,
            limits,
            native,
            host_names,
        })
    }
}

fn populate(
    vfs: &mut Vfs,
    policy: &Policy,
    mounts: Vec<HostMount>,
    files: Vec<(GuestPath, Vec<u8>)>,
    limits: &Limits,
    random: &dyn RandomSource,
    now: u64,
) -> Result<(), SetupError> {
    let failed = |path: &GuestPath, errno| SetupError::File { path: path.clone(), errno };
    for raw in DIRECTORIES {
        if let Ok(found) = GuestPath::parse(&GuestPath::root(), raw) {
            make_directories(&mut vfs.memory, &found.path, now)
                .map_err(|errno| failed(&found.path, errno))?;
        }
    }
    for mount in &mounts {
        let made = match mount.file {
            Some(_) => place_file(&mut vfs.memory, &mount.at, &[], now),
            None => make_directories(&mut vfs.memory, &mount.at, now),
        };
        made.map_err(|errno| failed(&mount.at, errno))?;
    }
    for (path, content) in &files {
        if mounts.iter().any(|mount| path.starts_with(&mount.at)) {
            return Err(failed(path, Errno::Xdev));
        }
        place_file(&mut vfs.memory, path, content, now).map_err(|errno| failed(path, errno))?;
    }
    let mut inode_key = [0; 32];
    if !mounts.is_empty() {
        random.fill(&mut inode_key).map_err(|_| SetupError::Random)?;
    }
    let host_limits = HostLimits {
        entries: limits.directory_entries,
        file_bytes: limits.max_file_bytes,
        depth: limits.path_depth,
    };
    for mut mount in mounts {
        let at = mount.at.clone();
        // The stricter of the two holds.
        if policy.mount_of(&at).is_some_and(|rule| rule.access == Access::ReadOnly) {
            mount.access = Access::ReadOnly;
        }
        vfs.mount(mount, inode_key, host_limits)
            .map_err(|source| SetupError::Mount { at, source })?;
    }
    Ok(())
}
