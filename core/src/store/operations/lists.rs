//! Lists.

use crate::shared_heap::undo_log::See;
use crate::shared_heap::{Members, Words};
use crate::store::error::StoreError;
use crate::store::format::budget::Bound;
use crate::store::format::cell::Type;
use crate::store::format::copy;
use crate::store::format::head::{Head, Owner};
use crate::store::format::list::Cells;
use crate::store::format::value::{Found, Place, Value};
use crate::store::handle::Store;
use crate::store::transaction::{Open, look};

impl<W: Words, M: Members> Store<W, M> {
    /// The items of a list from one index up to another. Containers are not copied.
    pub fn range(
        &self,
        open: Option<&mut Open>,
        deadline: u64,
        place: Place,
        from: u64,
        to: u64,
    ) -> Result<Vec<Found>, StoreError> {
        fn range(
            t: &impl See,
            place: Place,
            (from, to): (u64, u64),
            mut bound: Bound,
        ) -> Result<Vec<Found>, StoreError> {
            let cells = Cells::of(t, Head::of(t, place)?.is(Type::List)?)?;
            let (from, to) = (from.min(cells.len()), to.min(cells.len()));
            let count = to.saturating_sub(from);
            copy::copy_cells(t, cells.at(from), count, false, &mut bound)
        }
        look!(self, open, deadline, Some(place), |t| range(
            t,
            place,
            (from, to),
            self.bound
        ))
    }

    /// Puts values in the place of those from one index of a list up to another.
    pub fn splice(
        &self,
        open: Option<&mut Open>,
        deadline: u64,
        place: Place,
        from: u64,
        to: u64,
        values: &[Value<'_>],
    ) -> Result<(), StoreError> {
        self.change(open, deadline, place, |hand| {
            let head = Head::of(hand.t, place)?.is(Type::List)?;
            let (from, to) = (from.min(head.len), to.min(head.len));
            let owner = Owner::of(hand.t, head.at)?;
            let new: Result<Vec<_>, _> =
                values.iter().map(|value| hand.put(value, owner)).collect();
            let old = hand.splice(head, from, to.max(from), &new?)?;
            hand.free_each(old, hand.bound)
        })
    }

    /// Puts the items of a list into another order: which one becomes the first, and so on. False if they are others by
    /// now.
    pub fn permute(
        &self,
        open: Option<&mut Open>,
        deadline: u64,
        place: Place,
        order: &[u32],
    ) -> Result<bool, StoreError> {
        self.change(open, deadline, place, |hand| {
            let head = Head::of(hand.t, place)?.is(Type::List)?;
            hand.permute(head, order)
        })
    }
}
