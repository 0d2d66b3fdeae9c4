//! How much memory a tree takes that another does not share.

use super::{Data, Inode, MemoryTree};
use crate::fs::content::beyond;

/// Memory of one name beside its bytes: what the map and two counters take.
const NAME_BYTES: u64 = 48;

impl MemoryTree {
    /// Bytes of memory that it takes and `other` does not share, about: every
    /// byte of content, names and links, and the records that hold them. What
    /// is shared is passed over without being looked at.
    pub(crate) fn bytes_beyond(&self, other: &Self) -> u64 {
        beyond(&self.inodes, &other.inodes)
            .map(|(inode, then)| inode.0.bytes_beyond(then.map(|then| then.0.as_ref())))
            .fold(0, u64::saturating_add)
    }
}

impl Inode {
    fn bytes_beyond(&self, other: Option<&Self>) -> u64 {
        let own = size_of::<Self>() as u64;
        own.saturating_add(match (&self.data, other.map(|other| &other.data)) {
            (Data::File(content), Some(Data::File(other))) => content.bytes_beyond(Some(other)),
            (Data::File(content), _) => content.bytes_beyond(None),
            // Names are shared by every directory that was made from another.
            (Data::Directory(names), Some(Data::Directory(other))) => {
                let gone = names.diff(other).filter_map(|item| match item {
                    imbl::ordmap::DiffItem::Remove(name, _) => Some(name_bytes(name)),
                    _ => None,
                });
                gone.sum()
            }
            (Data::Directory(names), _) => names.keys().map(|name| name_bytes(name)).sum(),
            (Data::Symlink(_), Some(Data::Symlink(_))) => 0,
            (Data::Symlink(target), _) => target.len() as u64,
        })
    }
}

fn name_bytes(name: &[u8]) -> u64 {
    NAME_BYTES.saturating_add(name.len() as u64)
}
