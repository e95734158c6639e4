//! A ring of bytes between one writer and one reader that do not trust each other.
//!
//! Both indices count bytes since the beginning and never wrap in practice (2^64
//! bytes); the place of a byte is its index modulo the capacity. `head <= tail <=
//! head + capacity` holds for honest peers. Everything moves in words of eight
//! bytes, so an index is always a multiple of eight.
//!
//! # Orderings
//!
//! | access | ordering | why |
//! |---|---|---|
//! | words, both sides | Relaxed | they are ordered by the index that covers them |
//! | writer stores `tail` | Release | the words before it are visible to whoever sees it |
//! | reader loads `tail` | Acquire | pairs with it: the words below `tail` are the ones written |
//! | reader stores `head` | Release | its reads of the words are over before the writer sees room |
//! | writer loads `head` | Acquire | pairs with it: the new words are not written before those reads |
//!
//! Each side's own index is private; the copy in memory is never read back.
//!
//! # Growth
//!
//! A ring begins with a part of its memory, and uses more of it once its writer needs room: a frame says so, in its
//! place among the others ([`frame`]), so neither side looks at anything else for it. With `used` bytes in use, byte
//! `i` lies at `(i + shift) mod used`, with a `shift` such that the first byte after the growth lies where the memory
//! begins that is new. So nothing that is still unread is written over before the reader has passed that byte.

pub mod frame;

use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::violation::Violation;
use std::sync::Arc;

/// Bytes in a word, the unit in which everything moves.
pub const WORD: usize = 8;

/// `len` rounded up to whole words.
#[inline]
pub const fn padded(len: usize) -> usize {
    (len + WORD - 1) & !(WORD - 1)
}

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

/// A word of [`HeapMemory`]: an atomic as in shared memory, or, under loom, a cell that reports
/// any access that the indices do not keep apart from another one.
#[cfg(not(loom))]
struct Word(AtomicU64);
#[cfg(loom)]
struct Word(loom::cell::UnsafeCell<u64>);

