//! F and G: what an agent leaves in a project for tools of the host, and what
//! happens when its changes are brought back.
//!
//! Invariant: a fact names every path that reached the project; the control
//! shows that without the workspace all of them do.

use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fumehood::project::{
    Project, SyncMode, SyncOptions, SyncReport, Workspace, WorkspaceLimits, WorkspaceOptions,
};
use fumehood::records::Home;
use fumehood::{Sandbox, SandboxBuilder};

use crate::harness::{
    Attack, Attempt, Expected, INSIDE, OUTSIDE, Observed, Setting, World, machine, run_in,
};

/// Writes files below the working directory.
const WRITE: &str = "
import os
def write(path, text='x'):
    os.makedirs(os.path.dirname(path) or '.', exist_ok=True)
    with open(path, 'w') as file:
        file.write(text)
";

fn home(world: &World<'_>) -> Result<Arc<Home>, String> {
    Home::open(&world.path("home"), true).map(Arc::new).map_err(|error| error.to_string())
}

fn project(world: &World<'_>, mode: SyncMode) -> Result<Project, String> {
    let directory = world.path("project");
    machine::make_directory(&directory).map_err(|error| error.to_string())?;
    Ok(Project::new(directory, home(world)?).sync(mode))
}

fn built(builder: SandboxBuilder) -> Result<Sandbox, String> {
    builder.build().map_err(|error| error.to_string())
}

/// Paths of files below a directory, relative and sorted.
fn files_below(directory: &Path) -> Vec<String> {
    let all = machine::tree(directory).into_iter().map(|(path, _)| path);
    let files = all.filter(|path| !path.is_dir() || path.is_symlink());
    let relative = files.filter_map(|path| path.strip_prefix(directory).ok().map(PathBuf::from));
    relative.map(|path| path.display().to_string().escape_debug().to_string()).collect()
}

fn described(report: &SyncReport, there: &[String]) -> String {
    let names = |list: &[fumehood::project::GuardedPath]| {
        let mut names: Vec<String> = list.iter().map(|guarded| guarded.path.to_string()).collect();
        names.sort();
        names.join(" ")
    };
    format!(
        "held [{}] flagged [{}] there [{}]",
        names(&report.held_back.list),
        names(&report.flagged.list),
        there.join(" ")
    )
}

/// Runs code in a project and says what of it reached the host.
fn in_project(world: &World<'_>, setting: &Setting, code: &str) -> Result<Observed, String> {
    let project = project(world, SyncMode::AfterRun)?;
    let sandbox = built(world.builder(setting)?.project(project))?;
    let ran = run_in(&sandbox, setting.limits.wall, format!("{WRITE}{code}"));
    let report = ran.outcome.project.as_ref().and_then(|project| project.report.clone());
    let report = report.ok_or("nothing was brought back")?;
    let fact = described(&report, &files_below(&world.path("project")));
    Ok(Observed::fact(fact).seen([ran]))
}

/// The same code with the directory mounted to be written directly.
fn in_a_plain_mount(world: &World<'_>, setting: &Setting, code: &str) -> Result<Observed, String> {
    let directory = world.path("project");
    machine::make_directory(&directory).map_err(|error| error.to_string())?;
    let builder = world.builder(setting)?.mount_read_write("/work/project", &directory);
    let sandbox = built(builder)?;
    let code = format!("{WRITE}os.chdir('/work/project')\n{code}");
    let ran = run_in(&sandbox, setting.limits.wall, code);
    let there = files_below(&directory).len();
    Ok(Observed::fact(format!("{there} files there")).seen([ran]))
}

pub(super) fn or_broken(observed: Result<Observed, String>) -> Observed {
    observed.unwrap_or_else(Observed::broken)
}

/// Files that a tool of the host would run, written by agent Python.
fn left(
    id: &'static str,
    property: &'static str,
    code: &'static str,
    expected: &'static str,
    without: &'static str,
) -> Attack {
    Attack::host(id, property, move |world, setting| or_broken(in_project(world, setting, code)))
        .control(
            Attempt::Host(Arc::new(move |world, setting| {
                or_broken(in_a_plain_mount(world, setting, code))
            })),
            Expected::Harmless(without),
        )
        .expect(
            Expected::Harmless(expected),
            "what a tool of the host would run or obey is held back, or taken and pointed out",
        )
}

