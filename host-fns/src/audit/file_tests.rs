//! What an honest writer leaves behind, in every end it can have.
#![allow(clippy::unwrap_used, clippy::panic, clippy::disallowed_methods, reason = "tests")]

use std::io::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::file::CLOSING_BYTES;
use super::testing::{
    Place, Touch, append_to, check, effect, fill_disk, record, signer, syncs_fail, touches,
};
use super::*;
use crate::environment::OsRandom;
use crate::testing::Guest;

fn write(sink: &FileSink, session: &str, calls: std::ops::Range<u64>) {
    for record in calls.flat_map(|call| effect(session, call)) {
        sink.record(record).unwrap();
    }
}

fn lines(first: u64, last: u64) -> Lines {
    Lines { first, last }
}

#[test]
fn a_closed_log_is_covered_to_its_end() {
    let place = Place::new();
    let sink = place.begin("fh-1");
    write(&sink, "fh-1", 1..31);
    sink.close().unwrap();
    assert_eq!(sink.record(record("fh-1", 99, Phase::Intent)).unwrap_err().0, "it is closed");
    let report = place.verify("fh-1");
    assert_eq!(report.verdict, Verdict::Intact);
    // Header, 60 records, 6 checkpoints, close.
    assert_eq!((report.lines, report.closed, report.unknown), (68, true, 0));
    assert_eq!((report.covered, report.unsigned), (vec![lines(0, 67)], vec![]));
    let witness = verify_witness(place.witness_bytes().as_slice(), &signer().public_key());
    let witness = witness.unwrap();
    assert_eq!((witness.entries, witness.broken), (8, None));
}

#[test]
fn what_is_missing_is_named() {
    let place = Place::new();
    let sink = place.begin("fh-1");
    write(&sink, "fh-1", 1..5);
    drop(sink);
    let log = place.bytes("fh-1");
    let witness = place.witness_bytes();
    let missing = |report: VerifyReport| -> Vec<&str> {
        match report.verdict {
            Verdict::Unverifiable { missing } => missing.iter().map(Missing::code).collect(),
            verdict => panic!("{verdict:?}"),
        }
    };
    assert_eq!(missing(check(&log, Some(&witness), false)), ["install_key"]);
    assert_eq!(missing(check(&log, None, true)), ["witness"]);
    assert_eq!(missing(check(&log, Some(b""), true)), ["witness_entry"]);
    assert_eq!(missing(check(&log, None, false)), ["install_key", "witness"]);
    assert_eq!(missing(check(b"", Some(&witness), true)), ["log"]);
    assert_eq!(missing(check(b"{\"v\":1", Some(&witness), true)), ["log"]);
}

#[test]
fn a_crash_leaves_a_tail_that_stays_unsigned_for_ever() {
    let place = Place::new();
    let sink = place.begin("fh-1");
    write(&sink, "fh-1", 1..8);
    sink.record(record("fh-1", 8, Phase::Intent)).unwrap();
    sink.crash();
    // 11 lines are signed; 5 are not; call 8 has no outcome.
    let report = place.verify("fh-1");
    assert_eq!(report.verdict, Verdict::Intact);
    assert_eq!(
        (&report.covered[..], &report.unsigned[..]),
        (&[lines(0, 11)][..], &[lines(12, 16)][..])
    );
    assert_eq!((report.closed, report.unknown, &report.unknown_calls[..]), (false, 1, &[8][..]));

    append_to(&place.log("fh-1")).write_all(b"{\"seq\":17,\"time_us\":17").unwrap();
    let report = place.verify("fh-1");
    assert_eq!((report.verdict, report.lines, report.torn_bytes), (Verdict::Intact, 17, 22));

    let (sink, recovery) = place.reopen("fh-1").unwrap();
    assert_eq!(recovery.unsigned, Some(lines(12, 16)));
    assert_eq!((recovery.last_signed, recovery.at), (11, 17));
    assert_eq!((recovery.torn_bytes, recovery.unknown), (22, 1));
    write(&sink, "fh-1", 20..23);
    sink.crash();
    let (sink, recovery) = place.reopen("fh-1").unwrap();
    assert_eq!((recovery.last_signed, recovery.unsigned), (17, Some(lines(18, 23))));
    sink.close().unwrap();
    drop(sink);
    let (sink, recovery) = place.reopen("fh-1").unwrap();
    assert_eq!((recovery.last_signed, recovery.unsigned), (25, None));
    drop(sink);
    let report = place.verify("fh-1");
    assert_eq!(report.verdict, Verdict::Intact);
    assert_eq!(report.covered, [lines(0, 11), lines(17, 17), lines(24, 27)]);
    assert_eq!(report.unsigned, [lines(12, 16), lines(18, 23)]);
    assert_eq!((report.closed, report.unknown), (true, 1));
}

