//! The shutdown flag of a channel: its owner stops sending and wakes its sleepers.
//!
//! ```text
//!   sleeper                      closer
//!   closed? then stay awake      closed = true
//!   sleep on our semaphore       wake our semaphore
//! ```
//!
//! A semaphore keeps a wake-up until a thread waits. So a thread that has seen the channel open is woken, even if it is
//! only about to sleep; and after the wake-up it sees that the channel is closed. No word of the segment is involved,
//! which a peer could write.

use crate::sync::{AtomicBool, Ordering};

/// The flag of a side that has closed its channel.
#[derive(Debug)]
pub struct ShutdownFlag {
    closed: AtomicBool,
}

impl ShutdownFlag {
    /// Create the flag of an open channel.
    #[allow(clippy::new_without_default)] // The name `default` would not tell that the channel is open.
    pub fn new() -> Self {
        ShutdownFlag {
            closed: AtomicBool::new(false),
        }
    }

    /// Return true if the channel is closed. A sender that sees it late sends a frame that no side takes.
    #[inline]
    pub fn is_closed(&self) -> bool {
        // Relaxed: in the closer's thread it is in order; for a sleeper the semaphore orders it.
        self.closed.load(Ordering::Relaxed)
    }

    /// Close the channel for good, and call `ring`, which wakes the thread that sleeps on our semaphore or lets the
    /// next sleep end at once. Each further call calls `ring` again.
    pub fn close(&self, ring: impl FnOnce()) {
        // Relaxed: before the wake-up in this thread, and the semaphore orders what is before the wake-up.
        self.closed.store(true, Ordering::Relaxed);
        ring();
    }

    /// Call `sleep`, unless the channel is closed.
    pub fn sleep(&self, sleep: impl FnOnce()) {
        if !self.is_closed() {
            sleep();
        }
    }
}
