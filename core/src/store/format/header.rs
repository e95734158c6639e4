//! The headers of containers.
//!
//! ```text
//!    0  id       u64   unique among containers, and unlike any cell, length or count, so that other contents of this
//!                      memory never pass for a header; 0 once the container is deleted
//!    8  form     u64   bits 0-7 the type, 8-31 the class of a record, 32-63 the number of items
//!   16  parent   u64   bits 0-39 the offset of the header of the container around it, 0 for those of the store itself;
//!                      from bit 40 on the number of containers and tuples around it
//!   24  payload  u64   the offset of its items, or 0; of a record, the cell of the dict of its extra attributes
//!   32  fields   u64 each, of a record
//! ```

use super::cell::{Cell, Type};
use super::value::ContainerRef;
use crate::shared_heap::access::ReadWords;
use crate::store::error::{StoreError, corrupt_container};

/// Bytes of a header.
pub(in crate::store) const SIZE: u64 = 32;
/// The bound of all offsets: the sum of an offset and a length of 32 bits never overflows.
const OFFSETS: u64 = 1 << 40;
/// The most items of a container.
pub(in crate::store) const MAX_ITEMS: u64 = u32::MAX as u64 - 1;
/// The most classes.
pub(in crate::store) const MAX_CLASSES: u32 = 1 << 24;

pub(in crate::store) const AT_FORM: u64 = 8;
const AT_PARENT: u64 = 16;
/// The lowest bit of the depth in the word of a parent.
const DEPTH: u32 = 40;
pub(in crate::store) const AT_PAYLOAD: u64 = 24;

/// The bits 48-50 of an id, which no cell has.
const ID: u64 = 6 << 48;

/// Returns the id of the container of this number.
pub(in crate::store) fn id(number: u64) -> u64 {
    ID | number & ((1 << 48) - 1)
}

/// The number of different container numbers.
pub(in crate::store) const NUMBERS: u64 = 1 << 48;

/// Returns the number of the container of this id.
#[inline]
pub(in crate::store) fn number(id: u64) -> u64 {
    id & ((1 << 48) - 1)
}

/// Returns true if this word is the id of a container.
#[inline]
pub(in crate::store) fn is_id(word: u64) -> bool {
    word >> 48 == ID >> 48
}

/// The container around a value: the offset of its header, and the number of containers and tuples around the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) struct Parent {
    pub(in crate::store) at: u64,
    pub(in crate::store) depth: u64,
}

impl Parent {
    /// The parent of the containers of the store itself.
    pub(in crate::store) const NONE: Parent = Parent { at: 0, depth: 0 };

    /// Returns the parent of the items of the container whose header lies at this offset.
    #[inline]
    pub(in crate::store) fn of(t: &impl ReadWords, at: u64) -> Result<Self, StoreError> {
        let depth = (t.get(at + AT_PARENT)? >> DEPTH) + 1;
        Ok(Parent { at, depth })
    }

    /// Returns the parent of the items of this container, whose depth `self` has.
    #[inline]
    pub(in crate::store) fn within(self, header: Header) -> Self {
        Parent {
            at: header.at,
            ..self
        }
    }

    /// Returns this parent for values one level deeper, as the items of a tuple are.
    #[inline]
    pub(in crate::store) fn deeper(self) -> Self {
        Parent {
            depth: self.depth + 1,
            ..self
        }
    }

    /// Encodes the parent as a word of a header.
    #[inline]
    pub(in crate::store) fn word(self) -> u64 {
        self.at | self.depth << DEPTH
    }
}

/// Returns the offset of the header around the one at `at`; 0 for the containers of the store itself.
#[inline]
pub(in crate::store) fn parent_at(t: &impl ReadWords, at: u64) -> Result<u64, StoreError> {
    Ok(t.get(at + AT_PARENT)? & (OFFSETS - 1))
}

