//! Guest memory that the engine maps itself: one image, any number of
//! instances that share it copy-on-write, recycled mappings, and checkpoints.
//!
//! Why: a fresh mapping costs some two hundred page faults in the first cell. A
//! mapping that has served keeps its page tables; only the pages that its guest
//! changed are put back. The same knowledge of changed pages makes a checkpoint
//! cost what a cell changed and not what a session holds.
//!
//! A session's memory lies on a [`Base`]: the image, and behind it files in
//! memory that were sealed when they had grown. What differs from the base is a
//! [`Delta`]. Base and delta together are a [`MemoryState`], which any number
//! of instances can start from.
//!
//! Invariant: an instance never sees a byte of another. A recycled mapping is
//! handed out only after every page that is not the image's own has been
//! written back or dropped. Where the kernel does not say which pages those
//! are, nothing is recycled, and a checkpoint compares the whole memory.
#![allow(unsafe_code, reason = "mapping memory; each block says why it is sound")]

mod base;
mod delta;
mod dirty;
mod image;
mod mapping;
mod slots;

pub(crate) use base::{Base, MemoryState};
pub(crate) use image::Image;
#[cfg(test)]
pub(crate) use mapping::{MAX_CHANGED_PAGES, MAX_GROWN_PAGES, MAX_PARTS, MAX_RESIDENT_PAGES};
#[cfg(test)]
pub(crate) use slots::MAX_FREE;
pub(crate) use slots::{LiveMemory, SlotCreator, Slots, Start};

/// Bytes of a page as this module counts them. The image's pages are compared
/// and copied in this unit; a kernel with larger pages takes the plain path.
const PAGE: usize = 4096;

/// How guest memory is managed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryPath {
    /// The kernel names the changed pages: mappings are recycled, and a
    /// checkpoint costs what a cell changed.
    RecycledSlots,
    /// It does not: every instance has a mapping of its own, and a checkpoint
    /// compares the whole memory. The results are the same.
    Plain,
}

impl MemoryPath {
    /// What this system offers.
    #[must_use]
    pub fn available() -> Self {
        if dirty::available() { Self::RecycledSlots } else { Self::Plain }
    }

    /// The name, as `version --json` has it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RecycledSlots => "recycled-slots",
            Self::Plain => "plain",
        }
    }
}

/// How the memory of this process is managed, for `version --json`.
#[must_use]
pub fn memory_path() -> &'static str {
    MemoryPath::available().as_str()
}
