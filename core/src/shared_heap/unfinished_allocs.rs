//! Who fills what: a table of blocks that a member was given and has not finished, and of runs of pages whose memory it
//! is fetching or giving back. What a dead member has there is nobody's, and is given back.
//!
//! ```text
//!   0  owner   u64   a member's number, or 0
//!   8  offset  u64   of the block or the run; of a free entry, the number of the next free one plus one
//! ```

use super::undo_log::{Change, See};
use super::{Field, HeapError, corrupt};

/// Blocks that may be unfinished at a time.
pub const MOST: usize = 4096;
/// Bytes of the table.
pub(super) const SIZE: u64 = MOST as u64 * ENTRY;
const ENTRY: u64 = 16;

// In the books, in bytes.
const AT_FREE: u64 = 32;
const AT_HIGH: u64 = 40;

/// Where the table lies.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnfinishedAllocs {
    pub(super) books: u64,
    pub(super) start: u64,
}

impl UnfinishedAllocs {
    fn at(&self, index: u64) -> u64 {
        self.start + index * ENTRY
    }

    /// A number of entries, or of one plus one.
    fn number(&self, t: &impl See, at: u64) -> Result<u64, HeapError> {
        let found = t.get(at)?;
        if found > MOST as u64 {
            return Err(corrupt(Field::UnfinishedAllocs, at, found));
        }
        Ok(found)
    }

    /// Records that this member fills what is there. The number of the entry.
    pub(super) fn add(&self, t: &mut impl Change, offset: u64) -> Result<u64, HeapError> {
        let high = self.number(t, self.books + AT_HIGH)?;
        let index = match self.number(t, self.books + AT_FREE)?.checked_sub(1) {
            Some(index) => {
                let owner = t.get(self.at(index))?;
                if index >= high || owner != 0 {
                    return Err(corrupt(Field::UnfinishedAllocs, self.at(index), owner));
                }
                let next = self.number(t, self.at(index) + 8)?;
                t.set(self.books + AT_FREE, next)?;
                index
            }
            None if high < MOST as u64 => {
                t.set(self.books + AT_HIGH, high + 1)?;
                high
            }
            None => return Err(HeapError::TooManyUnfinished { most: MOST }),
        };
        t.set(self.at(index), t.me())?;
        t.set(self.at(index) + 8, offset)?;
        Ok(index)
    }

    /// It is this member's no more. An error if it was not.
    pub(super) fn remove(
        &self,
        t: &mut impl Change,
        index: u64,
        offset: u64,
    ) -> Result<(), HeapError> {
        if index >= MOST as u64 || self.get(t, index)? != (t.me(), offset) {
            return Err(HeapError::NotUnfinished { offset });
        }
        self.drop_entry(t, index)
    }

    /// Frees an entry.
    pub(super) fn drop_entry(&self, t: &mut impl Change, index: u64) -> Result<(), HeapError> {
        let next = self.number(t, self.books + AT_FREE)?;
        t.set(self.at(index), 0)?;
        t.set(self.at(index) + 8, next)?;
        t.set(self.books + AT_FREE, index + 1)
    }

    /// What an error means that an entry has led to: there is always something where one says so.
    pub(super) fn explain(&self, index: u64, offset: u64, error: HeapError) -> HeapError {
        match error {
            HeapError::NoBlock { .. } | HeapError::NotUnfinished { .. } => {
                corrupt(Field::UnfinishedAllocs, self.at(index) + 8, offset)
            }
            other => other,
        }
    }

    /// Makes an entry of a dead member this one's.
    pub(super) fn adopt(&self, t: &mut impl Change, index: u64) -> Result<(), HeapError> {
        t.set(self.at(index), t.me())
    }

    /// The owner and the offset of an entry.
    fn get(&self, t: &impl See, index: u64) -> Result<(u64, u64), HeapError> {
        Ok((t.get(self.at(index))?, t.get(self.at(index) + 8)?))
    }

    /// The first entry of an owner who is gone, from this one on: its number and its offset.
    pub(super) fn find(
        &self,
        t: &impl See,
        from: u64,
        is_gone: impl Fn(u64) -> bool,
    ) -> Result<Option<(u64, u64)>, HeapError> {
        for index in from..self.number(t, self.books + AT_HIGH)? {
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
    /// The owner and the offset of an entry.
    pub(super) fn tests_entry(&self, t: &impl See, index: u64) -> (u64, u64) {
        self.get(t, index).unwrap()
    }

    /// How many entries are free: those of the list, and those that were never used.
    pub(super) fn tests_free(&self, t: &impl See) -> usize {
        let high = self.number(t, self.books + AT_HIGH).unwrap();
        let mut free = MOST - high as usize;
        let mut next = self.number(t, self.books + AT_FREE).unwrap();
        while let Some(index) = next.checked_sub(1) {
            assert!(index < high && free < MOST, "a circle");
            free += 1;
            next = self.number(t, self.at(index) + 8).unwrap();
        }
        free
    }
}
