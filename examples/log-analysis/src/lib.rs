//! A month of access logs that cannot be taken at their word, and the key to three questions about
//! them.
//!
//! [`Corpus::generate`] writes 30 gzipped ndjson files, one for each day of June 2026, with five
//! planted [defects](generate). Code that trusts the files answers all three questions wrongly;
//! code that checks the data answers them exactly. [`AGENT_PROGRAM`] is such code, and the binary
//! of this crate runs it inside the sandbox.
//!
//! Invariants:
//! - The bytes are a pure function of the [`Size`]: own seed, integer arithmetic only, no clock.
//! - The key comes from reading the written bytes back, not from the generator's own tallies, and
//!   lives in memory only: the directory holds the logs and nothing else.
//! - A corpus on which a [`Shortcut`] gives a true answer is an error, never a result.

#![allow(
    clippy::disallowed_methods,
    reason = "an example is an adapter: writing and reading files in the directory its caller names is its work"
)]

mod answers;
pub mod generate;

use std::io;
use std::path::{Path, PathBuf};

pub use answers::{AgentReport, AnswerKey, Question, Shortcut};

/// The agent's program, as an agent would write it: plain standard library, Python 3.11 or later.
///
/// It reads `/logs`, or the directory in `sys.argv[1]`, and ends with the line
/// `RESULT requests breach-day busiest-hour seconds`.
pub const AGENT_PROGRAM: &str = include_str!("../agent.py");

/// The latency that `/checkout` must not exceed at its 95th percentile, in milliseconds.
pub const BREACH_LIMIT_MS: u64 = 500;

/// How many requests a day has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// About 300 rows a day (±15 %): quick enough for a test.
    Small,
    /// About 10 000 rows a day (±15 %): about 310 000 lines and 51 MB before compression.
    Full,
}

impl Size {
    /// Rows of an average day.
    #[must_use]
    pub const fn rows_per_day(self) -> u64 {
        match self {
            Self::Small => 300,
            Self::Full => 10_000,
        }
    }
}

/// A written and verified corpus.
#[derive(Clone, Debug)]
pub struct Corpus {
    /// The directory that holds the 30 files and nothing else.
    pub dir: PathBuf,
    /// Lines in all files, the repeated and the truncated ones included.
    pub lines: u64,
    /// Bytes of all files before compression.
    pub raw_bytes: u64,
    /// Bytes of all files as written.
    pub gzip_bytes: u64,
    /// The true answers.
    pub key: AnswerKey,
    /// What code that overlooks a defect answers.
    pub shortcuts: Vec<Shortcut>,
}

impl Corpus {
    /// Writes the corpus into `dir`, reads it back and derives the key.
    ///
    /// `dir` is created if it does not exist. It must be empty: nothing is ever overwritten. After
    /// an error it may hold some of the files.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] and [`Error::NotEmpty`] for the directory; [`Error::Inconsistent`] if the
    /// written bytes do not have the planted defects; [`Error::NotDiscriminating`] if overlooking a
    /// defect would go unnoticed.
    pub fn generate(dir: impl AsRef<Path>, size: Size) -> Result<Self, Error> {
        let dir = dir.as_ref();
        let io_error = |source| Error::Io { path: dir.to_path_buf(), source };
        std::fs::create_dir_all(dir).map_err(io_error)?;
        if std::fs::read_dir(dir).map_err(io_error)?.next().is_some() {
            return Err(Error::NotEmpty { path: dir.to_path_buf() });
        }
        generate::write(dir, size)?;

        let reading = answers::read_back(dir)?;
        let key = reading.key()?;
        let shortcuts = reading.shortcuts()?;
        answers::require_discrimination(&key, &shortcuts)?;
        Ok(Self {
            dir: dir.to_path_buf(),
            lines: reading.lines,
            raw_bytes: reading.raw_bytes,
            gzip_bytes: reading.gzip_bytes,
            key,
            shortcuts,
        })
    }
}

/// Why there is no corpus.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file or directory could not be read or written.
    #[error("cannot read or write {}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The directory already holds something.
    #[error("{} is not empty; name a new or an empty directory", path.display())]
    NotEmpty {
        /// The directory.
        path: PathBuf,
    },
    /// The written bytes are not what the generator promises.
    #[error("the written corpus is wrong: {reason}; this is a fault of the generator")]
    Inconsistent {
        /// What was found, and where.
        reason: String,
    },
    /// Overlooking a defect gives a true answer.
    #[error(
        "code that {trap} answers {answer} to \"{question}\", which is true; change the seed or the defect"
    )]
    NotDiscriminating {
        /// The question that does not discriminate.
        question: Question,
        /// What the careless code does.
        trap: &'static str,
        /// The answer that is both the shortcut's and the key's.
        answer: u64,
    },
}

impl Error {
    /// A stable name of the kind of error.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Io { .. } => "io",
            Self::NotEmpty { .. } => "not_empty",
            Self::Inconsistent { .. } => "inconsistent",
            Self::NotDiscriminating { .. } => "not_discriminating",
        }
    }
}

#[cfg(test)]
mod tests;
