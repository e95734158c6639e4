//! Sets.

use crate::shared_heap::{Members, Words};
use crate::store::error::StoreError;
use crate::store::format::cell::{Cell, Type};
use crate::store::format::head::Head;
use crate::store::format::table::Table;
use crate::store::format::value::{Key, Place};
use crate::store::handle::Store;
use crate::store::transaction::Open;

impl<W: Words, M: Members> Store<W, M> {
    /// Adds a key to a set. Whether it was not there.
    pub fn insert(
        &self,
        open: Option<&mut Open>,
        deadline: u64,
        place: Place,
        key: &Key<'_>,
    ) -> Result<bool, StoreError> {
        self.change(open, deadline, place, |hand| {
            let table = Table::of(hand.t, Head::of(hand.t, place)?.is(Type::Set)?)?;
            if table.find(hand.t, key)?.is_some() {
                return Ok(false);
            }
            let cell = hand.put_key_cell(key)?;
            hand.add_entry(table, key, cell, Cell::NOTHING)?;
            Ok(true)
        })
    }

    /// Removes a key from a set. Whether it was there.
    pub fn discard(
        &self,
        open: Option<&mut Open>,
        deadline: u64,
        place: Place,
        key: &Key<'_>,
    ) -> Result<bool, StoreError> {
        self.change(open, deadline, place, |hand| {
            let table = Table::of(hand.t, Head::of(hand.t, place)?.is(Type::Set)?)?;
            match hand.remove_entry(&table, key)? {
                Some((cell, _)) => hand.free_all(cell).map(|()| true),
                None => Ok(false),
            }
        })
    }
}
