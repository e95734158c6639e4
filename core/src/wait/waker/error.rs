//! Errors of opening a semaphore.

use std::fmt;
use std::io;

/// Bytes of glibc's `sem_t` on a 64-bit machine: the word below, a flag for private semaphores, and padding.
pub(super) const SEMAPHORE_SIZE: u64 = 32;

/// An error of opening a semaphore.
#[derive(Debug)]
pub enum SemaphoreError {
    /// A system call failed.
    Os(io::Error),
    /// The file is not a regular file.
    Kind,
    /// The file belongs to another user.
    Owner {
        /// User that owns the file.
        found: u32,
        /// User that should own it.
        expected: u32,
    },
    /// The file is too short.
    Size {
        /// Size of the file, in bytes.
        found: u64,
    },
}

impl fmt::Display for SemaphoreError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SemaphoreError::Os(error) => write!(out, "{error}"),
            SemaphoreError::Kind => write!(out, "is no regular file"),
            SemaphoreError::Owner { found, expected } => {
                write!(out, "belongs to uid {found} instead of {expected}")
            }
            SemaphoreError::Size { found } => {
                write!(out, "has {found} bytes instead of {SEMAPHORE_SIZE}")
            }
        }
    }
}

impl std::error::Error for SemaphoreError {}

impl From<io::Error> for SemaphoreError {
    fn from(error: io::Error) -> Self {
        SemaphoreError::Os(error)
    }
}
