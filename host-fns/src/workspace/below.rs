//! Whole directories of the project, while a sync is planned.
//!
//! Invariant: a directory goes only with everything in it, and only if all of
//! it is what was agreed on and nothing in it is protected.

use std::io;

use fumehood_policies::{Guard, GuardFacts, Guarded};
use rustix::io::Errno as Host;

use crate::fs::handle::{Directory, Kind, MAX_DEPTH, joined};
use crate::workspace::journal::Settle;
use crate::workspace::plan::{Change, Item, Planner, Sink};
use crate::workspace::state::{self, MODE_BITS, State};

/// Whether this user may not look at something.
pub(super) fn is_denied(error: &io::Error) -> bool {
    matches!(Host::from_io_error(error), Some(Host::ACCESS | Host::PERM))
}

/// Opens a directory of the project; `None` if this user may not.
pub(super) fn readable(parent: &Directory, name: &[u8]) -> io::Result<Option<Directory>> {
    match parent.child(name) {
        Ok(dir) => Ok(Some(dir)),
        Err(Host::ACCESS | Host::PERM) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Whether the agent can be given what the user has there. What it cannot was
/// left out when the project was copied, and is not new each time.
pub(super) fn can_be_given(parent: &Directory, name: &[u8], kind: Kind) -> io::Result<bool> {
    let opened = match kind {
        Kind::File => parent.open_file(name).map(drop),
        Kind::Directory => parent.child(name).map(drop),
        Kind::Symlink => return Ok(true),
        Kind::Whiteout | Kind::Other => return Ok(false),
    };
    match opened {
        Err(Host::ACCESS | Host::PERM) => Ok(false),
        // What became of it meanwhile is seen when it is given.
        Ok(()) | Err(_) => Ok(true),
    }
}

impl<S: Sink> Planner<'_, S> {
    /// Whether everything in the project's directory is what was agreed on.
    pub(super) fn all_agreed(&self, item: &Item<'_>) -> io::Result<bool> {
        let Some(local) = item.pair.local else { return Ok(true) };
        match readable(local, item.name)? {
            Some(below) => self.agreed_below(&item.path, &below, item.pair.depth),
            None => Ok(false),
        }
    }

    fn agreed_below(&self, path: &[u8], local: &Directory, depth: usize) -> io::Result<bool> {
        if depth >= MAX_DEPTH {
            return Ok(false);
        }
        for name in local.names()? {
            let inner = joined(path, &name);
            let Some(agreed) = self.layer.baselines.get(&inner)? else { return Ok(false) };
            let state = state::read(local, &name);
            let same = if state.is_directory() {
                let below = readable(local, &name)?.filter(|_| agreed.state.is_directory());
                match below {
                    Some(below) => self.agreed_below(&inner, &below, depth.saturating_add(1))?,
                    None => false,
                }
            } else {
                state.same(&agreed.state)
            };
            if !same || self.layer.view.unseen(&name).is_some() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether a directory of the agent's, or one in it, is empty: it has no
    /// file that would show it.
    pub(super) fn holds_empty(&self, upper: &Directory) -> io::Result<bool> {
        let entries = upper.entries()?;
        if entries.is_empty() {
            return Ok(true);
        }
        for entry in entries.iter().filter(|entry| entry.kind == Kind::Directory) {
            let seen = self.layer.view.unseen(&entry.name).is_none();
            if seen && self.holds_empty(&upper.child(&entry.name)?)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Why a directory may not go, if anything in it is protected.
    pub(super) fn protected_in(&self, item: &Item<'_>) -> io::Result<Option<Guard>> {
        let Some(local) = item.pair.local else { return Ok(None) };
        self.protected_below(&item.path, &local.child(item.name)?)
    }

    fn protected_below(&self, path: &[u8], local: &Directory) -> io::Result<Option<Guard>> {
        for entry in local.entries()? {
            let inner = joined(path, &entry.name);
            let is_directory = entry.kind == Kind::Directory;
            let facts = GuardFacts { is_directory, ..GuardFacts::default() };
            let guard = self.judged(&inner, facts)?;
            if let Some(guard) = guard.filter(|guard| guard.action == Guarded::Protected)
                && !self.accepts(&inner)
            {
                return Ok(Some(guard));
            }
            if is_directory
                && let Some(guard) = self.protected_below(&inner, &local.child(&entry.name)?)?
            {
                return Ok(Some(guard));
            }
        }
        Ok(None)
    }

    /// Removes the project's directory; everything in it is agreed on.
    pub(super) fn remove_tree(&mut self, item: &Item<'_>) -> io::Result<()> {
        let Some(parent) = item.pair.local else { return Ok(()) };
        self.remove_below(&item.path, parent, item.name)
    }

    fn remove_below(&mut self, path: &[u8], parent: &Directory, name: &[u8]) -> io::Result<()> {
        let local = parent.child(name)?;
        for inner in local.names()? {
            let below = joined(path, &inner);
            let state = state::read(&local, &inner);
            if state.is_directory() {
                self.remove_below(&below, &local, &inner)?;
            } else {
                self.report.deleted(&below, false);
                self.sink.take(Change::Remove { place: &below, expected: &state })?;
                self.settle(&below, Settle::Took(State::Absent))?;
            }
        }
        let mode = local.look_self()?.mode & MODE_BITS;
        self.report.deleted(path, true);
        self.sink.take(Change::RemoveDirectory { place: path, mode })?;
        self.settle(path, Settle::Took(State::Absent))
    }

    /// The agent gets everything in a directory of the user's.
    pub(super) fn give_below(&mut self, item: &Item<'_>) -> io::Result<()> {
        let Some(parent) = item.pair.local else { return Ok(()) };
        self.give_tree(&item.path, parent, item.name, item.pair.depth)
    }

    fn give_tree(
        &mut self,
        path: &[u8],
        parent: &Directory,
        name: &[u8],
        depth: usize,
    ) -> io::Result<()> {
        if depth >= MAX_DEPTH {
            return Ok(());
        }
        let Some(local) = readable(parent, name)? else { return Ok(()) };
        for entry in local.entries()? {
            if self.layer.view.unseen(&entry.name).is_some()
                || !can_be_given(&local, &entry.name, entry.kind)?
            {
                continue;
            }
            let below = joined(path, &entry.name);
            self.settle(&below, Settle::Give)?;
            if entry.kind == Kind::Directory {
                self.give_tree(&below, &local, &entry.name, depth.saturating_add(1))?;
            }
        }
        Ok(())
    }
}
