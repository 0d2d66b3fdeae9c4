//! The in-memory tree against a simple model, and its limits.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use std::collections::BTreeMap;

use proptest::prelude::*;

use crate::call::{FileType, HostCall, SetTime};
use crate::errno::Errno;
use crate::testing::*;

#[test]
fn starts_with_the_usual_directories() {
    let mut guest = Guest::new();
    assert_eq!(guest.list("/").unwrap(), ["home", "tmp", "work"]);
    assert_eq!(guest.list("/home").unwrap(), ["agent"]);
    assert_eq!(guest.get("/etc/passwd"), Err(Errno::Noent));
    for name in ["/proc/self/environ", "/dev/fd/3", "../../etc/passwd", "/mnt/../../etc"] {
        assert_eq!(guest.open(name, 0, R), Err(Errno::Noent), "{name}");
    }
}

#[test]
fn open_flags_mean_what_posix_says() {
    let mut guest = Guest::new();
    guest.put("/tmp/f", b"hello").unwrap();
    assert_eq!(guest.open("/tmp/f", CREATE | EXCLUSIVE, W), Err(Errno::Exist));
    assert_eq!(guest.open("/tmp/none", 0, R), Err(Errno::Noent));
    assert_eq!(guest.open("/tmp/f/x", 0, R), Err(Errno::Notdir));
    assert_eq!(guest.open("/tmp/f/", 0, R), Err(Errno::Notdir));
    assert_eq!(guest.open("/tmp/new/", CREATE, W), Err(Errno::Isdir));
    assert_eq!(guest.open("/tmp", 0, W), Err(Errno::Isdir));
    assert_eq!(guest.open("/tmp/f", DIRECTORY, R), Err(Errno::Notdir));
    assert_eq!(guest.open("/tmp/f", CREATE | DIRECTORY, R), Err(Errno::Inval));
    assert_eq!(guest.open("/tmp/f", 16, R), Err(Errno::Inval));
    assert_eq!(guest.open("", 0, R), Err(Errno::Noent));
    assert_eq!(guest.open("/tmp/a\0b", 0, R), Err(Errno::Inval));
    assert_eq!(guest.open(&"a/".repeat(3000), 0, R), Err(Errno::Nametoolong));
    let fd = guest.open("/tmp/f", TRUNCATE, W).unwrap();
    assert_eq!(guest.read(fd, 1), Err(Errno::Badf));
    assert_eq!(guest.stat("/tmp/f", true).unwrap().size, 0);
    assert_eq!(guest.open_at(fd, "x", 0, R, true), Err(Errno::Notdir));
    let dir = guest.open("/tmp", DIRECTORY, R).unwrap();
    assert!(guest.open_at(dir, "f", 0, R, true).is_ok());
    assert_eq!(guest.read(dir, 1), Err(Errno::Isdir));
}

#[test]
fn links_of_both_kinds() {
    let mut guest = Guest::new();
    guest.put("/tmp/f", b"one").unwrap();
    guest.link("/tmp/f", "/tmp/g").unwrap();
    guest.put("/tmp/g", b"two").unwrap();
    assert_eq!(guest.get("/tmp/f").unwrap(), b"two");
    assert_eq!(guest.stat("/tmp/f", false).unwrap().links, 2);
    guest.symlink("f", "/tmp/s").unwrap();
    guest.symlink("/tmp", "/work/abs").unwrap();
    guest.symlink("loop", "/tmp/loop").unwrap();
    guest.symlink("missing", "/tmp/dangling").unwrap();
    assert_eq!(guest.get("/tmp/s").unwrap(), b"two");
    assert_eq!(guest.get("/work/abs/s").unwrap(), b"two");
    assert_eq!(guest.readlink("/tmp/s").unwrap(), "f");
    assert_eq!(guest.readlink("/tmp/f"), Err(Errno::Inval));
    assert_eq!(guest.get("/tmp/loop"), Err(Errno::Loop));
    assert_eq!(guest.open_at(ROOT, "/tmp/s", 0, R, false), Err(Errno::Loop));
    assert_eq!(guest.open("/tmp/s", CREATE | EXCLUSIVE, W), Err(Errno::Exist));
    guest.put("/tmp/dangling", b"made").unwrap();
    assert_eq!(guest.get("/tmp/missing").unwrap(), b"made");
    assert_eq!(guest.kind("/work/abs").unwrap(), FileType::SymbolicLink);
    assert_eq!(guest.kind("/work/abs/").unwrap(), FileType::Directory);
    assert_eq!(guest.rename("/work/abs/", "/work/x"), Err(Errno::Notdir));
    assert_eq!(guest.rename("/tmp/f", "/work/abs/"), Err(Errno::Notdir));
    assert_eq!(guest.unlink("/work/abs/"), Err(Errno::Notdir));
    guest.unlink("/work/abs").unwrap();
    assert_eq!(guest.link("/tmp", "/work/d"), Err(Errno::Perm));
}