/// Two runs that plant repositories: with a name that leads elsewhere, at once,
/// through a common directory, and piece by piece.
const PLANTED: [&str; 2] = [
    "write('a/.git', 'gitdir: ../evil\\n')\nfor name in ('HEAD', 'objects/x', 'refs/x', 'config', 'hooks/post-checkout'):\n    write('bare/' + name)\nfor name in ('c/HEAD', 'c/config.worktree', 'd/objects/x', 'd/refs/x', 'd/config', 'x/config'):\n    write(name)\nwrite('c/commondir', '../d')",
    "for name in ('HEAD', 'objects/x', 'refs/x'):\n    write('x/' + name)",
];

/// Runs code in a project twice, and says what of it reached the host.
fn in_two_runs(world: &World<'_>, setting: &Setting) -> Result<Observed, String> {
    let project = project(world, SyncMode::AfterRun)?;
    let sandbox = built(world.builder(setting)?.project(project))?;
    let (mut all, mut runs) = (SyncReport::default(), Vec::new());
    for code in PLANTED {
        let ran = run_in(&sandbox, setting.limits.wall, format!("{WRITE}{code}"));
        let report = ran.outcome.project.as_ref().and_then(|project| project.report.clone());
        let report = report.ok_or("nothing was brought back")?;
        all.held_back.list.extend(report.held_back.list);
        all.flagged.list.extend(report.flagged.list);
        runs.push(ran);
    }
    let fact = described(&all, &files_below(&world.path("project")));
    Ok(Observed::fact(fact).seen(runs))
}

fn repository() -> Attack {
    Attack::host(
        "G-04",
        "a file or directory that git takes for a repository does not lead it elsewhere",
        |world, setting| or_broken(in_two_runs(world, setting)),
    )
    .control(
        Attempt::Host(Arc::new(|world: &World<'_>, setting: &Setting| {
            or_broken(in_a_plain_mount(world, setting, &PLANTED.join("\n")))
        })),
        Expected::Harmless("16 files there"),
    )
    .expect(
        Expected::Harmless(
            "held [a/.git bare/HEAD bare/config bare/hooks bare/objects bare/refs c/HEAD c/commondir c/config.worktree x/HEAD x/objects x/refs] flagged [] there [d/config d/objects/x d/refs/x x/config]",
        ),
        "what a tool of the host would run or obey is held back, or taken and pointed out",
    )
}

fn persistence() -> Vec<Attack> {
    vec![
        left(
            "G-01",
            "a git hook does not reach the project by itself",
            "write('.git/hooks/pre-commit')\nwrite('notes.txt')",
            "held [.git/hooks/pre-commit] flagged [] there [notes.txt]",
            "2 files there",
        ),
        left(
            "G-02",
            "git is not led to other hooks, and files that would be hooks are pointed out",
            "write('.git/config', '[core]\\n\\thooksPath = hooks\\n')\nwrite('hooks/pre-commit')",
            "held [.git/config] flagged [hooks/pre-commit] there [hooks/pre-commit]",
            "2 files there",
        ),
        repository(),
        left(
            "G-05",
            "a nested repository and a submodule are no way around",
            "write('sub/.git/hooks/pre-commit')\nwrite('.git/modules/x/config')\nwrite('.git/modules/x/hooks/update')",
            "held [.git/modules/x/config .git/modules/x/hooks/update sub/.git/hooks/pre-commit] flagged [] there []",
            "3 files there",
        ),
        left(
            "G-07",
            "a list of submodules is pointed out",
            "write('.gitmodules', '[submodule \"x\"]\\n\\turl = -u./x\\n')",
            "held [] flagged [.gitmodules] there [.gitmodules]",
            "1 files there",
        ),
        left(
            "G-08",
            "tasks of editors and scripts of builds are pointed out",
            "for name in ('.vscode/tasks.json', '.idea/workspace.xml', '.devcontainer/devcontainer.json', '.envrc', 'Makefile', 'package.json', '.cargo/config.toml', 'build.rs', 'conftest.py', 'env/pyvenv.cfg'):\n    write(name)",
            "held [] flagged [.cargo/config.toml .devcontainer/devcontainer.json .envrc .idea/workspace.xml .vscode/tasks.json Makefile build.rs conftest.py env/pyvenv.cfg package.json] there [.cargo/config.toml .devcontainer/devcontainer.json .envrc .idea/workspace.xml .vscode/tasks.json Makefile build.rs conftest.py env/pyvenv.cfg package.json]",
            "10 files there",
        ),
        left(
            "G-08b",
            "the interpreter of a virtual environment is not replaced",
            "try:\n    write('.venv/bin/python')\n    write('.venv/pyvenv.cfg')\nexcept OSError:\n    pass",
            "held [] flagged [] there []",
            "2 files there",
        ),
        left(
            "G-10",
            "what a shell runs when it starts does not reach the project by itself",
            "for name in ('.bashrc', '.zshrc', '.profile', '.bash_profile', '.zprofile', '.config/fish/config.fish'):\n    write(name)",
            "held [.bash_profile .bashrc .config/fish/config.fish .profile .zprofile .zshrc] flagged [] there []",
            "6 files there",
        ),
        left(
            "G-13",
            "what the host runs at times or at a login does not reach the project by itself",
            "for name in ('.ssh/authorized_keys', '.config/systemd/user/x.service', '.config/autostart/x.desktop', 'Library/LaunchAgents/x.plist', 'cron.d/x', 'crontab'):\n    write(name)",
            "held [.config/autostart/x.desktop .config/systemd/user/x.service .ssh/authorized_keys Library/LaunchAgents/x.plist cron.d/x crontab] flagged [] there []",
            "6 files there",
        ),
        left(
            "G-14",
            "another spelling of a guarded name is guarded too",
            "for name in ('.GIT/hooks/pre-commit', '.git\\u200c/hooks/pre-commit', 'git~1/hooks/pre-commit', '.Git/config'):\n    write(name)",
            "held [.GIT/hooks/pre-commit .Git/config .git\\u{200c}/hooks/pre-commit git~1/hooks/pre-commit] flagged [] there []",
            "4 files there",
        ),
        left(
            "F-20",
            "a module that Python would import instead of its own is pointed out",
            "write('json.py')\nwrite('sitecustomize.py')\nwrite('x.pth')\nwrite('fine.py')",
            "held [] flagged [json.py sitecustomize.py x.pth] there [fine.py json.py sitecustomize.py x.pth]",
            "4 files there",
        ),
    ]
}

