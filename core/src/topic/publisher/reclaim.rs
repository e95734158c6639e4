//! Reclaiming records that all subscribers have read, and the blocks of large ones.

use super::{Publisher, is_pinned};
use crate::crash;
use crate::shared_heap::Words;
use crate::sync::{Ordering, fence};
use crate::topic::blocks::PageRun;
use crate::topic::log_memory::LogMemory;

impl<L: LogMemory, D: Words> Publisher<L, D> {
    /// Reclaim all records below `to`, which all known subscribers have read or may miss, unless a subscriber that must
    /// read them has joined: then only those below its head. The caller checks `kept` afterwards.
    pub(super) fn reclaim_up_to(&mut self, to: u64) {
        if to > self.floor {
            self.floor = to;
            // Relaxed: the fence orders it.
            self.log.floor().store(to, Ordering::Relaxed);
            crash::point!(FloorRaised);
        }
        // SeqCst: the floor, and what was cut off, are before the load of seat words and pins, and before anything is
        // overwritten.
        fence(Ordering::SeqCst);
        // A head that was seen before is at `to` or above, because heads do not go back. A subscriber that has joined
        // since sees the floor, or is seen here.
        let heads = self.respected_heads();
        let least = heads.iter().map(|head| head.at).min();
        let kept = least.map_or(to, |least| to.min(least));
        if kept <= self.kept {
            return;
        }
        self.kept = kept;
        self.kept_from = self.start_of(kept);
        self.release_blocks();
        crash::point!(RecordsGivenUp);
    }

    /// Free the blocks of reclaimed records; those that a subscriber has pinned are kept for
    /// [`free_unpinned`](Self::free_unpinned). The caller has a fence between the store of the floor and this call.
    pub(super) fn release_blocks(&mut self) {
        let gone = |&(seq, _): &(u64, PageRun)| seq < self.kept;
        if !self.record_blocks.front().is_some_and(gone) {
            return;
        }
        let count = self
            .record_blocks
            .iter()
            .take_while(|each| gone(each))
            .count();
        let pinned = self.directory.pinned(self.listing);
        for (seq, run) in self.record_blocks.drain(..count) {
            match is_pinned(&pinned, seq) {
                true => self.pinned_blocks.push((seq, run)),
                false => self.blocks.free(run),
            }
        }
    }

    /// Free the blocks of reclaimed records that no subscriber pins any longer. Return true if a block was freed.
    pub(super) fn free_unpinned(&mut self) -> bool {
        if self.pinned_blocks.is_empty() {
            return false;
        }
        let pinned = self.directory.pinned(self.listing);
        let before = self.pinned_blocks.len();
        let blocks = &mut self.blocks;
        self.pinned_blocks.retain(|&(seq, run)| {
            let stays = is_pinned(&pinned, seq);
            if !stays {
                blocks.free(run);
            }
            stays
        });
        self.pinned_blocks.len() < before
    }
}
