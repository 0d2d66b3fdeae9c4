//! The tiers that `fumehood-helper` makes on Linux.
//!
//! What: `landlock`, a boundary of kernel features that need no root, and
//! `process`, which is none; both start the same helper with another spec.
//!
//! Invariant: what the machine can give is found out by doing it once, with the
//! helper itself; the result of a run lists what was active in that run.

mod control_group;
mod guarantees;
mod launch;
mod scratch;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use fumehood_host_fns::{
    Access, CancelToken, Guarantee, GuestPath, Missing, NativeCommand, NativeEnd, NativeError,
    NativeLimits, NativeMount, NativeResult, NativeTier, OutputSink, Probe, Stream, Unavailable,
    Variables,
};
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};

use crate::helper::{Helper, name_of};
use crate::protocol::{
    Attempt, Boundary, MAX_MOUNTS, MAX_OVERLAYS, PROTOCOL_VERSION, Spec, SpecLimits, SpecMount,
    Work,
};
use control_group::ControlGroups;
use launch::{Bounds, Ended};
use scratch::Scratch;

/// How long finding out what the machine gives may take.
const TRIAL: Duration = Duration::from_secs(20);

/// Working directory of a command that names none; the home of no one.
const DEFAULT_CWD: &str = "/work";
const HOME: &str = "/home/agent";
const TEMPORARY: &str = "/tmp";

/// What every command finds in its environment; a command's own wins.
const VARIABLES: &[(&str, &str)] = &[
    ("LANG", "C.UTF-8"),
    ("PATH", "/usr/local/bin:/usr/bin:/bin"),
    ("PYTHONDONTWRITEBYTECODE", "1"),
    ("PYTHONUNBUFFERED", "1"),
    ("TERM", "dumb"),
];

/// The shells, the first that is there.
const SHELLS: [&str; 2] = ["/bin/bash", "/bin/sh"];

/// Which tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Landlock,
    Process,
}

/// What was found out about this machine.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// In which boundary commands run.
    boundary: Boundary,
    /// The controls of a run.
    controls: Vec<String>,
    /// Where groups can be made, or why not.
    groups: Result<ControlGroups, String>,
    /// Why there are no namespaces, if there are none.
    alone: Vec<Missing>,
}

/// A tier that the helper makes.
#[derive(Debug)]
pub struct HelperTier {
    kind: Kind,
    helper: Result<Arc<Helper>, Missing>,
    found: OnceLock<Found>,
}

impl HelperTier {
    /// The tier `landlock`: Landlock, seccomp, no capabilities, and namespaces
    /// where this user may have them. Without a helper it says so when it is
    /// prepared.
    #[must_use]
    pub fn landlock(helper: Result<Arc<Helper>, Missing>) -> Self {
        Self { kind: Kind::Landlock, helper, found: OnceLock::new() }
    }

    /// The tier `process`: no boundary. It has limits, an environment of its
    /// own and ends what was started.
    #[must_use]
    pub fn process(helper: Result<Arc<Helper>, Missing>) -> Self {
        Self { kind: Kind::Process, helper, found: OnceLock::new() }
    }

    fn helper(&self) -> Result<&Helper, Unavailable> {
        let helper =
            self.helper.as_ref().map_err(|missing| self.unavailable(vec![missing.clone()]))?;
        helper.check().map_err(|missing| self.unavailable(vec![missing]))?;
        Ok(helper)
    }

    fn unavailable(&self, missing: Vec<Missing>) -> Unavailable {
        Unavailable { tier: self.name().to_owned(), missing }
    }

    /// What the machine gives; found out once, and again after a failure, which
    /// may have been of that moment.
    fn found(&self) -> Result<&Found, Unavailable> {
        if let Some(found) = self.found.get() {
            return Ok(found);
        }
        let found = self.find_out()?;
        Ok(self.found.get_or_init(|| found))
    }

    fn find_out(&self) -> Result<Found, Unavailable> {
        let helper = self.helper()?;
        let groups = ControlGroups::find();
        if self.kind == Kind::Process {
            let controls = self.trial(helper, Boundary::None, &groups)?;
            let controls = controls.map_err(|missing| self.unavailable(missing))?;
            return Ok(Found { boundary: Boundary::None, controls, groups, alone: Vec::new() });
        }
        let boundary = Boundary::Kernel { namespaces: true };
        let alone = match self.trial(helper, boundary, &groups)? {
            Ok(controls) => return Ok(Found { boundary, controls, groups, alone: Vec::new() }),
            Err(missing) => missing,
        };
        // Without namespaces the required guarantees can still hold.
        let boundary = Boundary::Kernel { namespaces: false };
        let optional = |missing: &Missing| {
            ["user-namespace", "private-mounts"].contains(&missing.name.as_str())
        };
        if !alone.iter().all(optional) {
            return Err(self.unavailable(alone));
        }
        match self.trial(helper, boundary, &groups)? {
            Ok(controls) => Ok(Found { boundary, controls, groups, alone }),
            Err(missing) => Err(self.unavailable(missing.into_iter().chain(alone).collect())),
        }
    }

