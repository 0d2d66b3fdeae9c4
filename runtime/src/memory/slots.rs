//! Mappings of the image for instances, recycled.
//!
//! Invariant: a mapping in the free list equals the image in every byte of its
//! first `image.len()` bytes and is inaccessible beyond them.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use wasmtime::{LinearMemory, MemoryCreator, MemoryType};

use super::mapping::Mapping;
use super::{Image, MemoryPath, MemoryState};

/// Mappings that are kept for later instances.
pub(crate) const MAX_FREE: usize = 16;

/// What a memory starts as.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Start<'s> {
    /// The image, for one run.
    Once,
    /// The image, or the base of a state, for a session.
    Session(Option<&'s MemoryState>),
}

/// What the next memory of this thread is.
enum Wish {
    /// Nothing is being instantiated.
    None,
    Memory {
        state: Option<MemoryState>,
        of_session: bool,
    },
    /// It was made.
    Made(LiveMemory),
}

thread_local! {
    static WISH: RefCell<Wish> = const { RefCell::new(Wish::None) };
}

/// The mappings of one image.
#[derive(Debug)]
pub(crate) struct Slots {
    image: Arc<Image>,
    path: MemoryPath,
    free: Mutex<Vec<Mapping>>,
}

/// The memory of one instance, beside the engine's own view of it.
#[derive(Clone, Debug)]
pub(crate) struct LiveMemory(Arc<Mutex<Option<Mapping>>>);

impl LiveMemory {
    fn lock(&self) -> MutexGuard<'_, Option<Mapping>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The present state. `memory` is the instance's whole memory, borrowed
    /// from the engine, so that no guest runs meanwhile. No byte changes.
    ///
    /// # Errors
    /// The system's reason. The instance must not be used any more: its memory
    /// may be half mapped.
    pub(crate) fn checkpoint(&self, memory: &mut [u8]) -> std::io::Result<MemoryState> {
        let mut mapping = self.lock();
        let mapping = mapping.as_mut().ok_or(std::io::ErrorKind::NotFound)?;
        mapping.checkpoint(memory)
    }
}

impl Slots {
    pub(crate) fn new(image: Image, path: MemoryPath) -> Self {
        Self { image: Arc::new(image), path, free: Mutex::new(Vec::new()) }
    }

    /// Runs `instantiate`, whose memory is then one of these slots and is
    /// returned if one was made. Nothing in it may wait, since the wish is a
    /// property of the thread. The delta of a state is not applied.
    pub(crate) fn instantiate<T>(
        start: Start<'_>,
        instantiate: impl FnOnce() -> T,
    ) -> (T, Option<LiveMemory>) {
        struct Reset;
        impl Drop for Reset {
            fn drop(&mut self) {
                WISH.set(Wish::None);
            }
        }
        WISH.set(match start {
            Start::Once => Wish::Memory { state: None, of_session: false },
            Start::Session(state) => Wish::Memory { state: state.cloned(), of_session: true },
        });
        let _reset = Reset;
        let made = instantiate();
        let memory = match WISH.replace(Wish::None) {
            Wish::Made(memory) => Some(memory),
            Wish::None | Wish::Memory { .. } => None,
        };
        (made, memory)
    }

    fn take(
        self: &Arc<Self>,
        reserved: usize,
        guard: usize,
        of_session: bool,
        state: Option<&MemoryState>,
    ) -> Result<Slot, String> {
        let total = reserved.checked_add(guard).ok_or("the reservation is too large")?;
        let recycled = self.free().pop();
        let mut mapping = match recycled {
            Some(mapping) if mapping.total() == total => mapping,
            _ => Mapping::new(&self.image, total, self.path)?,
        };
        if of_session {
            mapping.start_session();
        }
        if let Some(state) = state {
            mapping.start_from(state).map_err(|error| error.to_string())?;
        }
        Ok(Slot {
            at: mapping.at(),
            size: state.map_or(self.image.len(), MemoryState::size),
            capacity: reserved,
            memory: LiveMemory(Arc::new(Mutex::new(Some(mapping)))),
            home: Arc::downgrade(self),
        })
    }

    fn free(&self) -> MutexGuard<'_, Vec<Mapping>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a mapping back to the image and keeps it, or gives it up.
    fn recycle(&self, mut mapping: Mapping) {
        if self.path == MemoryPath::Plain || mapping.reset(&self.image).is_err() {
            return;
        }
        let mut free = self.free();
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
        let wish = WISH.replace(Wish::None);
        let (Wish::Memory { state, of_session }, Some(slots)) = (wish, self.0.get()) else {
            return Err("no image is expected here".to_owned());
        };
        let reserved = reserved_size_in_bytes.ok_or("memory must be reserved ahead")?;
        if minimum != slots.image.len() {
            return Err("the image is not the module's memory".to_owned());
        }
        let slot = slots.take(reserved, guard_size_in_bytes, of_session, state.as_ref())?;
        WISH.set(Wish::Made(slot.memory.clone()));
        Ok(Box::new(slot))
    }
}

/// A linear memory in a slot.
#[derive(Debug)]
struct Slot {
    at: *mut u8,
    size: usize,
    capacity: usize,
    memory: LiveMemory,
    home: Weak<Slots>,
}

// SAFETY: the bytes at `at` belong to the mapping that this value owns.
unsafe impl Send for Slot {}
// SAFETY: a shared reference gives no access to the bytes.
unsafe impl Sync for Slot {}

// SAFETY: `as_ptr` is the start of a mapping that stays where it is until drop;
// `byte_size` bytes of it are readable and writable. A state's memory may be
// larger than the module's minimum, which the trait allows.
unsafe impl LinearMemory for Slot {
    fn byte_size(&self) -> usize {
        self.size
    }

    fn byte_capacity(&self) -> usize {
        self.capacity
    }

    fn grow_to(&mut self, new_size: usize) -> wasmtime::Result<()> {
        let grown = match self.memory.lock().as_mut() {
            Some(mapping) if new_size <= self.capacity => mapping.grow(new_size),
            Some(_) => Err(std::io::ErrorKind::OutOfMemory.into()),
            None => Err(std::io::ErrorKind::NotFound.into()),
        };
        grown.map_err(|error| wasmtime::Error::msg(error.to_string()))?;
        self.size = new_size;
        Ok(())
    }

    fn as_ptr(&self) -> *mut u8 {
        self.at
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mapping = self.memory.lock().take();
        if let (Some(mapping), Some(home)) = (mapping, self.home.upgrade()) {
            home.recycle(mapping);
        }
    }
}

#[cfg(test)]
mod tests;
