//! The one enum through which every import of the guest passes, so that a run
//! can be decided, recorded, metered and later replayed in one place.
//!
//! Invariant: a [`HostCall`] holds guest memory only as slices that the
//! adapter has bounds-checked; numbers in it are as the guest gave them and
//! are not trusted further.

use crate::errno::Errno;

/// Largest number of bytes one call moves; longer buffers are served in part,
/// which WASI allows.
pub const MAX_TRANSFER_BYTES: usize = 1 << 20;
/// Most subscriptions one `poll_oneoff` may name.
pub const MAX_SUBSCRIPTIONS: usize = 64;

/// WASI file types, with the numbers of `typenames.witx`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FileType {
    /// Not one of the others.
    Unknown = 0,
    /// A character device: the standard streams.
    CharacterDevice = 2,
    /// A directory.
    Directory = 3,
    /// A regular file.
    RegularFile = 4,
    /// A symbolic link.
    SymbolicLink = 7,
}

/// What `stat` shows. Device is the mount's index, inode a number that is
/// stable within the session; neither is the host's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filestat {
    /// Index of the mount.
    pub device: u64,
    /// Stable within the session.
    pub inode: u64,
    /// File type.
    pub file_type: FileType,
    /// Number of hard links.
    pub links: u64,
    /// Size in bytes.
    pub size: u64,
    /// Last access, nanoseconds since the epoch.
    pub accessed_ns: u64,
    /// Last modification, nanoseconds since the epoch.
    pub modified_ns: u64,
    /// Last status change, nanoseconds since the epoch.
    pub changed_ns: u64,
}

/// What `fd_fdstat_get` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fdstat {
    /// File type.
    pub file_type: FileType,
    /// WASI `fdflags`.
    pub flags: u16,
    /// WASI rights of the descriptor itself.
    pub rights_base: u64,
    /// WASI rights of descriptors opened through it.
    pub rights_inheriting: u64,
}

/// One subscription of `poll_oneoff`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subscription {
    /// A timer.
    Clock {
        /// Echoed in the event.
        userdata: u64,
        /// WASI clock id.
        clock: u32,
        /// Nanoseconds.
        timeout_ns: u64,
        /// Whether `timeout_ns` is a point in time rather than a duration.
        absolute: bool,
    },
    /// Readiness of a descriptor for reading.
    Read {
        /// Echoed in the event.
        userdata: u64,
        /// Descriptor.
        fd: u32,
    },
    /// Readiness of a descriptor for writing.
    Write {
        /// Echoed in the event.
        userdata: u64,
        /// Descriptor.
        fd: u32,
    },
}

/// One event of `poll_oneoff`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// From the subscription.
    pub userdata: u64,
    /// `Ok(bytes available)` or why the subscription failed.
    pub result: Result<u64, Errno>,
    /// WASI `eventtype`: 0 clock, 1 read, 2 write.
    pub kind: u8,
}

/// How `path_filestat_set_times` and `fd_filestat_set_times` change one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// Leave it.
    Keep,
    /// Set it to the guest's current time.
    Now,
    /// Set it to this many nanoseconds since the epoch.
    To(u64),
}

