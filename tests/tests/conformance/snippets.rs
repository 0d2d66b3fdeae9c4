//! Small programs with one expected line each, and the programs of the
//! processor benchmark, whose results (never their times) are compared.

use std::collections::BTreeMap;

use fumehood::{OutcomeKind, Script};
use libtest_mimic::Trial;

use crate::pinned::Pinned;
use crate::support::{ending, read, run, same_text, sandbox, stems, tests};

/// All cases.
pub fn trials() -> Vec<Trial> {
    let mut trials = snippets();
    trials.extend(cpu());
    trials
}

fn snippets() -> Vec<Trial> {
    let directory = tests("snippets");
    let expected: BTreeMap<String, String> =
        serde_json::from_str(&read(&directory.join("expected.json"))).expect("expected.json");
    let pinned = Pinned::load(&directory.join("failing.txt"));
    let names: Vec<String> = stems(&directory, "py")
        .iter()
        .map(|stem| stem.strip_prefix("s_").expect("snippets are named s_*.py").to_owned())
        .collect();
    let mut trials = vec![pinned.every_name_exists("snippet", &names)];
    let listed: Vec<&String> = expected.keys().collect();
    assert_eq!(listed, names.iter().collect::<Vec<_>>(), "every snippet has an expected line");
    for (name, line) in expected {
        let source = read(&directory.join(format!("s_{name}.py")));
        let pinned = std::sync::Arc::clone(&pinned);
        trials.push(Trial::test(format!("snippet::{name}"), move || {
            pinned.judge(&name, gives(&format!("s_{name}.py"), &source, &line))
        }));
    }
    trials
}

fn gives(file: &str, source: &str, line: &str) -> Result<(), String> {
    let outcome = run(sandbox(), Script::new(source).filename(file))?;
    if outcome.kind != OutcomeKind::Completed {
        return Err(ending(&outcome));
    }
    // The expected lines were recorded without surrounding space.
    same_text(line.trim(), outcome.stdout_text().trim())
}

fn cpu() -> Vec<Trial> {
    let directory = tests("cpu");
    let expected: BTreeMap<String, String> =
        serde_json::from_str(&read(&directory.join("expected.json"))).expect("expected.json");
    let names = stems(&directory, "py");
    assert_eq!(expected.keys().collect::<Vec<_>>(), names.iter().collect::<Vec<_>>());
    expected
        .into_iter()
        .map(|(name, result)| {
            let source = read(&directory.join(format!("{name}.py")));
            Trial::test(format!("cpu::{name}"), move || {
                let outcome = run(sandbox(), Script::new(source).filename(format!("{name}.py")))?;
                if outcome.kind != OutcomeKind::Completed {
                    return Err(ending(&outcome).into());
                }
                let stdout = outcome.stdout_text();
                let last = stdout.lines().last().unwrap_or_default();
                // `RESULT value… SECONDS`
                let (values, seconds) = last.rsplit_once(' ').ok_or("no RESULT line")?;
                seconds.parse::<f64>().map_err(|_| "the last word is no time")?;
                same_text(&format!("RESULT {result}"), values).map_err(Into::into)
            })
        })
        .collect()
}
