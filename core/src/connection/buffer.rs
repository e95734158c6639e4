//! A buffer that lies in a block of shared memory, ours or the peer's.

use crate::connection::peer_extents::Loan;
use crate::memory::arena::GRANULE;
use crate::memory::buffer_allocator::BlockHold;
use crate::memory::extent::Extent;
use crate::memory::view::{Mode, View};
use std::io;
use std::sync::Arc;

/// What keeps a block from being used for anything else.
pub(super) enum BufferOwner {
    /// It is ours, and we hold it.
    Own(BlockHold),
    /// It is the peer's, and we have a lease.
    Loan(Loan),
}

/// A buffer in shared memory. It stays mapped and unused by others for as long as this lives.
pub struct Buffer {
    keeper: BufferOwner,
    /// Where it begins in its extent, in bytes.
    offset: u64,
    len: usize,
}

impl Buffer {
    /// `len` bytes from `start` on of the block that is kept, which has them.
    pub(super) fn new(keeper: BufferOwner, start: u64, len: u64) -> Self {
        let place = match &keeper {
            BufferOwner::Own(hold) => hold.place,
            BufferOwner::Loan(lease) => lease.place,
        };
        Buffer {
            keeper,
            offset: place.offset + start,
            len: len as usize,
        }
    }

    /// The mapping that it lies in.
    pub fn extent(&self) -> &Arc<Extent> {
        match &self.keeper {
            BufferOwner::Own(hold) => &hold.extent,
            BufferOwner::Loan(lease) => &lease.extent,
        }
    }

    /// Its length, in bytes.
    #[expect(
        clippy::len_without_is_empty,
        reason = "an empty one is like any other"
    )]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Where it is mapped. Writable only if it is ours.
    pub fn address(&self) -> *mut u8 {
        // Within the mapping: checked when it was opened.
        self.extent().base().wrapping_add(self.offset as usize)
    }

    /// Copies all of it.
    ///
    /// # Safety
    /// `to` is writable for `len()` bytes.
    pub unsafe fn read(&self, to: *mut u8) {
        // SAFETY: the caller's promise; the range was checked when it was opened.
        unsafe { self.extent().read(self.offset, to, self.len) };
    }

    /// Another mapping of it, writable; and where in that it begins.
    pub fn map(&self, mode: Mode) -> io::Result<(View, usize)> {
        let into = self.offset % GRANULE;
        let len = (into as usize + self.len).next_multiple_of(GRANULE as usize);
        let mapping = self.extent().map(self.offset - into, len, mode)?;
        Ok((mapping, into as usize))
    }
}
