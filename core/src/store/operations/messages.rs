//! The inbox of a store: a list of messages.
//!
//! The meaning of `open` and `deadline`, and the errors that all operations have in common: see `operations/mod.rs`.

use crate::crash;
use crate::shared_heap::access::ReadWords;
use crate::shared_heap::{Members, Words};
use crate::store::error::{StoreError, corrupt_container};
use crate::store::format::cell::Type;
use crate::store::format::copy;
use crate::store::format::header::{Header, Parent};
use crate::store::format::list::Cells;
use crate::store::format::roots::Root;
use crate::store::format::value::{StoredValue, Value};
use crate::store::handle::Store;
use crate::store::transaction::{OpenTransaction, read};

impl<W: Words, M: Members> Store<W, M> {
    /// Adds a message at the end of the inbox, or at its beginning if `is_returned`: a received message that goes back.
    /// The caller then notifies receivers by [`take_notice`](Self::take_notice).
    pub fn send(
        &self,
        open: Option<&mut OpenTransaction>,
        deadline: u64,
        value: &Value<'_>,
        is_returned: bool,
    ) -> Result<(), StoreError> {
        self.operate(open, deadline, |mutator, notifications| {
            let header = self.inbox(mutator.t)?;
            let parent = Parent::of(mutator.t, header.at)?;
            let cell = mutator.write(value, parent)?;
            let index = if is_returned { 0 } else { header.len };
            mutator.splice(header, index, index, &[cell])?;
            notifications.notice.messages += 1;
            Ok(())
        })
    }

    /// Removes and returns the first message, copied as by [`remove`](Self::remove). Returns None, without a wait, if
    /// there is none. Fails with [`StoreError::Unwanted`] and changes nothing unless `wanted` accepts it.
    pub fn receive(
        &self,
        open: Option<&mut OpenTransaction>,
        deadline: u64,
        wanted: impl Fn(&StoredValue) -> bool,
    ) -> Result<Option<StoredValue>, StoreError> {
        let received = self.operate(open, deadline, |mutator, _| {
            let header = self.inbox(mutator.t)?;
            if header.len == 0 {
                return Ok(None);
            }
            let cell = Cells::of(mutator.t, header)?.cell(mutator.t, 0)?;
            let found = copy::copy(mutator.t, cell, true, &mut self.budget.without_buffers())?;
            if !wanted(&found) {
                return Err(StoreError::Unwanted);
            }
            mutator.splice(header, 0, 1, &[])?;
            mutator.free_cell(cell)?;
            Ok(Some(found))
        });
        crash::point!(MessageTaken);
        received
    }

    /// Returns the first message, copied as by [`get_copy`](Self::get_copy), which stays. Returns None if there is
    /// none.
    pub fn first_message(
        &self,
        open: Option<&mut OpenTransaction>,
        deadline: u64,
    ) -> Result<Option<(StoredValue, StoredValue)>, StoreError> {
        read!(self, open, deadline, None, |t| self.peek(t))
    }

    /// Returns two copies of the first message; None if there is none.
    pub(in crate::store) fn peek(
        &self,
        t: &impl ReadWords,
    ) -> Result<Option<(StoredValue, StoredValue)>, StoreError> {
        let header = self.inbox(t)?;
        if header.len == 0 {
            return Ok(None);
        }
        let cell = Cells::of(t, header)?.cell(t, 0)?;
        self.copies_of(t, cell).map(Some)
    }

    /// Returns true if there are committed messages.
    pub fn has_messages(&self, deadline: u64) -> Result<bool, StoreError> {
        self.log.read(deadline, |t| Ok(self.inbox(t)?.len > 0))
    }

    /// Returns the header of the inbox.
    pub(in crate::store) fn inbox(&self, t: &impl ReadWords) -> Result<Header, StoreError> {
        let header = Header::of(t, self.container_of(t, Root::Inbox)?)?;
        match header.kind {
            Type::List => Ok(header),
            // The inbox is the store's own container, so a wrong type is a corruption and no mistake of the caller.
            _ => Err(corrupt_container(header.form().0, header.form().1)),
        }
    }
}
