//! What a sync promises, over random trees with edits on both sides, with a
//! failure at every step and a kill at every step.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "tests prepare and inspect the host side, and start themselves again"
)]

use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;

use super::open::{Strategy, Workspace};
use super::steps::Steps;
use super::testing::*;
use super::testing_edits::*;

proptest! {
    #![proptest_config(cases(100))]

    #[test]
    fn what_only_the_agent_changed_comes_back(
        strategy in strategies(), base in edits(12), agent in edits(12),
    ) {
        let mut edited = edited(strategy, &base, &agent, &[]);
        let report = sync(&mut edited.workspace);
        prop_assert!(report.conflicts.is_empty(), "{:?}", report.conflicts);
        prop_assert_eq!(plain(edited.lab.tree()), edited.agent.clone());
        no_stray(&edited.lab.tree());
        prop_assert!(sync(&mut edited.workspace).is_empty());
        prop_assert!(!edited.workspace.has_changes().unwrap());
    }

    #[test]
    fn nothing_of_either_side_is_lost(
        strategy in strategies(), base in edits(12), agent in edits(12), user in edits(12),
    ) {
        let mut edited = edited(strategy, &base, &agent, &user);
        let planned = edited.workspace.dry_run(&options()).unwrap();
        prop_assert_eq!(&edited.lab.tree(), &edited.user, "a dry run changes nothing");
        let report = sync(&mut edited.workspace);
        prop_assert_eq!(paths(&planned), paths(&report));
        let after = edited.lab.tree();
        nothing_lost(&edited, &after);
        agents_work_is_there(&edited, &after);
        no_stray(&after);
        agrees(&edited.lab, &edited.workspace);
        prop_assert!(sync(&mut edited.workspace).is_empty());
        prop_assert_eq!(edited.lab.tree(), after);
    }

}

proptest! {
    // Each case goes through every step of its sync.
    #![proptest_config(cases(8))]

    #[test]
    fn a_failure_at_any_step_leaves_the_old_or_the_new_state(
        strategy in strategies(), base in edits(10), agent in edits(10), user in edits(6),
        for_good in any::<bool>(),
    ) {
        let probe = edited(strategy, &base, &agent, &user);
        let count = steps_of(probe);
        for at in 0..count {
            let mut edited = edited(strategy, &base, &agent, &user);
            let fail = FailAt::new(at, for_good);
            let result = edited.workspace.sync_with(&options(), &fail);
            let now = edited.lab.tree();
            nothing_lost(&edited, &now);
            if result.is_err() && !for_good {
                // Settling failed after everything was applied, or nothing was.
                let old = now == edited.user;
                prop_assert!(old || agents_are_in(&edited, &now));
            }
            let report = sync(&mut edited.workspace);
            let _ = report;
            let after = edited.lab.tree();
            nothing_lost(&edited, &after);
            agents_work_is_there(&edited, &after);
            no_stray(&after);
            agrees(&edited.lab, &edited.workspace);
        }
    }
}

fn agents_are_in(edited: &Edited, now: &Tree) -> bool {
    agents_work_is_there(edited, now);
    true
}

/// How many steps a sync has.
fn steps_of(mut edited: Edited) -> u64 {
    let count = FailAt::new(u64::MAX, false);
    edited.workspace.sync_with(&options(), &count).unwrap();
    count.count.load(Ordering::Relaxed)
}

const CRASH_AT: &str = "FUMEHOOD_TEST_CRASH_AT";
const CRASH_IN: &str = "FUMEHOOD_TEST_CRASH_IN";

/// Kills the process at a step.
struct KillAt(u64, AtomicU64);

impl Steps for KillAt {
    fn step(&self, _what: &'static str) -> io::Result<()> {
        if self.1.fetch_add(1, Ordering::Relaxed) == self.0 {
            rustix::process::kill_process(
                rustix::process::getpid(),
                rustix::process::Signal::KILL,
            )?;
            std::thread::sleep(std::time::Duration::from_secs(60));
        }
        Ok(())
    }
}

/// The process that is killed; does nothing unless it was started for that.
#[test]
fn a_sync_that_is_killed() {
    let (Ok(at), Ok(session)) = (std::env::var(CRASH_AT), std::env::var(CRASH_IN)) else {
        return;
    };
    let kill = KillAt(at.parse().unwrap(), AtomicU64::new(0));
    let mut workspace = Workspace::open_with(Path::new(&session), &kill).unwrap();
    workspace.sync_with(&options(), &kill).unwrap();
}

/// Whether the child was killed.
fn killed(session: &Path, at: u64) -> bool {
    use std::os::unix::process::ExitStatusExt as _;
    let run = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "workspace::property_tests::a_sync_that_is_killed"])
        .env(CRASH_AT, at.to_string())
        .env(CRASH_IN, session)
        .output()
        .unwrap();
    if run.status.signal() == Some(9) {
        return true;
    }
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stdout));
    false
}

#[test]
fn a_kill_at_any_step_leaves_the_old_or_the_new_state() {
    let write = |at: &[usize], byte| Edit::Write(at.to_vec(), byte);
    let base =
        [write(&[0], 1), write(&[1, 0], 2), write(&[1, 2], 3), write(&[3], 4), write(&[4], 5)];
    let agent = [
        write(&[0], 11),
        Edit::Remove(vec![1]),
        write(&[3], 14),
        write(&[2, 2], 15),
        Edit::Remove(vec![4]),
        Edit::MakeDirectory(vec![4]),
        Edit::Link(vec![4, 1], 0),
    ];
    let user = [write(&[3], 24), write(&[2], 25)];
    for strategy in [Strategy::Live, Strategy::Materialised] {
        let mut kills = 0;
        for at in 0.. {
            let Edited { lab, workspace, base, user, agent } =
                edited(strategy, &base, &agent, &user);
            drop(workspace);
            let was_killed = killed(&lab.session(), at);
            // Killed again while it recovers, a step later each time.
            if was_killed {
                for again in 0..2 {
                    killed(&lab.session(), again);
                }
            }
            let workspace = Workspace::open(&lab.session()).unwrap();
            let mut edited = Edited { lab, workspace, base, user, agent };
            let now = edited.lab.tree();
            nothing_lost(&edited, &now);
            no_stray(&now);
            sync(&mut edited.workspace);
            let after = edited.lab.tree();
            nothing_lost(&edited, &after);
            agents_work_is_there(&edited, &after);
            no_stray(&after);
            agrees(&edited.lab, &edited.workspace);
            if !was_killed {
                break;
            }
            kills += 1;
        }
        assert!(kills > 20, "{strategy:?}: {kills}");
    }
}
