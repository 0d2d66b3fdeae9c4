//! Carrying out what a journal says, and taking it back.
//!
//! Invariant: what is displaced goes into the stage and is compared with what
//! was agreed on. If it is something else, everything is taken back. Whatever
//! of the user's cannot be put back where it was is kept beside as
//! `<file>.local`, numbered; nothing is ever removed that is not the agent's
//! own or what both sides agreed on.

use std::io;

use rustix::io::Errno as Host;

use crate::fs::handle::{Directory, Kind, joined, split};
use crate::workspace::journal::{Entry, Journal, Op};
use crate::workspace::state::{self, State};
use crate::workspace::steps::{Every, Steps};

/// Most tries for a free numbered name.
const NAME_ATTEMPTS: u32 = 10_000;

/// Why applying stopped.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The project is not what the plan was made for.
    Changed,
    /// It cannot be done.
    Failed(io::Error),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

impl From<Host> for Stop {
    fn from(error: Host) -> Self {
        match error {
            Host::NOENT
            | Host::EXIST
            | Host::NOTDIR
            | Host::ISDIR
            | Host::LOOP
            | Host::NOTEMPTY => Self::Changed,
            error => Self::Failed(error.into()),
        }
    }
}

/// The name of an item in the stage.
pub(crate) fn item_name(item: u64) -> Vec<u8> {
    item.to_string().into_bytes()
}

/// A name beside `name` that is free in a directory: `<name><suffix>`, then
/// numbered.
pub(crate) fn beside(name: &[u8], suffix: &str, taken: impl Fn(&[u8]) -> bool) -> Option<Vec<u8>> {
    (1..NAME_ATTEMPTS).find_map(|number| {
        let tail = if number == 1 { suffix.to_owned() } else { format!("{suffix}.{number}") };
        let room = fumehood_policies::MAX_COMPONENT_BYTES.saturating_sub(tail.len());
        let mut candidate = name.get(..name.len().min(room)).unwrap_or_default().to_vec();
        candidate.extend_from_slice(tail.as_bytes());
        (!taken(&candidate)).then_some(candidate)
    })
}

/// A directory is never displaced: what is in it was not looked at.
fn check_no_directory(parent: &Directory, name: &[u8], expected: &State) -> Result<(), Stop> {
    let found = parent.look(name)?;
    if expected.is_directory() || found.is_some_and(|look| look.kind == Kind::Directory) {
        return Err(Stop::Changed);
    }
    Ok(())
}

/// Applies the operations of one journal.
pub(crate) struct Applier<'w> {
    pub(crate) project: &'w Directory,
    pub(crate) stage: &'w Directory,
    pub(crate) steps: &'w dyn Steps,
}

