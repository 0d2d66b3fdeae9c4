//! The overlay as a guest meets it, and with a user who changes things
//! meanwhile.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "tests prepare and inspect the host side"
)]

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;

use crate::call::{FileType, SetTime};
use crate::errno::Errno;
use crate::fs::WorkspaceLimits;
use crate::testing::*;
use crate::workspace::testing::{Lab, agent};
use crate::workspace::{Strategy as Kept, WorkspaceOptions};

fn lab() -> Lab {
    let lab = Lab::new(Kept::Live);
    for name in ["f", "d/x", "d/e/deep", "gone/x"] {
        lab.write(name, name);
    }
    lab
}

#[test]
fn nothing_reaches_the_lower_tree() {
    let lab = lab();
    symlink("f", lab.user("l")).unwrap();
    let before = lab.tree();
    let workspace = lab.create();
    let mut guest = agent(&workspace);
    let fd = guest.open("/p/f", 0, R).unwrap();
    guest.put("/p/f", b"changed").unwrap();
    assert_eq!(guest.read(fd, 9).unwrap(), b"f", "what was open stays what it was");
    assert_eq!(guest.put("/p/l", b"through"), Ok(()));
    assert_eq!(guest.get("/p/f").unwrap(), b"through", "the link was decided anew");
    guest.utimes("/p/d/x", SetTime::Keep, SetTime::To(2_000_000_000)).unwrap();
    assert_eq!(guest.stat("/p/d/x", true).unwrap().modified_ns, 2_000_000_000);
    guest.utimes("/p/d", SetTime::Keep, SetTime::To(3_000_000_000)).unwrap();
    guest.link("/p/d/x", "/p/second").unwrap();
    guest.rename("/p/d", "/p/moved").unwrap();
    assert_eq!(guest.get("/p/moved/e/deep").unwrap(), b"d/e/deep");
    assert_eq!(guest.get("/p/d/x"), Err(Errno::Noent));
    guest.mkdir("/p/d").unwrap();
    assert!(guest.list("/p/d").unwrap().is_empty(), "a new directory shows nothing old");
    guest.unlink("/p/gone/x").unwrap();
    assert_eq!(guest.unlink("/p/gone/x"), Err(Errno::Noent));
    guest.put("/p/gone/x", b"again").unwrap();
    assert_eq!(guest.get("/p/gone/x").unwrap(), b"again");
    assert_eq!(lab.tree(), before);
    let times = fs::metadata(lab.user("d/x")).unwrap().modified().unwrap();
    assert!(times.elapsed().unwrap().as_secs() < 3600, "times of the lower tree stay");
}

#[test]
fn errors_are_those_of_one_tree() {
    let lab = lab();
    let workspace = lab.create();
    let mut guest = agent(&workspace);
    assert_eq!(guest.rmdir("/p/d"), Err(Errno::Notempty));
    assert_eq!(guest.rmdir("/p/f"), Err(Errno::Notdir));
    assert_eq!(guest.unlink("/p/d"), Err(Errno::Isdir));
    assert_eq!(guest.mkdir("/p/d"), Err(Errno::Exist));
    assert_eq!(guest.open("/p/f", CREATE | EXCLUSIVE, W), Err(Errno::Exist));
    assert_eq!(guest.open("/p/d", 0, W).err(), Some(Errno::Isdir));
    assert_eq!(guest.open("/p/f", DIRECTORY, R), Err(Errno::Notdir));
    assert_eq!(guest.open("/p/none/x", CREATE, W), Err(Errno::Noent));
    assert_eq!(guest.open("/p/f/x", CREATE, W), Err(Errno::Notdir));
    assert_eq!(guest.rename("/p/d", "/p/d/e/in"), Err(Errno::Inval));
    assert_eq!(guest.rename("/p/d/e", "/p/d"), Err(Errno::Notempty));
    assert_eq!(guest.rename("/p/f", "/p/d"), Err(Errno::Isdir));
    assert_eq!(guest.rename("/p/d", "/p/f"), Err(Errno::Notdir));
    assert_eq!(guest.rename("/p/gone", "/p/d"), Err(Errno::Notempty));
    assert_eq!(guest.rename("/p/f", "/tmp/f"), Err(Errno::Xdev));
    assert_eq!(guest.link("/p/f", "/tmp/f"), Err(Errno::Xdev));
    assert_eq!(guest.link("/p/f", "/p/gone"), Err(Errno::Exist));
    for target in ["/etc/passwd", "../../x"] {
        assert_eq!(guest.symlink(target, "/p/made"), Err(Errno::Perm), "{target}");
    }
    assert_eq!(guest.rename("/p/f", "/p/f"), Ok(()));
    assert_eq!(guest.rmdir("/p"), Err(Errno::Busy));
}

