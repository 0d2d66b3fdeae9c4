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
}
