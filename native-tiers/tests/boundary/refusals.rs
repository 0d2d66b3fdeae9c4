//! What the machine does not give is named, and nothing is started.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use fumehood_host_fns::{
    Access, Guarantee, GuaranteeState, Missing, NativeError, NativeTier, Unavailable,
};
use fumehood_native_tiers::{Helper, HelperTier};

use crate::{
    command, helper_path, landlock, mount, process, run, try_run, with_failing, without_namespaces,
};

fn names(unavailable: &Unavailable) -> Vec<&str> {
    unavailable.missing.iter().map(|missing| missing.name.as_str()).collect()
}

fn refused(tier: &dyn NativeTier) -> Unavailable {
    let unavailable = tier.prepare(&[]).unwrap_err();
    // Nothing runs either.
    match try_run(tier, &command(tier, "echo ran")) {
        Err(NativeError::Unavailable(again)) => assert_eq!(again, unavailable),
        other => panic!("{other:?}"),
    }
    let probe = tier.probe();
    assert!(!probe.available && !probe.reason.is_empty() && !probe.remedy.is_empty());
    assert!(probe.guarantees.iter().all(|one| one.state == GuaranteeState::Missing));
    unavailable
}

#[test]
fn a_failure_that_passes_is_not_remembered() {
    for tier in [landlock(), process()] {
        let failing = [(libc::SYS_socketpair, libc::EMFILE)];
        let unavailable = with_failing(&failing, || tier.prepare(&[]).unwrap_err());
        assert_eq!(names(&unavailable), ["helper"]);
        tier.prepare(&[]).unwrap();
        assert!(run(&tier, "echo ran").stdout.text().contains("ran"));
    }
}

#[test]
fn without_landlock_nothing_runs() {
    for errno in [libc::ENOSYS, libc::EOPNOTSUPP] {
        let unavailable =
            with_failing(&[(libc::SYS_landlock_create_ruleset, errno)], || refused(&landlock()));
        assert_eq!(names(&unavailable), ["files"]);
        assert!(unavailable.missing[0].reason.contains("Landlock"), "{unavailable}");
    }
    let unavailable =
        with_failing(&[(libc::SYS_landlock_restrict_self, libc::EPERM)], || refused(&landlock()));
    assert_eq!(names(&unavailable), ["files"]);
}

#[test]
fn without_filters_of_system_calls_nothing_runs() {
    // The filter that forbids filters is itself the last one.
    let unavailable = with_failing(&[(libc::SYS_seccomp, libc::ENOSYS)], || refused(&landlock()));
    assert_eq!(names(&unavailable), ["system-calls"]);
}

#[test]
fn without_user_namespaces_the_required_guarantees_hold_and_the_others_are_named() {
    without_namespaces(|| {
        let tier = landlock();
        tier.prepare(&Guarantee::REQUIRED).unwrap();
        let wanted = [Guarantee::PidView, Guarantee::PrivateMounts];
        let unavailable = tier.prepare(&wanted).unwrap_err();
        assert_eq!(names(&unavailable), ["pid-view", "private-mounts"]);
        assert!(unavailable.missing[0].remedy.contains("container"), "{unavailable}");
        assert!(run(&tier, "echo ran").stdout.text().contains("ran"));
        let probe = tier.probe();
        assert!(probe.available);
        let state = |wanted| {
            probe.guarantees.iter().find(|one| one.guarantee == wanted).map(|one| one.state)
        };
        assert_eq!(state(Guarantee::PidView), Some(GuaranteeState::Missing));
        assert_eq!(state(Guarantee::Files), Some(GuaranteeState::Enforced));
        // A place of its own needs a file system of its own.
        let dir = tempfile::tempdir().unwrap();
        let mut command = command(&tier, "true");
        command.mounts = vec![mount(dir.path(), "/work/data", Access::ReadOnly, false)];
        match try_run(&tier, &command) {
            Err(NativeError::Unavailable(unavailable)) => {
                assert_eq!(names(&unavailable), ["user-namespace"]);
            }
            other => panic!("{other:?}"),
        }
    });
}

