//! Ending unused claims and freeing unused chunks, at once or later.

use super::layout::PUT;
use super::{ByteMemory, Chunk, Claim, Queue, TrimState, Wakeups, WritersToWake};
use crate::shared_heap::{HeapError, Members};
use crate::sync::lock;
use std::sync::atomic::Ordering::Relaxed;

impl<W: ByteMemory, M: Members> Queue<W, M> {
    /// Free a reserved chunk that is not linked; if the owner lock is not available until `deadline`, defer that. Other
    /// errors are ignored: the chunk then stays reserved. The caller asks
    /// [`must_wake_writers`](Self::must_wake_writers) afterwards.
    pub fn free_chunk(&self, chunk: Chunk, deadline: u64) {
        if let Err(HeapError::Busy { .. }) = self.allocator.release(&chunk.block, deadline) {
            lock(&self.deferred.chunks).push(chunk);
        } else {
            self.note_freed_memory(deadline);
        }
    }

    /// Return true, once, if the caller must wake all writers that wait for memory, because memory was freed by another
    /// operation than a pop.
    #[inline]
    pub fn must_wake_writers(&self) -> bool {
        // Relaxed, both: as in `request_wakeup`.
        let must_wake = &self.deferred.must_wake;
        must_wake.load(Relaxed) && must_wake.swap(false, Relaxed)
    }

    /// Free the deferred chunks; those that find the owner lock taken stay deferred. Return true if there were any and
    /// none is left.
    pub(super) fn free_deferred_chunks(&self, deadline: u64) -> bool {
        let unwanted = std::mem::take(&mut *lock(&self.deferred.chunks));
        let found = !unwanted.is_empty();
        for chunk in unwanted {
            self.free_chunk(chunk, deadline);
        }
        found && lock(&self.deferred.chunks).is_empty()
    }

    /// Defer the end of a claim that no object refers to, until [`finish_deferred`](Self::finish_deferred). With
    /// `is_acknowledged` only the item's memory remains to be released.
    pub fn defer_claim(&self, claim: Claim, is_acknowledged: bool) {
        lock(&self.deferred.claims).push((claim, is_acknowledged));
    }

    /// Return true if the release of a chunk or the end of a claim is deferred by this process.
    pub fn has_deferred(&self) -> bool {
        !lock(&self.deferred.chunks).is_empty() || !lock(&self.deferred.claims).is_empty()
    }

    /// Finish the deferred releases, and add their wake-ups to `wakeups`, which the caller does even after an error.
    /// Fails with `Busy` if some claims are left deferred; chunks that are left are no error. After another error the
    /// claim in question is dropped, and further claims stay deferred.
    pub fn finish_deferred(&self, deadline: u64, wakeups: &mut Wakeups) -> Result<(), HeapError> {
        if self.free_deferred_chunks(deadline) {
            wakeups.room = WritersToWake::All;
            wakeups.freed = true;
        }
        loop {
            let Some((claim, is_acknowledged)) = lock(&self.deferred.claims).pop() else {
                return Ok(());
            };
            let ended = if is_acknowledged {
                self.release_memory(&claim, deadline)
            } else {
                let ended = self.give_back(&claim, deadline);
                ended.map(Option::unwrap_or_default)
            };
            match ended {
                Ok(some) => *wakeups = wakeups.and(some),
                Err(error) => {
                    if matches!(error, HeapError::Busy { .. }) {
                        self.defer_claim(claim, is_acknowledged);
                    }
                    return Err(error);
                }
            }
        }
    }

    /// Give surplus memory back to the system, unless it may be needed soon: items were put since the `last` call, and
    /// at least a quarter of the memory was in use at one of the two calls. Return the state for the next call; None if
    /// no further call is needed now, or the owner lock is not available in time. Errors are ignored.
    pub fn trim(&self, last: TrimState, deadline: u64) -> Option<TrimState> {
        let usage = self.allocator.usage(deadline).ok()?;
        let now = TrimState {
            put: self.hint(PUT),
            is_low: usage.backed.saturating_sub(usage.spare) < usage.backed / 4,
        };
        if now.put == last.put || now.is_low && last.is_low {
            self.allocator.shrink_excess(deadline);
            return None;
        }
        let has_excess = self.allocator.has_excess(deadline).unwrap_or(false);
        has_excess.then_some(now)
    }
}
