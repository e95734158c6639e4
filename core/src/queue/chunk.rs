//! A chunk, and a position in the list of chunks.

use super::layout::{CHUNK_HEAD, Head};
use crate::shared_heap::allocator::Reservation;

/// A reserved chunk that this member fills, and then links or frees.
#[derive(Debug)]
#[must_use = "a chunk that is neither linked nor freed stays reserved until its member dies"]
pub struct Chunk {
    pub(super) block: Reservation,
    pub(super) size: u64,
}

impl Chunk {
    /// Return the offset of the chunk, in bytes from the beginning of the memory.
    pub(super) fn offset(&self) -> u64 {
        self.block.offset()
    }

    /// Return the offset of its items, in bytes from the beginning of the memory: a multiple of 16, and of 64 if the
    /// chunk is larger than 16 KiB.
    pub fn items(&self) -> u64 {
        self.offset() + CHUNK_HEAD
    }

    /// Return the number of bytes that its items may take.
    pub fn room(&self) -> u64 {
        self.size - CHUNK_HEAD
    }
}

/// A position in the list of chunks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor {
    pub(super) chunk: u64,
    pub(super) at: u64,
    /// Offset at which the items of the chunk end.
    pub(super) end: u64,
}

impl Cursor {
    /// Return true if no item of the chunk is left behind the position.
    pub(super) fn is_at_end(self) -> bool {
        self.at >= self.end
    }
}

/// The offset of an item, and its first word.
pub(super) type Item = (u64, Head);
