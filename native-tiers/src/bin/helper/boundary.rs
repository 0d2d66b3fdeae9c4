//! What is put around a command in its own process, last thing before it
//! starts.
//!
//! Invariant: everything is verified after it was set, and what is not so is a
//! [`Refusal`]; Landlock is enforced in full at the version of this kernel, or
//! nothing runs.

use std::io;
use std::os::fd::OwnedFd;

use fumehood_host_fns::Missing;
use fumehood_native_tiers::protocol::{Boundary, SpecLimits};
use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible as _, PathBeneath,
    Ruleset, RulesetAttr as _, RulesetCreated, RulesetCreatedAttr as _, RulesetStatus, Scope,
};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Resource, Rlimit};
use rustix::thread::{CapabilitiesSecureBits, CapabilitySet, CapabilitySets};

use crate::supervise::{Given, missing};
use crate::view::{DEVICES, SCRATCH, SETTINGS, SYSTEM, View};
use crate::{raw, seccomp};
use fumehood_policies::weaken;

/// Lowest version with namespaces: files cannot be cut before 3. What 5 and 6
/// add (devices, signals and sockets of others) the namespaces keep out.
const LEAST_WITH_NAMESPACES: i32 = 3;
/// Lowest version without: signals and sockets of others are kept out since 6.
const LEAST_ALONE: i32 = 6;

/// Something cannot be enforced; nothing is started.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) missing: Vec<Missing>,
}

impl Refusal {
    pub(crate) fn one(name: &str, reason: impl Into<String>, remedy: &str) -> Self {
        Self { missing: vec![missing(name, reason, remedy)] }
    }
}

/// Puts the boundary around this process, for ever. Gives the names of the
/// controls.
pub(crate) fn install(given: &Given, view: Option<&View>) -> Result<Vec<String>, Refusal> {
    let limits = &given.spec.limits;
    set_limits(limits, view.is_some()).map_err(|error| {
        Refusal::one("limits", error.to_string(), "ask for less than the limits of this process")
    })?;
    let mut controls =
        vec!["limits".to_owned(), "own-session".to_owned(), "process-tree".to_owned()];
    if given.spec.control_group {
        controls.push("control-group".to_owned());
    } else if view.is_none_or(|view| view.proc.is_some()) {
        controls.push("memory-watch".to_owned());
    }
    let Boundary::Kernel { namespaces } = given.spec.boundary else { return Ok(controls) };
    if let Some(view) = view {
        controls.extend(view.controls.iter().map(|name| (*name).to_owned()));
    }
    if !weaken::off(weaken::Defence::Landlock) {
        let version = restrict_files(given, namespaces)?;
        controls.push(format!("landlock-{version}"));
    }
    drop_capabilities().map_err(|error| {
        Refusal::one("no-capabilities", error.to_string(), "start without capabilities")
    })?;
    controls.push("no-capabilities".to_owned());
    rustix::thread::set_no_new_privs(true).map_err(|error| {
        Refusal::one("no-new-privileges", error.to_string(), "use a kernel from 3.5 on")
    })?;
    controls.push("no-new-privileges".to_owned());
    if weaken::off(weaken::Defence::Filter) {
        return Ok(controls);
    }
    seccomp::install(!namespaces).map_err(|error| {
        let remedy = "use a kernel with CONFIG_SECCOMP_FILTER, or allow `seccomp` in the container";
        Refusal::one("system-calls", error.to_string(), remedy)
    })?;
    controls.push("seccomp".to_owned());
    Ok(controls)
}

/// Sets a limit, or less if this process may not have as much.
fn limit(resource: Resource, soft: u64, hard: u64) -> io::Result<()> {
    let most = rustix::process::getrlimit(resource).maximum.unwrap_or(u64::MAX);
    let (soft, hard) = (soft.min(most), hard.min(most));
    let new = Rlimit { current: Some(soft), maximum: Some(hard) };
    Ok(rustix::process::setrlimit(resource, new)?)
}

fn set_limits(limits: &SpecLimits, namespaces: bool) -> io::Result<()> {
    if !weaken::off(weaken::Defence::CoreFiles) {
        limit(Resource::Core, 0, 0)?;
    }
    limit(Resource::Cpu, limits.cpu_s, limits.cpu_s.saturating_add(1))?;
    limit(Resource::Fsize, limits.file_bytes, limits.file_bytes)?;
    if !weaken::off(weaken::Defence::OpenFiles) {
        limit(Resource::Nofile, limits.open_files, limits.open_files)?;
    }
    limit(Resource::Msgqueue, 0, 0)?;
    // The watch, or a control group, ends a run that has more than its limit.
    // This is for what grows faster than the watch looks; it has to be far
    // beyond, since the kernel counts here what was never touched, such as the
    // 8 MiB of each thread's stack.
    let data = limits.memory_bytes.saturating_mul(4).saturating_add(1 << 30);
    limit(Resource::Data, data, data)?;
    if namespaces {
        // Counted in the user namespace, the two processes of the helper among
        // them. Outside it would count everything of this user; the watch does
        // it there.
        let processes = limits.processes.saturating_add(2);
        limit(Resource::Nproc, processes, processes)?;
    }
    rustix::process::umask(Mode::from_raw_mode(0o022));
    Ok(())
}

