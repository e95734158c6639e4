//! Immutable values that do not fit into a cell.
//!
//! ```text
//!   text, bytes, int, packed   length in bytes u64, and the bytes
//!   key, alias                 the length of its comparison bytes in the low half, and of its restore bytes in the
//!                              high half; the former, and the latter from the next multiple of 8 on
//!   tuple, frozenset           number of cells u64, and the cells
//! ```

use super::cell::Type;
use super::mutator::Mutator;
use crate::shared_heap::access::{ReadWords, WriteWords};
use crate::shared_heap::{Members, Words};
use crate::store::error::StoreError;

/// Appends the bytes of a text, bytes, an int or a packed value; of a key, its restore bytes.
pub(in crate::store) fn append_bytes(
    t: &impl ReadWords,
    kind: Type,
    at: u64,
    out: &mut Vec<u8>,
) -> Result<(), StoreError> {
    let word = t.get(at)?;
    let (at, len) = match kind {
        Type::Key | Type::Alias => (
            at + 8 + (word & 0xffff_ffff).next_multiple_of(8),
            word >> 32,
        ),
        _ => (at + 8, word),
    };
    Ok(t.copy(at, len, out)?)
}

/// Returns the number of bytes that [`append_bytes`] appends.
pub(in crate::store) fn len(t: &impl ReadWords, kind: Type, at: u64) -> Result<u64, StoreError> {
    let word = t.get(at)?;
    Ok(match kind {
        Type::Key | Type::Alias => word >> 32,
        _ => word,
    })
}

/// Returns the number of comparison bytes of a key.
#[inline]
pub(in crate::store) fn key_len(
    t: &impl ReadWords,
    kind: Type,
    at: u64,
) -> Result<u64, StoreError> {
    let word = t.get(at)?;
    Ok(match kind {
        Type::Key | Type::Alias => word & 0xffff_ffff,
        _ => word,
    })
}

/// Appends the comparison bytes of a key.
#[inline]
pub(in crate::store) fn append_key_bytes(
    t: &impl ReadWords,
    kind: Type,
    at: u64,
    out: &mut Vec<u8>,
) -> Result<(), StoreError> {
    let len = key_len(t, kind, at)?;
    Ok(t.copy(at + 8, len, out)?)
}

/// Returns true if the comparison bytes of a key equal these bytes. Their number must be the same.
#[inline]
pub(in crate::store) fn key_equals(
    t: &impl ReadWords,
    at: u64,
    bytes: &[u8],
) -> Result<bool, StoreError> {
    for (number, chunk) in (1..).zip(bytes.chunks(8)) {
        let found = t.get(at + 8 * number)?.to_ne_bytes();
        if found[..chunk.len()] != *chunk {
            return Ok(false);
        }
    }
    Ok(true)
}

impl<W: Words, M: Members> Mutator<'_, '_, W, M> {
    /// Writes bytes into a new block, with their length. Returns its offset.
    pub(in crate::store) fn write_blob(&mut self, bytes: &[u8]) -> Result<u64, StoreError> {
        let at = self.allocate(8 + bytes.len() as u64)?;
        self.t.init(at, bytes.len() as u64)?;
        self.t.init_bytes(at + 8, bytes)?;
        Ok(at)
    }

    /// Writes the comparison bytes and the restore bytes of a key into a new block. Returns its offset, or
    /// [`StoreError::CapacityExceeded`] for 4 GiB or more.
    pub(in crate::store) fn write_key_blob(
        &mut self,
        canonical: &[u8],
        exact: &[u8],
    ) -> Result<u64, StoreError> {
        let [first, second] = [canonical, exact].map(|bytes| bytes.len() as u64);
        if first.max(second) >= 1 << 32 {
            return Err(StoreError::CapacityExceeded);
        }
        let rest = 8 + first.next_multiple_of(8);
        let at = self.allocate(rest + second)?;
        self.t.init(at, first | second << 32)?;
        self.t.init_bytes(at + 8, canonical)?;
        self.t.init_bytes(at + rest, exact)?;
        Ok(at)
    }
}
