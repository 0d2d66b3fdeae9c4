//! What failing tests said, once more at the end of a run in CI.
//!
//! Why: of a long log often only the end is kept, and the reason of a failure
//! is in its middle.
//! Invariant: what a command prints is passed on as it comes, whole.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};

/// Lines that are repeated at most.
const MAX_LINES: usize = 200;
/// Characters of a line that are repeated at most.
const MAX_LINE_CHARS: usize = 2_000;

/// The reports on failures of everything that was followed.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    lines: Vec<String>,
    /// Inside of a report now.
    open: bool,
}

impl Reports {
    /// Runs a command, passes its standard output on and keeps its reports;
    /// the answer is whether it succeeded.
    pub(crate) fn follow(&mut self, command: &mut Command) -> std::io::Result<bool> {
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        if let Some(output) = child.stdout.take() {
            let mut output = BufReader::new(output);
            let mut line = Vec::new();
            while output.read_until(b'\n', &mut line)? > 0 {
                std::io::stdout().write_all(&line)?;
                self.take(&String::from_utf8_lossy(&line));
                line.clear();
            }
        }
        self.open = false;
        child.wait().map(|status| status.success())
    }

    /// Keeps a line that is part of a report, as test harnesses write them:
    /// from `failures:` to `test result:`.
    fn take(&mut self, line: &str) {
        let line = line.trim_end();
        self.open = match line {
            "failures:" => true,
            end if end.starts_with("test result:") => false,
            _ => self.open,
        };
        if self.open && !line.is_empty() && self.lines.len() < MAX_LINES {
            self.lines.push(line.chars().take(MAX_LINE_CHARS).collect());
        }
    }

    /// Prints the reports again.
    pub(crate) fn repeat(&self) {
        if !self.lines.is_empty() {
            println!("What failing tests said:");
        }
        for line in &self.lines {
            println!("  {line}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reports_of_failing_tests_are_kept_and_nothing_else() {
        let mut reports = Reports::default();
        let printed = "test a ... ok\n\nfailures:\n\n---- b ----\nwhy\n\ntest result: FAILED\n\
                       test c ... ok\ntest result: ok\nfailures:\n\n---- d ----\n";
        printed.lines().for_each(|line| reports.take(line));
        assert_eq!(reports.lines, ["failures:", "---- b ----", "why", "failures:", "---- d ----"]);
    }

    #[test]
    fn a_command_is_followed_to_its_end() {
        let mut reports = Reports::default();
        let mut command = Command::new("sh");
        command.args(["-c", "echo failures:; echo why; exit 3"]);
        assert!(matches!(reports.follow(&mut command), Ok(false)));
        assert_eq!(reports.lines, ["failures:", "why"]);
    }
}
