//! How a container is freed, with all that is in it.

use super::budget::Bound;
use super::cell::{Cell, Content, Type};
use super::copy::copy_container;
use super::head::Head;
use super::head::head_of;
use super::list::Cells;
use super::mutator::Hand;
use super::table::Table;
use crate::shared_heap::undo_log::{Change, See};
use crate::shared_heap::{Members, Words};
use crate::store::error::{StoreError, no_cell};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

impl<W: Words, M: Members> Hand<'_, '_, W, M> {
    /// Frees what a cell has led to, with all that is in it.
    #[inline]
    pub(in crate::store) fn free_all(&mut self, cell: Cell) -> Result<(), StoreError> {
        match cell.is_immediate() && cell.content().is_some() {
            true => Ok(()),
            false => self.free_tree(cell),
        }
    }

    fn free_tree(&mut self, cell: Cell) -> Result<(), StoreError> {
        self.free_each(vec![cell], self.bound)
    }

    /// The same, of many cells.
    pub(in crate::store) fn free_each(
        &mut self,
        mut left: Vec<Cell>,
        mut bound: Bound,
    ) -> Result<(), StoreError> {
        while let Some(cell) = left.pop() {
            let (kind, at) = match cell.content() {
                Some(Content::At(kind, at)) => (kind, at),
                Some(_) => continue,
                None => return Err(no_cell(0, cell.0)),
            };
            if kind.is_container() {
                let head = head_of(self.t, kind, at, cell)?;
                self.keep(head)?;
                self.leave(head, &mut left, &mut bound)?;
                self.t.set(at, 0)?;
            } else if matches!(kind, Type::Tuple | Type::FrozenSet) {
                let count = self.t.get(at)?;
                bound.look(count)?;
                for index in 1..=count {
                    left.push(Cell(self.t.get(at + 8 * index)?));
                }
            }
            self.free(at);
        }
        Ok(())
    }

    /// Keeps what a container holds that is about to be removed, if this process has a proxy of it.
    fn keep(&mut self, head: Head) -> Result<(), StoreError> {
        let id = self.t.get(head.at)?;
        if self.held.has(id) && head.kind != Type::Buffer {
            // What is nested too deep to be copied cannot be put either.
            if let Ok(found) = copy_container(self.t, head, &mut { self.bound }) {
                self.kept.push((id, Arc::new(found)));
            }
        }
        Ok(())
    }

    /// Frees the payload of a container with all that is in it.
    pub(in crate::store) fn empty(&mut self, head: Head) -> Result<(), StoreError> {
        let (mut left, mut bound) = (Vec::new(), self.bound);
        self.leave(head, &mut left, &mut bound)?;
        self.free_each(left, bound)
    }

    /// Frees the payload of a container; what was in it is still to be freed.
    fn leave(
        &mut self,
        head: Head,
        left: &mut Vec<Cell>,
        bound: &mut Bound,
    ) -> Result<(), StoreError> {
        let payload = match head.kind {
            Type::Record => {
                bound.look(head.len)?;
                for number in 0..head.len {
                    left.push(Cell(self.t.get(head.field(number)?)?));
                }
                left.push(head.extra(self.t)?);
                return Ok(());
            }
            _ => head.payload(self.t)?,
        };
        match head.kind {
            Type::Buffer => {
                let meta = self.t.get(payload + 8)?;
                self.free(meta);
                if self.pins.orphan(self.t, payload)? {
                    return Ok(()); // Whoever looks at it frees it.
                }
                if let Some(dooms) = self.dooms {
                    // Relaxed: looked at by whoever commits this, in this process.
                    dooms.store(true, Relaxed);
                    return match self.pins.doom(self.t, payload)? {
                        true => Ok(()),
                        false => Err(StoreError::TooLong),
                    };
                }
            }
            Type::List => {
                let cells = Cells::of(self.t, head)?;
                bound.look(cells.len())?;
                for index in 0..cells.len() {
                    left.push(cells.cell(self.t, index)?);
                }
            }
            _ => {
                let table = Table::of(self.t, head)?;
                bound.look(table.used)?;
                for number in 0..table.used {
                    let Some(key) = table.key(self.t, number)? else {
                        continue;
                    };
                    left.push(key);
                    if head.kind == Type::Dict {
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
