//! A sync, case by case, for both strategies.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "tests prepare and inspect the host side"
)]

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use super::error::{ProjectError, WorkspaceError};
use super::open::{Strategy, Workspace, WorkspaceOptions};
use super::sync::SyncError;
use super::testing::*;
use crate::errno::Errno;

const BOTH: [Strategy; 2] = [Strategy::Live, Strategy::Materialised];

fn strings(list: &[&str]) -> Vec<String> {
    list.iter().map(|text| (*text).to_owned()).collect()
}

#[test]
fn an_agents_changes_come_back_and_nothing_else() {
    for strategy in BOTH {
        let lab = Lab::new(strategy);
        lab.write("keep.txt", "keep");
        lab.write("edit.txt", "before");
        lab.write("gone.txt", "gone");
        lab.write("d/e/deep.txt", "deep");
        lab.write("d/other.txt", "other");
        let mut workspace = lab.create();
        assert!(!workspace.has_changes().unwrap());
        let mut agent = agent(&workspace);
        assert_eq!(agent.get("/p/d/e/deep.txt").unwrap(), b"deep");
        agent.put("/p/edit.txt", b"after").unwrap();
        agent.unlink("/p/gone.txt").unwrap();
        agent.mkdir("/p/new").unwrap();
        agent.put("/p/new/made.txt", b"made").unwrap();
        agent.symlink("made.txt", "/p/new/link").unwrap();
        agent.mkdir("/p/empty").unwrap();
        agent.rename("/p/d/e", "/p/moved").unwrap();
        assert_eq!(lab.read("edit.txt"), "before", "nothing before the sync");
        assert_eq!(
            agent.list("/p").unwrap(),
            ["d", "edit.txt", "empty", "keep.txt", "moved", "new"]
        );
        assert_eq!(agent.list("/p/d").unwrap(), ["other.txt"]);
        assert!(workspace.has_changes().unwrap());
        let planned = workspace.dry_run(&options()).unwrap();
        let report = sync(&mut workspace);
        assert_eq!(paths(&planned), paths(&report), "a dry run says what happens");
        let (mut updated, deleted, conflicts) = paths(&report);
        updated.sort();
        let want =
            ["edit.txt", "empty/", "moved/", "moved/deep.txt", "new/", "new/link", "new/made.txt"];
        assert_eq!(updated, want, "{strategy:?}");
        assert_eq!(deleted, ["d/e/deep.txt", "d/e/", "gone.txt"], "{strategy:?}");
        assert_eq!(conflicts, strings(&[]));
        assert_eq!(lab.read("edit.txt"), "after");
        assert_eq!(lab.read("moved/deep.txt"), "deep");
        assert_eq!(fs::read_link(lab.user("new/link")).unwrap().to_str(), Some("made.txt"));
        assert!(lab.has("empty") && !lab.has("gone.txt") && !lab.has("d/e"));
        assert!(sync(&mut workspace).is_empty(), "the second time nothing is left");
        assert!(!workspace.has_changes().unwrap());
        assert_eq!(agent.get("/p/edit.txt").unwrap(), b"after");
        assert_eq!(agent.get("/p/moved/deep.txt").unwrap(), b"deep");
        assert_eq!(fs::read_dir(lab.project()).unwrap().count(), 6, "no stray file");
    }
}

