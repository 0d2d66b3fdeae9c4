//! Every attack as a test of its own, by id: `cargo test --test attacks W-05`.
//!
//! The binary starts itself once more with a home directory, a user name and a
//! variable that occur nowhere else, so that any detail of the host in any
//! output is found.
#![allow(
    clippy::disallowed_methods,
    reason = "a test binary starts itself with canaries in its environment"
)]

use std::process::{Command, ExitCode};
use std::sync::{Arc, Mutex, PoisonError};

use fumehood_tests::attacks;
use fumehood_tests::harness::{Finding, Stage, Summary, Verdict, check_suite, run};
use libtest_mimic::{Arguments, Failed, Trial};

/// Set in the second process.
const STARTED: &str = "FUMEHOOD_ATTACK_CANARY";

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    if arguments.list || std::env::var_os(STARTED).is_some() {
        return attack(arguments);
    }
    match again() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("the attacks could not be started with canaries: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The same program with canaries in its environment.
fn again() -> std::io::Result<ExitCode> {
    let home = tempfile::Builder::new().prefix("canary-home-directory-").tempdir()?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(std::env::args_os().skip(1));
    if let Ok(Some((directory, _))) = fumehood::cache_location() {
        command.env("FUMEHOOD_CACHE_DIR", directory);
    }
    command
        .env("HOME", home.path())
        .env("USER", "canary-host-user")
        .env("LOGNAME", "canary-host-user")
        .env(STARTED, "canary-host-variable");
    let status = command.status()?;
    Ok(ExitCode::from(u8::from(!status.success())))
}

fn attack(mut arguments: Arguments) -> ExitCode {
    // Two cores are what is promised to be enough.
    arguments.test_threads = arguments.test_threads.or(Some(2));
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
    for attack in attacks {
        let (stage, summary) = (Arc::clone(&stage), Arc::clone(&summary));
        let name = format!("{} {}", attack.id, attack.property);
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
    for (id, capability) in waiting {
        let name = format!("{id} waits for {}", capability.name());
        trials.push(Trial::test(name, || Ok(())).with_ignored_flag(true));
        add(&summary, Finding::waiting(id, capability));
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    if !arguments.list {
        println!("{}", summary.lock().unwrap_or_else(PoisonError::into_inner).text());
    }
    conclusion.exit_code()
}

fn add(summary: &Mutex<Summary>, finding: Finding) {
    summary.lock().unwrap_or_else(PoisonError::into_inner).findings.push(finding);
}
