//! The `fumehood` command.
//!
//! Invariant of this crate: it parses arguments and prints; every effect on a
//! guest's behalf and every decision is the library's.

mod args;
mod bench;
mod cache;
mod error;
mod events;
mod files;
mod logging;
mod output;
mod policies;
mod program;
mod progress;
mod report;
mod run;
#[cfg(test)]
mod schema;
mod signals;
mod terminal;
mod version;

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
        Command::Bench(args) => bench::run(&args.which),
        Command::Cache(args) => cache::run(&args.which),
        Command::Policy(args) => policies::run(&args.which),
        Command::Version(args) => version::run(&args),
    };
    done.unwrap_or_else(|error| {
        output::note(&error.message);
        error.more.iter().for_each(|message| output::note(message));
        error.exit_code
    })
}
