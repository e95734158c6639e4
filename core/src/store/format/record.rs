//! The extra attributes of records, beyond their fields.

use super::cell::{Cell, Content, Type};
use super::header::{Header, Parent};
use super::mutator::Mutator;
use crate::shared_heap::access::{ReadWords, WriteWords};
use crate::shared_heap::{Members, Words};
use crate::store::error::{StoreError, corrupt_container};

/// Returns the dict of the extra attributes of a record, if there is one.
pub(in crate::store) fn extra_of(
    t: &impl ReadWords,
    header: Header,
) -> Result<Option<Header>, StoreError> {
    let cell = header.extra(t)?;
    match cell.content() {
        Some(Content::Nothing) => Ok(None),
        Some(Content::At(Type::Dict, at)) => match Header::at(t, at)? {
            extra if extra.kind == Type::Dict => Ok(Some(extra)),
            _ => Err(corrupt_container(at, cell.0)),
        },
        _ => Err(corrupt_container(header.at, cell.0)),
    }
}

impl<W: Words, M: Members> Mutator<'_, '_, W, M> {
    /// Returns the dict of the extra attributes of a record. Creates it if there is none. Fails with
    /// [`StoreError::WrongType`] for other containers.
    pub(in crate::store) fn extra_dict(&mut self, header: Header) -> Result<Header, StoreError> {
        let header = header.require(Type::Record)?;
        if let Some(extra) = extra_of(self.t, header)? {
            return Ok(extra);
        }
        let parent = Parent::of(self.t, header.at)?;
        let extra = self.make_header(Type::Dict, 0, 0, parent)?;
        self.t
            .set(header.payload_at(), Cell::at(Type::Dict, extra.at).0)?;
        Ok(extra)
    }
}
