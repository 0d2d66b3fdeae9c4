//! Slots, states and what is between them, without an engine.

use super::super::PAGE;
use super::super::mapping::{Failing, MAX_GROWN_PAGES, MAX_RESIDENT_PAGES};
use super::*;

const LEN: usize = 64 * PAGE;
const RESERVED: usize = 8192 * PAGE;

fn paths() -> Vec<MemoryPath> {
    let mut paths = vec![MemoryPath::Plain];
    if MemoryPath::available() == MemoryPath::RecycledSlots {
        paths.push(MemoryPath::RecycledSlots);
    }
    paths
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 7) as u8).collect()
}

fn slots(path: MemoryPath) -> Arc<Slots> {
    Arc::new(Slots::new(Image::in_memory(&pattern(LEN)), path))
}

impl Slot {
    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: a slot has `size` readable and writable bytes.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.size) }
    }

    fn checkpoint(&mut self) -> MemoryState {
        let memory = self.memory.clone();
        memory.checkpoint(self.bytes()).unwrap()
    }

    fn fail(&self, failing: Option<Failing>) {
        self.memory.lock().as_mut().unwrap().failing = failing;
    }
}

impl Slots {
    fn equals_image(&self, mapping: &Mapping) -> bool {
        // SAFETY: a free mapping has the image's length in readable bytes, and
        // the list is locked.
        let bytes = unsafe { std::slice::from_raw_parts(mapping.at(), self.image.len()) };
        mapping.size() == bytes.len() && bytes == self.image.bytes().unwrap()
    }

    /// Whether the mapping that would be handed out next is as new.
    pub(crate) fn last_equals_image(&self) -> bool {
        self.free().last().is_none_or(|mapping| self.equals_image(mapping))
    }

    /// Whether every free mapping is as new.
    pub(crate) fn all_equal_image(&self) -> bool {
        self.free().iter().all(|mapping| self.equals_image(mapping))
    }

    /// Free mappings.
    pub(crate) fn count(&self) -> usize {
        self.free().len()
    }
}

fn once(slots: &Arc<Slots>) -> Slot {
    slots.take(RESERVED, PAGE, false, None).unwrap()
}

fn session(slots: &Arc<Slots>, state: Option<&MemoryState>) -> Slot {
    let mut slot = slots.take(RESERVED, PAGE, true, state).unwrap();
    if let Some(state) = state {
        assert!(state.put_into(slot.bytes()));
    }
    slot
}

#[test]
fn a_recycled_slot_equals_the_image() {
    for path in paths() {
        let slots = slots(path);
        for round in 0..200_usize {
            let mut slot = if round % 2 == 0 { once(&slots) } else { session(&slots, None) };
            assert!(slot.bytes() == slots.image.bytes().unwrap(), "round {round}");
            if round % 3 == 0 {
                slot.grow_to(LEN + (round % 50 + 1) * 8 * PAGE).unwrap();
                assert!(slot.bytes()[LEN..].iter().all(|byte| *byte == 0));
            }
            for at in (0..slot.size).step_by(PAGE * (round % 5 + 1) + round) {
                slot.bytes()[at] = 0xee;
            }
            if round % 4 == 1 {
                slot.checkpoint();
            }
        }
        let kept = usize::from(path == MemoryPath::RecycledSlots);
        assert_eq!(slots.free().len(), kept);
    }
}

#[test]
fn more_dirty_pages_than_are_kept_are_dropped_and_still_equal_the_image() {
    let bytes = pattern(MAX_RESIDENT_PAGES * 2 * PAGE);
    let slots = Arc::new(Slots::new(Image::in_memory(&bytes), MemoryPath::available()));
    for _ in 0..3 {
        let mut slot = once(&slots);
        assert!(slot.bytes() == bytes);
        for at in (0..slot.size).step_by(PAGE).filter(|at| at / PAGE % 5 != 4) {
            slot.bytes()[at] = 0xee;
        }
    }
}

/// A small generator; the same numbers on every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 8).unwrap_or(0) % most
    }
}

/// Changes, growth, checkpoints and starts from earlier ones at random, against
/// plain copies of the whole memory.
fn random_life(path: MemoryPath, image: Image, seed: u64, steps: usize) {
    let slots = Arc::new(Slots::new(image, path));
    let mut numbers = Numbers(seed);
    let mut live = session(&slots, None);
    let mut model = live.bytes().to_vec();
    let mut states: Vec<(MemoryState, Vec<u8>)> = Vec::new();
    for step in 0..steps {
        match numbers.below(10) {
            0 if live.size < 3000 * PAGE => {
                let to = live.size + (numbers.below(12) + 1) * 64 * PAGE / 4;
                live.grow_to(to).unwrap();
                model.resize(to, 0);
            }
            1 => {
                // A long run, as a large allocation makes.
                let from = numbers.below(live.size);
                let to = live.size.min(from + numbers.below(700) * PAGE);
                let byte = u8::try_from(numbers.below(256)).unwrap();
                live.bytes()[from..to].fill(byte);
                model[from..to].fill(byte);
            }
            2 | 3 => {
                states.push((live.checkpoint(), model.clone()));
                if states.len() > 6 {
                    states.remove(numbers.below(6));
                }
            }
            4 if !states.is_empty() => {
                let at = numbers.below(states.len());
                let keep = numbers.below(2) == 0;
                let (state, bytes) = &states[at];
                let next = session(&slots, Some(state));
                // The old one may live on beside it for a while.
                let old = std::mem::replace(&mut live, next);
                model.clone_from(bytes);
                if !keep {
                    drop(old);
                }
            }
            _ => {
                for _ in 0..numbers.below(40) {
                    let at = numbers.below(live.size);
                    live.bytes()[at] = 0xa5;
                    model[at] = 0xa5;
                }
            }
        }
        assert!(live.bytes() == model, "seed {seed}, step {step}");
    }
    for (state, bytes) in &states {
        assert!(session(&slots, Some(state)).bytes() == bytes, "seed {seed}, at the end");
    }
}

