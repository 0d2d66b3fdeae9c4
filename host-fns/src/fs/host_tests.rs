//! The host directory backend against a real directory.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests prepare and inspect the host side"
)]

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use fumehood_policies::Access::{ReadOnly, ReadWrite};
use tempfile::TempDir;

use crate::call::{FileType, HostCall, SetTime};
use crate::errno::Errno;
use crate::fs::HostMount;
use crate::testing::*;

/// A directory with `mount/` to be mounted and `outside/canary`.
fn host() -> (TempDir, std::path::PathBuf) {
    let root = tempfile::tempdir().unwrap();
    let mount = root.path().join("mount");
    fs::create_dir_all(mount.join("d/e")).unwrap();
    fs::create_dir(root.path().join("outside")).unwrap();
    fs::write(root.path().join("outside/canary"), "canary").unwrap();
    fs::write(mount.join("f"), "file").unwrap();
    fs::write(mount.join("d/e/deep"), "deep").unwrap();
    (root, mount)
}

fn fifo(path: &Path) {
    let parent = fs::File::open(path.parent().unwrap()).unwrap();
    let name = path.file_name().unwrap();
    let mode = rustix::fs::Mode::RWXU;
    rustix::fs::mknodat(parent, name, rustix::fs::FileType::Fifo, mode, 0).unwrap();
}

#[test]
fn reads_writes_and_lists() {
    let (_root, mount) = host();
    let mut guest = Guest::mounted(&mount, ReadWrite);
    assert_eq!(guest.get("/m/f").unwrap(), b"file");
    assert_eq!(guest.get("m/d/./e/../e/deep").unwrap(), b"deep");
    guest.put("/m/d/new", b"made").unwrap();
    guest.put("/m/f", b"changed").unwrap();
    guest.mkdir("/m/dir").unwrap();
    guest.rename("/m/d/new", "/m/dir/moved").unwrap();
    guest.link("/m/dir/moved", "/m/linked").unwrap();
    guest.symlink("dir/moved", "/m/sym").unwrap();
    assert_eq!(guest.get("/m/sym").unwrap(), b"made");
    assert_eq!(guest.list("/m").unwrap(), ["d", "dir", "f", "linked", "sym"]);
    assert_eq!(fs::read(mount.join("dir/moved")).unwrap(), b"made");
    assert_eq!(fs::metadata(mount.join("f")).unwrap().permissions().mode() & 0o7000, 0);
    guest.utimes("/m/f", SetTime::To(1_000_000_007), SetTime::To(2_000_000_000)).unwrap();
    assert_eq!(guest.stat("/m/f", true).unwrap().modified_ns, 2_000_000_000);
    assert_eq!(fs::metadata(mount.join("f")).unwrap().mtime(), 2);
    guest.unlink("/m/linked").unwrap();
    assert_eq!(guest.rmdir("/m/d"), Err(Errno::Notempty));
    let files = guest.broker.report().files;
    assert_eq!(files.created, ["/m/dir/", "/m/dir/moved", "/m/sym"]);
    assert_eq!(files.modified, ["/m/f"]);
    assert!(files.deleted.is_empty());
    assert!(guest.list("/").unwrap().contains(&"m".to_owned()));
}

#[test]
fn descriptors_keep_their_own_offset() {
    let (_root, mount) = host();
    let mut guest = Guest::mounted(&mount, ReadWrite);
    let fd = guest.open("/m/f", 0, R | W).unwrap();
    assert_eq!(guest.read(fd, 2).unwrap(), b"fi");
    let state = guest.broker.snapshot();
    assert_eq!(guest.read(fd, 2).unwrap(), b"le");
    guest.broker.restore(state);
    assert_eq!(guest.read(fd, 2).unwrap(), b"le");
    assert_eq!(guest.write(fd, b"!").unwrap(), 1);
    guest.call(HostCall::FdFdstatSetFlags { fd, flags: 1 }).unwrap();
    guest.seek(fd, 0, 0).unwrap();
    guest.write(fd, b"?").unwrap();
    assert_eq!(guest.get("/m/f").unwrap(), b"file!?");
    assert!(guest.call(HostCall::FdSync { fd, data_only: false }).is_ok());
    let times = HostCall::FdFilestatSetTimes {
        fd,
        accessed: SetTime::Keep,
        modified: SetTime::To(3_000_000_000),
    };
    guest.call(times).unwrap();
    assert_eq!(fs::metadata(mount.join("f")).unwrap().mtime(), 3);
}

