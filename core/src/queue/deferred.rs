//! What this member could not end, since a process that is stopped has the lease: it is remembered, and ended later.

use super::{Bytes, Chunk, Claim, News, Queue, Room};
use crate::shared_heap::{HeapError, Members};
use crate::sync::lock;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Chunks that are not wanted, and claims that nobody refers to.
#[derive(Default)]
pub(super) struct Leftovers {
    chunks: Mutex<Vec<Chunk>>,
    /// Each, and whether its item was dealt with.
    claims: Mutex<Vec<(Claim, bool)>>,
    /// Memory is free that writers sleep for, and none was woken so far.
    must_wake: AtomicBool,
}

impl Leftovers {
    /// All that we had was given back.
    pub(super) fn clear(&self) {
        lock(&self.chunks).clear();
        lock(&self.claims).clear();
    }

    pub(super) fn wake_writers(&self) {
        // Relaxed: the same thread asks, or one that is told under a lease.
        self.must_wake.store(true, Relaxed);
    }
}

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
}