#[cfg(not(loom))]
impl Word {
    fn new(value: u64) -> Self {
        Word(AtomicU64::new(value))
    }
    fn load(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
    fn store(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}

#[cfg(loom)]
impl Word {
    fn new(value: u64) -> Self {
        Word(loom::cell::UnsafeCell::new(value))
    }
    fn load(&self) -> u64 {
        // SAFETY: loom panics if this access is concurrent with a store.
        self.0.with(|word| unsafe { *word })
    }
    fn store(&self, value: u64) {
        // SAFETY: loom panics if this access is concurrent with another one.
        self.0.with_mut(|word| unsafe { *word = value });
    }
}

// SAFETY: the ring's protocol keeps the accesses apart; that it does is what loom checks.
#[cfg(loom)]
unsafe impl Sync for Word {}

/// A ring in private memory: for tests, for loom, and for the example above.
pub struct HeapMemory {
    words: Vec<Word>,
    /// Bytes that are in use at first.
    first: usize,
    tail: AtomicU64,
    head: AtomicU64,
    reader_waits: AtomicU32,
    writer_waits: AtomicU32,
}

impl HeapMemory {
    /// A ring of `capacity` bytes, a power of two and at least [`WORD`].
    pub fn new(capacity: usize) -> Self {
        Self::growing(capacity, capacity)
    }

    /// A ring that begins with `first` bytes, at least [`GROWTH`], and grows up to `capacity`.
    pub fn growing(first: usize, capacity: usize) -> Self {
        assert!(capacity.is_power_of_two() && first.is_power_of_two());
        assert!(first == capacity || (GROWTH..capacity).contains(&first));
        HeapMemory {
            words: (0..capacity / WORD).map(|_| Word::new(0)).collect(),
            first,
            tail: AtomicU64::new(0),
            head: AtomicU64::new(0),
            reader_waits: AtomicU32::new(0),
            writer_waits: AtomicU32::new(0),
        }
    }
}

impl RingMemory for HeapMemory {
    fn capacity(&self) -> usize {
        self.words.len() * WORD
    }
    fn first(&self) -> usize {
        self.first
    }
    fn load_word(&self, index: usize) -> u64 {
        self.words[index].load()
    }
    fn store_word(&self, index: usize, value: u64) {
        self.words[index].store(value);
    }
    fn tail(&self) -> &AtomicU64 {
        &self.tail
    }
    fn head(&self) -> &AtomicU64 {
        &self.head
    }
    fn reader_waits(&self) -> &AtomicU32 {
        &self.reader_waits
    }
    fn writer_waits(&self) -> &AtomicU32 {
        &self.writer_waits
    }
}

/// Checks a claimed index against what is possible.
#[inline]
fn check(index: u64, low: u64, high: u64) -> Result<u64, Violation> {
    if index % WORD as u64 != 0 {
        return Err(Violation::Misaligned { index, unit: WORD });
    }
    if index < low || index > high {
        return Err(Violation::OutOfRange { index, low, high });
    }
    Ok(index)
}

/// Where the bytes of a ring lie, as one side has it.
struct Places {
    /// Words in use, a power of two, minus 1.
    mask: usize,
    /// What is added to a byte's index.
    shift: usize,
}

impl Places {
    fn new(used: usize) -> Self {
        Places {
            mask: used / WORD - 1,
            shift: 0,
        }
    }

    /// Bytes in use.
    fn used(&self) -> usize {
        (self.mask + 1) * WORD
    }

    /// The number of the word in which the byte `index` lies.
    #[inline]
    fn word(&self, index: u64, offset: usize) -> usize {
        let at = (index as usize)
            .wrapping_add(self.shift)
            .wrapping_add(offset);
        (at / WORD) & self.mask
    }

    /// From the byte `index` on, `to` bytes are in use.
    fn grow(&mut self, index: u64, to: usize) {
        self.shift = self.used().wrapping_sub(index as usize);
        self.mask = to / WORD - 1;
    }
}

/// Bytes that a ring which may grow keeps free for the frame that says so.
pub const GROWTH: usize = 2 * WORD;

/// The writing end. There is one per ring.
pub struct Producer<M> {
    memory: M,
    places: Places,
    /// The true tail.
    tail: u64,
    /// The last head the reader announced that was possible.
    head: u64,
    /// How far the tail may go, as far as is known without looking.
    limit: u64,
    /// The first byte after the last growth.
    grown_at: u64,
    /// Bytes in use before it.
    grown_from: usize,
}

impl<M: RingMemory> Producer<M> {
    /// The writing end of an empty ring.
    pub fn new(memory: M) -> Self {
        let places = Places::new(memory.first());
        let mut ring = Producer {
            memory,
            places,
            tail: 0,
            head: 0,
            limit: 0,
            grown_at: 0,
            grown_from: 0,
        };
        ring.set_limit();
        ring
    }

    /// The memory that the ring lies in.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// Bytes of it that are in use.
    pub fn used(&self) -> usize {
        self.places.used()
    }

    /// Bytes that can be put now, as far as is known without looking.
    #[inline]
    pub fn known_room(&self) -> usize {
        (self.limit - self.tail) as usize
    }

    /// Bytes that can be put now. Looks at what the reader announced.
    pub fn room(&mut self) -> Result<usize, Violation> {
        // Acquire: the reader has done with the words below `head` (table above).
        let claim = self.memory.head().load(Ordering::Acquire);
        if self.memory.is_cut_off() {
            return Err(Violation::CutOff);
        }
        self.head = check(claim, self.head, self.tail)?;
        self.set_limit();
        Ok(self.known_room())
    }

    fn set_limit(&mut self) {
        // What was put before the growth lies anywhere in what was in use then, until the reader has passed all of it:
        // till then there is room for as much as came with the growth. (Before the first byte that is 2^64 - some.)
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

    /// Sets memory aside so that `to` bytes are in use; more than now, and no more than there can be. False if there is
    /// none.
    pub fn set_aside(&self, to: usize) -> bool {
        self.memory.set_aside(self.used(), to)
    }

    /// Puts the two words that tell the reader of it into what was kept free for them, and uses `to` bytes from there
    /// on, for which memory was set aside.
    pub fn grow(&mut self, words: [u64; 2], to: usize) {
        debug_assert!(to > self.used() && to <= self.memory.capacity());
        self.limit += GROWTH as u64;
        self.put_word(0, words[0]);
        self.put_word(WORD, words[1]);
        self.publish(GROWTH);
        (self.grown_at, self.grown_from) = (self.tail, self.used());
        self.places.grow(self.tail, to);
        self.set_limit();
    }

    /// Bytes that the reader has read so far, as far as is known without looking.
    pub fn read(&self) -> u64 {
        self.head
    }

    /// Bytes in the ring, as far as is known without looking.
    pub fn held(&self) -> usize {
        (self.tail - self.head) as usize
    }

    /// Puts a word `offset` bytes beyond the tail. The caller has made sure of the room.
    #[inline]
    pub fn put_word(&mut self, offset: usize, value: u64) {
        let index = self.places.word(self.tail, offset);
        // Relaxed: covered by the Release of `publish`.
        self.memory.store_word(index, value);
    }

    /// Puts bytes `offset` bytes beyond the tail, the last word filled up with zeros.
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

    /// Announces `len` more bytes, a multiple of [`WORD`].
    #[inline]
    pub fn publish(&mut self, len: usize) {
        debug_assert!(len % WORD == 0 && len <= self.known_room());
        self.tail += len as u64;
        // Release: the words are visible to whoever sees this tail (table above).
        self.memory.tail().store(self.tail, Ordering::Release);
    }
}

/// The reading end. There is one per ring.
pub struct Consumer<M> {
    memory: M,
    places: Places,
    /// The true head.
    head: u64,
    /// The last tail the writer announced that was possible.
    tail: u64,
}

impl<M: RingMemory> Consumer<M> {
    /// The reading end of an empty ring.
    pub fn new(memory: M) -> Self {
        let places = Places::new(memory.first());
        Consumer {
            memory,
            places,
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
        self.places.used()
    }

    /// From here on `to` bytes are in use, says the writer.
    pub fn grow(&mut self, to: u64) -> Result<(), Violation> {
        let (used, most) = (self.used() as u64, self.memory.capacity() as u64);
        if !to.is_power_of_two() || to <= used || to > most {
            return Err(Violation::Growth { used, to, most });
        }
        self.places.grow(self.head, to as usize);
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
            self.tail = check(claim, self.tail, high)?;
        }
        Ok(self.known())
    }

    /// The word `offset` bytes beyond the head. The caller has made sure it is there.
    #[inline]
    pub fn get_word(&self, offset: usize) -> u64 {
        let index = self.places.word(self.head, offset);
        // Relaxed: covered by the Acquire of `available`.
        self.memory.load_word(index)
    }

    /// Asks for the line that the next word will lie in, to be called before each look at the tail.
    ///
    /// Tail and word are on two lines. A look at the tail alone fetches them from the writer's
    /// CPU one after the other; so both are under way at once. That is 0.13 µs of a call.
    #[inline]
    pub fn fetch(&self) {
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn pair(
        capacity: usize,
    ) -> (
        Arc<HeapMemory>,
        Producer<Arc<HeapMemory>>,
        Consumer<Arc<HeapMemory>>,
    ) {
        let memory = Arc::new(HeapMemory::new(capacity));
        (
            memory.clone(),
            Producer::new(memory.clone()),
            Consumer::new(memory),
        )
    }

    #[test]
    fn bytes_come_out_as_they_went_in_across_the_wrap() {
        let (_, mut writer, mut reader) = pair(32);
        for round in 0..100u8 {
            let bytes: Vec<u8> = (0..round % 25).map(|i| i ^ round).collect();
            let len = padded(bytes.len());
            assert!(writer.room().unwrap() >= len);
            writer.put(0, &bytes);
            writer.publish(len);
            assert_eq!(reader.available().unwrap(), len);
            let mut out = vec![0; bytes.len()];
            reader.get(0, &mut out);
            reader.release(len);
            assert_eq!(out, bytes);
        }
    }

    #[test]
    fn a_full_ring_has_no_room_until_it_is_read() {
        let (_, mut writer, mut reader) = pair(16);
        writer.put(0, &[1; 16]);
        writer.publish(16);
        assert_eq!(writer.room(), Ok(0));
        reader.available().unwrap();
        reader.release(8);
        assert_eq!(writer.room(), Ok(8));
    }

    #[test]
    fn a_tail_that_lies_is_refused() {
        let (memory, _, mut reader) = pair(64);
        for (claim, what) in [
            (65, Violation::Misaligned { index: 65, unit: 8 }),
            (
                72,
                Violation::OutOfRange {
                    index: 72,
                    low: 0,
                    high: 64,
                },
            ),
            (
                u64::MAX - 7,
                Violation::OutOfRange {
                    index: u64::MAX - 7,
                    low: 0,
                    high: 64,
                },
            ),
        ] {
            memory.tail.store(claim, Ordering::Relaxed);
            assert_eq!(reader.available(), Err(what));
        }
    }

    #[test]
    fn a_tail_that_goes_back_is_refused() {
        let (memory, mut writer, mut reader) = pair(64);
        writer.publish(32);
        assert_eq!(reader.available(), Ok(32));
        memory.tail.store(16, Ordering::Relaxed);
        assert_eq!(
            reader.available(),
            Err(Violation::OutOfRange {
                index: 16,
                low: 32,
                high: 64
            })
        );
    }

    #[test]
    fn a_head_beyond_what_was_written_is_refused() {
        let (memory, mut writer, _) = pair(64);
        writer.publish(32);
        memory.head.store(40, Ordering::Relaxed);
        assert_eq!(
            writer.room(),
            Err(Violation::OutOfRange {
                index: 40,
                low: 0,
                high: 32
            })
        );
    }
}