#[test]
fn links_resolve_inside_the_mount_or_not_at_all() {
    let (root, mount) = host();
    symlink("d/e", mount.join("in")).unwrap();
    symlink("in/deep", mount.join("chain")).unwrap();
    symlink(root.path().join("outside"), mount.join("abs")).unwrap();
    symlink("/etc", mount.join("etc")).unwrap();
    symlink("../outside", mount.join("up")).unwrap();
    symlink("../../../mount/f", mount.join("d/e/around")).unwrap();
    symlink("loop", mount.join("loop")).unwrap();
    symlink("d/../../outside/canary", mount.join("sneaky")).unwrap();
    let mut guest = Guest::mounted(&mount, ReadWrite);
    assert_eq!(guest.get("/m/in/deep").unwrap(), b"deep");
    assert_eq!(guest.get("/m/chain").unwrap(), b"deep");
    for name in
        ["abs/canary", "abs/", "etc/", "etc/passwd", "up/canary", "up/", "d/e/around", "sneaky"]
    {
        let name = format!("/m/{name}");
        assert_eq!(guest.open(&name, 0, R), Err(Errno::Perm), "{name}");
        assert_eq!(guest.stat(&name, true).err(), Some(Errno::Perm), "{name}");
        assert_eq!(guest.put(&name, b"x"), Err(Errno::Perm), "{name}");
    }
    assert_eq!(guest.get("/m/loop"), Err(Errno::Loop));
    assert_eq!(guest.readlink("/m/in").unwrap(), "d/e");
    assert_eq!(guest.readlink("/m/abs"), Err(Errno::Perm));
    assert_eq!(guest.kind("/m/abs").unwrap(), FileType::SymbolicLink);
    for target in ["/etc/passwd", "../x", "d/../../x"] {
        assert_eq!(guest.symlink(target, "/m/made"), Err(Errno::Perm), "{target}");
    }
    assert_eq!(guest.rename("/m/etc/", "/m/x"), Err(Errno::Notdir));
    assert_eq!(guest.rename("/m/f", "/m/etc/"), Err(Errno::Notdir));
    // A link of the in-memory tree does not lead into a mount either.
    guest.symlink("/m", "/tmp/into").unwrap();
    assert_eq!(guest.get("/tmp/into/f"), Err(Errno::Perm));
    assert_eq!(fs::read(root.path().join("outside/canary")).unwrap(), b"canary");
}

#[test]
fn a_link_of_the_host_that_climbs_stays_where_it_is() {
    let (root, mount) = host();
    symlink("../f", mount.join("d/climbs")).unwrap();
    symlink(root.path().join("outside"), mount.join("abs")).unwrap();
    symlink("e/deep", mount.join("d/below")).unwrap();
    let mut guest = Guest::mounted(&mount, ReadWrite);
    assert_eq!(guest.get("/m/d/climbs").unwrap(), b"file");
    for from in ["/m/d/climbs", "/m/abs"] {
        for to in ["/m/moved", "/m/f", "/m/d/moved"] {
            assert_eq!(guest.rename(from, to), Err(Errno::Perm), "{from} to {to}");
        }
        assert_eq!(guest.link(from, "/m/moved"), Err(Errno::Perm), "{from}");
    }
    assert_eq!(fs::read_link(mount.join("d/climbs")).unwrap(), Path::new("../f"));
    assert_eq!(fs::read(mount.join("f")).unwrap(), b"file");
    assert!(fs::symlink_metadata(mount.join("moved")).is_err());
    // One that only descends may be moved, and a climbing one removed.
    guest.link("/m/d/below", "/m/linked").unwrap();
    guest.rename("/m/d/below", "/m/moved").unwrap();
    assert_eq!(fs::read_link(mount.join("moved")).unwrap(), Path::new("e/deep"));
    guest.unlink("/m/d/climbs").unwrap();
}

