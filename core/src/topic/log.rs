//! The log of one publisher: what its writer stores and its readers load.

use super::log_layout::*;
use super::log_memory::LogMemory;
use crate::sync::{AtomicU64, Ordering};

/// Where a record is: what an entry says, which a reader bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its payload.
    pub at: u64,
    /// Bytes of it.
    pub len: u64,
    /// What it is: its users' affair.
    pub form: u8,
}

/// Why a subscriber is not waited for any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum CutReason {
    /// It was behind by more than it has asked for.
    Lag = 1,
    /// What it has said of itself cannot be true.
    Corruption = 2,
}

/// A log, as its publisher or a subscriber has it.
#[derive(Debug)]
pub struct Log<L> {
    space: L,
    mask: u64,
    /// Where the ring and the blocks begin.
    pub(super) data: u64,
    pub(super) blocks: u64,
    size: u64,
}

impl<L: LogMemory> Log<L> {
    /// Lays out a log in memory that is all zeros and large enough.
    pub fn create(space: L, shape: LogLayout, token: u64) -> Self {
        debug_assert!(shape.entries.is_power_of_two() && shape.ring.is_power_of_two());
        let log = Log {
            space,
            mask: shape.entries - 1,
            data: shape.ring_at(),
            blocks: shape.blocks_at(),
            size: shape.size(),
        };
        // Relaxed, all: published with its listing.
        for (at, value) in [
            (0, MAGIC),
            (TOKEN, token),
            (ENTRIES, shape.entries),
            (DATA, log.data),
            (BLOCKS, log.blocks),
            (SIZE, log.size),
        ] {
            log.word(at).store(value, Ordering::Relaxed);
        }
        log
    }

    /// A log that another one has made; None if this is none, or another one than the listing's.
    pub fn open(space: L, token: u64) -> Option<Self> {
        let size = space.size() as u64;
        if size <= INDEX {
            return None;
        }
        // Relaxed: whoever has read its listing sees what was stored before.
        let read = |at| Some(space.word(at)?.load(Ordering::Relaxed));
        let entries = read(ENTRIES)?;
        let (data, blocks) = (read(DATA)?, read(BLOCKS)?);
        let index = entries.checked_mul(ENTRY)?.checked_add(INDEX)?;
        let is_one = read(0)? == MAGIC
            && read(TOKEN)? == token
            && read(SIZE)? == size
            && entries.is_power_of_two()
            && index <= data
            && data <= blocks
            && blocks <= size;
        is_one.then(|| Log {
            mask: entries - 1,
            data,
            blocks,
            size,
            space,
        })
    }

    /// The memory.
    #[inline]
    pub fn space(&self) -> &L {
        &self.space
    }

    /// Bytes of the ring.
    #[inline]
    pub(super) fn ring(&self) -> u64 {
        self.blocks - self.data
    }

    #[inline]
    fn word(&self, at: u64) -> &AtomicU64 {
        self.space.word(at).expect("checked when it was opened")
    }

    #[inline]
    pub(super) fn tail(&self) -> &AtomicU64 {
        self.word(TAIL)
    }

    #[inline]
    pub(super) fn bytes(&self) -> &AtomicU64 {
        self.word(BYTES)
    }

    /// How many records were published, and the bytes of their payloads; what comes meanwhile may be in one of them.
    pub fn published(&self) -> (u64, u64) {
        // Relaxed, both: only said to people.
        let (tail, bytes) = (self.tail(), self.bytes());
        (tail.load(Ordering::Relaxed), bytes.load(Ordering::Relaxed))
    }

    #[inline]
    pub(super) fn floor(&self) -> &AtomicU64 {
        self.word(FLOOR)
    }

    #[inline]
    pub(super) fn cut(&self, seat: usize) -> &AtomicU64 {
        self.word(CUT + 8 * seat as u64)
    }

    /// Writes the entry of a record.
    #[inline]
    pub(super) fn write_entry(&self, seq: u64, record: Record) {
        let at = INDEX + ENTRY * (seq & self.mask);
        let head = record.len | u64::from(record.form) << LENGTH;
        // Relaxed, both: published with the tail.
        self.word(at).store(record.at, Ordering::Relaxed);
        self.word(at + 8).store(head, Ordering::Relaxed);
    }

    /// The entry of a record; Err with what was found if it cannot be true. Of one that was given up it may be another
    /// one's.
    #[inline]
    pub(super) fn entry(&self, seq: u64) -> Result<Record, u64> {
        let at = INDEX + ENTRY * (seq & self.mask);
        // Relaxed, both: covered by the tail.
        let place = self.word(at).load(Ordering::Relaxed);
        let head = self.word(at + 8).load(Ordering::Relaxed);
        let (len, form) = (head & MAX_PAYLOAD, head >> LENGTH);
        let is_within = place % 8 == 0
            && place >= self.data
            && place <= self.size
            && len <= self.size - place
            && form <= u64::from(u8::MAX);
        if !is_within {
            return Err(if form > u64::from(u8::MAX) {
                head
            } else {
                place
            });
        }
        Ok(Record {
            at: place,
            len,
            form: form as u8,
        })
    }
}
