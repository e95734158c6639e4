//! Where a set lies, and what it asks of the kernel.

use crate::sync::AtomicU64;
use std::sync::Arc;

/// How a sleeper is woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeMethod {
    /// A thread, by the futex of its slot.
    Futex,
    /// An event loop, by a descriptor that becomes readable.
    Doorbell,
}

/// A number that decides nothing but an order: the standard library's also under loom, which need not try what it may be.
pub type Ticket = std::sync::atomic::AtomicU64;

/// Where a set lies, and what it asks of the kernel.
pub trait WaitSetMemory {
    /// How many slots there are, at most [`MAX_SLOTS`].
    fn slots(&self) -> usize;
    /// The bits of 64 slots: 1 for each whose holder is about to sleep, or sleeps.
    fn bits(&self, word: usize) -> &AtomicU64;
    /// A slot.
    fn slot(&self, index: usize) -> &AtomicU64;
    /// How many tickets were drawn.
    fn tickets(&self) -> &Ticket;
    /// The ticket of a slot.
    fn ticket(&self, index: usize) -> &Ticket;
    /// Wakes the sleeper of this slot. False if nobody has heard it: it is about to sleep, or dead.
    fn wake(&self, index: usize, how: WakeMethod) -> bool;
    /// Whether the process of this member lives. A number that no member has is a dead one's.
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
