//! Errors of operations on a store.

use crate::shared_heap::{Corruption, Field, HeapError, TransactionError, corrupt};

/// Error of an operation on a store. A failed operation has changed nothing.
#[derive(Debug)]
pub enum StoreError {
    /// An error of the shared heap below.
    Heap(HeapError),
    /// The container is not in the store, or no longer.
    ContainerDeleted,
    /// The key is not in the dict or the set.
    KeyNotFound,
    /// The index is out of range; the container has this many items.
    IndexOutOfRange(u64),
    /// The item is no number that fits into a cell, or the sum does not fit.
    NotANumber,
    /// The operation is not possible within a transaction of the program.
    InTransaction,
    /// The container is of another type.
    WrongType,
    /// The caller does not want this item, which stays.
    Unwanted,
    /// The container or the table has no space for another entry.
    CapacityExceeded,
    /// This process has no memory for a copy.
    NoMemory,
    /// The copy would be larger than the caller's limit.
    CopyTooLarge,
    /// Containers are nested deeper than [`DEPTH`](super::format::budget::DEPTH).
    NestingTooDeep,
}

impl From<HeapError> for StoreError {
    fn from(error: HeapError) -> Self {
        StoreError::Heap(error)
    }
}

impl TransactionError for StoreError {
    fn corruption(&self) -> Option<Corruption> {
        match self {
            StoreError::Heap(error) => error.corruption(),
            _ => None,
        }
    }
}

/// Returns the error for a corrupt cell.
#[cold]
pub(super) fn corrupt_cell(at: u64, found: u64) -> StoreError {
    corrupt(Field::Cell, at, found).into()
}

/// Returns the error for a corrupt header or payload of a container.
#[cold]
pub(super) fn corrupt_container(at: u64, found: u64) -> StoreError {
    corrupt(Field::Container, at, found).into()
}
