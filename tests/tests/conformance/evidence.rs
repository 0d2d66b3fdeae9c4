//! Logs for the cases about the audit, and ways to change them.

use std::fs::{File, OpenOptions};
use std::io::BufReader;
use std::path::Path;
use std::sync::Arc;

use fumehood::audit::{
    AuditRecord, AuditSink, Draw, Durability, FileSink, LocalSigner, LogHeader, LogSettings,
    Outcome, Phase, PolicyId, Signer, Target, Witness,
};
use fumehood_host_fns::{OsRandom, SystemClock};
use sha2::{Digest as _, Sha256};

/// A log with its witness, as bytes.
#[derive(Clone)]
pub struct Evidence {
    pub log: Vec<u8>,
    pub witness: Vec<u8>,
}

/// The install key of all logs here.
pub fn signer() -> LocalSigner {
    LocalSigner::from_seed(&[1; 32])
}

/// Its public half.
pub fn install() -> [u8; 32] {
    signer().public_key()
}

fn append_to(path: &Path) -> File {
    OpenOptions::new().read(true).append(true).create(true).open(path).expect("a file")
}

fn settings<'s>(directory: &Path, signer: &'s LocalSigner, every: u64) -> LogSettings<'s> {
    let witness = append_to(&directory.join("witness"));
    LogSettings {
        signer,
        witness: Some(Witness::new(witness, Arc::new(SystemClock::new()))),
        durability: Durability::Checkpoint,
        checkpoint_lines: every,
        clock: Arc::new(SystemClock::new()),
        random: &OsRandom,
    }
}

/// A log that goes to files below a directory.
pub fn begin(directory: &Path, session: &str, every: u64) -> FileSink {
    let header = LogHeader {
        session: session.to_owned(),
        tier: "wasm",
        guest: [2; 32],
        policy: [3; 32],
        program: None,
    };
    let signer = signer();
    let settings = settings(directory, &signer, every);
    FileSink::create(append_to(&directory.join(session)), &header, settings).expect("a log")
}

/// Intent and outcome of a call.
pub fn effect(session: &str, call: u64) -> [AuditRecord; 2] {
    let intent = AuditRecord {
        sequence: 0,
        call,
        parent: 0,
        session: session.into(),
        tier: "wasm",
        operation: "tool.call",
        target: Target::Tool("\u{202e}\"\\ \u{1f600}".into()),
        verdict: fumehood_policies::Verdict::Allow,
        rule: "r".into(),
        policy: Arc::new(PolicyId { generation: 1, digest: [3; 32] }),
        phase: Phase::Intent,
        draw: Draw { budget: "tool_calls_total", before: 10, after: 9 },
        bytes_in: 0,
        bytes_out: 2,
        digest: Some([5; 32]),
        preview: Some("n=1".into()),
        duration_us: None,
        irreversible: false,
    };
    let outcome = AuditRecord { phase: Phase::Outcome(Outcome::Done), ..intent.clone() };
    [intent, outcome]
}

/// Two sessions in one witness; the first was continued after a crash that
/// tore a line.
pub fn honest() -> [Evidence; 2] {
    let place = tempfile::tempdir().expect("a directory");
    let after = tempfile::tempdir().expect("a directory");
    let write = |sink: &FileSink, session: &str, calls: std::ops::Range<u64>| {
        for record in calls.flat_map(|call| effect(session, call)) {
            sink.record(record).expect("room");
        }
    };
    let other = begin(place.path(), "fh-2", 6);
    write(&other, "fh-2", 1..6);
    let crashed = begin(place.path(), "fh-1", 6);
    write(&crashed, "fh-1", 1..9);
    crashed.record(effect("fh-1", 9)[0].clone()).expect("room");
    other.close().expect("closed");
    // Nothing closes it: the files as they are now are what a crash leaves.
    for name in ["fh-1", "fh-2", "witness"] {
        std::fs::copy(place.path().join(name), after.path().join(name)).expect("copied");
    }
    std::io::Write::write_all(&mut append_to(&after.path().join("fh-1")), b"{\"seq\":2")
        .expect("torn");
    let signer = signer();
    let witness =
        Box::new(BufReader::new(File::open(after.path().join("witness")).expect("a witness")));
    let (sink, _) = FileSink::reopen(
        append_to(&after.path().join("fh-1")),
        settings(after.path(), &signer, 6),
        Some(witness),
    )
    .expect("continued");
    write(&sink, "fh-1", 20..25);
    sink.close().expect("closed");
    let [log, other, witness] = ["fh-1", "fh-2", "witness"]
        .map(|name| std::fs::read(after.path().join(name)).expect("a file"));
    [Evidence { log, witness: witness.clone() }, Evidence { log: other, witness }]
}

