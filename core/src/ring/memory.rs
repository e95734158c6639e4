//! The memory of a ring.

use crate::sync::{AtomicU32, AtomicU64};
use std::sync::Arc;

/// Bytes in a word, the unit in which everything moves.
pub const WORD: usize = 8;

/// `len` rounded up to whole words.
#[inline]
pub const fn padded(len: usize) -> usize {
    (len + WORD - 1) & !(WORD - 1)
}

/// Bytes that a ring which may grow keeps free for the frame that says so.
pub const GROWTH: usize = 2 * WORD;

/// The memory of one ring: where it lies is not the ring's concern.
///
/// The references that it hands out are to atomics only, and words go by value; memory that a
/// peer can write is never borrowed in any other way.
pub trait RingMemory {
    /// Bytes the ring holds at most: a power of two, at least [`WORD`].
    fn capacity(&self) -> usize;
    /// Bytes that it holds at first: a power of two, up to its capacity.
    #[inline]
    fn first(&self) -> usize {
        self.capacity()
    }
    /// Sets memory aside for the bytes `from..to`. False if there is none; then what is there stays as it is.
    fn set_aside(&self, _from: usize, _to: usize) -> bool {
        true
    }
    /// The word at `index`, counted in words from the ring's start. Relaxed.
    fn load_word(&self, index: usize) -> u64;
    /// Replaces the word at `index`. Relaxed.
    fn store_word(&self, index: usize, value: u64);
    /// Bytes written since the beginning. Stored by the writer alone.
    fn tail(&self) -> &AtomicU64;
    /// Bytes read since the beginning. Stored by the reader alone.
    fn head(&self) -> &AtomicU64;
    /// How the reader sleeps for bytes, see [`crate::wait::flags`].
    fn reader_waits(&self) -> &AtomicU32;
    /// How the writer sleeps for room, see [`crate::wait::flags`].
    fn writer_waits(&self) -> &AtomicU32;
    /// Whether the peer has cut it off: what was read before this question may never have been written.
    #[inline]
    fn is_cut_off(&self) -> bool {
        false
    }
}

impl<M: RingMemory> RingMemory for Arc<M> {
    #[inline]
    fn capacity(&self) -> usize {
        (**self).capacity()
    }
    #[inline]
    fn first(&self) -> usize {
        (**self).first()
    }
    fn set_aside(&self, from: usize, to: usize) -> bool {
        (**self).set_aside(from, to)
    }
    #[inline]
    fn load_word(&self, index: usize) -> u64 {
        (**self).load_word(index)
    }
    #[inline]
    fn store_word(&self, index: usize, value: u64) {
        (**self).store_word(index, value);
    }
    #[inline]
    fn tail(&self) -> &AtomicU64 {
        (**self).tail()
    }
    #[inline]
    fn head(&self) -> &AtomicU64 {
        (**self).head()
    }
    #[inline]
    fn reader_waits(&self) -> &AtomicU32 {
        (**self).reader_waits()
    }
    #[inline]
    fn writer_waits(&self) -> &AtomicU32 {
        (**self).writer_waits()
    }
    #[inline]
    fn is_cut_off(&self) -> bool {
        (**self).is_cut_off()
    }
}
