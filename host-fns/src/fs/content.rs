//! The content of an in-memory file.
//!
//! Invariant: a clone is O(1) and a write copies at most the chunks it
//! touches. Holes take no memory, though quotas charge them. A chunk may be
//! shorter than [`CHUNK_BYTES`]: what is missing up to the file's length reads
//! as zeros, and no chunk holds bytes beyond the length.

use std::sync::Arc;

use imbl::OrdMap;
use imbl::ordmap::DiffItem;

/// Bytes of one chunk.
pub(crate) const CHUNK_BYTES: usize = 64 << 10;

/// Something that clones share. Equal is what is the same thing in memory.
#[derive(Debug, Default)]
pub(crate) struct Shared<T>(pub(crate) Arc<T>);

impl<T> Shared<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Arc::new(value))
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> PartialEq for Shared<T> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// The entries of `left` that `right` has not, or has another value for.
pub(crate) fn beyond<'m, K: Ord, V: PartialEq>(
    left: &'m OrdMap<K, V>,
    right: &'m OrdMap<K, V>,
) -> impl Iterator<Item = (&'m V, Option<&'m V>)> {
    left.diff(right).filter_map(|item| match item {
        DiffItem::Remove(_, value) => Some((value, None)),
        DiffItem::Update { old, new } => Some((old.1, Some(new.1))),
        DiffItem::Add(..) => None,
    })
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Content {
    length: u64,
    chunks: OrdMap<u64, Shared<Vec<u8>>>,
}

/// Splits a position into the chunk's number and the place in it.
fn place(offset: u64) -> (u64, usize) {
    let within = usize::try_from(offset % CHUNK_BYTES as u64).unwrap_or(0);
    (offset / CHUNK_BYTES as u64, within)
}

impl Content {
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Copies from `offset` on; returns how many bytes.
    pub(crate) fn read_at(&self, offset: u64, into: &mut [u8]) -> usize {
        let available = usize::try_from(self.length.saturating_sub(offset)).unwrap_or(usize::MAX);
        let wanted = into.len().min(available);
        let mut rest = into.get_mut(..wanted).unwrap_or_default();
        let mut position = offset;
        while !rest.is_empty() {
            let (number, within) = place(position);
            let step = rest.len().min(CHUNK_BYTES.saturating_sub(within));
            let (part, tail) = rest.split_at_mut(step);
            let stored = self
                .chunks
                .get(&number)
                .and_then(|chunk| chunk.0.get(within..))
                .unwrap_or_default();
            let known = stored.len().min(part.len());
            let (copied, zeroed) = part.split_at_mut(known);
            copied.copy_from_slice(stored.get(..known).unwrap_or_default());
            zeroed.fill(0);
            rest = tail;
            position = position.saturating_add(step as u64);
        }
        wanted
    }

    /// Writes at `offset`, growing as needed. Limits are the caller's.
    pub(crate) fn write_at(&mut self, offset: u64, data: &[u8]) {
        let mut rest = data;
        let mut position = offset;
        while !rest.is_empty() {
            let (number, within) = place(position);
            let (part, tail) = rest.split_at(rest.len().min(CHUNK_BYTES.saturating_sub(within)));
            let chunk = Arc::make_mut(&mut self.chunks.entry(number).or_default().0);
            if chunk.len() < within {
                chunk.resize(within, 0);
            }
            let overlap = part.len().min(chunk.len().saturating_sub(within));
            let (over, append) = part.split_at(overlap);
            if let Some(slot) = chunk.get_mut(within..within.saturating_add(overlap)) {
                slot.copy_from_slice(over);
            }
            chunk.extend_from_slice(append);
            rest = tail;
            position = position.saturating_add(part.len() as u64);
        }
        if !data.is_empty() {
            self.length = self.length.max(position);
        }
    }

    /// Bytes of memory that it takes and `other`, if there is one, does not
    /// share. What is shared is passed over without being looked at.
    pub(crate) fn bytes_beyond(&self, other: Option<&Self>) -> u64 {
        let size = |chunk: &Shared<Vec<u8>>| chunk.0.capacity() as u64;
        match other {
            Some(other) => beyond(&self.chunks, &other.chunks).map(|(chunk, _)| size(chunk)).sum(),
            None => self.chunks.values().map(size).sum(),
        }
    }

    /// Cuts or extends with a hole. Limits are the caller's.
    pub(crate) fn set_length(&mut self, length: u64) {
        if length < self.length {
            let (number, within) = place(length);
            if let Some(chunk) = self.chunks.get_mut(&number) {
                Arc::make_mut(&mut chunk.0).truncate(within);
            }
            let first_gone = if within == 0 { number } else { number.saturating_add(1) };
            self.chunks = self.chunks.split(&first_gone).0;
        }
        self.length = length;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Write(usize, Vec<u8>),
        Length(usize),
        Read(usize, usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        let near =
            prop_oneof![0..2000_usize, CHUNK_BYTES - 20..CHUNK_BYTES + 20, 0..3 * CHUNK_BYTES];
        prop_oneof![
            (near.clone(), proptest::collection::vec(any::<u8>(), 0..300))
                .prop_map(|(at, data)| Step::Write(at, data)),
            near.clone().prop_map(Step::Length),
            (near, 0..3000_usize).prop_map(|(at, length)| Step::Read(at, length)),
        ]
    }

    proptest! {
        #[test]
        fn behaves_like_a_vector(steps in proptest::collection::vec(step(), 1..40)) {
            let mut content = Content::default();
            let mut model: Vec<u8> = Vec::new();
            for step in steps {
                match step {
                    Step::Write(at, data) => {
                        let before = content.clone();
                        content.write_at(at as u64, &data);
                        if !data.is_empty() && model.len() < at + data.len() {
                            model.resize(at + data.len(), 0);
                        }
                        model.splice(at.min(model.len())..(at + data.len()).min(model.len()), data);
                        drop(before);
                    }
                    Step::Length(length) => {
                        content.set_length(length as u64);
                        model.resize(length, 0);
                    }
                    Step::Read(at, length) => {
                        let mut got = vec![9; length];
                        let size = content.read_at(at as u64, &mut got);
                        let want = &model[at.min(model.len())..(at + length).min(model.len())];
                        prop_assert_eq!(&got[..size], want);
                    }
                }
                prop_assert_eq!(content.length(), model.len() as u64);
            }
        }
    }

    #[test]
    fn bytes_that_clones_share_count_for_neither() {
        let mut content = Content::default();
        content.write_at(0, &vec![1; 3 * CHUNK_BYTES]);
        let before = content.clone();
        assert_eq!(before.bytes_beyond(Some(&content)), 0);
        let all = before.bytes_beyond(None);
        assert!(all >= 3 * CHUNK_BYTES as u64, "{all}");
        content.write_at(5, b"x");
        let one = before.bytes_beyond(Some(&content));
        assert!((CHUNK_BYTES as u64..2 * CHUNK_BYTES as u64).contains(&one), "{one}");
        // The same bytes again, in memory of their own.
        content.set_length(0);
        content.write_at(0, &vec![1; 3 * CHUNK_BYTES]);
        assert_eq!(before.bytes_beyond(Some(&content)), all);
    }

    #[test]
    fn a_clone_keeps_its_content() {
        let mut content = Content::default();
        content.write_at(0, b"before");
        let snapshot = content.clone();
        content.write_at(0, b"after!");
        content.set_length(2);
        let mut got = [0; 6];
        assert_eq!(snapshot.read_at(0, &mut got), 6);
        assert_eq!(&got, b"before");
    }
}
