//! The states that a session can go back to.
//!
//! Invariant: at most [`MAX_CHECKPOINTS`] states and [`MAX_CHECKPOINT_BYTES`]
//! bytes beyond what the present state has, linear memory and files in memory
//! together; the oldest goes first.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::memory::Base;
use crate::session::kernel::State;

/// Most states that a session keeps to go back to.
pub const MAX_CHECKPOINTS: usize = 32;
/// Most bytes that they take, the present state not counted.
pub const MAX_CHECKPOINT_BYTES: usize = 64 << 20;

/// Names a checkpoint of one session; no other session of this process has one
/// of that name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CheckpointId(u64);

impl CheckpointId {
    fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

impl std::fmt::Display for CheckpointId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A state and its number; later ones have higher numbers.
#[derive(Clone)]
struct Kept {
    number: u64,
    state: Arc<State>,
}

/// A state that was asked for.
struct Named {
    id: CheckpointId,
    kept: Kept,
    /// The cells that led to it.
    cells: Vec<Kept>,
}

/// States before the cells that led to the present one, and states that were
/// asked for.
#[derive(Default)]
pub(super) struct History {
    next: u64,
    cells: Vec<Kept>,
    named: Vec<Named>,
}

impl History {
    fn number(&mut self) -> u64 {
        self.next = self.next.saturating_add(1);
        self.next
    }

    /// Keeps the state before a cell that has ended.
    pub(super) fn before_cell(&mut self, state: Arc<State>) {
        let number = self.number();
        self.cells.push(Kept { number, state });
    }

    /// Keeps the present state.
    pub(super) fn name(&mut self, state: Arc<State>) -> CheckpointId {
        let (id, number) = (CheckpointId::new(), self.number());
        self.named.push(Named { id, kept: Kept { number, state }, cells: self.cells.clone() });
        id
    }

    /// The state that was kept as `id`, and its number in this session; the
    /// cells that led to it are the present ones from now on.
    pub(super) fn restore(&mut self, id: CheckpointId) -> Option<(Arc<State>, u64)> {
        let named = self.named.iter().find(|named| named.id == id)?;
        self.cells.clone_from(&named.cells);
        Some((Arc::clone(&named.kept.state), named.kept.number))
    }

    /// The state before the last `cells` cells, which are forgotten; how many
    /// there are if there are fewer.
    pub(super) fn undo(&mut self, cells: usize) -> Result<Arc<State>, usize> {
        let kept = self.cells.len();
        let at = kept.checked_sub(cells).ok_or(kept)?;
        let state = self.cells.get(at).map(|kept| Arc::clone(&kept.state)).ok_or(kept)?;
        self.cells.truncate(at);
        Ok(state)
    }

    /// Every state that can be gone back to.
    pub(super) fn states(&self) -> impl Iterator<Item = Arc<State>> {
        self.all().into_iter().map(|kept| kept.state)
    }

    /// Every state that is kept, each once, the oldest first.
    fn all(&self) -> Vec<Kept> {
        let of_named = self.named.iter().flat_map(|named| named.cells.iter().chain([&named.kept]));
        let mut all: Vec<Kept> = self.cells.iter().chain(of_named).cloned().collect();
        all.sort_by_key(|kept| kept.number);
        all.dedup_by_key(|kept| kept.number);
        all
    }

    /// How many states there are and the bytes they take beyond `present`.
    pub(super) fn size(&self, present: &Arc<State>) -> (usize, usize) {
        let all = self.all();
        (all.len(), bytes(&all, present))
    }

    /// Lets the oldest go until the limits hold.
    pub(super) fn trim(&mut self, present: &Arc<State>) {
        let all = self.all();
        let mut rest = all.as_slice();
        while rest.len() > MAX_CHECKPOINTS
            || (!rest.is_empty() && bytes(rest, present) > MAX_CHECKPOINT_BYTES)
        {
            rest = rest.get(1..).unwrap_or_default();
        }
        if rest.len() == all.len() {
            return;
        }
        let first = rest.first().map_or(u64::MAX, |kept| kept.number);
        self.cells.retain(|kept| kept.number >= first);
        self.named.retain_mut(|named| {
            named.cells.retain(|kept| kept.number >= first);
            named.kept.number >= first
        });
    }
}

/// Bytes of some states; what several of them share counts once.
fn bytes(states: &[Kept], present: &Arc<State>) -> usize {
    let mut bytes = 0_usize;
    let mut bases: Vec<&Base> = vec![present.instance.memory.base()];
    let nexts = states.iter().skip(1).map(|kept| &kept.state).chain([present]);
    for (Kept { state, .. }, next) in states.iter().zip(nexts) {
        // A checkpoint and the cell after it share one state.
        if Arc::ptr_eq(state, next) {
            continue;
        }
        let memory = &state.instance.memory;
        // Images that came since one of the others are the only ones to count.
        let new = bases.iter().map(|base| base.bytes_beyond(memory.base())).min().unwrap_or(0);
        bytes = bytes.saturating_add(memory.bytes()).saturating_add(new);
        // Whatever is not in the present state is counted once for the last
        // state that has it, and again if it went away and came back.
        let files = usize::try_from(state.file_bytes_beyond(next)).unwrap_or(usize::MAX);
        bytes = bytes.saturating_add(files);
        bases.push(memory.base());
    }
    bytes
}
