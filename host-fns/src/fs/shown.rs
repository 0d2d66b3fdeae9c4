//! What `stat` shows of files of the host in deterministic mode.
//!
//! What: inode numbers, times and link counts that follow from the guest's
//! paths and from what the guest did.
//! Why: those of the host differ from machine to machine and from day to day;
//! a run must not depend on them.
//!
//! Invariant: nothing that is shown comes from the host but kind and size. What
//! the guest has not touched has the inode number of its path and the times of
//! the start. At most [`MAX_TOUCHED`] paths are remembered as touched; beyond
//! that a path keeps what it had.

use std::collections::BTreeMap;

use fumehood_policies::GuestPath;
use sha2::{Digest as _, Sha256};

use crate::call::{FileType, Filestat};
use crate::fs::node::{Entry, NewTimes};

/// Most paths of host mounts whose changes are remembered.
pub(crate) const MAX_TOUCHED: usize = 100_000;
/// Inode numbers of objects that the guest made start here; those of paths are
/// below.
const MADE: u64 = 1 << 62;

/// What the guest did to a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Touched {
    inode: u64,
    accessed_ns: u64,
    modified_ns: u64,
    changed_ns: u64,
}

/// What is shown of every host mount.
#[derive(Debug)]
pub(crate) struct Shown {
    start_ns: u64,
    touched: BTreeMap<GuestPath, Touched>,
    made: u64,
}

fn inode_of(path: &GuestPath) -> u64 {
    let digest = Sha256::digest(path.as_bytes());
    let head = digest.iter().take(8).fold(0_u64, |value, byte| (value << 8) | u64::from(*byte));
    (head & (MADE - 1)).max(1)
}

impl Shown {
    /// Nothing was touched yet; times show `start_ns`.
    pub(crate) fn new(start_ns: u64) -> Self {
        Self { start_ns, touched: BTreeMap::new(), made: 0 }
    }

    fn get(&self, path: &GuestPath) -> Touched {
        self.touched.get(path).copied().unwrap_or_else(|| Touched {
            inode: inode_of(path),
            accessed_ns: self.start_ns,
            modified_ns: self.start_ns,
            changed_ns: self.start_ns,
        })
    }

    fn put(&mut self, path: &GuestPath, touched: Touched) {
        if self.touched.len() < MAX_TOUCHED || self.touched.contains_key(path) {
            self.touched.insert(path.clone(), touched);
        }
    }

    /// `stat` as the guest sees it. `path` is `None` for an open file whose
    /// name is gone.
    pub(crate) fn stat(&self, path: Option<&GuestPath>, host: Filestat) -> Filestat {
        let touched = match path {
            Some(path) => self.get(path),
            None => Touched {
                inode: MADE - 1,
                accessed_ns: self.start_ns,
                modified_ns: self.start_ns,
                changed_ns: self.start_ns,
            },
        };
        Filestat {
            inode: touched.inode,
            links: 1,
            // The length of a directory is a matter of the file system.
            size: if host.file_type == FileType::Directory { 0 } else { host.size },
            accessed_ns: touched.accessed_ns,
            modified_ns: touched.modified_ns,
            changed_ns: touched.changed_ns,
            ..host
        }
    }

    /// The entries of a directory with the inode numbers that `stat` shows.
    pub(crate) fn list(&self, directory: &GuestPath, entries: Vec<Entry>) -> Vec<Entry> {
        let shown = |entry: Entry| match directory.join(&entry.name) {
            Ok(path) => Entry { inode: self.get(&path).inode, ..entry },
            Err(_) => Entry { inode: MADE - 1, ..entry },
        };
        entries.into_iter().map(shown).collect()
    }

    fn directory_changed(&mut self, path: &GuestPath, now: u64) {
        if let Some(parent) = path.parent() {
            self.modified(&parent, now);
        }
    }

    /// The guest made something new.
    pub(crate) fn created(&mut self, path: &GuestPath, now: u64) {
        let inode = MADE.saturating_add(self.made);
        self.made = self.made.saturating_add(1);
        let new = Touched { inode, accessed_ns: now, modified_ns: now, changed_ns: now };
        self.put(path, new);
        self.directory_changed(path, now);
    }

    /// The guest changed what is in it.
    pub(crate) fn modified(&mut self, path: &GuestPath, now: u64) {
        let touched = self.get(path);
        self.put(path, Touched { modified_ns: now, changed_ns: now, ..touched });
    }

    /// The guest removed it.
    pub(crate) fn removed(&mut self, path: &GuestPath, now: u64) {
        self.touched.remove(path);
        self.directory_changed(path, now);
    }

    /// The guest gave it a second name.
    pub(crate) fn linked(&mut self, old: &GuestPath, new: &GuestPath, now: u64) {
        let touched = Touched { changed_ns: now, ..self.get(old) };
        self.put(old, touched);
        self.put(new, touched);
        self.directory_changed(new, now);
    }

