//! The operations of a member of a queue. A `timeout` is the time, in nanoseconds, for which an operation may wait for
//! the owner lock; the operation raises `Changing` afterwards.
//!
//! Operations also raise `Left`, `Forked` and `Poisoned` if the queue cannot be used, `TooLarge` for an item that never
//! fits, and `Os` if the system refuses memory. They do not wait for items or room: the outcome says what is missing.

use super::membership::{DONE, ITEMS, ObjectQueue, QueueMembership, ROOM};
use crate::clock;
use crate::objects::deadline::{OWNER_LOCK_TIMEOUT, SHORT_OWNER_LOCK_TIMEOUT, deadline_after};
use crate::objects::error::ObjectError;
use crate::queue::{
    Chunk, Claim, ClaimEnd, ClaimOutcome, PopOutcome, PutOutcome, QueueStats, Source, WaitingItem,
    Wakeups,
};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

impl QueueMembership {
    // --- putting ---

    /// Puts encoded small items: see [`Queue::put`](crate::queue::Queue::put).
    #[inline]
    pub fn put(&self, items: &[u8], count: u64, timeout: u64) -> Result<PutOutcome, ObjectError> {
        let put = self.queue()?.put(items, count, deadline_after(timeout));
        self.finish_put(put)
    }

    /// Puts items that `fill` writes: see [`Queue::put_large`](crate::queue::Queue::put_large).
    pub fn put_large(
        &self,
        len: u64,
        count: u64,
        timeout: u64,
        fill: impl FnOnce(*mut u8, u64) -> u64,
    ) -> Result<PutOutcome, ObjectError> {
        let queue = self.queue()?;
        let put = queue.put_large(len, count, deadline_after(timeout), fill);
        self.finish_put(put)
    }

    /// Reserves a chunk to fill, which the caller links or frees. Returns None if there is no memory for it now, and
    /// requests that the members which wait for room are woken once memory is free. `len` is the number of bytes.
    pub fn reserve_chunk(&self, len: u64, timeout: u64) -> Result<Option<Chunk>, ObjectError> {
        let reserved = self
            .queue()?
            .reserve_or_request_wakeup(len, deadline_after(timeout));
        reserved.map_err(|error| self.map_shared_error(error))
    }

    /// Puts the item that fills the first `used` bytes of a chunk, and takes the chunk out of `chunk`. Leaves the chunk
    /// there, for the caller to free, unless the item is stored. After an error other than `Changing` the chunk may be
    /// gone, and its memory stays reserved until this process leaves.
    pub fn link_chunk(
        &self,
        chunk: &mut Option<Chunk>,
        used: u64,
        timeout: u64,
    ) -> Result<PutOutcome, ObjectError> {
        let put = self.queue()?.link(chunk, used, 1, deadline_after(timeout));
        self.finish_put(put)
    }

    /// Frees a chunk that is not needed, and wakes all that wait for room. If another process holds the owner lock for
    /// `timeout`, the watcher frees the chunk later. Raises an error only if the queue cannot be used.
    pub fn free_chunk(&self, chunk: Chunk, timeout: u64) -> Result<(), ObjectError> {
        self.queue()?.free_chunk(chunk, deadline_after(timeout));
        self.request_deferred();
        self.wake_all(ROOM);
        Ok(())
    }

    /// Returns true if there may be room for this many items, or if the queue is shut down: a hint that is right once
    /// this process has announced that it sleeps.
    pub fn may_put(&self, count: u64) -> bool {
        let queue = self.unchecked_queue();
        queue.is_shut_down() || !queue.is_known_full(count)
    }

    // --- popping ---

    /// Pops items: see [`Queue::pop`](crate::queue::Queue::pop).
    #[inline]
    pub fn pop(
        &self,
        source: Source,
        max_items: usize,
        out: &mut Vec<u8>,
        timeout: u64,
    ) -> Result<PopOutcome, ObjectError> {
        let queue = self.watched_queue()?;
        self.expire_claims(queue, timeout)?;
        let popped = queue.pop(source, max_items, out, deadline_after(timeout));
        let (popped, wakeups) = popped.map_err(|error| self.map_shared_error(error))?;
        self.wake_for(wakeups);
        Ok(popped)
    }

