//! The table of watched containers with their versions.
//!
//! ```text
//!    0  high     u64   entries that were ever used; 0 if there are no watches
//!    8  entries  u64 each: a member's number, or 0; the id of a container; the number of its changes since the watch
//!                began
//! ```

use super::header;
use crate::shared_heap::access::{ReadWords, WriteWords};
use crate::store::error::{StoreError, corrupt_container};

/// The most watches.
pub const MAX_WATCHES: u64 = 1024;
/// Bytes of the table.
pub(in crate::store) const SIZE: u64 = 8 + 24 * MAX_WATCHES;

/// The table at this offset.
#[derive(Clone, Copy, Debug)]
pub(in crate::store) struct Versions(pub(in crate::store) u64);

impl Versions {
    /// Returns the number of entries that were ever used.
    #[inline]
    fn high(&self, t: &impl ReadWords) -> Result<u64, StoreError> {
        match t.get(self.0)? {
            high if high <= MAX_WATCHES => Ok(high),
            high => Err(corrupt_container(self.0, high)),
        }
    }

    /// Returns the offset of an entry.
    fn at(&self, number: u64) -> u64 {
        self.0 + 8 + 24 * number
    }

    /// Returns true if there are no watches.
    #[inline]
    pub(in crate::store) fn is_empty(&self, t: &impl ReadWords) -> Result<bool, StoreError> {
        Ok(t.get(self.0)? == 0)
    }

    /// Begins a watch of this member upon the container of this id. Returns the number of the entry; None if the table
    /// is full.
    pub(in crate::store) fn add(
        &self,
        t: &mut impl WriteWords,
        id: u64,
    ) -> Result<Option<u64>, StoreError> {
        let high = self.high(t)?;
        let mut number = 0;
        while number < high && t.get(self.at(number))? != 0 {
            number += 1;
        }
        if number == MAX_WATCHES {
            return Ok(None);
        }
        if number == high {
            t.set(self.0, high + 1)?;
        }
        let (self_id, at) = (t.self_id(), self.at(number));
        t.set(at, self_id)?;
        t.set(at + 8, id)?;
        t.set(at + 16, 0)?;
        Ok(Some(number))
    }

    /// Returns true if the container was changed since the watch of this number began. The caller has begun the watch
    /// and has not ended it.
    pub(in crate::store) fn has_changed(
        &self,
        t: &impl ReadWords,
        number: u64,
    ) -> Result<bool, StoreError> {
        Ok(t.get(self.at(number) + 16)? != 0)
    }

    /// Ends the watches for which `is_over` returns true, given the member and the number of the entry.
    pub(in crate::store) fn remove(
        &self,
        t: &mut impl WriteWords,
        is_over: impl Fn(u64, u64) -> bool,
    ) -> Result<(), StoreError> {
        let high = self.high(t)?;
        let mut left = 0;
        for number in 0..high {
            let member = t.get(self.at(number))?;
            if member != 0 && is_over(member, number) {
                t.set(self.at(number), 0)?;
            } else if member != 0 {
                left = number + 1;
            }
        }
        match left == high {
            true => Ok(()),
            false => Ok(t.set(self.0, left)?),
        }
    }

    /// Appends to `ids` the id of the container whose header lies at this offset, and those of all containers around
    /// it, up to the greatest depth of a value.
    pub(in crate::store) fn ancestor_ids(
        t: &impl ReadWords,
        at: u64,
        ids: &mut Vec<u64>,
    ) -> Result<(), StoreError> {
        let mut at = at;
        for _ in 0..super::budget::MAX_COPY_DEPTH {
            if at == 0 {
                break;
            }
            let id = t.get(at)?;
            if ids.last() != Some(&id) {
                ids.push(id);
            }
            at = header::parent_at(t, at)?;
        }
        Ok(())
    }

    /// Counts a change of the container whose header lies at this offset, and of all containers around it, up to the
    /// greatest depth of a value. Returns true if one of them is watched.
    pub(in crate::store) fn bump(
        &self,
        t: &mut impl WriteWords,
        at: u64,
    ) -> Result<bool, StoreError> {
        let (high, mut found, mut at) = (self.high(t)?, false, at);
        for _ in 0..super::budget::MAX_COPY_DEPTH {
            if at == 0 {
                break;
            }
            let id = t.get(at)?;
            for number in 0..high {
                let entry = self.at(number);
                if t.get(entry)? != 0 && t.get(entry + 8)? == id {
                    let version = t.get(entry + 16)?;
                    t.set(entry + 16, version.wrapping_add(1).max(1))?;
                    found = true;
                }
            }
            at = header::parent_at(t, at)?;
        }
        Ok(found)
    }
}
