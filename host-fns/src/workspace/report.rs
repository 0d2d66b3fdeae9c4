//! What a sync did, or would do.

use fumehood_policies::{Guard, escape};
use serde::ser::{Serialize, SerializeSeq as _, SerializeStruct as _, Serializer};

/// Most paths of each list of a report; further ones are counted.
pub const MAX_REPORTED_PATHS: usize = 100_000;

/// A path relative to the project, in bytes. Shown and serialised escaped, so
/// that it is safe on one line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProjectPath(pub Vec<u8>);

impl std::fmt::Display for ProjectPath {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        escape(&self.0, formatter)
    }
}

impl Serialize for ProjectPath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A list that counts what is beyond its limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed<T> {
    /// The first ones.
    pub list: Vec<T>,
    /// How many more there are.
    pub not_listed: u64,
}

impl<T> Default for Listed<T> {
    fn default() -> Self {
        Self { list: Vec::new(), not_listed: 0 }
    }
}

impl<T> Listed<T> {
    pub(crate) fn push(&mut self, item: T) {
        if self.list.len() < MAX_REPORTED_PATHS {
            self.list.push(item);
        } else {
            self.not_listed = self.not_listed.saturating_add(1);
        }
    }

    /// Whether there is nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        (self.list.len() as u64).saturating_add(self.not_listed)
    }
}

impl<T: Serialize> Serialize for Listed<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.list.len()))?;
        for item in &self.list {
            list.serialize_element(item)?;
        }
        list.end()
    }
}

/// Both sides changed a path. The user's version stayed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The path.
    pub path: ProjectPath,
    /// Where the other version is, if there is one.
    pub beside: Option<ProjectPath>,
    /// What happened, as one clause.
    pub reason: &'static str,
}

impl Serialize for Conflict {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("Conflict", 3)?;
        fields.serialize_field("path", &self.path)?;
        fields.serialize_field("beside", &self.beside)?;
        fields.serialize_field("reason", self.reason)?;
        fields.end()
    }
}

/// A path that a tool of the host would run or obey.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardedPath {
    /// The path.
    pub path: ProjectPath,
    /// The rule that speaks about it.
    pub rule: &'static str,
    /// Why, as one clause.
    pub reason: &'static str,
}

impl GuardedPath {
    pub(crate) fn new(path: &[u8], guard: Guard) -> Self {
        Self { path: ProjectPath(path.to_vec()), rule: guard.rule, reason: guard.reason }
    }
}

impl Serialize for GuardedPath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("GuardedPath", 3)?;
        fields.serialize_field("path", &self.path)?;
        fields.serialize_field("rule", self.rule)?;
        fields.serialize_field("reason", self.reason)?;
        fields.end()
    }
}

/// What a sync did, or would do. Paths are relative to the project; a
/// directory ends in `/`.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct SyncReport {
    /// Made or replaced in the project.
    pub updated: Listed<ProjectPath>,
    /// Removed from the project.
    pub deleted: Listed<ProjectPath>,
    /// Changed on both sides.
    pub conflicts: Listed<Conflict>,
    /// Not taken, since a tool of the host would run or obey it.
    pub held_back: Listed<GuardedPath>,
    /// Taken, and worth a look for the same reason.
    pub flagged: Listed<GuardedPath>,
    /// Changed by the user since the last sync, where the agent did not touch
    /// it: the agent sees it.
    pub picked_up: Listed<ProjectPath>,
    /// Files of the project that the agent does not see, since they usually
    /// hold secrets.
    pub hidden: Listed<ProjectPath>,
}

impl SyncReport {
    /// Whether nothing was done and nothing has to be said.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.updated.is_empty()
            && self.deleted.is_empty()
            && self.conflicts.is_empty()
            && self.held_back.is_empty()
            && self.flagged.is_empty()
            && self.picked_up.is_empty()
    }

    /// How many paths are in none of the lists because those are full.
    #[must_use]
    pub fn not_listed(&self) -> u64 {
        let counts = [
            self.updated.not_listed,
            self.deleted.not_listed,
            self.conflicts.not_listed,
            self.held_back.not_listed,
            self.flagged.not_listed,
            self.picked_up.not_listed,
            self.hidden.not_listed,
        ];
        counts.into_iter().fold(0, u64::saturating_add)
    }

    pub(crate) fn updated(&mut self, path: &[u8], directory: bool) {
        self.updated.push(named(path, directory));
    }

    pub(crate) fn deleted(&mut self, path: &[u8], directory: bool) {
        self.deleted.push(named(path, directory));
    }

    pub(crate) fn conflict(&mut self, path: &[u8], beside: Option<&[u8]>, reason: &'static str) {
        let beside = beside.map(|path| ProjectPath(path.to_vec()));
        self.conflicts.push(Conflict { path: ProjectPath(path.to_vec()), beside, reason });
    }
}

impl SyncReport {
    /// A conflict of a directory, before those in it, of which `at` is the first.
    pub(crate) fn conflict_before(
        &mut self,
        at: usize,
        path: &[u8],
        beside: &[u8],
        reason: &'static str,
    ) {
        let (path, beside) = (ProjectPath(path.to_vec()), Some(ProjectPath(beside.to_vec())));
        let list = &mut self.conflicts.list;
        if list.len() < MAX_REPORTED_PATHS && at <= list.len() {
            list.insert(at, Conflict { path, beside, reason });
        } else {
            self.conflicts.not_listed = self.conflicts.not_listed.saturating_add(1);
        }
    }
}

fn named(path: &[u8], directory: bool) -> ProjectPath {
    let mut path = path.to_vec();
    if directory {
        path.push(b'/');
    }
    ProjectPath(path)
}
