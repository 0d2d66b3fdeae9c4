//! Checking a log.
//!
//! What: one pass over the log, and beside it over the witness, gives
//! [`Verdict::Intact`] with the covered range, [`Verdict::Broken`] with the
//! first line that does not hold, or [`Verdict::Unverifiable`] with what is
//! missing.
//!
//! Invariant: what is in no covered range is never called intact; a check that
//! could not be made is named. Memory is bounded by one line of each file,
//! [`MAX_OPEN_CALLS`] numbers and [`MAX_RECOVERIES`] ranges.

use std::collections::BTreeSet;
use std::io::{self, BufRead};

use crate::audit::chain::{Chain, Linked, Step, Torn, Why};
use crate::audit::line::{Bytes, FORMAT_VERSION, Hash, LOG_TYPES, Line};
use crate::audit::sign::{Purpose, is_certified, is_signed};
use crate::audit::witness::{BrokenWitness, Cursor, Seen};
use fumehood_policies::weaken;

/// Most calls that may be without an outcome at the same time.
pub const MAX_OPEN_CALLS: usize = 100_000;
/// Most recoveries of one log.
pub const MAX_RECOVERIES: usize = 10_000;
/// Calls without an outcome that a report names.
pub const MAX_UNKNOWN_NAMED: usize = 100;

/// Lines of a log, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lines {
    /// The first.
    pub first: u64,
    /// The last.
    pub last: u64,
}

/// What a log is held against.
pub struct Trust<'t> {
    /// The install key's public half.
    pub install: Option<[u8; 32]>,
    /// The witness.
    pub witness: Option<Box<dyn BufRead + 't>>,
}

impl std::fmt::Debug for Trust<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let install = self.install.map(Bytes);
        let witness = self.witness.is_some();
        formatter
            .debug_struct("Trust")
            .field("install", &install)
            .field("witness", &witness)
            .finish()
    }
}

/// What a check needs and did not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    /// The install key.
    #[error("the install key's public half, to know that the session's key is genuine")]
    InstallKey,
    /// The witness.
    #[error("the witness, to know that the log was not cut")]
    Witness,
    /// The session's entry in the witness.
    #[error("an entry of this session in the witness at {0}, where the log says that it is")]
    WitnessEntry(u64),
    /// A witness that holds.
    #[error("a witness that holds; its entry {} does not: {}", .0.at, .0.why)]
    WholeWitness(BrokenWitness),
    /// The log is empty.
    #[error("a log; there is no whole line in it")]
    Log,
}

impl Missing {
    /// A stable identifier.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::InstallKey => "install_key",
            Self::Witness => "witness",
            Self::WitnessEntry(_) => "witness_entry",
            Self::WholeWitness(_) => "whole_witness",
            Self::Log => "log",
        }
    }
}

/// What a check gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Every line that is there holds, and those in the covered ranges are
    /// signed.
    Intact,
    /// This line does not hold. Only what the covered ranges hold is evidence:
    /// what was changed may lie between the last signed line and this one.
    Broken {
        /// Its number.
        at: u64,
        /// What is wrong.
        why: Why,
    },
    /// Nothing contradicts the log, but not everything could be checked.
    Unverifiable {
        /// What is missing.
        missing: Vec<Missing>,
    },
}

/// What a check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifyReport {
    /// The verdict.
    pub verdict: Verdict,
    /// The session that the header names.
    pub session: Option<String>,
    /// Lines that hold.
    pub lines: u64,
    /// Bytes of the log up to the end of the last line that holds, those that
    /// were set aside included.
    pub bytes: u64,
    /// Ranges of lines that a signature covers.
    pub covered: Vec<Lines>,
    /// Ranges of lines that none does, and after a recovery none ever will.
    pub unsigned: Vec<Lines>,
    /// Bytes at the end that are no whole line.
    pub torn_bytes: u64,
    /// Whether the log was closed.
    pub closed: bool,
    /// Calls that have an intent and no outcome: what became of them is
    /// unknown.
    pub unknown: u64,
    /// The first of those calls.
    pub unknown_calls: Vec<u64>,
    /// The install key that the header names; trusted only if it is the one
    /// that was given.
    pub install: Option<Hash>,
    /// Time of the first and of the last line that holds, in microseconds
    /// since the Unix epoch.
    pub times_us: Option<(u64, u64)>,
    /// What it takes to continue the log.
    pub(crate) end: End,
}

