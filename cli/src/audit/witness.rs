//! `fumehood audit witness`.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use fumehood::audit::{Line, WitnessReport, verify_witness};
use serde_json::json;

use crate::args::WitnessCommand;
use crate::audit::export::verbatim;
use crate::audit::{install_key, open, time};
use crate::error::{BAD_FINDING, CANNOT_TELL, CliError};
use crate::terminal::escape_line;
use crate::{output, records};

/// Runs a witness command and returns the exit code.
///
/// # Errors
/// One sentence.
pub(crate) fn run(which: &WitnessCommand) -> Result<i32, CliError> {
    match which {
        WitnessCommand::Show => show(),
        WitnessCommand::Verify { witness, install_key: given, json } => {
            let install = match given {
                Some(given) => Some(install_key(given)?),
                None if witness.is_some() => None,
                None => records::home()?.map(|home| home.install_public()).transpose()?.flatten(),
            };
            verify(witness.as_deref(), install, *json)
        }
        WitnessCommand::Export => export(),
    }
}

fn own() -> Result<File, CliError> {
    let witness = records::home()?.map(|home| home.witness()).transpose()?.flatten();
    witness.ok_or_else(|| {
        CliError::cannot_tell(
            "there is no witness yet; it begins with the first recorded run under FUMEHOOD_HOME",
        )
    })
}

fn read_line(reader: &mut impl BufRead, into: &mut Vec<u8>) -> Result<bool, CliError> {
    into.clear();
    reader.read_until(b'\n', into).map(|read| read > 0).map_err(|error| {
        CliError::cannot_tell(format!("the witness cannot be read ({error}); try again"))
    })
}

fn show() -> Result<i32, CliError> {
    let mut reader = BufReader::new(own()?);
    let mut bytes = Vec::new();
    while read_line(&mut reader, &mut bytes)? {
        let line = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
        let text = match Line::parse_entry(line) {
            Ok(line) => {
                let at = line.at.map_or_else(String::new, |at| at.to_string());
                let hash = line.hash.map_or_else(String::new, |hash| hash.to_string());
                format!(
                    "{:>6}  {}  {:<10}  {}  {at:>8}  {hash}",
                    line.seq.unwrap_or_default(),
                    time::shown(line.time_us.unwrap_or_default()),
                    line.name(),
                    line.session.as_deref().unwrap_or_default(),
                )
            }
            Err(error) => format!("     ?  {error}"),
        };
        output::print(&format!("{}\n", escape_line(&text)));
    }
    Ok(0)
}

fn verify(file: Option<&Path>, install: Option<[u8; 32]>, as_json: bool) -> Result<i32, CliError> {
    let file = match file {
        Some(path) => open(path)?,
        None => own()?,
    };
    let Some(install) = install else {
        if as_json {
            let missing = json!({ "verdict": "unverifiable", "missing": ["install_key"] });
            let _ = output::print_json(&missing);
        } else {
            output::print(
                "unverifiable without the install key's public half; give --install-key\n",
            );
        }
        return Ok(CANNOT_TELL);
    };
    let report = check(file, &install)?;
    let head = report.head.to_string();
    if as_json {
        let _ = output::print_json(&json!({
            "verdict": if report.broken.is_some() { "broken" } else { "intact" },
            "entries": report.entries,
            "head": head,
            "torn_bytes": report.torn_bytes,
            "at": report.broken.as_ref().map(|broken| broken.at),
            "why": report.broken.as_ref().map(|broken| broken.why.code()),
        }));
    } else {
        output::print(&match &report.broken {
            Some(broken) => format!("broken at {}: {}\n", broken.at, broken.why),
            None => format!("intact, {} entries, head {head}\n", report.entries),
        });
    }
    Ok(if report.broken.is_some() { BAD_FINDING } else { 0 })
}

fn check(file: File, install: &[u8; 32]) -> Result<WitnessReport, CliError> {
    verify_witness(BufReader::new(file), install).map_err(|error| {
        CliError::cannot_tell(format!("the witness cannot be read ({error}); try again"))
    })
}

/// Prints the entries that hold.
fn export() -> Result<i32, CliError> {
    let install = records::home()?.map(|home| home.install_public()).transpose()?.flatten();
    let install = install.ok_or_else(|| {
        CliError::cannot_tell(
            "there is no `install.pub` to check the witness with; restore it under FUMEHOOD_HOME",
        )
    })?;
    let report = check(own()?, &install)?;
    verbatim(own()?, report.bytes, "the witness")?;
    Ok(match report.broken {
        Some(broken) => {
            output::note(&format!(
                "the witness is broken at {}: {}; what holds before it was printed",
                broken.at, broken.why
            ));
            BAD_FINDING
        }
        None => 0,
    })
}
