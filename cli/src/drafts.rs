//! `fumehood policy draft`, `approve` and `reject`: rules for what a run was
//! denied, or a running one is.
//!
//! Invariant: a draft is made again from the same denials and the same policy
//! whenever it is looked at, so that its token names exactly what would be
//! applied; nothing is written but the file that `--into` names, whole, and the
//! decisions beside a result.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use fumehood::network::{Denied, Draft, DraftBook};
use fumehood::policy::MAX_POLICY_BYTES;
use serde_json::{Value, json};

use crate::decisions::{Decisions, How};
use crate::error::{BAD_FINDING, CliError};
use crate::terminal::escape;
use crate::{files, live, output, policies};

/// Largest result that is read.
const MAX_RESULT_BYTES: usize = 64 << 20;

/// Where denials come from.
enum Source {
    /// A session that is running.
    Session(String),
    /// A policy, and what `fumehood run --json` printed under it.
    Result { policy: OsString, result: PathBuf },
}

impl Source {
    fn of(named: &[OsString]) -> Result<Self, CliError> {
        match named {
            [session] => Ok(Self::Session(session.to_string_lossy().into_owned())),
            [policy, result] => Ok(Self::Result { policy: policy.clone(), result: result.into() }),
            _ => Err(CliError::usage(
                "this names neither a session nor a policy and a result; give SESSION, or FILE and RESULT",
            )),
        }
    }

    /// The same, and the draft at the end.
    fn and_draft(named: &[OsString]) -> Result<(Self, String), CliError> {
        let (id, source) = named.split_last().ok_or_else(|| CliError::usage("name a draft"))?;
        Ok((Self::of(source)?, id.to_string_lossy().into_owned()))
    }
}

/// The text of a policy and the drafts for it, as they were decided.
fn book(
    policy: &OsStr,
    result: &Path,
    decisions: &Decisions,
) -> Result<(String, DraftBook), CliError> {
    let text = policies::text(policy)?.text;
    let bytes = files::read_file(result, "the result", MAX_RESULT_BYTES)?;
    let result: Value = serde_json::from_slice(&bytes).map_err(|error| {
        CliError::usage(format!(
            "the result is no JSON ({error}); give what `fumehood run --json` printed"
        ))
    })?;
    let listed = result.get("denials").and_then(Value::as_array).ok_or_else(|| {
        CliError::usage("the result has no `denials`; give what `fumehood run --json` printed")
    })?;
    let denied: Vec<Denied> = listed.iter().filter_map(denied).collect();
    let mut book = DraftBook::propose(&denied, &text)?;
    decisions.apply(&mut book);
    Ok((text, book))
}

fn denied(denial: &Value) -> Option<Denied> {
    let text = |key: &str| denial.get(key).and_then(Value::as_str);
    if text("operation") != Some("fetch") {
        return None;
    }
    let count = denial.get("count").and_then(Value::as_u64).unwrap_or(1);
    Denied::parse(text("target")?, text("rule")?, text("reason").unwrap_or_default(), count)
}

/// A draft as programs read it.
pub(crate) fn to_json(draft: &Draft) -> Value {
    let (state, reason) = crate::decisions::named(&draft.state);
    json!({"id": draft.id, "text": draft.text, "notes": draft.notes, "hits": draft.hits,
        "token": draft.token, "state": state, "reason": reason})
}

fn shown(draft: &Value) -> String {
    let text = |key: &str| draft.get(key).and_then(Value::as_str).unwrap_or_default();
    let notes = draft.get("notes").and_then(Value::as_array).into_iter().flatten();
    let notes: String =
        notes.filter_map(Value::as_str).map(|note| format!("# note: {}\n", escape(note))).collect();
    let state = match text("state") {
        "pending" => format!("# token: {}\n", text("token")),
        state => format!("# {state}: {}\n", escape(text("reason"))),
    };
    let hits = draft.get("hits").and_then(Value::as_u64).unwrap_or_default();
    format!("# {}: denied {hits} times\n{state}{notes}{}\n", text("id"), text("text"))
}

/// Prints the drafts: 0 if some wait to be decided, 1 if none does.
///
/// # Errors
/// One sentence, or one for each problem of the policy.
pub(crate) fn draft(named: &[OsString], as_json: bool) -> Result<i32, CliError> {
    let drafts = match Source::of(named)? {
        Source::Session(session) => {
            let answer = live::ask(&session, &json!({"ask": "drafts"}))?;
            let not_kept = answer.get("not_kept").and_then(Value::as_u64).unwrap_or_default();
            if not_kept != 0 {
                output::note(&format!(
                    "{not_kept} more requests were denied than are kept for drafts; decide on these and run it again for the rest"
                ));
            }
            let notes = answer.get("notes").and_then(Value::as_array).into_iter().flatten();
            notes.filter_map(Value::as_str).for_each(output::note);
            answer.get("drafts").and_then(Value::as_array).cloned().unwrap_or_default()
        }
        Source::Result { policy, result } => {
            let (_, book) = book(&policy, &result, &Decisions::read(&result)?)?;
            book.notes().for_each(output::note);
            book.drafts().iter().map(to_json).collect()
        }
    };
    let waits = |draft: &Value| draft.get("state").and_then(Value::as_str) == Some("pending");
    let code = if drafts.iter().any(waits) { 0 } else { BAD_FINDING };
    if as_json {
        let _ = output::print_json(&json!({ "drafts": drafts }));
    } else {
        output::print(&drafts.iter().map(shown).collect::<String>());
    }
    Ok(code)
}