/// In a fresh user namespace whose own setting is 0; the machine's is not
/// touched.
#[test]
fn with_no_user_namespaces_left_the_setting_is_named() {
    if std::env::var_os("FUMEHOOD_TEST_NO_NAMESPACES").is_some() {
        // Its owner must be a user of this namespace.
        let (_keep, path) = copied_helper();
        let tier = HelperTier::landlock(opened(&path));
        let unavailable = tier.prepare(&[Guarantee::PidView]).unwrap_err();
        assert!(unavailable.missing[0].remedy.contains("max_user_namespaces"), "{unavailable}");
        assert!(run(&tier, "echo ran").stdout.text().contains("ran"));
        println!("it was refused");
        return;
    }
    let name = "refusals::with_no_user_namespaces_left_the_setting_is_named";
    let script =
        "echo 0 > /proc/sys/user/max_user_namespaces && exec \"$0\" --exact \"$1\" --nocapture";
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "sh", "-c", script])
        .arg(std::env::current_exe().unwrap())
        .arg(name)
        .env("FUMEHOOD_TEST_NO_NAMESPACES", "1")
        .env(crate::HELPER, helper_path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.contains("it was refused"), "{text} {output:?}");
}

fn copied_helper() -> (tempfile::TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fumehood-helper");
    std::fs::copy(helper_path(), &path).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    (dir, path)
}

fn opened(path: &Path) -> Result<Arc<Helper>, Missing> {
    Helper::open(path).map(Arc::new)
}

/// The mark of a build in which defences can be left out.
const MARK: &str = "fumehood-weakened-build-not-for-use-5d1c";

#[test]
fn no_switch_for_defences_is_in_the_helper() {
    let bytes = std::fs::read(helper_path()).unwrap();
    let contains = |text: &str| bytes.windows(text.len()).any(|part| part == text.as_bytes());
    // The control: text of the helper is found in this way.
    assert!(contains("it is started by a native tier"));
    assert!(!contains(MARK), "the helper was built with the feature `weaken`");
}

#[test]
fn without_a_helper_nothing_runs() {
    let (dir, path) = copied_helper();
    for tier in [HelperTier::landlock, HelperTier::process] {
        let unavailable = refused(&tier(opened(&dir.path().join("nothing"))));
        assert_eq!(names(&unavailable), ["helper"]);
        assert!(unavailable.to_string().contains("No such file"), "{unavailable}");
    }
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).unwrap();
    assert_eq!(names(&refused(&HelperTier::landlock(opened(&path)))), ["helper"]);
}

#[test]
fn a_helper_that_was_replaced_is_not_started() {
    let (dir, path) = copied_helper();
    let evil = dir.path().join("evil");
    std::fs::write(&evil, format!("#!/bin/sh\ntouch {}\n", dir.path().join("ran").display()))
        .unwrap();
    std::fs::set_permissions(&evil, std::fs::Permissions::from_mode(0o755)).unwrap();
    let tier = HelperTier::landlock(opened(&path));
    std::fs::rename(&evil, &path).unwrap();
    assert!(run(&tier, "echo ran").stdout.text().contains("ran"));
    assert!(!dir.path().join("ran").exists());
    // Something else that has the name from the beginning is found out.
    let unavailable = refused(&HelperTier::landlock(opened(&path)));
    assert_eq!(names(&unavailable), ["helper"]);
    // What was opened and then changed is refused.
    let (_keep, path) = copied_helper();
    let tier = HelperTier::landlock(opened(&path));
    run(&tier, "true");
    std::fs::write(&path, "#!/bin/sh\n").unwrap();
    let unavailable = tier.prepare(&[]).unwrap_err();
    assert!(unavailable.to_string().contains("was changed"), "{unavailable}");
    assert!(try_run(&tier, &command(&tier, "true")).is_err());
}

#[test]
fn a_helper_in_a_directory_that_the_command_may_change_is_refused() {
    let (dir, path) = copied_helper();
    let tier = HelperTier::landlock(opened(&path));
    let with = |access| {
        let mut command = command(&tier, "true");
        command.mounts = vec![mount(dir.path(), "/work/data", access, false)];
        try_run(&tier, &command)
    };
    match with(Access::ReadWrite) {
        Err(NativeError::Unavailable(unavailable)) => assert_eq!(names(&unavailable), ["helper"]),
        other => panic!("{other:?}"),
    }
    with(Access::ReadOnly).unwrap();
}

#[test]
fn the_process_tier_says_that_it_is_no_boundary() {
    let tier = process();
    let probe = tier.probe();
    assert!(probe.available);
    for one in &probe.guarantees {
        assert_ne!(one.state, GuaranteeState::Enforced, "{one:?}");
    }
    for guarantee in Guarantee::REQUIRED {
        let unavailable = tier.prepare(&[guarantee]).unwrap_err();
        assert_eq!(names(&unavailable), [guarantee.name()]);
    }
    let dir = tempfile::tempdir().unwrap();
    let mut command = command(&tier, "true");
    command.mounts = vec![mount(dir.path(), "/elsewhere", Access::ReadOnly, false)];
    assert!(matches!(try_run(&tier, &command), Err(NativeError::Unavailable(_))));
}
