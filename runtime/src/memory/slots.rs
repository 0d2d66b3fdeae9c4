//! Mappings of the image for instances, recycled.
//!
//! Invariant: a slot in the free list equals the image in every byte of its
//! first `image.len()` bytes and is inaccessible beyond them.

use std::cell::Cell;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};
use wasmtime::{LinearMemory, MemoryCreator, MemoryType};

use super::{Image, PAGE, dirty};

/// Mappings that are kept for later instances.
const MAX_FREE: usize = 16;
/// Pages that a free mapping keeps resident at most; 1024 are 4 MiB.
const MAX_RESIDENT_PAGES: usize = 1024;

thread_local! {
    /// Set while this thread instantiates the guest: the next memory is a slot.
    static WANTED: Cell<bool> = const { Cell::new(false) };
}

/// The mappings of one image.
#[derive(Debug)]
pub(crate) struct Slots {
    image: Image,
    free: Mutex<Vec<Mapping>>,
}

impl Slots {
    pub(crate) fn new(image: Image) -> Self {
        Self { image, free: Mutex::new(Vec::new()) }
    }

    /// Runs `instantiate`, whose memory is then one of these slots. Nothing in
    /// it may wait, since the wish is a property of the thread.
    pub(crate) fn instantiate<T>(instantiate: impl FnOnce() -> T) -> T {
        struct Reset;
        impl Drop for Reset {
            fn drop(&mut self) {
                WANTED.set(false);
            }
        }
        WANTED.set(true);
        let _reset = Reset;
        instantiate()
    }

    fn take(self: &Arc<Self>, reserved: usize, guard: usize) -> Result<Slot, String> {
        let total = reserved.checked_add(guard).ok_or("the reservation is too large")?;
        let recycled = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mapping = match recycled {
            Some(mapping) if mapping.total == total => mapping,
            _ => Mapping::new(&self.image, total)?,
        };
        Ok(Slot {
            size: self.image.len(),
            capacity: reserved,
            mapping: Some(mapping),
            home: Arc::downgrade(self),
        })
    }

    /// Puts a mapping back to the image and keeps it, or gives it up.
    fn recycle(&self, mut mapping: Mapping, size: usize) {
        if !dirty::available() || mapping.reset(&self.image, size).is_err() {
            return;
        }
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < MAX_FREE {
            free.push(mapping);
        }
    }
}

/// Makes slots for the guest and plain mappings for nothing else.
#[derive(Debug)]
pub(crate) struct SlotCreator(pub(crate) Arc<std::sync::OnceLock<Arc<Slots>>>);

// SAFETY: the memories keep `byte_size` readable and writable bytes at a fixed
// address, `capacity + guard` reserved ones behind it, and never move.
unsafe impl MemoryCreator for SlotCreator {
    fn new_memory(
        &self,
        _ty: MemoryType,
        minimum: usize,
        _maximum: Option<usize>,
        reserved_size_in_bytes: Option<usize>,
        guard_size_in_bytes: usize,
    ) -> Result<Box<dyn LinearMemory>, String> {
        let slots = self.0.get().filter(|_| WANTED.get()).ok_or("no image is expected here")?;
        let reserved = reserved_size_in_bytes.ok_or("memory must be reserved ahead")?;
        if minimum != slots.image.len() {
            return Err("the image is not the module's memory".to_owned());
        }
        Ok(Box::new(slots.take(reserved, guard_size_in_bytes)?))
    }
}

/// A linear memory in a slot.
#[derive(Debug)]
struct Slot {
    size: usize,
    capacity: usize,
    mapping: Option<Mapping>,
    home: Weak<Slots>,
}

// SAFETY: `as_ptr` is the start of a mapping that stays where it is until drop;
// `byte_size` bytes of it are readable and writable.
unsafe impl LinearMemory for Slot {
    fn byte_size(&self) -> usize {
        self.size
    }

    fn byte_capacity(&self) -> usize {
        self.capacity
    }

    fn grow_to(&mut self, new_size: usize) -> wasmtime::Result<()> {
        let mapping = self.mapping.as_mut();
        let grown = mapping.ok_or(std::io::ErrorKind::Other.into()).and_then(|mapping| {
            if new_size > self.capacity {
                return Err(std::io::ErrorKind::OutOfMemory.into());
            }
            mapping.open(self.size, new_size)
        });
        grown.map_err(|error: std::io::Error| wasmtime::Error::msg(error.to_string()))?;
        self.size = new_size;
        Ok(())
    }

    fn as_ptr(&self) -> *mut u8 {
        self.mapping.as_ref().map_or(std::ptr::null_mut(), |mapping| mapping.base)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let (Some(mapping), Some(home)) = (self.mapping.take(), self.home.upgrade()) {
            home.recycle(mapping, self.size);
        }
    }
}

/// Address space with the image at its start; the rest is inaccessible.
#[derive(Debug)]
struct Mapping {
    base: *mut u8,
    total: usize,
}

