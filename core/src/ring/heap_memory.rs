//! A ring in private memory, for tests, loom and examples.

use super::memory::{GROWTH, RingMemory, WORD};
#[cfg(not(loom))]
use crate::sync::Ordering;
use crate::sync::{AtomicU32, AtomicU64};

/// A word of [`HeapMemory`]: an atomic as in shared memory or, under loom, a cell that reports any access that the
/// indices do not keep apart from another one.
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

// SAFETY: the protocol of the ring keeps the accesses apart, which loom checks.
#[cfg(loom)]
unsafe impl Sync for Word {}

/// A ring in private memory.
pub struct HeapMemory {
    words: Vec<Word>,
    /// Bytes in use at first.
    first: usize,
    tail: AtomicU64,
    head: AtomicU64,
    reader_waits: AtomicU32,
    writer_waits: AtomicU32,
}

impl HeapMemory {
    /// Create an empty ring of `capacity` bytes, a power of two and at least [`WORD`]. Panics for another capacity.
    pub fn new(capacity: usize) -> Self {
        Self::growing(capacity, capacity)
    }

    /// Create an empty ring that begins with `first` bytes and grows up to `capacity`. Panics unless both are powers of
    /// two, and `first` is the capacity or from [`GROWTH`] up to it.
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
