//! Attacks on the evidence: a log that was changed after the run.
//!
//! Each is a way to change the lines of an honest log or its witness; the
//! control is the same log unchanged. What is expected names the line.

use std::io::{BufRead, Cursor};
use std::sync::Arc;

use fumehood::audit::{
    AuditSink, Durability, FileSink, LocalSigner, LogHeader, LogSettings, Signer, Trust, Verdict,
    Witness, verify_log,
};
use fumehood_host_fns::{OsRandom, SystemClock};

use crate::harness::{Attack, Attempt, Expected, Observed, Setting, World, machine, run_in};

/// Lines between two signed ones.
const EVERY: u64 = 8;
/// Creates and removes files, so that there are some dozens of records.
const CODE: &str = "import os\nfor n in range(12):\n    open(f'/tmp/{n}', 'w').close()\n    os.remove(f'/tmp/{n}')";

struct Evidence {
    log: Vec<Vec<u8>>,
    witness: Vec<Vec<u8>>,
    install: [u8; 32],
}

impl Evidence {
    /// Puts `to` for the first `from` in line `number`.
    fn change(&mut self, number: usize, from: &str, to: &str) {
        if let Some(line) = self.log.get_mut(number) {
            *line = String::from_utf8_lossy(line).replacen(from, to, 1).into_bytes();
        }
    }
}

type Tampering = fn(&mut Evidence);

fn lines(bytes: &[u8]) -> Vec<Vec<u8>> {
    bytes.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect()
}

fn sink(world: &World<'_>, name: &str, header: &LogHeader, seed: u8) -> Option<FileSink> {
    let file = |name: &str| machine::append_to(&world.path(name)).ok();
    let signer = LocalSigner::from_seed(&[seed; 32]);
    let settings = LogSettings {
        signer: &signer,
        witness: Some(Witness::new(
            file(&format!("{name}-witness"))?,
            Arc::new(SystemClock::new()),
        )),
        durability: Durability::Checkpoint,
        checkpoint_lines: EVERY,
        clock: Arc::new(SystemClock::new()),
        random: &OsRandom,
    };
    FileSink::create(file(name)?, header, settings).ok()
}

/// Runs a cell whose audit goes to a file.
fn evidence(world: &World<'_>, setting: &Setting, seed: u8) -> Result<Evidence, String> {
    let name = format!("log-{seed}");
    let (engine, limits) = (world.stage().engine()?, setting.limits.clone());
    let builder = fumehood::Sandbox::builder().engine(engine).limits(limits);
    let header: Arc<std::sync::Mutex<Option<LogHeader>>> = Arc::default();
    let seen = Arc::clone(&header);
    // The records are written afterwards: the world may be gone before a sandbox is.
    let pass = Arc::new(fumehood::MemorySink::new(1000));
    let of_sandbox = Arc::clone(&pass);
    let sandbox = builder
        .audit_for(move |header| {
            *seen.lock().map_err(|_| "poisoned")? = Some(header.clone());
            Ok(Arc::clone(&of_sandbox) as Arc<dyn AuditSink>)
        })
        .build()
        .map_err(|error| error.to_string())?;
    let header = header.lock().map_err(|_| "poisoned")?.clone().ok_or("no header")?;
    let ran = run_in(&sandbox, setting.limits.wall, CODE);
    if !ran.outcome.is_success() {
        return Err(format!("the cell ended with {:?}", ran.outcome.kind));
    }
    let file = Arc::new(sink(world, &name, &header, seed).ok_or("no log")?);
    for record in pass.records() {
        file.record(record).map_err(|error| error.to_string())?;
    }
    file.close().map_err(|error| error.to_string())?;
    let read = |name: &str| machine::read_bytes(&world.path(name)).ok_or("no log");
    Ok(Evidence {
        log: lines(&read(&name)?),
        witness: lines(&read(&format!("{name}-witness"))?),
        install: LocalSigner::from_seed(&[1; 32]).public_key(),
    })
}

