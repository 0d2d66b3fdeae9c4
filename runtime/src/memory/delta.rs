//! What a memory has that its base has not.
//!
//! Why lines and not pages: a cell changes reference counts all over the heap,
//! a few bytes in each of some hundred pages.
//!
//! Invariant: the base with its delta applied is the memory, byte for byte.

use std::cell::RefCell;

use super::PAGE;

/// Bytes of a line; 64 lines are a page.
const LINE: usize = PAGE / 64;

/// The lines of a memory that differ from its base.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Delta {
    pages: Vec<Changed>,
    /// The lines named by `pages`, one after the other.
    lines: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Changed {
    page: u32,
    /// One bit for each line, the first line lowest.
    mask: u64,
}

/// Bytes of a scratch that is kept for the next checkpoint.
const MAX_SCRATCH: usize = 4 << 20;

thread_local! {
    /// Grown once and used for every checkpoint that this thread takes: fresh
    /// memory of that size costs a page fault for each page.
    static SCRATCH: RefCell<Delta> = RefCell::default();
}

impl Delta {
    /// Lets `fill` add to an empty delta and gives what it became.
    pub(super) fn filled<E>(fill: impl FnOnce(&mut Self) -> Result<(), E>) -> Result<Self, E> {
        let mut scratch = SCRATCH.take();
        scratch.pages.clear();
        scratch.lines.clear();
        let filled = fill(&mut scratch);
        // Exactly as large as it has to be.
        let delta = Self { pages: scratch.pages.clone(), lines: scratch.lines.clone() };
        if scratch.bytes() <= MAX_SCRATCH {
            SCRATCH.set(scratch);
        }
        filled.map(|()| delta)
    }

    /// Adds what `now`, whole pages from page number `first` on, has other
    /// than `then`; beyond the end of `then` that was zeroes.
    pub(super) fn add(&mut self, first: usize, now: &[u8], then: &[u8]) {
        const ZERO: [u8; PAGE] = [0; PAGE];
        let (pages, _) = now.as_chunks::<PAGE>();
        let (originals, _) = then.as_chunks::<PAGE>();
        for (at, page) in pages.iter().enumerate() {
            let original = originals.get(at).unwrap_or(&ZERO);
            let mask = changed_lines(page, original);
            if mask == 0 {
                continue;
            }
            let number = first.saturating_add(at);
            // Linear memory has at most 2^32 bytes.
            self.pages.push(Changed { page: u32::try_from(number).unwrap_or(u32::MAX), mask });
            if mask == u64::MAX {
                self.lines.extend_from_slice(page);
            } else {
                for line in bits(mask) {
                    let line = line * LINE;
                    self.lines.extend_from_slice(page.get(line..line + LINE).unwrap_or_default());
                }
            }
        }
    }

    /// Makes a memory that equals the base the one this was taken of.
    /// Whether every page was inside it.
    pub(super) fn apply(&self, memory: &mut [u8]) -> bool {
        let (pages, _) = memory.as_chunks_mut::<PAGE>();
        let mut lines = self.lines.as_chunks::<LINE>().0.iter();
        for Changed { page, mask } in &self.pages {
            let Some(page) = pages.get_mut(*page as usize) else { return false };
            let (into, _) = page.as_chunks_mut::<LINE>();
            for bit in bits(*mask) {
                match (into.get_mut(bit), lines.next()) {
                    (Some(into), Some(line)) => *into = *line,
                    _ => return false,
                }
            }
        }
        true
    }

    /// Bytes that it takes.
    pub(crate) fn bytes(&self) -> usize {
        let pages = self.pages.capacity().saturating_mul(size_of::<Changed>());
        self.lines.capacity().saturating_add(pages)
    }

    /// Pages that differ.
    pub(crate) fn pages(&self) -> usize {
        self.pages.len()
    }
}

fn changed_lines(now: &[u8; PAGE], then: &[u8; PAGE]) -> u64 {
    // Many pages were written and are as before.
    if now == then {
        return 0;
    }
    let (now, _) = now.as_chunks::<LINE>();
    let (then, _) = then.as_chunks::<LINE>();
    let differ = now.iter().zip(then).map(|(now, then)| u64::from(differs(now, then)));
    differ.enumerate().fold(0, |mask, (at, differs)| mask | differs << at)
}

/// Without a call for each line, as `!=` would make.
fn differs(now: &[u8; LINE], then: &[u8; LINE]) -> bool {
    let (now, _) = now.as_chunks::<8>();
    let (then, _) = then.as_chunks::<8>();
    let words = now.iter().zip(then);
    words.fold(0, |all, (now, then)| all | (u64::from_ne_bytes(*now) ^ u64::from_ne_bytes(*then)))
        != 0
}

/// The positions of the bits that are set.
fn bits(mut mask: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = mask.trailing_zeros() as usize;
        mask &= mask.wrapping_sub(1);
        (bit < 64).then_some(bit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_base_and_its_delta_are_the_memory() {
        let base: Vec<u8> = (0..8 * PAGE).map(|at| (at / 11) as u8).collect();
        let mut memory = base.clone();
        memory.resize(12 * PAGE, 0);
        let writes = [0, 1, LINE, 2 * PAGE - 1, 2 * PAGE, 5 * PAGE + 77, 9 * PAGE, 12 * PAGE - 1];
        for at in writes {
            memory[at] ^= 0x5a;
        }
        memory[3 * PAGE..4 * PAGE].iter_mut().for_each(|byte| *byte = !*byte);
        let mut delta = Delta::default();
        delta.add(0, &memory, &base);
        assert_eq!(delta.pages(), 7);
        assert_eq!(delta.lines.len(), 7 * LINE + PAGE);
        let mut restored = base.clone();
        restored.resize(12 * PAGE, 0);
        assert!(delta.apply(&mut restored));
        assert!(restored == memory);
        assert!(!delta.apply(&mut restored[..11 * PAGE]));
    }
}
