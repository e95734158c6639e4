//! Lists.
//!
//! ```text
//!   0  room    u64   the capacity in cells in the high half, and the number of skipped cells at the beginning in the
//!                    low one
//!   8  cells   u64 each
//! ```
//!
//! An operation that moves few cells changes them in place. One that would move many writes a new block: no other
//! member can reach it, so its cells need no log entries.

use super::cell::Cell;
use super::header::{self, Header};
use super::mutator::Mutator;
use crate::shared_heap::access::{ReadWords, WriteWords};
use crate::shared_heap::{Members, Words};
use crate::store::error::{StoreError, corrupt_container};

/// The most cells that are moved in place.
const MAX_MOVED: u64 = 64;

/// The location of the cells of a list.
#[derive(Clone, Copy, Debug)]
pub(in crate::store) struct Cells {
    header: Header,
    block: u64,
    room: u64,
    start: u64,
}

impl Cells {
    /// Reads the location of the cells of a list. Returns the error for a corrupt container if they exceed its
    /// capacity.
    pub(in crate::store) fn of(t: &impl ReadWords, header: Header) -> Result<Self, StoreError> {
        let block = header.payload(t)?;
        let (room, start) = match block {
            0 => (0, 0),
            block => {
                let word = t.get(block)?;
                (word >> 32, word & 0xffff_ffff)
            }
        };
        if start + header.len > room {
            return Err(corrupt_container(header.at, header.len));
        }
        Ok(Cells {
            header,
            block,
            room,
            start,
        })
    }

    /// Returns the number of cells.
    pub(in crate::store) fn len(&self) -> u64 {
        self.header.len
    }

    /// Returns the offset of a cell. The index is not checked.
    #[inline]
    pub(in crate::store) fn at(&self, index: u64) -> u64 {
        self.block + 8 + 8 * (self.start + index)
    }

    /// Returns the cell of an index, which is not checked.
    pub(in crate::store) fn cell(
        &self,
        t: &impl ReadWords,
        index: u64,
    ) -> Result<Cell, StoreError> {
        Ok(Cell(t.get(self.at(index))?))
    }
}

/// Returns the offset of the cell of an index, which counts from the end if negative, or
/// [`StoreError::IndexOutOfRange`].
#[inline]
pub(in crate::store) fn find(
    t: &impl ReadWords,
    header: Header,
    index: i64,
) -> Result<u64, StoreError> {
    let cells = Cells::of(t, header)?;
    let from = if index < 0 { header.len as i64 } else { 0 };
    match u64::try_from(index + from) {
        Ok(index) if index < header.len => Ok(cells.at(index)),
        _ => Err(StoreError::IndexOutOfRange(header.len)),
    }
}

impl<W: Words, M: Members> Mutator<'_, '_, W, M> {
    /// Replaces the cells from `from` up to `to` by `new`, whose number may differ. Returns the old ones, which the
    /// caller frees. Returns [`StoreError::IndexOutOfRange`] unless `from <= to <=` the length, and
    /// [`StoreError::CapacityExceeded`] beyond `MAX_ITEMS`.
    pub(in crate::store) fn splice(
        &mut self,
        header: Header,
        from: u64,
        to: u64,
        new: &[Cell],
    ) -> Result<Vec<Cell>, StoreError> {
        let cells = Cells::of(self.t, header)?;
        let (len, added) = (header.len, new.len() as u64);
        if from > to || to > len {
            return Err(StoreError::IndexOutOfRange(len));
        }
        let old: Result<Vec<_>, _> = (from..to).map(|index| cells.cell(self.t, index)).collect();
        let old = old?;
        let (before, after) = (from, len - to);
        let longer = len - (to - from) + added;
        if longer > header::MAX_ITEMS {
            return Err(StoreError::CapacityExceeded);
        }
        let grown = added as i64 - (to - from) as i64;
        // Moves the fewer cells: those behind, or those before.
        let fits_behind = cells.start + longer <= cells.room;
        let fits_before = cells.start as i64 >= grown && cells.block != 0;
        let is_small = added <= MAX_MOVED;
        if is_small && (grown == 0 || fits_behind && after <= MAX_MOVED) {
            self.move_cells(&cells, to, len, grown)?;
            self.set_cells(&cells, from, new)?;
        } else if fits_before && is_small && before <= MAX_MOVED {
            let start = (cells.start as i64 - grown) as u64;
            let moved = Cells { start, ..cells };
            let removed: Result<Vec<_>, _> =
                (0..before).map(|index| cells.cell(self.t, index)).collect();
            self.set_cells(&moved, 0, &removed?)?;
            self.set_cells(&moved, from, new)?;
            self.t.set(cells.block, cells.room << 32 | start)?;
        } else {
            self.rewrite(&cells, from, to, new, longer)?;
        }
        let (at, form) = Header {
            len: longer,
            ..header
        }
        .form();
        self.t.set(at, form)?;
        Ok(old)
    }

    /// Stores cells from an index on. The caller has checked the room.
    fn set_cells(&mut self, cells: &Cells, from: u64, new: &[Cell]) -> Result<(), StoreError> {
        for (index, cell) in (from..).zip(new) {
            self.t.set(cells.at(index), cell.0)?;
        }
        Ok(())
    }

    /// Moves the cells from `from` up to `to` by this many places.
    fn move_cells(&mut self, cells: &Cells, from: u64, to: u64, by: i64) -> Result<(), StoreError> {
        if by == 0 {
            return Ok(());
        }
        let moved: Result<Vec<_>, _> = (from..to).map(|index| cells.cell(self.t, index)).collect();
        self.set_cells(cells, from.wrapping_add_signed(by), &moved?)
    }

    /// Writes the cells before `from`, the new ones, and those from `to` on, `len` in all, into a new block. Frees the
    /// old block. The caller stores the number of items.
    fn rewrite(
        &mut self,
        cells: &Cells,
        from: u64,
        to: u64,
        new: &[Cell],
        len: u64,
    ) -> Result<(), StoreError> {
        let mut block = 0;
        if len > 0 {
            let room = (len + len / 8 + 6).min(header::MAX_ITEMS);
            block = self.allocate(8 + 8 * room)?;
            self.t.init(block, room << 32)?;
            let mut at = block + 8;
            for index in 0..from {
                let cell = cells.cell(self.t, index)?;
                self.t.init(at, cell.0)?;
                at += 8;
            }
            for cell in new {
                self.t.init(at, cell.0)?;
                at += 8;
            }
            for index in to..cells.len() {
                let cell = cells.cell(self.t, index)?;
                self.t.init(at, cell.0)?;
                at += 8;
            }
        }
        if cells.block != 0 {
            self.free(cells.block);
        }
        Ok(self.t.set(cells.header.payload_at(), block)?)
    }

    /// Reorders the cells of a list, in a new block. Returns false, and changes nothing, unless `order` has each index
    /// once.
    pub(in crate::store) fn permute(
        &mut self,
        header: Header,
        order: &[u32],
    ) -> Result<bool, StoreError> {
        let cells = Cells::of(self.t, header)?;
        let mut seen = vec![false; order.len()];
        let is_order = order.len() as u64 == header.len
            && order.iter().all(|&index| {
                seen.get_mut(index as usize)
                    .is_some_and(|seen| !std::mem::replace(seen, true))
            });
        if !is_order {
            return Ok(false);
        }
        let new: Result<Vec<_>, _> = order
            .iter()
            .map(|&index| cells.cell(self.t, u64::from(index)))
            .collect();
        self.rewrite(&cells, 0, header.len, &new?, header.len)?;
        Ok(true)
    }
}
