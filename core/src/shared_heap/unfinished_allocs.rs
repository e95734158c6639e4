//! The table of unfinished allocations: blocks that a member has reserved and not yet committed, and runs of pages that
//! it is backing or punching. The entries of a dead member are recovered.
//!
//! ```text
//!   0  owner   u64   a member's number, or 0
//!   8  offset  u64   of the block or the run; of a free entry, the number of the next free one plus one
//! ```

use super::access::{ReadWords, WriteWords};
use super::{Field, HeapError, corrupt};

/// The most entries.
pub const MAX_UNFINISHED: usize = 4096;
/// Bytes of the table.
pub(super) const SIZE: u64 = MAX_UNFINISHED as u64 * ENTRY;
const ENTRY: u64 = 16;

// Offsets in the metadata, in bytes.
const AT_FREE: u64 = 32;
const AT_HIGH: u64 = 40;

/// The offsets of the metadata and of the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnfinishedAllocs {
    pub(super) metadata: u64,
    pub(super) start: u64,
}

impl UnfinishedAllocs {
    /// Returns the offset of an entry.
    fn at(&self, index: u64) -> u64 {
        self.start + index * ENTRY
    }

    /// Reads a number of entries, or the number of an entry plus one. Returns an error if the table has fewer entries.
    fn number(&self, t: &impl ReadWords, at: u64) -> Result<u64, HeapError> {
        let found = t.get(at)?;
        if found > MAX_UNFINISHED as u64 {
            return Err(corrupt(Field::UnfinishedAllocs, at, found));
        }
        Ok(found)
    }

    /// Adds an entry of this member for a block or a run. Returns the number of the entry; fails with
    /// [`HeapError::TooManyUnfinished`] if the table is full.
    pub(super) fn add(&self, t: &mut impl WriteWords, offset: u64) -> Result<u64, HeapError> {
        let high = self.number(t, self.metadata + AT_HIGH)?;
        let index = match self.number(t, self.metadata + AT_FREE)?.checked_sub(1) {
            Some(index) => {
                let owner = t.get(self.at(index))?;
                if index >= high || owner != 0 {
                    return Err(corrupt(Field::UnfinishedAllocs, self.at(index), owner));
                }
                let next = self.number(t, self.at(index) + 8)?;
                t.set(self.metadata + AT_FREE, next)?;
                index
            }
            None if high < MAX_UNFINISHED as u64 => {
                t.set(self.metadata + AT_HIGH, high + 1)?;
                high
            }
            None => {
                return Err(HeapError::TooManyUnfinished {
                    most: MAX_UNFINISHED,
                });
            }
        };
        t.set(self.at(index), t.self_id())?;
        t.set(self.at(index) + 8, offset)?;
        Ok(index)
    }

    /// Removes an entry of this member. Returns [`HeapError::NotUnfinished`] if the member has no such entry.
    pub(super) fn remove(
        &self,
        t: &mut impl WriteWords,
        index: u64,
        offset: u64,
    ) -> Result<(), HeapError> {
        if index >= MAX_UNFINISHED as u64 || self.get(t, index)? != (t.self_id(), offset) {
            return Err(HeapError::NotUnfinished { offset });
        }
        self.free_entry(t, index)
    }

    /// Frees an entry, regardless of its owner; the caller frees the block or the run.
    pub(super) fn free_entry(&self, t: &mut impl WriteWords, index: u64) -> Result<(), HeapError> {
        let next = self.number(t, self.metadata + AT_FREE)?;
        t.set(self.at(index), 0)?;
        t.set(self.at(index) + 8, next)?;
        t.set(self.metadata + AT_FREE, index + 1)
    }

    /// Returns the error for a corrupt entry if `error` reports that its block is missing, and else `error`.
    pub(super) fn corrupt_if_missing(
        &self,
        index: u64,
        offset: u64,
        error: HeapError,
    ) -> HeapError {
        match error {
            HeapError::NoBlock { .. } | HeapError::NotUnfinished { .. } => {
                corrupt(Field::UnfinishedAllocs, self.at(index) + 8, offset)
            }
            other => other,
        }
    }

    /// Makes this member the owner of the entry of a dead member, so that `remove` accepts it.
    pub(super) fn adopt(&self, t: &mut impl WriteWords, index: u64) -> Result<(), HeapError> {
        t.set(self.at(index), t.self_id())
    }

    /// Returns the owner and the offset of an entry.
    fn get(&self, t: &impl ReadWords, index: u64) -> Result<(u64, u64), HeapError> {
        Ok((t.get(self.at(index))?, t.get(self.at(index) + 8)?))
    }

    /// Finds the first entry, from this number on, whose owner is gone. Returns its number and the offset of its block
    /// or run; None if there is none.
    pub(super) fn find(
        &self,
        t: &impl ReadWords,
        from: u64,
        is_gone: impl Fn(u64) -> bool,
    ) -> Result<Option<(u64, u64)>, HeapError> {
        for index in from..self.number(t, self.metadata + AT_HIGH)? {
            let (owner, offset) = self.get(t, index)?;
            if owner != 0 && is_gone(owner) {
                return Ok(Some((index, offset)));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
impl UnfinishedAllocs {
    /// Returns the owner and the offset of an entry.
    pub(super) fn tests_entry(&self, t: &impl ReadWords, index: u64) -> (u64, u64) {
        self.get(t, index).unwrap()
    }

    /// Returns the number of free entries: those of the list, and those that were never used.
    pub(super) fn tests_free(&self, t: &impl ReadWords) -> usize {
        let high = self.number(t, self.metadata + AT_HIGH).unwrap();
        let mut free = MAX_UNFINISHED - high as usize;
        let mut next = self.number(t, self.metadata + AT_FREE).unwrap();
        while let Some(index) = next.checked_sub(1) {
            assert!(index < high && free < MAX_UNFINISHED, "a circle");
            free += 1;
            next = self.number(t, self.at(index) + 8).unwrap();
        }
        free
    }
}
