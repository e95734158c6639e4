//! The layout of a queue in shared memory. Offsets in bytes from its beginning, a multiple of [`PAGE`]:
//!
//! ```text
//!      0  put          u64   items that were ever put
//!      8  taken        u64   items that were taken from the list of chunks: the number of the next one
//!     16  done         u64   items that were processed
//!     24  returned     u64   items that were returned and wait for another delivery
//!     32  held         u64   claims that have not ended
//!     40  dead         u64   dead letters
//!     48  shut         u64   1: no more puts; 2: returned items are dropped, too
//!     56  full         u64   bit 0: a writer sleeps until there are fewer items; bit 1: until there is more memory;
//!                            bit 2: a writer of bit 0 puts several items; from bit 8 on: the fewest that a sleeping
//!                            writer puts at once
//!     64  head chunk   u64   the first chunk of the list, or 0
//!     72  head at      u64   offset of the next item to take
//!     80  tail chunk   u64   the last chunk of the list, or 0
//!     88  tail at      u64   offset for the next item to put
//!     96  expiry       u64   no claim expires before, in nanoseconds of CLOCK_MONOTONIC; 0: no claim expires
//!    104  free         u64   index of the first free claim, plus one
//!    112  high         u64   claims that were ever used
//!    120  returned 1   u64   index of the first claim of the returned items, plus one, in their order
//!    128  dead 1       u64   index of the first claim of the dead letters, plus one, in their order
//!    192  outstanding  256 u64   by the slot of a member: items that were handed to it and not processed
//!   4096  claims       4096 x 64   see `claim_table.rs`
//!         allocator    from the next multiple of PAGE on: the chunks are its blocks
//! ```
//!
//! A *chunk* has items, one behind the other, and links to the next chunk. Offsets in bytes:
//!
//! ```text
//!      0  next        u64   the chunk after it, or 0
//!      8  size        u64   its bytes
//!     16  end         u64   offset at which its items end, once there is a chunk after it
//!     24  pins        u64   claims of items in it
//!     64  items
//! ```
//!
//! An item begins at a multiple of 8: a word with the length of its payload in 40 bits and its [`Form`] above them,
//! then the payload, padded to the next multiple of 8. The payload of a parcel begins at the next multiple of 64.

use crate::shared_heap::backing_file::PAGE;

pub(super) const PUT: u64 = 0;
pub(super) const TAKEN: u64 = 8;
pub(super) const DONE: u64 = 16;
pub(super) const RETURNED: u64 = 24;
pub(super) const HELD: u64 = 32;
pub(super) const DEAD: u64 = 40;
pub(super) const SHUT: u64 = 48;
/// Value of `shut`: returned items are dropped.
pub(super) const AT_ONCE: u64 = 2;
pub(super) const FULL: u64 = 56;
pub(super) const HEAD_CHUNK: u64 = 64;
pub(super) const HEAD_AT: u64 = 72;
pub(super) const TAIL_CHUNK: u64 = 80;
pub(super) const TAIL_AT: u64 = 88;
pub(super) const EXPIRY: u64 = 96;
pub(super) const FREE: u64 = 104;
pub(super) const HIGH: u64 = 112;
pub(super) const FIRST_RETURNED: u64 = 120;
pub(super) const FIRST_DEAD: u64 = 128;
pub(super) const OUTSTANDING: u64 = 192;
pub(super) const CLAIMS: u64 = 4096;

/// Bits of the word `full`.
pub(super) const WAITS_FOR_ITEMS: u64 = 1;
pub(super) const WAITS_FOR_MEMORY: u64 = 2;
/// A writer that sleeps for fewer items puts several at once.
pub(super) const WAITS_FOR_SEVERAL: u64 = 4;
/// Lowest bit of the part of `full` with the fewest items that a sleeping writer puts at once.
pub(super) const FEWEST_SHIFT: u32 = 8;

/// Number of members that a queue may have.
pub const SLOTS: u64 = 256;
/// Number of claims that may be held, returned or dead letters at a time.
pub const MAX_CLAIMS: u64 = 4096;
/// Bytes of a claim.
pub(super) const CLAIM: u64 = 64;

/// Bytes before the allocator.
pub const SIZE: u64 = (CLAIMS + MAX_CLAIMS * CLAIM).next_multiple_of(PAGE);

/// Bytes of a chunk before its items.
pub(super) const CHUNK_HEAD: u64 = 64;
pub(super) const NEXT: u64 = 0;
pub(super) const CHUNK_SIZE: u64 = 8;
pub(super) const END: u64 = 16;
pub(super) const PINS: u64 = 24;

/// The form of an item's payload. A queue uses it only for the alignment of the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Form {
    /// The bytes of a value.
    Value = 0,
    /// Raw bytes.
    Raw = 1,
    /// A value's bytes, and the buffers that it refers to: see [`super::parcel`].
    Parcel = 2,
}

const LENGTH: u64 = (1 << 40) - 1;

/// The first word of an item: the length and the form of its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head(pub u64);

impl Head {
    /// Create the head of a payload of `len` bytes, less than 2^40, which the caller ensures.
    pub fn new(len: u64, form: Form) -> Self {
        debug_assert!(len <= LENGTH);
        Head(len | (form as u64) << 40)
    }

    /// Return the length of the payload, in bytes.
    #[inline]
    pub fn size(self) -> u64 {
        self.0 & LENGTH
    }

    /// Return the form of the payload; None if the word is not the head of an item.
    #[inline]
    pub fn form(self) -> Option<Form> {
        match self.0 >> 40 {
            0 => Some(Form::Value),
            1 => Some(Form::Raw),
            2 => Some(Form::Parcel),
            _ => None,
        }
    }

    /// Return the offset of the payload of an item at `at`.
    #[inline]
    pub(super) fn payload(self, at: u64) -> u64 {
        if self.0 >> 40 == Form::Parcel as u64 {
            (at + 8).next_multiple_of(64)
        } else {
            at + 8
        }
    }

    /// Return the offset of the payload of an item at `at`, for callers outside the queue.
    pub fn payload_from(self, at: u64) -> u64 {
        self.payload(at)
    }

    /// Return the offset behind an item at `at`, at which the next one may begin. A corrupt head may yield any higher
    /// offset.
    #[inline]
    pub(super) fn after(self, at: u64) -> u64 {
        (self.payload(at) + self.size()).next_multiple_of(8)
    }
}