/// A small generator; the same seed gives the same changes.
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(sides.max(1)).expect("small")).expect("small")
    }
}

fn lines(bytes: &[u8]) -> Vec<Vec<u8>> {
    bytes.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect()
}

/// Makes numbers and chain hold again from a line on, as far as one can
/// without a key.
fn relink(lines: &mut [Vec<u8>], from: usize) {
    let mut hash = [0_u8; 32];
    for (at, line) in lines.iter_mut().enumerate() {
        let mut text = String::from_utf8_lossy(line).trim_end_matches('\n').to_owned();
        if at >= from {
            let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
            for (key, end, value) in [("\"seq\":", ',', at.to_string()), ("\"prev\":\"", '"', hex)]
            {
                if let Some(start) = text.find(key).map(|start| start + key.len())
                    && let Some(length) = text[start..].find(end)
                {
                    text.replace_range(start..start + length, &value);
                }
            }
            *line = format!("{text}\n").into_bytes();
        }
        hash = Sha256::new().chain_update(hash).chain_update(&text).finalize().into();
    }
}

/// Changes the evidence in one of many ways.
pub fn mutate(evidence: &Evidence, other: &Evidence, dice: &mut Dice) -> Evidence {
    let mut changed = evidence.clone();
    let rounds = 1 + dice.roll(2);
    for _ in 0..rounds {
        let of_witness = dice.roll(5) == 0;
        let bytes = if of_witness { &mut changed.witness } else { &mut changed.log };
        if bytes.is_empty() {
            continue;
        }
        match dice.roll(12) {
            0 | 1 => {
                let at = dice.roll(bytes.len());
                bytes[at] ^= 1 << dice.roll(8);
            }
            2 => {
                let at = dice.roll(bytes.len());
                bytes[at] = b"0123456789abcdef\"\\,:{}[] \n"[dice.roll(26)];
            }
            3 => bytes.truncate(dice.roll(bytes.len() + 1)),
            4 => {
                let at = dice.roll(bytes.len());
                let end = (at + 1 + dice.roll(40)).min(bytes.len());
                bytes.drain(at..end);
            }
            5 => {
                let at = dice.roll(bytes.len());
                let piece: Vec<u8> = (0..1 + dice.roll(6)).map(|_| dice.roll(256) as u8).collect();
                bytes.splice(at..at, piece);
            }
            which => {
                let mut all = lines(bytes);
                let at = dice.roll(all.len());
                let to = dice.roll(all.len());
                match which {
                    6 => {
                        all.remove(at);
                    }
                    7 => all.swap(at, to),
                    8 => all.insert(to, all[at].clone()),
                    9 => all.truncate(at),
                    10 => {
                        let source = if of_witness { &other.witness } else { &other.log };
                        let theirs = lines(source);
                        all.truncate(at);
                        all.extend_from_slice(&theirs[at.min(theirs.len())..]);
                    }
                    _ => {
                        let line = &mut all[at];
                        if let Some(place) = line.iter().position(u8::is_ascii_digit) {
                            line[place] = b'0' + dice.roll(10) as u8;
                        }
                    }
                }
                if dice.roll(3) == 0 {
                    relink(&mut all, at.min(to));
                }
                *bytes = all.concat();
            }
        }
    }
    changed
}