#[test]
fn a_log_cut_at_any_byte_is_continued_or_refused_and_never_lies() {
    let place = Place::new();
    let sink = place.begin("fh-1");
    write(&sink, "fh-1", 1..13);
    sink.crash();
    let whole = place.bytes("fh-1");
    let witness = place.witness_bytes();
    // A crash of the process can only lose what was not witnessed.
    let seen = whole.iter().enumerate().filter(|(_, byte)| **byte == b'\n').nth(22).unwrap().0 + 1;
    for cut in (seen..=whole.len()).step_by(7) {
        std::fs::write(place.log("fh-1"), &whole[..cut]).unwrap();
        std::fs::write(place.witness(), &witness).unwrap();
        let (sink, recovery) = place.reopen("fh-1").unwrap();
        drop(sink);
        assert_eq!(recovery.last_signed, 22);
        let report = place.verify("fh-1");
        assert_eq!(report.verdict, Verdict::Intact, "cut at {cut}");
        assert_eq!(report.covered.last().map(|range| range.last), Some(report.lines - 1));
    }
    for cut in (0..seen).step_by(97) {
        std::fs::write(place.log("fh-1"), &whole[..cut]).unwrap();
        std::fs::write(place.witness(), &witness).unwrap();
        assert!(matches!(place.reopen("fh-1"), Err(OpenLogError::Unverified(_))), "cut at {cut}");
        assert_eq!(place.bytes("fh-1").len(), cut, "nothing is appended");
    }
}

#[test]
fn one_writer_at_a_time() {
    let place = Place::new();
    let sink = place.begin("fh-1");
    assert!(matches!(place.reopen("fh-1"), Err(OpenLogError::Locked)));
    drop(sink);
    assert!(matches!(place.begin_by("fh-1", &signer()), Err(OpenLogError::Exists)));
}

#[test]
fn writers_of_many_sessions_share_one_witness() {
    let place = Place::new();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let place = &place;
            scope.spawn(move || {
                for round in 0..5 {
                    let session = format!("fh-{thread}-{round}");
                    let sink = place.begin(&session);
                    write(&sink, &session, 1..20);
                    if round % 2 == 0 { sink.crash() } else { drop(sink) }
                }
            });
        }
    });
    for thread in 0..4 {
        for round in 0..5 {
            let report = place.verify(&format!("fh-{thread}-{round}"));
            assert_eq!((report.verdict, report.closed), (Verdict::Intact, round % 2 == 1));
        }
    }
}

#[test]
fn nothing_is_appended_to_a_witness_that_does_not_hold() {
    let place = Place::new();
    drop(place.begin("fh-1"));
    let good = place.witness_bytes();
    for at in [10, good.len() / 2, good.len() - 3] {
        let mut bad = good.clone();
        let last_line = good[..good.len() - 1].iter().rposition(|byte| *byte == b'\n').unwrap();
        let at = at.max(last_line + 2);
        bad[at] ^= 1;
        std::fs::write(place.witness(), &bad).unwrap();
        let refused = place.begin_by("fh-2", &signer());
        assert!(matches!(refused, Err(OpenLogError::Witness(WitnessError::Broken))), "{at}");
        std::fs::remove_file(place.log("fh-2")).unwrap();
    }
    let mut torn = good.clone();
    torn.extend_from_slice(b"{\"seq\":2,\"ti");
    std::fs::write(place.witness(), &torn).unwrap();
    drop(place.begin("fh-2"));
    assert_eq!(place.verify("fh-1").verdict, Verdict::Intact);
    assert_eq!(place.verify("fh-2").verdict, Verdict::Intact);
    let report = verify_witness(place.witness_bytes().as_slice(), &signer().public_key()).unwrap();
    assert_eq!((report.entries, report.broken), (4, None));
    // Another installation's witness is not continued either.
    let other = LocalSigner::from_seed(&[9; 32]);
    assert!(matches!(
        place.begin_by("fh-3", &other),
        Err(OpenLogError::Witness(WitnessError::Broken))
    ));
}

