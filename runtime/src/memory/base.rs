//! What memories lie on, and the state that an instance can start from.

use std::sync::Arc;

use super::delta::Delta;
use super::{Image, PAGE};

/// Images one after the other, from address 0; beyond them there are zeroes.
/// Cloning shares them.
#[derive(Clone, Debug)]
pub(crate) struct Base {
    parts: Vec<Part>,
}

/// One image and where it lies.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) start: usize,
    pub(super) image: Arc<Image>,
}

impl Part {
    pub(super) fn end(&self) -> usize {
        self.start.saturating_add(self.image.len())
    }
}

impl Base {
    pub(super) fn new(image: Arc<Image>) -> Self {
        Self { parts: vec![Part { start: 0, image }] }
    }

    pub(super) fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Where the zeroes begin.
    pub(super) fn len(&self) -> usize {
        self.parts.last().map_or(0, Part::end)
    }

    /// Adds an image behind the last one.
    pub(super) fn push(&mut self, image: Arc<Image>) {
        let start = self.len();
        self.parts.push(Part { start, image });
    }

    /// Puts one image in the place of the parts from `from` to `to`, which it
    /// covers exactly.
    pub(super) fn replace(&mut self, from: usize, to: usize, image: Arc<Image>) {
        if let Some(start) = self.parts.get(from).map(|part| part.start) {
            self.parts.splice(from..to, [Part { start, image }]);
        }
    }

    fn has(&self, image: &Arc<Image>) -> bool {
        self.parts.iter().any(|part| Arc::ptr_eq(&part.image, image))
    }

    /// Bytes of the images of `other` that are not among its own.
    pub(crate) fn bytes_beyond(&self, other: &Self) -> usize {
        let beyond = other.parts.iter().filter(|part| !self.has(&part.image));
        beyond.map(|part| part.image.len()).sum()
    }
}

/// The whole of a memory at one moment. It takes what [`MemoryState::bytes`]
/// says besides its base.
#[derive(Clone, Debug)]
pub(crate) struct MemoryState {
    pub(super) base: Base,
    pub(super) delta: Delta,
    /// Size of the linear memory in bytes.
    pub(super) size: usize,
}

impl MemoryState {
    /// What it lies on.
    pub(crate) fn base(&self) -> &Base {
        &self.base
    }

    /// Bytes of its delta.
    pub(crate) fn bytes(&self) -> usize {
        self.delta.bytes()
    }

    /// Pages of 4 KiB that differ from the base.
    pub(crate) fn pages(&self) -> usize {
        self.delta.pages()
    }

    /// Size of the linear memory in bytes.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Makes a memory that starts as the base this state; false if it is not
    /// of this size.
    pub(crate) fn put_into(&self, memory: &mut [u8]) -> bool {
        memory.len() == self.size && self.size.is_multiple_of(PAGE) && self.delta.apply(memory)
    }
}