    /// Puts a boundary up with nothing in it.
    fn trial(
        &self,
        helper: &Helper,
        boundary: Boundary,
        groups: &Result<ControlGroups, String>,
    ) -> Result<Result<Vec<String>, Vec<Missing>>, Unavailable> {
        let limits = NativeLimits::default();
        let given = Given { work: Work::Nothing, limits: &limits, mounts: &[], scratch: None };
        let token = CancelToken::new();
        let ended = self
            .launch(helper, boundary, groups, &given, (TRIAL, &token, &Unheard, b""))
            .map_err(|error| {
            let remedy = "see that /proc is mounted and that processes can be started";
            let reason = error.to_string();
            self.unavailable(vec![Missing {
                name: "helper".to_owned(),
                reason,
                remedy: remedy.to_owned(),
            }])
        })?;
        if !ended.missing.is_empty() {
            return Ok(Err(ended.missing));
        }
        if ended.end != Some(NativeEnd::Exited(0)) {
            let reason = format!("a trial run ended with {:?}", ended.end);
            let remedy = "see what the kernel's log says of fumehood-helper".to_owned();
            return Ok(Err(vec![Missing { name: "boundary".to_owned(), reason, remedy }]));
        }
        Ok(Ok(ended.controls))
    }

    /// Makes the helper's own attempts to get out, and tells how each ended.
    ///
    /// # Errors
    /// [`NativeError`].
    pub fn attempts(&self) -> Result<Vec<Attempt>, NativeError> {
        let found = self.found()?;
        let limits = NativeLimits::default();
        let given = Given { work: Work::Attempts, limits: &limits, mounts: &[], scratch: None };
        let token = CancelToken::new();
        let how = (TRIAL, &token, &Unheard as &dyn OutputSink, b"".as_slice());
        let ended = self.launch(self.helper()?, found.boundary, &found.groups, &given, how)?;
        let text = ended.stdout.text();
        let attempts: Result<Vec<Attempt>, _> = text.lines().map(serde_json::from_str).collect();
        match (attempts, ended.end) {
            (Ok(attempts), Some(NativeEnd::Exited(0))) if !attempts.is_empty() => Ok(attempts),
            (_, end) => Err(NativeError::Failed(format!("the attempts ended with {end:?}"))),
        }
    }

    fn launch(
        &self,
        helper: &Helper,
        boundary: Boundary,
        groups: &Result<ControlGroups, String>,
        given: &Given<'_>,
        (timeout, cancel, output, stdin): (Duration, &CancelToken, &dyn OutputSink, &[u8]),
    ) -> Result<Ended, NativeError> {
        let failed = |what: &str, error: io::Error| NativeError::Failed(format!("{what}: {error}"));
        let limits = given.limits;
        let group = match groups {
            Ok(groups) => Some(
                groups
                    .create(limits.memory_bytes, limits.processes)
                    .map_err(|error| failed("the control group", error))?,
            ),
            Err(_) => None,
        };
        let stdin = sealed(stdin).map_err(|error| failed("standard input", error))?;
        let scratch = given.scratch.map(open_dir).transpose();
        let scratch = scratch.map_err(|error| failed("the temporary directory", error))?;
        let spec = Spec {
            version: PROTOCOL_VERSION,
            boundary,
            work: given.work.clone(),
            limits: spec_limits(limits),
            mounts: given.mounts.iter().map(|(mount, _)| mount.clone()).collect(),
            scratch: given.scratch.map(|path| path.to_string_lossy().into_owned()),
            control_group: group.is_some(),
            #[cfg(feature = "weaken")]
            weakened: fumehood_policies::weaken::bits(),
        };
        let mut fds: Vec<BorrowedFd<'_>> = vec![stdin.as_fd()];
        for (_, mount) in given.mounts {
            fds.push(mount.dir.as_fd());
            fds.extend(mount.overlay.iter().flat_map(|overlay| overlay.parts()));
        }
        fds.extend(scratch.as_ref().map(AsFd::as_fd));
        let output_bytes = limits.output_bytes;
        let bounds = Bounds { timeout, output_bytes, cancel, output, group };
        launch::run(helper, &spec, &fds, &bounds)
    }

