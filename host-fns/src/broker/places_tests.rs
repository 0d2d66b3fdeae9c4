//! Single files as mounts, and the host's names of mounts.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "tests prepare and inspect the host side"
)]

use std::fs;
use std::os::unix::fs::symlink;

use fumehood_policies::Access;

use crate::audit::Target;
use crate::call::FileType;
use crate::errno::Errno;
use crate::fs::HostMount;
use crate::testing::*;
use crate::workspace::Strategy;
use crate::workspace::testing::{Lab, agent};

fn text(guest: &mut Guest, path: &str) -> Result<String, Errno> {
    guest.get(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

#[test]
fn of_a_mounted_file_nothing_else_is_reached() {
    let root = tempfile::tempdir().unwrap();
    let host = |name: &str| root.path().join(name);
    fs::write(host("in.csv"), "a,b").unwrap();
    fs::write(host("secret"), "secret").unwrap();
    fs::create_dir(host("dir")).unwrap();
    symlink("in.csv", host("link")).unwrap();
    let code = |name: &str| {
        HostMount::open_file_at(path("/in/x"), &host(name)).err().map(|error| error.code())
    };
    assert_eq!(code("none"), Some("mount_missing"));
    assert_eq!(code("dir"), Some("mount_not_a_file"));
    assert_eq!(code("/dev/null"), Some("mount_not_a_file"));
    assert_eq!(code("/proc/self/environ"), Some("mount_forbidden"));
    let mut guest = Guest::with(|config| {
        for (at, name) in [("/in/a.csv", "in.csv"), ("/in/b.csv", "link")] {
            config.mounts.push(HostMount::open_file_at(path(at), &host(name)).unwrap());
        }
    });
    for at in ["/in/a.csv", "/in/b.csv"] {
        assert_eq!(text(&mut guest, at).unwrap(), "a,b");
        assert_eq!(guest.kind(at).unwrap(), FileType::RegularFile);
        assert_eq!(guest.open(at, 0, W), Err(Errno::Rofs));
        assert_eq!(guest.open(at, TRUNCATE, W), Err(Errno::Rofs));
        assert_eq!(guest.unlink(at), Err(Errno::Rofs));
        assert_eq!(guest.open(at, DIRECTORY, R), Err(Errno::Notdir));
        for below in ["secret", "../secret", ".", ""] {
            let found = text(&mut guest, &format!("{at}/{below}"));
            assert_ne!(found.as_deref(), Ok("secret"), "{below}");
        }
        assert_eq!(text(&mut guest, &format!("{at}/secret")), Err(Errno::Notdir));
    }
    // Whatever the host makes of the name later, no link is followed.
    fs::remove_file(host("in.csv")).unwrap();
    symlink("secret", host("in.csv")).unwrap();
    assert!(text(&mut guest, "/in/a.csv").is_err());
    fs::remove_file(host("in.csv")).unwrap();
    fs::write(host("in.csv"), "later").unwrap();
    assert_eq!(text(&mut guest, "/in/a.csv").unwrap(), "later");
}

#[test]
fn a_name_of_the_host_is_decided_and_recorded_as_the_guests() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("a"), "inside").unwrap();
    let names = [("/srv/shop", "/p"), ("/tmp", "/p"), ("/", "/p"), ("/home", "/p"), ("/p/x", "/p")];
    let mut guest = Guest::with(|config| {
        config.mounts.push(HostMount::open("/p", root.path(), Access::ReadOnly, false).unwrap());
        config.host_names = names.map(|(host, at)| (path(host), path(at))).to_vec();
    });
    assert_eq!(text(&mut guest, "srv/shop/a").unwrap(), "inside");
    let by_own_name = guest.open("p/new", CREATE, W);
    assert_eq!(by_own_name, Err(Errno::Rofs));
    assert_eq!(guest.open("srv/shop/new", CREATE, W), by_own_name, "the mount's rule holds");
    assert_eq!(text(&mut guest, "srv/shop/../shop/a").unwrap(), "inside");
    assert_eq!(text(&mut guest, "srv/shopping/a"), Err(Errno::Noent));
    assert_eq!(text(&mut guest, "srv/a"), Err(Errno::Noent));
    // What every guest has is not hidden, and a mount is itself.
    guest.open("tmp/a", CREATE, W).unwrap();
    assert!(!root.path().join("x").exists());
    assert_eq!(text(&mut guest, "p/x/a"), Err(Errno::Noent));
    let recorded = guest.audit.records();
    let paths: Vec<String> = recorded
        .iter()
        .filter_map(|record| match &record.target {
            Target::Path(path) => Some(path.to_string()),
            _ => None,
        })
        .collect();
    assert!(paths.iter().any(|path| path == "/p/a"), "{paths:?}");
    assert!(!paths.iter().any(|path| path.starts_with("/srv/shop/")), "{paths:?}");
}

#[test]
fn what_is_open_for_writing_is_named_by_its_mount() {
    let lab = Lab::new(Strategy::Live);
    lab.write("d/read", "1");
    let workspace = lab.create();
    let mut guest = agent(&workspace);
    guest.open("p/d/read", 0, R).unwrap();
    guest.open("tmp/memory", CREATE, W).unwrap();
    let held = guest.open("p/d/held", CREATE, W).unwrap();
    guest.open("p/gone", CREATE, W).unwrap();
    guest.unlink("p/gone").unwrap();
    assert_eq!(guest.broker.open_for_writing(&path("/p")), [b"d/held".to_vec()]);
    assert_eq!(guest.broker.snapshot().open_for_writing(&path("/p")), [b"d/held".to_vec()]);
    guest.close(held).unwrap();
    assert!(guest.broker.open_for_writing(&path("/p")).is_empty());
}
