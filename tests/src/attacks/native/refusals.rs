//! K-26 to K-43: a boundary that cannot be put up whole is not put up, and what
//! would be started in its place is not started.

use std::path::Path;
use std::sync::Arc;

use fumehood_host_fns::{Access, HostMount, NativeMount, NativeTier};
use fumehood_native_tiers::{Helper, HelperTier};
use fumehood_policies::GuestPath;

use super::{command, run, run_in};
use crate::harness::machine;
use crate::harness::{Attack, Attempt, Expected, Observed, REACHED, STOPPED, Setting, Tier, World};

const NAMED: &str = "what is missing is found by doing it once, and named before anything runs";

pub(super) fn all() -> Vec<Attack> {
    let mut all = without_features();
    all.extend(helpers());
    all.extend([extra_thread(), whole_machine()]);
    all
}

/// A tier that is made where these system calls fail, and what it then does.
fn where_fails(world: &World<'_>, calls: &'static [(i64, i32)]) -> Observed {
    let helper =
        match world.stage().native(Tier::Landlock).and_then(|_| world.stage().helper_file()) {
            Ok(helper) => helper,
            Err(capability) => return Observed::waiting(capability),
        };
    let ran = machine::with_failing(calls, move || {
        let tier = HelperTier::landlock(Ok(helper));
        let mut observed = match run(&tier, &command(&tier, "echo REACHED")) {
            Ok(result) if result.stdout.text() == "REACHED\n" => Observed::fact(REACHED),
            Ok(result) => Observed::fact(super::said(&result)),
            Err(error) => Observed::refused(error.to_string()),
        };
        observed.notes.extend(
            tier.controls()
                .iter()
                .any(|name| name == "user-namespace")
                .then(|| "in namespaces".to_owned()),
        );
        observed
    });
    match ran {
        Ok(observed) => observed,
        Err(error) => Observed::broken(error),
    }
}

