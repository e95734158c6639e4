//! Why an operation on a store was not done.

use crate::shared_heap::{Corruption, Failure, Field, HeapError, corrupt};

/// Why an operation was not done. Nothing of it was done then.
#[derive(Debug)]
pub enum StoreError {
    /// Something in shared memory.
    Heap(HeapError),
    /// The container is not in the store any more.
    ContainerDeleted,
    /// There is no such key.
    KeyNotFound,
    /// There is no such index; the container has this many.
    IndexOutOfRange(u64),
    /// What is there is no number that a cell has, or the sum is none.
    NotANumber,
    /// It cannot be done within a transaction of the program.
    InTransaction,
    /// The container is of another type.
    WrongType,
    /// It is not what the caller has read, and stays.
    Unwanted,
    /// It has no room for this many entries.
    CapacityExceeded,
    /// This process has no memory for a copy.
    NoMemory,
    /// There is more to copy than was to be.
    CopyTooLarge,
    /// Containers are nested deeper than [`DEPTH`](super::tree::DEPTH).
    NestingTooDeep,
}

impl From<HeapError> for StoreError {
    fn from(error: HeapError) -> Self {
        StoreError::Heap(error)
    }
}

impl Failure for StoreError {
    fn corruption(&self) -> Option<Corruption> {
        match self {
            StoreError::Heap(error) => error.corruption(),
            _ => None,
        }
    }
}

/// The error for a cell that cannot be.
#[cold]
pub(super) fn corrupt_cell(at: u64, found: u64) -> StoreError {
    corrupt(Field::Cell, at, found).into()
}

/// The error for what a container cannot say of itself.
#[cold]
pub(super) fn corrupt_container(at: u64, found: u64) -> StoreError {
    corrupt(Field::Container, at, found).into()
}
