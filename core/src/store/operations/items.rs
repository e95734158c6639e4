//! Operations on single items of containers.
//!
//! The meaning of `open` and `deadline`, and the errors that all operations have in common: see `operations/mod.rs`.

use crate::shared_heap::HeapError;
use crate::shared_heap::access::{ReadWords, WriteWords};
use crate::shared_heap::{Members, Words};
use crate::store::error::StoreError;
use crate::store::format::cell::{Cell, Content, Type};
use crate::store::format::copy;
use crate::store::format::header::{Header, Parent};
use crate::store::format::list::{self, Cells};
use crate::store::format::mutator::Mutator;
use crate::store::format::record::extra_of;
use crate::store::format::table::Table;
use crate::store::format::value::{ContainerRef, Key, StoredValue, Value};
use crate::store::handle::Store;
use crate::store::transaction::{OpenTransaction, read};

/// An item of a container.
#[derive(Debug)]
pub enum Item<'i> {
    /// A field of a record, by its number.
    Field(u64),
    /// An item of a list; a negative index counts from the end.
    Index(i64),
    /// The value of a key of a dict.
    Key(&'i Key<'i>),
    /// The value of an extra attribute of a record.
    Extra(&'i Key<'i>),
}

/// A number to add.
#[derive(Clone, Copy, Debug)]
pub enum Number {
    /// An int.
    Int(i64),
    /// A float.
    Float(f64),
}

impl<W: Words, M: Members> Store<W, M> {
    /// Returns the offset of the cell of an item. Fails with [`StoreError::KeyNotFound`] or
    /// [`StoreError::IndexOutOfRange`] if there is no such item, and with [`StoreError::WrongType`] if the container is
    /// of another type.
    #[inline]
    pub(in crate::store) fn cell_at(
        &self,
        t: &impl ReadWords,
        container: ContainerRef,
        item: &Item<'_>,
    ) -> Result<u64, StoreError> {
        let header = Header::of(t, container)?;
        match item {
            Item::Field(number) => header.require(Type::Record)?.field(*number),
            Item::Index(index) => list::find(t, header.require(Type::List)?, *index),
            Item::Key(key) => Table::of(t, header.require(Type::Dict)?)?.value_at(t, key),
            Item::Extra(key) => {
                let extra =
                    extra_of(t, header.require(Type::Record)?)?.ok_or(StoreError::KeyNotFound)?;
                Table::of(t, extra)?.value_at(t, key)
            }
        }
    }

    /// Returns an item. A container is not copied: the reference to it is returned. Fails with
    /// [`StoreError::KeyNotFound`] or [`StoreError::IndexOutOfRange`].
    #[inline]
    pub fn get(
        &self,
        open: Option<&mut OpenTransaction>,
        deadline: u64,
        container: ContainerRef,
        item: &Item<'_>,
    ) -> Result<StoredValue, StoreError> {
        read!(self, open, deadline, Some(container), |t| {
            let at = self.cell_at(t, container, item)?;
            copy::copy(t, Cell(t.get(at)?), false, &mut { self.budget })
        })
    }

    /// Returns two copies of an item with its contents: one with the bytes of its buffers, one with references to them,
    /// as [`remove`](Self::remove) returns it. Fails as [`get`](Self::get) does.
    pub fn get_copy(
        &self,
        open: Option<&mut OpenTransaction>,
        deadline: u64,
        container: ContainerRef,
        item: &Item<'_>,
    ) -> Result<(StoredValue, StoredValue), StoreError> {
        read!(self, open, deadline, Some(container), |t| {
            let at = self.cell_at(t, container, item)?;
            self.copies_of(t, Cell(t.get(at)?))
        })
    }

    /// Returns two copies of a value: with the bytes of its buffers, and with references to them.
    pub(in crate::store) fn copies_of(
        &self,
        t: &impl ReadWords,
        cell: Cell,
    ) -> Result<(StoredValue, StoredValue), StoreError> {
        Ok((
            copy::copy(t, cell, true, &mut { self.budget })?,
            copy::copy(t, cell, true, &mut self.budget.without_buffers())?,
        ))
    }

    /// Replaces the value of an item, and frees the old one. Adds a key that a dict, or the extra attributes of a
    /// record, do not have. Returns true if there was a value. Fails with [`StoreError::IndexOutOfRange`] for a missing
    /// index or field.
    pub fn set(
        &self,
        mut open: Option<&mut OpenTransaction>,
        deadline: u64,
        container: ContainerRef,
        item: &Item<'_>,
        value: &Value<'_>,
    ) -> Result<bool, StoreError> {
        if let (None, Value::Immediate(new)) = (&mut open, value) {
            let begun = self.reader_watch_count();
            let stored: Result<_, StoreError> = self.log.store_word(deadline, |t| {
                if !self.versions().is_empty(t)? || self.has_watching_readers() {
                    return Ok((None, false));
                }
                let at = match self.cell_at(t, container, item) {
                    Err(StoreError::KeyNotFound) => return Ok((None, false)),
                    at => at?,
                };
                let is_immediate = Cell(t.get(at)?).is_immediate();
                Ok((is_immediate.then_some((at, new.0)), is_immediate))
            });
            if stored? {
                self.notify_of_word(begun);
                return Ok(true);
            }
        }
        self.change_container(open, deadline, container, |mutator| {
            match self.cell_at(mutator.t, container, item) {
                Ok(at) => {
                    let old = Cell(mutator.t.get(at)?);
                    let parent = match item {
                        Item::Extra(_) => mutator.extra_dict(Header::of(mutator.t, container)?)?.at,
                        _ => container.at,
                    };
                    let parent = Parent::of(mutator.t, parent)?;
                    let new = mutator.write(value, parent)?;
                    mutator.t.set(at, new.0)?;
                    mutator.free_cell(old)?;
                    Ok(true)
                }
                Err(StoreError::KeyNotFound) => {
                    let (header, key) = match item {
                        Item::Key(key) => (Header::of(mutator.t, container)?, key),
                        Item::Extra(key) => {
                            (mutator.extra_dict(Header::of(mutator.t, container)?)?, key)
                        }
                        _ => return Err(StoreError::KeyNotFound),
                    };
                    let table = Table::of(mutator.t, header)?;
                    let cell = mutator.write_key(key)?;
                    let parent = Parent::of(mutator.t, header.at)?;
                    let value = mutator.write(value, parent)?;
                    mutator.add_entry(table, key, cell, value)?;
                    Ok(false)
                }
                Err(error) => Err(error),
            }
        })
    }

