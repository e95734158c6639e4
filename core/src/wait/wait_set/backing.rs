//! The memory of a wait set, and the calls to the kernel that it needs.

use crate::sync::AtomicU64;
use std::sync::Arc;

/// The way to wake a sleeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeMethod {
    /// A thread, by the futex of its slot.
    Futex,
    /// An event loop, by a descriptor that becomes readable.
    Doorbell,
}

/// A ticket, which affects nothing but an order. Always the standard library's atomic, to spare loom its interleavings.
pub type Ticket = std::sync::atomic::AtomicU64;

/// The memory of a wait set, and the calls to the kernel that it needs.
pub trait WaitSetMemory {
    /// Return the number of slots, at most [`MAX_SLOTS`].
    fn slots(&self) -> usize;
    /// Return a word with the bits of 64 slots: 1 for each whose holder sleeps or is about to.
    fn bits(&self, word: usize) -> &AtomicU64;
    /// Return the word of a slot.
    fn slot(&self, index: usize) -> &AtomicU64;
    /// Return the counter of drawn tickets.
    fn tickets(&self) -> &Ticket;
    /// Return the ticket of a slot.
    fn ticket(&self, index: usize) -> &Ticket;
    /// Wake the sleeper of this slot. Return false if the wake-up reached no sleeper: it is about to sleep, or dead.
    fn wake(&self, index: usize, how: WakeMethod) -> bool;
    /// Return true if the process of this member is alive. A number without a member counts as dead.
    fn is_alive(&self, member: u32) -> bool;
}

impl<B: WaitSetMemory> WaitSetMemory for Arc<B> {
    fn slots(&self) -> usize {
        (**self).slots()
    }
    fn bits(&self, word: usize) -> &AtomicU64 {
        (**self).bits(word)
    }
    fn slot(&self, index: usize) -> &AtomicU64 {
        (**self).slot(index)
    }
    fn tickets(&self) -> &Ticket {
        (**self).tickets()
    }
    fn ticket(&self, index: usize) -> &Ticket {
        (**self).ticket(index)
    }
    fn wake(&self, index: usize, how: WakeMethod) -> bool {
        (**self).wake(index, how)
    }
    fn is_alive(&self, member: u32) -> bool {
        (**self).is_alive(member)
    }
}
