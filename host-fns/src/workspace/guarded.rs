//! What the guard says of the agent's changes, and what is held back.
//!
//! Invariant: what a tool of the host would run or obey reaches the project, or
//! goes away in it, only if its path was accepted. A removal is judged also
//! where something else takes the place.

use std::io;

use fumehood_policies::{Guard, GuardFacts, Guarded, PersistenceGuard};
use sha2::{Digest as _, Sha256};

use crate::fs::handle::Kind;
use crate::workspace::journal::Settle;
use crate::workspace::links::Links;
use crate::workspace::plan::{Item, Pair, Planner, Sink};
use crate::workspace::report::GuardedPath;
use crate::workspace::state::State;

/// What git would take a directory for, once the agent's changes are in it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shape {
    /// For a repository, by its files.
    pub(super) repository: bool,
    /// And without them for none.
    pub(super) completed: bool,
}

/// What the guard is to know of a change.
fn facts(item: &Item<'_>, agent: &State) -> GuardFacts {
    GuardFacts {
        is_directory: agent.is_directory(),
        in_repository: item.in_repository,
        completes_repository: item.completes && !agent.is_absent(),
        leads_out: match agent {
            State::Symlink { target } => can_lead_out(&item.path, target),
            _ => false,
        },
    }
}

/// Whether a link at a path of the project can lead out of it, whatever links
/// are on its way. One that climbs first, and not too far, stays inside: the
/// directories above it are directories.
fn can_lead_out(path: &[u8], target: &[u8]) -> bool {
    if target.first() == Some(&b'/') {
        return true;
    }
    let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).count();
    let (mut above, mut descends) = (names.saturating_sub(1), false);
    for name in target.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." if descends => return true,
            b".." => match above.checked_sub(1) {
                Some(less) => above = less,
                None => return true,
            },
            _ => descends = true,
        }
    }
    false
}

impl<S: Sink> Planner<'_, S> {
    /// What git would take a directory for. Names of both sides count, also
    /// those that the agent removed: a removal may be held back.
    pub(super) fn shape(&self, pair: &Pair<'_>) -> io::Result<Shape> {
        let sides = |name: &[u8]| -> io::Result<(bool, bool)> {
            let look = pair.local.and_then(|local| local.look(name).ok().flatten());
            let over = pair.upper.look(name)?.is_some_and(|look| look.kind != Kind::Whiteout);
            // A file of the user's that takes the place of a directory makes
            // no repository yet.
            let file = matches!(name, b"objects" | b"refs");
            let users = look.is_some_and(|look| !file || look.kind != Kind::File);
            Ok((users, look.is_some() || over))
        };
        let head = sides(b"HEAD")?;
        if !head.1 {
            return Ok(Shape::default());
        }
        let (objects, refs, common) = (sides(b"objects")?, sides(b"refs")?, sides(b"commondir")?);
        let before = head.0 && ((objects.0 && refs.0) || common.0);
        let repository = (objects.1 && refs.1) || common.1;
        Ok(Shape { repository, completed: repository && !before })
    }

    /// What the guard says of a change; `true` if it is held back.
    pub(super) fn held(&mut self, item: &Item<'_>, agent: &State) -> io::Result<bool> {
        let Some(guard) = self.judged(&item.path, facts(item, agent))? else { return Ok(false) };
        if guard.action == Guarded::Flagged || self.accepts(&item.path) {
            self.report.flagged.push(GuardedPath::new(&item.path, guard));
            return Ok(false);
        }
        self.hold(item, agent, guard)?;
        Ok(true)
    }

    /// The same of a new directory, and of what is there and goes away for it.
    pub(super) fn directory_held(
        &mut self,
        item: &Item<'_>,
        now: &State,
        agent: &State,
    ) -> io::Result<bool> {
        Ok((!now.is_absent() && self.held(item, &State::Absent)?)
            || (item.completes && self.held(item, agent)?))
    }

    /// What the guard says of a path under all its names.
    pub(super) fn judged(&self, path: &[u8], facts: GuardFacts) -> io::Result<Option<Guard>> {
        let guard = PersistenceGuard::standard();
        let own = guard.judge(path, facts);
        if own.is_some_and(|guard| guard.action == Guarded::Protected) {
            return Ok(own);
        }
        let links = match self.links.get() {
            Some(links) => links,
            None => {
                let links = Links::of(self.project, self.named, &self.layer.view)?;
                self.links.get_or_init(|| links)
            }
        };
        let others = links.other_names(path).filter_map(|name| guard.judge(&name, facts));
        let (protected, flagged): (Vec<Guard>, Vec<Guard>) =
            others.partition(|guard| guard.action == Guarded::Protected);
        Ok(protected.first().copied().or(own).or(flagged.first().copied()))
    }

    pub(super) fn accepts(&self, path: &[u8]) -> bool {
        self.accepted.iter().any(|accepted| covers(accepted, path))
    }

    /// The agent keeps its version and the project its own. Told once, unless
    /// it is asked for.
    pub(super) fn hold(&mut self, item: &Item<'_>, agent: &State, guard: Guard) -> io::Result<()> {
        self.held = self.held.saturating_add(1);
        let bytes = postcard::to_allocvec(agent).map_err(io::Error::other)?;
        let digest: [u8; 32] = Sha256::digest(bytes).into();
        if item.agreed.as_ref().and_then(|agreed| agreed.held) == Some(digest) {
            if self.tell_held_again {
                self.report.held_back.push(GuardedPath::new(&item.path, guard));
            }
            return Ok(());
        }
        self.report.held_back.push(GuardedPath::new(&item.path, guard));
        let hide = agent.is_absent() && item.pair.opaque && !self.whole;
        self.settle(&item.path, Settle::Held { digest, hide })
    }
}

/// Whether a path is `above` or lies below it.
fn covers(above: &[u8], path: &[u8]) -> bool {
    match path.strip_prefix(above) {
        Some([] | [b'/', ..]) => true,
        Some(_) | None => above.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_that_can_lead_out_are_known() {
        for (path, target) in [
            ("l", "/etc/passwd"),
            ("l", ".."),
            ("l", "../x"),
            ("d/l", "../../x"),
            // `a` may be a link to `.`.
            ("l", "a/../secret"),
            ("d/l", "a/./../b"),
        ] {
            assert!(can_lead_out(path.as_bytes(), target.as_bytes()), "{path} -> {target}");
        }
        for (path, target) in [("l", "x"), ("l", "./d/x"), ("d/l", "../x"), ("d/e/l", "../../x")] {
            assert!(!can_lead_out(path.as_bytes(), target.as_bytes()), "{path} -> {target}");
        }
    }
}