#[test]
fn the_users_edits_stay_and_the_agents_go_beside_them() {
    for strategy in BOTH {
        let lab = Lab::new(strategy);
        for name in ["both", "agent_removes", "user_removes", "same", "mode", "d/x", "f", "l"] {
            lab.write(name, "base");
        }
        lab.write("both.sandbox", "mine");
        lab.write("both.sandbox.2", "mine too");
        let mut workspace = lab.create();
        let mut agent = agent(&workspace);
        for (name, text) in
            [("both", "agent"), ("user_removes", "agent"), ("same", "agreed"), ("l", "agent")]
        {
            agent.put(&format!("/p/{name}"), text.as_bytes()).unwrap();
        }
        agent.unlink("/p/agent_removes").unwrap();
        agent.unlink("/p/f").unwrap();
        agent.mkdir("/p/f").unwrap();
        agent.put("/p/f/inner", b"agent").unwrap();
        agent.put("/p/d/x", b"agent").unwrap();
        agent.put("/p/both_new", b"agent").unwrap();
        lab.write("both", "user");
        lab.write("agent_removes", "user");
        fs::remove_file(lab.user("user_removes")).unwrap();
        lab.write("same", "agreed");
        lab.write("f", "user");
        fs::remove_file(lab.user("l")).unwrap();
        symlink("both", lab.user("l")).unwrap();
        fs::remove_dir_all(lab.user("d")).unwrap();
        fs::write(lab.user("d"), "now a file").unwrap();
        lab.write("both_new", "user");
        let report = sync(&mut workspace);
        let beside: Vec<(String, Option<String>)> = report
            .conflicts
            .list
            .iter()
            .map(|found| (found.path.to_string(), found.beside.as_ref().map(ToString::to_string)))
            .collect();
        let pair = |path: &str, beside: &str| (path.to_owned(), Some(beside.to_owned()));
        assert_eq!(
            beside,
            [
                ("agent_removes".to_owned(), None),
                pair("both", "both.sandbox.3"),
                pair("both_new", "both_new.sandbox"),
                pair("d/x", "d.sandbox/x"),
                pair("f", "f.sandbox"),
                pair("f/inner", "f.sandbox/inner"),
                pair("l", "l.sandbox"),
                pair("user_removes", "user_removes.sandbox"),
            ],
            "{strategy:?}"
        );
        assert_eq!(paths(&report).0, strings(&[]));
        for (name, text) in [
            ("both", "user"),
            ("both.sandbox", "mine"),
            ("both.sandbox.2", "mine too"),
            ("both.sandbox.3", "agent"),
            ("agent_removes", "user"),
            ("same", "agreed"),
            ("f", "user"),
            ("f.sandbox/inner", "agent"),
            ("d", "now a file"),
            ("d.sandbox/x", "agent"),
            ("l", "user"),
            ("l.sandbox", "agent"),
            ("both_new", "user"),
            ("user_removes.sandbox", "agent"),
        ] {
            assert_eq!(lab.read(name), text, "{strategy:?} {name}");
        }
        assert!(!lab.has("user_removes"));
        assert!(sync(&mut workspace).is_empty(), "{strategy:?}: a conflict is told once");
        assert_eq!(agent.get("/p/both").unwrap(), b"user", "both sides agree afterwards");
        agent.put("/p/both", b"again").unwrap();
        assert_eq!(paths(&sync(&mut workspace)).0, ["both"]);
        assert_eq!(lab.read("both"), "again");
    }
}

#[test]
fn names_are_bytes() {
    use std::os::unix::ffi::OsStrExt as _;
    for strategy in BOTH {
        let lab = Lab::new(strategy);
        let names: [&[u8]; 6] = [
            b"back\\slash",
            b"new\nline",
            b"\xff\xfe",
            b" space ",
            b"\x1b[31m",
            "\u{202e}rtl".as_bytes(),
        ];
        for name in names {
            fs::write(lab.project().join(std::ffi::OsStr::from_bytes(name)), "user").unwrap();
        }
        let before = lab.tree();
        let mut workspace = lab.create();
        assert!(sync(&mut workspace).is_empty());
        assert_eq!(lab.tree(), before, "what nobody touched stays");
        let mut agent = agent(&workspace);
        agent.put("/p/b\\s\n\u{202e}", b"agent").unwrap();
        let report = sync(&mut workspace);
        let (updated, _, _) = paths(&report);
        assert_eq!(updated, ["b\\\\s\\u{a}\\u{202e}"], "and is shown escaped");
        assert_eq!(lab.read("b\\s\n\u{202e}"), "agent");
    }
}