/// What is refused before anything runs.
fn places() -> Vec<Attack> {
    let attack = |id, property, project: &'static str, home: &'static str, names| {
        let build = move |world: &World<'_>, setting: &Setting, home: &str| {
            let home = Home::open(&world.path(home), true).map_err(|error| error.to_string());
            let made = machine::make_directory(&world.path(project));
            let (Ok(()), Ok(home)) = (made, home) else {
                return Observed::broken("no directories");
            };
            let directory = world.path(project);
            let builder = match world.builder(setting) {
                Ok(builder) => builder.project(Project::new(directory, Arc::new(home))),
                Err(error) => return Observed::broken(error),
            };
            match builder.build() {
                Ok(sandbox) => {
                    let code = "print('works in', __import__('os').getcwd())";
                    Observed::run(run_in(&sandbox, setting.limits.wall, code))
                }
                Err(error) => {
                    // The operator is told paths of the host; a guest is not.
                    Observed::refused(error.to_string())
                }
            }
        };
        Attack::host(id, property, move |world, setting| build(world, setting, home))
            .control(
                Attempt::Host(Arc::new(move |world, setting| build(world, setting, "elsewhere"))),
                Expected::Harmless("works in /work/project"),
            )
            .expect(Expected::Refused(names), "handles are compared, not names")
    };
    vec![
        attack(
            "G-11",
            "records and workspaces are never inside a project",
            "project",
            "project/records",
            &["lie within each other"],
        ),
        attack(
            "G-11b",
            "a project is never inside the records",
            "home/inner",
            "home",
            &["lie within each other"],
        ),
    ]
}

