//! Guest memory that the engine maps itself: one image, any number of
//! instances that share it copy-on-write, and recycled mappings.
//!
//! Why: a fresh mapping costs some two hundred page faults in the first cell. A
//! mapping that has served keeps its page tables; only the pages that its guest
//! changed are put back.
//!
//! Invariant: an instance never sees a byte of another. A recycled mapping is
//! handed out only after every page that is not the image's own has been
//! written back or dropped; where the kernel does not say which those are,
//! nothing is recycled.
#![allow(unsafe_code, reason = "mapping memory; each block says why it is sound")]

mod dirty;
mod image;
mod slots;

pub(crate) use image::Image;
pub(crate) use slots::{SlotCreator, Slots};

/// Bytes of a page as this module counts them. The image's pages are compared
/// and copied in this unit; a kernel with larger pages takes the plain path.
const PAGE: usize = 4096;

/// How the memory of this process is managed, for `version --json`.
#[must_use]
pub fn memory_path() -> &'static str {
    if dirty::available() { "recycled-slots" } else { "plain" }
}
