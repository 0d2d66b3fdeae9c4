//! What a sync would change, as unified diffs.
//!
//! Invariant: no more of a file than [`MAX_DIFF_BYTES`] is read; names are
//! escaped, contents are given as they are.

use std::io::{self, Read as _, Write};

use similar::TextDiff;

use crate::fs::handle::Directory;
use crate::workspace::open::Workspace;
use crate::workspace::plan::{Change, Sink};
use crate::workspace::report::{ProjectPath, SyncReport};
use crate::workspace::state::State;
use crate::workspace::sync::{SyncError, SyncOptions};

/// Longest file that is compared line by line.
pub const MAX_DIFF_BYTES: u64 = 1 << 20;

struct Writer<'w> {
    project: &'w Directory,
    out: &'w mut dyn Write,
}

/// The text of a side; `None` if it is not text or too long.
fn text(dir: &Directory, name: &[u8], state: &State) -> io::Result<Option<Vec<u8>>> {
    match state {
        State::Absent => Ok(Some(Vec::new())),
        State::Symlink { target } => Ok(Some([b"link to ", target.as_slice(), b"\n"].concat())),
        State::File { size, .. } if *size <= MAX_DIFF_BYTES => {
            let (file, _) = dir.open_file(name)?;
            let mut bytes = Vec::new();
            file.take(MAX_DIFF_BYTES).read_to_end(&mut bytes)?;
            Ok(Some(bytes).filter(|bytes| !bytes.contains(&0)))
        }
        _ => Ok(None),
    }
}

impl Writer<'_> {
    fn compare(
        &mut self,
        place: &[u8],
        (old, before): (&State, Option<Vec<u8>>),
        (new, after): (&State, Option<Vec<u8>>),
    ) -> io::Result<()> {
        let name = ProjectPath(place.to_vec());
        let side = |state: &State, letter: &str| {
            if state.is_absent() { "/dev/null".to_owned() } else { format!("{letter}/{name}") }
        };
        let (left, right) = (side(old, "a"), side(new, "b"));
        if let (Some(was), Some(is)) = (old.mode(), new.mode())
            && was != is
        {
            writeln!(self.out, "permissions of {name}: {was:03o} -> {is:03o}")?;
        }
        match (before, after) {
            (Some(before), Some(after)) => TextDiff::from_lines(&before, &after)
                .unified_diff()
                .header(&left, &right)
                .to_writer(&mut self.out),
            _ => writeln!(self.out, "{left} and {right} differ; they are not text, or long"),
        }
    }
}

impl Sink for Writer<'_> {
    fn take(&mut self, change: Change<'_>) -> io::Result<()> {
        match change {
            Change::Put { place, expected, state, from } => {
                let before = match self.project.parent(place) {
                    Ok((dir, name)) => text(&dir, name, expected)?,
                    Err(_) => Some(Vec::new()),
                };
                let after = text(from.0, from.1, state)?;
                self.compare(place, (expected, before), (state, after))
            }
            Change::Remove { place, expected } => {
                let (dir, name) = self.project.parent(place)?;
                let before = text(&dir, name, expected)?;
                self.compare(place, (expected, before), (&State::Absent, Some(Vec::new())))
            }
            Change::Chmod { place, expected, mode } => {
                let name = ProjectPath(place.to_vec());
                let was = expected.mode().unwrap_or(0);
                writeln!(self.out, "permissions of {name}: {was:03o} -> {mode:03o}")
            }
            Change::Make { .. } | Change::RemoveDirectory { .. } | Change::Settle { .. } => Ok(()),
        }
    }
}

impl Workspace {
    /// Writes what a sync would change as unified diffs, and says what it
    /// would report. Names are escaped; contents are not.
    ///
    /// # Errors
    /// [`SyncError`] if the sides cannot be compared or `out` fails.
    pub fn diff(
        &self,
        options: &SyncOptions,
        out: &mut dyn Write,
    ) -> Result<SyncReport, SyncError> {
        let mut report = SyncReport::default();
        let mut writer = Writer { project: &self.project, out };
        self.plan(options, &mut writer, &mut report)?;
        Ok(report)
    }
}