#[test]
fn an_unlinked_file_stays_usable_until_it_is_closed() {
    let mut guest = Guest::new();
    let before = guest.broker_used();
    let fd = guest.open("/tmp/f", CREATE, R | W).unwrap();
    guest.write(fd, b"kept").unwrap();
    guest.unlink("/tmp/f").unwrap();
    assert_eq!(guest.get("/tmp/f"), Err(Errno::Noent));
    guest.seek(fd, 0, 0).unwrap();
    assert_eq!(guest.read(fd, 10).unwrap(), b"kept");
    assert_eq!(guest.broker_used().0, before.0 + 4);
    guest.close(fd).unwrap();
    assert_eq!(guest.broker_used(), before);
    assert_eq!(guest.broker.report().files, crate::report::FileChanges::default());
}

#[test]
fn renames_as_posix_says() {
    let mut guest = Guest::new();
    guest.mkdir("/tmp/d").unwrap();
    guest.mkdir("/tmp/d/sub").unwrap();
    guest.mkdir("/tmp/empty").unwrap();
    guest.put("/tmp/f", b"f").unwrap();
    assert_eq!(guest.rename("/tmp/d", "/tmp/d/sub/x"), Err(Errno::Inval));
    assert_eq!(guest.rename("/tmp/empty", "/tmp/d"), Err(Errno::Notempty));
    assert_eq!(guest.rename("/tmp/f", "/tmp/d"), Err(Errno::Isdir));
    assert_eq!(guest.rename("/tmp/d", "/tmp/f"), Err(Errno::Notdir));
    assert_eq!(guest.rename("/tmp/d/sub", "/tmp/d"), Err(Errno::Notempty));
    assert_eq!(guest.rename("/tmp/none", "/tmp/x"), Err(Errno::Noent));
    assert_eq!(guest.rename("/", "/tmp/x"), Err(Errno::Busy));
    assert_eq!(guest.rename("/tmp/f", "/tmp/f"), Ok(()));
    let fd = guest.open("/tmp/d", DIRECTORY, R).unwrap();
    guest.rename("/tmp/d", "/tmp/empty").unwrap();
    assert_eq!(guest.list("/tmp").unwrap(), ["empty", "f"]);
    assert!(
        guest.open_at(fd, "sub", DIRECTORY, R, true).is_ok(),
        "an open directory follows its rename"
    );
    assert_eq!(guest.rmdir("/tmp/empty"), Err(Errno::Notempty));
    assert_eq!(guest.rmdir("/tmp/f"), Err(Errno::Notdir));
    assert_eq!(guest.unlink("/tmp/empty"), Err(Errno::Isdir));
}

