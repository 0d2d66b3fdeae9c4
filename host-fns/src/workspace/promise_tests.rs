//! What a sync promises beyond what `property_tests` shows: clashes, names that
//! are left out, changes that the kernel made, and memory.
//!
//! The promises, and where each is shown:
//!
//! | | Promise | Test |
//! |---|---|---|
//! | P1 | no byte of the user's goes unless both sides agreed on it | `nothing_of_either_side_is_lost`, `a_failure_at_any_step…`, `a_kill_at_any_step…` |
//! | P2 | names are bytes | every property (`NAMES` has odd ones), `names_are_bytes` |
//! | P3 | planned whole, applied from a journal, the old or the new state, nothing stray | `a_failure_at_any_step…`, `a_kill_at_any_step…` |
//! | P4 | the workspace stays until a sync succeeded or it is discarded | the same two: what failed is brought back by the next sync |
//! | P5 | a failure is in the run's result | the command's `a_full_disk_while_changes_are_brought_back_loses_nothing` |
//! | P6 | every kind of clash is a conflict | `every_clash_is_a_conflict` |
//! | P7 | no sidecar is overwritten | `nothing_of_either_side_is_lost` (`NAMES` has one), `the_users_edits_stay…` |
//! | P8 | what is left out travels in no direction | `names_that_are_left_out_travel_in_no_direction` |
//! | P9 | no link of the project leads a write elsewhere | `a_local_link_leads_nowhere`, `a_race_never_reaches_the_outside` |
//! | P10 | memory is bounded by a chunk | `memory_is_bounded_by_a_chunk` |
//! | P11 | nothing new is an empty report | every property syncs twice |
//! | P12 | the user's edits are seen by the agent and reported | `agrees` in every property, `edits_of_the_user_are_seen_and_reported` |
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "tests prepare and inspect the host side, and start themselves again"
)]

use std::fs;
use std::path::Path;
use std::process::Command;

use proptest::prelude::*;

use super::kernel_tests::mounted;
use super::open::{Strategy, Workspace, WorkspaceOptions};
use super::testing::*;
use super::testing_edits::*;

/// Whether one path is the other or above it.
fn covers(above: &[u8], path: &[u8]) -> bool {
    path.strip_prefix(above).is_some_and(|rest| rest.first().is_none_or(|byte| *byte == b'/'))
}

/// What the agent has, with permissions where a copy shows them.
fn agent_side(edited: &Edited) -> Tree {
    match edited.lab.strategy {
        Strategy::Materialised => tree(&edited.lab.session().join("upper")),
        _ => edited.agent.clone(),
    }
}

/// Paths that both sides changed, in different ways.
fn clashes(base: &Tree, agent: &Tree, user: &Tree) -> Vec<Vec<u8>> {
    let mut paths: Vec<&Vec<u8>> = base.keys().chain(agent.keys()).chain(user.keys()).collect();
    paths.sort();
    paths.dedup();
    let clash = |path: &&Vec<u8>| {
        let (was, theirs, mine) = (base.get(*path), agent.get(*path), user.get(*path));
        theirs != was && mine != was && theirs != mine
    };
    paths.into_iter().filter(clash).cloned().collect()
}

