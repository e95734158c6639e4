//! The task or thread of this process that holds a lock, and how often.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// The outcome for a task or thread that acquires a lock which it already holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reentry {
    /// The owner holds the lock once more.
    Nest,
    /// An error is raised: the owner would wait for itself.
    Refuse,
    /// Another task waits in the owner's place until the owner releases the lock.
    Wait,
}

/// The owner of a lock, identified by a number that the caller chooses, and the nesting depth. Only the holder of the
/// lock changes the owner.
#[derive(Default)]
pub struct LockOwner {
    owner: AtomicU64,
    depth: AtomicU64,
}

// Relaxed, all of it: only the holder cares, and sees what it has stored.
impl LockOwner {
    /// Returns true if this task or thread holds the lock. Its number is not 0.
    #[inline]
    pub fn is_held_by(&self, owner: u64) -> bool {
        self.owner.load(Relaxed) == owner
    }

    /// Notes that this task or thread has acquired the lock, once. The caller has acquired its permit.
    #[inline]
    pub fn set(&self, owner: u64) {
        self.depth.store(1, Relaxed);
        self.owner.store(owner, Relaxed);
    }

    /// Notes that the owner, which calls this, holds the lock once more.
    pub fn nest(&self) {
        self.depth.fetch_add(1, Relaxed);
    }

    /// Notes that the owner, which calls this, holds the lock once less. Returns true if the owner no longer holds the
    /// lock; the caller then releases the permit.
    #[inline]
    pub fn unnest(&self) -> bool {
        if self.depth.fetch_sub(1, Relaxed) > 1 {
            return false;
        }
        self.owner.store(0, Relaxed);
        true
    }
}
