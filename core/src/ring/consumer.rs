//! The reading end of a ring.

use super::memory::{RingMemory, WORD};
use super::positions::{RingPositions, check_index};
use crate::sync::Ordering;
use crate::violation::Violation;

/// The reading end. There is one per ring.
pub struct Consumer<M> {
    memory: M,
    positions: RingPositions,
    /// The true head.
    head: u64,
    /// The last tail the writer announced that was possible.
    tail: u64,
}

impl<M: RingMemory> Consumer<M> {
    /// The reading end of an empty ring.
    pub fn new(memory: M) -> Self {
        let positions = RingPositions::new(memory.first());
        Consumer {
            memory,
            positions,
            head: 0,
            tail: 0,
        }
    }

    /// The memory that the ring lies in.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// Bytes of it that are in use, as far as the frames say that were read.
    pub fn used(&self) -> usize {
        self.positions.used()
    }

    /// From here on `to` bytes are in use, says the writer.
    pub fn grow(&mut self, to: u64) -> Result<(), Violation> {
        let (used, most) = (self.used() as u64, self.memory.capacity() as u64);
        if !to.is_power_of_two() || to <= used || to > most {
            return Err(Violation::Growth { used, to, most });
        }
        self.positions.grow(self.head, to as usize);
        Ok(())
    }

    /// Bytes that can be got now, as far as is known without looking.
    #[inline]
    pub fn known(&self) -> usize {
        (self.tail - self.head) as usize
    }

    /// Bytes that can be got now. Looks at what the writer announced.
    #[inline]
    pub fn available(&mut self) -> Result<usize, Violation> {
        // Acquire: the words below this tail are the ones written (table above).
        let claim = self.memory.tail().load(Ordering::Acquire);
        if self.memory.is_cut_off() {
            return Err(Violation::CutOff);
        }
        if claim != self.tail {
            // All that there can be: of a growth, the frames tell that are still to be read.
            let high = self.head + self.memory.capacity() as u64;
            self.tail = check_index(claim, self.tail, high)?;
        }
        Ok(self.known())
    }

    /// The word `offset` bytes beyond the head. The caller has made sure it is there.
    #[inline]
    pub fn get_word(&self, offset: usize) -> u64 {
        let index = self.positions.word(self.head, offset);
        // Relaxed: covered by the Acquire of `available`.
        self.memory.load_word(index)
    }

    /// Asks for the line that the next word will lie in, to be called before each look at the tail.
    ///
    /// Tail and word are on two lines. A look at the tail alone fetches them from the writer's
    /// CPU one after the other; so both are under way at once. That is 0.13 µs of a call.
    #[inline]
    pub fn prefetch(&self) {
        // Whatever comes is dropped: it may be a word that is just being written. Loom, which
        // checks that no such word is ever used, would object.
        #[cfg(not(loom))]
        std::hint::black_box(self.get_word(0));
    }

    /// Copies the bytes `offset` bytes beyond the head out of the ring.
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

    /// Gives `len` bytes back to the writer, a multiple of [`WORD`].
    #[inline]
    pub fn release(&mut self, len: usize) {
        debug_assert!(len % WORD == 0 && len <= self.known());
        self.head += len as u64;
        // Release: our reads are over before the writer sees the room (table above).
        self.memory.head().store(self.head, Ordering::Release);
    }
}
