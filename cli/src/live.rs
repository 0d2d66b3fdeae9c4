//! Approvals while a program runs: a socket of the run, and those who ask it.
//!
//! What: `run --live` listens on a socket in the home of the records; `policy
//! draft | approve | reject SESSION` ask it.
//!
//! Invariant: only a process of the same user is answered, which the system
//! says and not the process; the socket lies outside every mount, and a session
//! whose code may run with this user's rights gets none. What is approved is a
//! draft by the token of what was shown, put together with the arguments and
//! the ceiling of the run. Tokens are given to whoever asks here, never to the
//! program.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fumehood::network::{Denied, DraftBook};
use fumehood::policy::{Flags, Policy, PolicyFile, Verdict};
use fumehood::records::is_session_name;
use fumehood::{AuditRecord, AuditSink, Sandbox};
use fumehood_host_fns::{AuditUnavailable, Phase};
use serde_json::{Value, json};

use crate::args::{MountArg, RunArgs};
use crate::error::CliError;
use crate::policies::PolicyText;
use crate::{drafts, files, records};

/// Most different denials that are kept for drafts.
const MAX_DENIED: usize = 1000;
/// Most bytes of their targets and rules: every draft fits an answer.
const MAX_DENIED_BYTES: usize = 2 << 20;
/// Longest question and answer, in bytes.
const MAX_QUESTION_BYTES: u64 = 64 << 10;
const MAX_ANSWER_BYTES: u64 = 16 << 20;
/// Longest that either side waits for the other.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long nobody is answered after a connection could not be taken.
const AFTER_FAILURE: Duration = Duration::from_millis(100);
/// The policy of a run without one: what its arguments name, and nothing else.
const NO_POLICY: &str = "version = 1\nflags = \"extend\"\n\n[fs]\nmemory = \"read-write\"\n";

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Requests that were denied so far.
#[derive(Debug, Default)]
pub(crate) struct DeniedSoFar(Mutex<Kept>);

/// Denied requests by target and rule.
#[derive(Debug, Default)]
struct Kept {
    /// How often, and what the record says of it.
    counts: BTreeMap<(String, String), (u64, Arc<str>)>,
    /// Bytes of the targets and rules, and of what the records say.
    bytes: usize,
    /// Denials that found no place.
    dropped: u64,
}

impl DeniedSoFar {
    fn list(&self) -> Vec<Denied> {
        let kept = lock(&self.0);
        kept.counts
            .iter()
            .filter_map(|((target, rule), (count, why))| Denied::parse(target, rule, why, *count))
            .collect()
    }
}

impl AuditSink for DeniedSoFar {
    fn record(&self, record: AuditRecord) -> Result<(), AuditUnavailable> {
        if record.operation != "fetch" || record.verdict == Verdict::Allow {
            return Ok(());
        }
        let count = match record.phase {
            Phase::Intent => 1,
            Phase::Sum { count, .. } => count,
            Phase::Outcome(_) => return Ok(()),
        };
        let mut kept = lock(&self.0);
        let key = (record.target.to_string(), record.rule.to_string());
        let why = record.preview.unwrap_or_default();
        let more = key.0.len().saturating_add(key.1.len()).saturating_add(why.len());
        let bytes = kept.bytes.saturating_add(more);
        if let Some((known, _)) = kept.counts.get_mut(&key) {
            *known = known.saturating_add(count);
        } else if kept.counts.len() < MAX_DENIED && bytes <= MAX_DENIED_BYTES {
            kept.counts.insert(key, (count, why));
            kept.bytes = bytes;
        } else {
            kept.dropped = kept.dropped.saturating_add(count);
        }
        Ok(())
    }
}

/// The socket's name for a session.
fn path_of(home: &Path, session: &str) -> PathBuf {
    home.join(format!("live-{session}.sock"))
}

/// A run that will take approvals.
pub(crate) struct Live {
    text: String,
    home: PathBuf,
    listener: UnixListener,
    socket: SocketFile,
    denied: Arc<DeniedSoFar>,
}

/// The name of a socket, which goes with it.
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = rustix::fs::unlink(&self.0);
    }
}

/// Removes sockets of runs that were killed: nobody listens on them.
fn remove_abandoned(home: &Path) {
    for name in files::names(home) {
        let is_ours = name
            .to_str()
            .is_some_and(|name| name.starts_with("live-fh-") && name.ends_with(".sock"));
        let refused = |error: std::io::Error| error.kind() == std::io::ErrorKind::ConnectionRefused;
        if is_ours && UnixStream::connect(home.join(&name)).is_err_and(refused) {
            let _ = rustix::fs::unlink(home.join(&name));
        }
    }
}

/// Refuses by name what cannot be done.
fn refused(why: &str) -> CliError {
    CliError::refused(format!("this run cannot take approvals: {why}, or run without --live"))
}

