//! The heads of containers.
//!
//! ```text
//!    0  id       u64   never that of another container, and no cell, length or count: what lies there later is none; 0 if
//!                      it is gone
//!    8  form     u64   bits 0-7 the type, 8-31 the class of a record, 32-63 how many it has
//!   16  owner    u64   bits 0-39 where the head of the container lies that it is in; 0 for those of the store itself; from
//!                      bit 40 on how many containers and tuples it is in
//!   24  payload  u64   where its items lie, or 0; of a record, the cell of the dict of what it has beyond its fields
//!   32  fields   u64 each, of a record
//! ```

use super::cell::{Cell, Type};
use super::value::ContainerRef;
use crate::shared_heap::access::ReadWords;
use crate::store::error::{StoreError, corrupt_container};

/// Bytes of a head.
pub(in crate::store) const SIZE: u64 = 32;
/// All offsets are less: no sum of one and a length of 32 bits is too large.
const OFFSETS: u64 = 1 << 40;
/// As many as a container may have.
pub(in crate::store) const MOST: u64 = u32::MAX as u64 - 1;
/// As many classes as there may be.
pub(in crate::store) const CLASSES: u32 = 1 << 24;

pub(in crate::store) const AT_FORM: u64 = 8;
const AT_PARENT: u64 = 16;
/// The bit of the word of an owner from which on it says a depth.
const DEPTH: u32 = 40;
pub(in crate::store) const AT_PAYLOAD: u64 = 24;

/// The bits 48-50 of an id, of which there is no cell.
const ID: u64 = 6 << 48;

/// The id of the container of this number.
pub(in crate::store) fn id(number: u64) -> u64 {
    ID | number & ((1 << 48) - 1)
}

/// The count of numbers that containers may have.
pub(in crate::store) const NUMBERS: u64 = 1 << 48;

/// The number of the container of this id.
#[inline]
pub(in crate::store) fn number(id: u64) -> u64 {
    id & ((1 << 48) - 1)
}

/// Whether this is the id of a container.
#[inline]
pub(in crate::store) fn is_id(word: u64) -> bool {
    word >> 48 == ID >> 48
}

/// The container that a value is put into: the place of its head, and the number of containers and tuples around the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) struct Parent {
    pub(in crate::store) at: u64,
    pub(in crate::store) depth: u64,
}

impl Parent {
    /// That of the containers of the store itself.
    pub(in crate::store) const NONE: Parent = Parent { at: 0, depth: 0 };

    /// That of a container whose head lies there, which says so itself.
    #[inline]
    pub(in crate::store) fn of(t: &impl ReadWords, at: u64) -> Result<Self, StoreError> {
        let depth = (t.get(at + AT_PARENT)? >> DEPTH) + 1;
        Ok(Parent { at, depth })
    }

    /// That of what is in a container, which is as deep.
    #[inline]
    pub(in crate::store) fn within(self, header: Header) -> Self {
        Parent {
            at: header.at,
            ..self
        }
    }

    /// That of what is in a tuple within it.
    #[inline]
    pub(in crate::store) fn deeper(self) -> Self {
        Parent {
            depth: self.depth + 1,
            ..self
        }
    }

    /// The word that says it.
    #[inline]
    pub(in crate::store) fn word(self) -> u64 {
        self.at | self.depth << DEPTH
    }
}

/// Where the head of the container lies that one is in; 0 for those of the store itself.
#[inline]
pub(in crate::store) fn parent_at(t: &impl ReadWords, at: u64) -> Result<u64, StoreError> {
    Ok(t.get(at + AT_PARENT)? & (OFFSETS - 1))
}

/// What a head says, but for its owner and its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) struct Header {
    pub(in crate::store) at: u64,
    pub(in crate::store) kind: Type,
    pub(in crate::store) class: u32,
    pub(in crate::store) len: u64,
}

impl Header {
    /// That of a container, if it is not gone.
    #[inline]
    pub(in crate::store) fn of(
        t: &impl ReadWords,
        container: ContainerRef,
    ) -> Result<Self, StoreError> {
        // What a program says of a place may be of another store, or be made up.
        match t.get(container.at) {
            Ok(found) if found == container.id && is_id(found) => Self::at(t, container.at),
            _ => Err(StoreError::ContainerDeleted),
        }
    }

    /// That at an offset, of a container that a cell leads to.
    #[inline]
    pub(in crate::store) fn at(t: &impl ReadWords, at: u64) -> Result<Self, StoreError> {
        let form = t.get(at + AT_FORM)?;
        match Type::of(form as u8) {
            Some(kind) if kind.is_container() => Ok(Header {
                at,
                kind,
                class: (form >> 8) as u32 & (CLASSES - 1),
                len: form >> 32,
            }),
            _ => Err(corrupt_container(at + AT_FORM, form)),
        }
    }

    /// The same, if it is of this type.
    #[inline]
    pub(in crate::store) fn is(self, kind: Type) -> Result<Self, StoreError> {
        match self.kind == kind {
            true => Ok(self),
            false => Err(StoreError::WrongType),
        }
    }

    /// The word that says it.
    #[inline]
    pub(in crate::store) fn form(self) -> (u64, u64) {
        let form = self.kind as u64 | u64::from(self.class) << 8 | self.len << 32;
        (self.at + AT_FORM, form)
    }

    /// Where it is said in what it is.
    pub(in crate::store) fn parent_at(self) -> u64 {
        self.at + AT_PARENT
    }

    /// Where it is said where its items lie.
    #[inline]
    pub(in crate::store) fn payload_at(self) -> u64 {
        self.at + AT_PAYLOAD
    }

    /// Where its items lie, or 0; not of a record.
    #[inline]
    pub(in crate::store) fn payload(self, t: &impl ReadWords) -> Result<u64, StoreError> {
        match t.get(self.payload_at())? {
            at if at < OFFSETS => Ok(at),
            at => Err(corrupt_container(self.payload_at(), at)),
        }
    }

    /// The cell of what a record has beyond its fields.
    #[inline]
    pub(in crate::store) fn extra(self, t: &impl ReadWords) -> Result<Cell, StoreError> {
        Ok(Cell(t.get(self.payload_at())?))
    }

    /// Where a field of a record lies.
    #[inline]
    pub(in crate::store) fn field(self, number: u64) -> Result<u64, StoreError> {
        match number < self.len {
            true => Ok(self.at + SIZE + 8 * number),
            false => Err(StoreError::IndexOutOfRange(self.len)),
        }
    }

    /// Which container it is.
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

/// The head that a cell leads to.
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
