//! Traits to read and change words, which both kinds of transactions implement.
//!
//! An offset at which the memory has no word, or whose word transactions must not change, is an error of corruption.

use super::corruption::{Corruption, Field};
use super::error::HeapError;
use super::words::Words;
use crate::sync::Ordering;

/// Words that can be read.
pub trait ReadWords {
    /// Returns the word at this offset, also one that the same transaction has changed. Its value is untrusted.
    fn get(&self, at: u64) -> Result<u64, HeapError>;
    /// Appends `len` bytes from `at` on, a multiple of 8, to `out`, as they are in the memory: uncommitted changes of
    /// words are not among them. No transaction changes these bytes while they are reachable.
    fn copy(&self, at: u64, len: u64, out: &mut Vec<u8>) -> Result<(), HeapError>;
}

/// Words that can be changed.
pub trait WriteWords: ReadWords {
    /// Changes the word at this offset. A rollback restores it. Fails with [`HeapError::TransactionTooLarge`] if an
    /// undo log is full; a redo log fails only at the commit.
    fn set(&mut self, at: u64, value: u64) -> Result<(), HeapError>;
    /// Stores a word of memory that stays free until this transaction ends, so its old value is not logged, and a
    /// rollback does not restore it.
    fn init(&mut self, at: u64, value: u64) -> Result<(), HeapError>;
    /// Returns the number of this member.
    fn self_id(&self) -> u64;
}

/// A view of words that other members may be changing.
pub struct OptimisticView<'a, W>(&'a W);

impl<'a, W> OptimisticView<'a, W> {
    /// Creates a view of this memory.
    pub(super) fn new(words: &'a W) -> Self {
        OptimisticView(words)
    }
}

impl<W: Words> ReadWords for OptimisticView<'_, W> {
    #[inline]
    fn get(&self, at: u64) -> Result<u64, HeapError> {
        match self.0.word(at) {
            // Relaxed: the sequence orders it.
            Some(word) => Ok(word.load(Ordering::Relaxed)),
            None => Err(invalid_offset(at)),
        }
    }

    #[inline]
    fn copy(&self, at: u64, len: u64, out: &mut Vec<u8>) -> Result<(), HeapError> {
        copy_words(self.0, at, len, out)
    }
}

/// Copies bytes of the memory for [`ReadWords::copy`].
#[inline]
pub(super) fn copy_words(
    words: &impl Words,
    at: u64,
    len: u64,
    out: &mut Vec<u8>,
) -> Result<(), HeapError> {
    match words.copy_out(at, len, out) {
        true => Ok(()),
        false => Err(invalid_offset(at)),
    }
}

/// Returns the error for an offset at which the memory has no word.
#[cold]
pub(super) fn invalid_offset(at: u64) -> HeapError {
    let corruption = Corruption {
        field: Field::Offset,
        at,
        found: at,
    };
    corruption.into()
}
