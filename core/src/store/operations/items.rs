//! Single items of containers.

use crate::shared_heap::HeapError;
use crate::shared_heap::undo_log::{Change, See};
use crate::shared_heap::{Members, Words};
use crate::store::error::StoreError;
use crate::store::format::cell::{Cell, Content, Type};
use crate::store::format::copy;
use crate::store::format::head::{Head, Owner};
use crate::store::format::list::{self, Cells};
use crate::store::format::mutator::Hand;
use crate::store::format::record::extra_of;
use crate::store::format::table::Table;
use crate::store::format::value::{Found, Key, Place, Value};
use crate::store::handle::Store;
use crate::store::transaction::{Open, look};

/// Which item of a container.
#[derive(Debug)]
pub enum Item<'i> {
    /// A field of a record.
    Field(u64),
    /// An item of a list, which may be counted from the end.
    Index(i64),
    /// That of a key, of a dict.
    Key(&'i Key<'i>),
    /// That of a key, of what a record has beyond its fields.
    Extra(&'i Key<'i>),
}

/// What adds to a number.
#[derive(Clone, Copy, Debug)]
pub enum Number {
    /// An int.
    Int(i64),
    /// A float.
    Float(f64),
}

impl<W: Words, M: Members> Store<W, M> {
    /// Where the cell of an item lies; an error if there is no such item.
    #[inline]
    pub(in crate::store) fn cell_at(
        &self,
        t: &impl See,
        place: Place,
        item: &Item<'_>,
    ) -> Result<u64, StoreError> {
        let head = Head::of(t, place)?;
        match item {
            Item::Field(number) => head.is(Type::Record)?.field(*number),
            Item::Index(index) => list::find(t, head.is(Type::List)?, *index),
            Item::Key(key) => {
                let table = Table::of(t, head.is(Type::Dict)?)?;
                let number = table.find(t, key)?.ok_or(StoreError::NoKey)?;
                Ok(table.entry(number) + 8)
            }
            Item::Extra(key) => {
                let extra = extra_of(t, head.is(Type::Record)?)?.ok_or(StoreError::NoKey)?;
                let table = Table::of(t, extra)?;
                let number = table.find(t, key)?.ok_or(StoreError::NoKey)?;
                Ok(table.entry(number) + 8)
            }
        }
    }

    /// What an item is. A container is not copied.
    #[inline]
    pub fn get(
        &self,
        open: Option<&mut Open>,
        deadline: u64,
        place: Place,
        item: &Item<'_>,
    ) -> Result<Found, StoreError> {
        look!(self, open, deadline, Some(place), |t| {
            let at = self.cell_at(t, place, item)?;
            copy::copy(t, Cell(t.get(at)?), false, &mut { self.bound })
        })
    }

    /// Returns an item, copied with all that is in it, together with its buffers, as [`remove`](Self::remove) does.
    pub fn get_whole(
        &self,
        open: Option<&mut Open>,
        deadline: u64,
        place: Place,
        item: &Item<'_>,
    ) -> Result<(Found, Found), StoreError> {
        look!(self, open, deadline, Some(place), |t| {
            let at = self.cell_at(t, place, item)?;
            self.whole(t, Cell(t.get(at)?))
        })
    }

    pub(in crate::store) fn whole(
        &self,
        t: &impl See,
        cell: Cell,
    ) -> Result<(Found, Found), StoreError> {
        Ok((
            copy::copy(t, cell, true, &mut { self.bound })?,
            copy::copy(t, cell, true, &mut self.bound.naming_buffers())?,
        ))
    }

