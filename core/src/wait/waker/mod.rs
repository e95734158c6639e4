//! Wakers of the two sides of a connection: a socket for an event loop, a named semaphore for a blocked thread.
//!
//! Both are wake-ups and never locks, so the death of a process loses nothing.

mod error;
mod loop_waker;
mod semaphore;
#[cfg(test)]
mod tests;

pub use error::SemaphoreError;
pub use loop_waker::LoopWaker;
pub(super) use loop_waker::MAX_DRAINED;
pub use semaphore::{Semaphore, create_semaphore};

use crate::crash;
use crate::wait::flags;
use std::time::Duration;

/// The semaphores of a connection of which at least one side sleeps in threads.
pub struct Semaphores {
    /// Semaphore that wakes a thread of this side.
    pub ours: Semaphore,
    /// Semaphore that wakes a thread of the peer.
    pub theirs: Semaphore,
}

/// The wakers of both sides of a connection, as one side has them.
pub struct Wakers {
    /// Socket pair between the event loops of both sides.
    pub loop_waker: LoopWaker,
    /// Semaphores; None if both sides sleep in event loops.
    pub semaphores: Option<Semaphores>,
}

impl Wakers {
    /// Wake a thread of this side, or let its next sleep end at once. Does nothing without semaphores.
    pub fn interrupt(&self) {
        if let Some(semaphores) = &self.semaphores {
            semaphores.ours.wake();
        }
    }

    /// Let a thread of this side sleep until a wake-up or a signal comes or `limit` has passed; not at all without
    /// semaphores. The caller then checks again.
    pub fn sleep(&self, limit: Duration) {
        if let Some(semaphores) = &self.semaphores {
            semaphores.ours.wait(limit);
        }
    }

    /// Return true if the peer has truncated a semaphore's file: no wake-up can be sent.
    pub fn is_truncated(&self) -> bool {
        let semaphores = self.semaphores.as_ref();
        semaphores.is_some_and(|both| both.ours.is_truncated() || both.theirs.is_truncated())
    }

    /// Wake the peer in the way `how` that [`flags::take_wake_token`] returned. Does nothing for [`flags::AWAKE`] and
    /// an unknown value. Errors are ignored.
    pub fn wake(&self, how: u32) {
        match how {
            flags::ON_SOCKET => {
                crash::point!(WakeTokenTaken);
                self.loop_waker.wake();
                crash::point!(PeerWoken);
            }
            flags::ON_SEMAPHORE => {
                crash::point!(WakeTokenTaken);
                if let Some(semaphores) = &self.semaphores {
                    semaphores.theirs.wake();
                }
                crash::point!(PeerWoken);
            }
            _ => {}
        }
    }
}
