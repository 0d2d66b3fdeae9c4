//! The upper tree is what the kernel's overlayfs makes of it, and the other
//! way round.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "tests prepare and inspect the host side, and start mount(8)"
)]

use std::fs;
use std::path::Path;
use std::process::Command;

use super::open::Strategy;
use super::testing::*;
use crate::testing::Guest;

/// Runs a shell with the overlay mounted at `m`, in namespaces of its own;
/// `None` where this user may not.
pub(super) fn mounted(lab: &Lab, script: &str) -> Option<String> {
    let (session, project) = (lab.session(), lab.project());
    fs::create_dir_all(session.join("m")).unwrap();
    let mount = format!(
        "mount -t overlay overlay -o userxattr,lowerdir={},upperdir={},workdir={} {} || exit 99; cd {}; {script}",
        project.display(),
        session.join("upper").display(),
        session.join("work").display(),
        session.join("m").display(),
        session.join("m").display(),
    );
    let root = rustix::process::geteuid().is_root();
    let flags: &[&str] = if root { &["-m"] } else { &["-Urm"] };
    let run = Command::new("unshare").args(flags).args(["sh", "-c", &mount]).output().ok()?;
    if run.status.code() == Some(99) || run.status.code() == Some(1) {
        return None;
    }
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    Some(String::from_utf8(run.stdout).unwrap())
}

/// The tree as the kernel and as the guest sees it, one name a line.
const LIST: &str = r"find . -mindepth 1 -printf '%P %y\n' | sort";

fn guest_list(agent: &mut Guest, at: &str, prefix: &str, out: &mut Vec<String>) {
    use crate::call::FileType;
    for name in agent.list(at).unwrap() {
        let path = format!("{at}/{name}");
        let shown = format!("{prefix}{name}");
        let letter = match agent.kind(&path).unwrap() {
            FileType::Directory => "d",
            FileType::SymbolicLink => "l",
            _ => "f",
        };
        out.push(format!("{shown} {letter}"));
        if letter == "d" {
            guest_list(agent, &path, &format!("{shown}/"), out);
        }
    }
}

fn seen_by_guest(agent: &mut Guest) -> Vec<String> {
    let mut out = Vec::new();
    guest_list(agent, "/p", "", &mut out);
    out.sort();
    out
}

fn lower(lab: &Lab) {
    for name in ["a", "b", "d/x", "d/y", "d/e/deep", "gone/x", "same/x"] {
        lab.write(name, name);
    }
    std::os::unix::fs::symlink("a", lab.user("l")).unwrap();
}

#[test]
fn the_kernel_sees_what_the_guest_sees() {
    let lab = Lab::new(Strategy::Live);
    lower(&lab);
    let workspace = lab.create();
    let mut agent = agent(&workspace);
    agent.unlink("/p/a").unwrap();
    agent.put("/p/b", b"changed").unwrap();
    agent.rename("/p/d/e", "/p/moved").unwrap();
    agent.unlink("/p/gone/x").unwrap();
    agent.rmdir("/p/gone").unwrap();
    agent.unlink("/p/same/x").unwrap();
    agent.rmdir("/p/same").unwrap();
    agent.mkdir("/p/same").unwrap();
    agent.put("/p/same/new", b"new").unwrap();
    agent.link("/p/b", "/p/linked").unwrap();
    agent.symlink("b", "/p/made").unwrap();
    agent.rename("/p/d/x", "/p/d/z").unwrap();
    let want = seen_by_guest(&mut agent);
    let Some(kernel) = mounted(&lab, &format!("{LIST}; cat b same/new moved/deep d/z")) else {
        eprintln!("no overlay may be mounted here");
        return;
    };
    let (list, text) = kernel.split_at(kernel.rfind('\n').unwrap() + 1);
    assert_eq!(list.lines().collect::<Vec<_>>(), want);
    assert_eq!(text, "changednewd/e/deepd/x");
}

#[test]
fn the_guest_sees_what_the_kernel_did_and_it_comes_back() {
    let lab = Lab::new(Strategy::Live);
    lower(&lab);
    // Longer ago than the grain of file times.
    std::thread::sleep(std::time::Duration::from_millis(80));
    let mut workspace = lab.create();
    let script = format!(
        "rm a; echo k > b; rm -r gone; rm -r same; mkdir same; echo n > same/new; mkdir -p n/m; echo q > n/m/q; chmod 700 d/x; {LIST}"
    );
    let Some(kernel) = mounted(&lab, &script) else {
        eprintln!("no overlay may be mounted here");
        return;
    };
    let mut agent = agent(&workspace);
    assert_eq!(seen_by_guest(&mut agent), kernel.lines().collect::<Vec<_>>());
    assert_eq!(agent.get("/p/b").unwrap(), b"k\n");
    // Nobody noted what the kernel began with: what was not touched since is it.
    workspace.adopt().unwrap();
    let report = sync(&mut workspace);
    assert_eq!(paths(&report).2, Vec::<String>::new());
    assert_eq!(lab.read("b"), "k\n");
    assert_eq!(lab.read("n/m/q"), "q\n");
    assert_eq!(lab.read("same/new"), "n\n");
    assert!(!lab.has("a") && !lab.has("gone") && !lab.has("same/x"));
    assert!(sync(&mut workspace).is_empty());
}

#[test]
fn both_forms_of_whiteouts_hide() {
    let lab = Lab::new(Strategy::Live);
    lower(&lab);
    let workspace = lab.create();
    let upper = lab.session().join("upper");
    let mark = |path: &Path, name: &str, value: &[u8]| {
        let file = fs::File::open(path).unwrap();
        rustix::fs::fsetxattr(&file, name, value, rustix::fs::XattrFlags::empty()).unwrap();
    };
    fs::write(upper.join("a"), "").unwrap();
    mark(&upper.join("a"), "user.overlay.whiteout", b"y");
    let mut agent = agent(&workspace);
    assert_eq!(agent.get("/p/a").unwrap(), b"", "only in a directory that says so");
    mark(&upper, "user.overlay.opaque", b"x");
    assert!(agent.get("/p/a").is_err());
    assert!(!agent.list("/p").unwrap().contains(&"a".to_owned()));
    agent.put("/p/a", b"new").unwrap();
    assert_eq!(agent.get("/p/a").unwrap(), b"new");
}
