//! The ways in which a side sleeps.

use crate::wait::flags;

/// The way in which a side sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SleepMode {
    /// In an event loop that watches the socket of the loop waker.
    Loop,
    /// In a thread, on the semaphore.
    Thread,
}

impl SleepMode {
    /// Return the value of a wait flag for this way to sleep.
    pub(super) fn flag(self) -> u32 {
        match self {
            SleepMode::Loop => flags::ON_SOCKET,
            SleepMode::Thread => flags::ON_SEMAPHORE,
        }
    }
}