impl Live {
    /// Checks that the run may have a socket, and makes it; nobody is answered
    /// yet.
    ///
    /// # Errors
    /// A refusal that names what is in the way.
    pub(crate) fn prepare(
        args: &RunArgs,
        text: Option<PolicyText>,
        files: [Option<&PolicyFile>; 2],
        mounts: &[MountArg],
    ) -> Result<Self, CliError> {
        if !cfg!(target_os = "linux") {
            return Err(refused("this system does not say who connects; use Linux"));
        }
        if args.determinism.settings().is_some() {
            return Err(refused("its result would not be its own; leave determinism out"));
        }
        let natives = files.iter().flatten().filter_map(|file| file.native());
        if natives.flat_map(|native| &native.tiers).any(|tier| tier == "process") {
            return Err(refused(
                "its policy names the tier `process`, whose commands could approve themselves; take that tier out",
            ));
        }
        let text = text.map_or_else(|| NO_POLICY.to_owned(), |text| text.text);
        if PolicyFile::parse(&text, "policy").is_err() {
            return Err(refused(
                "its policy is not written in TOML, to which rules could be added; convert it",
            ));
        }
        let home = records::home()?.map(|home| home.path().to_owned());
        let home = home.and_then(|home| files::canonical(&home));
        let home =
            home.ok_or_else(|| refused("there is no home for records; set FUMEHOOD_HOME"))?;
        let mounted = mounts.iter().map(|mount| &mount.host);
        for named in mounted.chain(&args.reach.project.input) {
            let host = files::canonical(named).unwrap_or_else(|| named.clone());
            if home.starts_with(&host) || host.starts_with(&home) {
                return Err(refused(&format!(
                    "the socket in `{}` would be in reach of the code, which is shown `{}`; set FUMEHOOD_HOME to another directory",
                    home.display(),
                    named.display()
                )));
            }
        }
        remove_abandoned(&home);
        let socket = SocketFile(path_of(&home, &format!("new-{}", std::process::id())));
        let _ = rustix::fs::unlink(&socket.0);
        let listener = UnixListener::bind(&socket.0).map_err(|error| {
            refused(&format!(
                "no socket can be made in `{}` ({error}); set FUMEHOOD_HOME to another directory",
                home.display()
            ))
        })?;
        // The home is 0700 already.
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::chmod(&socket.0, mode).map_err(|error| {
            refused(&format!("its socket cannot be closed to others ({error})"))
        })?;
        Ok(Self { text, home, listener, socket, denied: Arc::default() })
    }

    /// Where denials have to go.
    pub(crate) fn sink(&self) -> Arc<DeniedSoFar> {
        Arc::clone(&self.denied)
    }

    /// Begins to answer.
    ///
    /// # Errors
    /// A refusal; nothing has run.
    pub(crate) fn open(self, sandbox: &Sandbox) -> Result<Open, CliError> {
        let Self { text, home, listener, mut socket, denied } = self;
        let named = path_of(&home, sandbox.session_id());
        rustix::fs::rename(&socket.0, &named)
            .map_err(|error| refused(&format!("its socket cannot be named ({error})")))?;
        socket.0 = named;
        // Its name is longer than the one that it was made with.
        std::os::unix::net::SocketAddr::from_pathname(&socket.0).map_err(|_| {
            refused(&format!(
                "the name of its socket in `{}` is too long; set FUMEHOOD_HOME to a shorter one",
                home.display()
            ))
        })?;
        let desk = Arc::new(Mutex::new(Some(Desk {
            sandbox: sandbox.clone(),
            denied,
            text,
            book: DraftBook::default(),
        })));
        let open = Open { desk: Arc::clone(&desk), _socket: socket };
        let started =
            std::thread::Builder::new().name("fumehood-live".to_owned()).spawn(move || {
                for stream in listener.incoming() {
                    match stream {
                        Ok(stream) => serve(stream, &desk),
                        // Such as no descriptor left: not again at once.
                        Err(_) => std::thread::sleep(AFTER_FAILURE),
                    }
                }
            });
        started.map_err(|error| refused(&format!("its socket got no thread ({error})")))?;
        Ok(open)
    }
}

/// The socket of a run that goes on; dropping it ends all approvals.
pub(crate) struct Open {
    desk: Arc<Mutex<Option<Desk>>>,
    _socket: SocketFile,
}

impl Drop for Open {
    fn drop(&mut self) {
        // Who is being answered is answered first.
        *lock(&self.desk) = None;
    }
}

/// What is decided on.
struct Desk {
    sandbox: Sandbox,
    denied: Arc<DeniedSoFar>,
    text: String,
    book: DraftBook,
}

/// Whether the other end is a process of this user.
#[cfg(target_os = "linux")]
fn is_own(stream: &UnixStream) -> bool {
    rustix::net::sockopt::socket_peercred(stream)
        .is_ok_and(|peer| peer.uid == rustix::process::geteuid())
}

#[cfg(not(target_os = "linux"))]
fn is_own(_: &UnixStream) -> bool {
    false
}

