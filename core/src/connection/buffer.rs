//! A buffer in a block of shared memory, of this side or of the peer.

use crate::connection::peer_extents::Loan;
use crate::memory::arena::GRANULE;
use crate::memory::buffer_allocator::BlockHold;
use crate::memory::extent::Extent;
use crate::memory::view::{Mode, View};
use std::io;
use std::sync::Arc;

/// The owner of a block, which keeps the block from being reused.
pub(super) enum BufferOwner {
    /// A block of this side, and a hold on it.
    Own(BlockHold),
    /// A block of the peer, and a loan of it.
    Loan(Loan),
}

/// A buffer in shared memory. As long as it lives, the memory stays mapped and is not reused.
pub struct Buffer {
    owner: BufferOwner,
    /// Offset in the extent, in bytes.
    offset: u64,
    len: usize,
}

impl Buffer {
    /// Create a buffer of `len` bytes from `start` on within a block, which has them.
    pub(super) fn new(owner: BufferOwner, start: u64, len: u64) -> Self {
        let place = match &owner {
            BufferOwner::Own(hold) => hold.place,
            BufferOwner::Loan(loan) => loan.place,
        };
        Buffer {
            owner,
            offset: place.offset + start,
            len: len as usize,
        }
    }

    /// Return the extent that contains the buffer.
    pub fn extent(&self) -> &Arc<Extent> {
        match &self.owner {
            BufferOwner::Own(hold) => &hold.extent,
            BufferOwner::Loan(loan) => &loan.extent,
        }
    }

    /// Return the length, in bytes.
    #[expect(
        clippy::len_without_is_empty,
        reason = "an empty one is like any other"
    )]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Return the address, valid as long as `self`. The memory is writable only if the block belongs to this side. The
    /// peer may write the bytes at any time.
    pub fn address(&self) -> *mut u8 {
        // Within the mapping, which was checked when the buffer was opened.
        self.extent().base().wrapping_add(self.offset as usize)
    }

    /// Copy the whole buffer to `to`.
    ///
    /// # Safety
    /// `to` is writable for `len()` bytes.
    pub unsafe fn read(&self, to: *mut u8) {
        // SAFETY: the caller's promise; the range was checked when the buffer was opened.
        unsafe { self.extent().read(self.offset, to, self.len) };
    }

    /// Return another, writable mapping of the buffer, and the offset of the buffer in it. Fails if the system refuses
    /// the mapping; an empty buffer may fail with `InvalidInput`.
    pub fn map(&self, mode: Mode) -> io::Result<(View, usize)> {
        let into = self.offset % GRANULE;
        let len = (into as usize + self.len).next_multiple_of(GRANULE as usize);
        let mapping = self.extent().map(self.offset - into, len, mode)?;
        Ok((mapping, into as usize))
    }
}
