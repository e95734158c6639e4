//! Messages.

use crate::crash;
use crate::shared_heap::undo_log::See;
use crate::shared_heap::{Members, Words};
use crate::store::error::{StoreError, no_container};
use crate::store::format::cell::Type;
use crate::store::format::copy;
use crate::store::format::head::{Head, Owner};
use crate::store::format::list::Cells;
use crate::store::format::roots::Root;
use crate::store::format::value::{Found, Value};
use crate::store::handle::Store;
use crate::store::transaction::{Open, look};

impl<W: Words, M: Members> Store<W, M> {
    /// Puts a message behind the others, or before them: one that was taken is given back.
    pub fn send(
        &self,
        open: Option<&mut Open>,
        deadline: u64,
        value: &Value<'_>,
        is_back: bool,
    ) -> Result<(), StoreError> {
        self.operate(open, deadline, |hand, tidings| {
            let head = self.inbox(hand.t)?;
            let owner = Owner::of(hand.t, head.at)?;
            let cell = hand.put(value, owner)?;
            let index = if is_back { 0 } else { head.len };
            hand.splice(head, index, index, &[cell])?;
            tidings.news.messages += 1;
            Ok(())
        })
    }

    /// Takes the first message, copied as [`remove`](Self::remove) does, if it is `wanted`; None if there is none.
    pub fn receive(
        &self,
        open: Option<&mut Open>,
        deadline: u64,
        wanted: impl Fn(&Found) -> bool,
    ) -> Result<Option<Found>, StoreError> {
        let received = self.operate(open, deadline, |hand, _| {
            let head = self.inbox(hand.t)?;
            if head.len == 0 {
                return Ok(None);
            }
            let cell = Cells::of(hand.t, head)?.cell(hand.t, 0)?;
            let found = copy::copy(hand.t, cell, true, &mut self.bound.naming_buffers())?;
            if !wanted(&found) {
                return Err(StoreError::Other);
            }
            hand.splice(head, 0, 1, &[])?;
            hand.free_all(cell)?;
            Ok(Some(found))
        });
        crash::point!(MessageTaken);
        received
    }

    /// The first message, copied as [`get_whole`](Self::get_whole) does; it stays. None if there is none.
    pub fn first_message(
        &self,
        open: Option<&mut Open>,
        deadline: u64,
    ) -> Result<Option<(Found, Found)>, StoreError> {
        look!(self, open, deadline, None, |t| self.peek(t))
    }

    pub(in crate::store) fn peek(
        &self,
        t: &impl See,
    ) -> Result<Option<(Found, Found)>, StoreError> {
        let head = self.inbox(t)?;
        if head.len == 0 {
            return Ok(None);
        }
        let cell = Cells::of(t, head)?.cell(t, 0)?;
        self.whole(t, cell).map(Some)
    }

    /// Whether there are messages.
    pub fn has_messages(&self, deadline: u64) -> Result<bool, StoreError> {
        self.log.read(deadline, |t| Ok(self.inbox(t)?.len > 0))
    }

    pub(in crate::store) fn inbox(&self, t: &impl See) -> Result<Head, StoreError> {
        let head = Head::of(t, self.place_of(t, Root::Inbox)?)?;
        match head.kind {
            Type::List => Ok(head),
            // It is the store's own: no program has said so.
            _ => Err(no_container(head.form().0, head.form().1)),
        }
    }
}
