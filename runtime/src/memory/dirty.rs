//! Which pages of a private mapping are no longer the file's.
//!
//! Invariant: a page that was written is always reported; a page that was not
//! may be. Where the kernel gives no answer, there is no answer, never a guess.

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

use rustix::ioctl::{self, Ioctl, IoctlOutput, Opcode};

use super::PAGE;

/// Bits of an entry of `/proc/self/pagemap` (Linux,
/// `Documentation/admin-guide/mm/pagemap.rst`).
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const FILE_OR_SHARED: u64 = 1 << 61;
/// Entries read at a time.
const CHUNK: usize = 2048;
/// Runs of pages that one `PAGEMAP_SCAN` tells of.
const REGIONS: usize = 256;

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
fn open_pagemap() -> io::Result<File> {
    File::open("/proc/self/pagemap")
}

/// Calls `found` with each run of pages in `len` bytes from `base` that are no
/// longer the file's own, as byte ranges relative to `base`.
///
/// # Errors
/// When the kernel does not say.
pub(super) fn scan(base: usize, len: usize, found: impl FnMut(Range<usize>)) -> io::Result<()> {
    if can_list() { list(base, len, found) } else { read(base, len, found) }
}

/// Whether the kernel lists the pages itself (Linux 6.7); tried once.
fn can_list() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    *CAN.get_or_init(|| probe(|base, len, found| list(base, len, found)).unwrap_or(false))
}

/// `struct page_region` of `linux/fs.h`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

/// `struct pm_scan_arg` of `linux/fs.h`.
#[derive(Default)]
#[repr(C)]
struct ScanArgument {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    regions: u64,
    regions_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// Categories of `linux/fs.h`.
const PAGE_IS_FILE: u64 = 1 << 2;
const PAGE_IS_PRESENT: u64 = 1 << 3;
const PAGE_IS_SWAPPED: u64 = 1 << 4;

/// `PAGEMAP_SCAN`; gives the number of regions.
struct PagemapScan<'a>(&'a mut ScanArgument);

// SAFETY: the number is that of `PAGEMAP_SCAN`, which reads and writes the
// structure above and, of `regions`, as many entries as `regions_len` says.
unsafe impl Ioctl for PagemapScan<'_> {
    type Output = usize;
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        ioctl::opcode::read_write::<ScanArgument>(b'f', 16)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::from_mut(self.0).cast()
    }

    unsafe fn output_from_ptr(
        regions: IoctlOutput,
        _: *mut c_void,
    ) -> rustix::io::Result<Self::Output> {
        usize::try_from(regions).map_err(|_| rustix::io::Errno::IO)
    }
}

/// The runs as the kernel lists them.
fn list(base: usize, len: usize, mut found: impl FnMut(Range<usize>)) -> io::Result<()> {
    let pagemap = pagemap().ok_or(io::ErrorKind::Unsupported)?;
    let mut regions = [Region::default(); REGIONS];
    let end = base.saturating_add(len).next_multiple_of(PAGE) as u64;
    let mut start = base as u64;
    while start < end {
        let mut argument = ScanArgument {
            size: size_of::<ScanArgument>() as u64,
            start,
            end,
            regions: regions.as_mut_ptr().expose_provenance() as u64,
            regions_len: REGIONS as u64,
            category_inverted: PAGE_IS_FILE,
            category_mask: PAGE_IS_FILE,
            category_anyof_mask: PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
            return_mask: PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
            ..ScanArgument::default()
        };
        // SAFETY: the structure names an array of so many regions, which lives
        // until the call is over; pages are only looked at.
        let count = unsafe { ioctl::ioctl(pagemap, PagemapScan(&mut argument))? };
        for region in regions.get(..count).ok_or(io::ErrorKind::InvalidData)? {
            let relative = |at: u64| usize::try_from(at).ok().and_then(|at| at.checked_sub(base));
            let (Some(from), Some(to)) = (relative(region.start), relative(region.end)) else {
                return Err(io::ErrorKind::InvalidData.into());
            };
            found(from..to);
        }
        // Where it stopped because the array was full.
        if argument.walk_end <= start {
            return Err(io::ErrorKind::InvalidData.into());
        }
        start = argument.walk_end;
    }
    Ok(())
}

/// The runs as the entry of each page says.
fn read(base: usize, len: usize, mut found: impl FnMut(Range<usize>)) -> io::Result<()> {
    let pagemap = pagemap().ok_or(io::ErrorKind::Unsupported)?;
    let pages = len.div_ceil(PAGE);
    let mut buffer = [0_u8; CHUNK * 8];
    let mut run: Option<Range<usize>> = None;
    let mut page = 0;
    while page < pages {
        let count = (pages - page).min(CHUNK);
        let bytes = buffer.get_mut(..count * 8).ok_or(io::ErrorKind::Other)?;
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

/// A way to find the runs: see [`scan`].
type Scan = fn(usize, usize, &mut dyn FnMut(Range<usize>)) -> io::Result<()>;

/// Whether pages can be told apart at all.
fn self_test() -> io::Result<bool> {
    probe(|base, len, found| read(base, len, found))
}

/// Maps a file of four pages privately, reads one, writes another, and looks.
fn probe(scan: Scan) -> io::Result<bool> {
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
    let scanned = scan(at.addr(), len, &mut |run| runs.push(run));
    // SAFETY: the mapping was made above and nothing refers to it any more.
    unsafe { rustix::mm::munmap(at, len)? };
    scanned?;
    Ok(matches!(runs.as_slice(), [run] if *run == (2 * PAGE..3 * PAGE)))
}

#[cfg(test)]
mod tests {
    use super::PAGE;

    #[test]
    fn the_kernel_names_exactly_the_written_page() {
        // Where /proc/self/pagemap is missing, the plain path is taken instead.
        if super::pagemap().is_some() {
            assert!(super::self_test().unwrap());
        }
    }

    #[test]
    fn both_ways_name_the_same_pages() {
        if !super::can_list() {
            return;
        }
        let len = 1500 * PAGE;
        let mut bytes = vec![0_u8; len + PAGE];
        let base = bytes.as_ptr().addr().next_multiple_of(PAGE);
        let skip = base - bytes.as_ptr().addr();
        // More runs than one call tells of, of different lengths.
        for page in (0..1500).filter(|page| page % 4 == 0 || page % 7 < 2) {
            bytes[skip + page * PAGE] = 1;
        }
        let mut listed = Vec::new();
        super::list(base, len, |run| listed.extend(run.step_by(PAGE))).unwrap();
        let mut read = Vec::new();
        super::read(base, len, |run| read.extend(run.step_by(PAGE))).unwrap();
        assert_eq!(listed, read);
        assert!(listed.len() > super::REGIONS, "{}", listed.len());
    }
}
