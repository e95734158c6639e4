//! The allocator of buffers that a process lends to others: blocks in extents of its own.
//!
//! The allocator sends no messages: the code that adds an extent tells the holders before it lends them a block in it.

use crate::crash;
use crate::memory::arena::{Arena, BlockRef, Holder};
use crate::memory::extent::{self, Extent, Extents, MAX_EXTENTS};
use crate::sync::lock;
use std::io;
use std::sync::{Arc, Mutex};
use thiserror::Error;

/// The reason why no block was allocated.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the texts say what the fields hold")]
pub enum AllocError {
    #[error(
        "cannot allocate {asked} bytes: {used} of the {limit} bytes of this connection's max_memory are in use"
    )]
    Limit { asked: u64, used: u64, limit: u64 },
    #[error("cannot allocate {asked} bytes: {error}")]
    System { asked: u64, error: io::Error },
    /// The peer has closed its end of the socket for extent updates.
    #[error("cannot allocate {asked} bytes: the peer no longer receives updates of shared memory")]
    PeerClosed { asked: u64 },
}

struct AllocatorState {
    arena: Arena,
    extents: Extents,
    /// Number of the next extent. No number is used twice.
    next_extent: u32,
    next_holder: u64,
    /// Number of loans that holders have ended.
    returned: u64,
}

/// The allocator of one owner, for any number of threads. No method waits for other processes.
pub struct BufferAllocator {
    /// Process that uses it: a forked child has copies of the loans, and must not end one.
    process: u32,
    /// State, locked only for moments.
    owned: Mutex<AllocatorState>,
}

impl BufferAllocator {
    /// Create an allocator without extents, of up to `limit` bytes.
    pub fn new(limit: u64) -> Arc<Self> {
        Arc::new(BufferAllocator {
            process: std::process::id(),
            owned: Mutex::new(AllocatorState {
                arena: Arena::new(limit),
                extents: Extents::new(),
                next_extent: 0,
                next_holder: 0,
                returned: 0,
            }),
        })
    }