impl Applier<'_> {
    /// Carries every operation out; on failure everything is taken back.
    ///
    /// # Errors
    /// [`Stop`] with the project as it was; [`io::Error`] inside the outer
    /// result if it cannot be taken back completely: the stage then holds what
    /// is missing.
    pub(crate) fn apply(&self, journal: &Journal) -> io::Result<Result<(), Stop>> {
        for number in 0..journal.len() {
            let Entry::Op(op) = journal.get(number)? else { continue };
            let done =
                self.steps.step("apply").map_err(Stop::from).and_then(|()| self.forward(&op));
            if let Err(stop) = done {
                self.take_back(journal, number.saturating_add(1))?;
                return Ok(Err(stop));
            }
        }
        Ok(Ok(()))
    }

    /// Takes back the first entries of a journal, the last one first.
    pub(crate) fn take_back(&self, journal: &Journal, entries: usize) -> io::Result<()> {
        let mut failed = Ok(());
        for number in (0..entries).rev() {
            if let Entry::Op(op) = journal.get(number)? {
                self.steps.step("take back")?;
                failed = failed.and(self.backward(&op));
            }
        }
        failed
    }

    fn forward(&self, op: &Op) -> Result<(), Stop> {
        match op {
            Op::Make { path, item, .. } => {
                let (parent, name) = self.project.parent(path)?;
                self.stage.move_new(&item_name(*item), &parent, name)?;
            }
            Op::Put { path, item, expected: State::Absent, .. } => {
                let (parent, name) = self.project.parent(path)?;
                self.stage.move_new(&item_name(*item), &parent, name)?;
            }
            Op::Put { path, item, expected, .. } => {
                let (parent, name) = self.project.parent(path)?;
                let item = item_name(*item);
                check_no_directory(&parent, name, expected)?;
                self.stage.exchange(&item, &parent, name)?;
                self.steps.step("exchanged")?;
                self.check(&item, expected)?;
            }
            Op::Chmod { path, expected, mode } => {
                let (parent, name) = self.project.parent(path)?;
                if !state::read(&parent, name).same(expected) {
                    return Err(Stop::Changed);
                }
                parent.set_mode(name, *mode)?;
            }
            Op::Remove { path, item, expected } => {
                let (parent, name) = self.project.parent(path)?;
                let item = item_name(*item);
                check_no_directory(&parent, name, expected)?;
                parent.move_new(name, self.stage, &item)?;
                self.steps.step("removed")?;
                self.check(&item, expected)?;
            }
            Op::RemoveDirectory { path, .. } => {
                let (parent, name) = self.project.parent(path)?;
                parent.remove_directory(name)?;
            }
        }
        Ok(())
    }

    fn check(&self, item: &[u8], expected: &State) -> Result<(), Stop> {
        if !expected.is_directory() && state::read(self.stage, item).same(expected) {
            Ok(())
        } else {
            Err(Stop::Changed)
        }
    }

    fn backward(&self, op: &Op) -> io::Result<()> {
        match op {
            Op::Make { path, inode, .. } => self.unmake(path, *inode),
            Op::Put { path, item, inode, expected: State::Absent, state } => {
                self.unput(path, &item_name(*item), *inode, state)
            }
            Op::Put { path, item, inode, expected, state } => {
                self.put_back(path, &item_name(*item), *inode, expected, state)
            }
            Op::Chmod { path, expected, mode } => self.unchmod(path, expected, *mode),
            Op::Remove { path, item, expected } => {
                let item = item_name(*item);
                if self.stage.look(&item)?.is_none() {
                    Ok(())
                } else {
                    self.restore(path, &item, expected)
                }
            }
            Op::RemoveDirectory { path, mode } => self.remake(path, *mode),
        }
    }

    /// The directory of a path and its name; `None` if the user moved it away.
    fn place<'p>(&self, path: &'p [u8]) -> Option<(Directory, &'p [u8])> {
        self.project.parent(path).ok()
    }

    fn unmake(&self, path: &[u8], inode: u64) -> io::Result<()> {
        let Some((parent, name)) = self.place(path) else { return Ok(()) };
        let ours =
            |look: crate::fs::handle::Look| look.kind == Kind::Directory && look.inode == inode;
        if !parent.look(name)?.is_some_and(ours) {
            return Ok(());
        }
        match parent.remove_directory(name) {
            // The user put something into it.
            Ok(()) | Err(Host::NOTEMPTY | Host::EXIST | Host::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn unput(&self, path: &[u8], item: &[u8], inode: u64, state: &State) -> io::Result<()> {
        let Some((parent, name)) = self.place(path) else { return Ok(()) };
        if parent.look(name)?.is_none_or(|look| look.inode != inode) {
            return Ok(());
        }
        match parent.move_new(name, self.stage, item) {
            Ok(()) => {}
            Err(Host::NOENT | Host::EXIST) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        if state::read(self.stage, item).same(state) {
            return Ok(());
        }
        // The user wrote into it in the meantime, or replaced it.
        self.restore(path, item, &State::Unknown)
    }

    /// Puts a displaced file back.
    fn put_back(
        &self,
        path: &[u8],
        item: &[u8],
        inode: u64,
        expected: &State,
        state: &State,
    ) -> io::Result<()> {
        match self.stage.look(item)? {
            None => return Ok(()),
            Some(look) if look.inode == inode => return Ok(()),
            Some(_) => {}
        }
        let place = self.place(path);
        let Some((parent, name)) = place else { return self.keep_beside(path, item) };
        let ours = parent.look(name)?.is_some_and(|look| look.inode == inode);
        if !ours {
            return self.restore(path, item, expected);
        }
        match self.stage.exchange(item, &parent, name) {
            Ok(()) => {}
            Err(Host::NOENT) => return self.restore(path, item, expected),
            Err(error) => return Err(error.into()),
        }
        if state::read(self.stage, item).same(state) {
            return Ok(());
        }
        // The user changed the agent's version in the meantime: that is the
        // newest. What was displaced first goes beside it, unless it is what
        // both sides agreed on.
        match self.stage.exchange(item, &parent, name) {
            Ok(()) => self.restore(path, item, expected),
            Err(Host::NOENT) => self.restore(path, item, &State::Unknown),
            Err(error) => Err(error.into()),
        }
    }

    /// Puts an item back under its path if that is free; if it is not and the
    /// item is not what was agreed on, beside it.
    fn restore(&self, path: &[u8], item: &[u8], expected: &State) -> io::Result<()> {
        let Some((parent, name)) = self.place(path) else { return self.keep_beside(path, item) };
        match self.stage.move_new(item, &parent, name) {
            Ok(()) => Ok(()),
            Err(Host::EXIST) if self.check(item, expected).is_ok() => Ok(()),
            Err(Host::EXIST | Host::NOENT | Host::NOTDIR) => self.keep_beside(path, item),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes the stage. A directory in it that is not empty is none that was
    /// put together there: it goes back into the project.
    pub(crate) fn remove_stage(project: &Directory, name: &[u8]) -> io::Result<()> {
        let stage = match project.child(name) {
            Ok(stage) => stage,
            Err(Host::NOENT) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let rescuer = Applier { project, stage: &stage, steps: &Every };
        for entry in stage.entries()? {
            if entry.kind != Kind::Directory {
                stage.remove_file(&entry.name)?;
                continue;
            }
            match stage.remove_directory(&entry.name) {
                Ok(()) => {}
                Err(Host::NOTEMPTY | Host::EXIST) => rescuer.keep_beside(b"moved", &entry.name)?,
                Err(error) => return Err(error.into()),
            }
        }
        project.remove_directory(name).map_err(Into::into)
    }

    /// Keeps an item as `<file>.local`, in its directory or in the project's
    /// own.
    pub(crate) fn keep_beside(&self, path: &[u8], item: &[u8]) -> io::Result<()> {
        self.kept_beside(path, item).map(drop)
    }

    /// The same, and where.
    pub(crate) fn kept_beside(&self, path: &[u8], item: &[u8]) -> io::Result<Vec<u8>> {
        let (above, name) = split(path);
        let (parent, above) = match self.project.beneath(above) {
            Ok(parent) => (parent, above),
            Err(_) => (Directory::again(self.project)?, &[][..]),
        };
        for _ in 0..NAME_ATTEMPTS {
            let taken = |name: &[u8]| !matches!(parent.look(name), Ok(None));
            let free = beside(name, ".local", taken)
                .ok_or_else(|| io::Error::other("no free name beside a file"))?;
            match self.stage.move_new(item, &parent, &free) {
                Ok(()) => return Ok(joined(above, &free)),
                Err(Host::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(io::Error::other("no free name beside a file"))
    }

    fn unchmod(&self, path: &[u8], expected: &State, mode: u32) -> io::Result<()> {
        let (Some((parent, name)), Some(old)) = (self.place(path), expected.mode()) else {
            return Ok(());
        };
        let now = state::read(&parent, name);
        if now.same_content(expected) && now.mode() == Some(mode) {
            parent.set_mode(name, old)?;
        }
        Ok(())
    }

    fn remake(&self, path: &[u8], mode: u32) -> io::Result<()> {
        let Some((parent, name)) = self.place(path) else { return Ok(()) };
        match parent.make_directory(name, mode) {
            Ok(()) => parent.set_mode(name, mode).map_err(Into::into),
            Err(Host::EXIST) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
