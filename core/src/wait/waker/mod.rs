//! What wakes a sleeper: a bell, which is a socket, for an event loop; a named semaphore for a blocked thread.
//!
//! Both are wake-ups and never locks. Nothing is lost when a holder dies, because nobody holds one.

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

/// The semaphores of a connection of which a side sleeps in threads, as one side has them.
pub struct Semaphores {
    /// Wakes a thread of ours.
    pub ours: Semaphore,
    /// Wakes a thread of theirs.
    pub theirs: Semaphore,
}

/// What wakes either side of a connection, as one side has it.
pub struct Wakers {
    /// Wakes an event loop: theirs if we ring it, ours if they do.
    pub loop_waker: LoopWaker,
    /// None if both sides sleep in loops.
    pub semaphores: Option<Semaphores>,
}

impl Wakers {
    /// Wakes a thread of ours, or the next that goes to sleep.
    pub fn interrupt(&self) {
        if let Some(semaphores) = &self.semaphores {
            semaphores.ours.wake();
        }
    }

    /// Lets a thread of ours sleep until it is woken, or `limit` has passed; not at all without semaphores.
    pub fn sleep(&self, limit: Duration) {
        if let Some(semaphores) = &self.semaphores {
            semaphores.ours.wait(limit);
        }
    }

    /// Whether the peer has cut off a semaphore: a thread of either side sleeps on.
    pub fn is_cut_off(&self) -> bool {
        let semaphores = self.semaphores.as_ref();
        semaphores.is_some_and(|both| both.ours.is_cut_off() || both.theirs.is_cut_off())
    }

    /// Wakes the peer, in the way that the flag named. A value that no side of ours stores wakes nobody.
    pub fn wake(&self, how: u32) {
        match how {
            flags::ON_SOCKET => {
                crash::point!(WakeClaimed);
                self.loop_waker.wake();
                crash::point!(BellRung);
            }
            flags::ON_SEMAPHORE => {
                crash::point!(WakeClaimed);
                if let Some(semaphores) = &self.semaphores {
                    semaphores.theirs.wake();
                }
                crash::point!(BellRung);
            }
            _ => {}
        }
    }
}
