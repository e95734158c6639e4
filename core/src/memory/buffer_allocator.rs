//! Memory that a process owns and lends to others: blocks in extents of its own.
//!
//! The store itself tells nobody anything: the code that adds an extent tells the holders of it before it lends them a
//! block in it.

use crate::crash;
use crate::memory::arena::{Arena, BlockRef, Holder};
use crate::memory::extent::{self, Extent, Extents, MAX_EXTENTS};
use crate::sync::lock;
use std::io;
use std::sync::{Arc, Mutex};
use thiserror::Error;

/// Why there is no block.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the texts say what the fields hold")]
pub enum AllocError {
    #[error(
        "{asked} bytes were asked for, {used} of this connection's max_memory of {limit} are in use"
    )]
    Limit { asked: u64, used: u64, limit: u64 },
    #[error("{asked} bytes were asked for, and the system refused: {error}")]
    System { asked: u64, error: io::Error },
    /// The peer has closed its end of the socket for news, or is gone.
    #[error("{asked} bytes were asked for, and the peer does not hear of new memory any more")]
    PeerClosed { asked: u64 },
}

struct AllocatorState {
    arena: Arena,
    extents: Extents,
    /// The number of the next extent. None is used twice.
    next_extent: u32,
    next_holder: u64,
    /// Leases that the holders have ended.
    returned: u64,
}

/// The memory of one owner.
pub struct BufferAllocator {
    /// The process that uses it: a forked child has copies of what is lent, and no right to give it back.
    process: u32,
    /// Held for moments only.
    owned: Mutex<AllocatorState>,
}

impl BufferAllocator {
    /// A store without extents, whose extents may have `limit` bytes together.
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

    /// Whether this is the process that uses it. In a forked child a lock may be held for ever.
    pub fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }

    /// Bytes of the extents, and those of them in live blocks.
    pub fn usage(&self) -> (u64, u64) {
        let owned = lock(&self.owned);
        (owned.arena.size(), owned.arena.used())
    }

    /// Bytes of blocks that are lent and not ours any more, and how many leases their holders have ended.
    pub fn lent_away(&self) -> (u64, u64) {
        let owned = lock(&self.owned);
        (owned.arena.lent_away(), owned.returned)
    }

    /// Whether it has any extents.
    pub fn has_extents(&self) -> bool {
        !lock(&self.owned).extents.is_empty()
    }

    /// Adds a party that blocks are lent to.
    pub fn add_holder(&self) -> Holder {
        let mut owned = lock(&self.owned);
        owned.next_holder += 1;
        Holder(owned.next_holder)
    }

    /// Ends all leases of a holder. From now on what it had may be written again: it must be dead, or there must be no
    /// more allocations.
    pub fn remove_holder(&self, holder: Holder) {
        lock(&self.owned).arena.remove_holder(holder);
    }

    /// Allocates a block in the extents that there are, to be written. None if there is no room in them.
    pub fn allocate(self: &Arc<Self>, len: u64) -> Option<BlockHold> {
        let mut owned = lock(&self.owned);
        let place = owned.arena.allocate(len)?;
        crash::point!(BlockAllocated);
        Some(self.hold(&owned, place))
    }

    /// Makes an extent that is large enough for a block of `len` bytes: tell the holders of it, then add it. One at a
    /// time, or they would have the same number and exceed the limit.
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

    /// Adds what [`make_extent`](Self::make_extent) has made. True if it is the only one.
    pub fn add_extent(&self, extent: Extent) -> bool {
        let mut owned = lock(&self.owned);
        owned.next_extent = extent.number() + 1;
        owned.arena.add(extent.number(), extent.size() as u64);
        owned.extents.insert(extent.number(), Arc::new(extent));
        owned.extents.len() == 1
    }

    /// Takes out the extents that were idle for `patience` nanoseconds at `now`: see [`Arena::sweep`].
    pub fn sweep(&self, now: u64, patience: u64) -> Vec<Arc<Extent>> {
        let mut owned = lock(&self.owned);
        let numbers = owned.arena.sweep(now, patience);
        let extents = &mut owned.extents;
        numbers.iter().filter_map(|n| extents.remove(n)).collect()
    }

    /// Lends a block that is held.
    pub fn lend_held(&self, hold: &BlockHold, holder: Holder) -> BlockRef {
        lock(&self.owned).arena.lend(hold.place, holder);
        crash::point!(BlockLent);
        hold.place
    }

    /// Lends the block that these bytes lie in, if one does: where it begins, and how far into it they do.
    pub fn lend(&self, address: usize, len: usize, holder: Holder) -> Option<(BlockRef, u64)> {
        let mut owned = lock(&self.owned);
        let (extent, offset) = extent::find(&owned.extents, address, len)?;
        let (place, _) = owned.arena.find(extent, offset, len as u64)?;
        owned.arena.lend(place, holder);
        crash::point!(BlockLent);
        Some((place, offset - place.offset))
    }

    /// Ends a lease that its holder was never told of.
    pub fn cancel_loan(&self, place: BlockRef, holder: Holder) {
        lock(&self.owned).arena.end_loan(place, holder);
    }

    /// Ends a lease, as its holder has asked. False if it has none of this block: it lies.
    pub fn end_loan(&self, place: BlockRef, holder: Holder) -> bool {
        let mut owned = lock(&self.owned);
        let given = owned.arena.end_loan(place, holder);
        owned.returned += u64::from(given);
        given
    }

    /// Holds a block of which a holder sends `len` bytes back, from `start` on. None if it has no lease of it.
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
        crash::point!(BlockRegained);
        Some(self.hold(&owned, place))
    }

    /// One of the holds that the arena has counted.
    fn hold(self: &Arc<Self>, owned: &AllocatorState, place: BlockRef) -> BlockHold {
        BlockHold {
            extent: owned.extents[&place.extent].clone(),
            allocator: self.clone(),
            place,
        }
    }
}

/// A hold of a block. A block is free once there is neither a hold of it nor a lease.
pub struct BlockHold {
    pub(crate) extent: Arc<Extent>,
    allocator: Arc<BufferAllocator>,
    pub(crate) place: BlockRef,
}

impl Drop for BlockHold {
    fn drop(&mut self) {
        if self.allocator.is_ours() {
            lock(&self.allocator.owned).arena.release_hold(self.place);
        }
    }
}
