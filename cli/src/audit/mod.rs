//! `fumehood audit`.

mod export;
#[cfg(feature = "otlp")]
mod otlp;
mod show;
pub(crate) mod time;
pub(crate) mod verdict;
mod witness;

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader, Read as _};
use std::path::{Path, PathBuf};

use fumehood::audit::{Hash, Trust, VerifyReport, verify_log};
use fumehood::records::{Home, is_session_name};

use crate::args::{Audit, LogArgs};
use crate::error::CliError;
use crate::{files, output, records};

/// Longest file with a public key.
const MAX_KEY_FILE_BYTES: usize = 4096;

/// Runs an audit command and returns the exit code.
///
/// # Errors
/// One sentence.
pub(crate) fn run(which: &Audit) -> Result<i32, CliError> {
    match which {
        Audit::Verify { log, json } => verify(&Log::of(log)?, *json),
        Audit::Show { log, tree, op, decision, since, until } => {
            let filter = show::Filter {
                op: op.clone(),
                decision: *decision,
                since_us: *since,
                until_us: *until,
            };
            show::run(&Log::of(log)?, *tree, &filter)
        }
        Audit::Export { log, format } => export::run(&Log::of(log)?, *format),
        Audit::Witness { which } => witness::run(which),
    }
}

/// A log, and what it is held against.
pub(crate) enum Log {
    /// Of a session of this home.
    Home(Box<Home>, String),
    /// Of somewhere else.
    Away { file: PathBuf, install: Option<[u8; 32]>, witness: Option<PathBuf> },
}

impl Log {
    fn of(args: &LogArgs) -> Result<Self, CliError> {
        let install = args.install_key.as_deref().map(install_key).transpose()?;
        let away = install.is_some() || args.witness.is_some();
        let home = records::home()?;
        let path = Path::new(&args.log);
        let named = args.log.to_str().filter(|name| is_session_name(name));
        let session = match (&home, named) {
            (Some(home), Some("last")) if !exists(path) => {
                Some(records::session_named(home, "last")?)
            }
            (Some(home), Some(name)) if home.info(name).is_ok() || !exists(path) => {
                Some(name.to_owned())
            }
            (Some(home), _) => session_of(home, path),
            (None, _) => None,
        };
        if let (Some(home), Some(session)) = (home, session) {
            if !away {
                return Ok(Self::Home(Box::new(home), session));
            }
            if home.log(&session).is_ok() {
                return Self::held_against(&home, &session, install, args.witness.clone());
            }
        }
        let file =
            if files::is_directory(path) { path.join("audit.jsonl") } else { path.to_owned() };
        if !exists(&file) {
            let shown = path.display();
            return Err(CliError::cannot_tell(format!(
                "`{shown}` is no session, directory of one or log; `fumehood session list` lists sessions"
            )));
        }
        Ok(Self::Away { file, install, witness: args.witness.clone() })
    }

    /// A session's log against what was given, and for the rest against what is
    /// in its home.
    fn held_against(
        home: &Home,
        session: &str,
        install: Option<[u8; 32]>,
        witness: Option<PathBuf>,
    ) -> Result<Self, CliError> {
        let file = home.path().join("sessions").join(session).join("audit.jsonl");
        let install = match install {
            Some(install) => Some(install),
            None => home.install_public()?,
        };
        let own = home.witness()?.map(|_| home.path().join("witness.jsonl"));
        Ok(Self::Away { file, install, witness: witness.or(own) })
    }

    /// Opens the log.
    fn open(&self) -> Result<Box<dyn BufRead>, CliError> {
        let file = match self {
            Self::Home(home, session) => home.log(session)?,
            Self::Away { file, .. } => open(file)?,
        };
        Ok(Box::new(BufReader::with_capacity(1 << 18, file)))
    }

    /// Checks the log.
    fn verify(&self) -> Result<VerifyReport, CliError> {
        match self {
            Self::Home(home, session) => Ok(home.verify(session)?),
            Self::Away { file, install, witness } => {
                let witness = witness.as_deref().map(open).transpose()?;
                let witness = witness.map(|file| {
                    let reader: Box<dyn BufRead> = Box::new(BufReader::new(file));
                    reader
                });
                let trust = Trust { install: *install, witness };
                verify_log(self.open()?, trust).map_err(|error| unreadable(file, &error))
            }
        }
    }
}

fn exists(path: &Path) -> bool {
    files::size(path).is_ok_and(|size| size.is_some())
}

/// The session of this home that a path leads to.
fn session_of(home: &Home, path: &Path) -> Option<String> {
    let path = files::canonical(path)?;
    let sessions = files::canonical(&home.path().join("sessions"))?;
    let below = path.strip_prefix(&sessions).ok()?.to_str()?;
    let name = below.strip_suffix("/audit.jsonl").unwrap_or(below);
    is_session_name(name).then(|| name.to_owned())
}

fn unreadable(path: &Path, error: &std::io::Error) -> CliError {
    CliError::cannot_tell(format!("`{}` cannot be read ({error}); check the path", path.display()))
}

fn open(path: &Path) -> Result<File, CliError> {
    files::open(path).map_err(|error| unreadable(path, &error))
}

/// The key that `--install-key` gives.
pub(crate) fn install_key(given: &OsStr) -> Result<[u8; 32], CliError> {
    if let Some(key) = given.to_str().and_then(|text| text.parse::<Hash>().ok()) {
        return Ok(key.0);
    }
    let mut text = String::new();
    let limit = MAX_KEY_FILE_BYTES as u64;
    open(Path::new(given))?
        .take(limit)
        .read_to_string(&mut text)
        .ok()
        .and_then(|_| text.trim().parse::<Hash>().ok())
        .map(|key| key.0)
        .ok_or_else(|| {
            CliError::usage(format!(
                "`{}` is no public key; give 64 lower-case hexadecimal digits, or a file with them such as `install.pub`",
                Path::new(given).display()
            ))
        })
}

fn verify(log: &Log, json: bool) -> Result<i32, CliError> {
    let report = log.verify()?;
    if json {
        let _ = output::print_json(&verdict::to_json(&report));
    } else {
        output::print(&format!("{}\n", verdict::sentence(&report)));
    }
    Ok(verdict::exit_code(&report))
}