#[test]
fn quotas_hold() {
    let mut guest = Guest::limited(|limits| {
        limits.memory_file_bytes = 1000;
        limits.memory_inodes = 12;
        limits.path_depth = 4;
        limits.max_file_bytes = 2000;
    });
    let fd = guest.open("/tmp/f", CREATE, R | W).unwrap();
    guest.seek(fd, 1 << 40, 0).unwrap();
    assert_eq!(guest.write(fd, b"x"), Err(Errno::Fbig));
    guest.seek(fd, 1500, 0).unwrap();
    assert_eq!(guest.write(fd, b"x"), Err(Errno::Nospc));
    guest.seek(fd, 900, 0).unwrap();
    assert_eq!(guest.write(fd, b"x"), Ok(1));
    assert_eq!(guest.put("/tmp/g", &[0; 200]), Err(Errno::Nospc));
    for (size, want) in
        [(u64::MAX, Errno::Inval), (i64::MAX as u64, Errno::Fbig), (1 << 63, Errno::Inval)]
    {
        assert_eq!(guest.call(HostCall::FdFilestatSetSize { fd, size }), Err(want), "{size}");
    }
    assert_eq!(
        guest.call(HostCall::FdAllocate { fd, offset: u64::MAX, len: 1 }),
        Err(Errno::Inval)
    );
    assert_eq!(
        guest.call(HostCall::FdAllocate { fd, offset: 0, len: i64::MAX as u64 }),
        Err(Errno::Fbig)
    );
    assert_eq!(guest.call(HostCall::FdAllocate { fd, offset: 0, len: 0 }), Err(Errno::Inval));
    guest.mkdir("/tmp/1").unwrap();
    guest.mkdir("/tmp/1/2").unwrap();
    guest.mkdir("/tmp/1/2/3").unwrap();
    assert_eq!(guest.mkdir("/tmp/1/2/3/4"), Err(Errno::Nametoolong));
    let made = (0..20).take_while(|n| guest.put(&format!("/tmp/n{n}"), b"").is_ok()).count();
    assert!(made < 8, "{made}");
    assert_eq!(guest.mkdir("/tmp/more"), Err(Errno::Nospc));
    assert_eq!(guest.link("/tmp/f", "/tmp/more"), Ok(()));
    assert_eq!(guest.link("/tmp/f", "/tmp/even-more"), Err(Errno::Nospc));
}

#[test]
fn times_are_checked() {
    let mut guest = Guest::new();
    guest.put("/tmp/f", b"").unwrap();
    assert_eq!(guest.utimes("/tmp/f", SetTime::To(u64::MAX), SetTime::Keep), Err(Errno::Inval));
    guest.utimes("/tmp/f", SetTime::To(5_000), SetTime::To(7)).unwrap();
    let stat = guest.stat("/tmp/f", true).unwrap();
    assert_eq!((stat.accessed_ns, stat.modified_ns), (5_000, 7));
    guest.utimes("/tmp/f", SetTime::Keep, SetTime::Now).unwrap();
    assert!(guest.stat("/tmp/f", true).unwrap().modified_ns > 1_600_000_000_000_000_000);
}

impl Guest {
    fn broker_used(&self) -> (u64, u64, usize) {
        self.broker.memory_used()
    }
}

#[derive(Clone, Debug)]
enum Op {
    Put(String, Vec<u8>),
    Get(String),
    Mkdir(String),
    Rmdir(String),
    Unlink(String),
    Rename(String, String),
    Snapshot,
    Restore,
}

fn op() -> impl Strategy<Value = Op> {
    let name = || "(/[ab]){1,3}";
    prop_oneof![
        3 => (name(), proptest::collection::vec(any::<u8>(), 0..5)).prop_map(|(path, data)| Op::Put(path, data)),
        2 => name().prop_map(Op::Get),
        3 => name().prop_map(Op::Mkdir),
        1 => name().prop_map(Op::Rmdir),
        1 => name().prop_map(Op::Unlink),
        3 => (name(), name()).prop_map(|(from, to)| Op::Rename(from, to)),
        1 => Just(Op::Snapshot),
        1 => Just(Op::Restore),
    ]
}

/// Paths to file contents; `None` is a directory.
type Model = BTreeMap<String, Option<Vec<u8>>>;

fn parent_is_directory(model: &Model, path: &str) -> bool {
    let parent = &path[..path.rfind('/').unwrap()];
    parent.is_empty() || model.get(parent) == Some(&None)
}

fn is_empty(model: &Model, path: &str) -> bool {
    !model.keys().any(|key| key.starts_with(&format!("{path}/")))
}

