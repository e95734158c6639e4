//! The layout of a log: the memory of one publisher, which only it can write. Offsets in bytes:
//!
//! ```text
//!       0  magic      u64   the bytes "shmtopic"
//!       8  token      u64   the token of its listing, so that no other file is mistaken for it
//!      16  entries    u64   entries of the index, a power of two
//!      24  data       u64   offset of the ring
//!      32  blocks     u64   offset of the blocks
//!      40  size       u64   bytes of the log
//!      64  tail       u64   records that were published: the number of the next one
//!      72  bytes      u64   bytes of their payloads
//!     128  floor      u64   records below this one may be overwritten
//!     192  cut        u64 for each seat: in the high half the generation of a subscriber that the publisher no longer
//!                     waits for; below, the reason
//!    4096  index      16 bytes for each entry: offset of the payload; its length in 40 bits, its form above
//!          ring       payloads, each in one piece, at a multiple of 8 or 64
//!          blocks     payloads in pages of their own
//! ```
//!
//! The entry of record `seq` is number `seq` modulo the number of entries. Nothing is stored beside a payload, so a
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

/// Maximum number of seats: the cut words fill the space before the index.
pub const MAX_SEATS: usize = ((INDEX - CUT) / 8) as usize;

/// Number of bits of a length.
pub(super) const LENGTH: u32 = 40;

/// Maximum length of a payload, in bytes.
pub const MAX_PAYLOAD: u64 = (1 << LENGTH) - 1;

/// Alignment of the payload of a record with buffers, in bytes.
pub const ALIGNMENT: u64 = 64;

/// Minimum and maximum size of a ring, in bytes; tests use others.
const RING: (u64, u64) = (256 << 10, 64 << 20);

/// Bytes of the ring for each record that may be outstanding, on average.
const USUAL: u64 = 256;

/// Maximum length of a payload in the ring, in bytes; a longer one has a block.
const SMALL: u64 = 16 << 10;

/// Maximum number of records that a subscriber may be behind.
pub const MAX_HIGH: u64 = 1 << 24;

/// The limits of what a publisher keeps for slow subscribers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublisherLimits {
    /// Number of records that a subscriber may be behind.
    pub high: u64,
    /// Lag of the slowest subscriber, in records, at which a publisher that waits for room continues.
    pub low: u64,
    /// Bytes for large records.
    pub memory: u64,
}

/// The sizes of the parts of a log.
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
    /// Return the layout for a publisher with these limits: `high` is clamped to 1 up to [`MAX_HIGH`], the bytes of
    /// the ring to 256 KiB up to 64 MiB, and `memory` is rounded up to whole pages.
    pub fn of(limits: PublisherLimits) -> Self {
        let high = limits.high.clamp(1, MAX_HIGH);
        let ring = (high * USUAL).next_power_of_two();
        LogLayout {
            entries: (2 * high).next_power_of_two().max(64),
            ring: ring.clamp(RING.0, RING.1),
            blocks: limits.memory.next_multiple_of(PAGE),
        }
    }

    /// Return the maximum length of a payload in the ring, in bytes: 16 KiB, or an eighth of a smaller ring.
    pub fn small(self) -> u64 {
        SMALL.min(self.ring / 8)
    }

    /// Return the offset of the ring in the log.
    pub(super) fn ring_at(self) -> u64 {
        (INDEX + ENTRY * self.entries).next_multiple_of(PAGE)
    }

    /// Return the offset of the blocks in the log.
    pub(super) fn blocks_at(self) -> u64 {
        (self.ring_at() + self.ring).next_multiple_of(PAGE)
    }

    /// Return the size of the log, in bytes.
    pub fn size(self) -> u64 {
        self.blocks_at() + self.blocks
    }

    /// Return the number of bytes, from the first one on, that need memory from the beginning: all but the blocks.
    pub fn used(self) -> u64 {
        self.blocks_at()
    }
}
