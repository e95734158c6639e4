//! Limits on the work of one operation.

use crate::store::error::{StoreError, corrupt_cell};

/// The greatest nesting of containers and tuples, without the store itself. Deeper values are refused.
pub const DEPTH: usize = 256;
/// The greatest depth of a copy: all that can be inserted, with the store itself and the items of the innermost tuple.
pub(in crate::store) const MAX_COPY_DEPTH: usize = DEPTH + 4;

/// The words and the depth that one operation may still read: as much as fits into the memory, so that corrupt values
/// never make it run forever.
#[derive(Clone, Copy, Debug)]
pub(in crate::store) struct Budget {
    pub(in crate::store) cells: u64,
    pub(in crate::store) depth: usize,
    /// True if the limit is lower than the size of the memory.
    pub(in crate::store) is_limited: bool,
    /// True if a copy has references to buffers in place of their bytes.
    pub(in crate::store) keeps_buffer_refs: bool,
}

impl Budget {
    /// Returns the budget for a memory of this many bytes.
    pub(in crate::store) fn of(size: u64) -> Self {
        Budget {
            cells: size / 8,
            depth: MAX_COPY_DEPTH,
            is_limited: false,
            keeps_buffer_refs: false,
        }
    }

    /// Returns the budget for a copy with references to buffers. Such copies are equal if nothing changed between them,
    /// because no transaction changes the bytes of a buffer.
    pub(in crate::store) fn without_buffers(self) -> Self {
        Budget {
            keeps_buffer_refs: true,
            ..self
        }
    }

    /// Limits the copy to this many words: [`StoreError::CopyTooLarge`] beyond.
    pub(in crate::store) fn at_most(self, words: u64) -> Self {
        Budget {
            cells: words.min(self.cells),
            is_limited: words < self.cells,
            ..self
        }
    }

    /// Allocates an empty vector for this many values, or for as many as the memory has words. Returns
    /// [`StoreError::NoMemory`] if this process has none. Spends nothing.
    pub(in crate::store) fn allocate<T>(&self, count: u64) -> Result<Vec<T>, StoreError> {
        let mut room = Vec::new();
        match room.try_reserve_exact(count.min(self.cells) as usize) {
            Ok(()) => Ok(room),
            Err(_) => Err(StoreError::NoMemory),
        }
    }

    /// Allocates an empty vector for this many bytes, and spends their words. Returns [`StoreError::NoMemory`], or the
    /// errors of `spend`.
    pub(in crate::store) fn allocate_bytes(&mut self, len: u64) -> Result<Vec<u8>, StoreError> {
        self.spend(len.div_ceil(8))?;
        let mut room = Vec::new();
        match room.try_reserve_exact(len as usize) {
            Ok(()) => Ok(room),
            Err(_) => Err(StoreError::NoMemory),
        }
    }

    /// Spends this many words. If too few are left, returns [`StoreError::CopyTooLarge`] for a limited copy, or else
    /// the error for a corrupt cell.
    #[inline]
    pub(in crate::store) fn spend(&mut self, words: u64) -> Result<(), StoreError> {
        match self.cells.checked_sub(words) {
            Some(cells) => {
                self.cells = cells;
                Ok(())
            }
            None if self.is_limited => Err(StoreError::CopyTooLarge),
            None => Err(corrupt_cell(0, words)),
        }
    }

    /// Enters one more level of nesting, or returns [`StoreError::NestingTooDeep`]. The caller adds the level again
    /// when it leaves.
    #[inline]
    pub(in crate::store) fn descend(&mut self) -> Result<(), StoreError> {
        self.depth = self
            .depth
            .checked_sub(1)
            .ok_or(StoreError::NestingTooDeep)?;
        Ok(())
    }
}
