//! Defences that a test build can leave out, one at a time.
//!
//! What: [`off`] is asked where a defence is; in every build but one with the
//! Cargo feature `weaken` it is constant and nothing of this is left.
//! Why: a row of the scoreboard means something only if it fails without the
//! defence it is about.
//!
//! The table of addresses is not among them: no feature relaxes it.
//!
//! Invariant: nothing is off until `set` says so, and there is no `set`
//! without the feature. The feature is in no default and no release build, and
//! a build with it carries `MARK`, which a test looks for in the shipped
//! programs.

macro_rules! defences {
    ($($name:ident $text:literal $what:literal,)*) => {
        /// A defence that can be left out.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Defence {
            $(#[doc = $what] $name,)*
        }

        #[cfg(feature = "weaken")]
        impl Defence {
            /// Every defence.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The name in tables.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

defences! {
    ForbiddenMounts "forbidden-mounts" "Directories that are everything are refused as mounts.",
    MountOverlap "mount-overlap" "A mount inside or above another is refused.",
    ReadOnlyMounts "read-only-mounts" "A mount that is read only is not written.",
    OutputCap "output-cap" "Output is kept up to a number of bytes.",
    CallBudget "call-budget" "Host calls are counted and end the run.",
    DescriptorLimit "descriptor-limit" "Open files are counted.",
    GuardedFiles "guarded-files" "Files that tools of the host run are held back.",
    CacheOwner "cache-owner" "Compiled code is taken only from files of this user.",
    AuditChain "audit-chain" "Each record of a log has to hash to what the next one says.",
    Witness "witness" "A log is compared with its witness.",
    GrantScope "grant-scope" "A grant covers what was shown and no more.",
    ToolSchema "tool-schema" "Arguments of a tool are checked against its schema.",
    Variables "variables" "Variables that make tools run something else are refused.",
    HelperOwner "helper-owner" "A helper that others may write to is refused.",
    Filter "filter" "System calls pass a filter.",
    Capabilities "capabilities" "Capabilities are given up.",
    Landlock "landlock" "Landlock is put on.",
    MemoryWatch "memory-watch" "Memory of a run's processes is counted together.",
    OpenFiles "open-files" "Descriptors of a process are limited.",
    CoreFiles "core-files" "No core file is written.",
    Noexec "noexec" "Directories that can be written hold no programs.",
}

#[cfg(feature = "weaken")]
mod switches {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::Defence;

    /// In every program of a build with the feature, and in no other.
    pub const MARK: &str = "fumehood-weakened-build-not-for-use-5d1c";

    static OFF: AtomicU64 = AtomicU64::new(0);

    fn bit(defence: Defence) -> u64 {
        1 << (defence as u32)
    }

    /// Whether a defence is left out.
    #[must_use]
    pub fn off(defence: Defence) -> bool {
        OFF.load(Ordering::SeqCst) & bit(defence) != 0
    }

    /// Leaves out these defences, in this process, from now on.
    pub fn set(defences: &[Defence]) {
        let bits = defences.iter().fold(0, |bits, defence| bits | bit(*defence));
        set_bits(bits);
    }

    /// What is off, to be handed to another process of the same build.
    #[must_use]
    pub fn bits() -> u64 {
        // Keeps the mark in the program.
        std::hint::black_box(MARK);
        OFF.load(Ordering::SeqCst)
    }

    /// Takes over what another process said.
    pub fn set_bits(bits: u64) {
        std::hint::black_box(MARK);
        OFF.store(bits, Ordering::SeqCst);
    }
}

#[cfg(feature = "weaken")]
pub use switches::{MARK, bits, off, set, set_bits};

/// Whether a defence is left out: never.
#[cfg(not(feature = "weaken"))]
#[inline(always)]
#[must_use]
pub const fn off(_: Defence) -> bool {
    false
}
