//! An image: bytes that memories start from and are compared with.
//!
//! Invariant: nothing writes to an image once it exists. One in memory is
//! sealed, or private to this process where the system has no sealed files;
//! one in a file lies in a compiled-code file, whose rules are those of
//! [`crate::cache`].

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::OnceLock;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

/// Bytes that nothing changes.
#[derive(Debug)]
pub(crate) struct Image {
    source: Source,
    len: usize,
}

#[derive(Debug)]
enum Source {
    File { file: File, offset: u64, pristine: OnceLock<Option<Pristine>> },
    Heap(Box<[u8]>),
}

/// A read-only mapping of the whole image.
#[derive(Debug)]
struct Pristine {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is read-only and lives as long as the value.
unsafe impl Send for Pristine {}
// SAFETY: as above; shared reads of memory that nobody writes.
unsafe impl Sync for Pristine {}

/// A new file in memory that can be sealed.
///
/// # Errors
/// The system's reason, where there are none.
pub(super) fn new_memory_file() -> std::io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    Ok(File::from(rustix::fs::memfd_create("fumehood-image", flags)?))
}

/// Forbids every further change of a file's size and content, for good. There
/// must be no writable shared mapping of it.
pub(super) fn seal(file: impl AsFd) -> std::io::Result<()> {
    let all = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    Ok(rustix::fs::fcntl_add_seals(file, all)?)
}

impl Image {
    /// The part of `file` from `offset`; both are multiples of the page size.
    /// Nothing may change that part as long as the image exists.
    pub(crate) fn in_file(file: File, offset: u64, len: usize) -> Self {
        Self { source: Source::File { file, offset, pristine: OnceLock::new() }, len }
    }

    /// A copy of `bytes`: a sealed file in memory, or, where there are none,
    /// memory of this process.
    pub(crate) fn in_memory(bytes: &[u8]) -> Self {
        let sealed = || -> std::io::Result<File> {
            use std::io::Write as _;
            let mut file = new_memory_file()?;
            file.write_all(bytes)?;
            seal(&file)?;
            Ok(file)
        };
        match sealed() {
            Ok(file) => Self::in_file(file, 0, bytes.len()),
            Err(_) => Self { source: Source::Heap(bytes.into()), len: bytes.len() },
        }
    }

    /// A copy of `bytes` that is in no file.
    #[cfg(test)]
    pub(crate) fn on_heap(bytes: &[u8]) -> Self {
        Self { source: Source::Heap(bytes.into()), len: bytes.len() }
    }

    /// Its size in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// What to map it from; `None` if it can only be copied.
    pub(super) fn file(&self) -> Option<(BorrowedFd<'_>, u64)> {
        match &self.source {
            Source::File { file, offset, .. } => Some((file.as_fd(), *offset)),
            Source::Heap(_) => None,
        }
    }

    /// The image's bytes, or `None` if the system does not map them.
    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        match &self.source {
            Source::Heap(bytes) => Some(bytes),
            Source::File { file, offset, pristine } => {
                let map = || Pristine::map(file, *offset, self.len);
                let pristine = pristine.get_or_init(map).as_ref()?;
                // SAFETY: the mapping has `len` readable bytes, is never
                // written, and lives as long as `self`.
                Some(unsafe { std::slice::from_raw_parts(pristine.at.as_ptr(), pristine.len) })
            }
        }
    }
}

impl Pristine {
    fn map(file: &File, offset: u64, len: usize) -> Option<Self> {
        let (protection, flags) = (ProtFlags::READ, MapFlags::SHARED);
        // SAFETY: a new read-only mapping at an address the kernel chooses.
        let at =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, protection, flags, file, offset) };
        Some(Self { at: NonNull::new(at.ok()?.cast())?, len })
    }
}

impl Drop for Pristine {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map`, and nobody can hold a slice of
        // it: those borrow the image.
        let _ = unsafe { rustix::mm::munmap(self.at.as_ptr().cast(), self.len) };
    }
}
