//! The arena: which ranges of an owner's extents are allocated, and to which holders. Bookkeeping only: it touches no
//! shared memory.
//!
//! # The contract
//!
//! * An arena is private to its owner. Other processes know block references, and the ones they send are untrusted:
//!   [`Arena::find`] and [`Arena::end_loan`] accept any values and check them.
//! * A *block* is a run of whole granules of one extent. It lives while this process has a *hold* on it, or a
//!   [`Holder`] has a *loan*.
//! * Loans are counted for each holder. A hostile or dead holder can end its own loans, and none of another holder.
//! * Adjacent free ranges are always merged. So an extent is idle when its first free range is all of it.
//! * An allocation takes the smallest free range that is large enough, and among equals the lowest one in the oldest
//!   extent, so that late extents become idle and can be removed.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

/// Granularity of blocks, in bytes: whole pages, so that two loans never share one. Pages of aarch64 have up to 64 KiB.
pub const GRANULE: u64 = if cfg!(target_arch = "aarch64") {
    64 << 10
} else {
    4096
};

/// Bytes of the first extent.
const FIRST: u64 = 1 << 20;
/// Maximum size of an extent, in bytes, unless one block needs more: allocating it and filling it with zeros delays the
/// call that needs it.
const LARGEST: u64 = 64 << 20;

/// The position of a block in its owner's arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockRef {
    /// Number of the extent.
    pub extent: u32,
    /// Offset in the extent, in bytes.
    pub offset: u64,
}

impl BlockRef {
    const FIRST: BlockRef = BlockRef {
        extent: 0,
        offset: 0,
    };
    const LAST: BlockRef = BlockRef {
        extent: u32::MAX,
        offset: u64::MAX,
    };
}

/// A party that blocks are lent to, by the number that their owner gives it. No number is used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Holder(pub u64);

#[derive(Debug)]
struct ExtentState {
    size: u64,
    /// Time at which a sweep first found the extent free, if nothing was allocated in it since, in nanoseconds.
    idle_since: Option<u64>,
}

#[derive(Debug)]
struct Block {
    len: u64,
    holds: u64,
    /// Number of loans to all holders together.
    loans: u64,
}

impl Block {
    /// Return the bytes of the block if it is lent and this process has no hold on it.
    fn lent_away(&self) -> u64 {
        if self.holds == 0 && self.loans > 0 {
            self.len
        } else {
            0
        }
    }
}

/// The blocks and the free ranges of all extents of one owner.
#[derive(Debug)]
pub struct Arena {
    limit: u64,
    size: u64,
    used: u64,
    lent_away: u64,
    extents: BTreeMap<u32, ExtentState>,
    blocks: BTreeMap<BlockRef, Block>,
    /// Number of loans of a block to each holder.
    loans: BTreeMap<(Holder, BlockRef), u64>,
    /// Length of each free range, in bytes.
    free: BTreeMap<BlockRef, u64>,
    /// The same ranges, the shortest first.
    by_len: BTreeSet<(u64, BlockRef)>,
}

impl Arena {
    /// Create an arena without extents, of up to `limit` bytes.
    pub fn new(limit: u64) -> Self {
        Arena {
            limit,
            size: 0,
            used: 0,
            lent_away: 0,
            extents: BTreeMap::new(),
            blocks: BTreeMap::new(),
            loans: BTreeMap::new(),
            free: BTreeMap::new(),
            by_len: BTreeSet::new(),
        }
    }

    /// Return the maximum size of all extents together, in bytes.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Return the size of all extents together, in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Return the bytes of all live blocks, in whole granules.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Return the bytes of blocks that are lent and that this process has no hold on.
    pub fn lent_away(&self) -> u64 {
        self.lent_away
    }

