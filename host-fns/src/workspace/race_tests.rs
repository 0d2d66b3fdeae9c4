//! A sync while the project is changed under it, and what it costs.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "tests prepare and inspect the host side"
)]

use std::fs;
use std::os::unix::fs::symlink;

use super::apply::{Applier, Stop};
use super::journal::{Entry, Journal, Op};
use super::open::{Strategy, Workspace, WorkspaceOptions};
use super::state::{self, State};
use super::steps::Every;
use super::sync::SyncError;
use super::testing::*;
use crate::testing::{SetAtEnd, is_full};

/// Swaps a directory of the project for a link to the outside all the time,
/// while changes below it are brought back: the outside is never reached and
/// nothing is lost.
#[test]
fn a_race_never_reaches_the_outside() {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    let attempts = if is_full() { 100_000 } else { 500 };
    let lab = Lab::fast(Strategy::Live);
    lab.write("d/x", "base");
    let outside = lab.root.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("x"), "canary").unwrap();
    symlink(&outside, lab.user("link")).unwrap();
    let mut workspace = lab.create();
    let (stop, swaps) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let dir = fs::File::open(lab.project()).unwrap();
            while !stop.load(Ordering::Relaxed) {
                let flags = rustix::fs::RenameFlags::EXCHANGE;
                rustix::fs::renameat_with(&dir, "d", &dir, "link", flags).unwrap();
                swaps.fetch_add(1, Ordering::Relaxed);
            }
        });
        let stopped = SetAtEnd(&stop);
        for turn in 0..attempts {
            let mut agent = agent(&workspace);
            let _ = agent.put("/p/d/x", format!("agent {turn}").as_bytes());
            let _ = agent.put("/p/d/new", b"new");
            match workspace.sync(&options()) {
                Ok(_) | Err(SyncError::Changing | SyncError::Io { .. }) => {}
                Err(error) => panic!("{error:?}"),
            }
            if turn % 50 == 0 {
                // Conflicts are kept beside; too many of them are not the point.
                for entry in fs::read_dir(lab.project()).unwrap() {
                    let path = entry.unwrap().path();
                    if path.to_string_lossy().contains(".sandbox") {
                        let _ = fs::remove_dir_all(&path).or_else(|_| fs::remove_file(&path));
                    }
                }
            }
        }
        drop(stopped);
    });
    assert!(swaps.load(Ordering::Relaxed) > 100);
    assert!(lab.has("d") && lab.has("link"), "what the user moved about is there");
    assert_eq!(fs::read(outside.join("x")).unwrap(), b"canary");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
    let stray = |name: &std::ffi::OsStr| name.to_string_lossy().starts_with(".fumehood");
    assert!(!fs::read_dir(lab.project()).unwrap().any(|entry| stray(&entry.unwrap().file_name())));
}

/// A directory is never taken for something that may be displaced, whatever a
/// plan says, and never removed with a stage.
#[test]
fn a_directory_is_never_displaced() {
    let lab = Lab::fast(Strategy::Live);
    lab.write("d/x", "user");
    let workspace = lab.create();
    let (project, path) = (&workspace.project, b"d".to_vec());
    project.make_directory(b"stage", 0o700).unwrap();
    let stage = project.child(b"stage").unwrap();
    stage.create(b"1", 0o600).unwrap();
    let applier = Applier { project, stage: &stage, steps: &Every };
    for expected in [State::Directory { mode: 0o755 }, state::read(project, b"d")] {
        for op in [
            Op::Remove { path: path.clone(), item: 2, expected: expected.clone() },
            Op::Put {
                path: path.clone(),
                item: 1,
                inode: stage.look(b"1").unwrap().unwrap().inode,
                expected: expected.clone(),
                state: state::read(&stage, b"1"),
            },
        ] {
            let mut journal = Journal::create(&workspace.root).unwrap();
            journal.add(&Entry::Op(op)).unwrap();
            assert!(matches!(applier.apply(&journal).unwrap(), Err(Stop::Changed)));
            assert_eq!(lab.read("d/x"), "user");
            journal.remove(&workspace.root).unwrap();
        }
    }
    fs::rename(lab.user("d"), lab.user("stage/3")).unwrap();
    Applier::remove_stage(project, b"stage").unwrap();
    assert_eq!(lab.read("moved.local/x"), "user");
    assert!(!lab.has("stage"));
}

/// Figures; none is asserted.
#[test]
#[ignore = "measures"]
fn costs() {
    use std::time::Instant;
    #[allow(clippy::disallowed_methods, reason = "measures")]
    let now = Instant::now;
    let lab = Lab::new(Strategy::Live);
    for directory in 0..500 {
        fs::create_dir(lab.user(&format!("d{directory}"))).unwrap();
        for file in 0..100 {
            fs::write(lab.user(&format!("d{directory}/f{file}")), "some lines\n".repeat(20))
                .unwrap();
        }
    }
    let start = now();
    let mut workspace = lab.create();
    eprintln!("start on 50 000 files, live: {:?}", start.elapsed());
    let mut agent = agent(&workspace);
    let start = now();
    for file in 0..2000 {
        agent.get(&format!("/p/d{}/f{}", file / 100, file % 100)).unwrap();
    }
    eprintln!("2 000 reads: {:?}", start.elapsed());
    for file in 0..100 {
        agent.put(&format!("/p/d{file}/f0"), b"changed").unwrap();
    }
    let start = now();
    let report = sync(&mut workspace);
    eprintln!("sync of {} files: {:?}", report.updated.count(), start.elapsed());
    let start = now();
    assert!(sync(&mut workspace).is_empty());
    eprintln!("sync of nothing: {:?}", start.elapsed());
    workspace.discard().unwrap();
    let materialised =
        WorkspaceOptions { strategy: Strategy::Materialised, ..WorkspaceOptions::default() };
    let start = now();
    Workspace::create(&lab.session(), &lab.project(), &materialised, &mut |_, _| {}).unwrap();
    eprintln!("start on 50 000 files, materialised: {:?}", start.elapsed());
}