#[test]
fn a_link_is_made_alike_in_memory_and_in_a_mount() {
    let (_root, mount) = host();
    let mut guest = Guest::mounted(&mount, ReadWrite);
    guest.put("/tmp/f", b"file").unwrap();
    let long = "x/".repeat(4000);
    for (target, name, expected) in [
        ("f", "s", Ok(())),
        ("f", "s", Err(Errno::Exist)),
        ("f", "f", Err(Errno::Exist)),
        ("f", "", Err(Errno::Exist)),
        ("", "empty", Err(Errno::Noent)),
        ("", "f", Err(Errno::Noent)),
        (&long, "long", Err(Errno::Nametoolong)),
        ("f", "slash/", Err(Errno::Noent)),
        ("f", "none/s", Err(Errno::Noent)),
        ("f", "f/s", Err(Errno::Notdir)),
        ("nothing", "dangling", Ok(())),
        ("./f", "dot", Ok(())),
    ] {
        for directory in ["/tmp", "/m"] {
            let at = format!("{directory}/{name}");
            assert_eq!(guest.symlink(target, &at), expected, "{target} at {at}");
        }
    }
    for directory in ["/tmp", "/m"] {
        for name in ["s", "dot"] {
            assert_eq!(guest.get(&format!("{directory}/{name}")).unwrap(), b"file");
        }
        assert_eq!(guest.get(&format!("{directory}/dangling")), Err(Errno::Noent));
        // A name that is taken is said before a target that leads out.
        assert_eq!(guest.symlink("/etc", &format!("{directory}/f")), Err(Errno::Exist));
    }
}

#[test]
fn special_files_are_refused_without_blocking() {
    let (_root, mount) = host();
    fifo(&mount.join("pipe"));
    let _socket = std::os::unix::net::UnixListener::bind(mount.join("sock")).unwrap();
    let mut guest = Guest::mounted(&mount, ReadWrite);
    for name in ["/m/pipe", "/m/sock"] {
        for rights in [R, W, R | W] {
            assert_eq!(guest.open(name, 0, rights), Err(Errno::Perm), "{name}");
        }
        assert_eq!(guest.unlink(name), Err(Errno::Perm));
        assert_eq!(guest.rename(name, "/m/x"), Err(Errno::Perm));
        assert_eq!(guest.kind(name).unwrap(), FileType::Unknown);
    }
}

#[test]
fn a_read_only_mount_refuses_every_change_before_touching() {
    let (_root, mount) = host();
    let mut guest = Guest::mounted(&mount, ReadOnly);
    let rofs = Err(Errno::Rofs);
    assert_eq!(guest.get("/m/f").unwrap(), b"file");
    assert_eq!(guest.open("/m/f", 0, W).err(), Some(Errno::Rofs));
    assert_eq!(guest.open("/m/f", TRUNCATE, R).err(), Some(Errno::Rofs));
    assert_eq!(guest.open("/m/new", CREATE, R).err(), Some(Errno::Rofs));
    assert_eq!(guest.mkdir("/m/x"), rofs);
    assert_eq!(guest.rmdir("/m/d"), rofs);
    assert_eq!(guest.unlink("/m/f"), rofs);
    assert_eq!(guest.rename("/m/f", "/m/g"), rofs);
    assert_eq!(guest.rename("/m/f", "/tmp/g"), rofs);
    assert_eq!(guest.link("/m/f", "/tmp/g"), rofs);
    assert_eq!(guest.symlink("f", "/m/s"), rofs);
    assert_eq!(guest.utimes("/m/f", SetTime::Now, SetTime::Now), rofs);
    let fd = guest.open("/m/f", 0, R).unwrap();
    assert_eq!(guest.write(fd, b"x"), Err(Errno::Badf));
    assert_eq!(guest.call(HostCall::FdFilestatSetSize { fd, size: 0 }), Err(Errno::Badf));
    let times = HostCall::FdFilestatSetTimes { fd, accessed: SetTime::Now, modified: SetTime::Now };
    assert_eq!(guest.call(times), Err(Errno::Rofs));
    assert_eq!(fs::read_dir(&mount).unwrap().count(), 2);
    let report = guest.broker.report();
    assert_eq!(report.files, crate::report::FileChanges::default());
    let first = report.denials.first().unwrap();
    assert_eq!((first.operation.as_str(), first.target.as_str()), ("fs.write", "/m/f"));
    assert_eq!(first.rule, "mount:/m");
    assert!(!format!("{report:?}").contains(mount.to_str().unwrap()));
}

