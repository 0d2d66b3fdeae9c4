//! What failing tests said, once more at the end of a run in CI.
//!
//! Why: of a long log often only the end is kept, and the reason of a failure
//! is in its middle.
//! Invariant: what a command prints is passed on as it comes, and its end is
//! the command's end, also where something that it left behind goes on.

use std::io::{Read as _, Write};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// Lines of one part of a report that are repeated at most.
const MAX_LINES: usize = 120;
/// Characters of a line that are repeated at most.
const MAX_LINE_CHARS: usize = 2_000;
/// How long output is waited for once its command has ended.
const LAST_OUTPUT: Duration = Duration::from_secs(5);

/// The reports on failures of everything that was followed.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    /// Parts that begin with `failures:`, as test harnesses write them: first
    /// what each said, then the names.
    parts: Vec<Vec<String>>,
    /// Inside of one now.
    open: bool,
}

impl Reports {
    /// Runs a command, passes its standard output on to `sink` and keeps its
    /// reports; the answer is whether it succeeded.
    pub(crate) fn follow(
        &mut self,
        command: &mut Command,
        mut sink: impl Write + Send + 'static,
    ) -> std::io::Result<bool> {
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take();
        let (sender, pieces) = mpsc::channel();
        std::thread::spawn(move || {
            let (Some(mut output), mut piece) = (output, vec![0; 64 << 10]) else { return };
            while let Ok(length @ 1..) = output.read(&mut piece) {
                let read = piece.get(..length).unwrap_or_default();
                // Whoever reads the log may have gone; the tests go on.
                let _ = sink.write_all(read).and_then(|()| sink.flush());
                let _ = sender.send(read.to_vec());
            }
        });
        let status = child.wait();
        let mut printed = Vec::new();
        while let Ok(piece) = pieces.recv_timeout(LAST_OUTPUT) {
            printed.extend(piece);
        }
        String::from_utf8_lossy(&printed).lines().for_each(|line| self.take(line));
        self.open = false;
        status.map(|status| status.success())
    }

    /// Keeps a line that is part of a report, up to `test result:`.
    fn take(&mut self, line: &str) {
        let line = line.trim_end();
        if line == "failures:" {
            self.open = true;
            self.parts.push(Vec::new());
        } else if line.starts_with("test result:") {
            self.open = false;
        }
        if let (true, false, Some(part)) = (self.open, line.is_empty(), self.parts.last_mut()) {
            part.push(line.chars().take(MAX_LINE_CHARS).collect());
        }
    }

    /// Prints the reports again.
    pub(crate) fn repeat(&self) {
        if !self.parts.is_empty() {
            println!("What failing tests said:");
        }
        for part in &self.parts {
            for line in part.iter().take(MAX_LINES) {
                println!("  {line}");
            }
            if let Some(more) = part.len().checked_sub(MAX_LINES).filter(|more| *more > 0) {
                println!("  … and {more} more lines");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reports_of_failing_tests_are_kept_and_nothing_else() {
        let mut reports = Reports::default();
        let printed = "test a ... ok\n\nfailures:\n\n---- b ----\nwhy\n\n\nfailures:\n    b\n\n\
                       test result: FAILED\ntest c ... ok\ntest result: ok\n";
        printed.lines().for_each(|line| reports.take(line));
        assert_eq!(
            reports.parts,
            [vec!["failures:", "---- b ----", "why"], vec!["failures:", "    b"]]
        );
    }

    #[test]
    fn a_command_is_followed_to_its_end_and_no_further() {
        let mut reports = Reports::default();
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 60 & echo failures:; echo why; exit 3"]);
        let start = std::time::Instant::now();
        assert!(matches!(reports.follow(&mut command, std::io::sink()), Ok(false)));
        assert_eq!(reports.parts, [["failures:", "why"]]);
        assert!(start.elapsed() < Duration::from_secs(30));
    }
}