    /// The directories of a command, or why they cannot be given.
    fn mounts(
        &self,
        helper: &Helper,
        found: &Found,
        command: &NativeCommand,
    ) -> Result<Vec<(SpecMount, NativeMount)>, NativeError> {
        let overlays = command.mounts.iter().filter(|mount| mount.overlay.is_some()).count();
        if command.mounts.len() > MAX_MOUNTS || overlays > MAX_OVERLAYS {
            let message = format!("a command is given at most {MAX_MOUNTS} directories");
            return Err(NativeError::Command(message));
        }
        let namespaces = matches!(found.boundary, Boundary::Kernel { namespaces: true });
        let mut mounts = Vec::new();
        for mount in &command.mounts {
            let at = String::from_utf8(mount.at.as_bytes().to_vec())
                .map_err(|_| NativeError::Command("a mount point is not UTF-8".to_owned()))?;
            let name = name_of(&*mount.dir).map_err(|e| NativeError::Failed(e.to_string()))?;
            if !namespaces && (Path::new(&at) != name || mount.overlay.is_some()) {
                let mut missing = found.alone.clone();
                if missing.is_empty() {
                    missing.push(Missing {
                        name: Guarantee::PrivateMounts.name().to_owned(),
                        reason: "this tier has no file system of its own".to_owned(),
                        remedy: "give the directory under the name that it has on this machine"
                            .to_owned(),
                    });
                }
                return Err(self.unavailable(missing).into());
            }
            let writable = mount.access == Access::ReadWrite;
            let inside = helper.is_below(&*mount.dir);
            if writable && inside.map_err(|error| NativeError::Failed(error.to_string()))? {
                return Err(self
                    .unavailable(vec![Missing {
                        name: "helper".to_owned(),
                        reason: "it lies in a directory that the command may change".to_owned(),
                        remedy: "install fumehood-helper elsewhere, or give another directory"
                            .to_owned(),
                    }])
                    .into());
            }
            let execute = mount.execute;
            let overlay = mount.overlay.is_some();
            mounts.push((SpecMount { at, writable, execute, overlay }, mount.clone()));
        }
        Ok(mounts)
    }
}

/// What the helper is given to do.
struct Given<'g> {
    work: Work,
    limits: &'g NativeLimits,
    mounts: &'g [(SpecMount, NativeMount)],
    scratch: Option<&'g Path>,
}

/// Nobody hears it.
struct Unheard;

impl OutputSink for Unheard {
    fn write(&self, _stream: Stream, _bytes: &[u8]) {}
}

/// Input as a file in memory that nobody can change, and that can never be run:
/// no file system stands between such a file and `execve`. Linux has that since
/// 6.3; before, only no input can be given.
fn sealed(bytes: &[u8]) -> io::Result<OwnedFd> {
    if bytes.is_empty() {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        return Ok(rustix::fs::open("/dev/null", flags, Mode::empty())?);
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::NOEXEC_SEAL;
    let file = rustix::fs::memfd_create("stdin", flags)?;
    let mut rest = bytes;
    while !rest.is_empty() {
        let written = rustix::io::write(&file, rest)?;
        rest = rest.get(written..).unwrap_or_default();
    }
    rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0))?;
    let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals)?;
    Ok(file)
}

