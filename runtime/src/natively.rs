//! What real processes of a sandbox are given: variables, limits, directories.
//!
//! Invariant: a command sees a directory where the code sees it, with the same
//! right to it, or the sandbox is not built. Where `[[fs.rules]]` decide about
//! single files, to which no process can be held, the mounts are not shown to
//! commands beside the code.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use fumehood_host_fns::{
    Guarantee, HostMount, Missing, NativeMount, NativeSession, Unavailable, Variables,
};
use fumehood_policies::{Access, GuestPath};

use crate::error::BuildError;
use crate::host_env;
use crate::limits::Limits;
use crate::sandbox::FIXED_ENVIRONMENT;

/// Gives the variables and limits that a guest would be given.
pub(crate) fn give(
    native: &mut NativeSession,
    env: &[(String, String)],
    limits: &Limits,
) -> Result<(), BuildError> {
    let given = env.iter().filter(|(name, value)| {
        !FIXED_ENVIRONMENT.iter().any(|fixed| (fixed.0, fixed.1) == (name.as_str(), value.as_str()))
    });
    for (name, value) in given {
        let one = Variables::new([(name.clone(), value.clone())]);
        let one = one.map_err(|_| BuildError::Environment {
            name: name.clone(),
            reason: "is not passed to real processes, because programs run or load what it names; \
                     set it inside the program if it is meant",
        })?;
        native.variables = std::mem::take(&mut native.variables).with(&one);
    }
    native.timeout = limits.wall;
    native.limits.cpu = limits.cpu;
    native.limits.memory_bytes = limits.memory_bytes;
    native.limits.output_bytes = limits.broker.output_bytes;
    Ok(())
}

/// Shows it the mounts. `beside`: a guest sees them as well.
pub(crate) fn show(
    native: &mut NativeSession,
    mounts: &[HostMount],
    beside: bool,
) -> Result<(), BuildError> {
    for mount in mounts {
        let dir = Arc::new(OwnedFd::from(mount.dir.try_clone().map_err(BuildError::Descriptor)?));
        let host = host_env::name_of(&dir).map_err(BuildError::Descriptor)?;
        if beside {
            same_place(native, &mount.at, &host)?;
        }
        native.mounts.push(NativeMount {
            at: mount.at.clone(),
            dir,
            host,
            access: mount.access,
            execute: mount.access == Access::ReadWrite,
            overlay: None,
        });
    }
    Ok(())
}

/// Whether commands see the directory `host` at `at`, as the code does.
///
/// # Errors
/// [`BuildError::Native`] where the tier has no file system of its own.
pub(crate) fn same_place(
    native: &NativeSession,
    at: &GuestPath,
    host: &Path,
) -> Result<(), BuildError> {
    if native.tier.place_of(at, host) == *at {
        return Ok(());
    }
    let missing = Missing {
        name: Guarantee::PrivateMounts.name().to_owned(),
        reason: format!(
            "the code sees a directory at {at}, and commands of this tier see it under the \
             machine's own name only"
        ),
        remedy: "mount it under its own name, or use a tier with a file system of its own"
            .to_owned(),
    };
    Err(Unavailable { tier: native.tier.name().to_owned(), missing: vec![missing] }.into())
}

#[cfg(test)]
mod tests {
    use fumehood_host_fns::{
        CancelToken, NativeCommand, NativeError, NativeResult, NativeTier, OutputSink, Probe,
    };

    use super::*;
    use crate::Sandbox;

    /// A tier that starts nothing.
    struct Fake {
        /// It shows directories under any name.
        own_files: bool,
    }

    impl NativeTier for Fake {
        fn name(&self) -> &'static str {
            "fake"
        }

        fn probe(&self) -> Probe {
            let (reason, remedy, guarantees) = (String::new(), String::new(), Vec::new());
            Probe { tier: "fake".to_owned(), available: true, reason, remedy, guarantees }
        }

