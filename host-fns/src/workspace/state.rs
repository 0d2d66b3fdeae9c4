//! What a path holds: what two sides compare.
//!
//! Invariant: two equal states are the same kind with the same permission bits
//! and the same bytes. What cannot be read completely is [`State::Unknown`],
//! which equals nothing, not even itself.

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::fs::handle::{Directory, Kind, Look, digest, look_at};

/// Permission bits that travel; set-id and sticky bits never do.
pub(crate) const MODE_BITS: u32 = 0o777;

/// What is at a path.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum State {
    Absent,
    File {
        mode: u32,
        size: u64,
        digest: [u8; 32],
    },
    Symlink {
        target: Vec<u8>,
    },
    Directory {
        mode: u32,
    },
    /// Something else, or it cannot be read.
    Unknown,
}

impl State {
    /// Whether both are known and the same.
    pub(crate) fn same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Absent, Self::Absent) => true,
            (
                Self::File { mode, size, digest },
                Self::File { mode: other_mode, size: other_size, digest: other_digest },
            ) => mode == other_mode && size == other_size && digest == other_digest,
            (Self::Symlink { target }, Self::Symlink { target: other }) => target == other,
            (Self::Directory { mode }, Self::Directory { mode: other }) => mode == other,
            _ => false,
        }
    }

    /// The same but for permission bits.
    pub(crate) fn same_content(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::File { size, digest, .. }, Self::File { size: s, digest: d, .. }) => {
                size == s && digest == d
            }
            (Self::Directory { .. }, Self::Directory { .. }) => true,
            _ => self.same(other),
        }
    }

    pub(crate) fn is_directory(&self) -> bool {
        matches!(self, Self::Directory { .. })
    }

    pub(crate) fn is_absent(&self) -> bool {
        matches!(self, Self::Absent)
    }

    pub(crate) fn mode(&self) -> Option<u32> {
        match self {
            Self::File { mode, .. } | Self::Directory { mode } => Some(*mode),
            _ => None,
        }
    }
}

/// When and as what a file was seen; equal identities of a file that was not
/// just changed are equal content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    device: u64,
    inode: u64,
    size: u64,
    mode: u32,
    modified: i128,
    changed: i128,
}

impl Identity {
    pub(crate) fn of(look: &Look) -> Self {
        Self {
            device: look.device,
            inode: look.inode,
            size: look.size,
            mode: look.mode,
            modified: look.modified,
            changed: look.changed,
        }
    }

    /// Whether the file was last changed so long before `moment` (nanoseconds)
    /// that a later change has another time: file times have the grain of a
    /// timer tick.
    pub(crate) fn settled(&self, moment: i128) -> bool {
        self.changed.saturating_add(TIME_GRAIN_NS) < moment
    }
}

/// More than any timer tick (10 ms at 100 Hz).
pub(crate) const TIME_GRAIN_NS: i128 = 50_000_000;

/// Reads what a name holds. What is in flux or cannot be read is unknown.
pub(crate) fn read(dir: &Directory, name: &[u8]) -> State {
    read_seen(dir, name).0
}

/// The same, with the identity of a file.
pub(crate) fn read_seen(dir: &Directory, name: &[u8]) -> (State, Option<Identity>) {
    let look = match dir.look(name) {
        Ok(Some(look)) => look,
        Ok(None) | Err(Errno::NOTDIR) => return (State::Absent, None),
        Err(_) => return (State::Unknown, None),
    };
    match look.kind {
        Kind::Directory => (State::Directory { mode: look.mode & MODE_BITS }, None),
        Kind::Symlink => match dir.read_link(name) {
            Ok(target) => (State::Symlink { target }, Some(Identity::of(&look))),
            Err(_) => (State::Unknown, None),
        },
        Kind::File => read_file(dir, name).unwrap_or((State::Unknown, None)),
        Kind::Whiteout | Kind::Other => (State::Unknown, None),
    }
}

fn read_file(dir: &Directory, name: &[u8]) -> std::io::Result<(State, Option<Identity>)> {
    let (mut file, before) = dir.open_file(name)?;
    let (size, digest) = digest(&mut file)?;
    let after = look_at(&file)?;
    // Someone writes to it at this moment.
    if Identity::of(&before) != Identity::of(&after) || size != after.size {
        return Ok((State::Unknown, None));
    }
    let state = State::File { mode: after.mode & MODE_BITS, size, digest };
    Ok((state, Some(Identity::of(&after))))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, reason = "tests prepare host files")]

    use super::*;

    #[test]
    fn states_are_kind_permissions_and_bytes() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        std::fs::write(at("a"), "same").unwrap();
        std::fs::write(at("b"), "same").unwrap();
        std::fs::write(at("c"), "else").unwrap();
        std::fs::create_dir(at("d")).unwrap();
        std::os::unix::fs::symlink("a", at("l")).unwrap();
        let dir = Directory::open(root.path()).unwrap();
        let state = |name: &str| read(&dir, name.as_bytes());
        assert!(state("a").same(&state("b")));
        assert!(!state("a").same(&state("c")));
        assert!(!state("a").same(&state("l")), "a link is not what it leads to");
        assert!(state("none").is_absent() && state("d").is_directory());
        dir.set_mode(b"b", 0o600).unwrap();
        assert!(!state("a").same(&state("b")) && state("a").same_content(&state("b")));
        assert!(!State::Unknown.same(&State::Unknown));
        assert!(state("a/below").is_absent());
    }
}
