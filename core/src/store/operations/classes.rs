//! Classes of records.
//!
//! The meaning of `open` and `deadline`, and the errors that all operations have in common: see `operations/mod.rs`.

use crate::shared_heap::access::ReadWords;
use crate::shared_heap::{Members, Words};
use crate::store::error::StoreError;
use crate::store::format::cell::Cell;
use crate::store::format::copy;
use crate::store::format::header::{self, Header, Parent};
use crate::store::format::roots::Root;
use crate::store::format::table::Table;
use crate::store::format::value::{Key, StoredValue, Value};
use crate::store::handle::Store;
use crate::store::transaction::{OpenTransaction, read};

impl<W: Words, M: Members> Store<W, M> {
    /// Returns the number of the class of this name. Adds the class, with this description, if there is none; the
    /// description of an existing class stays. Fails with [`StoreError::CapacityExceeded`] if there are too many
    /// classes.
    pub fn define_class(
        &self,
        open: Option<&mut OpenTransaction>,
        deadline: u64,
        name: &Key<'_>,
        description: &Value<'_>,
    ) -> Result<u32, StoreError> {
        self.operate(open, deadline, |mutator, _| {
            let header = Header::of(mutator.t, self.container_of(mutator.t, Root::Classes)?)?;
            let table = Table::of(mutator.t, header)?;
            if let Some(number) = table.find(mutator.t, name)? {
                return Ok(number as u32);
            }
            if table.used >= u64::from(header::MAX_CLASSES) {
                return Err(StoreError::CapacityExceeded);
            }
            let cell = mutator.write_key(name)?;
            let parent = Parent::of(mutator.t, header.at)?;
            let value = mutator.write(description, parent)?;
            mutator.add_entry(table, name, cell, value)?;
            Ok(table.used as u32)
        })
    }

    /// Returns true if the class of this number is committed, so that other processes know it.
    pub fn has_class(&self, deadline: u64, number: u32) -> Result<bool, StoreError> {
        self.log.read(deadline, |t| {
            let header = Header::of(t, self.container_of(t, Root::Classes)?)?;
            Ok(u64::from(number) < Table::of(t, header)?.used)
        })
    }

    /// Returns a copy of all classes, in the order of their numbers.
    pub fn classes(
        &self,
        open: Option<&mut OpenTransaction>,
        deadline: u64,
    ) -> Result<StoredValue, StoreError> {
        read!(self, open, deadline, None, |t| {
            let cell = Cell(t.get(self.root_at(Root::Classes))?);
            copy::copy(t, cell, true, &mut { self.budget })
        })
    }
}