#[test]
fn what_is_left_out_or_hidden_travels_in_no_direction() {
    for strategy in BOTH {
        let lab = Lab::new(strategy);
        for name in [
            ".venv/x",
            "node_modules/m/i.js",
            "pkg/__pycache__/c",
            ".env",
            "pkg/.env.local",
            "pkg/a",
        ] {
            lab.write(name, "user");
        }
        let mut workspace = lab.create();
        let mut agent = agent(&workspace);
        assert_eq!(agent.list("/p").unwrap(), ["pkg"]);
        assert_eq!(agent.list("/p/pkg").unwrap(), ["a"]);
        assert_eq!(agent.get("/p/.env"), Err(Errno::Noent));
        assert_eq!(agent.get("/p/node_modules/m/i.js"), Err(Errno::Noent));
        agent.put("/p/.env", b"agent").unwrap();
        agent.mkdir("/p/node_modules").unwrap();
        agent.put("/p/node_modules/new", b"agent").unwrap();
        assert_eq!(agent.list("/p/node_modules").unwrap(), ["new"]);
        let report = sync(&mut workspace);
        assert_eq!(paths(&report), (vec![], vec![], vec![".env".to_owned()]), "{strategy:?}");
        assert_eq!(lab.read(".env"), "user");
        assert_eq!(lab.read(".env.sandbox"), "agent");
        assert!(!lab.has("node_modules/new") && lab.has("node_modules/m/i.js"));
        let hidden: Vec<String> = report.hidden.list.iter().map(ToString::to_string).collect();
        assert!(hidden.contains(&"pkg/.env.local".to_owned()), "{strategy:?} {hidden:?}");
        assert_eq!(agent.get("/p/.env"), Err(Errno::Noent), "the user's is still not seen");
        agent.unlink("/p/pkg/a").unwrap();
        agent.rmdir("/p/pkg").unwrap();
        let report = sync(&mut workspace);
        assert_eq!(paths(&report).2, ["pkg"], "{strategy:?}: what the agent did not see stays");
        assert!(lab.has("pkg/.env.local") && lab.has("pkg/__pycache__/c"));
    }
}

#[test]
fn a_granted_secret_is_seen() {
    let lab = Lab::new(Strategy::Live);
    lab.write(".env", "user");
    let options =
        WorkspaceOptions { show_hidden: strings(&[".env"]), ..WorkspaceOptions::default() };
    let workspace = lab.create_with(&options);
    assert_eq!(agent(&workspace).get("/p/.env").unwrap(), b"user");
}

#[test]
fn edits_of_the_user_are_seen_and_reported() {
    for strategy in BOTH {
        let lab = Lab::new(strategy);
        lab.write("a", "one");
        lab.write("b", "one");
        lab.write("c", "one");
        let mut workspace = lab.create();
        std::thread::sleep(std::time::Duration::from_millis(30));
        lab.write("a", "two");
        lab.write("d/new", "new");
        fs::remove_file(lab.user("c")).unwrap();
        let mut agent = agent(&workspace);
        agent.put("/p/b", b"agent").unwrap();
        let report = sync(&mut workspace);
        let picked: Vec<String> = report.picked_up.list.iter().map(ToString::to_string).collect();
        assert!(picked.contains(&"a".to_owned()), "{strategy:?} {picked:?}");
        assert!(picked.iter().any(|path| path.starts_with('d')), "{strategy:?} {picked:?}");
        assert_eq!(agent.get("/p/a").unwrap(), b"two");
        assert_eq!(agent.get("/p/d/new").unwrap(), b"new");
        assert_eq!(agent.get("/p/c"), Err(Errno::Noent));
        assert_eq!(paths(&report).0, ["b"]);
        assert!(sync(&mut workspace).is_empty(), "{strategy:?}");
    }
}

#[test]
fn permissions_travel_alone_and_clash() {
    let lab = Lab::new(Strategy::Materialised);
    for name in ["run.sh", "clash", "edit"] {
        lab.write(name, "x");
    }
    let mut workspace = lab.create();
    let set = |path: std::path::PathBuf, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    let copy = |name: &str| lab.session().join("upper").join(name);
    set(copy("run.sh"), 0o4755);
    set(copy("clash"), 0o700);
    set(lab.user("clash"), 0o600);
    set(copy("edit"), 0o755);
    lab.write("edit", "user");
    let report = sync(&mut workspace);
    assert_eq!(paths(&report), (strings(&["run.sh"]), vec![], strings(&["clash", "edit"])));
    let mode = |name: &str| fs::metadata(lab.user(name)).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode("run.sh"), 0o755, "and never the set-id bit");
    assert_eq!((mode("clash"), mode("clash.sandbox")), (0o600, 0o700));
    assert_eq!(lab.read("edit"), "user");
    assert!(sync(&mut workspace).is_empty());
}

