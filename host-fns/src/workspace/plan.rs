//! Comparing what the agent has, what the user has, and what both last agreed
//! on.
//!
//! Invariant: a change of the agent's is taken only where the project is what
//! was agreed on; what is the same on both sides is silent; everything else is
//! a conflict, in which the user's version stays and the agent's goes beside
//! it. No more is held in memory than the names of the directories on the way.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::io;

use rustix::io::Errno as Host;

use crate::fs::handle::{Directory, Kind, Look, MAX_DEPTH, joined};
use crate::fs::overlay::{Layer, holds_file_whiteouts, is_opaque};
use crate::workspace::apply::beside;
use crate::workspace::baseline::Agreed;
use crate::workspace::below::{can_be_given, is_denied, readable};
use crate::workspace::guarded::Shape;
use crate::workspace::journal::Settle;
use crate::workspace::links::Links;
use crate::workspace::report::{ProjectPath, SyncReport};
use crate::workspace::state::{self, Identity, MODE_BITS, State};
use crate::workspace::view::Unseen;

/// One thing that is to be done.
#[derive(Debug)]
pub(crate) enum Change<'a> {
    Make { place: &'a [u8], mode: u32 },
    Put { place: &'a [u8], expected: &'a State, state: &'a State, from: (&'a Directory, &'a [u8]) },
    Chmod { place: &'a [u8], expected: &'a State, mode: u32 },
    Remove { place: &'a [u8], expected: &'a State },
    RemoveDirectory { place: &'a [u8], mode: u32 },
    Settle { path: &'a [u8], settle: Settle },
}

/// Takes what is to be done, in order.
pub(crate) trait Sink {
    fn take(&mut self, change: Change<'_>) -> io::Result<()>;
}

/// What a plan is made of.
pub(crate) struct Planner<'w, S: Sink> {
    pub(crate) project: &'w Directory,
    /// The name of that directory.
    pub(crate) named: &'w [u8],
    /// Its links, looked for when the first change is judged.
    pub(crate) links: OnceCell<Links>,
    pub(crate) layer: &'w Layer,
    /// The upper tree is a whole copy: nothing of the project shows through.
    pub(crate) whole: bool,
    /// Paths that are taken although they are protected.
    pub(crate) accepted: &'w [Vec<u8>],
    /// What an earlier sync held back is named again.
    pub(crate) tell_held_again: bool,
    pub(crate) now: i128,
    pub(crate) sink: &'w mut S,
    pub(crate) report: &'w mut SyncReport,
    /// How much is held back, told or not.
    pub(crate) held: u64,
    /// Directories that are made as soon as something goes into them.
    pub(crate) pending: Vec<(Vec<u8>, u32)>,
}

/// A directory that is compared.
pub(super) struct Pair<'d> {
    path: &'d [u8],
    pub(super) upper: &'d Directory,
    /// The project's directory at the same path.
    pub(super) local: Option<&'d Directory>,
    /// Where in the project things of this directory go; another path than
    /// `path` below something that is kept aside.
    place: &'d [u8],
    pub(super) opaque: bool,
    /// The directory that holds this one is a git repository by its files.
    in_repository: bool,
    pub(super) depth: usize,
}

impl Pair<'_> {
    fn aside(&self) -> bool {
        self.path != self.place
    }
}

/// One name of a directory that is compared.
pub(super) struct Item<'d> {
    pub(super) pair: &'d Pair<'d>,
    pub(super) name: &'d [u8],
    pub(super) path: Vec<u8>,
    place: Vec<u8>,
    pub(super) agreed: Option<Agreed>,
    chosen: &'d mut BTreeSet<Vec<u8>>,
    pub(super) in_repository: bool,
    /// The agent's changes make a git repository of the directory that holds
    /// it.
    pub(super) completes: bool,
}