/// Whether the model allows the operation, and does it.
fn apply(model: &mut Model, op: &Op) -> bool {
    match op {
        Op::Put(path, data) => {
            let allowed = parent_is_directory(model, path) && model.get(path) != Some(&None);
            if allowed {
                model.insert(path.clone(), Some(data.clone()));
            }
            allowed
        }
        Op::Get(path) => matches!(model.get(path), Some(Some(_))),
        Op::Mkdir(path) => {
            let allowed = parent_is_directory(model, path) && !model.contains_key(path);
            if allowed {
                model.insert(path.clone(), None);
            }
            allowed
        }
        Op::Rmdir(path) => {
            model.get(path) == Some(&None) && is_empty(model, path) && model.remove(path).is_some()
        }
        Op::Unlink(path) => {
            matches!(model.get(path), Some(Some(_))) && model.remove(path).is_some()
        }
        Op::Rename(from, to) => {
            let Some(source) = model.get(from).cloned() else { return false };
            if !parent_is_directory(model, to) {
                return false;
            }
            if from == to {
                return true;
            }
            let below = |path: &str, root: &str| path.starts_with(&format!("{root}/"));
            if below(to, from) || below(from, to) {
                return false;
            }
            match (source.is_none(), model.get(to)) {
                (true, Some(Some(_))) | (false, Some(None)) => return false,
                (true, Some(None)) if !is_empty(model, to) => return false,
                _ => {}
            }
            let moved: Vec<_> =
                model.keys().filter(|key| *key == from || below(key, from)).cloned().collect();
            for key in moved {
                let value = model.remove(&key).unwrap();
                model.insert(format!("{to}{}", &key[from.len()..]), value);
            }
            true
        }
        Op::Snapshot | Op::Restore => true,
    }
}

fn run(guest: &mut Guest, op: &Op) -> Result<(), Errno> {
    let at = |path: &String| format!("/tmp{path}");
    match op {
        Op::Put(path, data) => guest.put(&at(path), data),
        Op::Get(path) => guest.get(&at(path)).map(drop),
        Op::Mkdir(path) => guest.mkdir(&at(path)),
        Op::Rmdir(path) => guest.rmdir(&at(path)),
        Op::Unlink(path) => guest.unlink(&at(path)),
        Op::Rename(from, to) => guest.rename(&at(from), &at(to)),
        Op::Snapshot | Op::Restore => Ok(()),
    }
}

fn walk(guest: &mut Guest, at: &str, into: &mut Model) {
    for name in guest.list_with(at, 40).unwrap() {
        let path = format!("{at}/{name}");
        let key = path["/tmp".len()..].to_owned();
        if guest.kind(&path).unwrap() == FileType::Directory {
            into.insert(key, None);
            walk(guest, &path, into);
        } else {
            let data = guest.get(&path).unwrap();
            into.insert(key, Some(data));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn behaves_like_the_model(ops in proptest::collection::vec(op(), 1..60)) {
        let mut guest = Guest::new();
        let mut model = Model::new();
        let base = guest.broker_used();
        let mut saved = (guest.broker.snapshot(), model.clone());
        for op in &ops {
            match op {
                Op::Snapshot => saved = (guest.broker.snapshot(), model.clone()),
                Op::Restore => {
                    guest.broker.restore(saved.0.clone());
                    model = saved.1.clone();
                }
                _ => {}
            }
            let allowed = apply(&mut model, op);
            prop_assert_eq!(run(&mut guest, op).is_ok(), allowed, "{:?}", op);
        }
        let mut found = Model::new();
        walk(&mut guest, "/tmp", &mut found);
        let bytes: usize = model.values().flatten().map(Vec::len).sum();
        prop_assert_eq!(guest.broker_used().0, base.0 + bytes as u64);
        prop_assert_eq!(guest.broker_used().1, base.1 + model.len() as u64);
        prop_assert_eq!(&found, &model);
        let mut created: Vec<_> = model.iter().map(|(path, file)| format!("/tmp{path}{}", if file.is_none() { "/" } else { "" })).collect();
        created.sort();
        let mut reported = guest.broker.report().files.created;
        reported.sort();
        prop_assert_eq!(reported, created);
    }
}
