//! K-40, K-44: names and values that mean more to a shell than to us.

use std::sync::Arc;

use fumehood_host_fns::{FORBIDDEN_VARIABLES, NativeMount, Variables};
use fumehood_policies::{Access, GuestPath};

use super::{run_in, said};
use crate::harness::machine;
use crate::harness::{Attack, Attempt, Expected, Observed, REACHED, STOPPED, Tier, World};

/// What each tool takes for "run this too", from `ld.so(8)`, `bash(1)` and the
/// manuals of the interpreters; written down here a second time on purpose.
const INJECTIONS: &[&str] = &[
    "LD_PRELOAD",
    "LD_AUDIT",
    "LD_LIBRARY_PATH",
    "BASH_ENV",
    "ENV",
    "BASH_FUNC_ls%%",
    "PROMPT_COMMAND",
    "IFS",
    "PS4",
    "PYTHONSTARTUP",
    "PYTHONPATH",
    "NODE_OPTIONS",
    "PERL5OPT",
    "RUBYOPT",
    "GIT_SSH_COMMAND",
    "GIT_EXTERNAL_DIFF",
    "SHELLOPTS",
];

pub(super) fn all() -> Vec<Attack> {
    let mut all = vec![refused_variables(), loaded_variable()];
    all.extend([Tier::Landlock, Tier::Process].map(arguments));
    all.push(moved_directory());
    all.push(strange_directory());
    all
}

fn refused_variables() -> Attack {
    let given = |names: &'static [&'static str]| {
        move |_: &World<'_>, _: &_| {
            let taken: Vec<_> = names
                .iter()
                .filter(|name| Variables::new([((**name).to_owned(), "x".to_owned())]).is_ok())
                .collect();
            match taken.as_slice() {
                [] => Observed::fact(STOPPED),
                all if all.len() == names.len() => Observed::fact(REACHED),
                some => Observed::fact(format!("taken: {some:?}")),
            }
        }
    };
    Attack::host(
        "K-44",
        "no variable that makes a tool run something else is passed on",
        given(INJECTIONS),
    )
    .tier(Tier::Landlock)
    .control(Attempt::Host(Arc::new(given(&["GREETING", "LANG"]))), Expected::Harmless(REACHED))
    .expect(Expected::Stopped, "a list of names and beginnings of names is refused by name")
}

/// What the shell would run before the command, as a plain child shows.
fn loaded_variable() -> Attack {
    let plain = |world: &World<'_>| {
        let file = world.path("run-first");
        if let Err(error) = machine::write(&file, "echo REACHED\n") {
            return Observed::broken(error.to_string());
        }
        match machine::shell_output(&format!("BASH_ENV={} bash -c true", file.display())) {
            Ok(text) if text.contains("REACHED") => Observed::fact(REACHED),
            Ok(text) => Observed::fact(text),
            Err(error) => Observed::broken(error.to_string()),
        }
    };
    Attack::host(
        "K-44b",
        "nothing of the host's own environment is in that of a command",
        |world, _| match run_in(
            world.stage(),
            Tier::Landlock,
            "echo begin; env | cut -d= -f1; echo end",
            |_| {},
        ) {
            Ok(result) => {
                let text = result.stdout.text();
                let whole = text.contains("begin") && text.contains("end");
                let forbidden = |name: &&str| text.lines().any(|line| line == *name);
                let names =
                    FORBIDDEN_VARIABLES.iter().copied().chain(["FUMEHOOD_ATTACK_CANARY", "USER"]);
                match (whole, names.into_iter().find(forbidden)) {
                    (true, None) => Observed::fact(STOPPED),
                    (true, Some(name)) => Observed::fact(format!("{name} was passed on")),
                    (false, _) => Observed::broken(said(&result)),
                }
            }
            Err(observed) => observed,
        },
    )
    .tier(Tier::Landlock)
    .control(Attempt::Host(Arc::new(move |world, _| plain(world))), Expected::Harmless(REACHED))
    .expect(Expected::Stopped, "a command's variables are made from nothing")
}

/// What a shell would read as more than one word, and run.
const STRANGE: &str = "a b\n\"c'd)$(echo e)`echo f`;g";

