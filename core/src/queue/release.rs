//! Ending claims and freeing chunks that nobody refers to, at once or later.

use super::layout::PUT;
use super::{Bytes, Chunk, Claim, Look, News, Queue, Room};
use crate::shared_heap::{HeapError, Members};
use crate::sync::lock;
use std::sync::atomic::Ordering::Relaxed;

impl<W: Bytes, M: Members> Queue<W, M> {
    /// Frees a chunk that was reserved and is not wanted: later, if the lease cannot be had now.
    pub fn let_fall(&self, chunk: Chunk, deadline: u64) {
        if let Err(HeapError::Busy { .. }) = self.allocator.give_up(&chunk.block, deadline) {
            lock(&self.leftovers.chunks).push(chunk);
        } else {
            self.has_freed_memory(deadline);
        }
    }

    /// Returns true, once, if writers that sleep for memory must be woken: a chunk is free that no process wanted.
    #[inline]
    pub fn must_wake_writers(&self) -> bool {
        // Relaxed, both: as in `wake_writers`.
        let must_wake = &self.leftovers.must_wake;
        must_wake.load(Relaxed) && must_wake.swap(false, Relaxed)
    }

    /// Frees the chunks that could not be freed when they were found to be unwanted. Whether all were, and there were some.
    pub(super) fn free_unwanted(&self, deadline: u64) -> bool {
        let unwanted = std::mem::take(&mut *lock(&self.leftovers.chunks));
        let found = !unwanted.is_empty();
        for chunk in unwanted {
            self.let_fall(chunk, deadline);
        }
        found && lock(&self.leftovers.chunks).is_empty()
    }

    /// A claim is to be ended by [`tidy_up`](Self::tidy_up): nobody refers to it any more. `is_over`: it was acknowledged,
    /// and its item's memory was kept.
    pub fn drop_claim(&self, claim: Claim, is_over: bool) {
        lock(&self.leftovers.claims).push((claim, is_over));
    }

    /// Whether there is anything that was not ended.
    pub fn has_leftovers(&self) -> bool {
        !lock(&self.leftovers.chunks).is_empty() || !lock(&self.leftovers.claims).is_empty()
    }

    /// Ends what was not ended so far. Busy if some of it is left.
    pub fn tidy_up(&self, deadline: u64, news: &mut News) -> Result<(), HeapError> {
        if self.free_unwanted(deadline) {
            news.room = Room::All;
            news.freed = true;
        }
        loop {
            let Some((claim, is_over)) = lock(&self.leftovers.claims).pop() else {
                return Ok(());
            };
            let ended = if is_over {
                self.let_go(&claim, deadline)
            } else {
                let ended = self.give_back(&claim, deadline);
                ended.map(Option::unwrap_or_default)
            };
            match ended {
                Ok(some) => *news = news.and(some),
                Err(error) => {
                    if matches!(error, HeapError::Busy { .. }) {
                        self.drop_claim(claim, is_over);
                    }
                    return Err(error);
                }
            }
        }
    }

    /// Gives memory back of which there is more than there need be, unless that may be needed again soon: items were put
    /// since the `last` look, and it was not both times much more. What this look has seen; None if nothing is left to do.
    pub fn settle(&self, last: Look, deadline: u64) -> Option<Look> {
        let usage = self.allocator.usage(deadline).ok()?;
        let look = Look {
            put: self.hint(PUT),
            is_low: usage.backed.saturating_sub(usage.spare) < usage.backed / 4,
        };
        if look.put == last.put || look.is_low && last.is_low {
            self.allocator.settle(deadline);
            return None;
        }
        let has_excess = self.allocator.has_excess(deadline).unwrap_or(false);
        has_excess.then_some(look)
    }
}
