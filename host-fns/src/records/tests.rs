//! Records in directories that are removed again.
#![allow(clippy::unwrap_used, clippy::panic, clippy::disallowed_methods, reason = "tests")]

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::time::Duration;

use super::*;
use crate::audit::testing::{effect, record};
use crate::audit::{AuditSink as _, LogHeader, Phase, Verdict, verify_witness};

fn start(session: &str) -> SessionStart {
    SessionStart {
        header: LogHeader {
            session: session.to_owned(),
            tier: "wasm",
            guest: [2; 32],
            policy: [3; 32],
            program: Some([4; 32]),
        },
        name: "program.py".to_owned(),
        durability: Durability::Checkpoint,
    }
}

fn end() -> SessionEnd {
    SessionEnd { outcome: "completed".to_owned(), exit_code: 0, denials: 0 }
}

fn run(home: &Home, session: &str) {
    let session_record = home.begin(&start(session)).unwrap();
    for record in effect(session, 1) {
        session_record.sink().record(record).unwrap();
    }
    session_record.finish(end()).unwrap();
}

#[test]
fn a_workspace_is_kept_when_records_go() {
    let root = tempfile::tempdir().unwrap();
    let home = Home::open(&root.path().join("home"), true).unwrap();
    run(&home, "old");
    assert_eq!(home.workspace("old", false).unwrap(), None);
    let place = home.workspace("old", true).unwrap().unwrap();
    assert_eq!(mode(&place), 0o700);
    std::fs::write(place.join("work"), "agent").unwrap();
    let nothing = Retention { sessions: 0, ..Retention::default() };
    assert_eq!(home.tidy(nothing).unwrap().sessions, ["old"]);
    assert_eq!(home.workspace_names().unwrap(), ["old"]);
    assert!(home.remove_workspace("old").is_err(), "something is in it");
    std::fs::remove_file(place.join("work")).unwrap();
    home.remove_workspace("old").unwrap();
    home.remove_workspace("old").unwrap();
    assert!(home.workspace_names().unwrap().is_empty());
    for bad in ["", "..", "a/b", "-x"] {
        assert!(home.workspace(bad, true).is_err(), "{bad}");
        assert!(home.remove_workspace(bad).is_err(), "{bad}");
    }
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn records_are_private_and_verify_where_they_are() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("a/b");
    assert!(Home::open(&path, false).is_err());
    let home = Home::open(&path, true).unwrap();
    run(&home, "fh-1");
    for (name, wanted) in [
        ("", 0o700),
        ("sessions", 0o700),
        ("sessions/fh-1", 0o700),
        ("sessions/fh-1/audit.jsonl", 0o600),
        ("sessions/fh-1/session.json", 0o600),
        ("install.key", 0o600),
        ("install.pub", 0o600),
        ("witness.jsonl", 0o600),
    ] {
        assert_eq!(mode(&path.join(name)), wanted, "{name}");
    }
    assert_eq!(home.session_names().unwrap(), ["fh-1"]);
    let (info, state) = home.info("fh-1").unwrap();
    assert_eq!((info.end, state), (Some(end()), SessionState::Ended));
    assert!(info.ended_us.unwrap() >= info.started_us);
    assert_eq!(home.verify("fh-1").unwrap().verdict, Verdict::Intact);
    for bad in ["", "..", "../fh-1", "a/b", "fh-2", "-x", &"x".repeat(65)] {
        assert!(matches!(home.info(bad), Err(RecordsError::NoSession(_))), "{bad}");
    }
    assert!(home.begin(&start("../x")).is_err());
    assert!(home.begin(&start("fh-1")).is_err(), "a session has one log");
    assert_eq!(home.verify("fh-1").unwrap().verdict, Verdict::Intact);
}

#[test]
fn what_others_could_reach_or_a_link_is_not_used() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("home");
    let home = Home::open(&path, true).unwrap();
    run(&home, "fh-1");
    let set = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    set(&path, 0o750);
    assert!(Home::open(&path, true).unwrap_err().to_string().contains("0700"));
    set(&path, 0o700);
    let link = place.path().join("link");
    symlink(&path, &link).unwrap();
    assert!(Home::open(&link, true).unwrap_err().to_string().contains("symbolic link"));
    for name in ["install.key", "witness.jsonl"] {
        let file = path.join(name);
        set(&file, 0o644);
        assert!(home.begin(&start("fh-2")).is_err(), "{name}");
        set(&file, 0o600);
        let moved = path.join("moved");
        std::fs::rename(&file, &moved).unwrap();
        symlink(&moved, &file).unwrap();
        assert!(home.begin(&start("fh-2")).is_err(), "{name}");
        std::fs::remove_file(&file).unwrap();
        std::fs::rename(&moved, &file).unwrap();
    }
    assert_eq!(home.session_names().unwrap(), ["fh-1"], "what did not begin leaves nothing");
    let log = path.join("sessions/fh-1/audit.jsonl");
    std::fs::remove_file(&log).unwrap();
    symlink("/etc/hosts", &log).unwrap();
    assert!(home.log("fh-1").is_err());
    assert!(home.verify("fh-1").is_err());
}

#[test]
fn another_sessions_log_is_not_evidence_of_this_one() {
    let place = tempfile::tempdir().unwrap();
    let home = Home::open(&place.path().join("home"), true).unwrap();
    run(&home, "fh-1");
    run(&home, "fh-2");
    let log = |session| home.path().join(format!("sessions/{session}/audit.jsonl"));
    std::fs::copy(log("fh-2"), log("fh-1")).unwrap();
    let report = home.verify("fh-1").unwrap();
    assert_eq!(report.verdict, Verdict::Broken { at: 0, why: Why::Session });
    assert!(report.covered.is_empty() && home.recover("fh-1").is_err());
    assert_eq!(home.verify("fh-2").unwrap().verdict, Verdict::Intact);
}

