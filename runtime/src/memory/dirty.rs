//! Which pages of a private mapping are no longer the file's.
//!
//! Invariant: a page that was written is always reported; a page that was not
//! may be. Where the kernel gives no answer, there is no answer, never a guess.
//! What was found out holds for one address space: a child made by `fork(2)`
//! finds it out again.

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

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
    known().available
}

/// What this process can tell. The descriptor shows the address space of
/// whoever opened it, whoever reads it.
struct Known {
    process: u32,
    mark: Option<&'static AtomicU8>,
    pagemap: Option<File>,
    /// Whether pages can be told apart at all.
    available: bool,
    /// Whether the kernel lists them itself (Linux 6.7).
    lists: bool,
}

/// Set by each process for itself. Without a lock, which another thread might
/// hold for ever in a child.
static KNOWN: AtomicPtr<Known> = AtomicPtr::new(std::ptr::null_mut());

fn known() -> &'static Known {
    of_this_process(&KNOWN)
}

/// What `place` has, if it is this process that put it there; else it is found
/// out and put there. What it had is left alone: it takes a descriptor and a
/// page for each generation of processes.
fn of_this_process(place: &AtomicPtr<Known>) -> &'static Known {
    let before = place.load(Ordering::Acquire);
    // SAFETY: null, or a value that was leaked below and is never changed.
    if let Some(known) = unsafe { before.as_ref() }
        && known.is_of_this_process()
    {
        return known;
    }
    let fresh = Box::into_raw(Box::new(Known::look()));
    match place.compare_exchange(before, fresh, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: just leaked.
        Ok(_) => unsafe { &*fresh },
        Err(first) => {
            // SAFETY: `fresh` was never shared.
            drop(unsafe { Box::from_raw(fresh) });
            // SAFETY: another thread of this process has just leaked it.
            unsafe { &*first }
        }
    }
}

impl Known {
    fn look() -> Self {
        let pagemap = open_pagemap().ok();
        let tried = |scan: Scan| {
            pagemap.as_ref().is_some_and(|pagemap| probe(pagemap, scan).unwrap_or(false))
        };
        let available = rustix::param::page_size() == PAGE && tried(read);
        let lists = available && tried(list);
        Self { process: std::process::id(), mark: mark(), available, lists, pagemap }
    }

    /// A child in a name space of its own may have its parent's number, and a
    /// system may not know the mark: both have to be right.
    fn is_of_this_process(&self) -> bool {
        self.process == std::process::id()
            && self.mark.is_none_or(|mark| mark.load(Ordering::Relaxed) != 0)
    }
}

/// A byte that is set in this process and zero in every child of it; `None`
/// where the kernel does not do that.
fn mark() -> Option<&'static AtomicU8> {
    use rustix::mm::{Advice, MapFlags, ProtFlags};
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: new memory at an address the kernel chooses.
    let at = unsafe {
        rustix::mm::mmap_anonymous(std::ptr::null_mut(), PAGE, protection, MapFlags::PRIVATE)
    };
    let at = at.ok()?;
    // SAFETY: the memory made above, which nothing has used yet.
    if unsafe { rustix::mm::madvise(at, PAGE, Advice::LinuxWipeOnFork) }.is_err() {
        // SAFETY: as above.
        let _ = unsafe { rustix::mm::munmap(at, PAGE) };
        return None;
    }
    // SAFETY: a byte of the memory made above, which is never given back.
    let mark = unsafe { AtomicU8::from_ptr(at.cast()) };
    mark.store(1, Ordering::Relaxed);
    Some(mark)
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
pub(super) fn scan(base: usize, len: usize, mut found: impl FnMut(Range<usize>)) -> io::Result<()> {
    let known = known();
    let pagemap = known.pagemap.as_ref().ok_or(io::ErrorKind::Unsupported)?;
    let scan: Scan = if known.lists { list } else { read };
    scan(pagemap, base, len, &mut found)
}

/// A way to find the runs: see [`scan`].
type Scan = fn(&File, usize, usize, &mut dyn FnMut(Range<usize>)) -> io::Result<()>;

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
fn list(
    pagemap: &File,
    base: usize,
    len: usize,
    found: &mut dyn FnMut(Range<usize>),
) -> io::Result<()> {
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
fn read(
    pagemap: &File,
    base: usize,
    len: usize,
    found: &mut dyn FnMut(Range<usize>),
) -> io::Result<()> {
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

/// Maps a file of four pages privately, reads one, writes another, and looks.
fn probe(pagemap: &File, scan: Scan) -> io::Result<bool> {
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
    let scanned = scan(pagemap, at.addr(), len, &mut |run| runs.push(run));
    // SAFETY: the mapping was made above and nothing refers to it any more.
    unsafe { rustix::mm::munmap(at, len)? };
    scanned?;
    Ok(matches!(runs.as_slice(), [run] if *run == (2 * PAGE..3 * PAGE)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_names_exactly_the_written_page() {
        // Where /proc/self/pagemap is missing, the plain path is taken instead.
        if let Some(pagemap) = &known().pagemap {
            assert!(probe(pagemap, read).unwrap());
        }
    }

    #[test]
    fn what_another_process_found_out_is_not_believed() {
        let of_the_parent = || Known {
            process: std::process::id().wrapping_add(1),
            mark: mark(),
            pagemap: None,
            available: !available(),
            lists: false,
        };
        // One has another number, one has the same and a mark that is wiped.
        let same_number = Known { process: std::process::id(), ..of_the_parent() };
        if let Some(mark) = same_number.mark {
            mark.store(0, Ordering::Relaxed);
        }
        for inherited in [Some(of_the_parent()), same_number.mark.is_some().then_some(same_number)]
        {
            let Some(inherited) = inherited else { continue };
            let place = AtomicPtr::new(Box::into_raw(Box::new(inherited)));
            let found = of_this_process(&place);
            assert!(found.is_of_this_process());
            assert_eq!(found.available, available());
            assert_eq!(found.pagemap.is_some(), known().pagemap.is_some());
            assert!(std::ptr::eq(of_this_process(&place), found), "found out once");
        }
    }

    #[test]
    fn both_ways_name_the_same_pages() {
        let known = known();
        let Some(pagemap) = known.pagemap.as_ref().filter(|_| known.lists) else { return };
        let len = 1500 * PAGE;
        let mut bytes = vec![0_u8; len + PAGE];
        let base = bytes.as_ptr().addr().next_multiple_of(PAGE);
        let skip = base - bytes.as_ptr().addr();
        // More runs than one call tells of, of different lengths.
        for page in (0..1500).filter(|page| page % 4 == 0 || page % 7 < 2) {
            bytes[skip + page * PAGE] = 1;
        }
        let mut listed = Vec::new();
        list(pagemap, base, len, &mut |run| listed.extend(run.step_by(PAGE))).unwrap();
        let mut told = Vec::new();
        read(pagemap, base, len, &mut |run| told.extend(run.step_by(PAGE))).unwrap();
        assert_eq!(listed, told);
        assert!(listed.len() > REGIONS, "{}", listed.len());
    }
}
