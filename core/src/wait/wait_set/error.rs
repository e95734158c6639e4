//! Errors of wait sets.

use std::fmt;

/// An error of a wait set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitSetError {
    /// Each slot belongs to a process that is alive.
    Full {
        /// Number of slots.
        slots: usize,
    },
    /// A slot of this process was overwritten by another process.
    Overwritten {
        /// Index of the slot.
        index: usize,
        /// Word that was found.
        found: u64,
        /// Word that was expected.
        expected: u64,
    },
}

impl fmt::Display for WaitSetError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WaitSetError::Full { slots } => {
                write!(out, "all {slots} slots of the wait set are in use")
            }
            WaitSetError::Overwritten {
                index,
                found,
                expected,
            } => write!(
                out,
                "slot {index} of the wait set holds {found:#x} instead of {expected:#x}"
            ),
        }
    }
}

impl std::error::Error for WaitSetError {}
