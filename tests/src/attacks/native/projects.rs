//! K-35, K-37 and F-16: what a command does in a project, and what of it the
//! host's tools would obey afterwards; X-14: what it sees of it beside a program.
//!
//! Invariant: but for X-14, the fact names what is in the user's project after
//! everything was brought back; the control is the same command in the same tier with the
//! directory given to be changed directly.

use std::sync::Arc;
use std::time::Duration;

use fumehood::native::NativeSession;
use fumehood::policy::PolicyFile;
use fumehood::project::{Project, SyncReport, WorkspaceLimits};
use fumehood::records::Home;
use fumehood::{Outcome, Sandbox};
use fumehood_host_fns::NativeTier as _;
use fumehood_policies::GuestPath;

use crate::attacks::projects::or_broken;
use crate::harness::{
    Attack, Attempt, Capability, Expected, Observed, Setting, Tier, World, machine, run_in,
};

const BROUGHT_BACK: &str = "what a tool of the host would obey is held back when changes are brought back, whatever it \
     was called meanwhile";
const NOTHING_OBEYED: &str = "the user's";

/// Files of the project before, each with the text `user`, and its links.
struct Before {
    files: &'static [&'static str],
    links: &'static [(&'static str, &'static str)],
}

/// What the host's tools would obey afterwards.
const OBEYED: &[&str] = &[
    ".git/config",
    ".git/hooks/pre-commit",
    "sub/.git/config",
    "sub/.git/hooks/pre-commit",
    "real/config",
    "real/hooks/pre-commit",
    "dotfiles/bashrc",
    "dotfiles/new",
];

/// Links that a command makes.
const LEADING_OUT: &[&str] = &["build.log", "d/up", "through"];

fn directory(world: &World<'_>, before: &Before) -> Result<std::path::PathBuf, String> {
    let directory = world.path("project");
    let told = |error: std::io::Error| error.to_string();
    machine::make_directory(&directory).map_err(told)?;
    for name in before.files {
        let path = directory.join(name);
        if let Some(parent) = path.parent() {
            machine::make_directory(parent).map_err(told)?;
        }
        machine::write(&path, "user").map_err(told)?;
    }
    for (target, link) in before.links {
        machine::symlink(std::path::Path::new(target), &directory.join(link)).map_err(told)?;
    }
    Ok(directory)
}

fn allowed() -> Result<PolicyFile, String> {
    let text = "version = 1\nflags = \"extend\"\n[bash]\naction = \"allow\"\n";
    PolicyFile::parse(text, "the attack").map_err(|error| error.to_string())
}

/// Runs a command in a project, brings its changes back, and gives what is in
/// the project then.
fn in_project(
    world: &World<'_>,
    directory: &std::path::Path,
    limits: Option<WorkspaceLimits>,
    command: &str,
) -> Result<Result<(Outcome, Option<SyncReport>), Observed>, String> {
    let tier = match world.stage().native(Tier::Landlock) {
        Ok(tier) => tier,
        Err(capability) => return Ok(Err(Observed::waiting(capability))),
    };
    let home = Home::open(&world.path("home"), true).map_err(|error| error.to_string())?;
    let mut project = Project::new(directory, Arc::new(home));
    if let Some(limits) = limits {
        project = project.limits(limits);
    }
    let sandbox = Sandbox::builder().policy(allowed()?).project(project);
    let sandbox = sandbox.native_only(NativeSession::new(tier)).build();
    let sandbox = sandbox.map_err(|error| error.to_string())?;
    let outcome = sandbox.run_command(command, Vec::new(), None).wait();
    let report = outcome.project.as_ref().and_then(|project| project.report.clone());
    Ok(Ok((outcome, report)))
}

/// What of the project the host would obey and is not the user's: files, links
/// that are none any more, and links that lead out.
fn obeyed(directory: &std::path::Path, before: &Before) -> String {
    let mut foreign: Vec<&str> = OBEYED
        .iter()
        .filter(|name| machine::read(&directory.join(name)).is_some_and(|text| text != "user"))
        .copied()
        .collect();
    let links = before.links.iter().map(|(_, link)| *link);
    foreign.extend(links.filter(|link| !directory.join(link).is_symlink()));
    foreign.extend(LEADING_OUT.iter().filter(|link| directory.join(link).is_symlink()));
    if foreign.is_empty() { NOTHING_OBEYED.to_owned() } else { foreign.join(" ") }
}

