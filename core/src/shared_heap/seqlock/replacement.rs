//! Leaving a seqlock, and replacing its memory by a copy.

use super::{AT_POISON, PAUSED, SeqLock};
use crate::shared_heap::{Corruption, Field, HeapError, Members, Words};
use crate::sync::{Ordering, fence, this_thread};
use std::sync::atomic::Ordering::SeqCst;

impl<W: Words, M: Members> SeqLock<W, M> {
    /// Refuses the lock to all other threads of this process, which is about to leave, and waits until none of them
    /// holds it or `deadline` passes: then some may still hold it, without an error. The calling thread holds no lock.
    pub fn close(&self, deadline: u64) {
        // SeqCst: in one order with `acquire`, so that either that thread sees this store, or this thread sees it as
        // active.
        self.closed.store(this_thread(), SeqCst);
        while self.active_threads.load(SeqCst) > 0 && crate::clock::now() < deadline {
            std::thread::sleep(std::time::Duration::from_micros(50));
        }
    }

    /// Runs `act`, which replaces the memory, while no thread of this process changes it. Returns its result; None,
    /// without running it, if threads still hold the lock at `deadline`, or if another thread has closed the seqlock.
    /// Operations that begin meanwhile fail with [`HeapError::Replaced`]. The caller lets no thread call `close`
    /// meanwhile.
    pub fn with_paused<R>(&self, deadline: u64, act: impl FnOnce() -> R) -> Option<R> {
        // SeqCst: as in `close`. Relaxed: another thread has closed it.
        let begun =
            self.closed
                .compare_exchange(0, PAUSED, SeqCst, std::sync::atomic::Ordering::Relaxed);
        begun.ok()?;
        let is_idle = loop {
            if self.active_threads.load(SeqCst) == 0 {
                break true;
            }
            if crate::clock::now() >= deadline {
                break false;
            }
            std::thread::sleep(std::time::Duration::from_micros(50));
        };
        let done = is_idle.then(act);
        // SeqCst: a thread that enters from now on finds the new memory.
        self.closed.store(0, SeqCst);
        done
    }

    /// Marks this memory as about to be replaced by a copy, without the member that holds the lock.
    pub fn mark_replaced(&self, fenced: u64) {
        let corruption = Corruption {
            field: Field::Replaced,
            at: fenced,
            found: 0,
        };
        self.poison_words().record(corruption);
        // SeqCst: the mark is stored before the lock is read. See `check_fenced` and `acquire`.
        fence(Ordering::SeqCst);
    }

    /// Removes the mark of [`mark_replaced`](Self::mark_replaced), because no copy was made.
    pub fn clear_replaced(&self) {
        self.word(AT_POISON).store(0, Ordering::SeqCst);
    }

    /// Returns the member that is fenced off if a copy replaces this memory; None if the memory is not marked as
    /// replaced.
    pub fn fenced(&self) -> Option<u64> {
        match self.check_poison() {
            Err(HeapError::Replaced { fenced }) => Some(fenced),
            _ => None,
        }
    }
}
