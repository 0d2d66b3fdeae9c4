//! `fumehood session`.

use fumehood::records::{Home, RecordsError, SessionInfo, SessionState};
use serde_json::{Value, json};

use crate::args::Session;
use crate::audit::{time, verdict};
use crate::error::CliError;
use crate::terminal::escape_line;
use crate::{output, records, workspaces};

/// Runs a session command and returns the exit code.
///
/// # Errors
/// One sentence.
pub(crate) fn run(which: &Session) -> Result<i32, CliError> {
    match which {
        Session::List { json } => list(*json),
        Session::Show { session, json } => show(session, *json),
        Session::Rm { sessions, discard } => rm(sessions, *discard),
        Session::Diff { session, json } => workspaces::diff(session, *json),
        Session::Sync(args) => workspaces::sync(args),
        Session::Discard { session, json } => workspaces::discard(session, *json),
        Session::Export { session, out } => workspaces::export(session, out),
        Session::Import { name, archive, project } => workspaces::import(name, archive, project),
        Session::Recover { session, json } => recover(session, *json),
    }
}

fn some_home(session: &str) -> Result<Home, CliError> {
    records::home()?.ok_or_else(|| {
        CliError::cannot_tell(format!(
            "there is no session `{}` because there are no records yet; FUMEHOOD_HOME names them",
            escape_line(session)
        ))
    })
}

fn state_name(state: SessionState) -> &'static str {
    match state {
        SessionState::Running => "running",
        SessionState::Ended => "ended",
        SessionState::Crashed => "crashed",
        SessionState::Recovered => "recovered",
    }
}

fn as_json(info: &SessionInfo, state: SessionState) -> Value {
    let mut value = serde_json::to_value(info).unwrap_or_default();
    if let Value::Object(object) = &mut value {
        object.insert("state".to_owned(), json!(state_name(state)));
    }
    value
}

fn list(json: bool) -> Result<i32, CliError> {
    let (mut sessions, mut kept) = (Vec::new(), Vec::new());
    if let Some(home) = records::home()? {
        kept = workspaces::list(&home)?;
        for name in home.session_names()? {
            match home.info(&name) {
                Ok(found) => sessions.push(found),
                Err(error) => output::note(&format!(
                    "{}: {}; remove it with `fumehood session rm {name}`",
                    name,
                    error.detail()
                )),
            }
        }
    }
    sessions.sort_by_key(|(info, _)| info.started_us);
    if json {
        let all: Vec<_> = sessions.iter().map(|(info, state)| as_json(info, *state)).collect();
        let _ = output::print_json(&json!({ "sessions": all, "workspaces": kept }));
        return Ok(0);
    }
    let mut table = String::new();
    for (info, state) in &sessions {
        let end = info
            .end
            .as_ref()
            .map_or_else(String::new, |end| format!("{} {}", end.outcome, end.exit_code));
        table.push_str(&format!(
            "{}  {}  {:<9}  {:<18}  {}\n",
            info.session,
            time::shown(info.started_us),
            state_name(*state),
            escape_line(&end),
            escape_line(&info.name),
        ));
    }
    for workspace in &kept {
        let text = |member: &str| workspace[member].as_str().unwrap_or_default().to_owned();
        let state = match (&workspace["in_use"], &workspace["unsynced"]) {
            (Value::Bool(true), _) => "in use",
            (_, Value::Bool(false)) => "in sync",
            _ => "unsynced",
        };
        table.push_str(&format!("{}  workspace, {state}  {}\n", text("name"), text("project")));
    }
    output::print(&table);
    Ok(0)
}

fn show(session: &str, json: bool) -> Result<i32, CliError> {
    let home = some_home(session)?;
    let session = &*records::session_named(&home, session)?;
    let (info, state) = home.info(session)?;
    let report = home.verify(session)?;
    let code = verdict::exit_code(&report);
    if json {
        let mut value = as_json(&info, state);
        if let Value::Object(object) = &mut value {
            object.insert("audit".to_owned(), verdict::to_json(&report));
        }
        let _ = output::print_json(&value);
        return Ok(code);
    }
    let end = info.end.as_ref().map_or_else(
        || state_name(state).to_owned(),
        |end| format!("{}, exit code {}, {} denials", end.outcome, end.exit_code, end.denials),
    );
    output::print(&format!(
        "session  {}\nprogram  {}\nstarted  {}\nend      {}\nlog      {}\n",
        info.session,
        escape_line(&info.name),
        time::shown(info.started_us),
        escape_line(&end),
        verdict::sentence(&report),
    ));
    Ok(code)
}

fn rm(sessions: &[String], discard: bool) -> Result<i32, CliError> {
    for session in sessions {
        let home = some_home(session)?;
        let session = records::session_named(&home, session)?;
        let had_workspace = workspaces::remove(&home, &session, discard)?;
        match home.remove(&session) {
            // A workspace with a name of its own has no record of that name.
            Err(RecordsError::NoSession(_)) if had_workspace => {}
            removed => removed?,
        }
    }
    Ok(0)
}

fn recover(session: &str, json: bool) -> Result<i32, CliError> {
    let home = some_home(session)?;
    let session = &*records::session_named(&home, session)?;
    let recovery = home.recover(session)?;
    let report = home.verify(session)?;
    if json {
        let mut value = verdict::to_json(&report);
        if let Value::Object(object) = &mut value {
            object.insert("recovered_at".to_owned(), json!(recovery.at));
        }
        let _ = output::print_json(&value);
    } else {
        output::print(&format!("{}\n", verdict::sentence(&report)));
    }
    Ok(verdict::exit_code(&report))
}