/// Where a log can be continued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) chain: Chain,
    pub(crate) last_signed: u64,
    pub(crate) open: u64,
    pub(crate) every: u64,
    pub(crate) strict: bool,
    pub(crate) has_witness: bool,
    pub(crate) policy: Hash,
    /// What a crash tore at the end.
    pub(crate) torn: Option<Torn>,
}

struct State<'w> {
    trusted: Option<Hash>,
    witness: Option<Cursor<'w>>,
    ahead: Option<Seen>,
    /// Where the header says that its entry is.
    entry: Option<u64>,
    /// The witness has an entry of this session.
    witnessed: bool,
    missing: Vec<Missing>,
    session: Option<String>,
    install: Hash,
    key: Hash,
    end: End,
    since_signed: u64,
    open: BTreeSet<u64>,
    lost: BTreeSet<u64>,
    unknown: u64,
    covered: Vec<Lines>,
    unsigned: Vec<Lines>,
    recoveries: usize,
    closed: bool,
    first_us: u64,
}

/// Checks a log.
///
/// # Errors
/// Those of the readers.
pub fn verify_log(log: impl BufRead, trust: Trust<'_>) -> io::Result<VerifyReport> {
    let none = Bytes([0; 32]);
    let mut state = State {
        trusted: trust.install.map(Bytes),
        witness: trust.witness.map(Cursor::new),
        ahead: None,
        entry: None,
        witnessed: false,
        missing: Vec::new(),
        session: None,
        install: none,
        key: none,
        end: End {
            chain: Chain::START,
            last_signed: 0,
            open: 0,
            every: 0,
            strict: false,
            has_witness: false,
            policy: none,
            torn: None,
        },
        since_signed: 0,
        open: BTreeSet::new(),
        lost: BTreeSet::new(),
        unknown: 0,
        covered: Vec::new(),
        unsigned: Vec::new(),
        recoveries: 0,
        closed: false,
        first_us: 0,
    };
    let mut lines = Linked::new(log, &LOG_TYPES, Chain::START);
    let mut failed = None;
    let broken = loop {
        let step = lines.step(&mut |line, bytes, hash| match state.line(line, bytes, hash) {
            Ok(done) => done,
            Err(error) => {
                failed = Some(error);
                Ok(())
            }
        })?;
        if let Some(error) = failed {
            return Err(error);
        }
        match step {
            Step::Line(()) => {}
            Step::End { torn } => {
                state.end.torn = torn;
                break (torn.is_some() && state.closed).then_some(Why::AfterClose);
            }
            Step::Broken(why) => break Some(why),
        }
    };
    state.end.chain = lines.chain;
    state.report(broken, lines.held_bytes)
}

