//! Real programs in the tiers of the helper: what they reach, what bounds them,
//! what is left of them, and when nothing is started at all.
//!
//! Run as root, everything is run a second time as an ordinary user.
#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    missing_docs,
    reason = "tests"
)]

mod attacks;
mod contract;
mod leaks;
mod limits;
mod output;
mod refusals;
mod users;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use fumehood_host_fns::{
    Access, CancelToken, NativeCommand, NativeError, NativeLimits, NativeMount, NativeResult,
    NativeTier, NoStreaming, Variables,
};
use fumehood_native_tiers::{Helper, HelperTier};
use fumehood_policies::GuestPath;

/// Where the helper is when the tests are run as another user.
pub(crate) const HELPER: &str = "FUMEHOOD_TEST_HELPER";

pub(crate) fn helper_path() -> PathBuf {
    std::env::var_os(HELPER)
        .map_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_fumehood-helper")), PathBuf::from)
}

pub(crate) fn helper() -> Arc<Helper> {
    static HELPER: OnceLock<Arc<Helper>> = OnceLock::new();
    Arc::clone(HELPER.get_or_init(|| {
        let path = helper_path();
        // Files of a checkout may be writable by a group.
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        let _ = std::fs::set_permissions(&path, mode);
        Arc::new(Helper::open(&path).unwrap())
    }))
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

pub(crate) fn landlock() -> HelperTier {
    HelperTier::landlock(Ok(helper()))
}

pub(crate) fn process() -> HelperTier {
    HelperTier::process(Ok(helper()))
}

/// A command of the shell, with what tests mostly want.
pub(crate) fn command(tier: &dyn NativeTier, text: &str) -> NativeCommand {
    let mut argv = tier.shell();
    argv.push(text.to_owned());
    NativeCommand {
        argv,
        variables: Variables::default(),
        cwd: "/work".to_owned(),
        stdin: Arc::from([].as_slice()),
        timeout: Duration::from_secs(60),
        limits: NativeLimits::default(),
        mounts: Vec::new(),
    }
}

pub(crate) fn try_run(
    tier: &dyn NativeTier,
    command: &NativeCommand,
) -> Result<NativeResult, NativeError> {
    tier.run(command, &CancelToken::new(), &NoStreaming)
}

pub(crate) fn run_with(
    tier: &dyn NativeTier,
    text: &str,
    change: impl FnOnce(&mut NativeCommand),
) -> NativeResult {
    let mut command = command(tier, text);
    change(&mut command);
    try_run(tier, &command).unwrap_or_else(|error| panic!("{text}: {error}"))
}

pub(crate) fn run(tier: &dyn NativeTier, text: &str) -> NativeResult {
    run_with(tier, text, |_| {})
}

/// Both streams, for messages.
pub(crate) fn said(result: &NativeResult) -> String {
    format!("{:?} {} {}", result.end, result.stdout.text(), result.stderr.text())
}

pub(crate) fn mount(host: &Path, at: &str, access: Access, execute: bool) -> NativeMount {
    let dir: OwnedFd = std::fs::File::open(host).unwrap().into();
    NativeMount {
        at: GuestPath::parse(&GuestPath::root(), at.as_bytes()).unwrap().path,
        dir: Arc::new(dir),
        host: host.to_owned(),
        access,
        execute,
        overlay: None,
    }
}

/// Runs on a thread whose system calls of these numbers fail, and those of
/// every process it starts.
pub(crate) fn with_failing<T: Send>(calls: &[(i64, i32)], work: impl FnOnce() -> T + Send) -> T {
    use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
    let arch = std::env::consts::ARCH.try_into().unwrap();
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            for (number, errno) in calls {
                let rules = [(*number, Vec::new())].into_iter().collect();
                let error = SeccompAction::Errno(u32::try_from(*errno).unwrap());
                let filter = SeccompFilter::new(rules, SeccompAction::Allow, error, arch).unwrap();
                let program: BpfProgram = filter.try_into().unwrap();
                seccompiler::apply_filter(&program).unwrap();
            }
            work()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// As a container without user namespaces is.
pub(crate) fn without_namespaces<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    with_failing(&[(libc::SYS_unshare, libc::EPERM)], work)
}