fn open_dir(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

fn spec_limits(limits: &NativeLimits) -> SpecLimits {
    let started = u64::from(limits.cpu.subsec_nanos() != 0);
    SpecLimits {
        cpu_s: limits.cpu.as_secs().saturating_add(started).max(1),
        memory_bytes: limits.memory_bytes,
        processes: limits.processes,
        file_bytes: limits.file_bytes,
        open_files: limits.open_files,
        scratch_bytes: limits.scratch_bytes,
    }
}

impl NativeTier for HelperTier {
    fn name(&self) -> &'static str {
        match self.kind {
            Kind::Landlock => "landlock",
            Kind::Process => "process",
        }
    }

    fn probe(&self) -> Probe {
        guarantees::probe(self.name(), self.found())
    }

    fn prepare(&self, required: &[Guarantee]) -> Result<(), Unavailable> {
        self.helper()?;
        let missing = guarantees::lacking(self.found()?, required);
        if missing.is_empty() { Ok(()) } else { Err(self.unavailable(missing)) }
    }

    fn run(
        &self,
        command: &NativeCommand,
        cancel: &CancelToken,
        output: &dyn OutputSink,
    ) -> Result<NativeResult, NativeError> {
        let (helper, found) = (self.helper()?, self.found()?);
        let mounts = self.mounts(helper, found, command)?;
        let namespaces = matches!(found.boundary, Boundary::Kernel { namespaces: true });
        let scratch = if namespaces { None } else { Some(temporary_dir()?) };
        let place = scratch.as_ref().map(Scratch::path);
        let work = Work::Command {
            argv: command.argv.clone(),
            env: environment(command, place),
            cwd: working_directory(command, place),
        };
        let given = Given { work, limits: &command.limits, mounts: &mounts, scratch: place };
        let how = (command.timeout, cancel, output, &*command.stdin);
        let ended = self.launch(helper, found.boundary, &found.groups, &given, how)?;
        if !ended.missing.is_empty() {
            return Err(self.unavailable(ended.missing).into());
        }
        Ok(NativeResult {
            end: ended.end.unwrap_or(NativeEnd::Signalled(rustix::process::Signal::KILL.as_raw())),
            stdout: ended.stdout,
            stderr: ended.stderr,
            timed_out: ended.timed_out,
            cancelled: ended.cancelled,
            memory_exceeded: ended.memory_exceeded,
            wall: ended.wall,
            cpu: ended.cpu,
            peak_memory_bytes: ended.peak_bytes,
            denials: Vec::new(),
            controls: ended.controls,
        })
    }

    fn try_overlay(&self, mount: &NativeMount) -> Result<(), String> {
        let shown = |error: &dyn std::fmt::Display| error.to_string();
        let found = self.found().map_err(|error| shown(&error))?;
        if !matches!(found.boundary, Boundary::Kernel { namespaces: true }) {
            return Err("there is no file system of its own to mount it in".to_owned());
        }
        let helper = self.helper().map_err(|error| shown(&error))?;
        let limits = NativeLimits::default();
        let command = NativeCommand {
            argv: Vec::new(),
            variables: Variables::default(),
            cwd: DEFAULT_CWD.to_owned(),
            stdin: Arc::from([].as_slice()),
            timeout: TRIAL,
            limits: limits.clone(),
            mounts: vec![mount.clone()],
        };
        let mounts = self.mounts(helper, found, &command).map_err(|error| shown(&error))?;
        let given = Given { work: Work::Nothing, limits: &limits, mounts: &mounts, scratch: None };
        let token = CancelToken::new();
        let how = (TRIAL, &token, &Unheard as &dyn OutputSink, b"".as_slice());
        let ended = self.launch(helper, found.boundary, &found.groups, &given, how);
        let ended = ended.map_err(|error| shown(&error))?;
        match (ended.missing.first(), ended.end) {
            (None, Some(NativeEnd::Exited(0))) => Ok(()),
            (Some(missing), _) => Err(missing.reason.clone()),
            (None, end) => Err(format!("a trial ended with {end:?}")),
        }
    }

    fn place_of(&self, at: &GuestPath, host: &Path) -> GuestPath {
        use std::os::unix::ffi::OsStrExt as _;
        let own = self
            .found()
            .is_ok_and(|found| matches!(found.boundary, Boundary::Kernel { namespaces: true }));
        if own {
            return at.clone();
        }
        let named = GuestPath::parse(&GuestPath::root(), host.as_os_str().as_bytes());
        named.map_or_else(|_| at.clone(), |named| named.path)
    }

    fn controls(&self) -> Vec<String> {
        self.found().map(|found| found.controls.clone()).unwrap_or_default()
    }

    fn shell(&self) -> Vec<String> {
        let there = |path: &&&str| rustix::fs::access(**path, rustix::fs::Access::EXEC_OK).is_ok();
        let shell = SHELLS.iter().find(there).unwrap_or(&"/bin/sh");
        vec![(*shell).to_owned(), "-c".to_owned()]
    }
}

fn temporary_dir() -> Result<Scratch, NativeError> {
    Scratch::new().map_err(|error| NativeError::Failed(format!("a temporary directory: {error}")))
}

/// The tier's own few variables, and the command's.
fn environment(command: &NativeCommand, place: Option<&Path>) -> Vec<(String, String)> {
    let shown = |default: &str| {
        place.map_or_else(|| default.to_owned(), |place| place.to_string_lossy().into_owned())
    };
    let own = VARIABLES.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let own =
        own.chain([("HOME".to_owned(), shown(HOME)), ("TMPDIR".to_owned(), shown(TEMPORARY))]);
    let given = command.variables.iter().map(|(name, value)| (name.to_owned(), value.to_owned()));
    let all: std::collections::BTreeMap<String, String> = own.chain(given).collect();
    all.into_iter().collect()
}

/// Where there is no `/work` of its own, a command that names no directory
/// starts in its temporary one.
fn working_directory(command: &NativeCommand, place: Option<&Path>) -> String {
    let default = Path::new(DEFAULT_CWD);
    let covers =
        |mount: &fumehood_host_fns::NativeMount| mount.at.as_bytes() == DEFAULT_CWD.as_bytes();
    match place {
        Some(place) if Path::new(&command.cwd) == default && !command.mounts.iter().any(covers) => {
            place.to_string_lossy().into_owned()
        }
        _ => command.cwd.clone(),
    }
}