fn attempt(world: &World<'_>, before: &Before, command: &str) -> Result<Observed, String> {
    let directory = directory(world, before)?;
    let (outcome, report) = match in_project(world, &directory, None, command)? {
        Ok(ran) => ran,
        Err(waiting) => return Ok(waiting),
    };
    if !outcome.is_success() {
        return Err(format!("the command failed: {}", outcome.stderr_text()));
    }
    let report = report.ok_or("nothing was brought back")?;
    let told = if report.held_back.is_empty() { ", and nothing was told" } else { "" };
    let other = machine::read(&directory.join("notes")).unwrap_or_default();
    Ok(Observed::fact(format!("{}, notes {}{told}", obeyed(&directory, before), other.trim())))
}

/// The same command where it may change the directory itself.
fn directly(world: &World<'_>, before: &Before, command: &str) -> Result<Observed, String> {
    let directory = directory(world, before)?;
    let tier = match world.stage().native(Tier::Landlock) {
        Ok(tier) => tier,
        Err(capability) => return Ok(Observed::waiting(capability)),
    };
    let at = GuestPath::parse(&GuestPath::root(), b"/work/project");
    let at = tier.place_of(&at.map_err(|error| error.to_string())?.path, &directory).to_string();
    let sandbox = Sandbox::builder().policy(allowed()?).mount_read_write(&at, &directory);
    let sandbox = sandbox.native_only(NativeSession::new(tier)).build();
    let sandbox = sandbox.map_err(|error| error.to_string())?;
    let command = format!("cd '{at}' && {command}");
    let outcome = sandbox.run_command(&command, Vec::new(), None).wait();
    if !outcome.is_success() {
        return Err(format!("the command failed: {}", outcome.stderr_text()));
    }
    Ok(Observed::fact(obeyed(&directory, before)))
}

fn guarded(
    id: &'static str,
    property: &'static str,
    before: &'static Before,
    command: &'static str,
    without: &'static str,
) -> Attack {
    Attack::host(id, property, move |world, _| or_broken(attempt(world, before, command)))
        .tier(Tier::Landlock)
        .control(
            Attempt::Host(Arc::new(move |world: &World<'_>, _: &Setting| {
                or_broken(directly(world, before, command))
            })),
            Expected::Harmless(without),
        )
        .expect(Expected::Harmless("the user's, notes agent"), BROUGHT_BACK)
}

const REPOSITORY: Before = Before {
    files: &[
        ".git/HEAD",
        ".git/objects/x",
        ".git/refs/x",
        ".git/config",
        "sub/.git/HEAD",
        "sub/.git/config",
        "sub/file",
    ],
    links: &[],
};
const PLAIN: Before = Before { files: &["file"], links: &[] };
const LINKED: Before = Before {
    files: &["real/HEAD", "real/objects/x", "real/refs/x", "real/config", "dotfiles/bashrc"],
    links: &[
        ("real", ".git"),
        ("dotfiles/bashrc", ".bashrc"),
        ("dotfiles/new", ".zshrc"),
        (".git", ".profile"),
    ],
};

/// What fills the workspace, and what came of it.
fn fill(world: &World<'_>, bytes: u64) -> Result<Observed, String> {
    let directory = directory(world, &Before { files: &["notes"], links: &[] })?;
    let limits = WorkspaceLimits { bytes, inodes: 1000 };
    // Bounded, whatever the tier does.
    let command =
        "for n in 1 2 3 4 5 6 7 8; do head -c 8000000 /dev/zero > f$n; sleep 1; done; echo end";
    let start = machine::now();
    let (outcome, _) = match in_project(world, &directory, Some(limits), command)? {
        Ok(ran) => ran,
        Err(waiting) => return Ok(waiting),
    };
    // Where there is no overlay it is the file system's quota that binds a copy.
    if outcome.project.as_ref().is_none_or(|project| project.strategy != "kernel") {
        return Ok(Observed::waiting(Capability::Equipment));
    }
    let ended = outcome.stdout_text().contains("end");
    let soon = start.elapsed() < Duration::from_secs(7);
    Ok(Observed::fact(format!(
        "{}, to its end: {ended}, soon: {}",
        outcome.kind.as_str(),
        soon || ended
    )))
}

/// Every way to the same two files: a program's own, a tool's and a command's.
const EVERY_WAY: &str = "
told = []
def tell(way, read):
    try:
        text = str(read())
    except Exception as error:
        text = type(error).__name__
    told.append(way + (' got it' if 'the-text' in text else ' did not'))
for path in ('/work/project/.env', '/data/denied'):
    tell('open', lambda: open(path).read())
    tell('read_file', lambda: read_file(path))
    tell('grep', lambda: grep('the-text', path))
    tell('bash', lambda: bash('cat ' + path).stdout)
print(', '.join(told))
";