#[test]
fn a_key_that_is_none_is_not_replaced() {
    let place = tempfile::tempdir().unwrap();
    let home = Home::open(&place.path().join("home"), true).unwrap();
    run(&home, "fh-1");
    std::fs::write(home.path().join("install.key"), "no key").unwrap();
    assert!(matches!(home.begin(&start("fh-2")), Err(RecordsError::InstallKey)));
}

#[test]
fn a_crashed_session_is_recovered_and_a_running_one_is_left_alone() {
    let place = tempfile::tempdir().unwrap();
    let home = Home::open(&place.path().join("home"), true).unwrap();
    let running = home.begin(&start("fh-1")).unwrap();
    assert_eq!(home.info("fh-1").unwrap().1, SessionState::Running);
    assert!(matches!(home.remove("fh-1"), Err(RecordsError::Running(_))));
    assert!(matches!(home.recover("fh-1"), Err(RecordsError::Running(_))));
    running.sink().record(record("fh-1", 1, Phase::Intent)).unwrap();
    running.crash();
    assert_eq!(home.info("fh-1").unwrap().1, SessionState::Crashed);
    let recovery = home.recover("fh-1").unwrap();
    assert_eq!((recovery.last_signed, recovery.unknown), (0, 1));
    assert_eq!(home.info("fh-1").unwrap().1, SessionState::Recovered);
    let report = home.verify("fh-1").unwrap();
    assert_eq!((report.verdict, report.unsigned.len(), report.unknown), (Verdict::Intact, 1, 1));
}

#[test]
fn the_oldest_go_first_and_the_witness_is_told() {
    let place = tempfile::tempdir().unwrap();
    let home = Home::open(&place.path().join("home"), true).unwrap();
    let running = home.begin(&start("fh-0")).unwrap();
    for number in 1..=6 {
        run(&home, &format!("fh-{number}"));
        let log = home.path().join(format!("sessions/fh-{number}/audit.jsonl"));
        let time = std::time::SystemTime::now() - Duration::from_secs(1000 - number * 100);
        std::fs::File::options().append(true).open(log).unwrap().set_modified(time).unwrap();
    }
    let all = Retention::default();
    assert_eq!(home.tidy(all).unwrap(), Removed::default());
    let removed = home.tidy(Retention { age: Duration::from_secs(850), ..all }).unwrap();
    assert_eq!(removed.sessions, ["fh-1"]);
    let removed = home.tidy(Retention { sessions: 4, ..all }).unwrap();
    assert_eq!(removed.sessions, ["fh-3", "fh-2"]);
    let one = std::fs::metadata(home.path().join("sessions/fh-6/audit.jsonl")).unwrap().len();
    let held = std::fs::metadata(home.path().join("sessions/fh-0/audit.jsonl")).unwrap().len();
    let removed = home.tidy(Retention { bytes: held + one * 2, ..all }).unwrap();
    assert_eq!(removed.sessions, ["fh-4"]);
    let removed = home.tidy(Retention { bytes: 0, ..all }).unwrap();
    assert_eq!(removed.sessions, ["fh-6", "fh-5"]);
    assert_eq!(home.session_names().unwrap(), ["fh-0"], "a running one stays");
    drop(running);
    let install = home.install_public().unwrap().unwrap();
    let witness = std::io::BufReader::new(home.witness().unwrap().unwrap());
    assert_eq!(verify_witness(witness, &install).unwrap().broken, None);
    assert!(home.tidy_sometimes(all).unwrap().is_some());
    assert!(home.tidy_sometimes(all).unwrap().is_none());
}

#[test]
fn what_a_killed_process_left_is_in_nobodys_way_and_a_failed_write_leaves_nothing() {
    let place = tempfile::tempdir().unwrap();
    let home = Home::open(&place.path().join("home"), true).unwrap();
    for number in 0..100 {
        for name in ["install.key", "install.pub", "session.json"] {
            let left = format!("{name}.{}.{number}.tmp", std::process::id());
            std::fs::write(home.path().join(left), "half a key").unwrap();
        }
    }
    run(&home, "fh-1");
    assert_eq!(home.verify("fh-1").unwrap().verdict, Verdict::Intact);
    let names = || home.root.names(1000).unwrap().len();
    let before = names();
    assert!(home.root.replace("sessions", b"a file").is_err(), "a directory is there");
    assert!(home.root.create_once(&"x".repeat(250), b"a file").is_err(), "the name is too long");
    home.root.create_once("install.key", b"another").unwrap();
    assert_eq!(names(), before);
    let read = std::fs::read(home.path().join("install.key")).unwrap();
    assert_ne!(read, b"another", "the first stays");
}

#[test]
fn processes_that_start_together_agree_on_one_install_key() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("home");
    std::thread::scope(|scope| {
        for number in 0..8 {
            let path = &path;
            scope.spawn(move || run(&Home::open(path, true).unwrap(), &format!("fh-{number}")));
        }
    });
    let home = Home::open(&path, false).unwrap();
    for session in home.session_names().unwrap() {
        assert_eq!(home.verify(&session).unwrap().verdict, Verdict::Intact, "{session}");
    }
    let left: Vec<_> = home.root.names(100).unwrap();
    assert!(!left.iter().any(|name| name.ends_with(".tmp")), "{left:?}");
}
