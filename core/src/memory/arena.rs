//! Which parts of a side's extents are taken, and by whom. Bookkeeping only: it touches no memory.
//!
//! # The contract
//!
//! * An arena is private to its owner. The peer knows only places, and what it says of them is a
//!   claim: [`Arena::find`] and [`Arena::give_back`] take any values and believe none.
//! * A *block* is a run of whole granules of one extent. It lives while it has a *hold*, which is
//!   ours, or a *lease*, which is the peer's.
//! * Free ranges that touch are one range, at once. So an extent is idle when its first range is
//!   all of it.
//! * The smallest free range that is large enough is taken, and of equals the one lowest in the
//!   oldest extent, so that late extents fall idle and can go.

use std::collections::{BTreeMap, BTreeSet};

/// Blocks are whole pages: two leases never share one. The pages of aarch64 may have up to 64 KiB.
pub const GRANULE: u64 = if cfg!(target_arch = "aarch64") {
    64 << 10
} else {
    4096
};

/// Bytes of the first extent.
const FIRST: u64 = 1 << 20;
/// Bytes that no extent exceeds, unless one block needs more: what is set aside and filled with
/// zeros in one go holds up the call that needs it.
const LARGEST: u64 = 64 << 20;

/// Where a block begins in its owner's arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The number of the extent.
    pub extent: u32,
    /// Bytes from its beginning.
    pub offset: u64,
}

#[derive(Debug)]
struct Room {
    size: u64,
    /// When a sweep first saw it wholly free, if nothing was allocated in it since.
    idle_since: Option<u64>,
}

#[derive(Debug)]
struct Block {
    len: u64,
    holds: u64,
    leases: u64,
}

impl Block {
    /// Its bytes if the peer alone has it.
    fn away(&self) -> u64 {
        if self.holds == 0 && self.leases > 0 {
            self.len
        } else {
            0
        }
    }
}

/// The blocks and the free ranges of all extents of one side.
#[derive(Debug)]
pub struct Arena {
    limit: u64,
    size: u64,
    used: u64,
    away: u64,
    extents: BTreeMap<u32, Room>,
    blocks: BTreeMap<Place, Block>,
    /// The length of each free range.
    free: BTreeMap<Place, u64>,
    /// The same ranges, the shortest first.
    by_len: BTreeSet<(u64, Place)>,
}

impl Arena {
    /// An arena without extents, whose extents may have `limit` bytes together.
    pub fn new(limit: u64) -> Self {
        Arena {
            limit,
            size: 0,
            used: 0,
            away: 0,
            extents: BTreeMap::new(),
            blocks: BTreeMap::new(),
            free: BTreeMap::new(),
            by_len: BTreeSet::new(),
        }
    }

    /// Bytes that all extents together may have.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Bytes that all extents together have.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Bytes of all live blocks, in whole granules.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Bytes in live blocks that the peer alone has.
    pub fn away(&self) -> u64 {
        self.away
    }

    /// A new block of at least `len` bytes, with one hold. `None` if no extent has room for it.
    pub fn allocate(&mut self, len: u64) -> Option<Place> {
        let len = rounded(len)?;
        let lowest = Place {
            extent: 0,
            offset: 0,
        };
        let &(found, place) = self.by_len.range((len, lowest)..).next()?;
        self.remove_free(place, found);
        if found > len {
            let rest = Place {
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
            leases: 0,
        };
        self.blocks.insert(place, block);
        self.used += len;
        Some(place)
    }

    /// Bytes of the extent to add so that `allocate(len)` succeeds. `None` if the limit forbids it.
    ///
    /// The first has 1 MiB, each further one as much as all before it but no more than 64 MiB,
    /// unless `len` needs more. Where the limit leaves no room for that, it takes what is left:
    /// many small ones would each cost both sides a descriptor.
    pub fn growth(&self, len: u64) -> Option<u64> {
        let least = rounded(len)?;
        let preferred = self.size.clamp(FIRST, LARGEST).max(least);
        let room = self.limit.saturating_sub(self.size);
        let size = preferred.min(room - room % GRANULE);
        (size >= least).then_some(size)
    }

    /// Takes in a new extent, of a number that is not in use and of a size that
    /// [`growth`](Self::growth) told.
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
        let room = Room {
            size: whole,
            idle_since: None,
        };
        self.extents.insert(extent, room);
        self.insert_free(Place { extent, offset: 0 }, whole);
        self.size += whole;
    }

