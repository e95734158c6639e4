//! Operations on lists.
//!
//! The meaning of `open` and `deadline`, and the errors that all operations have in common: see `operations/mod.rs`.

use crate::shared_heap::access::ReadWords;
use crate::shared_heap::{Members, Words};
use crate::store::error::StoreError;
use crate::store::format::budget::Budget;
use crate::store::format::cell::Type;
use crate::store::format::copy;
use crate::store::format::header::{Header, Parent};
use crate::store::format::list::Cells;
use crate::store::format::value::{ContainerRef, StoredValue, Value};
use crate::store::handle::Store;
use crate::store::transaction::{OpenTransaction, read};

impl<W: Words, M: Members> Store<W, M> {
    /// Returns the items of a list from one index up to another, without it; both are limited to its length. Containers
    /// are not copied: values have references to them.
    pub fn range(
        &self,
        open: Option<&mut OpenTransaction>,
        deadline: u64,
        container: ContainerRef,
        from: u64,
        to: u64,
    ) -> Result<Vec<StoredValue>, StoreError> {
        fn range(
            t: &impl ReadWords,
            container: ContainerRef,
            (from, to): (u64, u64),
            mut budget: Budget,
        ) -> Result<Vec<StoredValue>, StoreError> {
            let cells = Cells::of(t, Header::of(t, container)?.require(Type::List)?)?;
            let (from, to) = (from.min(cells.len()), to.min(cells.len()));
            let count = to.saturating_sub(from);
            copy::copy_cells(t, cells.at(from), count, false, &mut budget)
        }
        read!(self, open, deadline, Some(container), |t| range(
            t,
            container,
            (from, to),
            self.budget
        ))
    }

    /// Replaces the items of a list from one index up to another, without it, by any number of values; both indices are
    /// limited to its length, and the removed items are freed. Without a range, inserts the values at `from`.
    pub fn splice(
        &self,
        open: Option<&mut OpenTransaction>,
        deadline: u64,
        container: ContainerRef,
        from: u64,
        to: u64,
        values: &[Value<'_>],
    ) -> Result<(), StoreError> {
        self.change_container(open, deadline, container, |mutator| {
            let header = Header::of(mutator.t, container)?.require(Type::List)?;
            let (from, to) = (from.min(header.len), to.min(header.len));
            let parent = Parent::of(mutator.t, header.at)?;
            let new: Result<Vec<_>, _> = values
                .iter()
                .map(|value| mutator.write(value, parent))
                .collect();
            let old = mutator.splice(header, from, to.max(from), &new?)?;
            mutator.free_cells(old, mutator.budget)
        })
    }

    /// Reorders the items of a list: `order` has the old index of each item. Returns false, and changes nothing, unless
    /// `order` has each index once: the list may have another length by now.
    pub fn permute(
        &self,
        open: Option<&mut OpenTransaction>,
        deadline: u64,
        container: ContainerRef,
        order: &[u32],
    ) -> Result<bool, StoreError> {
        self.change_container(open, deadline, container, |mutator| {
            let header = Header::of(mutator.t, container)?.require(Type::List)?;
            mutator.permute(header, order)
        })
    }
}