fn without_features() -> Vec<Attack> {
    type Failing = &'static [(i64, i32)];
    const NO_LANDLOCK: Failing = &[(libc::SYS_landlock_create_ruleset, libc::ENOSYS)];
    const OFF_LANDLOCK: Failing = &[(libc::SYS_landlock_restrict_self, libc::EPERM)];
    const NO_FILTERS: Failing = &[(libc::SYS_seccomp, libc::ENOSYS)];
    const NO_NAMESPACES: Failing = &[(libc::SYS_unshare, libc::EPERM)];
    let runs = |calls: Failing| {
        Attempt::Host(Arc::new(move |world: &World<'_>, _: &Setting| where_fails(world, calls)))
    };
    let one = |id, property, calls: Failing, expected| {
        Attack::host(id, property, move |world, _| where_fails(world, calls))
            .tier(Tier::Landlock)
            .control(runs(&[]), Expected::Harmless(REACHED))
            .expect(expected, NAMED)
    };
    vec![
        one(
            "K-26",
            "where no filter over system calls can be set nothing runs",
            NO_FILTERS,
            Expected::Refused(&["system-calls"]),
        ),
        one(
            "K-32",
            "where the kernel has no Landlock nothing runs",
            NO_LANDLOCK,
            Expected::Refused(&["files", "Landlock"]),
        ),
        one(
            "K-32d",
            "where Landlock can be asked for and not put on nothing runs",
            OFF_LANDLOCK,
            Expected::Refused(&["files"]),
        ),
        one(
            "K-28",
            "where user namespaces are forbidden the required guarantees still hold",
            NO_NAMESPACES,
            Expected::Harmless(REACHED),
        ),
        Attack::host(
            "K-28b",
            "what needs a user namespace is refused by name where there is none",
            |world, _| pid_view(world, NO_NAMESPACES),
        )
        .tier(Tier::Landlock)
        .control(
            Attempt::Host(Arc::new(|world, _| pid_view(world, &[]))),
            Expected::Harmless(REACHED),
        )
        .expect(Expected::Refused(&["pid-view"]), NAMED),
        Attack::host(
            "K-29",
            "in a container without namespaces a file outside stays unreachable",
            |world, _| file_outside(world, Tier::Landlock, NO_NAMESPACES),
        )
        .tier(Tier::Landlock)
        .control(
            Attempt::Host(Arc::new(|world, _| file_outside(world, Tier::Process, &[]))),
            Expected::Harmless(REACHED),
        )
        .expect(Expected::Stopped, "Landlock alone holds the rules for files"),
    ]
}

fn pid_view(world: &World<'_>, calls: &'static [(i64, i32)]) -> Observed {
    let helper =
        match world.stage().native(Tier::Landlock).and_then(|_| world.stage().helper_file()) {
            Ok(helper) => helper,
            Err(capability) => return Observed::waiting(capability),
        };
    let asked = machine::with_failing(calls, move || {
        HelperTier::landlock(Ok(helper)).prepare(&[fumehood_host_fns::Guarantee::PidView])
    });
    match asked {
        Ok(Ok(())) => Observed::fact(REACHED),
        Ok(Err(unavailable)) => Observed::refused(unavailable.to_string()),
        Err(error) => Observed::broken(error),
    }
}

fn file_outside(world: &World<'_>, tier: Tier, calls: &'static [(i64, i32)]) -> Observed {
    let helper = match world.stage().native(tier).and_then(|_| world.stage().helper_file()) {
        Ok(helper) => helper,
        Err(capability) => return Observed::waiting(capability),
    };
    let secret = world.path("beyond");
    if let Err(error) = machine::write(&secret, "REACHED\n") {
        return Observed::broken(error.to_string());
    }
    let ran = machine::with_failing(calls, move || {
        let tier = match tier {
            Tier::Process => HelperTier::process(Ok(helper)),
            _ => HelperTier::landlock(Ok(helper)),
        };
        let mut cat = command(&tier, "cat \"$0\"");
        cat.argv.push(secret.to_string_lossy().into_owned());
        run(&tier, &cat)
    });
    match ran {
        Ok(Ok(result)) if result.stdout.text().contains("REACHED") => Observed::fact(REACHED),
        Ok(Ok(result)) if result.stderr.text().contains("Permission denied") => {
            Observed::fact(STOPPED)
        }
        Ok(Ok(result)) => Observed::fact(super::said(&result)),
        Ok(Err(error)) => Observed::broken(error.to_string()),
        Err(error) => Observed::broken(error),
    }
}

/// A copy of the helper, changed, and what a tier with it says.
fn with_copy(
    world: &World<'_>,
    change: impl Fn(&Path) -> std::io::Result<()>,
    access: Option<Access>,
) -> Observed {
    let Ok(helper) = world.stage().helper_file() else {
        return Observed::waiting(crate::harness::Capability::Helper);
    };
    let directory = world.path("helpers");
    let copy = directory.join("fumehood-helper");
    let made = machine::make_directory(&directory)
        .and_then(|()| machine::copy(helper.path(), &copy))
        .and_then(|()| machine::set_mode(&copy, 0o755))
        .and_then(|()| change(&copy));
    if let Err(error) = made {
        return Observed::broken(error.to_string());
    }
    let tier = HelperTier::process(Helper::open(&copy).map(Arc::new));
    let mut wanted = command(&tier, "echo REACHED");
    if let Some(access) = access {
        let dir = match machine::open_directory(&directory) {
            Ok(dir) => Arc::new(dir),
            Err(error) => return Observed::broken(error.to_string()),
        };
        let name = directory.to_string_lossy().into_owned();
        let Ok(at) = GuestPath::parse(&GuestPath::root(), name.as_bytes()) else {
            return Observed::broken("the directory is no path");
        };
        wanted.mounts = vec![NativeMount {
            at: at.path,
            dir,
            host: directory,
            access,
            execute: false,
            overlay: None,
        }];
    }
    match run(&tier, &wanted) {
        Ok(result) if result.stdout.text() == "REACHED\n" => Observed::fact(REACHED),
        Ok(result) => Observed::fact(super::said(&result)),
        Err(error) => Observed::refused(error.to_string()),
    }
}

fn helpers() -> Vec<Attack> {
    type Change = fn(&Path) -> std::io::Result<()>;
    let one = |id, property, change: Change, access: Option<Access>, expected, reason| {
        let usual = move |world: &World<'_>, _: &Setting| {
            with_copy(world, |_| Ok(()), access.map(|_| Access::ReadOnly))
        };
        Attack::host(id, property, move |world, _| with_copy(world, change, access))
            // A program that was just written cannot be run while a process that
            // another attack starts has it open.
            .alone()
            .tier(Tier::Process)
            .control(Attempt::Host(Arc::new(usual)), Expected::Harmless(REACHED))
            .expect(expected, reason)
    };
    vec![
        one(
            "K-43",
            "a helper that others may write to is not started",
            |copy| machine::set_mode(copy, 0o777),
            None,
            Expected::Refused(&["helper", "written by others"]),
            "owner and mode are judged on the open descriptor",
        ),
        one(
            "K-43b",
            "a helper that is a link is not followed",
            |copy| {
                let moved = copy.with_extension("moved");
                machine::rename(copy, &moved)?;
                std::os::unix::fs::symlink(&moved, copy)
            },
            None,
            Expected::Refused(&["helper", "symbolic links"]),
            "the helper is opened without following a link",
        ),
        one(
            "K-43c",
            "another program in place of the helper is found out and refused",
            |copy| machine::write(copy, "#!/bin/sh\necho REACHED\n"),
            None,
            Expected::Refused(&["helper"]),
            "the helper has to answer by the protocol before anything is run",
        ),
        one(
            "K-43d",
            "a helper in a directory that the command may write to is refused",
            |_| Ok(()),
            Some(Access::ReadWrite),
            Expected::Refused(&["helper", "may change"]),
            "directories that a command is given are compared with the place of the helper",
        ),
    ]
}

/// Threads of the host that exist before the boundary is put up, and a thread of
/// the command.
fn extra_thread() -> Attack {
    let reads = |world: &World<'_>, tier: Tier| {
        let secret = world.path("beyond");
        if let Err(error) = machine::write(&secret, "REACHED\n") {
            return Observed::broken(error.to_string());
        }
        let text = "python3 -c 'import sys, threading
def read():
    try:
        print(open(sys.argv[1]).read())
    except OSError as error:
        print(\"errno\", error.errno)
t = threading.Thread(target=read); t.start(); t.join()' \"$0\"";
        let (end, threads) = std::sync::mpsc::channel::<()>();
        let result = std::thread::scope(|scope| {
            scope.spawn(move || threads.recv().is_err());
            let result = run_in(world.stage(), tier, text, |c| {
                c.argv.push(secret.to_string_lossy().into_owned());
            });
            drop(end);
            result
        });
        match result {
            Ok(result) if result.stdout.text().contains("REACHED") => Observed::fact(REACHED),
            Ok(result) if result.stdout.text().contains("errno ") => Observed::fact(STOPPED),
            Ok(result) => Observed::fact(super::said(&result)),
            Err(observed) => observed,
        }
    };
    Attack::host(
        "K-31",
        "no thread of the host or of the command is outside of the boundary",
        move |world, _| reads(world, Tier::Landlock),
    )
    .tier(Tier::Landlock)
    .control(
        Attempt::Host(Arc::new(move |world, _| reads(world, Tier::Process))),
        Expected::Harmless(REACHED),
    )
    .expect(Expected::Stopped, "the helper is a process of one thread that puts it around itself")
}

/// Directories that no command is given by mistake.
fn whole_machine() -> Attack {
    let opened = |hosts: &[std::path::PathBuf]| {
        let taken: Vec<_> = hosts
            .iter()
            .filter(|host| HostMount::open("/work/data", host, Access::ReadWrite, false).is_ok())
            .collect();
        match taken.as_slice() {
            [] => Observed::fact(STOPPED),
            all if all.len() == hosts.len() => Observed::fact(REACHED),
            some => Observed::fact(format!("taken: {some:?}")),
        }
    };
    Attack::host(
        "K-38",
        "the machine, a home or a link to them is not given to be written",
        move |world, _| {
            let link = world.path("link-to-everything");
            if let Err(error) = std::os::unix::fs::symlink("/", &link) {
                return Observed::broken(error.to_string());
            }
            opened(&["/".into(), "/..".into(), machine::home(), link])
        },
    )
    .tier(Tier::Landlock)
    .control(
        Attempt::Host(Arc::new(move |world, _| opened(&[world.path("rw")]))),
        Expected::Harmless(REACHED),
    )
    .expect(Expected::Stopped, "directories are compared with a list of those that are everything")
}
