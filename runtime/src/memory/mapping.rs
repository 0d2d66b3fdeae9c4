//! The address space of one memory.
//!
//! Invariant: from the base address on lie, without gaps, private mappings of
//! the base's images, then the part that grew (zeroes at first), then
//! inaccessible address space up to `total`. In a session's memory the part
//! that grew is a file of its own, so that it can be sealed into the base
//! without being copied.

use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

use rustix::fs::SeekFrom;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};

use super::base::{Base, MemoryState};
use super::delta::Delta;
use super::{Image, MemoryPath, PAGE, dirty, image};

/// Pages that a free mapping keeps resident at most; 1024 are 4 MiB.
pub(crate) const MAX_RESIDENT_PAGES: usize = 1024;
/// Pages of the grown part that a checkpoint copies; more are sealed into the
/// base instead. 256 are 1 MiB.
pub(crate) const MAX_GROWN_PAGES: usize = 256;
/// Changed pages of an image that a checkpoint compares; with more, the image
/// is replaced by a newer one. 2048 are 8 MiB.
pub(crate) const MAX_CHANGED_PAGES: usize = 2048;
/// Images that a base has before the grown ones are made one.
pub(crate) const MAX_PARTS: usize = 16;

/// Address space with a memory at its start.
#[derive(Debug)]
pub(super) struct Mapping {
    at: *mut u8,
    total: usize,
    /// Accessible bytes.
    size: usize,
    /// No byte beyond was ever accessible since the mapping was as new.
    high_water: usize,
    /// A change of what is mapped has failed, so that it may not be what these
    /// fields say: no other instance gets it.
    broken: bool,
    base: Base,
    path: MemoryPath,
    /// The memory's part beyond the base, where that is a file of its own and
    /// not anonymous.
    grown: Option<File>,
    /// Whether it may be one.
    of_session: bool,
    #[cfg(test)]
    pub(super) failing: Option<Failing>,
}

/// What of a growth a test lets fail.
#[cfg(test)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failing {
    Resize,
    Map,
}

// SAFETY: the mapping is owned by this value alone.
unsafe impl Send for Mapping {}
// SAFETY: a shared reference gives no access to the bytes.
unsafe impl Sync for Mapping {}

