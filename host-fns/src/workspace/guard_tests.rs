//! What of the agent's changes is held back, and what was never copied.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "tests prepare and inspect the host side"
)]

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use super::open::Strategy;
use super::report::SyncReport;
use super::testing::*;

const BOTH: [Strategy; 2] = [Strategy::Live, Strategy::Materialised];

fn held(report: &SyncReport) -> Vec<String> {
    report.held_back.list.iter().map(|found| found.path.to_string()).collect()
}

#[test]
fn a_repository_is_planted_neither_at_once_nor_piece_by_piece() {
    for strategy in BOTH {
        for order in [["HEAD", "objects", "refs"], ["refs", "HEAD", "objects"]] {
            let lab = Lab::new(strategy);
            let mut workspace = lab.create();
            let mut agent = agent(&workspace);
            agent.mkdir("/p/x").unwrap();
            agent.put("/p/x/config", b"agent").unwrap();
            assert_eq!(held(&sync(&mut workspace)), [""; 0], "{strategy:?}");
            for (number, name) in order.into_iter().enumerate() {
                let path = format!("/p/x/{name}");
                if name == "HEAD" {
                    agent.put(&path, b"ref: refs/heads/main").unwrap();
                } else {
                    agent.mkdir(&path).unwrap();
                }
                let report = sync(&mut workspace);
                assert_eq!(held(&report).is_empty(), number < 2, "{strategy:?} {report:?}");
            }
            let last = order[2];
            assert!(lab.has("x/config") && !lab.has(&format!("x/{last}")), "{strategy:?} {last}");
            assert!(sync(&mut workspace).is_empty(), "{strategy:?}: told once");
        }
    }
}

#[test]
fn a_repository_is_not_planted_through_a_common_directory() {
    for strategy in BOTH {
        let lab = Lab::new(strategy);
        let mut workspace = lab.create();
        let mut agent = agent(&workspace);
        for name in ["a", "b", "b/objects", "b/refs"] {
            agent.mkdir(&format!("/p/{name}")).unwrap();
        }
        for name in ["a/HEAD", "a/commondir", "a/config.worktree", "b/config"] {
            agent.put(&format!("/p/{name}"), b"agent").unwrap();
        }
        let report = sync(&mut workspace);
        assert_eq!(held(&report), ["a/HEAD", "a/commondir", "a/config.worktree"], "{strategy:?}");
        assert!(lab.has("b/config") && !lab.has("a/HEAD"));
    }
}

#[test]
fn what_git_itself_changes_in_a_repository_is_taken() {
    for strategy in BOTH {
        let lab = Lab::new(strategy);
        for name in ["bare/HEAD", "bare/objects/x", "bare/refs/x"] {
            lab.write(name, "user");
        }
        let mut workspace = lab.create();
        let mut agent = agent(&workspace);
        agent.put("/p/bare/HEAD", b"agent").unwrap();
        for name in [".git", ".git/objects", ".git/refs"] {
            agent.mkdir(&format!("/p/{name}")).unwrap();
        }
        agent.put("/p/.git/HEAD", b"agent").unwrap();
        assert_eq!(held(&sync(&mut workspace)), [""; 0], "{strategy:?}");
        assert_eq!(
            (lab.read("bare/HEAD"), lab.read(".git/HEAD")),
            ("agent".into(), "agent".into())
        );
    }
}

#[test]
fn what_is_guarded_does_not_go_away_for_something_of_another_kind() {
    for strategy in BOTH {
        let lab = Lab::new(strategy);
        lab.write(".bashrc", "user");
        lab.write("real/x", "user");
        lab.write(".fumehood/own", "user");
        lab.write("plain", "user");
        symlink("real", lab.user(".git")).unwrap();
        let mut workspace = lab.create();
        let mut agent = agent(&workspace);
        agent.unlink("/p/.fumehood/own").unwrap();
        agent.rmdir("/p/.fumehood").unwrap();
        agent.put("/p/.fumehood", b"agent").unwrap();
        for name in [".bashrc", ".git", "plain"] {
            agent.unlink(&format!("/p/{name}")).unwrap();
            agent.mkdir(&format!("/p/{name}")).unwrap();
            agent.put(&format!("/p/{name}/x"), b"agent").unwrap();
        }
        let report = sync(&mut workspace);
        assert_eq!(held(&report), [".bashrc", ".fumehood", ".git"], "{strategy:?}");
        assert_eq!(
            (lab.read(".bashrc"), lab.read(".fumehood/own")),
            ("user".into(), "user".into())
        );
        assert_eq!(fs::read_link(lab.user(".git")).unwrap().to_str(), Some("real"));
        assert_eq!(lab.read("plain/x"), "agent", "{strategy:?}");
        assert!(sync(&mut workspace).is_empty(), "{strategy:?}: told once");
        assert_eq!(agent.get("/p/.bashrc/x").unwrap(), b"agent", "the agent keeps its own");
    }
}

