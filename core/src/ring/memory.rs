//! The memory of a ring.

use crate::sync::{AtomicU32, AtomicU64};
use std::sync::Arc;

/// Bytes of a word, the unit of all accesses.
pub const WORD: usize = 8;

/// Return `len` rounded up to whole words.
#[inline]
pub const fn padded(len: usize) -> usize {
    (len + WORD - 1) & !(WORD - 1)
}

/// Bytes that a ring which may grow keeps free for the frame that announces a growth.
pub const GROWTH: usize = 2 * WORD;

/// The memory of one ring, wherever it lies.
///
/// The methods return references to atomics only, and words by value; memory that a peer can write is never borrowed in
/// any other way.
pub trait RingMemory {
    /// Return the maximum size of the ring, in bytes: a power of two, at least [`WORD`].
    fn capacity(&self) -> usize;
    /// Return the initial size of the ring, in bytes: a power of two, up to its capacity.
    #[inline]
    fn first(&self) -> usize {
        self.capacity()
    }
    /// Allocate memory for the bytes `from..to`, up to the capacity. Return false if there is none; the ring then stays
    /// as it is.
    fn populate(&self, _from: usize, _to: usize) -> bool {
        true
    }
    /// Load the word at `index`, counted in words from the ring's start and less than the capacity. Relaxed.
    fn load_word(&self, index: usize) -> u64;
    /// Store the word at `index`. Relaxed.
    fn store_word(&self, index: usize, value: u64);
    /// Return the number of bytes written since the beginning. Only the writer stores it.
    fn tail(&self) -> &AtomicU64;
    /// Return the number of bytes read since the beginning. Only the reader stores it.
    fn head(&self) -> &AtomicU64;
    /// Return the flag with which the reader sleeps for bytes, see [`crate::wait::flags`].
    fn reader_waits(&self) -> &AtomicU32;
    /// Return the flag with which the writer sleeps for room, see [`crate::wait::flags`].
    fn writer_waits(&self) -> &AtomicU32;
    /// Return true if the peer has truncated the memory: bytes that were read before this call may never have been
    /// written.
    #[inline]
    fn is_truncated(&self) -> bool {
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
    fn populate(&self, from: usize, to: usize) -> bool {
        (**self).populate(from, to)
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
    fn is_truncated(&self) -> bool {
        (**self).is_truncated()
    }
}
