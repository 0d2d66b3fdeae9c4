//! The records of a run, and the home they are kept in.
//!
//! Invariant: a run is recorded unless the user said otherwise; where nothing
//! can be written nothing runs.

use std::sync::{Arc, Mutex, PoisonError};

use fumehood::audit::{AuditSink, Durability, FanOut, Payload};
use fumehood::records::{Home, RecordsError, Retention, SessionEnd, SessionRecord, SessionStart};
use fumehood::{Outcome, SandboxBuilder};

use crate::args::{DurabilityArg, RecordArgs};
use crate::error::CliError;
use crate::output;

/// The records of one run.
pub(crate) struct Recording {
    home: Option<Arc<Home>>,
    durability: Durability,
    name: String,
    program: Option<[u8; 32]>,
    begun: Arc<Mutex<Option<SessionRecord>>>,
}

/// Refuses to run what cannot be recorded.
pub(crate) fn refused(what: &str) -> CliError {
    CliError::refused(format!(
        "{what}, and a run leaves a record; set FUMEHOOD_HOME to a directory that can be written, \
         or run with --no-record"
    ))
}

impl From<RecordsError> for CliError {
    fn from(error: RecordsError) -> Self {
        let advice = match &error {
            RecordsError::NoSession(_) => "`fumehood session list` lists them",
            RecordsError::Running(_) => "wait for it to end",
            _ => "check the directory, or name another with FUMEHOOD_HOME",
        };
        Self::cannot_tell(format!("{}; {advice}", error.detail()))
    }
}

/// The home of this user's records; `None` where there is none yet.
///
/// # Errors
/// One sentence.
pub(crate) fn home() -> Result<Option<Home>, CliError> {
    let Some(path) = fumehood::records_location() else { return Ok(None) };
    if !crate::files::is_directory(&path) {
        return Ok(None);
    }
    Ok(Some(Home::open(&path, false)?))
}

/// The session that a user means: `last` is the one that was started last.
///
/// # Errors
/// One sentence.
pub(crate) fn session_named(home: &Home, name: &str) -> Result<String, CliError> {
    if name != "last" {
        return Ok(name.to_owned());
    }
    let infos = home.session_names()?.into_iter().filter_map(|name| home.info(&name).ok());
    let last = infos.max_by_key(|(info, _)| info.started_us);
    last.map(|(info, _)| info.session)
        .ok_or_else(|| CliError::cannot_tell("there is no last session; run something first"))
}

impl Recording {
    /// Opens the home, unless the run is not recorded. `program` is the source,
    /// where it is known before anything runs.
    ///
    /// # Errors
    /// A refusal.
    pub(crate) fn of(
        args: RecordArgs,
        name: &str,
        program: Option<&[u8]>,
    ) -> Result<Self, CliError> {
        let home = if args.no_record {
            None
        } else {
            let path = fumehood::records_location().ok_or_else(|| {
                refused("there is no place for records because FUMEHOOD_HOME and HOME are not set")
            })?;
            Some(Arc::new(Home::open(&path, true).map_err(|error| refused(&error.detail()))?))
        };
        let durability = match args.audit_durability {
            DurabilityArg::Checkpoint => Durability::Checkpoint,
            DurabilityArg::Strict => Durability::Strict,
        };
        let program = program.and_then(|source| Payload::of(source).digest);
        let name = name.to_owned();
        Ok(Self { home, durability, name, program, begun: Arc::default() })
    }

    /// Records into the home, and into other sinks.
    pub(crate) fn attach(
        &self,
        sandbox: SandboxBuilder,
        also: Vec<Arc<dyn AuditSink>>,
    ) -> SandboxBuilder {
        let Some(home) = self.home.clone() else {
            return match also.len() {
                0 => sandbox,
                _ => sandbox.audit(Arc::new(FanOut::new(also))),
            };
        };
        let (name, program, durability) = (self.name.clone(), self.program, self.durability);
        let begun = Arc::clone(&self.begun);
        sandbox.audit_for(move |header| {
            let mut header = header.clone();
            header.program = program;
            let start = SessionStart { header, name: name.clone(), durability };
            let record = home.begin(&start).map_err(|error| error.detail())?;
            let file: Arc<dyn AuditSink> = record.sink();
            // The first is the sandbox's own, which is what a command runs.
            begun.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(record);
            Ok(if also.is_empty() {
                file
            } else {
                Arc::new(FanOut::new(std::iter::once(file).chain(also.iter().cloned()).collect()))
            })
        })
    }

    /// Closes the log of a run.
    pub(crate) fn finish(&self, outcome: &Outcome) {
        let end = SessionEnd {
            outcome: outcome.kind.as_str().to_owned(),
            exit_code: outcome.exit_code,
            denials: outcome.denials.len() as u64,
        };
        self.finish_session(&outcome.session, end);
    }

    /// Closes the log of a session.
    pub(crate) fn finish_session(&self, session: &str, end: SessionEnd) {
        let record = self.begun.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(record) = record else { return };
        if let Err(error) = record.finish(end) {
            output::note(&format!(
                "the record of this run may not be whole ({error}); `fumehood audit verify {session}` \
                 says what it is worth"
            ));
        }
    }

    /// Removes old records now and then.
    pub(crate) fn tidy(&self) {
        let Some(home) = &self.home else { return };
        if let Err(error) = home.tidy_sometimes(Retention::default()) {
            output::note(&format!(
                "old session records could not be removed ({}); remove them with `fumehood session rm`",
                error.detail()
            ));
        }
    }
}
