//! Acquiring the lock of a seqlock, and releasing it.

use super::{AT_POISON, PAUSED, SeqLock};
use crate::shared_heap::{Corruption, Field, HeapError, Members, Words, owner_lock};
use crate::sync::{Ordering, this_thread};
use std::sync::atomic::AtomicUsize as PrivateUsize;
use std::sync::atomic::Ordering::{Release, SeqCst};

impl<W: Words, M: Members> SeqLock<W, M> {
    /// Acquires the lock until the drop of the result, or returns [`HeapError::Busy`] if `deadline` passes; see
    /// [`owner_lock::NEVER`]. Fails as [`check`](Self::check) does, with [`HeapError::ReadOnly`] in a read-only
    /// process, and with [`HeapError::Detached`] or [`HeapError::Replaced`] while another thread closes or replaces the
    /// memory. The log of a dead holder is left to the caller.
    #[inline]
    pub(in crate::shared_heap) fn acquire(
        &self,
        deadline: u64,
    ) -> Result<SeqLockGuard<'_, W, M>, HeapError> {
        self.check()?;
        if self.is_read_only() {
            return Err(HeapError::ReadOnly);
        }
        let active = ActiveThread::new(&self.active_threads);
        // SeqCst: see `close`.
        let closed = self.closed.load(SeqCst);
        if closed != 0 && closed != this_thread() {
            return Err(match closed {
                PAUSED => HeapError::Replaced { fenced: 0 },
                _ => HeapError::Detached,
            });
        }
        // Relaxed: as in `check`.
        let is_poisoned = || self.word(AT_POISON).load(Ordering::Relaxed) != 0;
        let changes = || self.sequence() / 2;
        let taken =
            owner_lock::acquire(self.word(0), &self.members, deadline, is_poisoned, changes);
        let taken_over = match taken {
            Ok(taken_over) => taken_over,
            Err(error) => return self.check().and(Err(error)),
        };
        let held = SeqLockGuard {
            seqlock: self,
            taken_over,
            _active: active,
        };
        if !self.is_member() {
            return Err(HeapError::Detached); // The process has left meanwhile: others take the lock over.
        }
        // SeqCst: after the exchange of the lock. A member that makes a copy marks this memory, then reads the lock:
        // either it sees that this member holds the lock, or this member sees the mark and changes nothing.
        if self.word(AT_POISON).load(Ordering::SeqCst) != 0 {
            return Err(self.poison_error());
        }
        Ok(held)
    }

    /// Releases a lock whose guard was leaked, as the drop of the guard does: not in a forked child, nor after this
    /// process has left.
    #[inline]
    pub(in crate::shared_heap) fn release_leaked(&self) {
        drop(SeqLockGuard {
            seqlock: self,
            taken_over: false,
            _active: ActiveThread(&self.active_threads),
        });
    }
}

/// A thread that holds the lock or is about to take it.
struct ActiveThread<'a>(&'a PrivateUsize);

impl<'a> ActiveThread<'a> {
    /// Counts a thread, until the drop.
    #[inline]
    fn new(count: &'a PrivateUsize) -> Self {
        // SeqCst: see `SeqLock::close`.
        count.fetch_add(1, SeqCst);
        ActiveThread(count)
    }
}

impl Drop for ActiveThread<'_> {
    /// Counts the thread no longer.
    #[inline]
    fn drop(&mut self) {
        // Release: the work under the lock is before the decrement that `close` reads.
        self.0.fetch_sub(1, Release);
    }
}

/// The lock, until it is dropped.
pub(in crate::shared_heap) struct SeqLockGuard<'a, W: Words, M: Members> {
    pub(in crate::shared_heap) seqlock: &'a SeqLock<W, M>,
    /// True if the last holder has died.
    pub(in crate::shared_heap) taken_over: bool,
    /// Dropped after the lock is released.
    _active: ActiveThread<'a>,
}

impl<W: Words, M: Members> SeqLockGuard<'_, W, M> {
    /// Keeps the lock until [`SeqLock::release_leaked`] releases it.
    #[inline]
    pub(in crate::shared_heap) fn leak(self) {
        std::mem::forget(self);
    }
}

impl<W: Words, M: Members> Drop for SeqLockGuard<'_, W, M> {
    /// Releases the lock, and poisons the memory if another process has overwritten it. Does nothing in a forked child
    /// or a process whose member number is 0.
    #[inline]
    fn drop(&mut self) {
        // A process that has left has lost the lock: others take it over as that of a dead member.
        if !self.seqlock.is_member() {
            return;
        }
        if let Err(found) = owner_lock::release(self.seqlock.word(0), &self.seqlock.members) {
            let at = self.seqlock.start;
            self.seqlock.poison(Corruption {
                field: Field::OwnerLock,
                at,
                found,
            });
        }
    }
}
