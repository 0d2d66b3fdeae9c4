//! What a native tier is: a place where a real process runs inside a boundary.
//!
//! What: [`NativeTier`] and the plain data it takes and gives.
//! Why: the broker, the command line and servers use a tier without knowing
//! how it is made; the crate that makes them needs no engine.
//!
//! Invariant: a tier is prepared before it is used, and what it cannot give is
//! an [`Unavailable`] that names every missing guarantee. Everything a command
//! is given is in its [`NativeCommand`]; nothing is inherited.

mod cancel;
mod overlay;
mod variables;

#[cfg(test)]
pub(crate) mod testing;

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fumehood_policies::{Access, GuestPath};
use serde::{Deserialize, Serialize};

pub use cancel::CancelToken;
pub use overlay::NativeOverlay;
pub use variables::{FORBIDDEN_VARIABLES, MAX_NATIVE_ENVIRONMENT_BYTES, VariableError, Variables};

use crate::environment::OutputSink;

/// A property of a tier that its user relies on. The names are those of
/// `[native] guarantees` in policy text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Guarantee {
    /// Only the named directories can be reached.
    Files,
    /// Only listed system calls can be made.
    SystemCalls,
    /// Nothing can be connected to.
    Network,
    /// Nothing that was started is left when the run is over.
    ProcessTree,
    /// Other processes of this machine cannot be seen.
    PidView,
    /// Temporary directories are its own, and bounded.
    PrivateMounts,
    /// Memory is bounded over all its processes together.
    TreeMemory,
}

impl Guarantee {
    /// Every guarantee.
    pub const ALL: [Self; 7] = [
        Self::Files,
        Self::SystemCalls,
        Self::Network,
        Self::ProcessTree,
        Self::PidView,
        Self::PrivateMounts,
        Self::TreeMemory,
    ];

    /// What a tier must give to be called a boundary.
    pub const REQUIRED: [Self; 4] =
        [Self::Files, Self::SystemCalls, Self::Network, Self::ProcessTree];

    /// The name in policies, results and `doctor`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Files => "files",
            Self::SystemCalls => "system-calls",
            Self::Network => "network",
            Self::ProcessTree => "process-tree",
            Self::PidView => "pid-view",
            Self::PrivateMounts => "private-mounts",
            Self::TreeMemory => "tree-memory",
        }
    }
}

impl fmt::Display for Guarantee {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// How far a guarantee holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GuaranteeState {
    /// It holds.
    Enforced,
    /// It holds with the exception that the reason names.
    Partial,
    /// It does not hold.
    Missing,
}

/// One guarantee on this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuaranteeReport {
    /// Which one.
    pub guarantee: Guarantee,
    /// How far it holds.
    pub state: GuaranteeState,
    /// By what, or why not: the kernel's own reason where there is one.
    pub reason: String,
    /// What would make it hold; empty if it does.
    pub remedy: String,
}

/// What a tier can give on this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    /// The tier.
    pub tier: String,
    /// Whether a command could run in it.
    pub available: bool,
    /// Why not, if it is not a guarantee that is missing; else empty.
    pub reason: String,
    /// What would change that; else empty.
    pub remedy: String,
    /// Every guarantee, in the order of [`Guarantee::ALL`].
    pub guarantees: Vec<GuaranteeReport>,
}

/// Something that a tier must give and cannot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// A guarantee, or the part that is not there, such as `helper`.
    pub name: String,
    /// Why: the kernel's own reason where there is one.
    pub reason: String,
    /// What the operator could do.
    pub remedy: String,
}

/// The tier cannot be used; nothing ran.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("the {tier} tier cannot be used: {}", .missing.iter().map(sentence).collect::<Vec<_>>().join("; "))]
pub struct Unavailable {
    /// The tier.
    pub tier: String,
    /// Everything that is missing; never empty.
    pub missing: Vec<Missing>,
}

fn sentence(missing: &Missing) -> String {
    let Missing { name, reason, remedy } = missing;
    format!("`{name}` is missing ({reason}): {remedy}")
}

