//! How a side sleeps.

use crate::wait::flags;

/// How this side sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SleepMode {
    /// In an event loop that has the bell among its readers.
    Loop,
    /// In a thread, on the semaphore.
    Thread,
}

impl SleepMode {
    pub(super) fn flag(self) -> u32 {
        match self {
            SleepMode::Loop => flags::ON_SOCKET,
            SleepMode::Thread => flags::ON_SEMAPHORE,
        }
    }
}
