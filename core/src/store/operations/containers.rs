//! Operations on containers of any type.
//!
//! The meaning of `open` and `deadline`, and the errors that all operations have in common: see `operations/mod.rs`.

use crate::shared_heap::access::ReadWords;
use crate::shared_heap::{Members, Words};
use crate::store::error::StoreError;
use crate::store::format::cell::{Cell, Type};
use crate::store::format::copy;
use crate::store::format::header::Header;
use crate::store::format::roots::Root;
use crate::store::format::value::{ContainerRef, StoredValue};
use crate::store::handle::Store;
use crate::store::transaction::{OpenTransaction, read};

impl<W: Words, M: Members> Store<W, M> {
    /// Returns the number of items of a container; of a buffer, its bytes.
    #[inline]
    pub fn len(
        &self,
        open: Option<&mut OpenTransaction>,
        deadline: u64,
        container: ContainerRef,
    ) -> Result<u64, StoreError> {
        fn len(t: &impl ReadWords, container: ContainerRef) -> Result<u64, StoreError> {
            let header = Header::of(t, container)?;
            match header.kind {
                Type::Buffer => Ok(t.get(header.payload(t)?)?),
                _ => Ok(header.len),
            }
        }
        read!(self, open, deadline, Some(container), |t| len(t, container))
    }

    /// Copies a container with its contents, as of one moment. Fails with [`StoreError::NoMemory`] if this process has
    /// too little memory.
    pub fn copy(
        &self,
        open: Option<&mut OpenTransaction>,
        deadline: u64,
        container: ContainerRef,
    ) -> Result<StoredValue, StoreError> {
        self.copy_at_most(open, deadline, container, u64::MAX)
    }

    /// Copies a container with its contents. Fails with [`StoreError::CopyTooLarge`] if that takes more than `most`
    /// words.
    pub fn copy_at_most(
        &self,
        open: Option<&mut OpenTransaction>,
        deadline: u64,
        container: ContainerRef,
        most: u64,
    ) -> Result<StoredValue, StoreError> {
        read!(self, open, deadline, Some(container), |t| {
            copy::copy_container(t, Header::of(t, container)?, &mut self.budget.at_most(most))
        })
    }

    /// Copies a container for inserting it elsewhere. If this process has removed the container and has a proxy of it,
    /// returns the contents that the container had then.
    pub fn copy_for_insert(
        &self,
        mut open: Option<&mut OpenTransaction>,
        deadline: u64,
        container: ContainerRef,
    ) -> Result<StoredValue, StoreError> {
        let copied = self.copy(open.as_deref_mut(), deadline, container);
        let Err(StoreError::ContainerDeleted) = copied else {
            return copied;
        };
        let removed = open
            .iter()
            .flat_map(|open| open.notifications.removed.iter().rev());
        let mut removed = removed.filter(|(id, _)| *id == container.id);
        let last = removed.next().map(|(_, found)| found.clone());
        let last = last.or_else(|| self.proxies.removed_content(container.id));
        last.map_or(copied, |found| Ok(StoredValue::clone(&found)))
    }

    /// Returns a copy of all classes and of the dict that is the store, as of one moment.
    pub fn snapshot(
        &self,
        open: Option<&mut OpenTransaction>,
        deadline: u64,
    ) -> Result<(StoredValue, StoredValue), StoreError> {
        read!(self, open, deadline, None, |t| {
            let copy = |root| {
                let cell = Cell(t.get(self.root_at(root))?);
                copy::copy(t, cell, true, &mut { self.budget })
            };
            Ok((copy(Root::Classes)?, copy(Root::Store)?))
        })
    }

    /// Removes all items of a list, a dict or a set; [`StoreError::WrongType`] for other containers.
    pub fn clear(
        &self,
        open: Option<&mut OpenTransaction>,
        deadline: u64,
        container: ContainerRef,
    ) -> Result<(), StoreError> {
        self.change_container(open, deadline, container, |mutator| {
            let header = Header::of(mutator.t, container)?;
            if !matches!(header.kind, Type::List | Type::Dict | Type::Set) {
                return Err(StoreError::WrongType);
            }
            mutator.remove_items(header)
        })
    }
}
