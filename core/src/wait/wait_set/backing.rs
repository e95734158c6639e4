//! Where a set lies, and what it asks of the kernel.

use crate::sync::AtomicU64;
use std::sync::Arc;

/// How a sleeper is woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// A thread, by the futex of its slot.
    Futex,
    /// An event loop, by a descriptor that becomes readable.
    Bell,
}

/// A number that decides nothing but an order: the standard library's also under loom, which need not try what it may be.
pub type Hint = std::sync::atomic::AtomicU64;

/// Where a set lies, and what it asks of the kernel.
pub trait Backing {
    /// How many slots there are, at most [`MAX_SLOTS`].
    fn slots(&self) -> usize;
    /// The bits of 64 slots: 1 for each whose holder is about to sleep, or sleeps.
    fn bits(&self, word: usize) -> &AtomicU64;
    /// A slot.
    fn slot(&self, index: usize) -> &AtomicU64;
    /// How many tickets were drawn.
    fn tickets(&self) -> &Hint;
    /// The ticket of a slot.
    fn ticket(&self, index: usize) -> &Hint;
    /// Wakes the sleeper of this slot. False if nobody has heard it: it is about to sleep, or dead.
    fn ring(&self, index: usize, how: How) -> bool;
    /// Whether the process of this member lives. A number that no member has is a dead one's.
    fn lives(&self, member: u32) -> bool;
}

impl<B: Backing> Backing for Arc<B> {
    fn slots(&self) -> usize {
        (**self).slots()
    }
    fn bits(&self, word: usize) -> &AtomicU64 {
        (**self).bits(word)
    }
    fn slot(&self, index: usize) -> &AtomicU64 {
        (**self).slot(index)
    }
    fn tickets(&self) -> &Hint {
        (**self).tickets()
    }
    fn ticket(&self, index: usize) -> &Hint {
        (**self).ticket(index)
    }
    fn ring(&self, index: usize, how: How) -> bool {
        (**self).ring(index, how)
    }
    fn lives(&self, member: u32) -> bool {
        (**self).lives(member)
    }
}