/// A directory that a command sees.
#[derive(Clone, Debug)]
pub struct NativeMount {
    /// Where.
    pub at: GuestPath,
    /// The directory, opened once; the tier reaches it by nothing else but
    /// what it can prove to be the same.
    pub dir: Arc<OwnedFd>,
    /// Its name on this machine when it was opened, for engines that take
    /// nothing else.
    pub host: PathBuf,
    /// How it may be used.
    pub access: Access,
    /// Whether programs in it can be run.
    pub execute: bool,
    /// Changes to it are kept apart by the kernel; the tier mounts it so or
    /// refuses.
    pub overlay: Option<Arc<NativeOverlay>>,
}

/// The numbers that bound one command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NativeLimits {
    /// Processor time of each process. At it the kernel ends the process.
    /// Default 60 s.
    pub cpu: Duration,
    /// Memory of all processes together, in bytes. At it the run is ended and
    /// says so. Default 1 GiB.
    pub memory_bytes: u64,
    /// Processes and threads at once. A further one fails with `EAGAIN`.
    /// Default 512.
    pub processes: u64,
    /// Length of one file, in bytes. Beyond it `EFBIG` and `SIGXFSZ`. Default
    /// 100 MiB.
    pub file_bytes: u64,
    /// Open descriptors of each process. A further one fails with `EMFILE`.
    /// Default 1024.
    pub open_files: u64,
    /// Bytes of the private temporary directories together. Beyond it
    /// `ENOSPC`. Default 256 MiB.
    pub scratch_bytes: u64,
    /// Bytes kept of standard output and of standard error, each; the rest is
    /// dropped and counted. Default 10 MiB.
    pub output_bytes: u64,
}

impl Default for NativeLimits {
    fn default() -> Self {
        Self {
            cpu: Duration::from_secs(60),
            memory_bytes: 1 << 30,
            processes: 512,
            file_bytes: 100 << 20,
            open_files: 1024,
            scratch_bytes: 256 << 20,
            output_bytes: 10 << 20,
        }
    }
}

/// One command with everything it is given.
#[derive(Clone, Debug)]
pub struct NativeCommand {
    /// The program, an absolute path, and its arguments.
    pub argv: Vec<String>,
    /// Variables beside the tier's own few.
    pub variables: Variables,
    /// Working directory, an absolute path inside.
    pub cwd: String,
    /// Standard input; without it there is nothing to read.
    pub stdin: Arc<[u8]>,
    /// Wall-clock time until everything is ended.
    pub timeout: Duration,
    /// What bounds it.
    pub limits: NativeLimits,
    /// The directories it sees beside the system's own.
    pub mounts: Vec<NativeMount>,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NativeEnd {
    /// By itself, with this code.
    Exited(i32),
    /// By this signal.
    Signalled(i32),
}

impl NativeEnd {
    /// The code as Python's `subprocess` gives it: minus the signal.
    #[must_use]
    pub fn code(self) -> i32 {
        match self {
            Self::Exited(code) => code,
            Self::Signalled(signal) => signal.saturating_neg(),
        }
    }
}

/// Output as far as it was kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Captured {
    /// The first bytes.
    pub bytes: Vec<u8>,
    /// How many came after them.
    pub dropped: u64,
}

impl Captured {
    /// Takes some more bytes, of which only the first `limit` in all are kept.
    /// Returns those that were.
    pub fn take<'b>(&mut self, bytes: &'b [u8], limit: u64) -> &'b [u8] {
        let room = limit.saturating_sub(self.bytes.len() as u64);
        let kept = usize::try_from(room).unwrap_or(usize::MAX).min(bytes.len());
        let (keep, rest) = bytes.split_at_checked(kept).unwrap_or((bytes, &[]));
        self.bytes.extend_from_slice(keep);
        self.dropped = self.dropped.saturating_add(rest.len() as u64);
        keep
    }

    /// As text; what is not UTF-8 is shown as U+FFFD.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

/// What a command did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NativeResult {
    /// How it ended.
    pub end: NativeEnd,
    /// Standard output, also if it was ended early.
    pub stdout: Captured,
    /// Standard error, also if it was ended early.
    pub stderr: Captured,
    /// Its time was over.
    pub timed_out: bool,
    /// It was ended by its [`CancelToken`].
    pub cancelled: bool,
    /// The memory limit ended it, or was passed.
    pub memory_exceeded: bool,
    /// From the start of the tier's work to its end.
    pub wall: Duration,
    /// Processor time of everything in it, as far as the tier knows.
    pub cpu: Duration,
    /// Largest memory, in bytes, as far as the tier knows.
    pub peak_memory_bytes: u64,
    /// What the tier refused it, one sentence each.
    pub denials: Vec<String>,
    /// The controls that were really active, by name.
    pub controls: Vec<String>,
}

