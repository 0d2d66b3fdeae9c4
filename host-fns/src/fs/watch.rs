//! What real processes changed in directories that they were given.
//!
//! What: [`Watched`] looks at every name before and after, and tells the
//! difference by guest path.
//! Why: a process that does not go through the broker reports nothing; the
//! result's list of changed files has to be true nevertheless.
//!
//! Invariant: what is listed is the difference of two looks, never a guess; a
//! tree with more than [`MAX_WATCHED`] names is an error, not half a list.

use std::collections::BTreeMap;
use std::sync::Arc;

use fumehood_policies::{Access, GuestPath};
use rustix::io::{Errno as Host, Result};

use crate::changes::Changes;
use crate::fs::handle::{Directory, Kind, Look, joined};
use crate::fs::overlay::{Layer, is_opaque};
use crate::native::NativeMount;
use crate::report::FileChanges;

/// Most names of all watched directories together.
pub const MAX_WATCHED: usize = 1_000_000;

/// What a name was: enough to see that it is another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    kind: Kind,
    size: u64,
    inode: u64,
    modified: i128,
    changed: i128,
    /// A directory of an overlay that hides what lies below it.
    opaque: bool,
}

impl Seen {
    fn of(look: &Look) -> Self {
        let Look { kind, size, inode, modified, changed, .. } = *look;
        Self { kind, size, inode, modified, changed, opaque: false }
    }

    fn is_directory(self) -> bool {
        self.kind == Kind::Directory
    }
}

type Tree = BTreeMap<Vec<u8>, Seen>;

/// Every name below a directory. What cannot be looked at, or lies too deep,
/// is left out.
fn tree(dir: &Directory, path: &[u8], names: &mut Tree, left: &mut usize) -> Result<()> {
    for name in dir.names()? {
        let Some(look) = dir.look(&name)? else { continue };
        *left = left.checked_sub(1).ok_or(Host::OVERFLOW)?;
        let inner = joined(path, &name);
        names.insert(inner.clone(), Seen::of(&look));
        if look.kind == Kind::Directory {
            match dir.child(&name) {
                Ok(below) => {
                    if matches!(is_opaque(&below), Ok(true))
                        && let Some(seen) = names.get_mut(&inner)
                    {
                        seen.opaque = true;
                    }
                    tree(&below, &inner, names, left)?;
                }
                Err(Host::ACCESS | Host::PERM | Host::NOENT | Host::NOTDIR | Host::NAMETOOLONG) => {
                }
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

/// One directory.
struct Place {
    at: GuestPath,
    /// What is looked at: the directory, or the upper tree of an overlay.
    dir: Directory,
    /// What lies below that upper tree.
    below: Option<(Directory, Arc<Layer>)>,
    before: Tree,
}

impl Place {
    fn look(&self, left: &mut usize) -> Result<Tree> {
        let mut names = Tree::new();
        tree(&self.dir, &[], &mut names, left)?;
        Ok(names)
    }

    /// The kind that a name has below an overlay; `None` if it is not there or
    /// something of the upper tree hides it.
    fn lower(&self, path: &[u8], upper: &Tree) -> Option<Kind> {
        let (below, layer) = self.below.as_ref()?;
        let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        for above in slashes.filter_map(|(at, _)| path.get(..at)) {
            let Some(seen) = upper.get(above) else { continue };
            if !seen.is_directory() || seen.opaque {
                return None;
            }
        }
        let (parent, name) = below.parent(path).ok()?;
        if path.split(|byte| *byte == b'/').any(|name| layer.view.unseen(name).is_some()) {
            return None;
        }
        parent.look(name).ok()?.map(|look| look.kind)
    }

    /// What a name was for the command: its kind, `None` if it was not there.
    fn effective(&self, path: &[u8], upper: &Tree) -> Option<Kind> {
        match upper.get(path) {
            Some(seen) if seen.kind == Kind::Whiteout => None,
            Some(seen) => Some(seen.kind),
            None => self.lower(path, upper),
        }
    }

    fn compare(&self, after: &Tree, changes: &mut Changes) {
        let new = after.keys().filter(|name| !self.before.contains_key(*name));
        for path in self.before.keys().chain(new) {
            let (old, new) = (self.before.get(path), after.get(path));
            if old == new {
                continue;
            }
            let (was, is) = (self.effective(path, &self.before), self.effective(path, after));
            if was == Some(Kind::Directory) {
                self.lost_below(path, after, changes);
            }
            let Ok(named) = GuestPath::parse(&self.at, path) else { continue };
            let path = named.path;
            let directory = |kind: Kind| kind == Kind::Directory;
            match (was, is) {
                (None, None) => {}
                (None, Some(kind)) => changes.created(&path, directory(kind)),
                (Some(kind), None) => changes.deleted(&path, directory(kind)),
                (Some(was), Some(is)) if directory(was) && directory(is) => {}
                (Some(was), Some(is)) => {
                    if directory(was) || directory(is) {
                        changes.deleted(&path, directory(was));
                    }
                    changes.modified(&path);
                }
            }
        }
    }

    /// What an overlay's directory held and does not hold any more.
    fn lost_below(&self, path: &[u8], after: &Tree, changes: &mut Changes) {
        let Some((below, layer)) = &self.below else { return };
        let Ok(entries) = below.beneath(path).and_then(|dir| dir.entries()) else { return };
        for entry in entries.iter().filter(|entry| layer.view.unseen(&entry.name).is_none()) {
            let inner = joined(path, &entry.name);
            let was = self.effective(&inner, &self.before);
            if after.contains_key(&inner) || self.effective(&inner, after).is_some() {
                continue;
            }
            let directory = was == Some(Kind::Directory);
            if directory {
                self.lost_below(&inner, after, changes);
            }
            if let (Some(_), Ok(named)) = (was, GuestPath::parse(&self.at, &inner)) {
                changes.deleted(&named.path, directory);
            }
        }
    }
}

/// Directories that were looked at.
pub struct Watched {
    places: Vec<Place>,
}

impl std::fmt::Debug for Watched {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Watched").field("places", &self.places.len()).finish()
    }
}

impl Watched {
    /// Looks at the directories that may be changed. Blocks on files of the
    /// host, for all of their names.
    ///
    /// # Errors
    /// A directory cannot be read, or there are more than [`MAX_WATCHED`]
    /// names.
    pub fn begin(mounts: &[NativeMount]) -> std::io::Result<Self> {
        let mut places = Vec::new();
        let mut left = MAX_WATCHED;
        for mount in mounts.iter().filter(|mount| mount.access == Access::ReadWrite) {
            let mut place = Place {
                at: mount.at.clone(),
                dir: Directory::again(&*mount.dir)?,
                below: None,
                before: Tree::new(),
            };
            if let Some(overlay) = &mount.overlay {
                let lower = std::mem::replace(&mut place.dir, overlay.upper()?);
                place.below = Some((lower, overlay.layer()));
            }
            place.before = place.look(&mut left)?;
            places.push(place);
        }
        Ok(Self { places })
    }

    /// Looks again, and adds the difference.
    pub(crate) fn end(&self, changes: &mut Changes) -> std::io::Result<()> {
        let mut left = MAX_WATCHED;
        for place in &self.places {
            place.compare(&place.look(&mut left)?, changes);
        }
        Ok(())
    }

    /// What is different now; at most `limit` paths are listed.
    ///
    /// # Errors
    /// As [`Watched::begin`].
    pub fn changes(&self, limit: u32) -> std::io::Result<FileChanges> {
        let mut changes = Changes::new(limit);
        self.end(&mut changes)?;
        Ok(changes.take())
    }
}
