//! Ending claims and freeing chunks that nobody refers to, at once or later.

use super::layout::PUT;
use super::{ByteMemory, Chunk, Claim, Queue, TrimState, Wakeups, WritersToWake};
use crate::shared_heap::{HeapError, Members};
use crate::sync::lock;
use std::sync::atomic::Ordering::Relaxed;

impl<W: ByteMemory, M: Members> Queue<W, M> {
    /// Frees a chunk that was reserved and is not wanted: later, if the lease cannot be had now.
    pub fn free_chunk(&self, chunk: Chunk, deadline: u64) {
        if let Err(HeapError::Busy { .. }) = self.allocator.release(&chunk.block, deadline) {
            lock(&self.deferred.chunks).push(chunk);
        } else {
            self.note_freed_memory(deadline);
        }
    }

    /// Returns true, once, if writers that sleep for memory must be woken: a chunk is free that no process wanted.
    #[inline]
    pub fn must_wake_writers(&self) -> bool {
        // Relaxed, both: as in `wake_writers`.
        let must_wake = &self.deferred.must_wake;
        must_wake.load(Relaxed) && must_wake.swap(false, Relaxed)
    }

    /// Frees the chunks that could not be freed when they were found to be unwanted. Whether all were, and there were some.
    pub(super) fn free_deferred_chunks(&self, deadline: u64) -> bool {
        let unwanted = std::mem::take(&mut *lock(&self.deferred.chunks));
        let found = !unwanted.is_empty();
        for chunk in unwanted {
            self.free_chunk(chunk, deadline);
        }
        found && lock(&self.deferred.chunks).is_empty()
    }

    /// A claim is to be ended by [`finish_deferred`](Self::finish_deferred): nobody refers to it any more. `is_finished`: it was acknowledged,
    /// and its item's memory was kept.
    pub fn defer_claim(&self, claim: Claim, is_finished: bool) {
        lock(&self.deferred.claims).push((claim, is_finished));
    }

    /// Whether there is anything that was not ended.
    pub fn has_deferred(&self) -> bool {
        !lock(&self.deferred.chunks).is_empty() || !lock(&self.deferred.claims).is_empty()
    }

    /// Ends what was not ended so far. Busy if some of it is left.
    pub fn finish_deferred(&self, deadline: u64, news: &mut Wakeups) -> Result<(), HeapError> {
        if self.free_deferred_chunks(deadline) {
            news.room = WritersToWake::All;
            news.freed = true;
        }
        loop {
            let Some((claim, is_finished)) = lock(&self.deferred.claims).pop() else {
                return Ok(());
            };
            let ended = if is_finished {
                self.release_memory(&claim, deadline)
            } else {
                let ended = self.give_back(&claim, deadline);
                ended.map(Option::unwrap_or_default)
            };
            match ended {
                Ok(some) => *news = news.and(some),
                Err(error) => {
                    if matches!(error, HeapError::Busy { .. }) {
                        self.defer_claim(claim, is_finished);
                    }
                    return Err(error);
                }
            }
        }
    }

    /// Gives memory back of which there is more than there need be, unless that may be needed again soon: items were put
    /// since the `last` look, and it was not both times much more. What this look has seen; None if nothing is left to do.
    pub fn trim(&self, last: TrimState, deadline: u64) -> Option<TrimState> {
        let usage = self.allocator.usage(deadline).ok()?;
        let look = TrimState {
            put: self.hint(PUT),
            is_low: usage.backed.saturating_sub(usage.spare) < usage.backed / 4,
        };
        if look.put == last.put || look.is_low && last.is_low {
            self.allocator.shrink_excess(deadline);
            return None;
        }
        let has_excess = self.allocator.has_excess(deadline).unwrap_or(false);
        has_excess.then_some(look)
    }
}