/// Answers one question.
fn serve(mut stream: UnixStream, desk: &Mutex<Option<Desk>>) {
    if !is_own(&stream)
        || stream.set_read_timeout(Some(PATIENCE)).is_err()
        || stream.set_write_timeout(Some(PATIENCE)).is_err()
    {
        return;
    }
    let mut line = String::new();
    let read = BufReader::new((&stream).take(MAX_QUESTION_BYTES)).read_line(&mut line);
    let question = read.ok().and_then(|_| serde_json::from_str::<Value>(&line).ok());
    let answer = match (question, lock(desk).as_mut()) {
        (Some(question), Some(desk)) => desk.answer(&question),
        (None, _) => json!({"error": "this is no question"}),
        (_, None) => json!({"error": "the session has ended; nothing was changed"}),
    };
    let _ = stream.write_all(format!("{answer}\n").as_bytes());
}

impl Desk {
    fn answer(&mut self, question: &Value) -> Value {
        let text = |key: &str| question.get(key).and_then(Value::as_str).unwrap_or_default();
        let done = match text("ask") {
            "drafts" => self.drafts(),
            "approve" => self.approve(text("id"), text("token")),
            "reject" => self
                .book
                .reject(text("id"), text("reason"))
                .map(|()| json!({"rejected": text("id")}))
                .map_err(|error| error.to_string()),
            _ => Err("this is no question".to_owned()),
        };
        done.unwrap_or_else(|error| json!({ "error": error }))
    }

    fn drafts(&mut self) -> Result<Value, String> {
        self.book.update(&self.denied.list(), &self.text).map_err(|errors| errors.to_string())?;
        let drafts: Vec<Value> = self.book.drafts().iter().map(drafts::to_json).collect();
        let notes: Vec<&str> = self.book.notes().collect();
        let not_kept = lock(&self.denied.0).dropped;
        Ok(json!({
            "drafts": drafts, "notes": notes, "policy": self.text, "not_kept": not_kept
        }))
    }

    fn approve(&mut self, id: &str, token: &str) -> Result<Value, String> {
        // On a copy: a draft that could not be applied was not approved.
        let mut book = self.book.clone();
        let next = book.approve(id, token, &self.text).map_err(|error| error.to_string())?;
        let file = PolicyFile::parse(&next, "policy").map_err(|errors| errors.to_string())?;
        let generation = self
            .sandbox
            .replace_policy(&file)
            .map_err(|error| format!("{error}; nothing was changed"))?;
        (self.book, self.text) = (book, next);
        let denied_by = self.still_denied(id);
        Ok(json!({
            "approved": id, "generation": generation, "policy": self.text, "denied_by": denied_by
        }))
    }

    /// The rule that denies a request of an approved draft all the same, such
    /// as one of the ceiling.
    fn still_denied(&self, id: &str) -> Option<String> {
        let draft = self.book.drafts().iter().find(|draft| draft.id == id)?;
        let alone = PolicyFile::parse(&format!("version = 1\n\n{}", draft.text), "draft").ok()?;
        let alone = Policy::combine(Some(&alone), &Flags::default(), None).ok()?.policy;
        let holds = self.sandbox.live_policy().current();
        let asks = self.sandbox.approvals().is_some();
        self.denied.list().into_iter().find_map(|denied| {
            let wanted = alone.decide_network(&denied.request);
            if wanted.decision.verdict != Verdict::Allow {
                return None;
            }
            let ruling = holds.decide_network(&denied.request);
            match ruling.decision.verdict {
                Verdict::Allow if ruling.obligations.public_only && denied.class.is_some() => {
                    Some(denied.rule)
                }
                Verdict::Allow => None,
                Verdict::Ask if asks => None,
                Verdict::Ask | Verdict::Deny => Some(ruling.decision.rule.to_string()),
            }
        })
    }
}

/// Asks a session that runs.
///
/// # Errors
/// One sentence: there is none of that name that takes approvals.
pub(crate) fn ask(session: &str, question: &Value) -> Result<Value, CliError> {
    let none = || {
        CliError::cannot_tell(format!(
            "no running session `{}` takes approvals; start it with `fumehood run --live`, or name a policy and a result",
            crate::terminal::escape(session)
        ))
    };
    let home = records::home()?.ok_or_else(none)?;
    let session = records::session_named(&home, session)?;
    if !is_session_name(&session) {
        return Err(none());
    }
    let mut stream = UnixStream::connect(path_of(home.path(), &session)).map_err(|_| none())?;
    if !is_own(&stream) {
        return Err(none());
    }
    let failed = |error: &dyn std::fmt::Display| {
        CliError::cannot_tell(format!(
            "the session gave no answer ({error}); look at its drafts again to see what holds"
        ))
    };
    stream.set_read_timeout(Some(PATIENCE)).map_err(|error| failed(&error))?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(|error| failed(&error))?;
    stream.write_all(format!("{question}\n").as_bytes()).map_err(|error| failed(&error))?;
    let mut line = String::new();
    BufReader::new((&stream).take(MAX_ANSWER_BYTES))
        .read_line(&mut line)
        .map_err(|error| failed(&error))?;
    serde_json::from_str(&line).map_err(|error| failed(&error))
}