// SAFETY: the mapping is owned by this value alone.
unsafe impl Send for Mapping {}
// SAFETY: a shared reference gives no access to the bytes.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(image: &Image, total: usize) -> Result<Self, String> {
        if image.len() > total {
            return Err("the image is larger than the reservation".to_owned());
        }
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: new address space at an address the kernel chooses.
        let base = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), total, ProtFlags::empty(), flags)
        }
        .map_err(|error| error.to_string())?;
        let mapping = Self { base: base.cast(), total };
        // SAFETY: replaces the first `image.len()` bytes of the address space
        // reserved above, which nothing uses yet.
        unsafe {
            rustix::mm::mmap(
                base,
                image.len(),
                ProtFlags::READ | ProtFlags::WRITE,
                flags | MapFlags::FIXED,
                image.file(),
                image.offset(),
            )
        }
        .map_err(|error| error.to_string())?;
        Ok(mapping)
    }

    /// Makes the bytes from `from` to `to` readable and writable zeroes.
    fn open(&mut self, from: usize, to: usize) -> std::io::Result<()> {
        if to <= from || to > self.total {
            return Ok(());
        }
        let flags = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: the range lies inside this mapping's address space, and those
        // bytes have been inaccessible so far.
        unsafe { rustix::mm::mprotect(self.base.add(from).cast(), to - from, flags)? };
        Ok(())
    }

    /// Makes the first `image.len()` bytes equal the image again and the rest
    /// inaccessible. `size` is how far the guest had grown its memory.
    fn reset(&mut self, image: &Image, size: usize) -> std::io::Result<()> {
        let pristine = image.bytes().ok_or(std::io::ErrorKind::Unsupported)?;
        if size > image.len() {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
            // SAFETY: replaces the grown part of this mapping, which nothing
            // uses any more, by inaccessible address space.
            unsafe {
                rustix::mm::mmap_anonymous(
                    self.base.add(image.len()).cast(),
                    size - image.len(),
                    ProtFlags::empty(),
                    flags,
                )?;
            }
        }
        let base = self.base;
        let mut resident = 0;
        let mut dropped = Ok(());
        dirty::scan(base.addr(), image.len(), |run| {
            let Some(original) = pristine.get(run.clone()) else { return };
            // SAFETY: `run` lies inside the image's part of the mapping.
            let at = unsafe { base.add(run.start) };
            let pages = run.len() / PAGE;
            if resident + pages <= MAX_RESIDENT_PAGES {
                resident += pages;
                // SAFETY: `at` has `original.len()` writable bytes that no guest
                // uses any more; the image is another mapping.
                unsafe { at.copy_from_nonoverlapping(original.as_ptr(), original.len()) };
            } else if dropped.is_ok() {
                // SAFETY: the run is private and file-backed: dropped pages read
                // as the image again.
                dropped =
                    unsafe { rustix::mm::madvise(at.cast(), run.len(), Advice::LinuxDontNeed) };
            }
        })?;
        Ok(dropped?)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the address space is this value's own.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.total) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 64 * PAGE;
    const RESERVED: usize = 256 * PAGE;

    fn slots() -> Arc<Slots> {
        let bytes: Vec<u8> = (0..LEN).map(|at| (at / 7) as u8).collect();
        Arc::new(Slots::new(Image::in_memory(&bytes).unwrap()))
    }

    fn contents(slot: &Slot) -> &[u8] {
        // SAFETY: a slot has `size` readable bytes.
        unsafe { std::slice::from_raw_parts(slot.as_ptr(), slot.size) }
    }

    #[test]
    fn a_recycled_slot_equals_the_image() {
        let slots = slots();
        for round in 0..200_usize {
            let mut slot = slots.take(RESERVED, PAGE).unwrap();
            assert!(contents(&slot) == slots.image.bytes().unwrap(), "round {round}");
            if round % 3 == 0 {
                slot.grow_to(LEN + (round % 50 + 1) * PAGE).unwrap();
                assert!(contents(&slot)[LEN..].iter().all(|byte| *byte == 0));
            }
            for at in (0..slot.size).step_by(PAGE * (round % 5 + 1) + round) {
                // SAFETY: inside the slot.
                unsafe { slot.as_ptr().add(at).write(0xee) };
            }
        }
        if dirty::available() {
            assert_eq!(slots.free.lock().unwrap().len(), 1);
        }
    }

    #[test]
    fn more_dirty_pages_than_are_kept_are_dropped_and_still_equal_the_image() {
        let bytes: Vec<u8> = (0..MAX_RESIDENT_PAGES * 2 * PAGE).map(|at| (at / 5) as u8).collect();
        let slots = Arc::new(Slots::new(Image::in_memory(&bytes).unwrap()));
        for _ in 0..3 {
            let slot = slots.take(bytes.len(), PAGE).unwrap();
            assert!(contents(&slot) == bytes);
            for at in (0..slot.size).step_by(PAGE) {
                if at / PAGE % 5 != 4 {
                    // SAFETY: inside the slot.
                    unsafe { slot.as_ptr().add(at).write(0xee) };
                }
            }
        }
    }
}
