//! The log of one publisher, as its writer and its readers access it.

use super::log_layout::*;
use super::log_memory::LogMemory;
use crate::sync::{AtomicU64, Ordering};

/// The position of a record, as an entry of the index gives it. Readers check its bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Offset of the payload in the log, in bytes.
    pub at: u64,
    /// Length of the payload, in bytes.
    pub len: u64,
    /// Form of the payload, which only its users interpret.
    pub form: u8,
}

/// The reason why a publisher no longer waits for a subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum CutReason {
    /// The subscriber was further behind than it has asked for.
    Lag = 1,
    /// The subscriber has stored impossible values.
    Corruption = 2,
}

/// A log, as its publisher or a subscriber has it open.
#[derive(Debug)]
pub struct Log<L> {
    space: L,
    mask: u64,
    /// Offsets at which the ring and the blocks begin.
    pub(super) data: u64,
    pub(super) blocks: u64,
    size: u64,
}

impl<L: LogMemory> Log<L> {
    /// Lay out a log in memory that is all zeros and has the size of the layout. `token` identifies the listing that
    /// publishes the log later. Panics if the memory is too small for the header.
    pub fn create(space: L, shape: LogLayout, token: u64) -> Self {
        debug_assert!(shape.entries.is_power_of_two() && shape.ring.is_power_of_two());
        let log = Log {
            space,
            mask: shape.entries - 1,
            data: shape.ring_at(),
            blocks: shape.blocks_at(),
            size: shape.size(),
        };
        // Relaxed, all: published with the listing.
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

    /// Open a log that another process has laid out, after a check of its header. Return None if the memory is not a
    /// log, or not that of the listing with this token. The entries are checked one by one when they are read.
    pub fn open(space: L, token: u64) -> Option<Self> {
        let size = space.size() as u64;
        if size <= INDEX {
            return None;
        }
        // Relaxed: a reader of the listing sees what was stored before it.
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

    /// Return the memory of the log.
    #[inline]
    pub fn space(&self) -> &L {
        &self.space
    }

    /// Return the size of the ring, in bytes.
    #[inline]
    pub(super) fn ring(&self) -> u64 {
        self.blocks - self.data
    }

    /// Return the word at an offset within the header or the index. Panics for an offset that is not within the log.
    #[inline]
    fn word(&self, at: u64) -> &AtomicU64 {
        self.space.word(at).expect("checked when it was opened")
    }

    /// Return the word with the number of published records.
    #[inline]
    pub(super) fn tail(&self) -> &AtomicU64 {
        self.word(TAIL)
    }

    /// Return the word with the bytes of the payloads of all published records.
    #[inline]
    pub(super) fn bytes(&self) -> &AtomicU64 {
        self.word(BYTES)
    }

    /// Return the number of published records and the bytes of their payloads. A record that is published meanwhile may
    /// count in one of them.
    pub fn published(&self) -> (u64, u64) {
        // Relaxed, both: only for statistics.
        let (tail, bytes) = (self.tail(), self.bytes());
        (tail.load(Ordering::Relaxed), bytes.load(Ordering::Relaxed))
    }

    /// Return the word with the floor: records below may be overwritten.
    #[inline]
    pub(super) fn floor(&self) -> &AtomicU64 {
        self.word(FLOOR)
    }

    /// Return the word by which the publisher cuts off the subscriber of a seat, a number below [`MAX_SEATS`].
    #[inline]
    pub(super) fn cut(&self, seat: usize) -> &AtomicU64 {
        self.word(CUT + 8 * seat as u64)
    }

    /// Write the entry of a record, over that of a reclaimed one. Readers see it once the caller stores the tail.
    #[inline]
    pub(super) fn write_entry(&self, seq: u64, record: Record) {
        let at = INDEX + ENTRY * (seq & self.mask);
        let head = record.len | u64::from(record.form) << LENGTH;
        // Relaxed, both: published with the tail.
        self.word(at).store(record.at, Ordering::Relaxed);
        self.word(at + 8).store(head, Ordering::Relaxed);
    }

    /// Read the entry of a record that was published. The error is the word of the entry that is out of bounds. For a
    /// reclaimed record this may be the entry of a later one.
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