/// Every function a guest can call on its host, arguments decoded.
#[derive(Debug)]
#[allow(missing_docs, reason = "fields carry the names of the WASI parameters")]
pub enum HostCall<'m> {
    ClockResolution {
        clock: u32,
    },
    ClockTime {
        clock: u32,
    },
    Random {
        into: &'m mut [u8],
    },
    Yield,
    Poll {
        subscriptions: Vec<Subscription>,
    },

    FdAdvise {
        fd: u32,
        offset: u64,
        len: u64,
        advice: u8,
    },
    FdAllocate {
        fd: u32,
        offset: u64,
        len: u64,
    },
    FdClose {
        fd: u32,
    },
    FdFdstatGet {
        fd: u32,
    },
    FdFdstatSetFlags {
        fd: u32,
        flags: u16,
    },
    FdFilestatGet {
        fd: u32,
    },
    FdFilestatSetSize {
        fd: u32,
        size: u64,
    },
    FdFilestatSetTimes {
        fd: u32,
        accessed: SetTime,
        modified: SetTime,
    },
    FdPrestatGet {
        fd: u32,
    },
    FdPrestatDirName {
        fd: u32,
        into: &'m mut [u8],
    },
    FdRead {
        fd: u32,
        into: &'m mut [u8],
    },
    FdPread {
        fd: u32,
        into: &'m mut [u8],
        offset: u64,
    },
    FdReaddir {
        fd: u32,
        into: &'m mut [u8],
        cookie: u64,
    },
    FdRenumber {
        from: u32,
        to: u32,
    },
    FdSeek {
        fd: u32,
        delta: i64,
        whence: u8,
    },
    FdSync {
        fd: u32,
        data_only: bool,
    },
    FdTell {
        fd: u32,
    },
    FdWrite {
        fd: u32,
        data: &'m [u8],
    },
    FdPwrite {
        fd: u32,
        data: &'m [u8],
        offset: u64,
    },

    PathCreateDirectory {
        dir: u32,
        path: &'m [u8],
    },
    PathFilestatGet {
        dir: u32,
        follow: bool,
        path: &'m [u8],
    },
    PathFilestatSetTimes {
        dir: u32,
        follow: bool,
        path: &'m [u8],
        accessed: SetTime,
        modified: SetTime,
    },
    PathLink {
        old_dir: u32,
        follow: bool,
        old: &'m [u8],
        new_dir: u32,
        new: &'m [u8],
    },
    PathOpen {
        dir: u32,
        follow: bool,
        path: &'m [u8],
        open_flags: u16,
        rights_base: u64,
        rights_inheriting: u64,
        fd_flags: u16,
    },
    PathReadlink {
        dir: u32,
        path: &'m [u8],
        into: &'m mut [u8],
    },
    PathRemoveDirectory {
        dir: u32,
        path: &'m [u8],
    },
    PathRename {
        old_dir: u32,
        old: &'m [u8],
        new_dir: u32,
        new: &'m [u8],
    },
    PathSymlink {
        target: &'m [u8],
        dir: u32,
        path: &'m [u8],
    },
    PathUnlinkFile {
        dir: u32,
        path: &'m [u8],
    },

    /// `fumehood.call`: the request, decoded by the operation, and the guest's
    /// buffer for the response.
    Brokered {
        op: u32,
        request: &'m [u8],
        response: &'m mut [u8],
    },
}

/// What a [`HostCall`] gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostAnswer {
    /// Nothing but success.
    Unit,
    /// Bytes moved, or the length of a name.
    Size(u32),
    /// A file offset.
    Offset(u64),
    /// Nanoseconds.
    Time(u64),
    /// A new descriptor.
    Descriptor(u32),
    /// `stat`.
    Filestat(Filestat),
    /// `fdstat`.
    Fdstat(Fdstat),
    /// Events, at most as many as subscriptions.
    Events(Vec<Event>),
    /// The result of `fumehood.call`, see `fumehood_guest_abi`.
    Brokered(i64),
}

impl HostCall<'_> {
    /// The import's stable name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::ClockResolution { .. } => "clock_res_get",
            Self::ClockTime { .. } => "clock_time_get",
            Self::Random { .. } => "random_get",
            Self::Yield => "sched_yield",
            Self::Poll { .. } => "poll_oneoff",
            Self::FdAdvise { .. } => "fd_advise",
            Self::FdAllocate { .. } => "fd_allocate",
            Self::FdClose { .. } => "fd_close",
            Self::FdFdstatGet { .. } => "fd_fdstat_get",
            Self::FdFdstatSetFlags { .. } => "fd_fdstat_set_flags",
            Self::FdFilestatGet { .. } => "fd_filestat_get",
            Self::FdFilestatSetSize { .. } => "fd_filestat_set_size",
            Self::FdFilestatSetTimes { .. } => "fd_filestat_set_times",
            Self::FdPrestatGet { .. } => "fd_prestat_get",
            Self::FdPrestatDirName { .. } => "fd_prestat_dir_name",
            Self::FdRead { .. } => "fd_read",
            Self::FdPread { .. } => "fd_pread",
            Self::FdReaddir { .. } => "fd_readdir",
            Self::FdRenumber { .. } => "fd_renumber",
            Self::FdSeek { .. } => "fd_seek",
            Self::FdSync { data_only: false, .. } => "fd_sync",
            Self::FdSync { data_only: true, .. } => "fd_datasync",
            Self::FdTell { .. } => "fd_tell",
            Self::FdWrite { .. } => "fd_write",
            Self::FdPwrite { .. } => "fd_pwrite",
            Self::PathCreateDirectory { .. } => "path_create_directory",
            Self::PathFilestatGet { .. } => "path_filestat_get",
            Self::PathFilestatSetTimes { .. } => "path_filestat_set_times",
            Self::PathLink { .. } => "path_link",
            Self::PathOpen { .. } => "path_open",
            Self::PathReadlink { .. } => "path_readlink",
            Self::PathRemoveDirectory { .. } => "path_remove_directory",
            Self::PathRename { .. } => "path_rename",
            Self::PathSymlink { .. } => "path_symlink",
            Self::PathUnlinkFile { .. } => "path_unlink_file",
            Self::Brokered { .. } => "fumehood.call",
        }
    }
}
