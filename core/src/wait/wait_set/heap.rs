//! A set in private memory.

use super::backing::{Backing, Hint, How};
use super::layout::{BITS, MAX_MEMBER};
use crate::sync::AtomicU64;

/// A set in private memory, for tests and for loom. A sleeper is woken by `ring`, and all members live but the dead.
pub struct HeapSet<R> {
    bits: Vec<AtomicU64>,
    slots: Vec<AtomicU64>,
    line: Vec<Hint>,
    ring: R,
}

impl<R: Fn(usize) -> bool> HeapSet<R> {
    /// A set of `slots` slots. `ring` wakes the sleeper of a slot, and says whether it was heard.
    pub fn new(slots: usize, ring: R) -> Self {
        let zeros = |count| (0..count).map(|_| AtomicU64::new(0)).collect();
        HeapSet {
            bits: zeros(slots.div_ceil(BITS)),
            slots: zeros(slots),
            line: (0..=slots).map(|_| Hint::new(0)).collect(),
            ring,
        }
    }
}

/// The number of a member of a [`HeapSet`] that does not live.
pub const DEAD: u32 = MAX_MEMBER;

impl<R: Fn(usize) -> bool> Backing for HeapSet<R> {
    fn slots(&self) -> usize {
        self.slots.len()
    }
    fn bits(&self, word: usize) -> &AtomicU64 {
        &self.bits[word]
    }
    fn slot(&self, index: usize) -> &AtomicU64 {
        &self.slots[index]
    }
    fn tickets(&self) -> &Hint {
        &self.line[self.slots.len()]
    }
    fn ticket(&self, index: usize) -> &Hint {
        &self.line[index]
    }
    fn ring(&self, index: usize, _how: How) -> bool {
        (self.ring)(index)
    }
    fn lives(&self, member: u32) -> bool {
        member != DEAD
    }
}