fn arguments(tier: Tier) -> Attack {
    let said_back = |world: &World<'_>, tier, text: &str, argument: Option<&str>| match run_in(
        world.stage(),
        tier,
        text,
        |c| c.argv.extend(argument.map(str::to_owned)),
    ) {
        Ok(result) if result.stdout.text() == STRANGE => Observed::fact(STOPPED),
        Ok(result) => Observed::fact(result.stdout.text()),
        Err(observed) => observed,
    };
    let spliced =
        move |world: &World<'_>, _: &_| said_back(world, tier, "printf %s $(echo spliced)", None);
    Attack::host(
        "K-40",
        "an argument with every kind of quote stays one argument",
        move |world, _| said_back(world, tier, "printf %s \"$0\"", Some(STRANGE)),
    )
    .tier(tier)
    .control(Attempt::Host(Arc::new(spliced)), Expected::Harmless("spliced"))
    .expect(Expected::Stopped, "arguments are passed as a list and spliced into no text")
}

/// What a launcher opens is what is shown, whatever its name leads to by then.
fn moved_directory() -> Attack {
    let reads = |world: &World<'_>, late: bool| {
        let (host, aside, beyond) =
            (world.path("project"), world.path("aside"), world.path("beyond"));
        let made = [(&host, "of the mount"), (&beyond, REACHED)].into_iter().try_for_each(
            |(directory, text)| {
                machine::make_directory(directory)?;
                machine::write(&directory.join("file"), text)
            },
        );
        let replace = || {
            machine::rename(&host, &aside)?;
            machine::symlink(&beyond, &host)
        };
        let opened = made.and_then(|()| {
            if late {
                replace()?;
                return machine::open_directory(&host);
            }
            let dir = machine::open_directory(&host)?;
            replace()?;
            Ok(dir)
        });
        let dir = match opened {
            Ok(dir) => dir,
            Err(error) => return Observed::broken(error.to_string()),
        };
        let Ok(at) = GuestPath::parse(&GuestPath::root(), b"/work/given") else {
            return Observed::broken("the mount point is no path");
        };
        let mount = NativeMount {
            at: at.path,
            dir: Arc::new(dir),
            host,
            access: Access::ReadOnly,
            execute: false,
            overlay: None,
        };
        match run_in(world.stage(), Tier::Landlock, "cat given/file", |c| c.mounts = vec![mount]) {
            Ok(result) if result.stdout.text() == "of the mount" => Observed::fact(STOPPED),
            Ok(result) if result.stdout.text().contains(REACHED) => Observed::fact(REACHED),
            Ok(result) => Observed::broken(said(&result)),
            Err(observed) => observed,
        }
    };
    Attack::host(
        "F-29",
        "a directory that was replaced by a link after it was opened does not show what that leads to",
        move |world, _| reads(world, false),
    )
    .tier(Tier::Landlock)
    .control(Attempt::Host(Arc::new(move |world, _| reads(world, true))), Expected::Harmless(REACHED))
    .expect(Expected::Stopped, "directories are passed as open descriptors and not by name")
}

fn strange_directory() -> Attack {
    let reads = |world: &World<'_>, name: &str| {
        let host = world.path(name);
        let made = machine::make_directory(&host)
            .and_then(|()| machine::write(&host.join("file"), "of the mount"))
            .and_then(|()| machine::open_directory(&host));
        let dir = match made {
            Ok(dir) => dir,
            Err(error) => return Observed::broken(error.to_string()),
        };
        let Ok(at) = GuestPath::parse(&GuestPath::root(), b"/work/given") else {
            return Observed::broken("the mount point is no path");
        };
        let mount = NativeMount {
            at: at.path,
            dir: Arc::new(dir),
            host,
            access: Access::ReadOnly,
            execute: false,
            overlay: None,
        };
        match run_in(world.stage(), Tier::Landlock, "cat given/file; ls | wc -l", |c| {
            c.mounts = vec![mount]
        }) {
            Ok(result) if result.stdout.text() == "of the mount1\n" => Observed::fact(STOPPED),
            Ok(result) => Observed::fact(said(&result)),
            Err(observed) => observed,
        }
    };
    Attack::host(
        "K-40b",
        "a directory whose name has quotes and line ends is that directory",
        move |world, _| reads(world, "a b\n\"c'd)$(e),g\\040h:ro"),
    )
    .tier(Tier::Landlock)
    .control(Attempt::Host(Arc::new(move |world, _| reads(world, "usual"))), Expected::Stopped)
    .expect(Expected::Stopped, "directories are passed as open descriptors and not by name")
}
