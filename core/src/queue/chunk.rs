//! A chunk, and a position in the list of chunks.

use super::layout::{CHUNK_HEAD, Head};
use crate::shared_heap::allocator::Reservation;

/// A chunk that this member fills: to be linked, or given up.
#[derive(Debug)]
#[must_use = "a chunk that is neither linked nor given up stays reserved until its member dies"]
pub struct Chunk {
    pub(super) block: Reservation,
    pub(super) size: u64,
}

impl Chunk {
    pub(super) fn offset(&self) -> u64 {
        self.block.offset()
    }

    /// Where its items begin, in bytes from the beginning of the memory: a multiple of 16, and of 64 if it is larger
    /// than 16 KiB.
    pub fn items(&self) -> u64 {
        self.offset() + CHUNK_HEAD
    }

    /// The bytes that its items may have.
    pub fn room(&self) -> u64 {
        self.size - CHUNK_HEAD
    }
}

/// A place in the chain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor {
    pub(super) chunk: u64,
    pub(super) at: u64,
    /// Where the items of the chunk end.
    pub(super) end: u64,
}

impl Cursor {
    pub(super) fn is_at_end(self) -> bool {
        self.at >= self.end
    }
}

/// An item: where it is, and its first word.
pub(super) type Item = (u64, Head);
