//! Dicts.

use crate::shared_heap::undo_log::{Change, See};
use crate::shared_heap::{Members, Words};
use crate::store::error::StoreError;
use crate::store::format::budget::Bound;
use crate::store::format::cell::Type;
use crate::store::format::copy;
use crate::store::format::head::{Head, Owner};
use crate::store::format::record::extra_of;
use crate::store::format::table::Table;
use crate::store::format::value::{Found, Key, Place, Value};
use crate::store::handle::Store;
use crate::store::transaction::{Open, look};

impl<W: Words, M: Members> Store<W, M> {
    /// Whether a dict or a set has a key.
    #[inline]
    pub fn contains(
        &self,
        open: Option<&mut Open>,
        deadline: u64,
        place: Place,
        key: &Key<'_>,
    ) -> Result<bool, StoreError> {
        look!(self, open, deadline, Some(place), |t| {
            let table = Table::of(t, with_keys(t, place)?)?;
            Ok(table.find(t, key)?.is_some())
        })
    }

    /// The keys of a dict or a set, in the order in which they came.
    pub fn keys(
        &self,
        open: Option<&mut Open>,
        deadline: u64,
        place: Place,
    ) -> Result<Vec<Found>, StoreError> {
        look!(self, open, deadline, Some(place), |t| copy::copy_keys(
            t,
            with_keys(t, place)?,
            &mut { self.bound }
        ))
    }

    /// The items of a dict, or what a record has beyond its fields. Containers are not copied.
    pub fn items(
        &self,
        open: Option<&mut Open>,
        deadline: u64,
        place: Place,
    ) -> Result<Vec<(Found, Found)>, StoreError> {
        fn items(
            t: &impl See,
            place: Place,
            mut bound: Bound,
        ) -> Result<Vec<(Found, Found)>, StoreError> {
            let head = Head::of(t, place)?;
            let head = match head.kind {
                Type::Dict => head,
                Type::Record => match extra_of(t, head)? {
                    Some(extra) => extra,
                    None => return Ok(Vec::new()),
                },
                _ => return Err(StoreError::OtherType),
            };
            copy::copy_dict(t, head, false, &mut bound)
        }
        look!(self, open, deadline, Some(place), |t| items(
            t, place, self.bound
        ))
    }

    /// Puts these items in the place of all that a dict has.
    pub fn refill(
        &self,
        open: Option<&mut Open>,
        deadline: u64,
        place: Place,
        items: &[(Key<'_>, Value<'_>)],
    ) -> Result<(), StoreError> {
        self.change(open, deadline, place, |hand| {
            let head = Head::of(hand.t, place)?.is(Type::Dict)?;
            hand.empty(head)?;
            hand.t.set(head.payload_at(), 0)?;
            let (at, form) = Head { len: 0, ..head }.form();
            hand.t.set(at, form)?;
            let owner = Owner::of(hand.t, head.at)?;
            for (key, value) in items {
                let cell = hand.put_key_cell(key)?;
                let value = hand.put(value, owner)?;
                let head = Head::of(hand.t, place)?;
                let table = Table::of(hand.t, head)?;
                if table.find(hand.t, key)?.is_some() {
                    return Err(StoreError::OtherType);
                }
                hand.add_entry(table, key, cell, value)?;
            }
            Ok(())
        })
    }
}

/// The head of a dict or a set.
pub(in crate::store) fn with_keys(t: &impl See, place: Place) -> Result<Head, StoreError> {
    match Head::of(t, place)? {
        head if matches!(head.kind, Type::Dict | Type::Set) => Ok(head),
        _ => Err(StoreError::OtherType),
    }
}