/// Gives up every capability and the way to get one.
fn drop_capabilities() -> io::Result<()> {
    if weaken::off(weaken::Defence::Capabilities) {
        return Ok(());
    }
    let all = (0..64).map(|number| CapabilitySet::from_bits_retain(1 << number));
    let may = rustix::thread::capabilities(None)?.effective.contains(CapabilitySet::SETPCAP);
    if may {
        for capability in all {
            match rustix::thread::remove_capability_from_bounding_set(capability) {
                Ok(()) => {}
                // One more than the kernel has.
                Err(rustix::io::Errno::INVAL) => break,
                Err(error) => return Err(error.into()),
            }
        }
        // A user id of 0 is no reason to have capabilities.
        rustix::thread::set_capabilities_secure_bits(
            CapabilitiesSecureBits::NO_ROOT
                | CapabilitiesSecureBits::NO_ROOT_LOCKED
                | CapabilitiesSecureBits::NO_SETUID_FIXUP
                | CapabilitiesSecureBits::NO_SETUID_FIXUP_LOCKED
                | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE
                | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE_LOCKED,
        )?;
    }
    rustix::thread::clear_ambient_capability_set()?;
    let none = CapabilitySet::empty();
    let none = CapabilitySets { effective: none, permitted: none, inheritable: none };
    rustix::thread::set_capabilities(None, none)?;
    let left = rustix::thread::capabilities(None)?;
    if left.effective.is_empty() && left.permitted.is_empty() && left.inheritable.is_empty() {
        Ok(())
    } else {
        Err(io::Error::other("capabilities are left"))
    }
}

fn restrict_files(given: &Given, namespaces: bool) -> Result<i32, Refusal> {
    let version = raw::landlock_version().map_err(|error| {
        let remedy = match error.raw_os_error() {
            Some(libc::EOPNOTSUPP) => "add `landlock` to the `lsm=` of the kernel's command line",
            _ => "use a kernel from 6.2 on with CONFIG_SECURITY_LANDLOCK, or allow its calls in the container",
        };
        Refusal::one("files", format!("Landlock: {error}"), remedy)
    })?;
    let least = if namespaces { LEAST_WITH_NAMESPACES } else { LEAST_ALONE };
    if version < least {
        let reason = format!("Landlock has version {version} here and {least} is needed");
        let remedy = if namespaces {
            "use a kernel from 6.2 on"
        } else {
            "use a kernel from 6.12 on, or allow user namespaces"
        };
        return Err(Refusal::one("files", reason, remedy));
    }
    let rules = rules(given, namespaces, ABI::from(version))
        .map_err(|error| Refusal::one("files", error.to_string(), "see `doctor`"))?;
    let status = rules
        .restrict_self()
        .map_err(|error| Refusal::one("files", error.to_string(), "see `doctor`"))?;
    if status.ruleset != RulesetStatus::FullyEnforced {
        let reason = format!("Landlock is {:?}", status.ruleset);
        return Err(Refusal::one("files", reason, "use a newer kernel"));
    }
    Ok(version)
}

fn open(path: &str) -> io::Result<Option<OwnedFd>> {
    match rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
        Ok(fd) => Ok(Some(fd)),
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

type Failure = Box<dyn std::error::Error>;

struct Rules {
    created: RulesetCreated,
    version: ABI,
}

impl Rules {
    /// Allows what of `access` fits the kind of what was opened.
    fn allow(self, fd: &OwnedFd, access: BitFlags<AccessFs>) -> Result<Self, Failure> {
        let found = rustix::fs::fstat(fd)?;
        let directory =
            rustix::fs::FileType::from_raw_mode(found.st_mode) == rustix::fs::FileType::Directory;
        let access = if directory { access } else { access & AccessFs::from_file(self.version) };
        let created = self.created.add_rule(PathBeneath::new(fd, access))?;
        Ok(Self { created, version: self.version })
    }

    fn allow_path(self, path: &str, access: BitFlags<AccessFs>) -> Result<Self, Failure> {
        match open(path)? {
            Some(fd) => self.allow(&fd, access),
            None => Ok(self),
        }
    }
}

fn rules(given: &Given, namespaces: bool, version: ABI) -> Result<RulesetCreated, Failure> {
    let all = AccessFs::from_all(version);
    let look = AccessFs::ReadFile | AccessFs::ReadDir;
    let run = look | AccessFs::Execute;
    let never =
        AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::IoctlDev | AccessFs::ResolveUnix;
    let change = all & !(never | AccessFs::Execute);
    let mut ruleset =
        Ruleset::default().set_compatibility(CompatLevel::HardRequirement).handle_access(all)?;
    let network = AccessNet::from_all(version);
    if !network.is_empty() {
        ruleset = ruleset.handle_access(network)?;
    }
    let scope = Scope::from_all(version);
    if !scope.is_empty() {
        ruleset = ruleset.scope(scope)?;
    }
    let mut rules = Rules { created: ruleset.create()?, version };
    for path in SYSTEM {
        rules = rules.allow_path(path, run)?;
    }
    for path in SETTINGS {
        rules = rules.allow_path(path, look)?;
    }
    for path in DEVICES {
        rules = rules.allow_path(path, look | AccessFs::WriteFile)?;
    }
    if namespaces {
        // The root and `/proc` are the run's own. What is mounted below the
        // root is looked at there, and run or changed by rules of its own.
        rules = rules.allow_path("/", look)?;
        for path in SCRATCH {
            let taken = given.spec.mounts.iter().any(|mount| mount.at == *path);
            if !taken {
                rules = rules.allow_path(path, change)?;
            }
        }
    }
    if let Some(scratch) = given.scratch.as_ref().filter(|_| !namespaces) {
        rules = rules.allow(scratch, change)?;
    }
    for (mount, handle) in given.spec.mounts.iter().zip(&given.mounts) {
        let mut access = if mount.writable { change } else { look };
        if mount.execute {
            access |= AccessFs::Execute;
        }
        rules = match mount.overlay {
            // What was mounted is not the directory that it lies over.
            true => rules.allow_path(&mount.at, access)?,
            false => rules.allow(handle, access)?,
        };
    }
    Ok(rules.created)
}