    /// Return true in the process that created the allocator. In a forked child a lock may be held forever.
    pub fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }

    /// Return the bytes of all extents, and those of all live blocks.
    pub fn usage(&self) -> (u64, u64) {
        let owned = lock(&self.owned);
        (owned.arena.size(), owned.arena.used())
    }

    /// Return the bytes of blocks that are lent and not held here, and the number of loans that their holders have
    /// ended.
    pub fn lent_away(&self) -> (u64, u64) {
        let owned = lock(&self.owned);
        (owned.arena.lent_away(), owned.returned)
    }

    /// Return true if the allocator has any extents.
    pub fn has_extents(&self) -> bool {
        !lock(&self.owned).extents.is_empty()
    }

    /// Add a party that blocks are lent to.
    pub fn add_holder(&self) -> Holder {
        let mut owned = lock(&self.owned);
        owned.next_holder += 1;
        Holder(owned.next_holder)
    }

    /// End all loans of a holder. Its blocks may be allocated again: it must be dead, or there must be no more
    /// allocations. Holds of this process stay.
    pub fn remove_holder(&self, holder: Holder) {
        lock(&self.owned).arena.remove_holder(holder);
    }

    /// Allocate a writable block in the existing extents, with undefined contents. Return None if there is no room in
    /// them: the caller adds an extent.
    pub fn allocate(self: &Arc<Self>, len: u64) -> Option<BlockHold> {
        let mut owned = lock(&self.owned);
        let place = owned.arena.allocate(len)?;
        crash::point!(BlockAllocated);
        Some(self.hold(&owned, place))
    }

    /// Create an extent that is large enough for a block of `len` bytes. The caller tells the holders, then adds it.
    /// One thread at a time, because two would use the same number and exceed the limit. Fails with
    /// [`AllocError::Limit`] also if there are [`MAX_EXTENTS`].
    pub fn make_extent(&self, len: u64) -> Result<Extent, AllocError> {
        let owned = lock(&self.owned);
        let full = owned.extents.len() >= MAX_EXTENTS;
        let Some(size) = owned.arena.next_extent_size(len).filter(|_| !full) else {
            return Err(AllocError::Limit {
                asked: len,
                used: owned.arena.used(),
                limit: owned.arena.limit(),
            });
        };
        let number = owned.next_extent;
        drop(owned);
        Extent::create(number, size as usize)
            .map_err(|error| AllocError::System { asked: len, error })
    }

    /// Add an extent that [`make_extent`](Self::make_extent) has created. Return true if it is the only one.
    pub fn add_extent(&self, extent: Extent) -> bool {
        let mut owned = lock(&self.owned);
        owned.next_extent = extent.number() + 1;
        owned.arena.add(extent.number(), extent.size() as u64);
        owned.extents.insert(extent.number(), Arc::new(extent));
        owned.extents.len() == 1
    }

    /// Remove the extents that were idle for `patience` nanoseconds at `now`, and return them: see [`Arena::sweep`].
    /// The caller tells the holders.
    pub fn sweep(&self, now: u64, patience: u64) -> Vec<Arc<Extent>> {
        let mut owned = lock(&self.owned);
        let numbers = owned.arena.sweep(now, patience);
        let extents = &mut owned.extents;
        numbers.iter().filter_map(|n| extents.remove(n)).collect()
    }

    /// Lend a held block to a holder, once more if it has a loan already, and return its position.
    pub fn lend_held(&self, hold: &BlockHold, holder: Holder) -> BlockRef {
        lock(&self.owned).arena.lend(hold.place, holder);
        crash::point!(BlockLent);
        hold.place
    }

    /// Lend the block that contains all of these bytes to a holder. Return its position, and the offset of the bytes in
    /// it; None, and lend nothing, if no live block of this owner contains them.
    pub fn lend(&self, address: usize, len: usize, holder: Holder) -> Option<(BlockRef, u64)> {
        let mut owned = lock(&self.owned);
        let (extent, offset) = extent::find(&owned.extents, address, len)?;
        let (place, _) = owned.arena.find(extent, offset, len as u64)?;
        owned.arena.lend(place, holder);
        crash::point!(BlockLent);
        Some((place, offset - place.offset))
    }

    /// Cancel a loan that its holder has not learned of. It is not counted among those that holders have ended.
    pub fn cancel_loan(&self, place: BlockRef, holder: Holder) {
        lock(&self.owned).arena.end_loan(place, holder);
    }

    /// End a loan, as its holder has asked. Return false if it has none of this block, which is a violation.
    pub fn end_loan(&self, place: BlockRef, holder: Holder) -> bool {
        let mut owned = lock(&self.owned);
        let given = owned.arena.end_loan(place, holder);
        owned.returned += u64::from(given);
        given
    }

    /// Add a hold on a lent block of which the holder sends back `len` bytes from `start` on. The loan of the holder
    /// stays. Return None if the holder has no loan of it, or the block does not have these bytes.
    pub fn reclaim(
        self: &Arc<Self>,
        place: BlockRef,
        start: u64,
        len: u64,
        holder: Holder,
    ) -> Option<BlockHold> {
        let mut owned = lock(&self.owned);
        let offset = place.offset.checked_add(start)?;
        let (block, _) = owned.arena.find(place.extent, offset, len)?;
        if block != place || !owned.arena.is_lent(place, holder) {
            return None;
        }
        owned.arena.add_hold(place);
        crash::point!(BlockReclaimed);
        Some(self.hold(&owned, place))
    }

    /// Create the object for a hold that the arena has counted.
    fn hold(self: &Arc<Self>, owned: &AllocatorState, place: BlockRef) -> BlockHold {
        BlockHold {
            extent: owned.extents[&place.extent].clone(),
            allocator: self.clone(),
            place,
        }
    }
}

/// A hold on a block. A block is freed once it has neither holds nor loans.
pub struct BlockHold {
    pub(crate) extent: Arc<Extent>,
    allocator: Arc<BufferAllocator>,
    pub(crate) place: BlockRef,
}

impl Drop for BlockHold {
    /// Release the hold, which frees a block without loans. Does nothing in a forked child.
    fn drop(&mut self) {
        if self.allocator.is_ours() {
            lock(&self.allocator.owned).arena.release_hold(self.place);
        }
    }
}
