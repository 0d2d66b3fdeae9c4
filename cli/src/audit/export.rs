//! `fumehood audit export`.

use std::io::{ErrorKind, IsTerminal as _, Read};

use fumehood::Stream;
use fumehood::audit::Verdict;

use crate::args::ExportFormat;
use crate::audit::{Log, verdict};
use crate::error::CliError;
use crate::output;

/// Bytes that are read at once.
const CHUNK_BYTES: usize = 64 << 10;

/// Prints the lines that hold, as they are or as spans, and returns the exit
/// code of a check.
///
/// # Errors
/// One sentence.
pub(crate) fn run(log: &Log, format: ExportFormat) -> Result<i32, CliError> {
    let report = log.verify()?;
    match format {
        ExportFormat::Jsonl => {
            let nothing = matches!(report.verdict, Verdict::Broken { at: 0, .. });
            let bytes = if nothing { 0 } else { report.bytes };
            verbatim(log.open()?, bytes, "the log")?;
        }
        #[cfg(feature = "otlp")]
        ExportFormat::Otlp => {
            let end = match &report.verdict {
                Verdict::Broken { at, .. } => *at,
                _ => report.lines,
            };
            crate::audit::otlp::spans(log, end)?;
        }
    }
    output::note(&format!("the log is {}", verdict::sentence(&report)));
    Ok(verdict::exit_code(&report))
}

/// Prints the first `bytes` of a file, those of torn lines included: what is
/// printed has to verify. On a terminal, what is not printable is a `?`.
///
/// # Errors
/// One sentence.
pub(super) fn verbatim(reader: impl Read, bytes: u64, what: &str) -> Result<(), CliError> {
    let is_terminal = std::io::stdout().is_terminal();
    let mut reader = reader.take(bytes);
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let read = match reader.read(&mut chunk) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            read => read.map_err(|error| {
                CliError::cannot_tell(format!("{what} cannot be read ({error}); try again"))
            })?,
        };
        let part = chunk.get_mut(..read).unwrap_or_default();
        if is_terminal {
            for byte in part.iter_mut().filter(|byte| !matches!(**byte, b' '..=b'~' | b'\n')) {
                *byte = b'?';
            }
        }
        if part.is_empty() || output::write_all(Stream::Stdout, part).is_err() {
            return Ok(());
        }
    }
}