#[test]
fn special_files_and_links_outside_stay_shut() {
    let lab = lab();
    fs::write(lab.root.path().join("canary"), "canary").unwrap();
    symlink(lab.root.path().join("canary"), lab.user("absolute")).unwrap();
    symlink("../canary", lab.user("up")).unwrap();
    symlink("..", lab.user("d/above")).unwrap();
    let parent = fs::File::open(lab.project()).unwrap();
    let mode = rustix::fs::Mode::RWXU;
    rustix::fs::mknodat(&parent, "fifo", rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let workspace = lab.create();
    let mut guest = agent(&workspace);
    for name in ["absolute", "up"] {
        let path = format!("/p/{name}");
        assert_eq!(guest.get(&path), Err(Errno::Perm), "{name}");
        assert_eq!(guest.put(&path, b"x"), Err(Errno::Perm), "{name}");
        assert_eq!(guest.rename(&path, "/p/d/moved"), Err(Errno::Perm), "{name}");
        assert_eq!(guest.link(&path, "/p/d/moved"), Err(Errno::Perm), "{name}");
    }
    assert_eq!(guest.get("/p/d/above/f").unwrap(), b"f", "a link inside leads on");
    assert_eq!(guest.open("/p/fifo", 0, R).err(), Some(Errno::Perm));
    assert_eq!(guest.unlink("/p/fifo"), Err(Errno::Perm));
    assert_eq!(guest.kind("/p/fifo"), Ok(FileType::Unknown));
    assert_eq!(fs::read(lab.root.path().join("canary")).unwrap(), b"canary");
}

#[test]
fn quotas_hold_and_are_given_back() {
    let lab = Lab::new(Kept::Live);
    lab.write("big", &"x".repeat(600));
    let options = WorkspaceOptions {
        limits: WorkspaceLimits { bytes: 1000, inodes: 4 },
        ..WorkspaceOptions::default()
    };
    let workspace = lab.create_with(&options);
    let mut guest = agent(&workspace);
    let fd = guest.open("/p/a", CREATE, W).unwrap();
    assert_eq!(guest.write(fd, &[1; 900]).unwrap(), 900);
    assert_eq!(guest.write(fd, &[1; 101]), Err(Errno::Nospc));
    guest.close(fd).unwrap();
    assert_eq!(guest.open("/p/big", 0, R | W), Err(Errno::Nospc), "the copy would not fit");
    assert_eq!(guest.get("/p/big").unwrap().len(), 600);
    guest.unlink("/p/a").unwrap();
    let fd = guest.open("/p/big", 0, R | W).unwrap();
    guest.close(fd).unwrap();
    assert_eq!(workspace.layer.quota.used(), (600, 1));
    for _ in 0..3 {
        guest.put("/p/big", &[2; 700]).unwrap();
        assert_eq!(workspace.layer.quota.used(), (700, 1), "a file that is cut gives back");
    }
    let fd = guest.open("/p/big", TRUNCATE, W).unwrap();
    guest.close(fd).unwrap();
    assert_eq!(workspace.layer.quota.used(), (0, 1));
    for name in ["1", "2", "3"] {
        guest.mkdir(&format!("/p/{name}")).unwrap();
    }
    assert_eq!(guest.mkdir("/p/4"), Err(Errno::Nospc));
    guest.rmdir("/p/3").unwrap();
    guest.mkdir("/p/4").unwrap();
}

/// A user swaps a directory for a link to the outside while the guest reads
/// and writes through it; the canary is never reached.
#[test]
fn a_race_never_reaches_the_outside() {
    let lab = Lab::new(Kept::Live);
    lab.write("d/x", "inside");
    let outside = lab.root.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("x"), "canary").unwrap();
    symlink(&outside, lab.user("link")).unwrap();
    let workspace = lab.create();
    let mut guest = agent(&workspace);
    let stop = AtomicBool::new(false);
    let attempts = if crate::testing::is_full() { 100_000 } else { 3_000 };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let dir = fs::File::open(lab.project()).unwrap();
            while !stop.load(Ordering::Relaxed) {
                let flags = rustix::fs::RenameFlags::EXCHANGE;
                rustix::fs::renameat_with(&dir, "d", &dir, "link", flags).unwrap();
            }
        });
        let stopped = SetAtEnd(&stop);
        for turn in 0..attempts {
            match guest.get("/p/d/x") {
                Ok(found) => assert_eq!(found, b"inside"),
                Err(errno) => assert!(
                    matches!(
                        errno,
                        Errno::Perm | Errno::Noent | Errno::Notdir | Errno::Busy | Errno::Loop
                    ),
                    "{errno:?}"
                ),
            }
            if turn % 64 == 0 {
                let _ = guest.put("/p/d/made", b"made");
            }
        }
        drop(stopped);
    });
    assert_eq!(fs::read(outside.join("x")).unwrap(), b"canary");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
}

