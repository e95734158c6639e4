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

use super::blocks::PAGE;

pub(super) const MAGIC: u64 = u64::from_ne_bytes(*b"shmtopic");
pub(super) const TOKEN: u64 = 8;
pub(super) const ENTRIES: u64 = 16;
pub(super) const DATA: u64 = 24;
pub(super) const BLOCKS: u64 = 32;
pub(super) const SIZE: u64 = 40;
pub(super) const TAIL: u64 = 64;
pub(super) const BYTES: u64 = 72;
pub(super) const FLOOR: u64 = 128;
pub(super) const CUT: u64 = 192;
pub(super) const INDEX: u64 = 4096;
pub(super) const ENTRY: u64 = 16;

/// The most seats whose cuts there is room for.
pub const MAX_SEATS: usize = ((INDEX - CUT) / 8) as usize;

/// Bits of a length.
pub(super) const LENGTH: u32 = 40;

/// The most bytes of a payload.
pub const MAX_PAYLOAD: u64 = (1 << LENGTH) - 1;

/// Where the payload of a record with buffers begins: at a multiple of this.
pub const ALIGNMENT: u64 = 64;

/// The least and most bytes of a ring, unless a test asks for others.
const RING: (u64, u64) = (256 << 10, 64 << 20);

/// What a record has of the ring on the average, in bytes, before that bounds how many may be outstanding.
const USUAL: u64 = 256;

/// A larger payload has a block of its own.
const SMALL: u64 = 16 << 10;

/// The most records that a subscriber may be behind.
pub const MAX_HIGH: u64 = 1 << 24;

/// What a publisher holds for those that are slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublisherLimits {
    /// Records that a subscriber may be behind.
    pub high: u64,
    /// A publisher that waits for room goes on when the slowest is behind by this many.
    pub low: u64,
    /// Bytes of large records.
    pub memory: u64,
}

/// What lies where in a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogLayout {
    /// Entries of the index.
    pub entries: u64,
    /// Bytes of the ring.
    pub ring: u64,
    /// Bytes for blocks.
    pub blocks: u64,
}

impl LogLayout {
    /// That of a publisher with these limits.
    pub fn of(limits: PublisherLimits) -> Self {
        let high = limits.high.clamp(1, MAX_HIGH);
        let ring = (high * USUAL).next_power_of_two();
        LogLayout {
            entries: (2 * high).next_power_of_two().max(64),
            ring: ring.clamp(RING.0, RING.1),
            blocks: limits.memory.next_multiple_of(PAGE),
        }
    }

    /// Payloads of more bytes have a block.
    pub fn small(self) -> u64 {
        SMALL.min(self.ring / 8)
    }

    pub(super) fn ring_at(self) -> u64 {
        (INDEX + ENTRY * self.entries).next_multiple_of(PAGE)
    }

    pub(super) fn blocks_at(self) -> u64 {
        (self.ring_at() + self.ring).next_multiple_of(PAGE)
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