#[test]
fn mount_points_stay_and_mounts_are_apart() {
    let (_root, mount) = host();
    let mut guest = Guest::with(|config| {
        config.mounts.push(HostMount::open("/work/data/in", &mount, ReadWrite, false).unwrap());
    });
    for name in ["/work", "/work/data", "/work/data/in"] {
        assert_eq!(guest.rename(name, "/tmp/x"), Err(Errno::Busy), "{name}");
        assert_eq!(guest.rmdir(name), Err(Errno::Busy), "{name}");
        assert_eq!(guest.rename("/tmp", name), Err(Errno::Busy), "{name}");
        assert_eq!(guest.mkdir(name), Err(Errno::Exist), "{name}");
    }
    guest.put("/tmp/f", b"").unwrap();
    assert_eq!(guest.rename("/work/data/in/f", "/tmp/g"), Err(Errno::Xdev));
    assert_eq!(guest.rename("/tmp/f", "/work/data/in/g"), Err(Errno::Xdev));
    assert_eq!(guest.link("/work/data/in/f", "/tmp/g"), Err(Errno::Xdev));
    for (from, to) in [("/tmp/none", "/work/data/in/g"), ("/work/data/in/none", "/tmp/g")] {
        assert_eq!(guest.rename(from, to), Err(Errno::Noent), "{from}");
        assert_eq!(guest.link(from, to), Err(Errno::Noent), "{from}");
    }
    assert_eq!(guest.rename("/tmp/f/", "/work/data/in/g"), Err(Errno::Notdir));
    assert_eq!(guest.list("/work/data").unwrap(), ["in"]);
    assert_eq!(guest.get("/work/data/in/../in/f").unwrap(), b"file");
}

#[test]
fn the_mount_is_the_directory_that_was_opened() {
    let (root, mount) = host();
    let mut guest = Guest::mounted(&mount, ReadWrite);
    fs::rename(&mount, root.path().join("renamed")).unwrap();
    fs::create_dir(&mount).unwrap();
    fs::write(mount.join("f"), "impostor").unwrap();
    assert_eq!(guest.get("/m/f").unwrap(), b"file");
}

#[test]
fn host_numbers_are_hidden_and_stable() {
    let (_root, mount) = host();
    fs::hard_link(mount.join("f"), mount.join("same")).unwrap();
    let mut guest = Guest::mounted(&mount, ReadWrite);
    let (first, second) = (guest.stat("/m/f", true).unwrap(), guest.stat("/m/same", true).unwrap());
    assert_eq!(first.inode, second.inode);
    assert_ne!(first.inode, fs::metadata(mount.join("f")).unwrap().ino());
    assert_ne!(first.inode, Guest::mounted(&mount, ReadWrite).stat("/m/f", true).unwrap().inode);
    assert_eq!(first.links, 2);
}

#[test]
fn names_are_bytes() {
    let (_root, mount) = host();
    let mut guest = Guest::mounted(&mount, ReadWrite);
    for raw in [
        b"new\nline".as_slice(),
        b"\xff\xfe",
        b"\x1b[31m",
        "\u{202e}bidi".as_bytes(),
        b"C:secret",
        b"a\\b",
    ] {
        let path = [b"/m/", raw].concat();
        let (rights_base, fd_flags) = (W, 0);
        let call = HostCall::PathOpen {
            dir: ROOT,
            follow: true,
            path: &path,
            open_flags: CREATE,
            rights_base,
            rights_inheriting: 0,
            fd_flags,
        };
        assert!(guest.call(call).is_ok(), "{raw:?}");
    }
    let report = guest.broker.report();
    assert_eq!(report.files.created.len(), 6);
    assert!(
        report
            .files
            .created
            .iter()
            .all(|name| !name.chars().any(|c| c.is_control() || c == '\u{202e}'))
    );
}