/// The decoded header of a container, without its parent and its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) struct Header {
    pub(in crate::store) at: u64,
    pub(in crate::store) kind: Type,
    pub(in crate::store) class: u32,
    pub(in crate::store) len: u64,
}

impl Header {
    /// Reads the header of a container, or returns [`StoreError::ContainerDeleted`].
    #[inline]
    pub(in crate::store) fn of(
        t: &impl ReadWords,
        container: ContainerRef,
    ) -> Result<Self, StoreError> {
        // A reference of a program may belong to another store, or be made up.
        match t.get(container.at) {
            Ok(found) if found == container.id && is_id(found) => Self::at(t, container.at),
            _ => Err(StoreError::ContainerDeleted),
        }
    }

    /// Reads the header at an offset to which a cell refers. The id is not checked: see [`header_of`].
    #[inline]
    pub(in crate::store) fn at(t: &impl ReadWords, at: u64) -> Result<Self, StoreError> {
        let form = t.get(at + AT_FORM)?;
        match Type::of(form as u8) {
            Some(kind) if kind.is_container() => Ok(Header {
                at,
                kind,
                class: (form >> 8) as u32 & (MAX_CLASSES - 1),
                len: form >> 32,
            }),
            _ => Err(corrupt_container(at + AT_FORM, form)),
        }
    }

    /// Returns the header if the container is of this type, or else [`StoreError::WrongType`].
    #[inline]
    pub(in crate::store) fn require(self, kind: Type) -> Result<Self, StoreError> {
        match self.kind == kind {
            true => Ok(self),
            false => Err(StoreError::WrongType),
        }
    }

    /// Encodes the form. Returns its offset and the word.
    #[inline]
    pub(in crate::store) fn form(self) -> (u64, u64) {
        let form = self.kind as u64 | u64::from(self.class) << 8 | self.len << 32;
        (self.at + AT_FORM, form)
    }

    /// Returns the offset of the word of the parent.
    pub(in crate::store) fn parent_at(self) -> u64 {
        self.at + AT_PARENT
    }

    /// Returns the offset of the word of the payload.
    #[inline]
    pub(in crate::store) fn payload_at(self) -> u64 {
        self.at + AT_PAYLOAD
    }

    /// Returns the offset of the items, below 2^40, or 0. Not for records.
    #[inline]
    pub(in crate::store) fn payload(self, t: &impl ReadWords) -> Result<u64, StoreError> {
        match t.get(self.payload_at())? {
            at if at < OFFSETS => Ok(at),
            at => Err(corrupt_container(self.payload_at(), at)),
        }
    }

    /// Returns the cell of the extra attributes of a record.
    #[inline]
    pub(in crate::store) fn extra(self, t: &impl ReadWords) -> Result<Cell, StoreError> {
        Ok(Cell(t.get(self.payload_at())?))
    }

    /// Returns the offset of a field of a record, or [`StoreError::IndexOutOfRange`].
    #[inline]
    pub(in crate::store) fn field(self, number: u64) -> Result<u64, StoreError> {
        match number < self.len {
            true => Ok(self.at + SIZE + 8 * number),
            false => Err(StoreError::IndexOutOfRange(self.len)),
        }
    }

    /// Returns the reference to this container.
    pub(in crate::store) fn reference(
        self,
        t: &impl ReadWords,
    ) -> Result<ContainerRef, StoreError> {
        Ok(ContainerRef {
            at: self.at,
            id: t.get(self.at)?,
        })
    }
}

/// Reads the header to which a cell refers by this type and offset. Returns the error for a corrupt container if there
/// is no such header.
pub(in crate::store) fn header_of(
    t: &impl ReadWords,
    kind: Type,
    at: u64,
    cell: Cell,
) -> Result<Header, StoreError> {
    let header = Header::at(t, at)?;
    match header.kind == kind && is_id(t.get(at)?) {
        true => Ok(header),
        false => Err(corrupt_container(at, cell.0)),
    }
}
