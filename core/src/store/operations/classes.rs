//! Classes of records.

use crate::shared_heap::undo_log::See;
use crate::shared_heap::{Members, Words};
use crate::store::error::StoreError;
use crate::store::format::cell::Cell;
use crate::store::format::copy;
use crate::store::format::head::{self, Head, Owner};
use crate::store::format::roots::Root;
use crate::store::format::table::Table;
use crate::store::format::value::{Found, Key, Value};
use crate::store::handle::Store;
use crate::store::transaction::{Open, look};

impl<W: Words, M: Members> Store<W, M> {
    /// The number of a class by its name; if there is none, it is made, and this is said of it.
    pub fn class(
        &self,
        open: Option<&mut Open>,
        deadline: u64,
        name: &Key<'_>,
        said: &Value<'_>,
    ) -> Result<u32, StoreError> {
        self.operate(open, deadline, |hand, _| {
            let head = Head::of(hand.t, self.place_of(hand.t, Root::Classes)?)?;
            let table = Table::of(hand.t, head)?;
            if let Some(number) = table.find(hand.t, name)? {
                return Ok(number as u32);
            }
            if table.used >= u64::from(head::CLASSES) {
                return Err(StoreError::TooLong);
            }
            let cell = hand.put_key_cell(name)?;
            let owner = Owner::of(hand.t, head.at)?;
            let value = hand.put(said, owner)?;
            hand.add_entry(table, name, cell, value)?;
            Ok(table.used as u32)
        })
    }

    /// Returns true if the class of this number is committed: other processes know it.
    pub fn has_class(&self, deadline: u64, number: u32) -> Result<bool, StoreError> {
        self.log.read(deadline, |t| {
            let head = Head::of(t, self.place_of(t, Root::Classes)?)?;
            Ok(u64::from(number) < Table::of(t, head)?.used)
        })
    }

    /// All classes, copied, in the order of their numbers.
    pub fn classes(&self, open: Option<&mut Open>, deadline: u64) -> Result<Found, StoreError> {
        look!(self, open, deadline, None, |t| {
            let cell = Cell(t.get(self.root_at(Root::Classes))?);
            copy::copy(t, cell, true, &mut { self.bound })
        })
    }
}
