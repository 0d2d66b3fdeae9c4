//! The arguments about projects and inputs.

use std::path::PathBuf;

use clap::Args;
use fumehood::project::PROJECT_AT;

/// What code works on.
#[derive(Clone, Debug, Args)]
pub(crate) struct ProjectArgs {
    /// Let the program work on a project; what it changes is brought back afterwards
    #[arg(long, value_name = "DIR")]
    pub(crate) project: Option<PathBuf>,
    /// Where the program sees the project [default: /work/project]
    #[arg(long, value_name = "GUEST", requires = "project", value_parser = parse_place)]
    pub(crate) project_at: Option<String>,
    /// Leave out names that match, beside .venv, node_modules, __pycache__ and .DS_Store
    #[arg(long, value_name = "PATTERN", requires = "project")]
    pub(crate) exclude: Vec<String>,
    /// Show a file although such files usually hold secrets, such as .env
    #[arg(long, value_name = "NAME", requires = "project")]
    pub(crate) show_hidden: Vec<String>,
    /// Keep the workspace also when everything was brought back
    #[arg(long, requires = "project")]
    pub(crate) keep: bool,
    /// Name the workspace, and go on with the one of that name if it holds changes
    #[arg(long, value_name = "NAME", requires = "project", value_parser = parse_name)]
    pub(crate) name: Option<String>,
    /// Only say what would be brought back, and keep the workspace
    #[arg(long, requires = "project")]
    pub(crate) dry_run: bool,
    /// Let the program read a file or directory, as /work/inputs/NAME
    #[arg(long, value_name = "PATH")]
    pub(crate) input: Vec<PathBuf>,
}

impl ProjectArgs {
    /// Where the program sees the project.
    pub(crate) fn place(&self) -> &str {
        self.project_at.as_deref().unwrap_or(PROJECT_AT)
    }
}

fn parse_place(text: &str) -> Result<String, String> {
    if text.starts_with('/') {
        Ok(text.trim_end_matches('/').to_owned())
    } else {
        Err("the guest's side is an absolute path; write one such as /work/project".to_owned())
    }
}

/// The name of a workspace: one that no run is given by itself.
pub(crate) fn parse_name(text: &str) -> Result<String, String> {
    let good = fumehood::records::is_session_name(text) && text != "last" && !is_session_id(text);
    if good {
        Ok(text.to_owned())
    } else {
        Err("it is no name for a workspace; use up to 64 letters, digits, `-` and `_`, and not `last` or `fh-…`".to_owned())
    }
}

fn is_session_id(text: &str) -> bool {
    text.starts_with("fh-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_workspaces_are_no_paths_and_no_sessions() {
        for good in ["a", "feature-1", "A_b", &"x".repeat(64)] {
            assert!(parse_name(good).is_ok(), "{good}");
        }
        let long = "x".repeat(65);
        for bad in ["", "..", "a/b", "-a", "last", "fh-0123", "a b", "a\n", "ä", &long] {
            assert!(parse_name(bad).is_err(), "{bad}");
        }
    }
}
