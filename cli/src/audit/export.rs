//! `fumehood audit export`.

use std::io::BufRead;

use fumehood::Stream;
use fumehood::audit::Verdict;

use crate::args::ExportFormat;
use crate::audit::{Log, verdict};
use crate::error::CliError;
use crate::output;

/// Prints the lines that hold, as they are or as spans, and returns the exit
/// code of a check.
///
/// # Errors
/// One sentence.
pub(crate) fn run(log: &Log, format: ExportFormat) -> Result<i32, CliError> {
    let report = log.verify()?;
    let end = match &report.verdict {
        Verdict::Broken { at, .. } => *at,
        _ => report.lines,
    };
    match format {
        ExportFormat::Jsonl => lines(log, end)?,
        #[cfg(feature = "otlp")]
        ExportFormat::Otlp => crate::audit::otlp::spans(log, end)?,
    }
    output::note(&format!("the log is {}", verdict::sentence(&report)));
    Ok(verdict::exit_code(&report))
}

fn lines(log: &Log, end: u64) -> Result<(), CliError> {
    let mut reader = log.open()?;
    let mut bytes = Vec::new();
    for _ in 0..end {
        bytes.clear();
        let read = reader.read_until(b'\n', &mut bytes);
        let read = read.map_err(|error| {
            CliError::cannot_tell(format!("the log cannot be read ({error}); try again"))
        })?;
        // Lines that hold are printable ASCII; one that was set aside may not be.
        let whole = bytes.iter().all(|byte| matches!(byte, b' '..=b'~' | b'\n'));
        if read == 0 || (whole && output::write_all(Stream::Stdout, &bytes).is_err()) {
            break;
        }
    }
    Ok(())
}
