//! The `fumehood` command.
//!
//! Invariant of this crate: it parses arguments and prints; every effect on a
//! guest's behalf and every decision is the library's.

mod args;
mod audit;
mod bash;
mod bench;
mod cache;
mod decisions;
mod determinism;
mod doctor;
mod drafts;
mod error;
#[cfg(feature = "eval")]
mod eval;
mod events;
mod files;
mod live;
mod logging;
mod native;
mod net;
mod output;
mod policies;
mod program;
mod progress;
mod project;
mod reach;
mod records;
mod repl;
mod report;
mod run;
#[cfg(test)]
mod schema;
mod session;
mod signals;
mod terminal;
mod version;
mod workspaces;

use args::{Cli, Command};

#[allow(clippy::disallowed_methods, reason = "the one place that ends the process")]
fn main() {
    let code = match args::parse() {
        Ok(cli) => {
            logging::start();
            dispatch(cli)
        }
        Err(early) => early.print(),
    };
    // Instances and compiled code are left to the system: giving them back
    // page by page would only delay the end.
    std::process::exit(code)
}

fn dispatch(cli: Cli) -> i32 {
    let done = match cli.command {
        Command::Run(args) => run::run(&args),
        Command::Bash(args) => bash::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        #[cfg(feature = "eval")]
        Command::Eval(which) => eval::run(&which),
        Command::Repl(args) => repl::run(&args),
        Command::Bench(args) => bench::run(&args.which).map_err(error::CliError::without_a_program),
        Command::Session(args) => session::run(&args.which),
        Command::Audit(args) => audit::run(&args.which),
        Command::Cache(args) => cache::run(&args.which).map_err(error::CliError::without_a_program),
        Command::Policy(args) => policies::run(&args.which),
        Command::Version(args) => version::run(&args),
    };
    done.unwrap_or_else(|error| {
        output::note(&error.message);
        error.more.iter().for_each(|message| output::note(message));
        error.exit_code
    })
}