proptest! {
    #![proptest_config(cases(100))]

    #[test]
    fn every_clash_is_a_conflict(
        strategy in strategies(), base in edits(12), agent in edits(12), user in edits(12),
    ) {
        let mut edited = edited(strategy, &base, &agent, &user);
        let theirs = agent_side(&edited);
        let clashes = match strategy {
            Strategy::Materialised => clashes(&edited.base, &theirs, &edited.user),
            _ => clashes(&plain(edited.base.clone()), &theirs, &plain(edited.user.clone())),
        };
        let report = sync(&mut edited.workspace);
        for path in clashes {
            // A clash of directories is told once, for the directory.
            let told = report.conflicts.list.iter().any(|conflict| {
                covers(&conflict.path.0, &path) || covers(&path, &conflict.path.0)
            });
            prop_assert!(told, "{} of {:?}", path.escape_ascii(), report.conflicts.list);
        }
        // And what is no clash is none: each conflict is about something that
        // the user changed.
        for conflict in &report.conflicts.list {
            let changed = edited.base.keys().chain(edited.user.keys()).any(|path| {
                (covers(&conflict.path.0, path) || covers(path, &conflict.path.0))
                    && edited.base.get(path) != edited.user.get(path)
            });
            prop_assert!(changed, "{conflict:?}");
        }
    }

    #[test]
    fn names_that_are_left_out_travel_in_no_direction(
        strategy in strategies(), base in edits(12), agent in edits(12), user in edits(12),
    ) {
        let left_out = |path: &[u8]| path.split(|byte| *byte == b'/').any(|name| name == b"b");
        let options =
            WorkspaceOptions { exclude: vec!["b".to_owned()], ..WorkspaceOptions::default() };
        let fresh = edited_with(&options, strategy, &base, &[], &[]);
        prop_assert!(!fresh.agent.keys().any(|path| left_out(path)), "it came in");
        let mut edited = edited_with(&options, strategy, &base, &agent, &user);
        let of = |tree: &Tree| -> Tree {
            let own = tree.iter().filter(|(path, _)| left_out(path));
            own.map(|(path, seen)| (path.clone(), seen.clone())).collect()
        };
        let report = sync(&mut edited.workspace);
        let after = edited.lab.tree();
        prop_assert_eq!(of(&after), of(&edited.user), "what is left out is as it was");
        let (updated, deleted, conflicts) = paths(&report);
        let named = updated.iter().chain(&deleted).chain(&conflicts);
        prop_assert!(!named.into_iter().any(|path| left_out(path.as_bytes())), "{:?}", report);
        nothing_lost(&edited, &after);
        no_stray(&after);
        prop_assert!(sync(&mut edited.workspace).is_empty());
        prop_assert!(!edited.workspace.has_changes().unwrap(), "only what is left out is left");
    }
}

const EDITS_IN: &str = "FUMEHOOD_TEST_EDITS_IN";

/// The process that edits a mount; does nothing unless it was started for that.
#[test]
fn edits_in_a_mount() {
    let Some(place) = std::env::var_os(EDITS_IN) else { return };
    let list = fs::read(Path::new(&place).join("edits")).unwrap();
    let list: Vec<Edit> = serde_json::from_slice(&list).unwrap();
    list.iter().for_each(|edit| edit_host(&Path::new(&place).join("m"), edit));
}

proptest! {
    // Each case mounts.
    #![proptest_config(cases(24))]

    #[test]
    fn what_the_kernel_changed_comes_back_and_nothing_is_lost(
        base in edits(12), agent in edits(12), user in edits(8),
    ) {
        let lab = Lab::new(Strategy::Kernel);
        base.iter().for_each(|edit| edit_host(&lab.project(), edit));
        let before = lab.tree();
        let workspace = lab.create();
        fs::write(lab.session().join("edits"), serde_json::to_vec(&agent).unwrap()).unwrap();
        let own = std::env::current_exe().unwrap();
        let script = format!(
            "{EDITS_IN}='{}' '{}' --exact workspace::promise_tests::edits_in_a_mount >&2",
            lab.session().display(),
            own.display(),
        );
        if mounted(&lab, &script).is_none() {
            eprintln!("no overlay may be mounted here");
            return Ok(());
        }
        workspace.adopt().unwrap();
        user.iter().for_each(|edit| edit_host(&lab.project(), edit));
        let (user, agent) = (lab.tree(), plain(agent_tree(&lab, &workspace)));
        let mut edited = Edited { lab, workspace, base: before, user, agent };
        sync(&mut edited.workspace);
        let after = edited.lab.tree();
        nothing_lost(&edited, &after);
        agents_work_is_there(&edited, &after);
        no_stray(&after);
        agrees(&edited.lab, &edited.workspace);
        prop_assert!(sync(&mut edited.workspace).is_empty());
        prop_assert!(!edited.workspace.has_changes().unwrap());
    }
}