    /// The live block that has all of `[offset, offset + len)` in it: its place and its length in
    /// whole granules. An empty range is in the block in which it begins. Any values may come.
    pub fn find(&self, extent: u32, offset: u64, len: u64) -> Option<(Place, u64)> {
        let end = offset.checked_add(len)?;
        let (&place, block) = self.blocks.range(..=Place { extent, offset }).next_back()?;
        let block_end = place.offset + block.len;
        let within = place.extent == extent && offset < block_end && end <= block_end;
        within.then_some((place, block.len))
    }

    /// One hold of ours more on a live block.
    pub fn hold(&mut self, place: Place) {
        let held = self.change(place, |block| {
            block.holds += 1;
            true
        });
        debug_assert!(held, "no live block at {place:?} to hold");
    }

    /// One hold of ours less. The block is free when it has neither holds nor leases.
    pub fn drop_hold(&mut self, place: Place) {
        let dropped = self.change(place, |block| {
            let held = block.holds > 0;
            block.holds -= u64::from(held);
            held
        });
        debug_assert!(dropped, "no hold on {place:?} to drop");
    }

    /// The peer has one lease more of a live block.
    pub fn lend(&mut self, place: Place) {
        let lent = self.change(place, |block| {
            block.leases += 1;
            true
        });
        debug_assert!(lent, "no live block at {place:?} to lend");
    }

    /// The peer gives one lease back. False if it has none of this block: it lies.
    pub fn give_back(&mut self, place: Place) -> bool {
        self.change(place, |block| {
            let lent = block.leases > 0;
            block.leases -= u64::from(lent);
            lent
        })
    }

    /// Changes the counts of a block, which is freed if none is left. What `count` returns; false if there is none.
    fn change(&mut self, place: Place, count: impl FnOnce(&mut Block) -> bool) -> bool {
        let Some(block) = self.blocks.get_mut(&place) else {
            return false;
        };
        let before = block.away();
        let changed = count(block);
        self.away = self.away - before + block.away();
        self.free_if_unused(place);
        changed
    }

    /// Whether the peer has a lease of the block that begins here.
    pub fn is_lent(&self, place: Place) -> bool {
        self.blocks
            .get(&place)
            .is_some_and(|block| block.leases > 0)
    }

    /// Forgets the extents that are idle for `patience` nanoseconds, and tells their numbers. It
    /// takes two looks: one that sees an extent wholly free, and one so much later that sees that
    /// it is so still and that nothing was allocated in it meanwhile.
    pub fn sweep(&mut self, now: u64, patience: u64) -> Vec<u32> {
        let mut gone = Vec::new();
        for (&extent, room) in &mut self.extents {
            if self.free.get(&Place { extent, offset: 0 }) != Some(&room.size) {
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
                self.remove_free(Place { extent, offset: 0 }, room.size);
                self.size -= room.size;
            }
        }
        gone
    }

    fn free_if_unused(&mut self, place: Place) {
        let unused = |block: &Block| block.holds == 0 && block.leases == 0;
        if !self.blocks.get(&place).is_some_and(unused) {
            return;
        }
        let Some(block) = self.blocks.remove(&place) else {
            return;
        };
        self.used -= block.len;
        let (mut start, mut len) = (place, block.len);
        let before = self.free.range(..place).next_back();
        if let Some((&before, &before_len)) = before {
            if before.extent == place.extent && before.offset + before_len == place.offset {
                self.remove_free(before, before_len);
                start = before;
                len += before_len;
            }
        }
        let after = Place {
            offset: place.offset + block.len,
            ..place
        };
        if let Some(&after_len) = self.free.get(&after) {
            self.remove_free(after, after_len);
            len += after_len;
        }
        self.insert_free(start, len);
    }

    fn insert_free(&mut self, place: Place, len: u64) {
        self.free.insert(place, len);
        self.by_len.insert((len, place));
    }

    fn remove_free(&mut self, place: Place, len: u64) {
        self.free.remove(&place);
        self.by_len.remove(&(len, place));
    }
}

/// `len` in whole granules, at least one. `None` if no number can say it.
fn rounded(len: u64) -> Option<u64> {
    len.max(1).checked_next_multiple_of(GRANULE)
}

#[cfg(test)]
mod tests;
