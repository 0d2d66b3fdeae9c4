//! `fumehood eval attacks`: the attack suite, tier by tier.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use fumehood_native_tiers::Helper;
use fumehood_tests::board::{self, Board, States};
use fumehood_tests::evaluate::{Selection, evaluate};
use fumehood_tests::harness::{Finding, Stage, Summary, Tier, Verdict, machine, start_again};
use serde_json::json;

use crate::error::{BAD_FINDING, CliError};
use crate::output;

/// `fumehood eval attacks`.
#[derive(Debug, Args)]
pub(crate) struct AttacksArgs {
    /// One tier: `wasm`, `landlock`, `process`, `docker`, `seatbelt`; or `all`
    #[arg(long, value_name = "NAME", default_value = "all", value_parser = parse_tiers)]
    tier: Tiers,
    /// Only attacks whose id or property contains this
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    filter: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Write what was seen into the board and the README of the source tree; what failed is left as it was
    #[arg(long)]
    write: bool,
    /// The file fumehood-helper [default: beside this program]
    #[arg(long, value_name = "FILE")]
    helper: Option<PathBuf>,
}

#[derive(Clone, Debug)]
struct Tiers(Vec<Tier>);

fn parse_tiers(text: &str) -> Result<Tiers, String> {
    if text == "all" {
        return Ok(Tiers(Tier::ALL.to_vec()));
    }
    let tier = Tier::ALL.into_iter().find(|tier| tier.name() == text);
    tier.map(|tier| Tiers(vec![tier])).ok_or_else(|| {
        format!("`{text}` is no tier; name wasm, landlock, process, docker, seatbelt or all")
    })
}

/// Runs the attacks; 1 if one got through, broke, or is not as committed.
///
/// # Errors
/// One sentence.
pub(crate) fn run(args: &AttacksArgs) -> Result<i32, CliError> {
    // With names in the environment that occur nowhere else.
    let again = start_again().map_err(|error| {
        CliError::cannot_tell(format!("the attacks could not be started ({error}); try again"))
    })?;
    if let Some(status) = again {
        return Ok(status.code().unwrap_or(BAD_FINDING));
    }
    let mut stage = Stage::new();
    if let Some(path) = &args.helper {
        let helper = Helper::open(path).map_err(|missing| {
            CliError::refused(format!("{}; {}", missing.reason, missing.remedy))
        })?;
        stage = stage.helper(Some(Arc::new(helper)));
    }
    let (tiers, filter) = (args.tier.0.clone(), args.filter.clone());
    let selection = Selection { tiers, filter, ..Selection::default() };
    let start = machine::now();
    let summary = evaluate(&stage, &selection, &tell);
    if summary.findings.is_empty() {
        return Err(CliError::usage("no attack is selected; leave --filter out to see them all"));
    }
    let took = start.elapsed();
    let [page, readme] = board::committed().map_err(CliError::cannot_tell)?;
    let committed = board::parse(&page.1);
    let board = Board::new(&summary, &committed);
    let differences = differences(&board, &committed, &summary);
    if args.json {
        let mut value = summary.to_json();
        if let Some(object) = value.as_object_mut() {
            object.insert("wall_ms".to_owned(), json!(u64::try_from(took.as_millis()).ok()));
            object.insert("differences".to_owned(), json!(differences));
        }
        let _ = output::print_json(&value);
    } else {
        output::print(&text(&board, &summary, &differences, args.write));
    }
    if args.write {
        let passing = |finding: &&Finding| finding.verdict.passes();
        let findings = summary.findings.iter().filter(passing).cloned().collect();
        write(&Board::new(&Summary { findings }, &committed), &page.0, &readme)?;
    }
    let fails = summary.findings.iter().any(|finding| !finding.verdict.passes());
    let differs = !args.write && !differences.is_empty();
    Ok(if fails || differs { BAD_FINDING } else { 0 })
}

/// Writes the board and the README.
fn write(board: &Board, page: &Path, readme: &(PathBuf, String)) -> Result<(), CliError> {
    let changed = board.in_readme(&readme.1).map_err(CliError::usage)?;
    for (path, text) in [(page, board.page()), (&readme.0, changed)] {
        machine::write(path, text).map_err(|error| {
            CliError::usage(format!("{} cannot be written ({error})", path.display()))
        })?;
    }
    Ok(())
}

/// Says on standard error what went wrong, as soon as it does.
fn tell(finding: &Finding) {
    if let Verdict::Unexpected(why) | Verdict::Error(why) = &finding.verdict {
        let (id, tier, verdict) = (finding.id, finding.tier.name(), finding.verdict.name());
        output::note(&format!("{id} in {tier}: {verdict}: {why}"));
    }
}

/// Rows that were tried and are not as committed.
fn differences(board: &Board, committed: &States, summary: &Summary) -> Vec<String> {
    let tried = |line: &String| {
        summary.findings.iter().any(|finding| {
            line.starts_with(&format!("{} in {}: ", finding.id, finding.tier.name()))
        })
    };
    board.differences(committed).into_iter().filter(tried).collect()
}

fn text(board: &Board, summary: &Summary, differences: &[String], write: bool) -> String {
    let mut text = summary.text();
    text.push('\n');
    text.push_str(&board.counts());
    if !write && !differences.is_empty() {
        text.push_str("\nnot as committed in tests/attacks/SCOREBOARD.md:\n");
        for line in differences {
            text.push_str(&format!("  {line}\n"));
        }
    }
    text
}
