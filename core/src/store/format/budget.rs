//! How much one operation may look at.

use crate::store::error::{StoreError, corrupt_cell};

/// The greatest nesting of containers and tuples, the store not counted: deeper values are refused.
pub const DEPTH: usize = 256;
/// The greatest depth of a copy: all that can be put in, with the store itself and the items of the innermost tuple.
pub(in crate::store) const COPIED: usize = DEPTH + 4;

/// What one operation may look at: as much as there can be, so that a lie does not lead it around for ever.
#[derive(Clone, Copy, Debug)]
pub(in crate::store) struct Budget {
    pub(in crate::store) cells: u64,
    pub(in crate::store) depth: usize,
    /// There may be more, which is not to be looked at.
    pub(in crate::store) is_limited: bool,
    /// Of buffers it is to be said which they are, and not what they hold.
    pub(in crate::store) keeps_buffer_refs: bool,
}

impl Budget {
    /// For a memory of this many bytes.
    pub(in crate::store) fn of(size: u64) -> Self {
        Budget {
            cells: size / 8,
            depth: COPIED,
            is_limited: false,
            keeps_buffer_refs: false,
        }
    }

    /// For a copy that equals another one if nothing was changed meanwhile: what buffers hold changes in no transaction.
    pub(in crate::store) fn without_buffers(self) -> Self {
        Budget {
            keeps_buffer_refs: true,
            ..self
        }
    }

    /// For at most this many words: [`StoreError::TooMuch`] if there are more.
    pub(in crate::store) fn at_most(self, words: u64) -> Self {
        Budget {
            cells: words.min(self.cells),
            is_limited: words < self.cells,
            ..self
        }
    }

    /// Room for so many that are copied, of which there cannot be more than words.
    pub(in crate::store) fn allocate<T>(&self, count: u64) -> Result<Vec<T>, StoreError> {
        let mut room = Vec::new();
        match room.try_reserve_exact(count.min(self.cells) as usize) {
            Ok(()) => Ok(room),
            Err(_) => Err(StoreError::NoMemory),
        }
    }

    /// Room for so many bytes.
    pub(in crate::store) fn allocate_bytes(&mut self, len: u64) -> Result<Vec<u8>, StoreError> {
        self.spend(len.div_ceil(8))?;
        let mut room = Vec::new();
        match room.try_reserve_exact(len as usize) {
            Ok(()) => Ok(room),
            Err(_) => Err(StoreError::NoMemory),
        }
    }

    /// It looks at this many more words.
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

    /// It goes into what a cell leads to.
    #[inline]
    pub(in crate::store) fn descend(&mut self) -> Result<(), StoreError> {
        self.depth = self
            .depth
            .checked_sub(1)
            .ok_or(StoreError::NestingTooDeep)?;
        Ok(())
    }
}