#[test]
fn what_the_host_would_run_is_held_back_or_flagged() {
    for strategy in BOTH {
        let lab = Lab::new(strategy);
        lab.write(".git/config", "user");
        lab.write(".git/hooks/pre-push", "user");
        lab.write("sub/.git/config", "user");
        lab.write("sub/x", "x");
        let mut workspace = lab.create();
        let mut agent = agent(&workspace);
        agent.put("/p/.git/hooks/pre-commit", b"agent").unwrap();
        agent.put("/p/.git/config", b"agent").unwrap();
        agent.unlink("/p/.git/hooks/pre-push").unwrap();
        for name in ["bare", "bare/objects", "bare/refs"] {
            agent.mkdir(&format!("/p/{name}")).unwrap();
        }
        agent.put("/p/bare/HEAD", b"ref").unwrap();
        agent.put("/p/bare/config", b"agent").unwrap();
        agent.mkdir("/p/fresh").unwrap();
        agent.mkdir("/p/fresh/.git").unwrap();
        agent.mkdir("/p/fresh/.git/hooks").unwrap();
        agent.put("/p/fresh/.git/hooks/post-checkout", b"agent").unwrap();
        agent.put("/p/conftest.py", b"agent").unwrap();
        for name in ["sub/.git/config", "sub/x"] {
            agent.unlink(&format!("/p/{name}")).unwrap();
        }
        agent.rmdir("/p/sub/.git").unwrap();
        agent.rmdir("/p/sub").unwrap();
        let report = sync(&mut workspace);
        let held: Vec<String> =
            report.held_back.list.iter().map(|found| found.path.to_string()).collect();
        assert_eq!(
            held,
            [
                ".git/config",
                ".git/hooks/pre-commit",
                ".git/hooks/pre-push",
                "bare/HEAD",
                "bare/config",
                "bare/objects",
                "bare/refs",
                "fresh/.git/hooks/post-checkout",
                "sub",
            ],
            "{strategy:?}"
        );
        let flagged: Vec<String> =
            report.flagged.list.iter().map(|found| found.path.to_string()).collect();
        assert_eq!(flagged, ["conftest.py"]);
        assert_eq!(lab.read(".git/config"), "user");
        assert!(lab.has(".git/hooks/pre-push") && !lab.has(".git/hooks/pre-commit"));
        assert!(lab.has("sub/.git/config") && lab.has("conftest.py"));
        assert!(!lab.has("bare/config") && !lab.has("fresh/.git/hooks/post-checkout"));
        assert!(sync(&mut workspace).is_empty(), "{strategy:?}: told once");
        assert_eq!(agent.get("/p/.git/config").unwrap(), b"agent", "the agent keeps its own");
        assert!(workspace.has_changes().unwrap());
        let mut accept = options();
        accept.accept.push(b".git/config".to_vec());
        let report = workspace.sync(&accept).unwrap();
        assert_eq!(paths(&report).0, [".git/config"], "{strategy:?}");
        assert_eq!(lab.read(".git/config"), "agent");
    }
}

#[test]
fn what_stays_in_a_directory_that_cannot_be_makes_no_conflict_again() {
    for strategy in BOTH {
        let lab = Lab::new(strategy);
        let mut workspace = lab.create();
        let mut agent = agent(&workspace);
        for name in ["held", "held/.git", "scratch", "scratch/node_modules"] {
            agent.mkdir(&format!("/p/{name}")).unwrap();
        }
        agent.put("/p/held/.git/config", b"agent").unwrap();
        agent.put("/p/scratch/node_modules/x", b"agent").unwrap();
        lab.write("held", "user");
        lab.write("scratch", "user");
        let report = sync(&mut workspace);
        assert_eq!(report.held_back.list.len(), 1, "{strategy:?}");
        for _ in 0..3 {
            let report = sync(&mut workspace);
            assert!(report.conflicts.is_empty(), "{strategy:?} {:?}", report.conflicts);
        }
        assert_eq!((lab.read("held"), lab.read("scratch")), ("user".into(), "user".into()));
        assert_eq!(lab.tree().len(), 2, "{strategy:?}: no directory beside them");
    }
}

#[test]
fn what_a_guarded_name_links_to_is_guarded() {
    for strategy in BOTH {
        let lab = Lab::new(strategy);
        lab.write("dotfiles/bashrc", "user");
        lab.write("real/config", "user");
        symlink("dotfiles/bashrc", lab.user(".bashrc")).unwrap();
        symlink("real", lab.user(".git")).unwrap();
        symlink("dotfiles/later", lab.user(".zshrc")).unwrap();
        let mut workspace = lab.create();
        let mut agent = agent(&workspace);
        for name in ["dotfiles/bashrc", "real/config", "dotfiles/later", "dotfiles/other"] {
            agent.put(&format!("/p/{name}"), b"agent").unwrap();
        }
        let report = sync(&mut workspace);
        let held: Vec<String> =
            report.held_back.list.iter().map(|found| found.path.to_string()).collect();
        assert_eq!(held, ["dotfiles/bashrc", "dotfiles/later", "real/config"], "{strategy:?}");
        assert_eq!(paths(&report).0, ["dotfiles/other"], "{strategy:?}");
        assert_eq!(lab.read("dotfiles/bashrc"), "user");
    }
}

