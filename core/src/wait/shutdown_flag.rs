//! The end of a channel, as its owner wants it: nothing more is sent, and its sleepers wake.
//!
//! ```text
//!   sleeper                     closer
//!   closed? then stay awake     closed = true
//!   sleep on our bell           ring our bell
//! ```
//!
//! A bell keeps a ring that nobody has heard. So a thread that has seen the channel open is woken by that ring,
//! whether it sleeps already or is about to; and once it has heard the ring it sees that the channel is closed.
//! Nothing in the segment is asked, where a peer could say that nobody sleeps.

use crate::sync::{AtomicBool, Ordering};

/// Whether a side has closed its channel.
#[derive(Debug)]
pub struct ShutdownFlag {
    closed: AtomicBool,
}

impl ShutdownFlag {
    /// Of an open channel.
    #[allow(clippy::new_without_default)] // It would say nothing of what it is.
    pub fn new() -> Self {
        ShutdownFlag {
            closed: AtomicBool::new(false),
        }
    }

    /// Whether it is closed. A sender asks first: one that learns it late sends a frame that nobody takes.
    #[inline]
    pub fn is_closed(&self) -> bool {
        // Relaxed: in the closer's own program it is in order; for a sleeper the bell orders it.
        self.closed.load(Ordering::Relaxed)
    }

    /// Closes it. `ring` wakes the thread that sleeps on our bell; the bell keeps it for one that is about to.
    pub fn close(&self, ring: impl FnOnce()) {
        // Relaxed: before the ring in this thread, and the bell hands on what is before a ring.
        self.closed.store(true, Ordering::Relaxed);
        ring();
    }

    /// Sleeps on our bell, by `sleep`, unless it is closed.
    pub fn sleep(&self, sleep: impl FnOnce()) {
        if !self.is_closed() {
            sleep();
        }
    }
}