        fn prepare(&self, required: &[Guarantee]) -> Result<(), Unavailable> {
            let lacking = |guarantee: &Guarantee| Missing {
                name: guarantee.name().to_owned(),
                reason: "the test says so".to_owned(),
                remedy: "do without".to_owned(),
            };
            let missing: Vec<Missing> = required.iter().map(lacking).collect();
            if missing.is_empty() {
                return Ok(());
            }
            Err(Unavailable { tier: "fake".to_owned(), missing })
        }

        fn run(
            &self,
            _command: &NativeCommand,
            _cancel: &CancelToken,
            _output: &dyn OutputSink,
        ) -> Result<NativeResult, NativeError> {
            Err(NativeError::Failed("it starts nothing".to_owned()))
        }

        fn controls(&self) -> Vec<String> {
            Vec::new()
        }

        fn place_of(&self, at: &GuestPath, host: &Path) -> GuestPath {
            use std::os::unix::ffi::OsStrExt as _;
            if self.own_files {
                return at.clone();
            }
            GuestPath::parse(&GuestPath::root(), host.as_os_str().as_bytes()).unwrap().path
        }
    }

    const ALLOWED: &str = "version = 1\nflags = \"extend\"\n[bash]\naction = \"allow\"\n";

    fn session(own_files: bool) -> NativeSession {
        NativeSession::new(Arc::new(Fake { own_files }))
    }

    fn refusal(built: Result<Sandbox, BuildError>) -> Vec<String> {
        match built.map(drop) {
            Err(BuildError::Native(unavailable)) => {
                unavailable.missing.into_iter().map(|missing| missing.name).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn commands_see_each_mount_where_the_code_does_with_the_same_right() {
        let dir = tempfile::tempdir().unwrap();
        let host = dir.path().canonicalize().unwrap();
        let at = HostMount::point("/work/inputs/data").unwrap();
        for access in [Access::ReadOnly, Access::ReadWrite] {
            let mounts = [HostMount::open_at(at.clone(), &host, access, false).unwrap()];
            let mut native = session(true);
            show(&mut native, &mounts, true).unwrap();
            let [shown] = native.mounts.as_slice() else { panic!("{:?}", native.mounts) };
            assert_eq!((&shown.at, shown.access, &shown.host), (&at, access, &host));
            assert_eq!(shown.execute, access == Access::ReadWrite);
        }
    }

    #[test]
    fn a_directory_that_commands_would_see_elsewhere_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let host = dir.path().canonicalize().unwrap();
        let own = HostMount::point(host.to_str().unwrap()).unwrap();
        let elsewhere = HostMount::point("/data").unwrap();
        let shown = |at: &GuestPath, beside: bool| {
            let mount = HostMount::open_at(at.clone(), &host, Access::ReadOnly, false).unwrap();
            let mut native = session(false);
            show(&mut native, &[mount], beside).map(|()| native.mounts.len())
        };
        assert_eq!(shown(&own, true).unwrap(), 1);
        assert!(matches!(shown(&elsewhere, true), Err(BuildError::Native(_))));
        // Without a guest the tier refuses it itself, when it runs.
        assert_eq!(shown(&elsewhere, false).unwrap(), 1);
        // An input is always elsewhere.
        let builder = Sandbox::builder().policy(ALLOWED).native(session(false)).input(&host);
        assert_eq!(refusal(builder.build()), ["private-mounts"]);
    }

    #[test]
    fn what_a_policy_requires_of_the_tier_is_refused_before_anything_is_made() {
        let policy = format!("{ALLOWED}[native]\nguarantees = [\"pid-view\", \"tree-memory\"]\n");
        for only in [false, true] {
            let builder = Sandbox::builder().policy(policy.as_str());
            let builder = match only {
                true => builder.native_only(session(true)),
                false => builder.native(session(true)),
            };
            assert_eq!(refusal(builder.build()), ["pid-view", "tree-memory"]);
        }
    }
}
