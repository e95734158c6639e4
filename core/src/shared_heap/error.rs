//! Errors of operations on shared memory.

use super::corruption::Corruption;
#[cfg(not(loom))]
use super::corruption::Field;
use std::io;
use thiserror::Error;

/// Error of an operation on shared memory. A failed operation has changed nothing.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the texts name the fields")]
pub enum HeapError {
    /// The deadline has passed. The holder is alive, since the lock of a dead one would have been taken over.
    #[error("member {holder:#x} holds the lock")]
    Busy { holder: u64 },
    /// The memory is corrupt and unusable.
    #[error("{0}")]
    Poisoned(#[from] Corruption),
    /// This process is a forked child of a member and no member itself.
    #[error("a forked child is no member: open the object again in the child")]
    Detached,
    /// A copy has taken the place of this memory, without the member that held the lock. 0: this process is moving to
    /// the copy.
    #[error("a copy has replaced the memory while member {fenced:#x} held the lock")]
    Replaced { fenced: u64 },
    /// Another member alone changes this memory.
    #[error("this process can only read the memory")]
    ReadOnly,
    /// The deadline of a read-only process has passed: the owner changed the memory during each attempt to read it.
    #[error("the owner changes the memory without a pause")]
    NeverStable,
    #[error("a transaction changes at most {most} words")]
    TransactionTooLarge { most: usize },
    #[error("cannot allocate {asked} bytes: {used} of max_memory of {limit} are used")]
    Limit { asked: u64, used: u64, limit: u64 },
    #[error("cannot allocate {asked} bytes: {error}")]
    System { asked: u64, error: io::Error },
    #[error("too many unfinished blocks: at most {most}")]
    TooManyUnfinished { most: usize },
    #[error("no block begins at offset {offset}")]
    NoBlock { offset: u64 },
    #[error("the block at offset {offset} is not reserved by this member")]
    NotUnfinished { offset: u64 },
}

/// Error of an operation within a transaction: a [`HeapError`], or a type that wraps one.
pub trait TransactionError: From<HeapError> {
    /// Returns the corrupt value if that is the cause.
    fn corruption(&self) -> Option<Corruption>;
}

impl TransactionError for HeapError {
    fn corruption(&self) -> Option<Corruption> {
        match self {
            HeapError::Poisoned(corruption) => Some(*corruption),
            _ => None,
        }
    }
}

/// Returns the error for a corrupt value. Poisons nothing: the end of the transaction does.
#[cfg(not(loom))]
pub(crate) fn corrupt(field: Field, at: u64, found: u64) -> HeapError {
    Corruption { field, at, found }.into()
}
