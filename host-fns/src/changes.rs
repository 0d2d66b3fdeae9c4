//! What changed since the last report, by canonical path.
//!
//! Invariant: each path is in at most one state, relative to the last report:
//! made and removed again is nothing, removed and made again is modified.

use fumehood_policies::GuestPath;
use imbl::OrdMap;

use crate::report::FileChanges;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Created,
    Modified,
    Deleted,
}

/// A change and whether it is of a directory.
type Tracked = (Change, bool);

/// Cloning is O(1).
#[derive(Clone, Debug)]
pub(crate) struct Changes {
    limit: usize,
    paths: OrdMap<GuestPath, Tracked>,
    not_listed: u64,
}

impl Changes {
    pub(crate) fn new(limit: u32) -> Self {
        Self { limit: limit as usize, paths: OrdMap::new(), not_listed: 0 }
    }

    fn set(&mut self, path: &GuestPath, change: Change, directory: bool) {
        if self.paths.len() >= self.limit && !self.paths.contains_key(path) {
            self.not_listed = self.not_listed.saturating_add(1);
        } else {
            self.paths.insert(path.clone(), (change, directory));
        }
    }

    pub(crate) fn created(&mut self, path: &GuestPath, directory: bool) {
        match self.paths.get(path) {
            Some((Change::Deleted, true)) if directory => {
                self.paths.remove(path);
            }
            Some((Change::Deleted, _)) => self.set(path, Change::Modified, directory),
            Some(_) => {}
            None => self.set(path, Change::Created, directory),
        }
    }

    pub(crate) fn modified(&mut self, path: &GuestPath) {
        if !matches!(self.paths.get(path), Some((Change::Created | Change::Modified, _))) {
            self.set(path, Change::Modified, false);
        }
    }

    pub(crate) fn deleted(&mut self, path: &GuestPath, directory: bool) {
        if let Some((Change::Created, _)) = self.paths.get(path) {
            self.paths.remove(path);
        } else {
            self.set(path, Change::Deleted, directory);
        }
    }

    /// What is known below a moved directory moves with it; the directory
    /// itself stands for the rest.
    pub(crate) fn renamed(
        &mut self,
        from: &GuestPath,
        to: &GuestPath,
        directory: bool,
        replaced: bool,
    ) {
        if directory {
            let below: Vec<(GuestPath, Tracked)> = self
                .paths
                .range(from.clone()..)
                .take_while(|(path, _)| path.as_bytes().starts_with(from.as_bytes()))
                .filter(|(path, _)| *path != from && path.starts_with(from))
                .map(|(path, tracked)| (path.clone(), *tracked))
                .collect();
            for (path, (change, is_directory)) in below {
                if change == Change::Deleted {
                    continue;
                }
                self.paths.remove(&path);
                if change == Change::Modified {
                    self.set(&path, Change::Deleted, is_directory);
                }
                if let Some(moved) = path.rebase(from, to) {
                    self.set(&moved, Change::Created, is_directory);
                }
            }
        }
        self.deleted(from, directory);
        if replaced && !directory {
            self.modified(to);
        } else {
            self.created(to, directory);
        }
    }

    /// Takes over what `other` knows of paths that `wanted` names, and forgets
    /// its own about them.
    pub(crate) fn replace_where(&mut self, other: &Self, wanted: impl Fn(&GuestPath) -> bool) {
        let kept = self.paths.iter().filter(|(path, _)| !wanted(path));
        let taken = other.paths.iter().filter(|(path, _)| wanted(path));
        self.paths = kept.chain(taken).map(|(path, tracked)| (path.clone(), *tracked)).collect();
    }

    pub(crate) fn take(&mut self) -> FileChanges {
        let mut report = FileChanges {
            not_listed: std::mem::take(&mut self.not_listed),
            ..FileChanges::default()
        };
        for (path, (change, directory)) in std::mem::take(&mut self.paths) {
            let shown = if directory { format!("{path}/") } else { path.to_string() };
            match change {
                Change::Created => report.created.push(shown),
                Change::Modified => report.modified.push(shown),
                Change::Deleted => report.deleted.push(shown),
            }
        }
        report
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(raw: &str) -> GuestPath {
        GuestPath::parse(&GuestPath::root(), raw.as_bytes())
            .unwrap_or_else(|error| unreachable!("{error}"))
            .path
    }

    #[test]
    fn states_are_relative_to_the_last_report() {
        let mut changes = Changes::new(100);
        changes.created(&path("/a"), false);
        changes.modified(&path("/a"));
        changes.created(&path("/gone"), false);
        changes.deleted(&path("/gone"), false);
        changes.deleted(&path("/back"), false);
        changes.created(&path("/back"), false);
        changes.deleted(&path("/old"), false);
        changes.created(&path("/d"), true);
        changes.created(&path("/d/f"), false);
        changes.renamed(&path("/d"), &path("/e"), true, false);
        let report = changes.take();
        assert_eq!(report.created, ["/a", "/e/", "/e/f"]);
        assert_eq!(report.modified, ["/back"]);
        assert_eq!(report.deleted, ["/old"]);
        assert_eq!(changes.take(), FileChanges::default());
    }

    #[test]
    fn beyond_the_limit_changes_are_counted() {
        let mut changes = Changes::new(2);
        for name in ["/a", "/b", "/c", "/d"] {
            changes.created(&path(name), false);
        }
        let report = changes.take();
        assert_eq!((report.created.len(), report.not_listed), (2, 2));
    }
}