/// Puts a draft into the policy, and prints that or writes it; a running
/// session has it from its next request on. 1 if the draft was decided before,
/// the token is not of what would be applied, or something above the rule, such
/// as a ceiling, denies the same requests.
///
/// # Errors
/// One sentence.
pub(crate) fn approve(
    named: &[OsString],
    token: &str,
    into: Option<&Path>,
) -> Result<i32, CliError> {
    let (source, id) = Source::and_draft(named)?;
    match source {
        Source::Session(session) => {
            if let Some(file) = into {
                let now = live::ask(&session, &json!({"ask": "drafts"}))?;
                let policy = now.get("policy").and_then(Value::as_str).unwrap_or_default();
                check_replaced(file, policy)?;
            }
            let answer = live::ask(&session, &json!({"ask": "approve", "id": id, "token": token}))?;
            let Some(text) = answer.get("policy").and_then(Value::as_str) else {
                return Ok(refused(&answer));
            };
            let generation = answer.get("generation").and_then(Value::as_u64).unwrap_or_default();
            let denied_by = answer.get("denied_by").and_then(Value::as_str);
            match denied_by {
                None => output::note(&format!(
                    "`{id}` holds from the next request of the session on, as generation {generation} of its policy"
                )),
                Some(rule) => output::note(&format!(
                    "`{id}` is in the policy of the session, as generation {generation}, and what it is for is denied all the same (rule {}); change that rule, or start a run under another ceiling",
                    escape(rule)
                )),
            }
            deliver(into, text, "the rule is in the session's policy all the same")?;
            if denied_by.is_some() {
                return Ok(BAD_FINDING);
            }
        }
        Source::Result { policy, result } => {
            let mut decisions = Decisions::hold(&result)?;
            let (text, mut book) = book(&policy, &result, &decisions)?;
            let rule = rule_of(&book, &id);
            if let Some(file) = into {
                check_replaced(file, &text)?;
            }
            let next = match book.approve(&id, token, &text) {
                Ok(next) => next,
                Err(error) => {
                    output::note(&error.to_string());
                    return Ok(BAD_FINDING);
                }
            };
            // What is only printed was applied to nothing.
            deliver(into, &next, "nothing was changed")?;
            if into.is_some() {
                decisions.add(&rule, How::Approved, "")?;
            }
        }
    }
    Ok(0)
}

/// Drops a draft: it is not proposed again and cannot be approved. 1 if it was
/// decided before.
///
/// # Errors
/// One sentence.
pub(crate) fn reject(named: &[OsString], reason: &str) -> Result<i32, CliError> {
    let (source, id) = Source::and_draft(named)?;
    match source {
        Source::Session(session) => {
            let question = json!({"ask": "reject", "id": id, "reason": reason});
            let answer = live::ask(&session, &question)?;
            if answer.get("error").is_some() {
                return Ok(refused(&answer));
            }
        }
        Source::Result { policy, result } => {
            let mut decisions = Decisions::hold(&result)?;
            let (_, mut book) = book(&policy, &result, &decisions)?;
            let rule = rule_of(&book, &id);
            if let Err(error) = book.reject(&id, reason) {
                output::note(&error.to_string());
                return Ok(BAD_FINDING);
            }
            decisions.add(&rule, How::Rejected, reason)?;
        }
    }
    Ok(0)
}

fn rule_of(book: &DraftBook, id: &str) -> String {
    let draft = book.drafts().iter().find(|draft| draft.id == id);
    draft.map(Draft::rule).unwrap_or_default()
}

/// Tells why a session did not do it.
fn refused(answer: &Value) -> i32 {
    let why = answer.get("error").and_then(Value::as_str);
    output::note(&escape(why.unwrap_or("the session gave no answer; look at its drafts again")));
    BAD_FINDING
}

/// A file is replaced only by what its own policy leads to, so that nobody's
/// edits are lost.
fn check_replaced(file: &Path, policy: &str) -> Result<(), CliError> {
    if !file.exists() {
        return Ok(());
    }
    if files::read_policy(file, MAX_POLICY_BYTES)? == policy.as_bytes() {
        return Ok(());
    }
    Err(CliError::cannot_tell(format!(
        "`{}` is not the policy that the draft is for, so nothing was changed; name another file with --into, or leave it out to have the policy printed",
        file.display()
    )))
}

fn deliver(into: Option<&Path>, text: &str, otherwise: &str) -> Result<(), CliError> {
    let Some(file) = into else {
        output::print(text);
        return Ok(());
    };
    files::replace(file, text).map_err(|error| {
        CliError::cannot_tell(format!(
            "`{}` could not be written ({error}); {otherwise}",
            file.display()
        ))
    })
}