/// One step on a file system.
#[derive(Clone, Debug)]
enum Step {
    Put(String, u8),
    Mkdir(String),
    Unlink(String),
    Rmdir(String),
    Rename(String, String),
    Link(String, String),
    Symlink(String, String),
    Open(String, u16),
    Truncate(String),
}

fn name() -> impl Strategy<Value = String> {
    "(/[abc]){1,3}"
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (name(), any::<u8>()).prop_map(|(at, byte)| Step::Put(at, byte)),
        2 => name().prop_map(Step::Mkdir),
        2 => name().prop_map(Step::Unlink),
        2 => name().prop_map(Step::Rmdir),
        4 => (name(), name()).prop_map(|(from, to)| Step::Rename(from, to)),
        1 => (name(), name()).prop_map(|(from, to)| Step::Link(from, to)),
        1 => ("[abc]", name()).prop_map(|(to, at)| Step::Symlink(to, at)),
        1 => (name(), 0_u16..16).prop_map(|(at, flags)| Step::Open(at, flags)),
        1 => name().prop_map(Step::Truncate),
    ]
}

fn carry_out(guest: &mut Guest, root: &str, step: &Step) -> Result<(), Errno> {
    let at = |path: &str| format!("{root}{path}");
    match step {
        Step::Put(path, byte) => guest.put(&at(path), &[*byte; 3]),
        Step::Mkdir(path) => guest.mkdir(&at(path)),
        Step::Unlink(path) => guest.unlink(&at(path)),
        Step::Rmdir(path) => guest.rmdir(&at(path)),
        Step::Rename(from, to) => guest.rename(&at(from), &at(to)),
        Step::Link(from, to) => guest.link(&at(from), &at(to)),
        Step::Symlink(to, path) => guest.symlink(to, &at(path)),
        Step::Open(path, flags) => {
            let fd = guest.open(&at(path), *flags, R)?;
            guest.close(fd)
        }
        Step::Truncate(path) => {
            let fd = guest.open(&at(path), TRUNCATE, W)?;
            guest.close(fd)
        }
    }
}

fn everything(guest: &mut Guest, at: &str, out: &mut Vec<(String, FileType, Vec<u8>)>) {
    for name in guest.list(at).unwrap() {
        let path = format!("{at}/{name}");
        let kind = guest.kind(&path).unwrap();
        let content = match kind {
            FileType::RegularFile => guest.get(&path).unwrap(),
            FileType::SymbolicLink => guest.readlink(&path).unwrap().into_bytes(),
            _ => Vec::new(),
        };
        let directory = kind == FileType::Directory;
        out.push((path.clone(), kind, content));
        if directory {
            everything(guest, &path, out);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// An overlay over a tree behaves as that tree would if it were changed.
    #[test]
    fn behaves_like_a_directory(
        base in proptest::collection::vec(step(), 0..12),
        steps in proptest::collection::vec(step(), 0..25),
    ) {
        let plain = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let lab = Lab::fast(Kept::Live);
        let mut model = Guest::mounted(plain.path(), fumehood_policies::Access::ReadWrite);
        let mut builder = Guest::mounted(&lab.project(), fumehood_policies::Access::ReadWrite);
        for step in &base {
            let _ = carry_out(&mut model, "/m", step);
            let _ = carry_out(&mut builder, "/m", step);
        }
        let before = lab.tree();
        let workspace = lab.create();
        let mut guest = agent(&workspace);
        for (number, step) in steps.iter().enumerate() {
            let want = carry_out(&mut model, "/m", step);
            let got = carry_out(&mut guest, "/p", step);
            prop_assert_eq!(got, want, "step {} {:?}", number, step);
        }
        let (mut want, mut got) = (Vec::new(), Vec::new());
        everything(&mut model, "/m", &mut want);
        everything(&mut guest, "/p", &mut got);
        for (path, _, _) in want.iter_mut().chain(got.iter_mut()) {
            *path = path[2..].to_owned();
        }
        prop_assert_eq!(got, want);
        prop_assert_eq!(lab.tree(), before, "the lower tree is as it was");
    }
}