#[test]
fn a_state_is_the_memory_it_was_taken_of_whatever_came_after() {
    for path in paths() {
        for seed in 1..6 {
            random_life(path, Image::in_memory(&pattern(LEN)), seed, 150);
        }
    }
    random_life(MemoryPath::Plain, Image::on_heap(&pattern(LEN)), 99, 100);
}

#[test]
fn a_large_state_is_shared_and_not_copied() {
    if MemoryPath::available() == MemoryPath::Plain {
        return;
    }
    let slots = slots(MemoryPath::RecycledSlots);
    let mut parent = session(&slots, None);
    parent.grow_to(LEN + 2000 * PAGE).unwrap();
    parent.bytes()[LEN..].fill(7);
    let state = parent.checkpoint();
    assert_eq!(state.pages(), 0);
    assert_eq!(state.base().len(), LEN + 2000 * PAGE);
    parent.bytes()[LEN + 5] = 8;
    let next = parent.checkpoint();
    assert_eq!((next.pages(), state.base().bytes_beyond(next.base())), (1, 0));
    let mut child = session(&slots, Some(&state));
    child.bytes()[LEN] = 9;
    assert_eq!(child.bytes()[LEN + 5], 7);
    assert_eq!(parent.bytes()[LEN], 7);
    // Rewriting most of it makes a new image of it.
    parent.grow_to(LEN + 5000 * PAGE).unwrap();
    parent.bytes()[LEN..].fill(3);
    let third = parent.checkpoint();
    parent.bytes()[LEN..].fill(4);
    let fourth = parent.checkpoint();
    assert!(fourth.pages() == 0 && third.base().bytes_beyond(fourth.base()) > 0);
    assert!(session(&slots, Some(&third)).bytes()[LEN..].iter().all(|byte| *byte == 3));
    assert!(session(&slots, Some(&fourth)).bytes()[LEN..].iter().all(|byte| *byte == 4));
}

/// Bytes that a session has grown by and filled, and more than fit without a
/// file.
const GROWN: usize = LEN + 100 * PAGE;
const FAR: usize = LEN + (MAX_GROWN_PAGES + 500) * PAGE;

#[test]
fn a_growth_that_fails_leaves_the_memory_as_it_was() {
    for failing in [Failing::Resize, Failing::Map] {
        if MemoryPath::available() == MemoryPath::Plain {
            return;
        }
        let slots = slots(MemoryPath::RecycledSlots);
        let mut slot = session(&slots, None);
        slot.grow_to(GROWN).unwrap();
        slot.bytes()[LEN..].fill(0x11);
        slot.fail(Some(failing));
        assert!(slot.grow_to(FAR).is_err(), "{failing:?}");
        assert_eq!(slot.size, GROWN);
        // The guest goes on, a checkpoint is taken, and memory is there again.
        slot.bytes()[LEN + 5] = 0x22;
        let small = slot.bytes().to_vec();
        let state = slot.checkpoint();
        slot.fail(None);
        slot.grow_to(FAR).unwrap();
        assert!(slot.bytes()[..GROWN] == small, "{failing:?}: older bytes came back");
        assert!(slot.bytes()[GROWN..].iter().all(|byte| *byte == 0));
        // The same with a file that is there already.
        slot.bytes()[GROWN..].fill(0x33);
        let model = slot.bytes().to_vec();
        slot.fail(Some(failing));
        assert!(slot.grow_to(2 * FAR).is_err());
        assert!(slot.bytes() == model);
        let later = slot.checkpoint();
        drop(slot);
        assert!(session(&slots, Some(&state)).bytes() == small);
        assert!(session(&slots, Some(&later)).bytes() == model);
    }
}

#[test]
fn nothing_of_a_growth_that_failed_is_found_in_the_next_instance() {
    if MemoryPath::available() == MemoryPath::Plain {
        return;
    }
    for failing in [Failing::Resize, Failing::Map] {
        let slots = slots(MemoryPath::RecycledSlots);
        let mut slot = session(&slots, None);
        slot.grow_to(GROWN).unwrap();
        slot.bytes()[LEN..].fill(0xee);
        slot.fail(Some(failing));
        assert!(slot.grow_to(FAR).is_err());
        drop(slot);
        // Whether it is what it should be is not known after the second.
        assert_eq!(slots.count(), usize::from(failing == Failing::Resize), "{failing:?}");
        assert!(slots.all_equal_image());
        let mut next = once(&slots);
        next.fail(None);
        next.grow_to(FAR).unwrap();
        assert!(next.bytes()[LEN..].iter().all(|byte| *byte == 0), "{failing:?}");
    }
}
