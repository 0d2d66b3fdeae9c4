//! The words the two backends share.

use std::sync::Arc;

use fumehood_policies::{GuestPath, LinkError, PathError, RequestedPath};

use crate::call::{FileType, SetTime};
use crate::errno::Errno;
use crate::fs::host::{HostDirectoryHandle, HostFile};

/// An executor's answer: done, or a symbolic link was met.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step<T> {
    /// Carried out.
    Done(T),
    /// Nothing was done; the request continues at another path and must be
    /// decided again.
    Redirect {
        /// Where.
        to: RequestedPath,
        /// Whether the second path of the request is meant.
        second: bool,
    },
}

impl<T> Step<T> {
    pub(crate) fn redirect(to: RequestedPath) -> Self {
        Self::Redirect { to, second: false }
    }
}

/// Continues with what is done, or returns the redirect.
macro_rules! done {
    ($step:expr) => {
        match $step {
            $crate::fs::node::Step::Done(value) => value,
            $crate::fs::node::Step::Redirect { to, second } => {
                return Ok($crate::fs::node::Step::Redirect { to, second });
            }
        }
    };
}
pub(crate) use done;

/// How to open.
#[derive(Clone, Copy, Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "the flags of open(2)")]
pub(crate) struct OpenHow {
    pub(crate) read: bool,
    pub(crate) write: bool,
    pub(crate) create: bool,
    pub(crate) exclusive: bool,
    pub(crate) truncate: bool,
    pub(crate) directory: bool,
    pub(crate) follow: bool,
}

impl OpenHow {
    /// Whether a symbolic link at the end is followed.
    pub(crate) fn follows(self, must_be_dir: bool) -> bool {
        (self.follow || must_be_dir) && !(self.create && self.exclusive)
    }

    /// Whether a directory cannot be opened like this.
    pub(crate) fn needs_file(self) -> bool {
        self.write || self.truncate || self.create
    }
}

/// An open object. Only the executors make one, from a checked request; to
/// hold it is the right to read or write what it names, within the rights of
/// its descriptor.
#[derive(Clone, Debug)]
pub(crate) enum Node {
    MemoryFile(u64),
    MemoryDirectory(u64),
    HostFile(Arc<HostFile>),
    HostDirectory(Arc<HostDirectoryHandle>),
}

impl Node {
    pub(crate) fn file_type(&self) -> FileType {
        match self {
            Self::MemoryFile(_) | Self::HostFile(_) => FileType::RegularFile,
            Self::MemoryDirectory(_) | Self::HostDirectory(_) => FileType::Directory,
        }
    }
}

/// What opening gave.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) node: Node,
    /// The file was made by this call.
    pub(crate) created: bool,
    /// Its content was cut by this call.
    pub(crate) cut: bool,
}

/// What a rename did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Renamed {
    /// A directory was moved.
    pub(crate) directory: bool,
    /// Something at the new path was replaced.
    pub(crate) replaced: bool,
    /// Both names already meant the same object.
    pub(crate) nothing: bool,
}

/// One entry of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: Arc<[u8]>,
    pub(crate) inode: u64,
    pub(crate) file_type: FileType,
}

/// Both times of a set-times request, made absolute and checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewTimes {
    pub(crate) accessed: Option<u64>,
    pub(crate) modified: Option<u64>,
}

impl NewTimes {
    /// Times beyond `i64::MAX` nanoseconds (the year 2262) are `EINVAL`; times
    /// before the epoch cannot be expressed.
    pub(crate) fn new(accessed: SetTime, modified: SetTime, now: u64) -> Result<Self, Errno> {
        let absolute = |time| match time {
            SetTime::Keep => Ok(None),
            SetTime::Now => Ok(Some(now)),
            SetTime::To(time) if i64::try_from(time).is_ok() => Ok(Some(time)),
            SetTime::To(_) => Err(Errno::Inval),
        };
        Ok(Self { accessed: absolute(accessed)?, modified: absolute(modified)? })
    }
}

/// The error a guest sees for bytes that are no path.
pub(crate) fn path_errno(error: PathError) -> Errno {
    match error {
        PathError::Empty => Errno::Noent,
        PathError::Nul | PathError::NotAName => Errno::Inval,
        PathError::TooLong | PathError::ComponentTooLong => Errno::Nametoolong,
    }
}

/// Where a request for `path` continues when the component that ends at byte
/// `end` turned out to be a symbolic link to `target`.
pub(crate) fn follow_link(
    path: &GuestPath,
    end: usize,
    mount: &GuestPath,
    target: &[u8],
    absolute_inside: bool,
) -> Result<RequestedPath, Errno> {
    let (link, rest) = path.as_bytes().split_at_checked(end).ok_or(Errno::Inval)?;
    let link = GuestPath::parse(&GuestPath::root(), link).map_err(path_errno)?.path;
    link.redirect(mount, target, rest, absolute_inside).map_err(|error| match error {
        LinkError::Escapes => Errno::Perm,
        LinkError::Path(error) => path_errno(error),
    })
}