    /// Allocate a block of at least `len` bytes, in whole granules and at least one, with one hold, which the caller
    /// releases. Return None if no extent has room for it: the caller may add one.
    pub fn allocate(&mut self, len: u64) -> Option<BlockRef> {
        let len = round_up(len)?;
        let &(found, place) = self.by_len.range((len, BlockRef::FIRST)..).next()?;
        self.remove_free(place, found);
        if found > len {
            let rest = BlockRef {
                offset: place.offset + len,
                ..place
            };
            self.insert_free(rest, found - len);
        }
        if let Some(room) = self.extents.get_mut(&place.extent) {
            room.idle_since = None;
        }
        let block = Block {
            len,
            holds: 1,
            loans: 0,
        };
        self.blocks.insert(place, block);
        self.used += len;
        Some(place)
    }

    /// Return the size of the extent to add so that `allocate(len)` succeeds, in bytes. Return None if the limit
    /// forbids it. Nothing is added.
    ///
    /// The first extent has 1 MiB, each further one as much as all before it but at most 64 MiB, unless `len` needs
    /// more. If the limit leaves less, the extent takes what is left: many small ones would each cost both sides a
    /// descriptor.
    pub fn next_extent_size(&self, len: u64) -> Option<u64> {
        let least = round_up(len)?;
        let preferred = self.size.clamp(FIRST, LARGEST).max(least);
        let room = self.limit.saturating_sub(self.size);
        let size = preferred.min(room - room % GRANULE);
        (size >= least).then_some(size)
    }

    /// Add an extent with an unused number and the size that [`next_extent_size`](Self::next_extent_size) has returned.
    /// A known number, or a size of 0 or not in whole granules, is a mistake of the caller: it panics in a debug build;
    /// otherwise the size is rounded down, and nothing is added for a known number or without a whole granule.
    pub fn add(&mut self, extent: u32, size: u64) {
        let whole = size - size % GRANULE;
        debug_assert!(
            whole == size && size > 0,
            "extent {extent} has {size} bytes, not a number of whole granules"
        );
        let known = self.extents.contains_key(&extent);
        debug_assert!(!known, "extent {extent} is already in the arena");
        if known || whole == 0 {
            return;
        }
        let room = ExtentState {
            size: whole,
            idle_since: None,
        };
        self.extents.insert(extent, room);
        self.insert_free(BlockRef { extent, offset: 0 }, whole);
        self.size += whole;
    }

    /// Return the live block that contains all of `[offset, offset + len)`, and its length in whole granules. An empty
    /// range belongs to the block in which it begins. Any values are accepted.
    pub fn find(&self, extent: u32, offset: u64, len: u64) -> Option<(BlockRef, u64)> {
        let end = offset.checked_add(len)?;
        let (&place, block) = self
            .blocks
            .range(..=BlockRef { extent, offset })
            .next_back()?;
        let block_end = place.offset + block.len;
        let within = place.extent == extent && offset < block_end && end <= block_end;
        within.then_some((place, block.len))
    }

    /// Add a hold of this process on a live block. Does nothing if there is none, which is a mistake of the caller.
    pub fn add_hold(&mut self, place: BlockRef) {
        let held = self.update_counts(place, |block| {
            block.holds += 1;
            true
        });
        debug_assert!(held, "no live block at {place:?} to hold");
    }

    /// Release a hold of this process. The block is freed when it has neither holds nor loans. Does nothing if there is
    /// no hold, which is a mistake of the caller.
    pub fn release_hold(&mut self, place: BlockRef) {
        let dropped = self.update_counts(place, |block| {
            let held = block.holds > 0;
            block.holds -= u64::from(held);
            held
        });
        debug_assert!(dropped, "no hold on {place:?} to drop");
    }

    /// Add a loan of a live block to this holder. Does nothing if there is no such block, which is a mistake of the
    /// caller.
    pub fn lend(&mut self, place: BlockRef, holder: Holder) {
        let lent = self.update_counts(place, |block| {
            block.loans += 1;
            true
        });
        debug_assert!(lent, "no live block at {place:?} to lend");
        if lent {
            *self.loans.entry((holder, place)).or_insert(0) += 1;
        }
    }