    /// Claims an item, for `lease` nanoseconds unless that is 0, after the items of expired claims have returned.
    pub fn claim(
        &self,
        source: Source,
        lease: u64,
        timeout: u64,
    ) -> Result<ClaimOutcome, ObjectError> {
        let queue = self.watched_queue()?;
        self.expire_claims(queue, timeout)?;
        let claimed = queue.claim(source, lease, deadline_after(timeout));
        let (claimed, wakeups) = claimed.map_err(|error| self.map_shared_error(error))?;
        self.wake_for(wakeups);
        Ok(claimed)
    }

    /// Returns true if there may be an item, or the queue may be shut down: a hint that is right once this process has
    /// announced that it sleeps.
    pub fn may_pop(&self) -> bool {
        let queue = self.unchecked_queue();
        !queue.is_empty()
            || queue.may_be_finished()
            || queue.expiry().is_some_and(|expiry| expiry <= clock::now())
    }

    /// Copies waiting items, which stay in the queue: see [`Queue::peek`](crate::queue::Queue::peek).
    pub fn peek(&self, max_items: usize, timeout: u64) -> Result<Vec<WaitingItem>, ObjectError> {
        let queue = self.watched_queue()?;
        self.expire_claims(queue, timeout)?;
        let found = queue.peek(max_items, deadline_after(timeout));
        found.map_err(|error| self.map_shared_error(error))
    }

    // --- claims ---

    /// Ends a claim whose item does not return to the queue. With `keeps_memory`, the memory of the item stays readable
    /// until [`drop_claim`](Self::drop_claim). Returns false if the claim had ended.
    pub fn acknowledge(
        &self,
        claim: &Claim,
        end: ClaimEnd,
        keeps_memory: bool,
        timeout: u64,
    ) -> Result<bool, ObjectError> {
        let queue = self.queue()?;
        self.finish_end(queue.acknowledge(claim, end, keeps_memory, deadline_after(timeout)))
    }

    /// Ends a claim, and returns the item to the queue. Returns false if the claim had ended.
    pub fn return_item(&self, claim: &Claim, timeout: u64) -> Result<bool, ObjectError> {
        let queue = self.queue()?;
        self.finish_end(queue.give_back(claim, deadline_after(timeout)))
    }

    /// Drops a claim, whose memory this process no longer uses. The item returns to the queue unless `is_acknowledged`
    /// is true. If another process holds the owner lock for the time of `with_lock_timeout`, the watcher drops the
    /// claim later. Raises no error: the next operation does.
    pub fn drop_claim(&self, claim: Claim, is_acknowledged: bool) {
        if let Ok(queue) = self.queue() {
            queue.defer_claim(claim, is_acknowledged);
            let _ = self.with_lock_timeout(|timeout| self.finish_deferred_within(timeout));
            self.request_deferred();
        }
    }

    /// Returns the items of expired claims to the queue, and wakes sleepers for them.
    #[inline]
    fn expire_claims(&self, queue: &ObjectQueue, timeout: u64) -> Result<(), ObjectError> {
        let expiry = queue.expiry();
        if expiry.is_some_and(|expiry| expiry <= clock::now()) {
            let mut wakeups = Wakeups::default();
            let expired = queue.expire(deadline_after(timeout), &mut wakeups);
            self.wake_for(wakeups);
            expired.map_err(|error| self.map_shared_error(error))?;
        }
        Ok(())
    }

    /// Returns the time until the next claim expires, zero if one has expired; None if no claim has a lease.
    pub fn next_expiry(&self) -> Option<Duration> {
        let expiry = self.unchecked_queue().expiry()?;
        Some(Duration::from_nanos(expiry.saturating_sub(clock::now())))
    }

