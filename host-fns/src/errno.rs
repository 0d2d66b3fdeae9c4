//! The error numbers a guest can see.
//!
//! Invariant: an [`Errno`] is all a guest learns of a failure; no host path,
//! host message or host error number travels with it. The discriminants are
//! those of `wasi_snapshot_preview1` (`errno` in its `typenames.witx`); its
//! `notcapable` is left out, since Python's `errno` and `OSError` know no such
//! number: what no rule allows is `Acces`, what leaves its mount `Perm`.

/// A WASI preview1 error number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
#[allow(missing_docs, reason = "the names are the specification's own")]
pub enum Errno {
    TooBig = 1,
    Acces = 2,
    Again = 6,
    Badf = 8,
    Busy = 10,
    Canceled = 11,
    Exist = 20,
    Fault = 21,
    Fbig = 22,
    Ilseq = 25,
    Inval = 28,
    Io = 29,
    Isdir = 31,
    Loop = 32,
    Mfile = 33,
    Mlink = 34,
    Nametoolong = 37,
    Noent = 44,
    Nomem = 48,
    Nospc = 51,
    Nosys = 52,
    Notdir = 54,
    Notempty = 55,
    Notsup = 58,
    Notty = 59,
    Overflow = 61,
    Perm = 63,
    Pipe = 64,
    Rofs = 69,
    Spipe = 70,
    Txtbsy = 74,
    Xdev = 75,
}

impl Errno {
    /// The number on the wire.
    #[must_use]
    pub fn raw(self) -> u16 {
        self as u16
    }

    /// The number's usual name, such as `ENOENT`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::TooBig => "E2BIG",
            Self::Acces => "EACCES",
            Self::Again => "EAGAIN",
            Self::Badf => "EBADF",
            Self::Busy => "EBUSY",
            Self::Canceled => "ECANCELED",
            Self::Exist => "EEXIST",
            Self::Fault => "EFAULT",
            Self::Fbig => "EFBIG",
            Self::Ilseq => "EILSEQ",
            Self::Inval => "EINVAL",
            Self::Io => "EIO",
            Self::Isdir => "EISDIR",
            Self::Loop => "ELOOP",
            Self::Mfile => "EMFILE",
            Self::Mlink => "EMLINK",
            Self::Nametoolong => "ENAMETOOLONG",
            Self::Noent => "ENOENT",
            Self::Nomem => "ENOMEM",
            Self::Nospc => "ENOSPC",
            Self::Nosys => "ENOSYS",
            Self::Notdir => "ENOTDIR",
            Self::Notempty => "ENOTEMPTY",
            Self::Notsup => "ENOTSUP",
            Self::Notty => "ENOTTY",
            Self::Overflow => "EOVERFLOW",
            Self::Perm => "EPERM",
            Self::Pipe => "EPIPE",
            Self::Rofs => "EROFS",
            Self::Spipe => "ESPIPE",
            Self::Txtbsy => "ETXTBSY",
            Self::Xdev => "EXDEV",
        }
    }
}
