//! What code may reach: the arguments of `run` and `repl`, handed to the
//! library.
//!
//! Invariant: what a program can change never holds the policy that confines
//! it or the records of what it did, whichever command runs it.

use std::ffi::OsStr;
use std::path::Path;

use fumehood::SandboxBuilder;
use fumehood::policy::PolicyFile;

use crate::args::{MountArg, ReachArgs};
use crate::error::CliError;
use crate::{files, net, project};

/// Every directory of the host that the code is to see: of the arguments, the
/// project and the policy.
pub(crate) fn mounts(args: &ReachArgs, policy: Option<&PolicyFile>) -> Vec<MountArg> {
    let declared = policy.map_or(&[][..], PolicyFile::mounts).iter().map(|mount| MountArg {
        guest: mount.at.to_string(),
        host: (&mount.host).into(),
        access: mount.access,
        force: false,
    });
    let project = project::as_mount(&args.project);
    args.mount.iter().chain(&args.force_mount).cloned().chain(project).chain(declared).collect()
}

/// Hands the arguments on, but for the policy. `mounts` are those of
/// [`mounts`], `ceiling` is the name of a second policy.
///
/// # Errors
/// One sentence; nothing has run.
pub(crate) fn apply(
    args: &ReachArgs,
    mounts: &[MountArg],
    ceiling: Option<&OsStr>,
    mut sandbox: SandboxBuilder,
) -> Result<SandboxBuilder, CliError> {
    project::check_places(mounts)?;
    // The name of a preset is no file.
    for text in [args.policy.as_deref(), ceiling].into_iter().flatten().map(Path::new) {
        if files::canonical(text).is_some() {
            sandbox = sandbox.out_of_reach(text);
        }
    }
    for mount in args.mount.iter().chain(&args.force_mount) {
        files::check_directory(&mount.host)?;
        sandbox = sandbox.mount(&mount.guest, &mount.host, mount.access, mount.force);
    }
    for (name, value) in &args.env {
        sandbox = sandbox.env(name, value);
    }
    if args.file_tools {
        sandbox = sandbox.file_tools();
    }
    sandbox = project::apply(&args.project, sandbox)?;
    net::apply(&args.net, sandbox)
}
