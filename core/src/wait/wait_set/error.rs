//! Why a slot cannot be had, or used.

use std::fmt;

/// Why a slot cannot be had, or used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitSetError {
    /// Each slot belongs to a process that lives.
    Full {
        /// How many there are.
        slots: usize,
    },
    /// A slot of ours is not ours any more: somebody has written over it.
    Overwritten {
        /// Which one.
        index: usize,
        /// What it holds.
        found: u64,
        /// What we had left there.
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
