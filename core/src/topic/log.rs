//! The memory of one publisher, which it alone can write. Offsets in bytes:
//!
//! ```text
//!      0  magic      u64   the bytes "shmtopic"
//!      8  token      u64   what its listing has too: so no other file is taken for it
//!     16  entries    u64   of the index, a power of two
//!     24  data       u64   where the ring begins
//!     32  blocks     u64   where the blocks begin
//!     40  size       u64   bytes of all
//!     64  tail       u64   records that were published: the number of the next one
//!     72  bytes      u64   of the payloads of these
//!    128  floor      u64   records below this one may be written over
//!    192  cut        u64 for each seat: in the high half the generation of a claim that is not waited for any more, below why
//!   4096  index      16 bytes for each entry: where the payload of a record is; its length in 40 bits, its form above
//!         ring       payloads, each in one piece, at a multiple of 8 or 64
//!         blocks     payloads of their own pages
//! ```
//!
//! The entry of record `seq` is number `seq` modulo their count. Nothing of a record stands beside its payload, so a
//! reader goes by the index alone, and a gap at the end of the ring needs no mark.

use super::Space;
use crate::sync::{AtomicU64, Ordering};

const MAGIC: u64 = u64::from_ne_bytes(*b"shmtopic");
const TOKEN: u64 = 8;
const ENTRIES: u64 = 16;
const DATA: u64 = 24;
const BLOCKS: u64 = 32;
const SIZE: u64 = 40;
const TAIL: u64 = 64;
const BYTES: u64 = 72;
const FLOOR: u64 = 128;
const CUT: u64 = 192;
const INDEX: u64 = 4096;
const ENTRY: u64 = 16;

/// The most seats whose cuts there is room for.
pub const MOST_SEATS: usize = ((INDEX - CUT) / 8) as usize;

/// Bits of a length.
const LENGTH: u32 = 40;
/// The most bytes of a payload.
pub const LONGEST: u64 = (1 << LENGTH) - 1;
/// Where the payload of a record with buffers begins: at a multiple of this.
pub const ALIGNMENT: u64 = 64;

/// The least and most bytes of a ring, unless a test asks for others.
const RING: (u64, u64) = (256 << 10, 64 << 20);
/// What a record has of the ring on the average, in bytes, before that bounds how many may be outstanding.
const USUAL: u64 = 256;
/// A larger payload has a block of its own.
const SMALL: u64 = 16 << 10;

/// What a publisher holds for those that are slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Records that a subscriber may be behind.
    pub high: u64,
    /// A publisher that waits for room goes on when the slowest is behind by this many.
    pub low: u64,
    /// Bytes of large records.
    pub memory: u64,
}

/// What lies where in a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Entries of the index.
    pub entries: u64,
    /// Bytes of the ring.
    pub ring: u64,
    /// Bytes for blocks.
    pub blocks: u64,
}

/// The most records that a subscriber may be behind.
pub const MOST_HIGH: u64 = 1 << 24;

impl Shape {
    /// That of a publisher with these limits.
    pub fn of(limits: Limits) -> Self {
        let high = limits.high.clamp(1, MOST_HIGH);
        let ring = (high * USUAL).next_power_of_two();
        Shape {
            entries: (2 * high).next_power_of_two().max(64),
            ring: ring.clamp(RING.0, RING.1),
            blocks: limits.memory.next_multiple_of(super::blocks::PAGE),
        }
    }

    /// Payloads of more bytes have a block.
    pub fn small(self) -> u64 {
        SMALL.min(self.ring / 8)
    }

    pub(super) fn ring_at(self) -> u64 {
        (INDEX + ENTRY * self.entries).next_multiple_of(super::blocks::PAGE)
    }

    pub(super) fn blocks_at(self) -> u64 {
        (self.ring_at() + self.ring).next_multiple_of(super::blocks::PAGE)
    }

    /// Bytes of a log.
    pub fn size(self) -> u64 {
        self.blocks_at() + self.blocks
    }

    /// Bytes that need memory from the beginning.
    pub fn used(self) -> u64 {
        self.blocks_at()
    }
}

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
pub enum Why {
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

impl<L: Space> Log<L> {
    /// Lays out a log in memory that is all zeros and large enough.
    pub fn create(space: L, shape: Shape, token: u64) -> Self {
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
    pub(super) fn enter(&self, seq: u64, record: Record) {
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
        let (len, form) = (head & LONGEST, head >> LENGTH);
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
