//! `bench bash`: a command that does nothing, in the tier `landlock` and in
//! bubblewrap with the same namespaces, in turn.
#![allow(clippy::disallowed_methods, reason = "this module starts the bubblewrap it compares with")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use fumehood::native::{
    CancelToken, NativeCommand, NativeEnd, NativeLimits, NativeTier, Variables,
};
use fumehood_host_fns::NoStreaming;
use serde_json::json;

use super::clock::Stopwatch;
use super::{median, milliseconds, show};
use crate::error::CliError;
use crate::native::TierArgs;

/// Where bubblewrap is; never looked for in `PATH`.
const BWRAP: &str = "/usr/bin/bwrap";
/// What is run.
const NOTHING: &str = "/bin/true";
/// What the tier shows of the system.
const SYSTEM: [&str; 7] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt"];

pub(super) fn run(runs: u32, tier: &TierArgs, as_json: bool) -> Result<i32, CliError> {
    let tier = tier.prepared()?;
    let bwrap = Path::new(BWRAP).exists();
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for number in 0..=runs {
        let (own, other) = (landlock(tier.as_ref())?, bwrap.then(bubblewrap).transpose()?);
        // The first of each finds nothing in memory.
        if number != 0 {
            ours.push(milliseconds(own));
            theirs.extend(other.map(milliseconds));
        }
    }
    let landlock_ms = median(ours);
    let bwrap_ms = bwrap.then(|| median(theirs));
    let ratio = bwrap_ms.map(|bwrap| landlock_ms / bwrap);
    let other = match (bwrap_ms, ratio) {
        (Some(ms), Some(ratio)) => format!("bubblewrap     {ms:.2} ms   ({ratio:.2} times)\n"),
        _ => format!("bubblewrap     not there ({BWRAP})\n"),
    };
    show(
        as_json,
        &json!({
            "bench": "bash",
            "tier": tier.name(),
            "controls": tier.controls(),
            "runs": runs,
            "landlock_ms": landlock_ms,
            "bwrap_ms": bwrap_ms,
            "ratio": ratio,
        }),
        &format!("{:<14} {landlock_ms:.2} ms   (median of {runs})\n{other}", tier.name()),
    );
    Ok(0)
}

/// From the start of the tier's work to its end, everything reaped.
fn landlock(tier: &dyn NativeTier) -> Result<Duration, CliError> {
    let command = NativeCommand {
        argv: vec![NOTHING.to_owned()],
        variables: Variables::default(),
        cwd: "/work".to_owned(),
        stdin: Arc::from([].as_slice()),
        timeout: Duration::from_secs(60),
        limits: NativeLimits::default(),
        mounts: Vec::new(),
    };
    let started = Stopwatch::start();
    let result = tier.run(&command, &CancelToken::new(), &NoStreaming);
    let took = started.elapsed();
    match result {
        Ok(result) if result.end == NativeEnd::Exited(0) => Ok(took),
        Ok(result) => Err(failed(tier.name(), &format!("{:?}", result.end))),
        Err(error) => Err(failed(tier.name(), &error.to_string())),
    }
}

/// The same with bubblewrap: started, waited for, its output read.
fn bubblewrap() -> Result<Duration, CliError> {
    let mut command = Command::new(BWRAP);
    command.args([
        "--unshare-user",
        "--unshare-pid",
        "--unshare-net",
        "--unshare-ipc",
        "--unshare-uts",
        "--unshare-cgroup",
        "--new-session",
        "--die-with-parent",
    ]);
    for path in SYSTEM.map(PathBuf::from) {
        match path.read_link() {
            Ok(target) => command.arg("--symlink").arg(target).arg(&path),
            Err(_) => command.arg("--ro-bind-try").arg(&path).arg(&path),
        };
    }
    command.args(["--ro-bind", "/etc", "/etc", "--proc", "/proc", "--dev", "/dev"]);
    for path in ["/tmp", "/dev/shm", "/home/agent", "/work"] {
        command.args(["--tmpfs", path]);
    }
    command.args(["--chdir", "/work", "--clearenv", "--", NOTHING]).stdin(Stdio::null());
    let started = Stopwatch::start();
    let output = command.output();
    let took = started.elapsed();
    match output {
        Ok(output) if output.status.success() => Ok(took),
        Ok(output) => Err(failed("bubblewrap", &String::from_utf8_lossy(&output.stderr))),
        Err(error) => Err(failed("bubblewrap", &error.to_string())),
    }
}

fn failed(what: &str, reason: &str) -> CliError {
    let reason = reason.trim();
    CliError::cannot_tell(format!("{what} failed ({reason}); run it by hand to see why"))
}