    /// End one loan of a holder. The block is freed when it has neither holds nor loans. Return false if the holder has
    /// no loan of this block, which is a violation.
    pub fn end_loan(&mut self, place: BlockRef, holder: Holder) -> bool {
        let Entry::Occupied(mut count) = self.loans.entry((holder, place)) else {
            return false;
        };
        if *count.get() > 1 {
            *count.get_mut() -= 1;
        } else {
            count.remove();
        }
        self.update_counts(place, |block| {
            block.loans -= 1;
            true
        })
    }

    /// End all loans of a holder that is gone and no longer reads any of the blocks. Blocks without holds are freed.
    pub fn remove_holder(&mut self, holder: Holder) {
        let all = (holder, BlockRef::FIRST)..=(holder, BlockRef::LAST);
        let loans: Vec<_> = self.loans.range(all).map(|(&k, &n)| (k, n)).collect();
        for (key, count) in loans {
            self.loans.remove(&key);
            self.update_counts(key.1, |block| {
                block.loans -= count;
                true
            });
        }
    }

    /// Change the counts of a block by `count`, and free the block if both are 0. Return the result of `count`; false
    /// if there is no such block.
    fn update_counts(&mut self, place: BlockRef, count: impl FnOnce(&mut Block) -> bool) -> bool {
        let Some(block) = self.blocks.get_mut(&place) else {
            return false;
        };
        let before = block.lent_away();
        let changed = count(block);
        self.lent_away = self.lent_away - before + block.lent_away();
        if block.holds == 0 && block.loans == 0 {
            let len = block.len;
            self.blocks.remove(&place);
            self.free(place, len);
        }
        changed
    }

    /// Return true if a holder has a loan of the block that begins here.
    pub fn is_lent(&self, place: BlockRef, holder: Holder) -> bool {
        self.loans.contains_key(&(holder, place))
    }

    /// Remove the extents that have been idle for `patience` nanoseconds, and return their numbers; the caller gives up
    /// their memory. That takes two calls: one that finds an extent free, and a later one that finds it still free,
    /// with no allocation in between.
    pub fn sweep(&mut self, now: u64, patience: u64) -> Vec<u32> {
        let mut gone = Vec::new();
        for (&extent, room) in &mut self.extents {
            if self.free.get(&BlockRef { extent, offset: 0 }) != Some(&room.size) {
                continue;
            }
            match room.idle_since {
                None => room.idle_since = Some(now),
                Some(since) if now.saturating_sub(since) >= patience => gone.push(extent),
                Some(_) => {}
            }
        }
        for &extent in &gone {
            if let Some(room) = self.extents.remove(&extent) {
                self.remove_free(BlockRef { extent, offset: 0 }, room.size);
                self.size -= room.size;
            }
        }
        gone
    }

    /// Free the range of a block that is already removed, and merge it with adjacent free ranges.
    fn free(&mut self, place: BlockRef, len: u64) {
        self.used -= len;
        let (mut start, mut whole) = (place, len);
        let before = self.free.range(..place).next_back();
        if let Some((&before, &before_len)) = before {
            if before.extent == place.extent && before.offset + before_len == place.offset {
                self.remove_free(before, before_len);
                start = before;
                whole += before_len;
            }
        }
        let after = BlockRef {
            offset: place.offset + len,
            ..place
        };
        if let Some(&after_len) = self.free.get(&after) {
            self.remove_free(after, after_len);
            whole += after_len;
        }
        self.insert_free(start, whole);
    }

    /// Add a free range.
    fn insert_free(&mut self, place: BlockRef, len: u64) {
        self.free.insert(place, len);
        self.by_len.insert((len, place));
    }

    /// Remove a free range of this length.
    fn remove_free(&mut self, place: BlockRef, len: u64) {
        self.free.remove(&place);
        self.by_len.remove(&(len, place));
    }
}

/// Return `len` rounded up to whole granules, at least one, in bytes; None on overflow.
fn round_up(len: u64) -> Option<u64> {
    len.max(1).checked_next_multiple_of(GRANULE)
}

#[cfg(test)]
mod tests;
