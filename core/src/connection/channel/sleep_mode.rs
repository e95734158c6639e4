//! How a side sleeps.

use crate::wait::flags;

/// How this side sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleep {
    /// In an event loop that has the bell among its readers.
    Loop,
    /// In a thread, on the semaphore.
    Thread,
}

impl Sleep {
    pub(super) fn flag(self) -> u32 {
        match self {
            Sleep::Loop => flags::ON_BELL,
            Sleep::Thread => flags::ON_SEMAPHORE,
        }
    }
}
