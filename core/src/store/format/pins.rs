//! The table of pinned buffers: a buffer that was removed from the store stays allocated while a member has pinned it.
//!
//! ```text
//!    0  high     u64   entries that were ever used
//!    8  skipped  u64   the container numbers that copies of the store have skipped
//!   16  entries  2 u64 each: a member's number, or 0; and its block, plus one if the block must be freed with its last
//!                pin
//! ```

use crate::shared_heap::access::{ReadWords, WriteWords};
use crate::store::error::{StoreError, corrupt_container};

/// The most pins, counted once for each process and buffer.
pub const MAX_PINS: u64 = 4096;
/// Bytes of the table.
pub(in crate::store) const SIZE: u64 = 16 + 16 * MAX_PINS;

/// In the place of a member: a deferred free of a store with an owner, which lasts until no reader has pinned the
/// block.
pub(in crate::store) const DEFERRED_FREE: u64 = u64::MAX;

/// The table at this offset.
#[derive(Clone, Copy, Debug)]
pub(in crate::store) struct Pins(pub(in crate::store) u64);

impl Pins {
    /// Returns the number of entries that were ever used.
    fn high(&self, t: &impl ReadWords) -> Result<u64, StoreError> {
        match t.get(self.0)? {
            high if high <= MAX_PINS => Ok(high),
            high => Err(corrupt_container(self.0, high)),
        }
    }

    /// Returns the offset of an entry.
    fn at(&self, number: u64) -> u64 {
        self.0 + 16 + 16 * number
    }

    /// Adds a pin of this member upon a block, which may have others. Returns false if the table is full.
    pub(in crate::store) fn add(
        &self,
        t: &mut impl WriteWords,
        block: u64,
    ) -> Result<bool, StoreError> {
        let self_id = t.self_id();
        self.insert(t, self_id, block)
    }

    /// Adds a deferred free of a block that was removed from the store. Returns false if the table is full.
    pub(in crate::store) fn defer_free(
        &self,
        t: &mut impl WriteWords,
        block: u64,
    ) -> Result<bool, StoreError> {
        self.insert(t, DEFERRED_FREE, block | 1)
    }

    /// Stores both words of the first free entry. Returns false if the table is full.
    fn insert(&self, t: &mut impl WriteWords, member: u64, word: u64) -> Result<bool, StoreError> {
        let high = self.high(t)?;
        let mut number = 0;
        while number < high && t.get(self.at(number))? != 0 {
            number += 1;
        }
        if number == MAX_PINS {
            return Ok(false);
        }
        if number == high {
            t.set(self.0, high + 1)?;
        }
        t.set(self.at(number), member)?;
        t.set(self.at(number) + 8, word)?;
        Ok(true)
    }

    /// Marks a block to be freed with its last pin. Returns false if it has no pin.
    pub(in crate::store) fn mark_free_on_unpin(
        &self,
        t: &mut impl WriteWords,
        block: u64,
    ) -> Result<bool, StoreError> {
        let mut found = false;
        for number in 0..self.high(t)? {
            if t.get(self.at(number))? != 0 && t.get(self.at(number) + 8)? == block {
                t.set(self.at(number) + 8, block | 1)?;
                found = true;
            }
        }
        Ok(found)
    }

    /// Removes the pins for which `is_over` returns true, given the member and the block. Returns the blocks to free
    /// now: those marked to be freed that have lost their last pin.
    pub(in crate::store) fn remove(
        &self,
        t: &mut impl WriteWords,
        is_over: impl Fn(u64, u64) -> bool,
    ) -> Result<Vec<u64>, StoreError> {
        let (mut unpinned, high) = (Vec::new(), self.high(t)?);
        for number in 0..high {
            let (member, word) = (t.get(self.at(number))?, t.get(self.at(number) + 8)?);
            if member != 0 && is_over(member, word & !1) {
                t.set(self.at(number), 0)?;
                if word & 1 != 0 {
                    unpinned.push(word & !1);
                }
            }
        }
        for number in 0..high {
            if t.get(self.at(number))? != 0 {
                let word = t.get(self.at(number) + 8)?;
                unpinned.retain(|&block| block | 1 != word);
            }
        }
        unpinned.sort_unstable();
        unpinned.dedup();
        let mut high = high;
        while high > 0 && t.get(self.at(high - 1))? == 0 {
            high -= 1;
        }
        if high != self.high(t)? {
            t.set(self.0, high)?;
        }
        Ok(unpinned)
    }
}

#[cfg(test)]
impl Pins {
    /// Returns the blocks to be freed with their last pin.
    pub(in crate::store) fn tests_free_on_unpin(
        &self,
        t: &impl ReadWords,
    ) -> std::collections::BTreeSet<u64> {
        let words = (0..self.high(t).unwrap())
            .filter(|&number| t.get(self.at(number)).unwrap() != 0)
            .map(|number| t.get(self.at(number) + 8).unwrap());
        words
            .filter(|word| word & 1 == 1)
            .map(|word| word & !1)
            .collect()
    }
}
