//! Why something in shared memory was not done.

use super::corruption::Corruption;
#[cfg(not(loom))]
use super::corruption::Field;
use std::io;
use thiserror::Error;

/// Why something was not done. Nothing of it was done then.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the texts say what the fields hold")]
pub enum HeapError {
    /// The deadline has come. Its holder lives, or it would have been taken over.
    #[error("member {holder:#x} holds the lease")]
    Busy { holder: u64 },
    /// This memory cannot be used any more.
    #[error("{0}")]
    Poisoned(#[from] Corruption),
    /// This process was forked from a member, and is none.
    #[error("a forked process is no member: open the name in it")]
    Detached,
    /// There is a copy, where all go on but the member that held the lease. 0: this process is on its way there.
    #[error("a copy has taken its place, while member {fenced:#x} held the lease")]
    Replaced { fenced: u64 },
    /// Another member alone changes this memory.
    #[error("this process can only read it")]
    ReadOnly,
    /// The deadline has come for one who only reads: its owner has changed it whenever it looked.
    #[error("it changes without a pause")]
    NeverStable,
    #[error("a transaction changes at most {most} words")]
    TransactionTooLarge { most: usize },
    #[error("{asked} bytes were asked for, {used} of max_memory of {limit} are in use")]
    Limit { asked: u64, used: u64, limit: u64 },
    #[error("{asked} bytes were asked for, and the system refused: {error}")]
    System { asked: u64, error: io::Error },
    #[error("there are {most} blocks already that are not finished")]
    TooManyUnfinished { most: usize },
    #[error("{offset} is not the offset of a block, or it was freed already")]
    NoBlock { offset: u64 },
    #[error("block {offset} is still being filled, or is another one by now")]
    NotUnfinished { offset: u64 },
}

/// Why an operation was not done: something in shared memory, or more.
pub trait Failure: From<HeapError> {
    /// What cannot be true, if that is why.
    fn corruption(&self) -> Option<Corruption>;
}

impl Failure for HeapError {
    fn corruption(&self) -> Option<Corruption> {
        match self {
            HeapError::Poisoned(corruption) => Some(*corruption),
            _ => None,
        }
    }
}

/// The error for a lie.
#[cfg(not(loom))]
pub(crate) fn corrupt(field: Field, at: u64, found: u64) -> HeapError {
    Corruption { field, at, found }.into()
}
