//! The files of the in-memory tree, for whoever shows them.

use fumehood_policies::escape;

use super::{Data, MemoryTree, ROOT};
use crate::broker::MemoryFile;

impl MemoryTree {
    /// The regular files, sorted by path: the first `most`, and whether there
    /// are more.
    pub(crate) fn files(&self, most: usize) -> (Vec<MemoryFile>, bool) {
        let mut found = Vec::new();
        // The next in order is the last of the stack.
        let mut stack = vec![(Vec::new(), ROOT)];
        while let Some((path, number)) = stack.pop() {
            match self.inode(number).map(|inode| &inode.data) {
                Ok(Data::File(_)) if found.len() >= most => return (found, true),
                Ok(Data::File(content)) => {
                    let mut shown = String::new();
                    // Writing to a string does not fail.
                    let _ = escape(&path, &mut shown);
                    found.push(MemoryFile { path: shown, bytes: content.length() });
                }
                Ok(Data::Directory(entries)) => {
                    let below = entries.iter().rev().map(|(name, number)| {
                        let mut path = path.clone();
                        path.push(b'/');
                        path.extend_from_slice(name);
                        (path, *number)
                    });
                    stack.extend(below);
                }
                _ => {}
            }
        }
        (found, false)
    }
}