const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);
const PRIVATE: MapFlags = MapFlags::PRIVATE.union(MapFlags::NORESERVE);

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl Mapping {
    /// Reserves `total` bytes of address space with `image` at the start.
    pub(super) fn new(image: &Arc<Image>, total: usize, path: MemoryPath) -> Result<Self, String> {
        if image.len() > total {
            return Err("the image is larger than the reservation".to_owned());
        }
        // SAFETY: new address space at an address the kernel chooses.
        let at = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), total, ProtFlags::empty(), PRIVATE)
        }
        .map_err(text)?;
        let base = Base::new(Arc::clone(image));
        let mut mapping = Self {
            at: at.cast(),
            total,
            size: 0,
            high_water: 0,
            broken: false,
            base,
            path,
            grown: None,
            of_session: false,
            #[cfg(test)]
            failing: None,
        };
        mapping.lay(0, image).map_err(text)?;
        mapping.size = image.len();
        Ok(mapping)
    }

    /// The address of its first byte.
    pub(super) fn at(&self) -> *mut u8 {
        self.at
    }

    pub(super) fn total(&self) -> usize {
        self.total
    }

    /// Accessible bytes.
    #[cfg(test)]
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// Maps an image over the bytes from `start` on.
    fn lay(&mut self, start: usize, image: &Image) -> std::io::Result<()> {
        let laid = self.try_lay(start, image);
        self.broken |= laid.is_err();
        laid
    }

    fn try_lay(&mut self, start: usize, image: &Image) -> std::io::Result<()> {
        let end = start.checked_add(image.len()).filter(|end| *end <= self.total);
        self.high_water = self.high_water.max(end.ok_or(std::io::ErrorKind::OutOfMemory)?);
        // SAFETY: inside this mapping's address space.
        let to = unsafe { self.at.add(start) };
        match image.file() {
            Some((file, offset)) => {
                // SAFETY: replaces bytes of this mapping, which the caller has
                // for itself, by the image's.
                unsafe {
                    rustix::mm::mmap(
                        to.cast(),
                        image.len(),
                        READ_WRITE,
                        PRIVATE | MapFlags::FIXED,
                        file,
                        offset,
                    )?
                };
            }
            None => {
                let bytes = image.bytes().ok_or(std::io::ErrorKind::Unsupported)?;
                let flags = MprotectFlags::READ | MprotectFlags::WRITE;
                // SAFETY: inside this mapping, which the caller has for itself;
                // the image is memory elsewhere.
                unsafe {
                    rustix::mm::mprotect(to.cast(), bytes.len(), flags)?;
                    to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
                }
            }
        }
        Ok(())
    }

    /// Makes this mapping, which equals its image, a memory on `state`'s base
    /// and of its size. Its delta is not applied.
    pub(super) fn start_from(&mut self, state: &MemoryState) -> std::io::Result<()> {
        self.of_session = true;
        let own = self.base.clone();
        for (at, part) in state.base.parts().iter().enumerate() {
            let there = own.parts().get(at);
            if !there.is_some_and(|there| Arc::ptr_eq(&there.image, &part.image)) {
                self.lay(part.start, &part.image)?;
            }
        }
        self.base = state.base.clone();
        self.size = self.base.len();
        if state.size > self.size { self.grow(state.size) } else { Ok(()) }
    }

    /// A memory whose checkpoints will be taken.
    pub(super) fn start_session(&mut self) {
        self.of_session = true;
    }

    /// Makes the bytes up to `to` readable and writable; the new ones are zero.
    ///
    /// # Errors
    /// The system's reason. The memory is as it was.
    pub(super) fn grow(&mut self, to: usize) -> std::io::Result<()> {
        if to <= self.size {
            return Ok(());
        }
        if to > self.total {
            return Err(std::io::ErrorKind::OutOfMemory.into());
        }
        let new =
            if self.grown.is_none() && self.wants_file(to) { self.grown_file() } else { None };
        self.high_water = self.high_water.max(to);
        if let Some(file) = new {
            // What was anonymous is mapped again, from the file.
            self.map_grown(&file, self.base.len(), to)?;
            self.grown = Some(file);
        } else if let Some(file) = self.grown.take() {
            let mapped = self.map_grown(&file, self.size, to);
            self.grown = Some(file);
            mapped?;
        } else {
            let flags = MprotectFlags::READ | MprotectFlags::WRITE;
            // SAFETY: inside this mapping, and inaccessible so far.
            let opened = unsafe {
                let at = self.at.add(self.size);
                rustix::mm::mprotect(at.cast(), to - self.size, flags)
            };
            self.broken |= opened.is_err();
            opened?;
        }
        self.size = to;
        Ok(())
    }

    /// Makes `file`, which has the memory's bytes beyond the base, so long that
    /// it ends at `to`, and maps the part of it that lies from `from` on.
    fn map_grown(&mut self, file: &File, from: usize, to: usize) -> std::io::Result<()> {
        let start = self.base.len();
        #[cfg(test)]
        self.injected(Failing::Resize)?;
        rustix::fs::ftruncate(file, (to - start) as u64)?;
        let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::NORESERVE;
        let offset = (from - start) as u64;
        #[cfg(test)]
        self.injected(Failing::Map).inspect_err(|_| self.broken = true)?;
        // SAFETY: inside this mapping's address space; replaces bytes that are
        // inaccessible, or equal the file's, by those of a file that nothing
        // else maps writable.
        let mapped = unsafe {
            let at = self.at.add(from);
            rustix::mm::mmap(at.cast(), to - from, READ_WRITE, flags, file, offset)
        };
        self.broken |= mapped.is_err();
        mapped?;
        Ok(())
    }

    #[cfg(test)]
    fn injected(&self, step: Failing) -> std::io::Result<()> {
        if self.failing == Some(step) {
            Err(std::io::ErrorKind::OutOfMemory.into())
        } else {
            Ok(())
        }
    }

    /// Whether growing to `to` is the moment to put what has grown into a file:
    /// a small session takes no descriptor.
    fn wants_file(&self, to: usize) -> bool {
        let (start, most) = (self.base.len(), MAX_GROWN_PAGES * PAGE);
        self.of_session
            && self.path == MemoryPath::RecycledSlots
            && to.saturating_sub(start) > most
            && self.size.saturating_sub(start) <= most
    }

    /// A file with what has grown so far; `None` where there are no such files.
    fn grown_file(&self) -> Option<File> {
        let file = image::new_memory_file().ok()?;
        let start = self.base.len();
        // SAFETY: those bytes are accessible, and the guest that owns them
        // waits for this call.
        let bytes = unsafe { std::slice::from_raw_parts(self.at.add(start), self.size - start) };
        write_sparse(&file, bytes).ok()?;
        Some(file)
    }

    /// Runs of pages of `range`, a part that is privately mapped, that may
    /// differ from what is mapped there.
    fn changed(
        &self,
        range: Range<usize>,
        mut found: impl FnMut(Range<usize>),
    ) -> std::io::Result<()> {
        match self.path {
            MemoryPath::Plain => found(range),
            MemoryPath::RecycledSlots => {
                let start = range.start;
                dirty::scan(self.at.addr() + start, range.len(), |run| {
                    found(run.start + start..run.end + start);
                })?;
            }
        }
        Ok(())
    }

    /// The state of the memory, whose bytes are `memory`. What has grown may
    /// become part of the base, which changes no byte.
    pub(super) fn checkpoint(&mut self, memory: &mut [u8]) -> std::io::Result<MemoryState> {
        if memory.as_mut_ptr() != self.at || memory.len() != self.size {
            return Err(std::io::ErrorKind::InvalidInput.into());
        }
        let mut runs = self.changed_runs()?;
        if self.path == MemoryPath::RecycledSlots {
            let sealed = self.seal_grown(&runs)?;
            let renewed = self.renew(&runs, memory)?;
            if sealed || renewed {
                runs = self.changed_runs()?;
            }
        }
        let delta = Delta::filled(|delta| self.compare(&runs, memory, delta))?;
        Ok(MemoryState { base: self.base.clone(), delta, size: self.size })
    }

    /// Adds what the runs have other than the base.
    fn compare(&self, runs: &Runs, memory: &[u8], delta: &mut Delta) -> std::io::Result<()> {
        for (part, runs) in self.base.parts().iter().zip(&runs.parts) {
            let then = part.image.bytes().ok_or(std::io::ErrorKind::Unsupported)?;
            for run in runs {
                let now = memory.get(run.clone()).unwrap_or_default();
                let then = then.get(run.start - part.start..run.end - part.start);
                delta.add(run.start / PAGE, now, then.unwrap_or_default());
            }
        }
        for run in &runs.grown {
            delta.add(run.start / PAGE, memory.get(run.clone()).unwrap_or_default(), &[]);
        }
        Ok(())
    }

    /// Every run of pages that may differ from the base.
    fn changed_runs(&self) -> std::io::Result<Runs> {
        let mut runs = Runs { parts: Vec::new(), grown: self.grown_runs()? };
        for part in self.base.parts() {
            let mut of_part = Vec::new();
            self.changed(part.start..part.end(), |run| of_part.push(run))?;
            runs.parts.push(of_part);
        }
        Ok(runs)
    }

    /// The runs of pages beyond the base that may not be zero.
    fn grown_runs(&self) -> std::io::Result<Vec<Range<usize>>> {
        let start = self.base.len();
        let mut runs = Vec::new();
        if start >= self.size {
            return Ok(runs);
        }
        let Some(file) = &self.grown else {
            self.changed(start..self.size, |run| runs.push(run))?;
            return Ok(runs);
        };
        let mut at = 0;
        loop {
            match rustix::fs::seek(file, SeekFrom::Data(at)) {
                Ok(data) => {
                    at = rustix::fs::seek(file, SeekFrom::Hole(data))?;
                    let place = |offset: u64| {
                        usize::try_from(offset).unwrap_or(usize::MAX).saturating_add(start)
                    };
                    let end = place(at).min(self.size);
                    runs.push(place(data).min(end) / PAGE * PAGE..end);
                }
                // There is no more data.
                Err(rustix::io::Errno::NXIO) => return Ok(runs),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Makes the grown part a sealed image of the base, if it is large; whether
    /// it did.
    fn seal_grown(&mut self, runs: &Runs) -> std::io::Result<bool> {
        if pages(&runs.grown) <= MAX_GROWN_PAGES {
            return Ok(false);
        }
        let Some(file) = self.grown.take() else { return Ok(false) };
        let start = self.base.len();
        let image = Image::in_file(file, 0, self.size - start);
        // The same bytes, mapped privately.
        self.lay(start, &image)?;
        if let Some((file, _)) = image.file() {
            // Nothing writes to the file any more; the seal only makes sure.
            let _ = image::seal(file);
        }
        self.base.push(Arc::new(image));
        Ok(true)
    }

    /// Replaces images of which much has changed, and makes many grown images
    /// one; whether it did.
    fn renew(&mut self, runs: &Runs, memory: &mut [u8]) -> std::io::Result<bool> {
        let changed: Vec<usize> = runs.parts.iter().map(|runs| pages(runs)).collect();
        let grown: usize = changed.iter().skip(1).sum();
        let parts = self.base.parts().len();
        let mut renewed = false;
        if parts > 1 && (grown > MAX_CHANGED_PAGES || parts > MAX_PARTS) {
            renewed |= self.renew_parts(1, parts, memory)?;
        }
        if changed.first().is_some_and(|pages| *pages > MAX_CHANGED_PAGES) {
            renewed |= self.renew_parts(0, 1, memory)?;
        }
        Ok(renewed)
    }

    /// Puts one image of the present bytes in the place of some; false where
    /// there is no room for it, which only makes checkpoints larger.
    fn renew_parts(&mut self, from: usize, to: usize, memory: &[u8]) -> std::io::Result<bool> {
        let parts = self.base.parts().get(from..to).unwrap_or_default();
        let (Some(first), Some(last)) = (parts.first(), parts.last()) else { return Ok(false) };
        let (start, end) = (first.start, last.end());
        let now = memory.get(start..end).ok_or(std::io::ErrorKind::InvalidInput)?;
        let Ok(image) = sealed_copy(now) else { return Ok(false) };
        self.lay(start, &image)?;
        self.base.replace(from, to, Arc::new(image));
        Ok(true)
    }

    /// Makes the mapping equal its image again, and inaccessible beyond it.
    ///
    /// # Errors
    /// When that cannot be done: the mapping must not be used again.
    pub(super) fn reset(&mut self, image: &Arc<Image>) -> std::io::Result<()> {
        let own = self.base.parts().first().is_some_and(|part| Arc::ptr_eq(&part.image, image));
        if !own || self.broken || self.path == MemoryPath::Plain || image.file().is_none() {
            return Err(std::io::ErrorKind::Unsupported.into());
        }
        let pristine = image.bytes().ok_or(std::io::ErrorKind::Unsupported)?;
        if self.high_water > image.len() {
            // SAFETY: replaces the part of this mapping beyond the image, which
            // nothing uses any more, by inaccessible address space.
            unsafe {
                rustix::mm::mmap_anonymous(
                    self.at.add(image.len()).cast(),
                    self.high_water - image.len(),
                    ProtFlags::empty(),
                    PRIVATE | MapFlags::FIXED,
                )?;
            }
        }
        self.grown = None;
        self.of_session = false;
        self.size = image.len();
        self.high_water = image.len();
        self.base = Base::new(Arc::clone(image));
        let at = self.at;
        let mut resident = 0;
        let mut dropped = Ok(());
        dirty::scan(at.addr(), image.len(), |run| {
            let Some(original) = pristine.get(run.clone()) else { return };
            // SAFETY: `run` lies inside the image's part of the mapping.
            let to = unsafe { at.add(run.start) };
            let pages = run.len() / PAGE;
            if resident + pages <= MAX_RESIDENT_PAGES {
                resident += pages;
                // SAFETY: `to` has `original.len()` writable bytes that no guest
                // uses any more; the image is another mapping.
                unsafe { to.copy_from_nonoverlapping(original.as_ptr(), original.len()) };
            } else if dropped.is_ok() {
                // SAFETY: the run is private and file-backed: dropped pages read
                // as the image again.
                dropped =
                    unsafe { rustix::mm::madvise(to.cast(), run.len(), Advice::LinuxDontNeed) };
            }
        })?;
        Ok(dropped?)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the address space is this value's own.
        let _ = unsafe { rustix::mm::munmap(self.at.cast(), self.total) };
    }
}

/// Runs of pages, of each part of the base and of what has grown.
struct Runs {
    parts: Vec<Vec<Range<usize>>>,
    grown: Vec<Range<usize>>,
}

fn pages(runs: &[Range<usize>]) -> usize {
    runs.iter().map(|run| run.len() / PAGE).sum()
}

/// An image with these bytes, in a sealed file.
fn sealed_copy(bytes: &[u8]) -> std::io::Result<Image> {
    let file = image::new_memory_file()?;
    rustix::fs::ftruncate(&file, bytes.len() as u64)?;
    write_sparse(&file, bytes)?;
    image::seal(&file)?;
    Ok(Image::in_file(file, 0, bytes.len()))
}

/// Writes the pages that are not zero.
fn write_sparse(file: &File, bytes: &[u8]) -> std::io::Result<()> {
    use std::os::unix::fs::FileExt as _;
    let (pages, _) = bytes.as_chunks::<PAGE>();
    let mut at = 0;
    for run in pages.chunk_by(|left, right| is_zero(left) == is_zero(right)) {
        let bytes = run.as_flattened();
        if run.first().is_some_and(|page| !is_zero(page)) {
            file.write_all_at(bytes, at)?;
        }
        at += bytes.len() as u64;
    }
    Ok(())
}

fn is_zero(page: &[u8; PAGE]) -> bool {
    *page == [0; PAGE]
}
