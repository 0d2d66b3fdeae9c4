//! `fumehood policy`, and policies that are named on the command line.
//!
//! Invariant: nothing here runs a program or opens what a policy names.

use std::ffi::OsStr;
use std::path::Path;

use fumehood::policy::{
    Explanation, FlagMode, Flags, MAX_POLICY_BYTES, PRESETS, Policy, PolicyErrors, PolicyFile,
    diff, preset, verdict_name,
};
use serde_json::{Value, json};

use crate::args::PolicyCommand;
use crate::error::{BAD_FINDING, CANNOT_TELL, CliError};
use crate::{drafts, files, output};

/// Runs a policy command and returns the exit code.
///
/// # Errors
/// One sentence, or one for each problem of a text.
pub(crate) fn run(which: &PolicyCommand) -> Result<i32, CliError> {
    match which {
        PolicyCommand::Check { file, json } => check(file, *json),
        PolicyCommand::Explain { file, request, json } => explain(file, request, *json),
        PolicyCommand::Diff { old, new, json } => difference(old, new, *json),
        PolicyCommand::Draft { of, json } => drafts::draft(of, *json),
        PolicyCommand::Approve { of, token, into } => drafts::approve(of, token, into.as_deref()),
        PolicyCommand::Reject { of, reason } => drafts::reject(of, reason),
    }
}

/// The policy of that name: a preset, else a file. A file that has the name of
/// a preset is `./NAME`.
///
/// # Errors
/// 64: it cannot be read, or one sentence for each of its problems.
pub(crate) fn load(name: &OsStr) -> Result<PolicyFile, CliError> {
    Ok(text(name)?.parse()?)
}

/// The text of a policy, and whether it is one of another system.
pub(crate) struct PolicyText {
    name: String,
    /// As it stands in the file.
    pub(crate) text: String,
    is_yaml: bool,
}

impl PolicyText {
    /// # Errors
    /// Every problem of the text.
    pub(crate) fn parse(&self) -> Result<PolicyFile, PolicyErrors> {
        if self.is_yaml {
            PolicyFile::parse_openshell(&self.text, &self.name)
        } else {
            PolicyFile::parse(&self.text, &self.name)
        }
    }
}

/// The text of that name: see [`load`].
///
/// # Errors
/// 64: it cannot be read.
pub(crate) fn text(name: &OsStr) -> Result<PolicyText, CliError> {
    let shown = name.to_string_lossy();
    if let Some(known) = name.to_str().and_then(preset) {
        let (name, text) = (known.name.to_owned(), known.text.to_owned());
        return Ok(PolicyText { name, text, is_yaml: false });
    }
    let path = Path::new(name);
    if !path.exists() && !shown.contains(['/', '.']) {
        let names: Vec<&str> = PRESETS.iter().map(|preset| preset.name).collect();
        return Err(CliError::usage(format!(
            "there is no policy `{shown}`; name a file, or one of {}",
            names.join(", ")
        )));
    }
    let bytes = files::read_policy(path, MAX_POLICY_BYTES)?;
    let text = String::from_utf8(bytes).map_err(|error| {
        CliError::usage(format!(
            "the policy `{shown}` is not UTF-8 (byte {}); save it as UTF-8",
            error.utf8_error().valid_up_to()
        ))
    })?;
    let is_yaml =
        path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml");
    Ok(PolicyText { name: shown.into_owned(), text, is_yaml })
}

/// A policy that an answer needs: a text with problems gives none.
fn needed(name: &OsStr) -> Result<PolicyFile, CliError> {
    let told = |errors: PolicyErrors| CliError { exit_code: CANNOT_TELL, ..errors.into() };
    text(name)?.parse().map_err(told)
}

fn check(name: &OsStr, as_json: bool) -> Result<i32, CliError> {
    let read = text(name)?.parse();
    let code = if read.is_ok() { 0 } else { BAD_FINDING };
    if as_json {
        let _ = output::print_json(&match &read {
            Ok(policy) => {
                let summary = policy.summary();
                json!({
                    "file": summary.name,
                    "good": true,
                    "digest": summary.digest,
                    "summary": summary.lines,
                    "unsupported": summary.unsupported,
                    "problems": [],
                    "more": 0,
                })
            }
            Err(errors) => json!({
                "file": errors.name,
                "good": false,
                "digest": null,
                "summary": [],
                "unsupported": [],
                "problems": errors.problems.iter().map(|problem| json!({
                    "line": problem.line,
                    "column": problem.column,
                    "key": problem.key,
                    "message": problem.message,
                    "remedy": problem.remedy,
                })).collect::<Vec<_>>(),
                "more": errors.more,
            }),
        });
        return Ok(code);
    }
    match read {
        Ok(policy) => output::print(&policy.summary().to_string()),
        Err(errors) => output::print(&format!("{errors}\n")),
    }
    Ok(code)
}

fn explain(name: &OsStr, request: &str, as_json: bool) -> Result<i32, CliError> {
    let policy = needed(name)?;
    let explanation = policy
        .explain(request)
        .map_err(|error| CliError::usage(format!("{error}; {}", error.remedy())))?;
    if as_json {
        let _ = output::print_json(&of_explanation(&explanation));
    } else {
        output::print(&explanation.to_string());
    }
    Ok(0)
}

fn of_explanation(explanation: &Explanation) -> Value {
    let Explanation { request, decision, obligations, rules, nearest_change } = explanation;
    json!({
        "request": request,
        "verdict": verdict_name(decision.verdict),
        "rule": decision.rule.as_ref(),
        "reason": decision.reason,
        "hint": decision.hint,
        "rules": rules.iter().map(|speaks| json!({
            "rule": speaks.rule,
            "action": speaks.action.name(),
            "source": speaks.source,
            "line": speaks.line,
        })).collect::<Vec<_>>(),
        "bounds": {
            "max_calls": obligations.max_calls.iter().map(|limit| json!({
                "rule": limit.rule.as_ref(), "calls": limit.calls,
            })).collect::<Vec<_>>(),
            "max_request_bytes": obligations.max_request_bytes,
            "max_response_bytes": obligations.max_response_bytes,
        },
        "nearest_change": nearest_change,
    })
}

fn difference(old: &OsStr, new: &OsStr, as_json: bool) -> Result<i32, CliError> {
    let reach = diff(&needed(old)?, &needed(new)?);
    if as_json {
        let listed: Vec<_> = reach
            .iter()
            .map(|one| json!({ "section": one.section, "what": one.what, "line": one.line }))
            .collect();
        let _ = output::print_json(&json!({ "new_reach": listed }));
    } else if reach.is_empty() {
        output::print("nothing is newly reachable\n");
    } else {
        output::print(&reach.iter().map(|one| format!("{one}\n")).collect::<String>());
    }
    Ok(if reach.is_empty() { 0 } else { BAD_FINDING })
}

/// Whether flags may add to what a file says.
pub(crate) fn may_extend(policy: Option<&PolicyFile>) -> bool {
    policy.is_none_or(|policy| policy.flags() == FlagMode::Extend)
}

/// The processor time that holds if none is asked for, in milliseconds.
pub(crate) fn cpu_ms(policy: Option<&PolicyFile>, flags: &Flags) -> u64 {
    // What cannot be put together is refused where the sandbox is built.
    Policy::combine(policy, flags, None).map_or(0, |combined| combined.policy.budget().cpu_ms)
}
