//! Tampering, as data: what is done to a log and its witness, and what the
//! verifier says of it.
//!
//! Invariant: no case is called intact over the lines that were tampered with.
#![allow(clippy::unwrap_used, clippy::panic, clippy::disallowed_methods, reason = "tests")]

use super::chain::Chain;
use super::line::WITNESS_TYPES;
use super::sign::{Purpose, SessionKey};
use super::testing::{Place, check, effect, record, signer};
use super::witness::sign_line;
use super::*;
use crate::environment::OsRandom;

type Lines = Vec<Vec<u8>>;

fn split(bytes: &[u8]) -> Lines {
    let mut lines: Lines = bytes.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
    assert_eq!(lines.pop().unwrap(), b"");
    lines
}

fn join(lines: &Lines) -> Vec<u8> {
    lines.iter().flat_map(|line| line.iter().copied().chain([b'\n'])).collect()
}

/// What an attacker has: two logs, the witness, and a key that nobody trusts.
struct Evidence {
    log: Lines,
    other: Lines,
    witness: Option<Lines>,
    with_key: bool,
    /// Cut from the end after joining.
    cut: usize,
}

impl Evidence {
    fn text(&self, at: usize) -> String {
        String::from_utf8(self.log[at].clone()).unwrap()
    }

    fn replace(&mut self, at: usize, from: &str, to: &str) {
        let text = self.text(at);
        let changed = text.replacen(from, to, 1);
        assert_ne!(text, changed, "{from}");
        self.log[at] = changed.into_bytes();
    }

    /// Makes the chain hold again from `from` on, with an untrusted key for
    /// what is signed if there is one.
    fn relink(&mut self, from: usize, key: Option<&SessionKey>) {
        relink(&mut self.log, from, key, Purpose::Log);
    }
}

fn relink(lines: &mut Lines, from: usize, key: Option<&SessionKey>, purpose: Purpose) {
    let types = match purpose {
        Purpose::Log => line::LOG_TYPES.as_slice(),
        Purpose::Witness => WITNESS_TYPES.as_slice(),
    };
    let mut chain = Chain::START;
    for (at, bytes) in lines.iter_mut().enumerate() {
        if at >= from {
            let before = bytes.clone();
            let mut line = Line::parse_as(&before, types, &mut Vec::new()).unwrap();
            (line.seq, line.prev) = (Some(chain.next), Some(chain.hash));
            line.time_us = line.time_us.max(Some(chain.time_us));
            bytes.clear();
            match (line.sig, key) {
                (Some(_), Some(key)) => {
                    if line.key.is_some() {
                        (line.key, line.cert) = (Some(key.public), Some(key.cert));
                        line.install = Some(key.install);
                    }
                    sign_line(purpose, line, key, bytes);
                }
                _ => line.write(bytes),
            }
        }
        let time = Line::parse_as(bytes, types, &mut Vec::new()).ok().and_then(|line| line.time_us);
        chain = chain.with(chain.hash_with(bytes), time.unwrap_or(chain.time_us));
    }
}

fn evidence() -> Evidence {
    let place = Place::new();
    for session in ["fh-0", "fh-1", "fh-2"] {
        let sink = place.begin(session);
        for call in 1..19 {
            let mut pair = effect(session, call);
            pair[0].target = Target::Path(crate::testing::path(&format!("/work/{call}")));
            pair.into_iter().for_each(|record| sink.record(record).unwrap());
        }
    }
    Evidence {
        log: split(&place.bytes("fh-1")),
        other: split(&place.bytes("fh-0")),
        witness: Some(split(&place.witness_bytes())),
        with_key: true,
        cut: 0,
    }
}

fn fresh(session: &str) -> SessionKey {
    SessionKey::new(session, &LocalSigner::from_seed(&[66; 32]), &OsRandom).unwrap()
}

/// A key of the right installation, for another session.
fn strangers() -> SessionKey {
    SessionKey::new("fh-9", &signer(), &OsRandom).unwrap()
}

