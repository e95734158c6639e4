//! Records: what they have beyond their fields.

use super::cell::{Cell, Content, Type};
use super::head::{Head, Owner};
use super::mutator::Hand;
use crate::shared_heap::undo_log::{Change, See};
use crate::shared_heap::{Members, Words};
use crate::store::error::{StoreError, no_container};

/// The dict of what a record has beyond its fields, if there is one.
pub(in crate::store) fn extra_of(t: &impl See, head: Head) -> Result<Option<Head>, StoreError> {
    let cell = head.extra(t)?;
    match cell.content() {
        Some(Content::Nothing) => Ok(None),
        Some(Content::At(Type::Dict, at)) => match Head::at(t, at)? {
            extra if extra.kind == Type::Dict => Ok(Some(extra)),
            _ => Err(no_container(at, cell.0)),
        },
        _ => Err(no_container(head.at, cell.0)),
    }
}

impl<W: Words, M: Members> Hand<'_, '_, W, M> {
    /// The same, made if there is none.
    pub(in crate::store) fn extra(&mut self, head: Head) -> Result<Head, StoreError> {
        let head = head.is(Type::Record)?;
        if let Some(extra) = extra_of(self.t, head)? {
            return Ok(extra);
        }
        let owner = Owner::of(self.t, head.at)?;
        let extra = self.make_head(Type::Dict, 0, 0, owner)?;
        self.t
            .set(head.payload_at(), Cell::at(Type::Dict, extra.at).0)?;
        Ok(extra)
    }
}
