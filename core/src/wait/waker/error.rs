//! Why a semaphore cannot be used.

use std::fmt;
use std::io;

/// Bytes of glibc's `sem_t` on a machine of 64 bits: the word below, whether the semaphore is private, and padding.
pub(super) const SEMAPHORE_SIZE: u64 = 32;

/// Why a semaphore cannot be used.
#[derive(Debug)]
pub enum SemaphoreError {
    /// The operating system refused.
    Os(io::Error),
    /// Its file is no regular file.
    Kind,
    /// Its file belongs to another user.
    Owner {
        /// Whom it belongs to.
        found: u32,
        /// Whom it should belong to.
        expected: u32,
    },
    /// Its file is too short.
    Size {
        /// What it has, in bytes.
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