impl State<'_> {
    fn line(&mut self, line: &Line<'_>, bytes: &[u8], hash: Hash) -> io::Result<Result<(), Why>> {
        let seq = line.seq.unwrap_or_default();
        if let Err(why) = self.holds(line, bytes, seq) {
            return Ok(Err(why));
        }
        if seq == 0 {
            self.entry = line.witness;
            self.look_ahead()?;
            if let (Some(expected), Some(seen)) = (self.entry, self.ahead)
                && seen.at == 0
                && seen.entry != expected
            {
                self.missing.push(Missing::WitnessEntry(expected));
            }
        }
        while let Some(seen) = self.ahead.filter(|seen| seen.at <= seq) {
            let off = weaken::off(weaken::Defence::Witness);
            if !off && (seen.at < seq || seen.hash != hash) {
                return Ok(Err(Why::Witness(seen.entry)));
            }
            self.look_ahead()?;
        }
        Ok(Ok(()))
    }

    /// The witness's next entry of this session.
    fn look_ahead(&mut self) -> io::Result<()> {
        self.ahead = match (&mut self.witness, &self.session) {
            (Some(witness), Some(session)) => witness.next_of(session, &self.install)?,
            _ => None,
        };
        self.witnessed |= self.ahead.is_some();
        Ok(())
    }

    fn holds(&mut self, line: &Line<'_>, bytes: &[u8], seq: u64) -> Result<(), Why> {
        if (seq == 0) != (line.name() == "header") {
            return Err(Why::Header);
        }
        if seq == 0 {
            self.header(line)?;
        }
        if line.session.as_deref() != self.session.as_deref() {
            return Err(Why::Session);
        }
        if self.closed && line.name() != "recovery" {
            return Err(Why::AfterClose);
        }
        match line.name() {
            "intent" => self.intent(line)?,
            "outcome" => self.outcome(line)?,
            "sum" => decision(line).map(drop)?,
            kind => {
                if kind == "recovery" {
                    self.recovery(line, seq)?;
                }
                let signature = line.sig.as_ref().ok_or(Why::Signature)?;
                if !is_signed(Purpose::Log, &self.key, bytes, signature) {
                    return Err(Why::Signature);
                }
                self.signed(seq);
                self.closed = kind == "close";
                return Ok(());
            }
        }
        self.since_signed = self.since_signed.saturating_add(1);
        if self.since_signed > self.end.every { Err(Why::NoCheckpoint) } else { Ok(()) }
    }

    /// Takes over a certified key.
    fn certified(&mut self, line: &Line<'_>) -> Result<(), Why> {
        let (Some(install), Some(key), Some(cert)) = (line.install, line.key, line.cert) else {
            return Err(Why::Certificate);
        };
        if self.trusted.is_some_and(|trusted| trusted != install) {
            return Err(Why::Install);
        }
        let session = line.session.as_deref().unwrap_or_default();
        if !is_certified(&install, session, &key, &cert) {
            return Err(Why::Certificate);
        }
        self.install = install;
        self.key = key;
        Ok(())
    }

    fn header(&mut self, line: &Line<'_>) -> Result<(), Why> {
        let version = line.version.unwrap_or_default();
        if version != FORMAT_VERSION {
            return Err(Why::Version(version));
        }
        self.certified(line)?;
        self.session = line.session.as_deref().map(str::to_owned);
        self.first_us = line.time_us.unwrap_or_default();
        self.end.every = line.every.unwrap_or_default();
        self.end.strict = line.durability.as_deref() == Some("strict");
        self.end.has_witness = line.witness.is_some();
        self.end.policy = line.policy.unwrap_or(self.end.policy);
        if self.trusted.is_none() {
            self.missing.push(Missing::InstallKey);
        }
        if line.witness.is_some() && self.witness.is_none() {
            self.missing.push(Missing::Witness);
        }
        Ok(())
    }

    fn recovery(&mut self, line: &Line<'_>, seq: u64) -> Result<(), Why> {
        let last = line.last_signed.unwrap_or_default();
        if last != self.end.last_signed {
            return Err(Why::LastSigned(last));
        }
        self.recoveries = self.recoveries.saturating_add(1);
        if self.recoveries > MAX_RECOVERIES {
            return Err(Why::TooManyRecoveries);
        }
        let installed = self.install;
        self.certified(line)?;
        if self.install != installed {
            return Err(Why::Install);
        }
        if let (first, Some(before)) = (last.saturating_add(1), seq.checked_sub(1))
            && first <= before
        {
            self.unsigned.push(Lines { first, last: before });
            self.covered.push(Lines { first: seq, last: seq });
        }
        let open = std::mem::take(&mut self.open);
        self.lose(open);
        Ok(())
    }

    fn lose(&mut self, open: BTreeSet<u64>) {
        self.unknown = self.unknown.saturating_add(open.len() as u64);
        for call in open {
            if self.lost.len() < MAX_UNKNOWN_NAMED {
                self.lost.insert(call);
            }
        }
    }

    fn signed(&mut self, seq: u64) {
        match self.covered.last_mut() {
            Some(range) => range.last = seq,
            None => self.covered.push(Lines { first: 0, last: seq }),
        }
        self.end.last_signed = seq;
        self.since_signed = 0;
    }

    fn intent(&mut self, line: &Line<'_>) -> Result<(), Why> {
        let call = line.call.unwrap_or_default();
        if decision(line)? != "allow" {
            return Ok(());
        }
        if self.open.len() >= MAX_OPEN_CALLS {
            return Err(Why::TooManyOpen);
        }
        if self.open.insert(call) { Ok(()) } else { Err(Why::Unpaired(call)) }
    }

    fn outcome(&mut self, line: &Line<'_>) -> Result<(), Why> {
        let call = line.call.unwrap_or_default();
        if decision(line)? != "allow" {
            return Err(Why::Decision);
        }
        if self.open.remove(&call) { Ok(()) } else { Err(Why::Unpaired(call)) }
    }

    fn report(mut self, broken: Option<Why>, bytes: u64) -> io::Result<VerifyReport> {
        let lines = self.end.chain.next;
        let mut broken = broken.map(|why| (lines, why));
        if broken.is_none() && lines > 0 {
            if let Some(seen) = self.ahead.filter(|_| !weaken::off(weaken::Defence::Witness)) {
                broken = Some((lines, Why::Cut(seen.at)));
            }
            // The rest of the witness has to hold as well.
            while self.ahead.is_some() {
                self.look_ahead()?;
            }
            let given = self.witness.is_some();
            if let Some(broken) = self.witness.take().and_then(|witness| witness.broken) {
                self.missing.push(Missing::WholeWitness(broken));
            } else if let Some(expected) = self.entry
                && given
                && !self.witnessed
                && lines > 1
            {
                // A crash can only leave a header without its entry.
                self.missing.push(Missing::WitnessEntry(expected));
            }
        }
        if lines == 0 && broken.is_none() {
            self.missing.push(Missing::Log);
        }
        if let Some((at, _)) = &broken {
            self.covered.retain(|range| range.first < *at);
            self.unsigned.retain(|range| range.last < *at);
            if let Some(range) = self.covered.last_mut() {
                range.last = range.last.min(at.saturating_sub(1));
            }
        }
        let first = self.covered.last().map_or(0, |range| range.last.saturating_add(1));
        if let Some(last) = lines.checked_sub(1)
            && first <= last
            && broken.is_none()
        {
            self.unsigned.push(Lines { first, last });
        }
        self.end.open = self.open.len() as u64;
        let open = std::mem::take(&mut self.open);
        self.unknown = self.unknown.saturating_add(open.len() as u64);
        let named = self.lost.into_iter().chain(open).take(MAX_UNKNOWN_NAMED).collect();
        let verdict = match broken {
            Some((at, why)) => Verdict::Broken { at, why },
            None if self.missing.is_empty() => Verdict::Intact,
            None => Verdict::Unverifiable { missing: self.missing },
        };
        Ok(VerifyReport {
            verdict,
            install: self.session.is_some().then_some(self.install),
            times_us: (lines > 0).then_some((self.first_us, self.end.chain.time_us)),
            session: self.session,
            lines,
            bytes,
            covered: self.covered,
            unsigned: self.unsigned,
            torn_bytes: self.end.torn.map_or(0, |torn| torn.bytes),
            closed: self.closed,
            unknown: self.unknown,
            unknown_calls: named,
            end: self.end,
        })
    }
}

fn decision<'l>(line: &'l Line<'_>) -> Result<&'l str, Why> {
    match line.decision.as_deref() {
        Some(decision @ ("allow" | "deny" | "ask")) => Ok(decision),
        _ => Err(Why::Decision),
    }
}