const MEMORY_IN: &str = "FUMEHOOD_TEST_MEMORY_OF";
/// Bytes of a file on each side, and how many small files there are.
const BIG: u64 = 256 << 20;
const SMALL: usize = 3_000;
/// Most that a sync may take beside what the process has: a hundred and more
/// chunks, an eighth of one file.
const MOST_MEMORY: u64 = 32 << 20;

/// The most memory that this process has had.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() << 10
}

/// The process whose memory is measured; does nothing unless it was started for
/// that.
#[test]
fn a_sync_of_much() {
    let strategy = match std::env::var(MEMORY_IN).as_deref() {
        Ok("live") => Strategy::Live,
        Ok(_) => Strategy::Materialised,
        Err(_) => return,
    };
    let lab = Lab::fast(strategy);
    let big = |path: &Path| fs::File::create(path).unwrap().set_len(BIG).unwrap();
    big(&lab.user("mine"));
    (0..SMALL).for_each(|number| fs::write(lab.user(&format!("f{number}")), "user").unwrap());
    let before = peak();
    let mut workspace: Workspace = lab.create();
    let upper = lab.session().join("upper");
    big(&upper.join("agents"));
    (0..SMALL).for_each(|number| fs::write(upper.join(format!("f{number}")), "agent").unwrap());
    workspace.adopt().unwrap();
    let report = sync(&mut workspace);
    let taken = peak().saturating_sub(before);
    assert_eq!(fs::metadata(lab.user("agents")).unwrap().len(), BIG);
    assert!(report.updated.count() + report.conflicts.count() > SMALL as u64);
    assert!(taken < MOST_MEMORY, "{strategy:?}: {} KiB", taken >> 10);
}

#[cfg(target_os = "linux")]
#[test]
fn memory_is_bounded_by_a_chunk() {
    for strategy in ["live", "materialised"] {
        let run = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "workspace::promise_tests::a_sync_of_much", "--nocapture"])
            .env(MEMORY_IN, strategy)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&run.stdout) + String::from_utf8_lossy(&run.stderr);
        assert!(run.status.success() && said.contains("1 passed"), "{said}");
    }
}

/// Directories within each other, deeper than anything walks.
fn deep(top: &Path, levels: usize) {
    let mut at = rustix::fs::open(top, rustix::fs::OFlags::DIRECTORY, rustix::fs::Mode::empty());
    for _ in 0..levels {
        let parent = at.unwrap();
        rustix::fs::mkdirat(&parent, "d", rustix::fs::Mode::RWXU).unwrap();
        let flags = rustix::fs::OFlags::DIRECTORY;
        at = rustix::fs::openat(&parent, "d", flags, rustix::fs::Mode::empty());
    }
}

/// A real process can make a tree that no walk comes through: nothing of the
/// user's is touched, the failure is told, and it can be discarded.
#[test]
fn a_tree_that_is_too_deep_fails_alone() {
    for strategy in [Strategy::Live, Strategy::Materialised] {
        let lab = Lab::fast(strategy);
        lab.write("a", "user");
        let mut workspace = lab.create();
        let upper = lab.session().join("upper");
        fs::write(upper.join("a"), "agent").unwrap();
        deep(&upper, 5_000);
        let error = workspace.sync(&options()).unwrap_err();
        assert!(error.to_string().contains("too deep"), "{error}");
        drop(workspace);
        let mut workspace = Workspace::open(&lab.session()).unwrap();
        assert!(workspace.sync(&options()).is_err());
        assert_eq!(lab.read("a"), "user");
        assert_eq!(lab.tree().len(), 1);
        workspace.discard().unwrap();
        assert!(!upper.exists());
    }
}
