//! Every attack as a test of its own, by id: `cargo test --test attacks W-05`.
//!
//! What: each attack of each tier of this machine, and the board that comes of
//! all of them, compared with the committed one.
//!
//! The binary starts itself once more with a home directory, a user name and a
//! variable that occur nowhere else, so that any detail of the host in any
//! output is found.
#![allow(
    clippy::disallowed_methods,
    reason = "a test binary looks at its environment and at the pages it checks"
)]

use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use fumehood_tests::attacks;
use fumehood_tests::board::{self, Board};
use fumehood_tests::harness::{
    Finding, STARTED, Stage, Summary, Tier, Verdict, check_suite, machine, run, start_again,
};
use libtest_mimic::{Arguments, Failed, Trial};

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    if arguments.list || std::env::var_os(STARTED).is_some() {
        return attack(arguments);
    }
    match start_again() {
        Ok(None) => attack(arguments),
        Ok(Some(status)) => ExitCode::from(u8::from(!status.success())),
        Err(error) => {
            eprintln!("the attacks could not be started with canaries: {error}");
            ExitCode::FAILURE
        }
    }
}

fn attack(mut arguments: Arguments) -> ExitCode {
    // Two cores are what is promised to be enough.
    arguments.test_threads = arguments.test_threads.or(Some(2));
    if let Some(helper) = machine::helper() {
        // Files of a checkout may be writable by a group.
        let _ = machine::set_mode(&helper, 0o755);
    }
    let stage = Arc::new(Stage::new());
    let summary = Arc::new(Mutex::new(Summary::default()));
    let attacks = attacks::all();
    let waiting = attacks::waiting();
    let ids: Vec<_> = attacks::catalogue().into_iter().map(|(id, _)| id).collect();
    let problems = check_suite(&attacks, &waiting, &ids);
    let mut trials = vec![Trial::test("suite", move || match problems.as_slice() {
        [] => Ok(()),
        problems => Err(Failed::from(problems.join("\n"))),
    })];
    trials.extend(required_tiers(&stage));
    for attack in attacks {
        let (stage, summary) = (Arc::clone(&stage), Arc::clone(&summary));
        let name = name(attack.id, attack.tier, attack.property);
        trials.push(Trial::test(name, move || {
            let finding = run(&stage, &attack);
            let result = match &finding.verdict {
                Verdict::Unexpected(why) => Err(Failed::from(format!("unexpected: {why}"))),
                Verdict::Error(why) => Err(Failed::from(format!("error: {why}"))),
                _ => Ok(()),
            };
            add(&summary, finding);
            result
        }));
    }
    for (id, tier, capability) in waiting {
        let name = name(id, tier, &format!("waits for {}", capability.name()));
        trials.push(Trial::test(name, || Ok(())).with_ignored_flag(true));
        add(&summary, Finding::waiting(id, tier, capability));
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    if arguments.list {
        return ExitCode::SUCCESS;
    }
    let summary = summary.lock().unwrap_or_else(PoisonError::into_inner);
    println!("{}", summary.text());
    let whole = conclusion.num_filtered_out == 0;
    let problems = board_problems(&summary, whole);
    for problem in &problems {
        println!("board: {problem}");
    }
    if problems.is_empty() { conclusion.exit_code() } else { ExitCode::FAILURE }
}

fn name(id: &str, tier: Tier, what: &str) -> String {
    match tier {
        Tier::Wasm => format!("{id} {what}"),
        _ => format!("{id} in {}: {what}", tier.name()),
    }
}

fn add(summary: &Mutex<Summary>, finding: Finding) {
    summary.lock().unwrap_or_else(PoisonError::into_inner).findings.push(finding);
}

/// The tiers whose rows nobody may leave out: that of the helper, which cargo
/// builds for the tests, in CI the boundary too, and an engine that was promised.
fn required_tiers(stage: &Arc<Stage>) -> Vec<Trial> {
    let required = |tier: Tier| {
        let stage = Arc::clone(stage);
        Trial::test(format!("the tier {} is here", tier.name()), move || {
            let lacks = |capability: fumehood_tests::harness::Capability| {
                Failed::from(format!("missing: {}", capability.name()))
            };
            stage.native(tier).map(drop).map_err(lacks)
        })
    };
    let in_ci = std::env::var("CI").is_ok_and(|value| value == "true");
    let tiers = [Tier::Process].into_iter().chain(in_ci.then_some(Tier::Landlock));
    let mut trials: Vec<Trial> = tiers.map(required).collect();
    if std::env::var_os("FUMEHOOD_TEST_DOCKER").is_some() {
        let stage = Arc::clone(stage);
        trials.push(Trial::test("the tier docker is here", move || {
            stage.docker().map(drop).map_err(|_| Failed::from("an engine was promised"))
        }));
    }
    trials
}

/// What is wrong with the committed pages; of a part of the attacks, only rows
/// that are not as committed.
fn board_problems(summary: &Summary, whole: bool) -> Vec<String> {
    let [page, readme] = match board::committed() {
        Ok(pages) => pages,
        Err(problem) => return vec![problem],
    };
    let committed = board::parse(&page.1);
    let board = Board::new(summary, &committed);
    let mut problems = board.differences(&committed);
    problems.extend(board.problems());
    if !whole || !problems.is_empty() {
        return problems;
    }
    let write = "run `fumehood eval attacks --tier all --write`";
    if board.page() != page.1 {
        problems.push(format!("{} is not what is generated; {write}", board::PAGE));
    }
    match board.in_readme(&readme.1) {
        Ok(text) if text == readme.1 => {}
        Ok(_) => problems.push(format!("README.md has other counts; {write}")),
        Err(problem) => problems.push(problem),
    }
    let mut pages = vec![("README.md".to_owned(), readme.1.clone())];
    let docs = readme.0.with_file_name("docs");
    let names = ["SECURITY.md", "CHANGELOG.md"].map(|name| readme.0.with_file_name(name));
    let docs = std::fs::read_dir(docs).into_iter().flatten().flatten().map(|entry| entry.path());
    for path in names.into_iter().chain(docs) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        pages.extend(machine::read(&path).map(|text| (name, text)));
    }
    for (name, text) in pages {
        problems.extend(board::wrong_quotes(&board, &name, &text));
    }
    problems
}