    /// Puts a value in the place of an item. A dict, and what a record has beyond its fields, get a new one if there is no
    /// such key. Whether there was one.
    pub fn set(
        &self,
        mut open: Option<&mut Open>,
        deadline: u64,
        place: Place,
        item: &Item<'_>,
        value: &Value<'_>,
    ) -> Result<bool, StoreError> {
        if let (None, Value::Immediate(new)) = (&mut open, value) {
            let begun = self.begun_by_readers();
            let stored: Result<_, StoreError> = self.log.store(deadline, |t| {
                if !self.watches().is_empty(t)? || self.has_watching_readers() {
                    return Ok((None, false));
                }
                let at = match self.cell_at(t, place, item) {
                    Err(StoreError::NoKey) => return Ok((None, false)),
                    at => at?,
                };
                let is_immediate = Cell(t.get(at)?).is_immediate();
                Ok((is_immediate.then_some((at, new.0)), is_immediate))
            });
            if stored? {
                self.tell_of_word(begun);
                return Ok(true);
            }
        }
        self.change(open, deadline, place, |hand| {
            match self.cell_at(hand.t, place, item) {
                Ok(at) => {
                    let old = Cell(hand.t.get(at)?);
                    let owner = match item {
                        Item::Extra(_) => hand.extra(Head::of(hand.t, place)?)?.at,
                        _ => place.at,
                    };
                    let owner = Owner::of(hand.t, owner)?;
                    let new = hand.put(value, owner)?;
                    hand.t.set(at, new.0)?;
                    hand.free_all(old)?;
                    Ok(true)
                }
                Err(StoreError::NoKey) => {
                    let (head, key) = match item {
                        Item::Key(key) => (Head::of(hand.t, place)?, key),
                        Item::Extra(key) => (hand.extra(Head::of(hand.t, place)?)?, key),
                        _ => return Err(StoreError::NoKey),
                    };
                    let table = Table::of(hand.t, head)?;
                    let cell = hand.put_key_cell(key)?;
                    let owner = Owner::of(hand.t, head.at)?;
                    let value = hand.put(value, owner)?;
                    hand.add_entry(table, key, cell, value)?;
                    Ok(false)
                }
                Err(error) => Err(error),
            }
        })
    }

    /// Adds to a number, and returns the sum. [`StoreError::NoNumber`] if one of them does not fit into a cell.
    pub fn add(
        &self,
        open: Option<&mut Open>,
        deadline: u64,
        place: Place,
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
            sum.ok_or(StoreError::NoNumber)
        };
        if open.is_none() {
            let begun = self.begun_by_readers();
            let stored: Result<_, StoreError> = self.log.store(deadline, |t| {
                if !self.watches().is_empty(t)? || self.has_watching_readers() {
                    return Ok((None, None));
                }
                let at = self.cell_at(t, place, item)?;
                let sum = sum(&|at| t.get(at), at)?;
                Ok((Some((at, sum.0)), Some(sum)))
            });
            if let Some(sum) = stored? {
                self.tell_of_word(begun);
                return Ok(sum);
            }
        }
        self.change(open, deadline, place, |hand| {
            let at = self.cell_at(hand.t, place, item)?;
            let sum = sum(&|at| hand.t.get(at), at)?;
            hand.t.set(at, sum.0)?;
            Ok(sum)
        })
    }

    /// Removes an item, however deep what is in it is nested.
    pub fn delete(
        &self,
        open: Option<&mut Open>,
        deadline: u64,
        place: Place,
        item: &Item<'_>,
    ) -> Result<(), StoreError> {
        self.change(open, deadline, place, |hand| {
            let old = hand.take_out(place, item)?;
            hand.free_all(old)
        })
    }

    /// Removes an item, and returns what it was, copied with all that was in it, but for buffers: of these, which they were.
    /// [`StoreError::Other`], and nothing is changed, if it is not `wanted`: one that could not make a value of it would lose it.
    pub fn remove(
        &self,
        open: Option<&mut Open>,
        deadline: u64,
        place: Place,
        item: &Item<'_>,
        wanted: impl Fn(&Found) -> bool,
    ) -> Result<Found, StoreError> {
        self.change(open, deadline, place, |hand| {
            let old = hand.take_out(place, item)?;
            let found = copy::copy(hand.t, old, true, &mut self.bound.naming_buffers())?;
            if !wanted(&found) {
                return Err(StoreError::Other);
            }
            hand.free_all(old)?;
            Ok(found)
        })
    }
}

impl<W: Words, M: Members> Hand<'_, '_, W, M> {
    /// Takes an item out of its container: its cell, which is still to be freed.
    pub(in crate::store) fn take_out(
        &mut self,
        place: Place,
        item: &Item<'_>,
    ) -> Result<Cell, StoreError> {
        let head = Head::of(self.t, place)?;
        match item {
            Item::Field(_) => Err(StoreError::OtherType),
            Item::Index(index) => {
                let head = head.is(Type::List)?;
                let at = list::find(self.t, head, *index)?;
                let first = Cells::of(self.t, head)?.at(0);
                let index = (at - first) / 8;
                Ok(self.splice(head, index, index + 1, &[])?[0])
            }
            Item::Key(key) | Item::Extra(key) => {
                let head = match item {
                    Item::Key(_) => head.is(Type::Dict)?,
                    _ => extra_of(self.t, head.is(Type::Record)?)?.ok_or(StoreError::NoKey)?,
                };
                let table = Table::of(self.t, head)?;
                let (key, old) = self.remove_entry(&table, key)?.ok_or(StoreError::NoKey)?;
                self.free_all(key)?;
                Ok(old)
            }
        }
    }
}
