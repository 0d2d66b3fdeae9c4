//! Which pages of a private mapping are no longer the file's.
//!
//! Invariant: a page that was written is always reported; a page that was not
//! may be. Where the kernel gives no answer, there is no answer, never a guess.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

use super::PAGE;

/// Bits of an entry of `/proc/self/pagemap` (Linux,
/// `Documentation/admin-guide/mm/pagemap.rst`).
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const FILE_OR_SHARED: u64 = 1 << 61;
/// Entries read at a time.
const CHUNK: usize = 2048;

/// Whether this process can tell; tried once, on a mapping of its own.
pub(super) fn available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| rustix::param::page_size() == PAGE && self_test().unwrap_or(false))
}

fn pagemap() -> Option<&'static File> {
    static PAGEMAP: OnceLock<Option<File>> = OnceLock::new();
    PAGEMAP.get_or_init(|| open_pagemap().ok()).as_ref()
}

#[allow(clippy::disallowed_methods, reason = "the kernel's record of our own pages")]
fn open_pagemap() -> std::io::Result<File> {
    File::open("/proc/self/pagemap")
}

/// Calls `found` with each run of pages in `len` bytes from `base` that are no
/// longer the file's own, as byte ranges relative to `base`.
///
/// # Errors
/// When the kernel does not say.
pub(super) fn scan(
    base: usize,
    len: usize,
    mut found: impl FnMut(Range<usize>),
) -> std::io::Result<()> {
    let pagemap = pagemap().ok_or(std::io::ErrorKind::Unsupported)?;
    let pages = len.div_ceil(PAGE);
    let mut buffer = [0_u8; CHUNK * 8];
    let mut run: Option<Range<usize>> = None;
    let mut page = 0;
    while page < pages {
        let count = (pages - page).min(CHUNK);
        let bytes = buffer.get_mut(..count * 8).ok_or(std::io::ErrorKind::Other)?;
        let at = (base / PAGE).saturating_add(page) as u64;
        pagemap.read_exact_at(bytes, at.saturating_mul(8))?;
        for (index, entry) in bytes.as_chunks::<8>().0.iter().enumerate() {
            let entry = u64::from_ne_bytes(*entry);
            let own = entry & (PRESENT | SWAPPED) != 0 && entry & FILE_OR_SHARED == 0;
            let start = (page + index) * PAGE;
            match (&mut run, own) {
                (Some(run), true) => run.end = start + PAGE,
                (None, true) => run = Some(start..start + PAGE),
                (Some(_), false) => {
                    if let Some(run) = run.take() {
                        found(run);
                    }
                }
                (None, false) => {}
            }
        }
        page += count;
    }
    if let Some(run) = run {
        found(run);
    }
    Ok(())
}

/// Maps a file of four pages privately, reads two, writes one, and looks.
fn self_test() -> std::io::Result<bool> {
    use rustix::mm::{MapFlags, ProtFlags};
    let file = rustix::fs::memfd_create("fumehood-probe", rustix::fs::MemfdFlags::CLOEXEC)?;
    let len = 4 * PAGE;
    rustix::fs::ftruncate(&file, len as u64)?;
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address the kernel chooses.
    let at = unsafe {
        rustix::mm::mmap(std::ptr::null_mut(), len, protection, MapFlags::PRIVATE, &file, 0)?
    };
    let bytes: *mut u8 = at.cast();
    // SAFETY: page 0 and 2 lie inside the mapping made above.
    unsafe {
        std::hint::black_box(bytes.read_volatile());
        bytes.add(2 * PAGE).write_volatile(1);
    }
    let mut runs = Vec::new();
    let scanned = scan(at.addr(), len, |run| runs.push(run));
    // SAFETY: the mapping was made above and nothing refers to it any more.
    unsafe { rustix::mm::munmap(at, len)? };
    scanned?;
    Ok(matches!(runs.as_slice(), [run] if *run == (2 * PAGE..3 * PAGE)))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_kernel_names_exactly_the_written_page() {
        // Where /proc/self/pagemap is missing, the plain path is taken instead.
        if super::pagemap().is_some() {
            assert!(super::self_test().unwrap());
        }
    }
}