/// Changes of both sides, and where they go.
fn bringing_back() -> Vec<Attack> {
    let file = |world: &World<'_>, name: &str| world.path("project").join(name);
    vec![
        Attack::host("F-13", "a file that both sides changed keeps the user's bytes, and the agent's are beside it", move |world, setting| {
            let attempt = || -> Result<Observed, String> {
                let project = project(world, SyncMode::OnDemand)?;
                let write = |name, text: &str| machine::write(&file(world, name), text).map_err(|error| error.to_string());
                write("both.txt", "before")?;
                write("agent.txt", "before")?;
                let sandbox = built(world.builder(setting)?.project(project))?;
                let code = "open('both.txt', 'w').write('agent')\nopen('agent.txt', 'w').write('agent')";
                let ran = run_in(&sandbox, setting.limits.wall, code);
                write("both.txt", "user")?;
                let attached = sandbox.project().ok_or("no project")?;
                let report = attached.sync(&SyncOptions::default()).map_err(|error| error.to_string())?;
                let report = report.ok_or("the workspace is in use")?;
                let text = |name| machine::read(&file(world, name)).unwrap_or_default();
                let fact = format!("conflicts {}, user's {}, agent's {}, other {}", report.conflicts.count(), text("both.txt"), text("both.txt.sandbox"), text("agent.txt"));
                Ok(Observed::fact(fact).seen([ran]))
            };
            or_broken(attempt())
        })
        .control(Attempt::Host(Arc::new(move |world, setting| {
            or_broken(in_a_plain_mount(world, setting, "write('both.txt', 'agent')"))
        })), Expected::Harmless("1 files there"))
        .expect(Expected::Harmless("conflicts 1, user's user, agent's agent, other agent"), "the state both sides agreed on is compared when the change is made, once more"),
        Attack::host("F-22", "a directory that became a link meanwhile does not lead what is brought back elsewhere", move |world, setting| {
            let attempt = || -> Result<Observed, String> {
                let project = project(world, SyncMode::OnDemand)?;
                let directory = file(world, "out");
                machine::make_directory(&directory).map_err(|error| error.to_string())?;
                machine::write(&directory.join("old.txt"), "old").map_err(|error| error.to_string())?;
                let sandbox = built(world.builder(setting)?.project(project))?;
                let code = "open('out/planted.txt', 'w').write('agent')\nopen('out/secret.txt', 'w').write('agent')\nopen('out/old.txt', 'w').write('agent')";
                let ran = run_in(&sandbox, setting.limits.wall, code);
                machine::rename(&directory, &file(world, "moved")).map_err(|error| error.to_string())?;
                std::os::unix::fs::symlink(world.path("outside"), &directory).map_err(|error| error.to_string())?;
                let attached = sandbox.project().ok_or("no project")?;
                let report = attached.sync(&SyncOptions::default());
                let taken = match &report {
                    Ok(Some(report)) => format!("conflicts: {}", report.conflicts.count() > 0),
                    other => format!("{other:?}"),
                };
                let outside = machine::read(&world.path("outside/secret.txt")).unwrap_or_default();
                let fact = format!("{taken}, outside unchanged: {}, link: {}", outside == OUTSIDE, directory.is_symlink());
                Ok(Observed::fact(fact).seen([ran]))
            };
            or_broken(attempt())
        })
        .control(Attempt::Host(Arc::new(|world, _| {
            let link = world.path("link-out");
            let made = std::os::unix::fs::symlink(world.path("ro"), &link);
            let read = machine::read(&link.join("file.txt")).unwrap_or_default();
            Observed::fact(format!("{} {read}", made.is_ok()))
        })), Expected::Harmless("true inside"))
        .expect(Expected::Harmless("conflicts: true, outside unchanged: true, link: true"), "each directory is opened by its name without following, at the time of the change"),
    ]
}

/// The race of F-04, through the overlay.
fn race() -> Attack {
    let tries = if machine::is_full() { 100_000 } else { 20_000 };
    let code = format!(
        "inside = outside = refused = 0\nfor n in range({tries}):\n    try:\n        with open('swap/secret.txt') as file:\n            text = file.read()\n    except OSError:\n        refused += 1\n    else:\n        if text == '{INSIDE}':\n            inside += 1\n        else:\n            outside += 1\nprint(outside, inside > 0, refused > 0)"
    );
    Attack::host(
        "F-04c",
        "a directory of a project that the host swaps for a link during an open never leads outside",
        move |world, setting| {
            let attempt = || -> Result<Observed, String> {
                let project = Project::new(world.path("ro"), home(world)?);
                let sandbox = built(world.builder(setting)?.project(project.sync(SyncMode::OnDemand)))?;
                let wall = setting.limits.wall;
                let swap = super::paths::exchange(world, "ro");
                Ok(super::paths::beside(swap, || Observed::run(run_in(&sandbox, wall, code.as_str()))))
            };
            or_broken(attempt())
        },
    )
    .with(Setting::default().wall_ms(120_000))
    .control_with(
        Setting::mounted(),
        Attempt::Cell("print(open('/ro/swap/secret.txt').read())".to_owned()),
        Expected::Harmless(INSIDE),
    )
    .expect(
        Expected::Harmless("0 True True"),
        "the lower tree is walked by handles, one name after the other, and no link is followed",
    )
}

/// One entry of an archive that no export writes.
struct Odd {
    path: String,
    kind: tar::EntryType,
    link: &'static str,
    bytes: usize,
}

impl Odd {
    fn file(path: impl Into<String>) -> Self {
        Self { path: path.into(), kind: tar::EntryType::Regular, link: "", bytes: 1 }
    }

    fn link(path: &str, kind: tar::EntryType, link: &'static str) -> Self {
        Self { path: path.to_owned(), kind, link, bytes: 0 }
    }
}

