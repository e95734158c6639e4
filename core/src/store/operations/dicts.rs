//! Operations on dicts.
//!
//! The meaning of `open` and `deadline`, and the errors that all operations have in common: see `operations/mod.rs`.

use crate::shared_heap::access::ReadWords;
use crate::shared_heap::{Members, Words};
use crate::store::error::StoreError;
use crate::store::format::budget::Budget;
use crate::store::format::cell::Type;
use crate::store::format::copy;
use crate::store::format::header::{Header, Parent};
use crate::store::format::record::extra_of;
use crate::store::format::table::Table;
use crate::store::format::value::{ContainerRef, Key, StoredValue, Value};
use crate::store::handle::Store;
use crate::store::transaction::{OpenTransaction, read};

impl<W: Words, M: Members> Store<W, M> {
    /// Returns true if a dict or a set has a key. Fails with [`StoreError::WrongType`] for other containers.
    #[inline]
    pub fn contains(
        &self,
        open: Option<&mut OpenTransaction>,
        deadline: u64,
        container: ContainerRef,
        key: &Key<'_>,
    ) -> Result<bool, StoreError> {
        read!(self, open, deadline, Some(container), |t| {
            let table = Table::of(t, header_with_keys(t, container)?)?;
            Ok(table.find(t, key)?.is_some())
        })
    }

    /// Returns copies of the keys of a dict or a set, in the order of their insertion.
    pub fn keys(
        &self,
        open: Option<&mut OpenTransaction>,
        deadline: u64,
        container: ContainerRef,
    ) -> Result<Vec<StoredValue>, StoreError> {
        read!(self, open, deadline, Some(container), |t| copy::copy_keys(
            t,
            header_with_keys(t, container)?,
            &mut { self.budget }
        ))
    }

    /// Returns the items of a dict, or the extra attributes of a record, in the order of their insertion. Containers
    /// are not copied: values have references to them.
    pub fn items(
        &self,
        open: Option<&mut OpenTransaction>,
        deadline: u64,
        container: ContainerRef,
    ) -> Result<Vec<(StoredValue, StoredValue)>, StoreError> {
        fn items(
            t: &impl ReadWords,
            container: ContainerRef,
            mut budget: Budget,
        ) -> Result<Vec<(StoredValue, StoredValue)>, StoreError> {
            let header = Header::of(t, container)?;
            let header = match header.kind {
                Type::Dict => header,
                Type::Record => match extra_of(t, header)? {
                    Some(extra) => extra,
                    None => return Ok(Vec::new()),
                },
                _ => return Err(StoreError::WrongType),
            };
            copy::copy_dict(t, header, false, &mut budget)
        }
        read!(self, open, deadline, Some(container), |t| items(
            t,
            container,
            self.budget
        ))
    }

    /// Replaces all items of a dict, and frees the old ones. Fails with [`StoreError::WrongType`], and changes nothing,
    /// if a key comes twice.
    pub fn replace_items(
        &self,
        open: Option<&mut OpenTransaction>,
        deadline: u64,
        container: ContainerRef,
        items: &[(Key<'_>, Value<'_>)],
    ) -> Result<(), StoreError> {
        self.change_container(open, deadline, container, |mutator| {
            let header = Header::of(mutator.t, container)?.require(Type::Dict)?;
            mutator.remove_items(header)?;
            let parent = Parent::of(mutator.t, header.at)?;
            for (key, value) in items {
                let cell = mutator.write_key(key)?;
                let value = mutator.write(value, parent)?;
                let header = Header::of(mutator.t, container)?;
                let table = Table::of(mutator.t, header)?;
                if table.find(mutator.t, key)?.is_some() {
                    return Err(StoreError::WrongType);
                }
                mutator.add_entry(table, key, cell, value)?;
            }
            Ok(())
        })
    }
}

/// Returns the header of a dict or a set; [`StoreError::WrongType`] for other containers.
pub(in crate::store) fn header_with_keys(
    t: &impl ReadWords,
    container: ContainerRef,
) -> Result<Header, StoreError> {
    match Header::of(t, container)? {
        header if matches!(header.kind, Type::Dict | Type::Set) => Ok(header),
        _ => Err(StoreError::WrongType),
    }
}
