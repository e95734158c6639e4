//! Whole containers of any type.

use crate::shared_heap::undo_log::{Change, See};
use crate::shared_heap::{Members, Words};
use crate::store::error::StoreError;
use crate::store::format::cell::{Cell, Type};
use crate::store::format::copy;
use crate::store::format::head::Head;
use crate::store::format::roots::Root;
use crate::store::format::value::{Found, Place};
use crate::store::handle::Store;
use crate::store::transaction::{Open, look};

impl<W: Words, M: Members> Store<W, M> {
    /// How many items a container has; of a buffer, how many bytes.
    #[inline]
    pub fn len(
        &self,
        open: Option<&mut Open>,
        deadline: u64,
        place: Place,
    ) -> Result<u64, StoreError> {
        fn len(t: &impl See, place: Place) -> Result<u64, StoreError> {
            let head = Head::of(t, place)?;
            match head.kind {
                Type::Buffer => Ok(t.get(head.payload(t)?)?),
                _ => Ok(head.len),
            }
        }
        look!(self, open, deadline, Some(place), |t| len(t, place))
    }

    /// Copies a container with all that is in it, as it was at one moment.
    pub fn copy(
        &self,
        open: Option<&mut Open>,
        deadline: u64,
        place: Place,
    ) -> Result<Found, StoreError> {
        self.copy_of(open, deadline, place, u64::MAX)
    }

    /// The same; [`StoreError::TooMuch`] if that is more words than `most`.
    pub fn copy_of(
        &self,
        open: Option<&mut Open>,
        deadline: u64,
        place: Place,
        most: u64,
    ) -> Result<Found, StoreError> {
        look!(self, open, deadline, Some(place), |t| copy::copy_container(
            t,
            Head::of(t, place)?,
            &mut self.bound.at_most(most)
        ))
    }

    /// Copies a container that is to be put elsewhere: if this process has removed it and has a proxy of it, as it was then.
    pub fn copy_to_put(
        &self,
        mut open: Option<&mut Open>,
        deadline: u64,
        place: Place,
    ) -> Result<Found, StoreError> {
        let copied = self.copy(open.as_deref_mut(), deadline, place);
        let Err(StoreError::Gone) = copied else {
            return copied;
        };
        let kept = open.iter().flat_map(|open| open.tidings.kept.iter().rev());
        let mut kept = kept.filter(|(id, _)| *id == place.id);
        let last = kept.next().map(|(_, found)| found.clone());
        let last = last.or_else(|| self.held.last(place.id));
        last.map_or(copied, |found| Ok(Found::clone(&found)))
    }

    /// Copies all classes, and what a program sees as the store, as both were at one moment.
    pub fn snapshot(
        &self,
        open: Option<&mut Open>,
        deadline: u64,
    ) -> Result<(Found, Found), StoreError> {
        look!(self, open, deadline, None, |t| {
            let copy = |root| {
                let cell = Cell(t.get(self.root_at(root))?);
                copy::copy(t, cell, true, &mut { self.bound })
            };
            Ok((copy(Root::Classes)?, copy(Root::Store)?))
        })
    }

    /// Takes all out of a container.
    pub fn clear(
        &self,
        open: Option<&mut Open>,
        deadline: u64,
        place: Place,
    ) -> Result<(), StoreError> {
        self.change(open, deadline, place, |hand| {
            let head = Head::of(hand.t, place)?;
            if !matches!(head.kind, Type::List | Type::Dict | Type::Set) {
                return Err(StoreError::OtherType);
            }
            hand.empty(head)?;
            hand.t.set(head.payload_at(), 0)?;
            let (at, form) = Head { len: 0, ..head }.form();
            Ok(hand.t.set(at, form)?)
        })
    }
}
