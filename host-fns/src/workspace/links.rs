//! Links of a project that are other names of something in it.
//!
//! Why: a tool of the host obeys a guarded name through a link too: who writes
//! the file that `.bashrc` links to writes `.bashrc`.
//!
//! Invariant: nothing outside of the project is looked at; a link that leads
//! there is no other name of anything.

use std::collections::VecDeque;
use std::io;

use rustix::io::Errno as Host;

use crate::fs::handle::{Directory, Kind, MAX_DEPTH, joined};
use crate::workspace::view::{Unseen, View};

/// Most links that are followed for one; as Linux does.
const MAX_LINKS: usize = 40;

/// The links of a project.
#[derive(Debug, Default)]
pub(crate) struct Links {
    /// Where each leads, and its path.
    all: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Links {
    /// Finds the links of a project, whose directory has the name `named`.
    ///
    /// # Errors
    /// A directory cannot be listed.
    pub(crate) fn of(project: &Directory, named: &[u8], view: &View) -> io::Result<Self> {
        let mut links = Self::default();
        let named = named.strip_suffix(b"/").unwrap_or(named);
        links.collect(&Finder { project, named, view }, project, &[])?;
        Ok(links)
    }

    fn collect(&mut self, finder: &Finder<'_>, dir: &Directory, path: &[u8]) -> io::Result<()> {
        for entry in dir.entries_if_there()? {
            if finder.view.unseen(&entry.name) == Some(Unseen::Excluded) {
                continue;
            }
            let inner = joined(path, &entry.name);
            match entry.kind {
                Kind::Symlink => {
                    if let Ok(target) = dir.read_link(&entry.name)
                        && let Some(leads_to) = finder.resolve(path, &target)
                    {
                        self.all.push((leads_to, inner));
                    }
                }
                Kind::Directory => match dir.child(&entry.name) {
                    Ok(below) => self.collect(finder, &below, &inner)?,
                    Err(
                        Host::ACCESS | Host::PERM | Host::NOENT | Host::NOTDIR | Host::NAMETOOLONG,
                    ) => {}
                    Err(error) => return Err(error.into()),
                },
                _ => {}
            }
        }
        Ok(())
    }

    /// What a path is called through links.
    pub(crate) fn other_names(&self, path: &[u8]) -> impl Iterator<Item = Vec<u8>> {
        self.all.iter().filter_map(move |(leads_to, link)| {
            let rest = path.strip_prefix(leads_to.as_slice())?;
            match rest.split_first() {
                None => Some(link.clone()),
                Some((b'/', rest)) => Some(joined(link, rest)),
                Some(_) => None,
            }
        })
    }
}

struct Finder<'p> {
    project: &'p Directory,
    named: &'p [u8],
    view: &'p View,
}

impl Finder<'_> {
    /// Where a link in the directory `at` leads; `None` if that is not in the
    /// project, or nowhere.
    fn resolve(&self, at: &[u8], target: &[u8]) -> Option<Vec<u8>> {
        let names = |path: &[u8]| -> Vec<Vec<u8>> {
            path.split(|byte| *byte == b'/')
                .filter(|name| !matches!(*name, b"" | b"."))
                .map(<[u8]>::to_vec)
                .collect()
        };
        let mut reached = names(at);
        let mut ahead = VecDeque::new();
        let mut link = Some(target.to_vec());
        for _ in 0..MAX_LINKS {
            let target = link.take()?;
            let mut from_here = target.as_slice();
            if target.first() == Some(&b'/') {
                from_here = target.strip_prefix(self.named)?;
                if !matches!(from_here.first(), None | Some(b'/')) {
                    return None;
                }
                reached.clear();
            }
            for name in names(from_here).into_iter().rev() {
                ahead.push_front(name);
            }
            while let Some(name) = ahead.pop_front() {
                if name == b".." {
                    reached.pop()?;
                    continue;
                }
                if reached.len() >= MAX_DEPTH {
                    return None;
                }
                let parent = self.project.beneath(&reached.join(&b'/'));
                let kind = parent.ok().and_then(|dir| {
                    let kind = dir.look(&name).ok()??.kind;
                    if kind == Kind::Symlink {
                        link = dir.read_link(&name).ok();
                    }
                    Some(kind)
                });
                if kind == Some(Kind::Symlink) {
                    break;
                }
                // What is not there yet has this name when it is made.
                reached.push(name);
            }
            if link.is_none() {
                return ahead.is_empty().then(|| reached.join(&b'/'));
            }
        }
        None
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "tests prepare the host side")]
mod tests {
    use std::fs;
    use std::os::unix::ffi::OsStrExt as _;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_link_is_another_name_of_what_it_leads_to() {
        let top = tempfile::tempdir().unwrap();
        let at = |name: &str| top.path().join("p").join(name);
        fs::create_dir_all(at("real/hooks")).unwrap();
        fs::create_dir_all(at("sub")).unwrap();
        fs::write(at("x"), "").unwrap();
        for (target, link) in [
            ("real", ".git"),
            ("../x", "sub/up"),
            ("sub/up", "chain"),
            (".git/hooks", "through"),
            ("not/yet", "dangling"),
            ("../outside", "out"),
            ("/etc/passwd", "etc"),
            ("self", "self"),
        ] {
            symlink(target, at(link)).unwrap();
        }
        symlink(at("x"), at("absolute")).unwrap();
        let named = top.path().join("p");
        let project = Directory::open(&named).unwrap();
        // As a shell completes it.
        let shown = named.join("");
        assert!(shown.as_os_str().as_bytes().ends_with(b"/"));
        let links = Links::of(&project, shown.as_os_str().as_bytes(), &View::default()).unwrap();
        let names = |path: &str| {
            let mut names: Vec<String> = links
                .other_names(path.as_bytes())
                .map(|name| String::from_utf8(name).unwrap())
                .collect();
            names.sort();
            names
        };
        assert_eq!(names("x"), ["absolute", "chain", "sub/up"]);
        assert_eq!(names("real/hooks/a"), [".git/hooks/a", "through/a"]);
        assert_eq!(names("not/yet"), ["dangling"]);
        assert!(names("realm").is_empty() && names("outside").is_empty());
        assert_eq!(links.all.len(), 6, "{links:?}");
    }

    #[test]
    fn a_directory_that_was_removed_meanwhile_holds_nothing() {
        let top = tempfile::tempdir().unwrap();
        fs::create_dir(top.path().join("d")).unwrap();
        let dir = Directory::open(&top.path().join("d")).unwrap();
        fs::remove_dir(top.path().join("d")).unwrap();
        assert!(dir.entries_if_there().unwrap().is_empty());
    }
}