    /// The guest moved it, and what is below it with it.
    pub(crate) fn renamed(&mut self, old: &GuestPath, new: &GuestPath, now: u64) {
        let touched = Touched { changed_ns: now, ..self.get(old) };
        let of = |root: &GuestPath, all: &BTreeMap<GuestPath, Touched>| -> Vec<GuestPath> {
            let below = all.range(root.clone()..).map(|(path, _)| path);
            let below = below.take_while(|path| path.as_bytes().starts_with(root.as_bytes()));
            below.filter(|path| path.starts_with(root)).cloned().collect()
        };
        for replaced in of(new, &self.touched) {
            self.touched.remove(&replaced);
        }
        for path in of(old, &self.touched) {
            if let (Some(moved), Some(touched)) =
                (path.rebase(old, new), self.touched.remove(&path))
            {
                self.put(&moved, touched);
            }
        }
        self.put(new, touched);
        self.directory_changed(old, now);
        self.directory_changed(new, now);
    }

    /// The guest set its times.
    pub(crate) fn set_times(&mut self, path: &GuestPath, times: NewTimes, now: u64) {
        let touched = self.get(path);
        let touched = Touched {
            accessed_ns: times.accessed.unwrap_or(touched.accessed_ns),
            modified_ns: times.modified.unwrap_or(touched.modified_ns),
            changed_ns: now,
            ..touched
        };
        self.put(path, touched);
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

    fn host(file_type: FileType) -> Filestat {
        Filestat {
            device: 2,
            inode: 77,
            file_type,
            links: 9,
            size: 4096,
            accessed_ns: 1,
            modified_ns: 2,
            changed_ns: 3,
        }
    }

    #[test]
    fn only_kind_and_size_come_from_the_host() {
        let shown = Shown::new(100);
        let file = shown.stat(Some(&path("/m/a")), host(FileType::RegularFile));
        assert_eq!((file.device, file.size, file.links), (2, 4096, 1));
        assert_eq!((file.accessed_ns, file.modified_ns, file.changed_ns), (100, 100, 100));
        assert_ne!(file.inode, 77);
        assert_ne!(file.inode, shown.stat(Some(&path("/m/b")), host(FileType::RegularFile)).inode);
        assert_eq!(shown.stat(Some(&path("/m")), host(FileType::Directory)).size, 0);
        let entry = Entry { name: b"a".as_slice().into(), inode: 77, file_type: FileType::Unknown };
        assert_eq!(shown.list(&path("/m"), vec![entry])[0].inode, file.inode);
    }

    #[test]
    fn what_the_guest_did_is_shown() {
        let mut shown = Shown::new(100);
        let stat =
            |shown: &Shown, at: &str| shown.stat(Some(&path(at)), host(FileType::RegularFile));
        let old = stat(&shown, "/m/d/a");
        shown.modified(&path("/m/d/a"), 200);
        assert_eq!(stat(&shown, "/m/d/a").modified_ns, 200);
        assert_eq!(stat(&shown, "/m/d/a").inode, old.inode);
        shown.renamed(&path("/m/d"), &path("/m/e"), 300);
        assert_eq!(stat(&shown, "/m/e/a").inode, old.inode);
        assert_eq!(stat(&shown, "/m/e/a").modified_ns, 200);
        assert_eq!(stat(&shown, "/m").modified_ns, 300);
        // A new object at an old name is another one.
        shown.created(&path("/m/d"), 400);
        assert_ne!(stat(&shown, "/m/d").inode, stat(&shown, "/m/e").inode);
        shown.linked(&path("/m/e/a"), &path("/m/l"), 500);
        assert_eq!(stat(&shown, "/m/l").inode, old.inode);
        let times = NewTimes { accessed: Some(7), modified: None };
        shown.set_times(&path("/m/l"), times, 600);
        let link = stat(&shown, "/m/l");
        assert_eq!((link.accessed_ns, link.modified_ns, link.changed_ns), (7, 200, 600));
        shown.removed(&path("/m/l"), 700);
        assert_eq!(stat(&shown, "/m/l").modified_ns, 100);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut shown = Shown::new(0);
        for number in 0..MAX_TOUCHED + 10 {
            shown.modified(&path(&format!("/m/{number}")), 9);
        }
        assert_eq!(shown.touched.len(), MAX_TOUCHED);
        let beyond = path(&format!("/m/{}", MAX_TOUCHED + 1));
        assert_eq!(shown.stat(Some(&beyond), host(FileType::RegularFile)).modified_ns, 0);
        shown.modified(&path("/m/1"), 10);
        assert_eq!(shown.get(&path("/m/1")).modified_ns, 10);
    }
}