fn archive(entries: &[Odd]) -> std::io::Result<Vec<u8>> {
    let mut archive = tar::Builder::new(zstd::Encoder::new(Vec::new(), 3)?);
    for entry in entries {
        let mut header = tar::Header::new_gnu();
        let fields = header.as_gnu_mut().ok_or(std::io::ErrorKind::InvalidData)?;
        // Past the checks of the library that writes it.
        for (to, text) in
            [(&mut fields.name, entry.path.as_str()), (&mut fields.linkname, entry.link)]
        {
            for (slot, byte) in to.iter_mut().zip(text.bytes()) {
                *slot = byte;
            }
        }
        header.set_entry_type(entry.kind);
        header.set_mode(0o644);
        header.set_size(entry.bytes as u64);
        header.set_cksum();
        archive.append(&header, std::io::repeat(b'x').take(entry.bytes as u64))?;
    }
    let mut encoder = archive.into_inner()?;
    encoder.flush()?;
    encoder.finish()
}

/// Takes archives into a workspace; how each ended.
fn imports(world: &World<'_>, archives: &[Vec<Odd>]) -> Result<Observed, String> {
    let directory = world.path("project");
    machine::make_directory(&directory).map_err(|error| error.to_string())?;
    let place = home(world)?.workspace("upload", true).map_err(|error| error.to_string())?;
    let place = place.ok_or("no place")?;
    let limits = WorkspaceLimits { bytes: 1 << 20, inodes: 100 };
    let options = WorkspaceOptions { limits, ..WorkspaceOptions::default() };
    let mut workspace = Workspace::create(&place, &directory, &options, &mut |_, _| {})
        .map_err(|error| error.to_string())?;
    let mut ends = Vec::new();
    for entries in archives {
        let bytes = archive(entries).map_err(|error| error.to_string())?;
        ends.push(match workspace.import(bytes.as_slice()) {
            Ok(()) => "taken",
            Err(error) => error.code(),
        });
    }
    let changes = workspace.has_changes().map_err(|error| error.to_string())?;
    ends.sort_unstable();
    ends.dedup();
    Ok(Observed::fact(format!("{}, changes: {changes}", ends.join(" "))))
}

fn uploads() -> Vec<Attack> {
    let honest = || {
        Attempt::Host(Arc::new(|world: &World<'_>, _: &Setting| {
            let entries =
                vec![Odd::file("a/b.txt"), Odd::link("l", tar::EntryType::Symlink, "a/b.txt")];
            or_broken(imports(world, &[entries]))
        }))
    };
    let taken = Expected::Harmless("taken, changes: true");
    vec![
        Attack::host(
            "F-26",
            "an archive with an entry that leads outside is refused whole",
            |world, _| {
                use tar::EntryType as Kind;
                let first = || Odd::file("fine.txt");
                let odd = [
                    vec![first(), Odd::file("../x")],
                    vec![first(), Odd::file("a/../../x")],
                    vec![first(), Odd::file("/etc/x")],
                    vec![first(), Odd::link("l", Kind::Symlink, "/etc"), Odd::file("l/x")],
                    vec![first(), Odd::link("l", Kind::Symlink, "../outside"), Odd::file("l/x")],
                    vec![first(), Odd::link("d", Kind::Symlink, "e"), Odd::file("d/x")],
                    vec![
                        Odd::link("a", Kind::Symlink, "."),
                        Odd::link("l", Kind::Symlink, "a/../outside"),
                    ],
                    vec![first(), Odd::link("h", Kind::Link, "../outside/secret.txt")],
                    vec![first(), Odd::link("h", Kind::Link, "fine.txt")],
                    vec![first(), Odd::link("n", Kind::Char, "")],
                    vec![first(), Odd::link("p", Kind::Fifo, "")],
                    vec![first(), first()],
                ];
                or_broken(imports(world, &odd))
            },
        )
        .control(honest(), taken.clone())
        .expect(
            Expected::Harmless("archive_unsafe, changes: false"),
            "each entry is judged before it is made, and what was made is taken back",
        ),
        Attack::host(
            "F-28",
            "an archive that unpacks to more than the limit is refused whole",
            |world, _| {
                let large = Odd { bytes: 64 << 20, ..Odd::file("zeros") };
                let many = (0..200).map(|number| Odd::file(format!("f{number}")));
                or_broken(imports(world, &[vec![Odd::file("fine.txt"), large], many.collect()]))
            },
        )
        .control(honest(), taken)
        .about_memory()
        .expect(
            Expected::Harmless("archive_too_large, changes: false"),
            "bytes and entries are counted while they are unpacked, whatever the archive says",
        ),
    ]
}

/// Every attack of this kind.
pub(super) fn all() -> Vec<Attack> {
    let mut all = persistence();
    all.extend(places());
    all.extend(bringing_back());
    all.extend(uploads());
    all.push(race());
    all
}
