//! The same tests as an ordinary user, if this is root.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use crate::{helper_path, is_root};

#[test]
fn everything_holds_for_an_ordinary_user_too() {
    if !is_root() {
        // This is that run, or the user is ordinary anyway.
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mode = |mode| std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(dir.path(), mode(0o755)).unwrap();
    let copy = |from: &std::path::Path, name: &str| {
        let to = dir.path().join(name);
        std::fs::copy(from, &to).unwrap();
        std::fs::set_permissions(&to, mode(0o755)).unwrap();
        to
    };
    let tests = copy(&std::env::current_exe().unwrap(), "tests");
    let helper = copy(&helper_path(), "fumehood-helper");
    let temporary = dir.path().join("tmp");
    std::fs::create_dir(&temporary).unwrap();
    std::fs::set_permissions(&temporary, mode(0o1777)).unwrap();
    let output = Command::new("setpriv")
        .args(["--reuid=1000", "--regid=1000", "--clear-groups", "--"])
        .arg(tests)
        .args(["--test-threads=2", "--skip", "a_thousand_runs"])
        .current_dir(dir.path())
        .env(crate::HELPER, helper)
        .env("TMPDIR", temporary)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}\n{errors}");
    let passed = text.lines().find(|line| line.starts_with("test result: ok")).unwrap();
    assert!(!passed.contains(" 0 passed"), "{passed}");
}