#[test]
fn an_outcome_is_never_longer_than_its_promise_and_a_sum_is_bounded() {
    let place = Place::new();
    let sink = place.begin("fh-1");
    let hostile = format!("/{}/\u{1f600}\\x", "\\\u{202e}".repeat(60));
    let mut intent = record("fh-1", u64::MAX, Phase::Intent);
    intent.target = Target::Path(crate::testing::path(&hostile));
    intent.digest = None;
    (intent.bytes_in, intent.bytes_out) = (0, 0);
    (intent.draw.before, intent.draw.after) = (0, 0);
    let mut outcome = intent.clone();
    outcome.phase = Phase::Outcome(Outcome::Failed(crate::Errno::Nametoolong));
    (outcome.bytes_in, outcome.bytes_out) = (u64::MAX, u64::MAX);
    outcome.duration_us = Some(u64::MAX);
    outcome.digest = Some([9; 32]);
    outcome.draw = Draw { budget: "created_entries", before: u64::MAX, after: u64::MAX };
    let mut sum = outcome.clone();
    sum.phase = Phase::Sum { count: u64::MAX, failed: u64::MAX };
    for record in [intent, outcome, sum] {
        sink.record(record).unwrap();
    }
    drop(sink);
    let log = place.bytes("fh-1");
    let sizes: Vec<_> = log.split(|byte| *byte == b'\n').map(<[u8]>::len).collect();
    assert!(sizes[2] <= sizes[1] + 256, "{sizes:?}");
    assert!(sizes[3] < 1024, "{sizes:?}");
    assert_eq!(place.verify("fh-1").verdict, Verdict::Intact);
}

/// Takes so many records and then no more intents.
struct Few(AtomicUsize, Mutex<Vec<AuditRecord>>);

impl AuditSink for Few {
    fn record(&self, record: AuditRecord) -> Result<(), AuditUnavailable> {
        let full = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
        if full.is_err() && record.phase == Phase::Intent {
            return Err(AuditUnavailable("full"));
        }
        self.1.lock().unwrap().push(record);
        Ok(())
    }
}

#[test]
fn a_fan_out_leaves_no_sink_with_an_intent_alone() {
    let first = Arc::new(MemorySink::default());
    let few = Arc::new(Few(AtomicUsize::new(2), Mutex::default()));
    let all = FanOut::new(vec![Arc::<MemorySink>::clone(&first), Arc::<Few>::clone(&few)]);
    effect("fh-1", 1).into_iter().for_each(|record| all.record(record).unwrap());
    assert_eq!(all.record(record("fh-1", 2, Phase::Intent)), Err(AuditUnavailable("full")));
    let phases: Vec<_> = first.records().iter().map(|record| (record.call, record.phase)).collect();
    assert_eq!(
        phases,
        [
            (1, Phase::Intent),
            (1, Phase::Outcome(Outcome::Done)),
            (2, Phase::Intent),
            (2, Phase::Outcome(Outcome::NotStarted)),
        ]
    );
    assert_eq!(few.1.lock().unwrap().len(), 2);
}

struct Slow(Duration, Mutex<u64>);

impl AuditSink for Slow {
    fn record(&self, _: AuditRecord) -> Result<(), AuditUnavailable> {
        std::thread::sleep(self.0);
        *self.1.lock().unwrap() += 1;
        Ok(())
    }
}

