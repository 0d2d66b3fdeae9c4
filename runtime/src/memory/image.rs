//! The image: the guest's memory as it is before any cell.
//!
//! Invariant: nothing writes to an image once it exists. One in memory is
//! sealed; one in a file lies in a compiled-code file, whose rules are those of
//! [`crate::cache`].

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::OnceLock;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

/// A memory image and the file it is mapped from.
#[derive(Debug)]
pub(crate) struct Image {
    file: File,
    offset: u64,
    len: usize,
    pristine: OnceLock<Option<Pristine>>,
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

impl Image {
    /// The part of `file` from `offset`; both are multiples of the page size.
    pub(crate) fn in_file(file: File, offset: u64, len: usize) -> Self {
        Self { file, offset, len, pristine: OnceLock::new() }
    }

    /// A sealed copy of `bytes` in memory.
    ///
    /// # Errors
    /// The system's reason.
    pub(crate) fn in_memory(bytes: &[u8]) -> std::io::Result<Self> {
        use std::io::Write;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let mut file = File::from(rustix::fs::memfd_create("fumehood-image", flags)?);
        file.write_all(bytes)?;
        rustix::fs::fcntl_add_seals(
            &file,
            SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE,
        )?;
        Ok(Self::in_file(file, 0, bytes.len()))
    }

    /// Its size in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// The image's bytes, or `None` if the system does not map them.
    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        let pristine = self.pristine.get_or_init(|| self.map_pristine()).as_ref()?;
        // SAFETY: the mapping has `len` readable bytes, is never written, and
        // lives as long as `self`.
        Some(unsafe { std::slice::from_raw_parts(pristine.at.as_ptr(), pristine.len) })
    }

    fn map_pristine(&self) -> Option<Pristine> {
        // SAFETY: a new read-only mapping at an address the kernel chooses.
        let at = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                self.len,
                ProtFlags::READ,
                MapFlags::SHARED,
                &self.file,
                self.offset,
            )
        };
        Some(Pristine { at: NonNull::new(at.ok()?.cast())?, len: self.len })
    }
}

impl Drop for Pristine {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map_pristine`, and nobody can hold a
        // slice of it: those borrow the image.
        let _ = unsafe { rustix::mm::munmap(self.at.as_ptr().cast(), self.len) };
    }
}
