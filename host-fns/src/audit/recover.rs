//! Continuing a log: after a crash, and after a close.
//!
//! Invariant: nothing is appended to a log that does not verify, in whole or
//! against the witness. A fresh certified key signs the recovery; what was not
//! signed before stays unsigned, and a torn end is set aside by its digest. If
//! this write is torn as well, the next recovery sets both aside.

use std::fs::File;
use std::io::{BufRead, BufReader};

use crate::audit::chain::TORN_MARK;
use crate::audit::file::{Continued, Durability, FileSink, LogSettings, OpenLogError, lock_log};
use crate::audit::line::Line;
use crate::audit::sign::SessionKey;
use crate::audit::verify::{Lines, Trust, Verdict, VerifyReport, verify_log};
use crate::audit::witness::Event;

/// What a recovery found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovery {
    /// The last line that was signed before.
    pub last_signed: u64,
    /// The lines after it, which stay unsigned.
    pub unsigned: Option<Lines>,
    /// Bytes of a torn line that was set aside.
    pub torn_bytes: u64,
    /// Calls whose outcome is unknown.
    pub unknown: u64,
    /// The number of the recovery record.
    pub at: u64,
}

impl FileSink {
    /// Continues a log in a file that was opened to read and to append.
    /// Durability and checkpoints are those of its header. `witness` is read
    /// from its beginning.
    ///
    /// # Errors
    /// [`OpenLogError::Unverified`] if the log does not verify; nothing was
    /// written then.
    pub fn reopen(
        file: File,
        settings: LogSettings<'_>,
        witness: Option<Box<dyn BufRead + '_>>,
    ) -> Result<(Self, Recovery), OpenLogError> {
        lock_log(&file)?;
        let LogSettings { signer, witness: appends, clock, random, .. } = settings;
        let trust = Trust { install: Some(signer.public_key()), witness };
        let report = verify_log(BufReader::new(&file), trust)?;
        let VerifyReport { verdict: Verdict::Intact, session: Some(session), end, .. } = &report
        else {
            return Err(OpenLogError::Unverified(Box::new(report.verdict)));
        };
        let key = SessionKey::new(session, signer, random)?;
        let mut length = file.metadata()?.len();
        let torn = end.torn.map(|torn| torn.set_aside);
        let before: &[u8] = if torn.is_some() { TORN_MARK } else { b"" };
        // What an earlier writer had reserved.
        rustix::fs::ftruncate(&file, length).map_err(std::io::Error::from)?;
        length = file.metadata()?.len();
        let at = end.chain.next;
        let line = Line {
            seq: Some(at),
            time_us: Some((clock.wall_ns() / 1000).max(end.chain.time_us)),
            kind: Some("recovery".into()),
            session: Some(session.as_str().into()),
            unknown: Some(end.open),
            last_signed: Some(end.last_signed),
            torn_bytes: torn.map(|(bytes, _)| bytes),
            torn_sha256: torn.map(|(_, hash)| hash),
            install: Some(key.install),
            key: Some(key.public),
            cert: Some(key.cert),
            prev: Some(end.chain.hash),
            ..Line::default()
        };
        let witness = appends.filter(|_| end.has_witness);
        let mut continued = Continued::new(file, end.chain, length, end.policy);
        continued.make_room()?;
        {
            let mut locked =
                witness.as_ref().map(|witness| witness.lock(&key.install)).transpose()?;
            continued.sign(before, line, key)?;
            // The witness must not have seen more than the disk has.
            continued.make_durable()?;
            if let (Some(locked), Some(key)) = (&mut locked, continued.key()) {
                let event = Event::Signed { kind: "recovery", at, hash: &continued.chain().hash };
                locked.append(session, key, event)?;
            }
        }
        let recovery = Recovery {
            last_signed: end.last_signed,
            unsigned: report.unsigned.last().copied().filter(|lines| lines.first > end.last_signed),
            torn_bytes: end.torn.map_or(0, |torn| torn.bytes),
            unknown: end.open,
            at,
        };
        let durability = if end.strict { Durability::Strict } else { Durability::Checkpoint };
        let sink = Self::of_parts(session, durability, end.every, clock, witness, continued);
        Ok((sink, recovery))
    }
}