#[test]
fn a_link_that_can_lead_out_is_held_back() {
    for strategy in BOTH {
        let lab = Lab::new(strategy);
        lab.write("x", "user");
        let mut workspace = lab.create();
        // As a real process makes them: no broker has seen them.
        let upper = lab.session().join("upper");
        fs::create_dir(upper.join("d")).unwrap();
        for (target, link) in [
            ("/etc/passwd", "absolute"),
            ("../secret", "up"),
            ("../../secret", "d/up"),
            (".", "here"),
            ("here/../../secret", "through"),
            ("../x", "d/inside"),
        ] {
            symlink(target, upper.join(link)).unwrap();
        }
        let report = sync(&mut workspace);
        assert_eq!(held(&report), ["absolute", "d/up", "through", "up"], "{strategy:?}");
        let reason = report.held_back.list.first().map(|found| (found.rule, found.reason));
        assert_eq!(reason, Some(("link-out", "it is a link that can lead out of the project")));
        assert!(lab.has("here") && !lab.has("absolute") && !lab.has("d/up"));
        assert_eq!(lab.read("d/inside"), "user", "{strategy:?}");
        let mut accept = options();
        accept.accept.push(b"absolute".to_vec());
        assert_eq!(paths(&workspace.sync(&accept).unwrap()).0, ["absolute"], "{strategy:?}");
        assert!(lab.has("absolute"));
    }
}

#[test]
fn what_cannot_be_copied_is_no_news() {
    let lab = Lab::new(Strategy::Materialised);
    lab.write("a", "base");
    let fifo = |name: &str| {
        let parent = fs::File::open(lab.project()).unwrap();
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(&parent, name, kind, rustix::fs::Mode::RWXU, 0).unwrap();
    };
    fifo("pipe");
    let mut workspace = lab.create();
    assert!(!workspace.has_changes().unwrap());
    assert!(sync(&mut workspace).is_empty());
    lab.write("later/b", "user");
    fifo("later/pipe");
    agent(&workspace).put("/p/a", b"agent").unwrap();
    let report = sync(&mut workspace);
    assert_eq!(paths(&report).0, ["a"]);
    assert_eq!(report.picked_up.list.len(), 1, "{report:?}");
    assert!(sync(&mut workspace).is_empty());
    assert_eq!(agent(&workspace).get("/p/later/b").unwrap(), b"user");
    assert!(lab.has("pipe") && lab.has("later/pipe"));
}

/// Permissions bind nobody who is root: there it shows only that nothing else
/// is in the way.
#[test]
fn what_cannot_be_read_breaks_no_sync() {
    let root = rustix::process::geteuid().is_root();
    let lab = Lab::new(Strategy::Materialised);
    for name in ["a", "shut/x", "secret", "d/shut/x"] {
        lab.write(name, "user");
    }
    let set = |name: &str, mode| {
        fs::set_permissions(lab.user(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    for name in ["shut", "secret", "d/shut"] {
        set(name, 0);
    }
    let mut workspace = lab.create();
    assert!(sync(&mut workspace).is_empty());
    lab.write("new/deep/x", "user");
    set("new/deep", 0);
    let mut agent = agent(&workspace);
    agent.put("/p/a", b"agent").unwrap();
    assert_eq!(agent.list("/p/d").unwrap().is_empty(), !root);
    if !root {
        agent.mkdir("/p/shut").unwrap();
        agent.put("/p/shut/own", b"agent").unwrap();
    }
    let report = sync(&mut workspace);
    assert!(paths(&report).0.contains(&"a".to_owned()), "{report:?}");
    assert!(sync(&mut workspace).is_empty());
    for name in ["shut", "d/shut", "new/deep"] {
        set(name, 0o755);
    }
    for name in ["shut/x", "d/shut/x", "new/deep/x"] {
        assert_eq!(lab.read(name), "user", "{name}");
    }
    assert_eq!(lab.has("shut.sandbox/own"), !root);
}