/// What a program gets in each way of a file that its project hides and one that
/// its policy denies, or with neither.
fn in_every_way(world: &World<'_>, setting: &Setting, is_open: bool) -> Result<Observed, String> {
    let told = |error: std::io::Error| error.to_string();
    let (project, data) = (world.path("project"), world.path("data"));
    for (directory, name) in [(&project, ".env"), (&data, "denied")] {
        machine::make_directory(directory).map_err(told)?;
        machine::write(&directory.join(name), "the-text").map_err(told)?;
    }
    let tier = match world.stage().native(Tier::Landlock) {
        Ok(tier) => tier,
        Err(capability) => return Ok(Observed::waiting(capability)),
    };
    let rule = "[[fs.rules]]\nid = \"no-data\"\naction = \"deny\"\npaths = [\"/data/denied\"]\n";
    let policy = format!(
        "version = 1\nflags = \"extend\"\n[fs]\nmemory = \"read-write\"\n{}\
         [bash]\naction = \"allow\"\n[[tools.rules]]\nid = \"files\"\ntools = [\"*\"]\n",
        if is_open { "" } else { rule }
    );
    let policy = PolicyFile::parse(&policy, "the attack").map_err(|error| error.to_string())?;
    let home = Home::open(&world.path("home"), true).map_err(|error| error.to_string())?;
    let mut project = Project::new(project, Arc::new(home));
    if is_open {
        project = project.show_hidden(".env");
    }
    let sandbox = world.builder(setting)?.policy(policy).project(project);
    let sandbox = sandbox.mount_read_only("/data", data);
    let sandbox = sandbox.file_tools().native(NativeSession::new(tier)).build();
    let sandbox = sandbox.map_err(|error| error.to_string())?;
    let ran = run_in(&sandbox, setting.limits.wall, EVERY_WAY);
    let fact = ran.outcome.stdout_text().trim().to_owned();
    Ok(Observed::fact(fact).seen([ran]))
}

pub(super) fn all() -> Vec<Attack> {
    vec![
        Attack::host(
            "X-14",
            "a tool or a command of a program reads nothing that the program itself may not",
            |world, setting| or_broken(in_every_way(world, setting, false)),
        )
        .control(
            Attempt::Host(Arc::new(|world, setting| or_broken(in_every_way(world, setting, true)))),
            Expected::Harmless(
                "open got it, read_file got it, grep got it, bash got it, open got it, read_file got it, grep got it, bash got it",
            ),
        )
        .expect(
            Expected::Harmless(
                "open did not, read_file did not, grep did not, bash did not, open did not, read_file did not, grep did not, bash did not",
            ),
            "one policy and one view of the files for a program, its tools and its commands",
        ),
        guarded(
            "K-35",
            "a guarded directory that a command moves aside and makes anew does not reach the project",
            &REPOSITORY,
            "mv .git aside && mkdir -p .git/hooks && echo agent > .git/hooks/pre-commit && echo agent > .git/config && echo agent > notes",
            ".git/config .git/hooks/pre-commit",
        ),
        guarded(
            "K-35b",
            "nor does one whose directory above was moved and made anew",
            &REPOSITORY,
            "mv sub other && mkdir -p sub/.git/hooks && echo agent > sub/.git/hooks/pre-commit && echo agent > sub/.git/config && echo agent > notes",
            "sub/.git/config sub/.git/hooks/pre-commit",
        ),
        guarded(
            "K-37",
            "what a guarded name leads to through a link is guarded too",
            &LINKED,
            "echo agent > real/config && mkdir real/hooks && echo agent > .git/hooks/pre-commit && echo agent > .bashrc && echo agent > .zshrc && echo agent > notes",
            ".git/config .git/hooks/pre-commit real/config real/hooks/pre-commit dotfiles/bashrc dotfiles/new",
        ),
        guarded(
            "K-37b",
            "a guarded link that a command replaces by a directory of its own stays the user's",
            &LINKED,
            "rm .git .bashrc && mkdir -p .git/hooks && echo agent > .git/hooks/pre-commit && echo agent > .git/config && echo agent > .bashrc && echo agent > notes",
            ".git/config .git/hooks/pre-commit .git .bashrc",
        ),
        guarded(
            "F-29n",
            "a link of a command's that leads out does not reach the project",
            &PLAIN,
            "mkdir d && ln -s /etc/passwd build.log && ln -s ../../secret d/up && ln -s . here && ln -s here/../../secret through && echo agent > notes",
            "build.log d/up through",
        ),
        Attack::host(
            "F-16n",
            "a command that writes more than the workspace may hold is ended",
            |world, _| or_broken(fill(world, 10_000_000)),
        )
        .tier(Tier::Landlock)
        .control(
            Attempt::Host(Arc::new(|world: &World<'_>, _: &Setting| {
                or_broken(fill(world, 1 << 30))
            })),
            Expected::Harmless("completed, to its end: true, soon: true"),
        )
        .expect(
            Expected::Harmless("budget_exceeded, to its end: false, soon: true"),
            "what it wrote is counted while it runs",
        ),
    ]
}