#[test]
fn a_local_link_leads_nowhere() {
    for strategy in BOTH {
        let lab = Lab::new(strategy);
        lab.write("d/x", "base");
        fs::create_dir(lab.root.path().join("outside")).unwrap();
        fs::write(lab.root.path().join("outside/x"), "canary").unwrap();
        let mut workspace = lab.create();
        let mut agent = agent(&workspace);
        agent.put("/p/d/x", b"agent").unwrap();
        agent.put("/p/d/y", b"agent").unwrap();
        fs::remove_dir_all(lab.user("d")).unwrap();
        symlink(lab.root.path().join("outside"), lab.user("d")).unwrap();
        let report = sync(&mut workspace);
        assert_eq!(paths(&report).0, strings(&[]));
        assert_eq!(fs::read(lab.root.path().join("outside/x")).unwrap(), b"canary");
        assert_eq!(fs::read_dir(lab.root.path().join("outside")).unwrap().count(), 1);
        assert_eq!(lab.read("d.sandbox/y"), "agent");
    }
}

#[test]
fn an_edit_in_the_middle_of_a_sync_wins() {
    for strategy in BOTH {
        for step in ["seal", "apply", "exchanged"] {
            let lab = Lab::new(strategy);
            lab.write("a", "base");
            lab.write("b", "base");
            let mut workspace = lab.create();
            let mut agent = agent(&workspace);
            agent.put("/p/a", b"agent").unwrap();
            agent.put("/p/b", b"agent").unwrap();
            let swap = || {
                fs::write(lab.user("mine"), "user").unwrap();
                fs::rename(lab.user("mine"), lab.user("a")).unwrap();
            };
            let report = sync_at(&mut workspace, step, 1, swap).unwrap();
            let _ = report;
            assert_eq!(lab.read("a"), "user", "{strategy:?} {step}");
            assert_eq!(lab.read("b"), "agent", "{strategy:?} {step}");
        }
    }
}

#[test]
fn a_late_write_through_an_open_descriptor_is_kept() {
    for strategy in BOTH {
        let lab = Lab::new(strategy);
        lab.write("a", "base");
        let mut workspace = lab.create();
        agent(&workspace).put("/p/a", b"agent").unwrap();
        let open = fs::OpenOptions::new().append(true).open(lab.user("a")).unwrap();
        let report = sync_at(&mut workspace, "applied", 1, || {
            (&open).write_all(b" and more").unwrap();
        })
        .unwrap();
        assert_eq!(lab.read("a"), "agent");
        assert_eq!(lab.read("a.local"), "base and more");
        assert_eq!(paths(&report).2, ["a"]);
    }
}

#[test]
fn a_project_that_never_rests_is_left_alone() {
    let lab = Lab::new(Strategy::Live);
    lab.write("a", "base");
    let mut workspace = lab.create();
    agent(&workspace).put("/p/b", b"agent").unwrap();
    let spoil = || {
        let _ = fs::remove_file(lab.user("b"));
        let _ = fs::create_dir(lab.user("b"));
        let _ = fs::remove_dir(lab.user("b"));
        let _ = fs::write(lab.user("b"), format!("{:?}", std::time::SystemTime::now()));
    };
    let result = sync_at(&mut workspace, "apply", u64::MAX, || {
        spoil();
    });
    match result {
        Ok(report) => assert_eq!(paths(&report).2, ["b"]),
        Err(error) => assert!(matches!(error, SyncError::Changing)),
    }
    assert_eq!(
        fs::read_dir(lab.project())
            .unwrap()
            .filter(|entry| {
                entry.as_ref().unwrap().file_name().to_string_lossy().starts_with(".fumehood")
            })
            .count(),
        0
    );
}