fn verdict(evidence: &Evidence) -> String {
    let witness: Box<dyn BufRead> = Box::new(Cursor::new(evidence.witness.concat()));
    let trust = Trust { install: Some(evidence.install), witness: Some(witness) };
    match verify_log(Cursor::new(evidence.log.concat()), trust).map(|report| report.verdict) {
        Ok(Verdict::Intact) => "intact".to_owned(),
        Ok(Verdict::Broken { at, why }) => format!("broken at {at}: {}", why.code()),
        Ok(Verdict::Unverifiable { missing }) => {
            let missing: Vec<_> = missing.iter().map(|missing| missing.code()).collect();
            format!("unverifiable: {}", missing.join(" "))
        }
        Err(error) => error.to_string(),
    }
}

fn tampered(
    id: &'static str,
    property: &'static str,
    seed: u8,
    tamper: Tampering,
    expected: &'static str,
) -> Attack {
    let look = move |world: &World<'_>, setting: &Setting, seed, tamper: Option<Tampering>| {
        match evidence(world, setting, seed) {
            Ok(mut evidence) => {
                if let Some(tamper) = tamper {
                    tamper(&mut evidence);
                }
                Observed::fact(verdict(&evidence))
            }
            Err(error) => Observed::broken(error),
        }
    };
    Attack::host(id, property, move |world, setting| look(world, setting, seed, Some(tamper)))
        .control(
            Attempt::Host(Arc::new(move |world: &World<'_>, setting: &Setting| {
                look(world, setting, 1, None)
            })),
            Expected::Harmless("intact"),
        )
        .expect(
            Expected::Harmless(expected),
            "each line carries the hash of all before it, checkpoints are signed, and a witness saw them",
        )
}

/// Puts text in place of other text in one line.
/// Every attack of this kind.
pub(super) fn all() -> Vec<Attack> {
    // Line 0 is the header, 9 and 18 are checkpoints.
    let cases: [(&str, &str, u8, Tampering, &str); 11] = [
        (
            "H-19",
            "a log that is cut at a signed checkpoint is told from a whole one",
            1,
            |e| e.log.truncate(10),
            "broken at 10: cut",
        ),
        (
            "H-19a",
            "a log that is cut in the middle is told from a whole one",
            1,
            |e| e.log.truncate(13),
            "broken at 13: cut",
        ),
        (
            "H-19b",
            "records in another order are told from those in order",
            1,
            |e| e.log.swap(3, 4),
            "broken at 3: number",
        ),
        (
            "H-19c",
            "a record that was taken out of the middle is missed",
            1,
            |e| {
                e.log.remove(4);
            },
            "broken at 4: number",
        ),
        (
            "H-19d",
            "a record that was changed is told from an honest one",
            1,
            |e| e.change(3, "\"bytes_in\":0", "\"bytes_in\":1"),
            "broken at 4: link",
        ),
        (
            "H-19e",
            "a record that is there twice is told from one",
            1,
            |e| {
                let line = e.log.get(3).cloned().unwrap_or_default();
                e.log.insert(3, line);
            },
            "broken at 4: number",
        ),
        (
            "H-19f",
            "a key that is there twice is not read in one of two ways",
            1,
            |e| e.change(3, "\"call\":", "\"call\":1,\"call\":"),
            "broken at 3: malformed",
        ),
        (
            "H-19g",
            "white space in a record is told from the record",
            1,
            |e| e.change(3, ":", ": "),
            "broken at 3: not_canonical",
        ),
        (
            "H-19h",
            "a log that somebody else wrote whole is not taken for an honest one",
            66,
            |_| {},
            "broken at 0: install_key",
        ),
        (
            "H-19i",
            "without its witness a log is not called intact",
            1,
            |e| e.witness.clear(),
            "unverifiable: witness_entry",
        ),
        (
            "H-19j",
            "a witness that was changed is not held against a log",
            1,
            |e| {
                e.witness.remove(1);
            },
            "unverifiable: whole_witness",
        ),
    ];
    cases
        .into_iter()
        .map(|(id, property, seed, tamper, expected)| {
            tampered(id, property, seed, tamper, expected)
        })
        .collect()
}
