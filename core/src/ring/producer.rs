//! The writing end of a ring.

use super::memory::{GROWTH, RingMemory, WORD};
use super::positions::{RingPositions, check_index};
use crate::sync::Ordering;
use crate::violation::Violation;

/// The writing end. There is one per ring. After a violation it must not be used.
pub struct Producer<M> {
    memory: M,
    positions: RingPositions,
    /// True tail.
    tail: u64,
    /// Last valid head that the reader announced.
    head: u64,
    /// Limit of the tail, as far as is known without a load of the head.
    limit: u64,
    /// First byte after the last growth.
    grown_at: u64,
    /// Bytes in use before the last growth.
    grown_from: usize,
}

impl<M: RingMemory> Producer<M> {
    /// Create the writing end of an empty ring.
    pub fn new(memory: M) -> Self {
        let positions = RingPositions::new(memory.first());
        let mut ring = Producer {
            memory,
            positions,
            tail: 0,
            head: 0,
            limit: 0,
            grown_at: 0,
            grown_from: 0,
        };
        ring.set_limit();
        ring
    }

    /// Return the memory of the ring.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// Return the bytes of the ring that are in use.
    pub fn used(&self) -> usize {
        self.positions.used()
    }

    /// Return the number of bytes that can be written, as far as is known without a load of the head.
    #[inline]
    pub fn known_room(&self) -> usize {
        (self.limit - self.tail) as usize
    }

    /// Return the number of bytes that can be written, after a load of the head. Fails with a violation if the reader's
    /// head is impossible, or the memory was truncated.
    pub fn room(&mut self) -> Result<usize, Violation> {
        // Acquire: the reader has finished with the words below `head` (table above).
        let claim = self.memory.head().load(Ordering::Acquire);
        if self.memory.is_truncated() {
            return Err(Violation::Truncated);
        }
        self.head = check_index(claim, self.head, self.tail)?;
        self.set_limit();
        Ok(self.known_room())
    }

    /// Compute the limit of the tail from the known head, the bytes in use, and the room for a growth.
    fn set_limit(&mut self) {
        // Bytes from before the growth may lie anywhere in the part that was in use then, until the reader has passed
        // all of them: until then there is only room for as much as came with the growth. (Before the first byte that
        // is 2^64 - some.)
        let kept_from = match self.head < self.grown_at {
            true => self.grown_at.wrapping_sub(self.grown_from as u64),
            false => self.head,
        };
        let kept_free = match self.used() < self.memory.capacity() {
            true => GROWTH,
            false => 0,
        };
        self.limit = kept_from.wrapping_add((self.used() - kept_free) as u64);
    }

    /// Allocate memory so that `to` bytes can be in use: more than now, and at most the capacity. Return false if there
    /// is none. The bytes in use stay the same until [`grow`](Self::grow).
    pub fn populate(&self, to: usize) -> bool {
        self.memory.populate(self.used(), to)
    }

    /// Write the two words that announce the growth into the room kept for them and publish them, and use `to` bytes
    /// from there on, a power of two, for which memory was allocated by [`populate`](Self::populate). All bytes that
    /// were written before are published.
    pub fn grow(&mut self, words: [u64; 2], to: usize) {
        debug_assert!(to > self.used() && to <= self.memory.capacity());
        self.limit += GROWTH as u64;
        self.put_word(0, words[0]);
        self.put_word(WORD, words[1]);
        self.publish(GROWTH);
        (self.grown_at, self.grown_from) = (self.tail, self.used());
        self.positions.grow(self.tail, to);
        self.set_limit();
    }

    /// Return the number of bytes that the reader has read, as far as is known without a load of the head.
    pub fn read(&self) -> u64 {
        self.head
    }

    /// Return the number of unread bytes in the ring, as far as is known without a load of the head.
    pub fn unread(&self) -> usize {
        (self.tail - self.head) as usize
    }

    /// Write a word `offset` bytes, a multiple of [`WORD`], beyond the tail. The caller has checked the room, and
    /// publishes the word.
    #[inline]
    pub fn put_word(&mut self, offset: usize, value: u64) {
        let index = self.positions.word(self.tail, offset);
        // Relaxed: covered by the Release of `publish`.
        self.memory.store_word(index, value);
    }

    /// Write bytes `offset` bytes beyond the tail; the last word is padded with zeros. The caller has checked the room,
    /// and publishes them.
    #[inline]
    pub fn put(&mut self, offset: usize, bytes: &[u8]) {
        let mut offset = offset;
        let mut words = bytes.chunks_exact(WORD);
        for word in &mut words {
            let mut value = [0; WORD];
            value.copy_from_slice(word);
            self.put_word(offset, u64::from_ne_bytes(value));
            offset += WORD;
        }
        let rest = words.remainder();
        if !rest.is_empty() {
            let mut value = [0; WORD];
            value[..rest.len()].copy_from_slice(rest);
            self.put_word(offset, u64::from_ne_bytes(value));
        }
    }

    /// Announce `len` more bytes, a multiple of [`WORD`] and at most the known room, which were written. A sleeping
    /// reader is not woken.
    #[inline]
    pub fn publish(&mut self, len: usize) {
        debug_assert!(len % WORD == 0 && len <= self.known_room());
        self.tail += len as u64;
        // Release: the words are visible to a reader that sees this tail (table above).
        self.memory.tail().store(self.tail, Ordering::Release);
    }
}
