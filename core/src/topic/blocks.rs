//! Which pages of a log's blocks are taken: a publisher's private books. They touch no memory.

use crate::memory::arena::GRANULE;
use std::collections::BTreeMap;

/// A block is a run of whole pages.
pub const PAGE: u64 = GRANULE;

/// Pages that are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRun {
    /// Where they begin, in bytes from the first block.
    pub at: u64,
    /// Their bytes.
    pub len: u64,
}

/// A block to be filled. It is to be published or given up.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct Block {
    /// Where it begins, in bytes from the beginning of the log.
    pub at: u64,
    /// Its bytes: at least those that were asked for.
    pub len: u64,
    pub(super) run: PageRun,
}

/// The free runs of a range of pages. The lowest that is large enough is taken, so that memory that was set aside is
/// used again before more is.
#[derive(Debug)]
pub struct BlockAllocator {
    size: u64,
    /// The length of each free run; none touches the next.
    free: BTreeMap<u64, u64>,
    taken: u64,
    /// All below this has had memory set aside.
    backed: u64,
}

impl BlockAllocator {
    /// This many bytes, all free.
    pub fn new(size: u64) -> Self {
        let free = if size == 0 { None } else { Some((0, size)) };
        BlockAllocator {
            size,
            free: free.into_iter().collect(),
            taken: 0,
            backed: 0,
        }
    }

    /// Bytes of all.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Bytes that are taken.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Bytes that have memory.
    pub fn backed(&self) -> u64 {
        self.backed
    }

    /// Takes a run for `len` bytes, at least one page; None if no free one is so long.
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

    /// The part of a run that has no memory, if there is one. It has when [`has_memory`](Self::has_memory) says so.
    pub fn unbacked_part(&self, run: PageRun) -> Option<PageRun> {
        // The lowest free run is taken, and each begins where one that was taken has ended.
        debug_assert!(run.at <= self.backed);
        let end = run.at + run.len;
        (self.backed < end).then(|| PageRun {
            at: self.backed,
            len: end - self.backed,
        })
    }

    /// Memory was set aside for this part.
    pub fn mark_backed(&mut self, run: PageRun) {
        self.backed = self.backed.max(run.at + run.len);
    }

    /// Frees a run.
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
    use crate::testing::Dice;

    #[test]
    fn runs_do_not_overlap_and_what_is_free_again_is_one() {
        const PAGES: u64 = 64;
        let mut dice = Dice(7);
        let mut blocks = BlockAllocator::new(PAGES * PAGE);
        let mut held: Vec<PageRun> = Vec::new();
        for _ in 0..20_000 {
            if dice.below(2) == 0 {
                let len = dice.between(1, 9 * PAGE);
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
                let index = dice.below(held.len() as u64) as usize;
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
