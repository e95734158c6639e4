//! Releases that are deferred because a stopped process has the owner lock.

use super::chunk::Chunk;
use super::claim::Claim;
use crate::sync::lock;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Chunks to free and claims to end.
#[derive(Default)]
pub(super) struct Deferred {
    pub(super) chunks: Mutex<Vec<Chunk>>,
    /// Claims, each with true if it was acknowledged.
    pub(super) claims: Mutex<Vec<(Claim, bool)>>,
    /// True if memory was freed for waiting writers and none was woken.
    pub(super) must_wake: AtomicBool,
}

impl Deferred {
    /// Forget all deferred chunks and claims, without ending them, because this member returns all that it holds.
    pub(super) fn clear(&self) {
        lock(&self.chunks).clear();
        lock(&self.claims).clear();
    }

    /// Record that the writers that wait for memory must be woken, by the next caller of `must_wake_writers`.
    pub(super) fn request_wakeup(&self) {
        // Relaxed: the same thread reads it, or a thread that synchronizes through the owner lock.
        self.must_wake.store(true, Relaxed);
    }
}
