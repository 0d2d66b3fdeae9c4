//! F: directories that the host swaps during a change, and links that code
//! leaves behind for tools of the host.
//!
//! Invariant: a link is judged by where the host's kernel follows it, not by
//! its text.

use std::sync::Arc;

use crate::harness::wat::{NOT_REACHABLE, Program};
use crate::harness::{Attack, Attempt, Expected, Observed, Setting, World, machine};

use super::paths::{against, exchange};

fn race_of_changes() -> Attack {
    let tries = if machine::is_full() { 20_000 } else { 4_000 };
    let code = format!(
        "import os\nmade = refused = 0\nfor n in range({tries}):\n    for action in (lambda: open('/rw/swap/planted', 'w').close(), lambda: os.rename('/rw/swap/secret.txt', '/rw/swap/moved'), lambda: os.rename('/rw/swap/moved', '/rw/swap/secret.txt'), lambda: os.unlink('/rw/swap/planted'), lambda: os.mkdir('/rw/swap/d'), lambda: os.rmdir('/rw/swap/d')):\n        try:\n            action()\n            made += 1\n        except OSError:\n            refused += 1\nprint(made > 0, refused > 0)"
    );
    Attack::host(
        "F-04b",
        "a directory that the host swaps for a link during a change never leads a change outside",
        move |world, setting| against(world, setting, &code, exchange(world, "rw")),
    )
    .with(Setting::mounted().wall_ms(120_000))
    .control_cell(
        "import os\nopen('/rw/swap/planted', 'w').close()\nos.rename('/rw/swap/planted', '/rw/swap/moved')\nprint(sorted(os.listdir('/rw/swap')))",
        "['moved', 'secret.txt']",
    )
    .expect(
        Expected::Harmless("True True"),
        "names are changed below a handle of their own directory; what is outside is compared",
    )
}

/// Names of links below the writable mount that lead out of it when a tool of
/// the host follows them; the world's own are left out.
fn links_that_lead_out(world: &World<'_>) -> Vec<String> {
    let top = world.path("rw");
    let here = |path: &std::path::Path| {
        rustix::fs::statat(rustix::fs::CWD, path, rustix::fs::AtFlags::empty())
            .map(|found| (found.st_dev, found.st_ino))
    };
    let Ok(mount) = here(&top) else { return Vec::new() };
    let mut found = Vec::new();
    for (path, _) in machine::tree(&top) {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        if !path.is_symlink() || ["link", "etc", "passwd", "up", "loop", "good"].contains(&name) {
            continue;
        }
        // Climb from where the link leads: the mount must be on the way up.
        let mut at = path.clone();
        let leads_inside = (0..64).any(|_| {
            let inside = here(&at) == Ok(mount);
            at.push("..");
            inside
        });
        // A link that leads nowhere is judged by its text.
        let nowhere = here(&path).is_err();
        if !leads_inside && !nowhere {
            found.push(name.to_owned());
        }
    }
    found
}

/// A program that makes `/rw/a/b/c`, tries to make links, and tries one thing
/// more. That the making is refused is a defence, not a failure.
fn planting(links: &[(&str, &str)], last: &str) -> Program {
    let links: String = links
        .iter()
        .map(|(target, at)| format!("(drop (call $path_symlink @\"{target}\" %3 @\"{at}\"))"))
        .collect();
    Program::new(format!(
        "(call $must (call $path_create_directory %3 @\"rw/a\"))
         (call $must (call $path_create_directory %3 @\"rw/a/b\"))
         (call $must (call $path_create_directory %3 @\"rw/a/b/c\"))
         {links} (call $answer {last})"
    ))
}

fn planted() -> Vec<Attack> {
    let attack = |id, property, links: &[(&str, &str)], last: &str| {
        let program = planting(links, last);
        Attack::host(id, property, move |world, setting| {
            let observed = world.program(setting, &program);
            let exit = observed.ran.last().map_or(-1, |ran| ran.outcome.exit_code);
            // A code of 10 000 and more is a step before the last that failed.
            let tried = (0..10_000).contains(&exit);
            let found = links_that_lead_out(world);
            Observed { fact: Some(format!("tried: {tried}, leading out: {found:?}")), ..observed }
                .note(format!("the last step gave {exit}"))
        })
        .with(Setting::mounted())
        .control(
            Attempt::Host(Arc::new(|world, _| {
                let made = std::os::unix::fs::symlink("../outside", world.path("rw/planted"));
                let found = links_that_lead_out(world);
                Observed::fact(format!("made: {}, leading out: {found:?}", made.is_ok()))
            })),
            Expected::Harmless("made: true, leading out: [\"planted\"]"),
        )
        .expect(
            Expected::Harmless("tried: true, leading out: []"),
            "a link that would lead a tool of the host out of the mount is not left there",
        )
    };
    let deep = [("../..", "rw/a/b/l")];
    vec![
        attack(
            "F-29b",
            "a link that is made inside a mount and then moved does not lead tools of the host out",
            &deep,
            "(call $path_rename %3 @\"rw/a/b/l\" %3 @\"rw/l\")",
        ),
        attack(
            "F-29c",
            "moving a directory with links in it does not lead tools of the host out of the mount",
            &deep,
            "(call $path_rename %3 @\"rw/a/b\" %3 @\"rw/b\")",
        ),
        attack(
            "F-29d",
            "a link through another link does not lead tools of the host out of the mount",
            &[("../../..", "rw/a/b/c/top")],
            "(call $path_symlink @\"a/b/c/top/..\" %3 @\"rw/y\")",
        ),
        attack(
            "F-29e",
            "a second name for a link does not lead tools of the host out of the mount",
            &deep,
            "(call $path_link %3 %0 @\"rw/a/b/l\" %3 @\"rw/l\")",
        ),
        attack(
            "F-29f",
            "a link that leads out by its text is not made",
            &[],
            "(call $path_symlink @\"../outside\" %3 @\"rw/y\")",
        ),
        attack(
            "F-29g",
            "a link with an absolute target is not made in a mount",
            &[],
            "(call $path_symlink @\"/etc/passwd\" %3 @\"rw/y\")",
        ),
    ]
}

/// The guest itself does not get out by such links either.
fn followed_by_the_guest() -> Vec<Attack> {
    let attack = |id, property, links: &[(&str, &str)], step: &str, path: &str| {
        let open = |path: &str| format!("(call $open @\"{path}\" %0 %R)");
        let last = format!("(i32.or (i32.mul {step} %0) {})", open(path));
        Attack::module(id, property, planting(links, &last))
            .with(Setting::mounted())
            .control_module(planting(links, &open("rw/file.txt")))
            .expect(
                Expected::Errno(NOT_REACHABLE),
                "a link is read and decided again as a guest path, wherever it was moved",
            )
    };
    vec![
        attack(
            "F-02d",
            "code does not get out of a mount by a link that it made and moved",
            &[("../..", "rw/a/b/l")],
            "(call $path_rename %3 @\"rw/a/b/l\" %3 @\"rw/l\")",
            "rw/l/outside/secret.txt",
        ),
        attack(
            "F-02e",
            "code does not get out of a mount by a link through another link",
            &[("../../..", "rw/a/b/c/top")],
            "(call $path_symlink @\"a/b/c/top/..\" %3 @\"rw/y\")",
            "rw/y/outside/secret.txt",
        ),
    ]
}

/// Every attack of this kind.
pub(super) fn all() -> Vec<Attack> {
    let mut all = planted();
    all.extend(followed_by_the_guest());
    all.push(race_of_changes());
    all
}