    /// Makes the error `Claimed` for a queue without room for another claim, with the number of dead letters; 0 if that
    /// cannot be read. May wait for the owner lock for `OWNER_LOCK_TIMEOUT`.
    #[cold]
    pub fn too_many_claims(&self) -> ObjectError {
        let stats = self.stats(OWNER_LOCK_TIMEOUT);
        ObjectError::Claimed {
            dead: stats.map_or(0, |stats| stats.dead),
        }
    }

    // --- the end of items ---

    /// Marks `count` items that this process has popped as done. Returns false, and marks none, if it has not popped
    /// that many.
    pub fn task_done(&self, count: u64, timeout: u64) -> Result<bool, ObjectError> {
        let queue = self.queue()?;
        self.finish_end(queue.task_done(count, deadline_after(timeout)))
    }

    /// Returns true if all items that were put have been processed: acknowledged, or popped and reported by
    /// `task_done`.
    pub fn is_done(&self, timeout: u64) -> Result<bool, ObjectError> {
        let done = self.watched_queue()?.is_all_done(deadline_after(timeout));
        done.map_err(|error| self.map_shared_error(error))
    }

    /// Refuses further items, in all processes and for good, and wakes all sleepers. Waiting items can still be
    /// received, unless `immediate` is true, which discards them.
    pub fn shut_down(&self, immediate: bool, timeout: u64) -> Result<(), ObjectError> {
        let shut = self.queue()?.shut_down(immediate, deadline_after(timeout));
        // Also after an error: the queue may be shut down then, and a part of the items dropped.
        self.wake_all_sets();
        shut.map_err(|error| self.map_shared_error(error))
    }

    /// Returns true if the queue refuses further items.
    pub fn is_shut_down(&self) -> Result<bool, ObjectError> {
        Ok(self.queue()?.is_shut_down())
    }

    // --- inspection ---

    /// Returns the number of waiting items, a hint, after an attempt to return the items of expired claims. Does not
    /// wait for the owner lock.
    pub fn count_items(&self) -> Result<u64, ObjectError> {
        let queue = self.watched_queue()?;
        match self.expire_claims(queue, 0) {
            Ok(()) | Err(ObjectError::Changing { .. }) => Ok(queue.len()),
            Err(error) => Err(error),
        }
    }

    /// Returns the statistics of the queue.
    pub fn stats(&self, timeout: u64) -> Result<QueueStats, ObjectError> {
        let queue = self.watched_queue()?;
        self.expire_claims(queue, timeout)?;
        let stats = queue.stats(deadline_after(timeout));
        stats.map_err(|error| self.map_shared_error(error))
    }

    /// Returns the number of items that were lost when all members were killed; 0 from the second call on.
    pub fn take_lost_items(&self) -> u64 {
        self.lost_items.swap(0, Relaxed)
    }

    /// Returns the address of `len` bytes at offset `at`, of a claim or a chunk, which stay mapped as long as the
    /// membership exists. Raises an error for bytes outside of the queue, which poison it.
    pub fn address_of(&self, at: u64, len: u64) -> Result<*mut u8, ObjectError> {
        let found = self.queue()?.bytes(at, len);
        found.map_err(|error| self.map_shared_error(error))
    }

    /// Returns the numbers of sleepers that wait for an item, for room, and until all items are done.
    pub fn count_waiters(&self) -> [usize; 3] {
        [ITEMS, ROOM, DONE].map(|set| self.count_sleepers(set))
    }

    // --- deferred operations ---

    /// Finishes operations that a process which held the owner lock has prevented. Errors are ignored: the operations
    /// stay deferred.
    pub(super) fn finish_deferred(&self) {
        let _ = self.finish_deferred_within(SHORT_OWNER_LOCK_TIMEOUT);
    }

    /// Finishes such operations, and waits for the owner lock for at most `timeout` nanoseconds.
    fn finish_deferred_within(&self, timeout: u64) -> Result<(), ObjectError> {
        let mut wakeups = Wakeups::default();
        let finished = self
            .queue()?
            .finish_deferred(deadline_after(timeout), &mut wakeups);
        self.wake_for(wakeups);
        finished.map_err(|error| self.map_shared_error(error))
    }
}