#[test]
fn a_slow_sink_denies_effects_and_holds_a_bounded_number_of_records() {
    let slow = Arc::new(Slow(Duration::from_millis(50), Mutex::default()));
    let queue = QueuedSink::new(Arc::<Slow>::clone(&slow), 6, Duration::from_millis(5)).unwrap();
    let mut taken = 0;
    let mut refused = 0;
    for call in 0..20 {
        match queue.record(record("fh-1", call, Phase::Intent)) {
            Ok(()) => {
                queue.record(effect("fh-1", call)[1].clone()).unwrap();
                taken += 2;
            }
            Err(error) => {
                assert_eq!(error.0, "it is too slow");
                refused += 1;
            }
        }
        assert!(queue.waiting() <= 6);
    }
    assert!(refused > 5 && taken > 0, "{refused} {taken}");
    queue.close().unwrap();
    assert_eq!(*slow.1.lock().unwrap(), taken, "nothing that was taken is lost");
}

#[test]
fn strict_makes_the_intent_durable_before_what_cannot_be_taken_back() {
    let mut place = Place::new();
    place.durability = Durability::Strict;
    let sink = place.begin("fh-1");
    let log = inode(&place.log("fh-1"));
    let mut intent = record("fh-1", 1, Phase::Intent);
    intent.irreversible = true;
    touches();
    sink.record(intent.clone()).unwrap();
    assert_eq!(touches(), [Touch::Write(log), Touch::Sync(log)], "before it happens");
    sink.record(effect("fh-1", 1)[1].clone()).unwrap();
    effect("fh-1", 2).into_iter().for_each(|record| sink.record(record).unwrap());
    assert_eq!(touches(), [Touch::Write(log); 3], "what can be taken back does not wait");
    syncs_fail(true);
    intent.call = 3;
    assert_eq!(
        sink.record(intent).unwrap_err().0,
        "its file could not be made durable",
        "then it does not happen"
    );
    syncs_fail(false);
    sink.crash();
    let (sink, _) = place.reopen("fh-1").unwrap();
    drop(sink);
    assert!(String::from_utf8(place.bytes("fh-1")).unwrap().contains(r#""durability":"strict""#));
    assert_eq!(place.verify("fh-1").verdict, Verdict::Intact);
}

fn inode(path: &std::path::Path) -> u64 {
    std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(path).unwrap())
}

#[test]
fn a_log_is_on_the_disk_before_the_witness_is_told_and_waits_at_checkpoints_only() {
    let place = Place::new();
    touches();
    let sink = place.begin("fh-1");
    let (log, witness) = (inode(&place.log("fh-1")), inode(&place.witness()));
    let one_by_one =
        [Touch::Write(log), Touch::Sync(log), Touch::Write(witness), Touch::Sync(witness)];
    assert_eq!(touches(), [Touch::Write(log), Touch::Write(witness)], "the beginning");
    write(&sink, "fh-1", 1..5);
    assert_eq!(touches(), [Touch::Write(log); 8], "records");
    write(&sink, "fh-1", 5..6);
    let checkpoint = touches();
    assert_eq!(checkpoint[..2], [Touch::Write(log); 2]);
    assert_eq!(checkpoint[2..], one_by_one);
    sink.close().unwrap();
    assert_eq!(touches(), one_by_one, "the close");
    drop(sink);
    let (sink, _) = place.reopen("fh-1").unwrap();
    assert_eq!(touches()[..3], one_by_one[..3], "a recovery");
    // A disk that fails leaves no log behind its witness either.
    write(&sink, "fh-1", 6..8);
    touches();
    syncs_fail(true);
    assert!(sink.close().is_err());
    syncs_fail(false);
    assert_eq!(touches(), [Touch::Write(log)]);
    assert_eq!(place.verify("fh-1").verdict, Verdict::Intact);

    let mut strict = Place::new();
    strict.durability = Durability::Strict;
    let _sink = strict.begin("fh-1");
    let (log, witness) = (inode(&strict.log("fh-1")), inode(&strict.witness()));
    assert_eq!(touches(), [Touch::Write(log), Touch::Sync(log), Touch::Write(witness)], "strict");
}

#[test]
fn a_recovery_that_is_torn_is_set_aside_by_the_next_one() {
    let place = Place::new();
    let sink = place.begin("fh-1");
    write(&sink, "fh-1", 1..3);
    sink.crash();
    let torn = b"{\"seq\":5,\"time_us";
    append_to(&place.log("fh-1")).write_all(torn).unwrap();
    let (before, witness) = (place.bytes("fh-1"), place.witness_bytes());
    place.reopen("fh-1").unwrap().0.crash();
    let after = place.bytes("fh-1");
    assert!(after.starts_with(&before) && after.len() > before.len() + 100);
    let start = before.len() - torn.len();
    let cuts = (before.len()..before.len() + 4).chain((before.len() + 4..after.len()).step_by(97));
    for cut in cuts {
        std::fs::write(place.log("fh-1"), &after[..cut]).unwrap();
        std::fs::write(place.witness(), &witness).unwrap();
        let report = place.verify("fh-1");
        let left = (cut - start) as u64;
        assert_eq!((report.verdict, report.torn_bytes), (Verdict::Intact, left), "cut at {cut}");
        assert_eq!(report.bytes as usize, start, "cut at {cut}");
        // And once more.
        place.reopen("fh-1").unwrap().0.crash();
        let again = place.bytes("fh-1");
        std::fs::write(place.log("fh-1"), &again[..cut + 9]).unwrap();
        std::fs::write(place.witness(), &witness).unwrap();
        drop(place.reopen("fh-1").unwrap());
        let report = place.verify("fh-1");
        assert_eq!((report.verdict, report.lines), (Verdict::Intact, 7), "cut at {cut}");
        assert_eq!(report.bytes as usize, place.bytes("fh-1").len());
    }
    // A line that is none is set aside only by a recovery that names it.
    let forged = [&after[..start], b"#\n", &after[start..]].concat();
    std::fs::write(place.log("fh-1"), forged).unwrap();
    assert!(matches!(place.verify("fh-1").verdict, Verdict::Broken { at: 5, .. }));
}

#[test]
fn a_witness_entry_that_was_to_set_a_torn_one_aside_may_be_torn_too() {
    let place = Place::new();
    drop(place.begin("fh-1"));
    let good = place.witness_bytes();
    for torn in ["{\"seq\":2,\"ti#\n", "{\"seq\":2,\"ti#\n{\"se", "x#\n#\n", "x#\n{\"se#\n{"] {
        std::fs::write(place.witness(), [&good[..], torn.as_bytes()].concat()).unwrap();
        assert_eq!(place.verify("fh-1").verdict, Verdict::Intact, "{torn}");
        drop(place.begin("fh-2"));
        assert_eq!(place.verify("fh-2").verdict, Verdict::Intact, "{torn}");
        let key = signer().public_key();
        let report = verify_witness(place.witness_bytes().as_slice(), &key).unwrap();
        assert_eq!((report.entries, report.broken), (4, None), "{torn}");
        assert_eq!(report.bytes as usize, place.witness_bytes().len());
        std::fs::remove_file(place.log("fh-2")).unwrap();
    }
    // With nothing before it.
    std::fs::write(place.witness(), "x#\n{\"se").unwrap();
    drop(place.begin("fh-3"));
    assert_eq!(place.verify("fh-3").verdict, Verdict::Intact);
}

#[test]
fn sums_take_no_room_that_was_promised_to_outcomes() {
    let place = Place::new();
    let sink = place.begin("fh-1");
    sink.hold_room(2).unwrap();
    sink.record(record("fh-1", 1, Phase::Intent)).unwrap();
    fill_disk(true);
    let sum = record("fh-1", 2, Phase::Sum { count: 3, failed: 3 });
    let taken = (0..10_000).take_while(|_| sink.record(sum.clone()).is_ok()).count();
    assert!((2..10_000).contains(&taken), "{taken}");
    assert!(sink.room() > CLOSING_BYTES, "{}", sink.room());
    sink.record(effect("fh-1", 1)[1].clone()).unwrap();
    sink.close().unwrap();
    fill_disk(false);
    let report = place.verify("fh-1");
    assert_eq!((report.verdict, report.unknown), (Verdict::Intact, 0));
}

/// Takes records while its gate is open, and remembers after how many of them
/// it was given room back.
#[derive(Default)]
struct Gated {
    gate: Mutex<()>,
    records: AtomicUsize,
    given_back: Mutex<Vec<(usize, u32)>>,
}

impl AuditSink for Gated {
    fn record(&self, _: AuditRecord) -> Result<(), AuditUnavailable> {
        let _open = self.gate.lock().unwrap();
        self.records.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn give_back_room(&self, sums: u32) {
        let records = self.records.load(Ordering::Relaxed);
        self.given_back.lock().unwrap().push((records, sums));
    }
}

#[test]
fn room_for_sums_is_held_until_those_that_wait_are_passed_on() {
    let inner = Arc::new(Gated::default());
    let queue = QueuedSink::new(Arc::<Gated>::clone(&inner), 20, Duration::from_secs(9)).unwrap();
    let closed = inner.gate.lock().unwrap();
    queue.hold_room(5).unwrap();
    for call in 1..=3 {
        queue.record(record("fh-1", call, Phase::Sum { count: 1, failed: 0 })).unwrap();
    }
    queue.give_back_room(2);
    queue.give_back_room(2);
    queue.record(record("fh-1", 4, Phase::Sum { count: 1, failed: 0 })).unwrap();
    queue.give_back_room(1);
    assert!(inner.given_back.lock().unwrap().is_empty());
    drop(closed);
    queue.close().unwrap();
    assert_eq!(*inner.given_back.lock().unwrap(), [(3, 4), (4, 1)]);
    queue.give_back_room(7);
    assert_eq!(inner.given_back.lock().unwrap().last(), Some(&(4, 7)), "nothing waits");
}

/// Says how much room it was asked to hold.
#[derive(Default)]
struct Holds(AtomicUsize);

impl AuditSink for Holds {
    fn record(&self, _: AuditRecord) -> Result<(), AuditUnavailable> {
        Ok(())
    }

    fn hold_room(&self, sums: u32) -> Result<(), AuditUnavailable> {
        self.0.fetch_add(sums as usize, Ordering::Relaxed);
        Ok(())
    }
}

#[test]
fn room_is_held_for_the_sum_of_every_denial_that_is_kept() {
    let holds = Arc::new(Holds::default());
    let guest = Guest::with(|config| {
        config.audit = Arc::<Holds>::clone(&holds);
        (config.limits.descriptors, config.limits.denials_kept) = (10, 70);
    });
    assert!(holds.0.load(Ordering::Relaxed) > 80);
    drop(guest);
}

#[test]
fn denials_that_came_again_are_summed_once() {
    let host = tempfile::tempdir().unwrap();
    let mut guest = Guest::mounted(host.path(), crate::Access::ReadOnly);
    let sums = |guest: &Guest| -> Vec<u64> {
        let records = guest.audit.records().into_iter();
        let denied = records.filter(|record| record.verdict != fumehood_policies::Verdict::Allow);
        denied
            .filter_map(|record| match record.phase {
                Phase::Sum { count, .. } => Some(count),
                _ => None,
            })
            .collect()
    };
    guest.broker.begin_run("program", b"").unwrap();
    for _ in 0..5 {
        assert!(guest.mkdir("/m/a").is_err());
    }
    guest.broker.end_run("completed");
    assert_eq!(sums(&guest), [4]);
    assert_eq!(guest.broker.report().denials[0].count, 5);
    assert_eq!(sums(&guest), [4], "the report sums nothing again");
    for _ in 0..3 {
        assert!(guest.mkdir("/m/a").is_err());
    }
    guest.broker.end_run("completed");
    assert!(guest.mkdir("/m/a").is_err());
    guest.broker.report();
    assert_eq!(sums(&guest), [4, 2, 1], "what came since is");
}

#[test]
fn a_record_of_another_session_is_refused() {
    let place = Place::new();
    let sink = place.begin("fh-1");
    assert!(sink.record(record("fh-2", 1, Phase::Intent)).is_err());
}

#[test]
fn every_key_is_new() {
    let place = Place::new();
    let keys: Vec<_> = ["fh-1", "fh-2"]
        .into_iter()
        .map(|session| {
            drop(place.begin(session));
            let log = place.bytes(session);
            let first = log.split(|byte| *byte == b'\n').next().unwrap();
            Line::parse(first).unwrap().key.unwrap()
        })
        .collect();
    assert_ne!(keys[0], keys[1]);
    let _ = OsRandom;
}
