//! Freeing containers with their contents.

use super::budget::Budget;
use super::cell::{Cell, Content, Type};
use super::copy::copy_container;
use super::header::Header;
use super::header::header_of;
use super::list::Cells;
use super::mutator::Mutator;
use super::table::Table;
use crate::shared_heap::access::{ReadWords, WriteWords};
use crate::shared_heap::{Members, Words};
use crate::store::error::{StoreError, corrupt_cell};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

impl<W: Words, M: Members> Mutator<'_, '_, W, M> {
    /// Frees the value that a removed cell refers to, with its contents.
    #[inline]
    pub(in crate::store) fn free_cell(&mut self, cell: Cell) -> Result<(), StoreError> {
        match cell.is_immediate() && cell.content().is_some() {
            true => Ok(()),
            false => self.free_tree(cell),
        }
    }

    /// Frees the value of a cell that is not immediate.
    fn free_tree(&mut self, cell: Cell) -> Result<(), StoreError> {
        self.free_cells(vec![cell], self.budget)
    }

    /// Frees the values that removed cells refer to, with their contents, at the end of the transaction. Fails if they
    /// have more cells than `budget` has left: then they are corrupt.
    pub(in crate::store) fn free_cells(
        &mut self,
        mut left: Vec<Cell>,
        mut budget: Budget,
    ) -> Result<(), StoreError> {
        while let Some(cell) = left.pop() {
            let (kind, at) = match cell.content() {
                Some(Content::At(kind, at)) => (kind, at),
                Some(_) => continue,
                None => return Err(corrupt_cell(0, cell.0)),
            };
            if kind.is_container() {
                let header = header_of(self.t, kind, at, cell)?;
                self.keep_removed(header)?;
                self.free_payload(header, &mut left, &mut budget)?;
                self.t.set(at, 0)?;
            } else if matches!(kind, Type::Tuple | Type::FrozenSet) {
                let count = self.t.get(at)?;
                budget.spend(count)?;
                for index in 1..=count {
                    left.push(Cell(self.t.get(at + 8 * index)?));
                }
            }
            self.free(at);
        }
        Ok(())
    }

    /// Keeps a copy of a container that is about to be removed in `removed`, if this process has a proxy of it. A
    /// buffer is not kept, nor a container that cannot be copied.
    fn keep_removed(&mut self, header: Header) -> Result<(), StoreError> {
        let id = self.t.get(header.at)?;
        if self.proxies.has(id) && header.kind != Type::Buffer {
            // A container that is nested too deep to be copied cannot be inserted either.
            if let Ok(found) = copy_container(self.t, header, &mut { self.budget }) {
                self.removed.push((id, Arc::new(found)));
            }
        }
        Ok(())
    }

    /// Removes all items of a list, a dict or a set, and frees them with their contents. The caller has checked the
    /// type.
    pub(in crate::store) fn remove_items(&mut self, header: Header) -> Result<(), StoreError> {
        let (mut left, mut budget) = (Vec::new(), self.budget);
        self.free_payload(header, &mut left, &mut budget)?;
        self.free_cells(left, budget)?;
        self.t.set(header.payload_at(), 0)?;
        let (at, form) = Header { len: 0, ..header }.form();
        Ok(self.t.set(at, form)?)
    }

    /// Frees the payload of a container, or defers that while it is pinned. Adds its cells to `left`, which the caller
    /// frees. Fails with [`StoreError::CapacityExceeded`] if no more frees can be deferred.
    fn free_payload(
        &mut self,
        header: Header,
        left: &mut Vec<Cell>,
        budget: &mut Budget,
    ) -> Result<(), StoreError> {
        let payload = match header.kind {
            Type::Record => {
                budget.spend(header.len)?;
                for number in 0..header.len {
                    left.push(Cell(self.t.get(header.field(number)?)?));
                }
                left.push(header.extra(self.t)?);
                return Ok(());
            }
            _ => header.payload(self.t)?,
        };
        match header.kind {
            Type::Buffer => {
                let meta = self.t.get(payload + 8)?;
                self.free(meta);
                if self.pins.mark_free_on_unpin(self.t, payload)? {
                    return Ok(()); // The last member that unpins it frees it.
                }
                if let Some(has_deferred_frees) = self.has_deferred_frees {
                    // Relaxed: read by the thread of this process that commits.
                    has_deferred_frees.store(true, Relaxed);
                    return match self.pins.defer_free(self.t, payload)? {
                        true => Ok(()),
                        false => Err(StoreError::CapacityExceeded),
                    };
                }
            }
            Type::List => {
                let cells = Cells::of(self.t, header)?;
                budget.spend(cells.len())?;
                for index in 0..cells.len() {
                    left.push(cells.cell(self.t, index)?);
                }
            }
            _ => {
                let table = Table::of(self.t, header)?;
                budget.spend(table.used)?;
                for number in 0..table.used {
                    let Some(key) = table.key(self.t, number)? else {
                        continue;
                    };
                    left.push(key);
                    if header.kind == Type::Dict {
                        left.push(table.value(self.t, number)?);
                    }
                }
            }
        }
        if payload != 0 {
            self.free(payload);
        }
        Ok(())
    }
}