    /// Adds to a number, and returns the sum; an int and a float make a float. Fails with [`StoreError::NotANumber`] if
    /// the item or the sum is no number that fits into a cell, and with [`StoreError::KeyNotFound`] for a missing key,
    /// which is not added, or [`StoreError::IndexOutOfRange`].
    pub fn add(
        &self,
        open: Option<&mut OpenTransaction>,
        deadline: u64,
        container: ContainerRef,
        item: &Item<'_>,
        by: Number,
    ) -> Result<Cell, StoreError> {
        let sum = |t: &dyn Fn(u64) -> Result<u64, HeapError>, at| {
            let old = Cell(t(at)?).content();
            let sum = match (old, by) {
                (Some(Content::Int(old)), Number::Int(by)) => {
                    old.checked_add(by).and_then(Cell::int)
                }
                (Some(Content::Float(old)), Number::Float(by)) => Some(Cell::float(old + by)),
                (Some(Content::Float(old)), Number::Int(by)) => Some(Cell::float(old + by as f64)),
                (Some(Content::Int(old)), Number::Float(by)) => Some(Cell::float(old as f64 + by)),
                _ => None,
            };
            sum.ok_or(StoreError::NotANumber)
        };
        if open.is_none() {
            let begun = self.reader_watch_count();
            let stored: Result<_, StoreError> = self.log.store_word(deadline, |t| {
                if !self.versions().is_empty(t)? || self.has_watching_readers() {
                    return Ok((None, None));
                }
                let at = self.cell_at(t, container, item)?;
                let sum = sum(&|at| t.get(at), at)?;
                Ok((Some((at, sum.0)), Some(sum)))
            });
            if let Some(sum) = stored? {
                self.notify_of_word(begun);
                return Ok(sum);
            }
        }
        self.change_container(open, deadline, container, |mutator| {
            let at = self.cell_at(mutator.t, container, item)?;
            let sum = sum(&|at| mutator.t.get(at), at)?;
            mutator.t.set(at, sum.0)?;
            Ok(sum)
        })
    }

    /// Removes an item with all of its contents. Fails with [`StoreError::KeyNotFound`] or
    /// [`StoreError::IndexOutOfRange`], and with [`StoreError::WrongType`] for a field of a record.
    pub fn delete(
        &self,
        open: Option<&mut OpenTransaction>,
        deadline: u64,
        container: ContainerRef,
        item: &Item<'_>,
    ) -> Result<(), StoreError> {
        self.change_container(open, deadline, container, |mutator| {
            let old = mutator.detach(container, item)?;
            mutator.free_cell(old)
        })
    }

    /// Removes an item, and returns a copy of its contents, with references in place of its buffers. Fails with
    /// [`StoreError::Unwanted`] and changes nothing unless `wanted` accepts the copy: a caller that cannot convert the
    /// value would lose it. Otherwise fails as [`delete`](Self::delete) does.
    pub fn remove(
        &self,
        open: Option<&mut OpenTransaction>,
        deadline: u64,
        container: ContainerRef,
        item: &Item<'_>,
        wanted: impl Fn(&StoredValue) -> bool,
    ) -> Result<StoredValue, StoreError> {
        self.change_container(open, deadline, container, |mutator| {
            let old = mutator.detach(container, item)?;
            let found = copy::copy(mutator.t, old, true, &mut self.budget.without_buffers())?;
            if !wanted(&found) {
                return Err(StoreError::Unwanted);
            }
            mutator.free_cell(old)?;
            Ok(found)
        })
    }
}

impl<W: Words, M: Members> Mutator<'_, '_, W, M> {
    /// Removes an item from its container. Returns the cell of its value, which the caller frees. Fails with
    /// [`StoreError::WrongType`] for a field of a record, and with [`StoreError::KeyNotFound`].
    pub(in crate::store) fn detach(
        &mut self,
        container: ContainerRef,
        item: &Item<'_>,
    ) -> Result<Cell, StoreError> {
        let header = Header::of(self.t, container)?;
        match item {
            Item::Field(_) => Err(StoreError::WrongType),
            Item::Index(index) => {
                let header = header.require(Type::List)?;
                let at = list::find(self.t, header, *index)?;
                let first = Cells::of(self.t, header)?.at(0);
                let index = (at - first) / 8;
                Ok(self.splice(header, index, index + 1, &[])?[0])
            }
            Item::Key(key) | Item::Extra(key) => {
                let header = match item {
                    Item::Key(_) => header.require(Type::Dict)?,
                    _ => extra_of(self.t, header.require(Type::Record)?)?
                        .ok_or(StoreError::KeyNotFound)?,
                };
                let table = Table::of(self.t, header)?;
                let (key, old) = self
                    .remove_entry(&table, key)?
                    .ok_or(StoreError::KeyNotFound)?;
                self.free_cell(key)?;
                Ok(old)
            }
        }
    }
}