#[test]
fn what_cannot_be_a_project_is_refused_by_name() {
    let lab = Lab::new(Strategy::Live);
    let create = |project: &std::path::Path, session: &std::path::Path| {
        Workspace::create(session, project, &WorkspaceOptions::default(), &mut |_, _| {})
            .err()
            .map(|error| error.code())
    };
    let session = lab.session();
    fs::write(lab.root.path().join("file"), "").unwrap();
    for (project, code) in [
        ("/nowhere/at/all", "project_missing"),
        ("/", "project_forbidden"),
        ("/proc", "project_forbidden"),
        ("/proc/self", "project_forbidden"),
        ("/sys", "project_forbidden"),
    ] {
        assert_eq!(create(project.as_ref(), &session), Some(code), "{project}");
    }
    let at = |name: &str| lab.root.path().join(name);
    assert_eq!(create(&at("file"), &session), Some("project_not_a_directory"));
    assert_eq!(create(&session, &session), Some("project_overlaps_session"));
    assert_eq!(create(lab.root.path(), &session), Some("project_overlaps_session"));
    fs::create_dir(lab.user("inner")).unwrap();
    assert_eq!(create(&lab.project(), &lab.user("inner")), Some("project_overlaps_session"));
    fs::create_dir(session.join("sub")).unwrap();
    assert_eq!(create(&session.join("sub"), &session), Some("project_overlaps_session"));
    symlink(&session, at("alias")).unwrap();
    assert_eq!(create(&at("alias"), &session), Some("project_overlaps_session"));
}

#[test]
fn a_workspace_is_opened_once_and_for_its_project() {
    let lab = Lab::new(Strategy::Live);
    lab.write("a", "base");
    let workspace = lab.create();
    agent(&workspace).put("/p/a", b"agent").unwrap();
    assert!(matches!(Workspace::open(&lab.session()), Err(WorkspaceError::InUse)));
    let again = Workspace::create(
        &lab.session(),
        &lab.project(),
        &WorkspaceOptions::default(),
        &mut |_, _| {},
    );
    assert!(matches!(again, Err(WorkspaceError::Exists)));
    drop(workspace);
    let workspace = Workspace::open(&lab.session()).unwrap();
    assert_eq!(agent(&workspace).get("/p/a").unwrap(), b"agent", "changes survive");
    drop(workspace);
    fs::rename(lab.project(), lab.root.path().join("elsewhere")).unwrap();
    assert!(matches!(
        Workspace::open(&lab.session()),
        Err(WorkspaceError::Project(ProjectError::Missing { .. }))
    ));
    fs::create_dir(lab.project()).unwrap();
    assert!(matches!(Workspace::open(&lab.session()), Err(WorkspaceError::OtherProject { .. })));
    fs::remove_dir(lab.project()).unwrap();
    fs::rename(lab.root.path().join("elsewhere"), lab.project()).unwrap();
    let workspace = Workspace::open(&lab.session()).unwrap();
    assert!(workspace.discard().unwrap().had_changes);
    assert_eq!(Workspace::project_of(&lab.session()).unwrap(), None);
    assert_eq!(lab.read("a"), "base");
}

#[test]
fn what_is_open_for_writing_stays_in_the_workspace() {
    let lab = Lab::new(Strategy::Live);
    let mut workspace = lab.create();
    let mut agent = agent(&workspace);
    let fd = agent.open("/p/log", crate::testing::CREATE, crate::testing::W).unwrap();
    agent.write(fd, b"one").unwrap();
    let mut with_open = options();
    with_open.open.push(b"log".to_vec());
    assert_eq!(paths(&workspace.sync(&with_open).unwrap()).0, ["log"]);
    assert_eq!(lab.read("log"), "one");
    agent.write(fd, b" two").unwrap();
    agent.close(fd).unwrap();
    assert_eq!(paths(&sync(&mut workspace)).0, ["log"]);
    assert_eq!(lab.read("log"), "one two");
    assert!(!workspace.has_changes().unwrap());
}

#[test]
fn a_diff_shows_lines() {
    let lab = Lab::new(Strategy::Live);
    lab.write("a", "one\ntwo\n");
    lab.write("bin", "\0");
    let workspace = lab.create();
    let mut agent = agent(&workspace);
    agent.put("/p/a", b"one\n2\n").unwrap();
    agent.put("/p/new", b"n\n").unwrap();
    agent.put("/p/bin", b"\0\0").unwrap();
    let mut out = Vec::new();
    workspace.diff(&options(), &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    for part in
        ["--- a/a\n+++ b/a\n", "-two\n+2\n", "--- /dev/null\n+++ b/new\n", "a/bin and b/bin differ"]
    {
        assert!(text.contains(part), "{part}\n{text}");
    }
}
