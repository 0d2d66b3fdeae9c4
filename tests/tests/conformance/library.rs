//! The table of the standard library's modules in `docs/guest.md`.
//!
//! `tests/library/table.py` imports every module in the guest and prints the
//! table; here it is compared with the page, and `FUMEHOOD_BLESS=1` writes it
//! there. `names.json` is what CPython has (`record.py` makes it), `notes.toml`
//! what importing a module cannot tell.

use fumehood::{OutcomeKind, Script};
use libtest_mimic::{Failed, Trial};
use serde_json::{Map, Value};

use crate::support::{ending, read, root, run, same_text, sandbox, tests};

const BEGIN: &str = "<!-- table of the library: written by a test -->\n";
const END: &str = "<!-- end of the table -->\n";

/// The case.
pub fn trials() -> Vec<Trial> {
    vec![Trial::test("library::the_page_lists_every_module", page)]
}

fn page() -> Result<(), Failed> {
    let path = root().join("docs/guest.md");
    let text = read(&path);
    let (before, rest) = text.split_once(BEGIN).ok_or("docs/guest.md has no table")?;
    let (table, after) = rest.split_once(END).ok_or("the table in docs/guest.md has no end")?;
    let actual = made_in_the_guest()?;
    if std::env::var_os("FUMEHOOD_BLESS").is_some() {
        std::fs::write(&path, format!("{before}{BEGIN}{actual}{END}{after}"))?;
        return Ok(());
    }
    same_text(table, &actual).map_err(|difference| {
        format!("the table in docs/guest.md is out of date; look at the change, then FUMEHOOD_BLESS=1\n{difference}").into()
    })
}

fn made_in_the_guest() -> Result<String, Failed> {
    let names: Value = serde_json::from_str(&read(&tests("library/names.json")))?;
    let notes: Value = toml::from_str(&read(&tests("library/notes.toml")))?;
    let inputs: Map<String, Value> =
        [("names".to_owned(), names), ("notes".to_owned(), notes)].into_iter().collect();
    let script = Script::new(read(&tests("library/table.py"))).filename("table.py").inputs(&inputs);
    let outcome = run(sandbox(), script)?;
    match outcome.kind {
        OutcomeKind::Completed => Ok(outcome.stdout_text()),
        _ => Err(ending(&outcome).into()),
    }
}
