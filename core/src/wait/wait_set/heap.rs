//! A wait set in private memory, for tests and loom.

use super::backing::{Ticket, WaitSetMemory, WakeMethod};
use super::layout::{BITS, MAX_MEMBER};
use crate::sync::AtomicU64;

/// A set in private memory, for tests and for loom. `ring` wakes a sleeper, and all members but [`DEAD_MEMBER`] are
/// alive.
pub struct HeapWaitSet<R> {
    bits: Vec<AtomicU64>,
    slots: Vec<AtomicU64>,
    tickets: Vec<Ticket>,
    ring: R,
}

impl<R: Fn(usize) -> bool> HeapWaitSet<R> {
    /// Create a set of `slots` slots. `ring` wakes the sleeper of a slot, and returns false if that reached none.
    pub fn new(slots: usize, ring: R) -> Self {
        let zeros = |count| (0..count).map(|_| AtomicU64::new(0)).collect();
        HeapWaitSet {
            bits: zeros(slots.div_ceil(BITS)),
            slots: zeros(slots),
            tickets: (0..=slots).map(|_| Ticket::new(0)).collect(),
            ring,
        }
    }
}

/// Number of a dead member of a [`HeapWaitSet`].
pub const DEAD_MEMBER: u32 = MAX_MEMBER;

impl<R: Fn(usize) -> bool> WaitSetMemory for HeapWaitSet<R> {
    fn slots(&self) -> usize {
        self.slots.len()
    }
    fn bits(&self, word: usize) -> &AtomicU64 {
        &self.bits[word]
    }
    fn slot(&self, index: usize) -> &AtomicU64 {
        &self.slots[index]
    }
    fn tickets(&self) -> &Ticket {
        &self.tickets[self.slots.len()]
    }
    fn ticket(&self, index: usize) -> &Ticket {
        &self.tickets[index]
    }
    fn wake(&self, index: usize, _method: WakeMethod) -> bool {
        (self.ring)(index)
    }
    fn is_alive(&self, member: u32) -> bool {
        member != DEAD_MEMBER
    }
}
