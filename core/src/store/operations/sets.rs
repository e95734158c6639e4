//! Operations on sets.
//!
//! The meaning of `open` and `deadline`, and the errors that all operations have in common: see `operations/mod.rs`.

use crate::shared_heap::{Members, Words};
use crate::store::error::StoreError;
use crate::store::format::cell::{Cell, Type};
use crate::store::format::header::Header;
use crate::store::format::table::Table;
use crate::store::format::value::{ContainerRef, Key};
use crate::store::handle::Store;
use crate::store::transaction::OpenTransaction;

impl<W: Words, M: Members> Store<W, M> {
    /// Adds a key to a set. Returns true if the key is new.
    pub fn insert(
        &self,
        open: Option<&mut OpenTransaction>,
        deadline: u64,
        container: ContainerRef,
        key: &Key<'_>,
    ) -> Result<bool, StoreError> {
        self.change_container(open, deadline, container, |mutator| {
            let table = Table::of(
                mutator.t,
                Header::of(mutator.t, container)?.require(Type::Set)?,
            )?;
            if table.find(mutator.t, key)?.is_some() {
                return Ok(false);
            }
            let cell = mutator.write_key(key)?;
            mutator.add_entry(table, key, cell, Cell::NOTHING)?;
            Ok(true)
        })
    }

    /// Removes a key from a set. Returns true if the set had it.
    pub fn discard(
        &self,
        open: Option<&mut OpenTransaction>,
        deadline: u64,
        container: ContainerRef,
        key: &Key<'_>,
    ) -> Result<bool, StoreError> {
        self.change_container(open, deadline, container, |mutator| {
            let table = Table::of(
                mutator.t,
                Header::of(mutator.t, container)?.require(Type::Set)?,
            )?;
            match mutator.remove_entry(&table, key)? {
                Some((cell, _)) => mutator.free_cell(cell).map(|()| true),
                None => Ok(false),
            }
        })
    }
}