/// What has to come of it.
#[derive(Clone, Copy, Debug)]
enum Want {
    /// Broken at this line, for this reason.
    Broken(u64, &'static str),
    /// This is missing.
    Missing(&'static str),
}
use Want::{Broken, Missing as Lacks};

type Case = (&'static str, fn(&mut Evidence), Want);

// Lines of the log: 0 header, 1 to 10 records, 11 checkpoint, 12 to 21
// records, 22 checkpoint, 23 to 32, 33 checkpoint, 34 to 39, 40 close.
const CASES: &[Case] = &[
    ("a byte of a value", |e| e.replace(5, "/work/3", "/work/4"), Broken(6, "link")),
    (
        "a byte of the last record",
        |e| e.replace(39, "/work/file", "/work/fail"),
        Broken(40, "link"),
    ),
    ("a byte of the header", |e| e.replace(0, "0202", "0203"), Broken(0, "signature")),
    (
        "a byte of a checkpoint",
        |e| e.replace(11, "\"time_us\":1", "\"time_us\":2"),
        Broken(11, "signature"),
    ),
    (
        "a byte of the close",
        |e| e.replace(40, "\"unknown\":0", "\"unknown\":1"),
        Broken(40, "signature"),
    ),
    (
        "a value, and the chain made good",
        |e| {
            e.replace(5, "/work/3", "/work/4");
            e.relink(6, None)
        },
        Broken(11, "signature"),
    ),
    (
        "a denial made an approval",
        |e| {
            e.replace(5, "\"allow\"", "\"deny\"");
            e.relink(6, None)
        },
        Broken(6, "unpaired"),
    ),
    ("a decision that is none", |e| e.replace(5, "\"allow\"", "\"maybe\""), Broken(5, "decision")),
    ("two lines swapped", |e| e.log.swap(5, 6), Broken(5, "number")),
    (
        "two calls swapped and renumbered",
        |e| {
            e.log.swap(5, 7);
            e.log.swap(6, 8);
            e.relink(5, None)
        },
        Broken(11, "signature"),
    ),
    (
        "a line dropped",
        |e| {
            e.log.remove(5);
        },
        Broken(5, "number"),
    ),
    (
        "a call dropped and renumbered",
        |e| {
            e.log.drain(5..7);
            e.relink(5, None)
        },
        Broken(9, "signature"),
    ),
    (
        "an outcome dropped and renumbered",
        |e| {
            e.log.remove(6);
            e.relink(6, None)
        },
        Broken(10, "signature"),
    ),
    (
        "a line doubled",
        |e| {
            let line = e.log[5].clone();
            e.log.insert(5, line)
        },
        Broken(6, "number"),
    ),
    (
        "a line inserted",
        |e| {
            let line = e.log[6].clone();
            e.log.insert(9, line);
            e.relink(9, None)
        },
        Broken(9, "unpaired"),
    ),
    ("a line emptied", |e| e.log[5].clear(), Broken(5, "malformed")),
    ("an empty line inserted", |e| e.log.insert(5, Vec::new()), Broken(5, "malformed")),
    ("white space within", |e| e.replace(5, ":", ": "), Broken(5, "not_canonical")),
    ("white space at the end", |e| e.log[5].push(b' '), Broken(5, "not_canonical")),
    ("a carriage return", |e| e.log[5].push(b'\r'), Broken(5, "not_canonical")),
    (
        "white space, and the chain made good",
        |e| {
            e.replace(39, ":", ": ");
        },
        Broken(39, "not_canonical"),
    ),
    (
        "a key twice",
        |e| e.replace(5, "\"call\":3", "\"call\":3,\"call\":3"),
        Broken(5, "malformed"),
    ),
    (
        "a key twice with another value",
        |e| e.replace(5, "\"target\":", "\"target\":\"/x\",\"target\":"),
        Broken(5, "malformed"),
    ),
    (
        "keys in another order",
        |e| e.replace(5, "\"call\":3,\"parent\":0", "\"parent\":0,\"call\":3"),
        Broken(5, "not_canonical"),
    ),
    ("a key more", |e| e.replace(5, "\"call\":3", "\"call\":3,\"note\":1"), Broken(5, "malformed")),
    (
        "another spelling of a text",
        |e| e.replace(5, "/work", "\\/work"),
        Broken(5, "not_canonical"),
    ),
    (
        "a byte that is no text",
        |e| {
            let end = e.log[5].len() - 9;
            e.log[5][end] = 0xff
        },
        Broken(5, "malformed"),
    ),
    (
        "a line far too long",
        |e| e.log[5] = vec![b'a'; MAX_AUDIT_LINE_BYTES + 5],
        Broken(5, "too_long"),
    ),
    ("cut at a checkpoint", |e| e.log.truncate(12), Broken(12, "cut")),
    ("cut at the last checkpoint", |e| e.log.truncate(34), Broken(34, "cut")),
    ("cut between checkpoints", |e| e.log.truncate(15), Broken(15, "cut")),
    ("cut to the header", |e| e.log.truncate(1), Broken(1, "cut")),
    ("cut within the close", |e| e.cut = 10, Broken(40, "cut")),
    ("only the last newline cut", |e| e.cut = 1, Broken(40, "cut")),
    (
        "cut at a checkpoint, and no witness",
        |e| {
            e.log.truncate(12);
            e.witness = None
        },
        Lacks("witness"),
    ),
    ("nothing left", |e| e.log.clear(), Lacks("log")),
    (
        "the beginning cut off",
        |e| {
            e.log.drain(..5);
        },
        Broken(0, "number"),
    ),
    (
        "re-anchored with a new header",
        |e| e.relink(0, Some(&fresh("fh-1"))),
        Broken(0, "install_key"),
    ),
    (
        "re-anchored, and no key to check",
        |e| {
            e.relink(0, Some(&fresh("fh-1")));
            e.with_key = false
        },
        Lacks("install_key"),
    ),
    (
        "re-anchored with another session's certificate",
        |e| e.relink(0, Some(&strangers())),
        Broken(0, "certificate"),
    ),
    (
        "a tail forged with a fresh key",
        |e| {
            e.log.truncate(34);
            let call = [18, 19, 33].map(|at| e.log[at].clone());
            e.log.extend(call);
            e.relink(34, Some(&fresh("fh-1")));
        },
        Broken(36, "signature"),
    ),
    (
        "a recovery forged with a fresh key",
        |e| forge_recovery(e, &fresh("fh-1")),
        Broken(34, "install_key"),
    ),
    (
        "a recovery forged with another session's key",
        |e| forge_recovery(e, &strangers()),
        Broken(34, "certificate"),
    ),
    (
        "one checkpoint removed",
        |e| {
            e.log.remove(22);
            e.relink(22, None)
        },
        Broken(22, "no_checkpoint"),
    ),
    (
        "all checkpoints removed",
        |e| {
            for at in [40, 33, 22, 11] {
                e.log.remove(at);
            }
            e.relink(11, None)
        },
        Broken(11, "no_checkpoint"),
    ),
    (
        "the close removed",
        |e| {
            e.log.pop();
        },
        Broken(40, "cut"),
    ),
    (
        "something after the close",
        |e| {
            let line = e.log[39].clone();
            e.log.push(line);
            e.relink(41, None)
        },
        Broken(41, "after_close"),
    ),
    (
        "something torn after the close",
        |e| {
            e.log.push(b"{\"seq\"".to_vec());
            e.cut = 1
        },
        Broken(41, "after_close"),
    ),
    (
        "the tail of another session spliced in",
        |e| {
            e.log.truncate(12);
            e.log.extend_from_slice(&e.other[12..])
        },
        Broken(12, "link"),
    ),
    (
        "the tail of another session, chain made good",
        |e| {
            e.log.truncate(12);
            e.log.extend_from_slice(&e.other[12..]);
            e.relink(12, None)
        },
        Broken(12, "session"),
    ),
    (
        "a record of another session, chain made good",
        |e| {
            e.log[5] = e.other[5].clone();
            e.relink(5, None)
        },
        Broken(5, "session"),
    ),
    ("the beginning of another session", |e| e.log[0] = e.other[0].clone(), Broken(1, "link")),
    (
        "the clock moved back",
        |e| {
            e.replace(6, "\"time_us\":17", "\"time_us\":16");
            e.relink(7, None)
        },
        Broken(6, "time"),
    ),
    ("no witness", |e| e.witness = None, Lacks("witness")),
    ("an empty witness", |e| e.witness = Some(Vec::new()), Lacks("witness_entry")),
    (
        "the witness cut before the session",
        |e| e.witness.as_mut().unwrap().truncate(5),
        Lacks("witness_entry"),
    ),
    (
        "an entry removed from the witness",
        |e| {
            e.witness.as_mut().unwrap().remove(6);
        },
        Lacks("whole_witness"),
    ),
    (
        "the session removed from the witness",
        |e| {
            let witness = e.witness.as_mut().unwrap();
            witness.retain(|line| !String::from_utf8_lossy(line).contains("\"fh-1\""));
            relink(witness, 0, None, Purpose::Witness);
        },
        Lacks("whole_witness"),
    ),
    (
        "cut at a checkpoint, and what the witness saw later taken out of it",
        |e| {
            e.log.truncate(12);
            let witness = e.witness.as_mut().unwrap();
            // Of the session: open and the first checkpoint; the rest of the
            // witness is another session's, whose signatures are now stale.
            let mut own = 0;
            witness.retain(|line| {
                let is_own = String::from_utf8_lossy(line).contains("\"fh-1\"");
                own += usize::from(is_own);
                !is_own || own <= 2
            });
            relink(witness, 7, None, Purpose::Witness);
        },
        Lacks("whole_witness"),
    ),
    (
        "a witness that saw another line",
        |e| witnessed_otherwise(e, &signer()),
        Broken(11, "witness"),
    ),
    (
        "a witness entry by a fresh key",
        |e| witnessed_otherwise(e, &LocalSigner::from_seed(&[66; 32])),
        Lacks("whole_witness"),
    ),
    (
        "a byte of the witness",
        |e| {
            let w = e.witness.as_mut().unwrap();
            let end = w[6].len() - 20;
            w[6][end] ^= 1
        },
        Lacks("whole_witness"),
    ),
    ("a version that is not known", |e| e.replace(0, "\"v\":1", "\"v\":2"), Broken(0, "version")),
];

fn forge_recovery(evidence: &mut Evidence, key: &SessionKey) {
    evidence.log.truncate(34);
    let line = Line {
        seq: Some(34),
        time_us: Some(u64::MAX / 2),
        kind: Some("recovery".into()),
        session: Some("fh-1".into()),
        unknown: Some(0),
        last_signed: Some(33),
        install: Some(key.install),
        key: Some(key.public),
        cert: Some(key.cert),
        prev: Some(Bytes([0; 32])),
        ..Line::default()
    };
    let mut bytes = Vec::new();
    sign_line(Purpose::Log, line, key, &mut bytes);
    evidence.log.push(bytes);
    evidence.relink(34, Some(key));
}

/// Changes the witness's entry of line 11, signed by a key that the signer
/// certified for the session.
fn witnessed_otherwise(evidence: &mut Evidence, signer: &dyn Signer) {
    let key = SessionKey::new("fh-1", signer, &OsRandom).unwrap();
    let witness = evidence.witness.as_mut().unwrap();
    let place = witness
        .iter()
        .position(|line| {
            let text = String::from_utf8_lossy(line);
            text.contains("\"fh-1\"") && text.contains("\"at\":11,")
        })
        .unwrap();
    let mut line = Line::parse_as(&witness[place], &WITNESS_TYPES, &mut Vec::new()).unwrap();
    line.hash = Some(Bytes([7; 32]));
    let mut changed = Vec::new();
    line.write(&mut changed);
    witness[place] = changed;
    let rest = witness.split_off(place + 1);
    relink(witness, place, Some(&key), Purpose::Witness);
    witness.extend(rest);
    relink(witness, place + 1, None, Purpose::Witness);
}

fn report_of(evidence: &Evidence) -> VerifyReport {
    let mut log = join(&evidence.log);
    log.truncate(log.len() - evidence.cut);
    let witness = evidence.witness.as_ref().map(join);
    check(&log, witness.as_deref(), evidence.with_key)
}

#[test]
fn the_evidence_is_intact_before_it_is_tampered_with() {
    let report = report_of(&evidence());
    assert_eq!((report.verdict, report.lines), (Verdict::Intact, 41));
}

#[test]
fn every_tampering_is_found_and_placed() {
    let mut wrong = Vec::new();
    for (name, change, want) in CASES {
        let mut evidence = evidence();
        change(&mut evidence);
        let report = report_of(&evidence);
        let as_wanted = match (&report.verdict, want) {
            (Verdict::Broken { at, why }, Broken(n, code)) => (*at, why.code()) == (*n, *code),
            (Verdict::Unverifiable { missing }, Lacks(code)) => {
                missing.iter().any(|missing| missing.code() == *code)
            }
            _ => false,
        };
        let covers_it = matches!(report.verdict, Verdict::Broken { at, .. }
            if report.covered.iter().any(|range| range.last >= at));
        if !as_wanted || covers_it {
            wrong.push(format!("{name}: {:?}, not {want:?}", report.verdict));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn no_single_byte_can_be_changed() {
    let good = join(&evidence().log);
    let evidence = evidence();
    let witness = evidence.witness.as_ref().map(join);
    let good_log = join(&evidence.log);
    assert_eq!(good.len(), good_log.len());
    for at in (0..good_log.len()).step_by(149) {
        let mut log = good_log.clone();
        log[at] ^= 1 << (at % 7);
        let line = good_log[..at].iter().filter(|byte| **byte == b'\n').count() as u64;
        let report = check(&log, witness.as_deref(), true);
        match report.verdict {
            Verdict::Broken { at: n, .. } => assert!(n == line || n == line + 1, "byte {at}: {n}"),
            verdict => panic!("byte {at} of line {line}: {verdict:?}"),
        }
    }
}

#[test]
fn an_unsigned_tail_can_be_changed_but_is_never_covered() {
    let place = Place::new();
    let sink = place.begin("fh-1");
    for call in 1..8 {
        effect("fh-1", call).into_iter().for_each(|record| sink.record(record).unwrap());
    }
    sink.crash();
    let mut log = split(&place.bytes("fh-1"));
    let tampered = String::from_utf8(log[14].clone()).unwrap().replace("/work/", "/hide/");
    log[14] = tampered.into_bytes();
    relink(&mut log, 15, None, Purpose::Log);
    let report = check(&join(&log), Some(&place.witness_bytes()), true);
    assert_eq!(report.verdict, Verdict::Intact);
    assert!(report.covered.iter().all(|range| range.last <= 11), "{report:?}");
    assert_eq!(report.unsigned, [super::Lines { first: 12, last: 15 }]);
    // After the recovery it cannot be changed any more.
    std::fs::write(place.log("fh-1"), join(&log)).unwrap();
    drop(place.reopen("fh-1").unwrap());
    let mut log = split(&place.bytes("fh-1"));
    log[13] = String::from_utf8(log[13].clone()).unwrap().replace("/work/", "/hide/").into_bytes();
    relink(&mut log, 14, None, Purpose::Log);
    let report = check(&join(&log), Some(&place.witness_bytes()), true);
    assert!(
        matches!(report.verdict, Verdict::Broken { at: 16, why: Why::Signature }),
        "{report:?}"
    );
}

#[test]
fn a_torn_line_is_set_aside_only_by_its_own_recovery() {
    let place = Place::new();
    let sink = place.begin("fh-1");
    sink.record(record("fh-1", 1, Phase::Intent)).unwrap();
    sink.crash();
    let torn = [place.bytes("fh-1"), b"{\"seq\":2,\"time_us\"".to_vec()].concat();
    std::fs::write(place.log("fh-1"), torn).unwrap();
    drop(place.reopen("fh-1").unwrap());
    assert_eq!(place.verify("fh-1").verdict, Verdict::Intact);
    let good = split(&place.bytes("fh-1"));
    let witness = place.witness_bytes();
    let verdict = |log: &Lines| check(&join(log), Some(&witness), true).verdict;
    let mut other = good.clone();
    other[2] = b"{\"seq\":2,\"time_us'#".to_vec();
    assert_eq!(verdict(&other), Verdict::Broken { at: 2, why: Why::Torn });
    let mut gone = good.clone();
    gone.remove(2);
    assert_eq!(verdict(&gone), Verdict::Broken { at: 2, why: Why::Torn });
    let mut more = good;
    more.insert(2, b"#".to_vec());
    assert!(matches!(verdict(&more), Verdict::Broken { at: 2, .. }));
}