impl Item<'_> {
    fn base(&self) -> State {
        self.agreed.as_ref().map_or(State::Absent, |agreed| agreed.state.clone())
    }

    fn local_look(&self) -> io::Result<Option<Look>> {
        match self.pair.local {
            Some(dir) => match dir.look(self.name) {
                Ok(look) => Ok(look),
                Err(Host::NOTDIR) => Ok(None),
                Err(error) => Err(error.into()),
            },
            None => Ok(None),
        }
    }

    fn local_state(&self) -> (State, Option<Identity>) {
        match self.pair.local {
            Some(dir) => state::read_seen(dir, self.name),
            None => (State::Absent, None),
        }
    }
}

const BOTH_CHANGED: &str = "both sides changed it";
const REMOVED_HERE: &str = "you removed it and the agent changed it";
const REMOVED_THERE: &str = "the agent removed it and you changed it";
const OTHER_KIND: &str = "it is a file on one side and a directory or link on the other";
const NOT_SEEN: &str = "the agent removed the directory and it holds files that the agent did not see or that you changed";
const BOTH_MODES: &str = "both sides changed its permissions";
const UNREADABLE: &str = "it cannot be read, or changed while it was read";

impl<S: Sink> Planner<'_, S> {
    /// Compares everything.
    pub(crate) fn run(&mut self) -> io::Result<()> {
        let pair = Pair {
            path: &[],
            upper: &self.layer.upper,
            local: Some(self.project),
            place: &[],
            opaque: self.whole,
            in_repository: false,
            depth: 0,
        };
        self.directory(&pair)
    }

    fn directory(&mut self, pair: &Pair<'_>) -> io::Result<()> {
        // The handle of the upper tree counts as one.
        if pair.depth.saturating_add(1) >= MAX_DEPTH {
            return Err(io::Error::other("directories lie too deep within each other"));
        }
        let mut names: BTreeSet<Vec<u8>> = pair.upper.names()?.into_iter().collect();
        if pair.opaque
            && let Some(local) = pair.local
        {
            names.extend(local.names()?);
        }
        let in_files = holds_file_whiteouts(pair.upper)?;
        let Shape { repository, completed } = self.shape(pair)?;
        let mut chosen = BTreeSet::new();
        for name in &names {
            match self.layer.view.unseen(name) {
                Some(Unseen::Excluded) => continue,
                Some(Unseen::Secret) if pair.upper.look(name)?.is_none() => {
                    if self.whole {
                        self.report.hidden.push(ProjectPath(joined(pair.path, name)));
                    }
                    continue;
                }
                _ => {}
            }
            let path = joined(pair.path, name);
            let agreed = self.layer.baselines.get(&path)?;
            let item = Item {
                pair,
                name,
                place: joined(pair.place, name),
                path,
                agreed,
                chosen: &mut chosen,
                in_repository: repository || pair.in_repository,
                completes: completed,
            };
            let over = pair.upper.look(name)?;
            let gone = match &over {
                None => true,
                Some(look) => Layer::is_whiteout(pair.upper, name, look, in_files)?,
            };
            match over {
                Some(look) if !gone && look.kind == Kind::Directory => {
                    self.agent_has_directory(item, &look, repository)?;
                }
                Some(look) if !gone => self.agent_has_file(item, &look)?,
                over => self.agent_has_nothing(item, over.is_some())?,
            }
        }
        Ok(())
    }

    pub(super) fn settle(&mut self, path: &[u8], settle: Settle) -> io::Result<()> {
        self.sink.take(Change::Settle { path, settle })
    }

    /// Makes the directories above something that is put.
    fn flush(&mut self) -> io::Result<()> {
        for (place, mode) in std::mem::take(&mut self.pending) {
            self.sink.take(Change::Make { place: &place, mode })?;
            if self.whole {
                self.settle(&place, Settle::Give)?;
            }
        }
        Ok(())
    }

    /// A free name beside a path of the project.
    fn free_beside(&self, item: &mut Item<'_>) -> io::Result<Vec<u8>> {
        let (pair, chosen) = (item.pair, &item.chosen);
        let taken = |name: &[u8]| {
            let local = pair.local.is_some_and(|dir| !matches!(dir.look(name), Ok(None)));
            local || !matches!(pair.upper.look(name), Ok(None)) || chosen.contains(name)
        };
        let free = beside(item.name, ".sandbox", taken)
            .ok_or_else(|| io::Error::other("no free name beside a file"))?;
        item.chosen.insert(free.clone());
        Ok(joined(pair.place, &free))
    }

    fn agent_has_file(&mut self, mut item: Item<'_>, look: &Look) -> io::Result<()> {
        if self.is_untouched(&item, look)? {
            return Ok(());
        }
        let (agent, seen) = state::read_seen(item.pair.upper, item.name);
        if matches!(agent, State::Unknown) {
            self.report.conflict(&item.path, None, UNREADABLE);
            return Ok(());
        }
        let base = item.base();
        let (local, local_seen) = item.local_state();
        if agent.same(&base) {
            return self.only_user(&item, &local, (seen, local_seen));
        }
        if agent.same(&local) {
            return self.settle(&item.path, Settle::Took(agent));
        }
        if self.held(&item, &agent)? {
            return Ok(());
        }
        if item.pair.aside() {
            return self.put_aside(&mut item, &agent, REMOVED_HERE);
        }
        if local.same(&base) && !local.is_directory() {
            return self.take(&item, &local, &agent);
        }
        if local.is_directory() && base.is_directory() && self.all_agreed(&item)? {
            if let Some(guard) = self.protected_in(&item)? {
                return self.hold(&item, &agent, guard);
            }
            self.remove_tree(&item)?;
            return self.take(&item, &State::Absent, &agent);
        }
        let reason = match (&local, &base) {
            (State::Absent, _) => REMOVED_HERE,
            (State::Unknown, _) => UNREADABLE,
            (State::File { .. }, State::Symlink { .. })
            | (State::Symlink { .. } | State::Directory { .. }, _) => OTHER_KIND,
            _ if local.same_content(&base) && agent.same_content(&base) => BOTH_MODES,
            _ => BOTH_CHANGED,
        };
        self.put_aside(&mut item, &agent, reason)
    }

    /// Whether both sides are what they were when they were last read.
    fn is_untouched(&self, item: &Item<'_>, look: &Look) -> io::Result<bool> {
        let Some(agreed) = &item.agreed else { return Ok(false) };
        let (Some(workspace), Some(project)) = (agreed.workspace, agreed.project) else {
            return Ok(false);
        };
        let local = item.local_look()?;
        Ok(workspace == Identity::of(look)
            && local.is_some_and(|look| Identity::of(&look) == project))
    }

    /// The agent has what was agreed on.
    fn only_user(
        &mut self,
        item: &Item<'_>,
        local: &State,
        seen: (Option<Identity>, Option<Identity>),
    ) -> io::Result<()> {
        if local.same(&item.base()) {
            if self.whole {
                self.remember(item, seen)?;
                return Ok(());
            }
            return self.settle(&item.path, Settle::Give);
        }
        self.report.picked_up.push(ProjectPath(item.path.clone()));
        self.settle(&item.path, Settle::Give)?;
        if local.is_directory() { self.give_below(item) } else { Ok(()) }
    }

    /// Notes when both sides were read, so that they need not be read again.
    fn remember(
        &self,
        item: &Item<'_>,
        (workspace, project): (Option<Identity>, Option<Identity>),
    ) -> io::Result<()> {
        let settled = |identity: Option<Identity>| identity.filter(|seen| seen.settled(self.now));
        let (workspace, project) = (settled(workspace), settled(project));
        if let (Some(agreed), Some(_), Some(_)) = (&item.agreed, workspace, project) {
            self.layer.baselines.set(&Agreed { workspace, project, ..agreed.clone() })?;
        }
        Ok(())
    }

    /// Takes the agent's file where the project has what was agreed on.
    fn take(&mut self, item: &Item<'_>, local: &State, agent: &State) -> io::Result<()> {
        self.flush()?;
        self.report.updated(&item.place, false);
        if let (State::File { .. }, Some(mode)) = (agent, agent.mode())
            && agent.same_content(local)
        {
            self.sink.take(Change::Chmod { place: &item.place, expected: local, mode })?;
        } else {
            let from = (item.pair.upper, item.name);
            self.sink.take(Change::Put {
                place: &item.place,
                expected: local,
                state: agent,
                from,
            })?;
        }
        self.settle(&item.path, Settle::Took(agent.clone()))
    }

    /// The user's version stays, the agent's goes beside it.
    fn put_aside(
        &mut self,
        item: &mut Item<'_>,
        agent: &State,
        reason: &'static str,
    ) -> io::Result<()> {
        // Below a directory that is kept aside everything is new.
        let place = if item.pair.aside() { item.place.clone() } else { self.free_beside(item)? };
        self.flush()?;
        self.report.conflict(&item.path, Some(&place), reason);
        let from = (item.pair.upper, item.name);
        let expected = &State::Absent;
        self.sink.take(Change::Put { place: &place, expected, state: agent, from })?;
        if self.whole {
            self.settle(&place, Settle::Give)?;
        }
        self.settle(&item.path, Settle::Give)?;
        let over = item.local_look()?.is_some_and(|look| look.kind == Kind::Directory);
        if over && self.whole { self.give_below(item) } else { Ok(()) }
    }

    fn agent_has_directory(
        &mut self,
        mut item: Item<'_>,
        look: &Look,
        repository: bool,
    ) -> io::Result<()> {
        let upper = item.pair.upper.child(item.name)?;
        let agent = State::Directory { mode: look.mode & MODE_BITS };
        let base = item.base();
        let local = item.local_look()?;
        let kind = local.map(|look| look.kind);
        let child = match (item.pair.local, kind) {
            (Some(dir), Some(Kind::Directory)) => readable(dir, item.name)?,
            _ => None,
        };
        let opaque = item.pair.opaque || is_opaque(&upper)?;
        let depth = self.pending.len();
        let mut place = item.place.clone();
        let (mut removed_here, mut clash) = (false, None);
        let mut settled = Settle::Took(agent.clone());
        if child.is_some() {
            settled = self.directory_mode(&item, &agent, local)?;
        } else if item.pair.aside() {
            self.pending.push((place.clone(), look.mode & MODE_BITS));
        } else {
            let (state, _) = item.local_state();
            let comes = state.same(&base) && !state.is_directory();
            if comes && self.directory_held(&item, &state, &agent)? {
                return Ok(());
            }
            match (&state, &base) {
                (State::Absent, State::Absent) => {
                    self.pending.push((place.clone(), look.mode & MODE_BITS));
                    self.flush()?;
                    self.report.updated(&place, true);
                }
                (now, was) if now.same(was) && !now.is_directory() => {
                    self.replace_by_directory(&item, now, look.mode & MODE_BITS)?;
                }
                _ => {
                    place = self.free_beside(&mut item)?;
                    self.pending.push((place.clone(), look.mode & MODE_BITS));
                    removed_here = state.is_absent() || base.is_directory();
                    if !removed_here {
                        clash = Some(self.report.conflicts.list.len());
                        if self.holds_empty(&upper)? {
                            self.flush()?;
                        }
                    }
                }
            }
        }
        let pair = Pair {
            path: &item.path,
            upper: &upper,
            local: child.as_ref(),
            place: &place,
            opaque,
            in_repository: repository,
            depth: item.pair.depth.saturating_add(1),
        };
        self.directory(&pair)?;
        // Nothing of the agent's went into a directory that the user removed, or
        // that cannot be where the user has a file.
        let unused = self.pending.len() > depth;
        if let Some(at) = clash.filter(|_| !unused) {
            self.report.conflict_before(at, &item.path, &place, OTHER_KIND);
        }
        self.pending.truncate(depth);
        if pair.aside() || (removed_here && unused) {
            if removed_here && unused && self.whole {
                self.report.picked_up.push(ProjectPath(item.path.clone()));
            }
            return self.settle(&item.path, Settle::Give);
        }
        match &settled {
            Settle::Took(state) if self.whole && state.same(&base) => Ok(()),
            _ => self.settle(&item.path, settled),
        }
    }

    fn replace_by_directory(&mut self, item: &Item<'_>, now: &State, mode: u32) -> io::Result<()> {
        self.sink.take(Change::Remove { place: &item.place, expected: now })?;
        self.sink.take(Change::Make { place: &item.place, mode })?;
        self.report.updated(&item.place, true);
        Ok(())
    }

    /// Both sides have the directory: what becomes of its permissions.
    fn directory_mode(
        &mut self,
        item: &Item<'_>,
        agent: &State,
        local: Option<Look>,
    ) -> io::Result<Settle> {
        let has = local.map_or(0, |look| look.mode & MODE_BITS);
        let expected = State::Directory { mode: has };
        let (State::Directory { mode: was }, Some(wants)) = (item.base(), agent.mode()) else {
            return Ok(Settle::Give);
        };
        if wants == was || wants == has {
            let same = wants == has;
            return Ok(if same { Settle::Took(expected) } else { Settle::Give });
        }
        if has != was {
            self.report.conflict(&item.path, None, BOTH_MODES);
            return Ok(Settle::Give);
        }
        self.report.updated(&item.place, true);
        self.sink.take(Change::Chmod { place: &item.place, expected: &expected, mode: wants })?;
        Ok(Settle::Took(agent.clone()))
    }

    /// The agent removed it, or never had it.
    fn agent_has_nothing(&mut self, item: Item<'_>, whiteout: bool) -> io::Result<()> {
        let local = item.local_look();
        if item.agreed.is_none() && local.as_ref().is_err_and(is_denied) {
            return Ok(());
        }
        let local = local?;
        if item.agreed.is_none() {
            return match local {
                // It came after the agent had looked.
                Some(look) => self.new_from_user(&item, &look, whiteout),
                None => self.settle(&item.path, Settle::Took(State::Absent)),
            };
        }
        let base = item.base();
        let Some(look) = local else {
            return self.settle(&item.path, Settle::Took(State::Absent));
        };
        if base.is_absent() {
            return self.new_from_user(&item, &look, false);
        }
        if look.kind == Kind::Directory {
            return self.agent_removed_directory(&item, &base);
        }
        let (state, _) = item.local_state();
        if !state.same(&base) || state.is_directory() {
            self.report.conflict(&item.path, None, REMOVED_THERE);
            return self.settle(&item.path, Settle::Give);
        }
        if self.held(&item, &State::Absent)? {
            return Ok(());
        }
        self.report.deleted(&item.path, false);
        self.sink.take(Change::Remove { place: &item.path, expected: &state })?;
        self.settle(&item.path, Settle::Took(State::Absent))
    }

    fn new_from_user(&mut self, item: &Item<'_>, look: &Look, whiteout: bool) -> io::Result<()> {
        if whiteout {
            self.report.conflict(&item.path, None, REMOVED_THERE);
        } else if self.whole {
            let seen = |dir| can_be_given(dir, item.name, look.kind);
            if !item.pair.local.map_or(Ok(true), seen)? {
                return Ok(());
            }
            self.report.picked_up.push(ProjectPath(item.path.clone()));
        } else {
            return Ok(());
        }
        self.settle(&item.path, Settle::Give)?;
        if look.kind == Kind::Directory && self.whole { self.give_below(item) } else { Ok(()) }
    }

    fn agent_removed_directory(&mut self, item: &Item<'_>, base: &State) -> io::Result<()> {
        if !base.is_directory() {
            self.report.conflict(&item.path, None, REMOVED_THERE);
            self.settle(&item.path, Settle::Give)?;
            return if self.whole { self.give_below(item) } else { Ok(()) };
        }
        if !self.all_agreed(item)? {
            self.report.conflict(&item.path, None, NOT_SEEN);
            self.settle(&item.path, Settle::Give)?;
            return if self.whole { self.give_below(item) } else { Ok(()) };
        }
        if let Some(guard) = self.protected_in(item)? {
            return self.hold(item, &State::Absent, guard);
        }
        self.remove_tree(item)?;
        self.settle(&item.path, Settle::Took(State::Absent))
    }
}