/// A command was not carried through.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NativeError {
    /// A guarantee is missing; nothing ran.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// The command cannot be run as it was given; nothing ran. A sentence that
    /// names nothing of the host.
    #[error("{0}")]
    Command(String),
    /// The tier itself failed; the detail is for the log only.
    #[error("the native tier failed: {0}")]
    Failed(String),
}

/// A place where real processes run.
pub trait NativeTier: Send + Sync {
    /// Its name, as policies and results have it.
    fn name(&self) -> &'static str;

    /// What this machine can give, found out without a command.
    fn probe(&self) -> Probe;

    /// Makes sure that the tier's own guarantees hold, and the `required` ones
    /// beside them. Cheap after the first time.
    ///
    /// # Errors
    /// [`Unavailable`] names everything that is missing.
    fn prepare(&self, required: &[Guarantee]) -> Result<(), Unavailable>;

    /// Runs one command to its end, its timeout or its cancellation. Blocks.
    /// Nothing of it is left when this returns.
    ///
    /// # Errors
    /// [`NativeError`]; then nothing of it is left either.
    fn run(
        &self,
        command: &NativeCommand,
        cancel: &CancelToken,
        output: &dyn OutputSink,
    ) -> Result<NativeResult, NativeError>;

    /// Names of the controls that a run in this tier has on this machine.
    fn controls(&self) -> Vec<String>;

    /// Whether a command can be given a directory as an overlay; found out by
    /// mounting this one with nothing in it.
    ///
    /// # Errors
    /// A sentence: why not.
    fn try_overlay(&self, mount: &NativeMount) -> Result<(), String> {
        let _ = mount;
        Err(format!("the {} tier mounts no overlays", self.name()))
    }

    /// Where commands of this tier see a directory of the host that is meant to
    /// be at `at`: a tier without a file system of its own has only the host's
    /// name for it.
    fn place_of(&self, at: &GuestPath, host: &std::path::Path) -> GuestPath {
        let _ = host;
        at.clone()
    }

    /// As whom commands run, where that is not this user: what they may change
    /// has to be theirs.
    fn runs_as(&self) -> Option<(u32, u32)> {
        None
    }

    /// The shell that a command line is given to, with its arguments.
    fn shell(&self) -> Vec<String> {
        vec!["/bin/sh".to_owned(), "-c".to_owned()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_kept_up_to_the_limit_and_the_rest_counted() {
        let mut captured = Captured::default();
        assert_eq!(captured.take(b"abc", 5), b"abc");
        assert_eq!(captured.take(b"defg", 5), b"de");
        assert_eq!(captured.take(b"hi", 5), b"");
        assert_eq!((captured.bytes.as_slice(), captured.dropped), (b"abcde".as_slice(), 4));
        let broken = Captured { bytes: b"a\xffb".to_vec(), dropped: 0 };
        assert_eq!(broken.text(), "a\u{fffd}b");
    }

    #[test]
    fn what_is_missing_is_named_all_of_it() {
        let missing = |name: &str| Missing {
            name: name.to_owned(),
            reason: "because".to_owned(),
            remedy: "do so".to_owned(),
        };
        let error = Unavailable {
            tier: "landlock".to_owned(),
            missing: vec![missing("files"), missing("network")],
        };
        let text = error.to_string();
        assert!(text.contains("`files`") && text.contains("`network`") && text.contains("do so"));
    }

    #[test]
    fn guarantees_have_the_names_of_policy_text() {
        for guarantee in Guarantee::ALL {
            let text = format!("version = 1\n[native]\nguarantees = [\"{guarantee}\"]\n");
            assert!(fumehood_policies::PolicyFile::parse(&text, "test").is_ok(), "{guarantee}");
            let json = serde_json::to_string(&guarantee).unwrap_or_default();
            assert_eq!(json, format!("\"{guarantee}\""));
        }
    }
}
