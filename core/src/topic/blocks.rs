//! The allocator of pages for large records, which is private to a publisher and touches no shared memory.

use crate::memory::arena::GRANULE;
use std::collections::BTreeMap;

/// Size of a page, in bytes: a block is a run of whole pages.
pub const PAGE: u64 = GRANULE;

/// A run of allocated pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRun {
    /// Offset of the run from the first block, in bytes.
    pub at: u64,
    /// Length of the run, in bytes.
    pub len: u64,
}

/// A reserved block, which the publisher fills and then publishes or frees.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct Block {
    /// Offset of the block from the beginning of the log, in bytes.
    pub at: u64,
    /// Length of the block, in bytes: at least the requested length.
    pub len: u64,
    pub(super) run: PageRun,
}

/// An allocator of page runs. It takes the lowest free run that is large enough, so that pages with memory are used
/// again before others get memory.
#[derive(Debug)]
pub struct BlockAllocator {
    size: u64,
    /// Length of each free run, by its offset; no two free runs touch.
    free: BTreeMap<u64, u64>,
    taken: u64,
    /// All pages below this offset have memory.
    backed: u64,
}

impl BlockAllocator {
    /// Create an allocator of `size` bytes, a multiple of [`PAGE`], all free and without memory.
    pub fn new(size: u64) -> Self {
        let free = if size == 0 { None } else { Some((0, size)) };
        BlockAllocator {
            size,
            free: free.into_iter().collect(),
            taken: 0,
            backed: 0,
        }
    }

    /// Return the number of bytes that the allocator manages.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Return the number of allocated bytes.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Return the number of bytes that have memory.
    pub fn backed(&self) -> u64 {
        self.backed
    }

    /// Allocate the lowest run of whole pages, at least one, for `len` bytes. Return None if no free run is long
    /// enough. The run may have no memory: see [`unbacked_part`](Self::unbacked_part). The caller frees it once.
    pub fn allocate(&mut self, len: u64) -> Option<PageRun> {
        let len = len.max(1).checked_next_multiple_of(PAGE)?;
        let (&at, &found) = self.free.iter().find(|&(_, &found)| found >= len)?;
        self.free.remove(&at);
        if found > len {
            self.free.insert(at + len, found - len);
        }
        self.taken += len;
        Some(PageRun { at, len })
    }

    /// Return the part of an allocated run, up to its end, that has no memory; None if all of it has. The caller
    /// allocates memory for the part and then calls [`mark_backed`](Self::mark_backed).
    pub fn unbacked_part(&self, run: PageRun) -> Option<PageRun> {
        // The lowest free run is taken, so each run begins at or below the end of those with memory.
        debug_assert!(run.at <= self.backed);
        let end = run.at + run.len;
        (self.backed < end).then(|| PageRun {
            at: self.backed,
            len: end - self.backed,
        })
    }

    /// Record that all pages up to the end of this run have memory.
    pub fn mark_backed(&mut self, run: PageRun) {
        self.backed = self.backed.max(run.at + run.len);
    }

    /// Free a run that [`allocate`](Self::allocate) returned, once, and merge it with its neighbours. Its memory stays.
    pub fn free(&mut self, run: PageRun) {
        self.taken -= run.len;
        let (mut at, mut len) = (run.at, run.len);
        if let Some((&before, &size)) = self.free.range(..at).next_back() {
            debug_assert!(before + size <= at, "a run is freed twice");
            if before + size == at {
                self.free.remove(&before);
                (at, len) = (before, len + size);
            }
        }
        if let Some(after) = self.free.remove(&(at + len)) {
            len += after;
        }
        self.free.insert(at, len);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::testing::TestRng;

    #[test]
    fn runs_do_not_overlap_and_free_runs_are_merged() {
        const PAGES: u64 = 64;
        let mut rng = TestRng(7);
        let mut blocks = BlockAllocator::new(PAGES * PAGE);
        let mut held: Vec<PageRun> = Vec::new();
        for _ in 0..20_000 {
            if rng.below(2) == 0 {
                let len = rng.between(1, 9 * PAGE);
                let Some(run) = blocks.allocate(len) else {
                    continue;
                };
                assert!(run.len >= len && run.at + run.len <= PAGES * PAGE);
                assert!(
                    held.iter()
                        .all(|each| each.at + each.len <= run.at || run.at + run.len <= each.at)
                );
                if let Some(bare) = blocks.unbacked_part(run) {
                    assert!(bare.at >= run.at && bare.at + bare.len == run.at + run.len);
                    blocks.mark_backed(bare);
                }
                assert_eq!(blocks.unbacked_part(run), None);
                held.push(run);
            } else if !held.is_empty() {
                let index = rng.below(held.len() as u64) as usize;
                blocks.free(held.swap_remove(index));
            }
            let sum: u64 = held.iter().map(|each| each.len).sum();
            assert_eq!(blocks.taken(), sum);
        }
        held.drain(..).for_each(|run| blocks.free(run));
        assert_eq!(blocks.allocate(PAGES * PAGE).unwrap().at, 0);
        assert!(blocks.allocate(1).is_none());
        assert!(BlockAllocator::new(0).allocate(1).is_none());
    }
}
