//! What this member could not end, since a process that is stopped has the lease: it is remembered, and ended later.

use super::chunk::Chunk;
use super::claim::Claim;
use crate::sync::lock;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Chunks that are not wanted, and claims that nobody refers to.
#[derive(Default)]
pub(super) struct Deferred {
    pub(super) chunks: Mutex<Vec<Chunk>>,
    /// Each, and whether its item was dealt with.
    pub(super) claims: Mutex<Vec<(Claim, bool)>>,
    /// Memory is free that writers sleep for, and none was woken so far.
    pub(super) must_wake: AtomicBool,
}

impl Deferred {
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
