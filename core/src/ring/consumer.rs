//! The reading end of a ring.

use super::memory::{RingMemory, WORD};
use super::positions::{RingPositions, check_index};
use crate::sync::Ordering;
use crate::violation::Violation;

/// The reading end. There is one per ring. After a violation it must not be used.
pub struct Consumer<M> {
    memory: M,
    positions: RingPositions,
    /// True head.
    head: u64,
    /// Last valid tail that the writer announced.
    tail: u64,
}

impl<M: RingMemory> Consumer<M> {
    /// Create the reading end of an empty ring.
    pub fn new(memory: M) -> Self {
        let positions = RingPositions::new(memory.first());
        Consumer {
            memory,
            positions,
            head: 0,
            tail: 0,
        }
    }

    /// Return the memory of the ring.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// Return the bytes of the ring that are in use, according to the frames that were read.
    pub fn used(&self) -> usize {
        self.positions.used()
    }

    /// Use `to` bytes of the ring from the head on, as the writer's frame says, which the caller has released. Fails
    /// with [`Violation::Growth`] unless `to` is a power of two, more than now and at most the capacity.
    pub fn grow(&mut self, to: u64) -> Result<(), Violation> {
        let (used, most) = (self.used() as u64, self.memory.capacity() as u64);
        if !to.is_power_of_two() || to <= used || to > most {
            return Err(Violation::Growth { used, to, most });
        }
        self.positions.grow(self.head, to as usize);
        Ok(())
    }

    /// Return the number of bytes that can be read, as far as is known without a load of the tail.
    #[inline]
    pub fn known(&self) -> usize {
        (self.tail - self.head) as usize
    }

    /// Return the number of bytes that can be read, after a load of the tail. Fails with a violation if the writer's
    /// tail is impossible, or the memory was truncated.
    #[inline]
    pub fn available(&mut self) -> Result<usize, Violation> {
        // Acquire: the words below this tail are the ones that were written (table above).
        let claim = self.memory.tail().load(Ordering::Acquire);
        if self.memory.is_truncated() {
            return Err(Violation::Truncated);
        }
        if claim != self.tail {
            // The most that is possible: frames that announce a growth may still be unread.
            let high = self.head + self.memory.capacity() as u64;
            self.tail = check_index(claim, self.tail, high)?;
        }
        Ok(self.known())
    }

    /// Return the word `offset` bytes beyond the head. The caller has checked that it is there.
    #[inline]
    pub fn get_word(&self, offset: usize) -> u64 {
        let index = self.positions.word(self.head, offset);
        // Relaxed: covered by the Acquire of `available`.
        self.memory.load_word(index)
    }

    /// Prefetch the cache line of the next word, before each load of the tail.
    ///
    /// The tail and the word are in two lines. A load of the tail alone would fetch them from the writer's CPU one
    /// after the other; with this, both are in transit at once. That saves 0.13 µs of a call.
    #[inline]
    pub fn prefetch(&self) {
        // The value is dropped, because it may be a word that is just being written. Loom, which checks that no such
        // word is used, would object.
        #[cfg(not(loom))]
        std::hint::black_box(self.get_word(0));
    }

    /// Fill `bytes` with those that begin `offset` bytes beyond the head. The caller has checked that they are there,
    /// and releases them.
    #[inline]
    pub fn get(&self, offset: usize, bytes: &mut [u8]) {
        let mut offset = offset;
        let mut words = bytes.chunks_exact_mut(WORD);
        for word in &mut words {
            word.copy_from_slice(&self.get_word(offset).to_ne_bytes());
            offset += WORD;
        }
        let rest = words.into_remainder();
        if !rest.is_empty() {
            let value = self.get_word(offset).to_ne_bytes();
            let len = rest.len();
            rest.copy_from_slice(&value[..len]);
        }
    }

    /// Give the next `len` bytes, a multiple of [`WORD`] and at most [`known`](Self::known), back to the writer. A
    /// sleeping writer is not woken.
    #[inline]
    pub fn release(&mut self, len: usize) {
        debug_assert!(len % WORD == 0 && len <= self.known());
        self.head += len as u64;
        // Release: the reads are complete before the writer sees the room (table above).
        self.memory.head().store(self.head, Ordering::Release);
    }
}