#[test]
fn sparse_host_files_are_paid_for() {
    let (_root, mount) = host();
    let mut guest = Guest::with(|config| {
        config.mounts.push(HostMount::open("/m", &mount, ReadWrite, false).unwrap());
        config.limits.written_bytes = 1000;
        config.limits.max_file_bytes = 10_000;
        config.limits.created_entries = 3;
    });
    let fd = guest.open("/m/f", 0, R | W).unwrap();
    guest.seek(fd, 5000, 0).unwrap();
    assert_eq!(guest.write(fd, b"x"), Err(Errno::Nospc));
    assert_eq!(guest.call(HostCall::FdFilestatSetSize { fd, size: 5000 }), Err(Errno::Nospc));
    assert_eq!(guest.call(HostCall::FdFilestatSetSize { fd, size: 20_000 }), Err(Errno::Fbig));
    guest.seek(fd, 900, 0).unwrap();
    assert_eq!(guest.write(fd, b"x"), Ok(1));
    assert_eq!(guest.write(fd, &[0; 200]), Err(Errno::Nospc));
    assert_eq!(guest.mkdir("/m/d"), Err(Errno::Exist));
    let made = (0..10).filter(|n| guest.mkdir(&format!("/m/n{n}")).is_ok()).count();
    assert_eq!(made, 3);
    assert!(guest.broker.report().denials.iter().all(|denial| denial.rule == "budget"));
}

/// A thread swaps a directory for a link to the outside while the guest opens
/// through it.
#[test]
fn a_race_never_reaches_the_outside() {
    let (root, mount) = host();
    fs::create_dir(mount.join("swap")).unwrap();
    fs::write(mount.join("swap/canary"), "inside").unwrap();
    symlink(root.path().join("outside"), mount.join("evil")).unwrap();
    symlink("../outside", mount.join("evil2")).unwrap();
    let mut guest = Guest::mounted(&mount, ReadWrite);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let at = |name: &str| mount.join(name);
            while !stop.load(Ordering::Relaxed) {
                for evil in ["evil", "evil2"] {
                    let _ = fs::rename(at("swap"), at("aside"));
                    let _ = fs::rename(at(evil), at("swap"));
                    let _ = fs::rename(at("swap"), at(evil));
                    let _ = fs::rename(at("aside"), at("swap"));
                }
            }
        });
        let mut read = 0;
        for _ in 0..5_000 {
            if let Ok(data) = guest.get("/m/swap/canary") {
                assert_eq!(data, b"inside");
                read += 1;
            }
            let _ = guest.list("/m/swap").map(|names| assert!(names.len() <= 1));
        }
        stop.store(true, Ordering::Relaxed);
        assert!(read > 0);
    });
    assert_eq!(fs::read(root.path().join("outside/canary")).unwrap(), b"canary");
}

/// Not a test of correctness: `cargo test --release -- --ignored --nocapture
/// cost_of_open`.
#[test]
#[ignore = "measures"]
fn cost_of_open_read_close() {
    let (_root, mount) = host();
    let rounds = 50_000_u32;
    for (name, relative) in [("top", "f"), ("deep", "d/e/deep")] {
        let dir = cap_std::fs::Dir::open_ambient_dir(&mount, cap_std::ambient_authority()).unwrap();
        let start = std::time::Instant::now();
        for _ in 0..rounds {
            let mut buffer = [0; 64];
            let mut file = dir.open(relative).unwrap();
            std::io::Read::read(&mut file, &mut buffer).unwrap();
        }
        let plain = start.elapsed() / rounds;
        let mut guest = Guest::with(|config| {
            config.mounts.push(HostMount::open("/m", &mount, ReadOnly, false).unwrap());
        });
        let path = format!("m/{relative}");
        let start = std::time::Instant::now();
        for _ in 0..rounds {
            let mut buffer = [0; 64];
            let fd = guest.open(&path, 0, R).unwrap();
            guest.size(HostCall::FdRead { fd, into: &mut buffer }).unwrap();
            guest.close(fd).unwrap();
        }
        let ours = start.elapsed() / rounds;
        println!("{name}: cap-std {plain:?}, broker {ours:?}");
    }
    let mut guest = Guest::new();
    guest.put("/tmp/f", b"memory").unwrap();
    let start = std::time::Instant::now();
    for _ in 0..rounds {
        let mut buffer = [0; 64];
        let fd = guest.open("tmp/f", 0, R).unwrap();
        guest.size(HostCall::FdRead { fd, into: &mut buffer }).unwrap();
        guest.close(fd).unwrap();
    }
    println!("memory: broker {:?}", start.elapsed() / rounds);
    let fd = guest.open("tmp/f", 0, W).unwrap();
    let start = std::time::Instant::now();
    for _ in 0..rounds {
        guest.write(fd, b"x").unwrap();
    }
    println!("memory: one-byte write {:?}", start.elapsed() / rounds);
}
