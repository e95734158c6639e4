//! Encoding of values as bytes, for files.
//!
//! Each value begins with a byte. 0 stands for an immediate cell, whose 8 bytes follow; others are numbers of
//! [`Type`]s. Counts and lengths are u64, and all numbers are little-endian:
//!
//! ```text
//!   text, bytes, int, packed        length, bytes
//!   key, alias                      length, bytes from which the key is restored
//!   tuple, frozenset, list, set     count, values
//!   dict                            count, keys with their values
//!   record                          number of the class u32, count, fields, count, attributes with their values
//!   buffer                          length and bytes of its metadata, length, bytes
//! ```

use super::format::cell::{Cell, Content, Type};
use super::format::value::{Bytes, Key, StoredValue, Value};
use std::collections::TryReserveError;

/// The greatest nesting to decode: deeper than in any store, which checks the depth itself.
const DEPTH: usize = super::format::budget::MAX_COPY_DEPTH;
const CELL: u8 = 0;

/// Appends the encoding of a value that was copied with all of its contents; None takes the place of a reference.
/// Returns an error if memory runs out, with a part of the encoding in `out`.
pub fn encode(found: &StoredValue, out: &mut Vec<u8>) -> Result<(), TryReserveError> {
    fn put(out: &mut Vec<u8>, bytes: &[u8]) -> Result<(), TryReserveError> {
        out.try_reserve(bytes.len())?;
        out.extend_from_slice(bytes);
        Ok(())
    }
    fn count(out: &mut Vec<u8>, count: usize) -> Result<(), TryReserveError> {
        put(out, &(count as u64).to_le_bytes())
    }
    fn blob(out: &mut Vec<u8>, bytes: &[u8]) -> Result<(), TryReserveError> {
        count(out, bytes.len())?;
        put(out, bytes)
    }
    fn pairs(
        out: &mut Vec<u8>,
        items: &[(StoredValue, StoredValue)],
    ) -> Result<(), TryReserveError> {
        count(out, items.len())?;
        for (key, value) in items {
            encode(key, out)?;
            encode(value, out)?;
        }
        Ok(())
    }
    fn values(out: &mut Vec<u8>, items: &[StoredValue]) -> Result<(), TryReserveError> {
        count(out, items.len())?;
        items.iter().try_for_each(|item| encode(item, out))
    }
    let cell = |out: &mut Vec<u8>, cell: Cell| {
        put(out, &[CELL])?;
        put(out, &cell.0.to_le_bytes())
    };
    let kind = |out: &mut Vec<u8>, kind: Type| put(out, &[kind as u8]);
    match found {
        StoredValue::Immediate(word) => cell(out, *word),
        StoredValue::Blob(of, bytes) => {
            kind(out, *of)?;
            blob(out, bytes)
        }
        StoredValue::Tuple(items) => {
            kind(out, Type::Tuple)?;
            values(out, items)
        }
        StoredValue::FrozenSet(items) => {
            kind(out, Type::FrozenSet)?;
            values(out, items)
        }
        StoredValue::List(items) => {
            kind(out, Type::List)?;
            values(out, items)
        }
        StoredValue::Set(items) => {
            kind(out, Type::Set)?;
            values(out, items)
        }
        StoredValue::Dict(items) => {
            kind(out, Type::Dict)?;
            pairs(out, items)
        }
        StoredValue::Record(class, fields, extra) => {
            kind(out, Type::Record)?;
            put(out, &class.to_le_bytes())?;
            values(out, fields)?;
            pairs(out, extra)
        }
        StoredValue::Buffer(metadata, bytes) => {
            kind(out, Type::Buffer)?;
            blob(out, metadata)?;
            blob(out, bytes)
        }
        // A whole copy contains none.
        StoredValue::Container(..) => cell(out, Cell::NONE),
    }
}

/// Error of decoding a value.
#[derive(Debug)]
pub enum DecodeError<E> {
    /// No valid value begins at this byte.
    InvalidAt(usize),
    /// No class has this number.
    UnknownClass(u32),
    /// Error of the function that restores keys.
    Key(E),
}

/// A decoder of values that borrow from the bytes. Its methods fail with `InvalidAt` where the bytes end too early or
/// are no valid encoding.
pub struct Decoder<'v, F> {
    bytes: &'v [u8],
    at: usize,
    /// The numbers of the classes in the store that receives the values, by their numbers in the file.
    classes: &'v [u32],
    /// Restores a key from its bytes.
    make_key: F,
}

impl<'v, E, F: Fn(&[u8]) -> Result<Key<'static>, E>> Decoder<'v, F> {
    /// Creates a decoder of these bytes.
    pub fn new(bytes: &'v [u8], classes: &'v [u32], make_key: F) -> Self {
        Decoder {
            bytes,
            at: 0,
            classes,
            make_key,
        }
    }

    /// Decodes all bytes as one dict, and returns its items.
    #[allow(
        clippy::type_complexity,
        reason = "items of a dict, as `Value` has them"
    )]
    pub fn dict(mut self) -> Result<Vec<(Key<'v>, Value<'v>)>, DecodeError<E>> {
        if self.byte()? != Type::Dict as u8 {
            return Err(DecodeError::InvalidAt(0));
        }
        let items = self.pairs(0)?;
        match self.at == self.bytes.len() {
            true => Ok(items),
            false => Err(DecodeError::InvalidAt(self.at)),
        }
    }

    /// Returns the next `len` bytes, and moves behind them.
    fn take(&mut self, len: usize) -> Result<&'v [u8], DecodeError<E>> {
        let taken = self.bytes[self.at..].get(..len);
        let taken = taken.ok_or(DecodeError::InvalidAt(self.at))?;
        self.at += len;
        Ok(taken)
    }

    /// Returns the next byte, and moves behind it.
    fn byte(&mut self) -> Result<u8, DecodeError<E>> {
        Ok(self.take(1)?[0])
    }

    /// Returns the next number of 8 bytes, and moves behind it.
    fn number(&mut self) -> Result<u64, DecodeError<E>> {
        let mut word = [0; 8];
        word.copy_from_slice(self.take(8)?);
        Ok(u64::from_le_bytes(word))
    }

    /// Decodes a count of items of at least one byte each.
    fn count(&mut self) -> Result<usize, DecodeError<E>> {
        let (at, count) = (self.at, self.number()?);
        match usize::try_from(count) {
            Ok(count) if count <= self.bytes.len() - self.at => Ok(count),
            _ => Err(DecodeError::InvalidAt(at)),
        }
    }

    /// Decodes a length and that many bytes.
    fn blob(&mut self) -> Result<Bytes<'v>, DecodeError<E>> {
        let len = self.count()?;
        self.take(len).map(Bytes::Borrowed)
    }

    /// Decodes a cell that holds its whole value.
    fn cell(&mut self) -> Result<Cell, DecodeError<E>> {
        let (at, cell) = (self.at, Cell(self.number()?));
        match cell.content() {
            Some(Content::At(..)) | None => Err(DecodeError::InvalidAt(at)),
            Some(_) => Ok(cell),
        }
    }

    /// Decodes a count and that many values, at this depth.
    fn values(&mut self, depth: usize) -> Result<Vec<Value<'v>>, DecodeError<E>> {
        (0..self.count()?).map(|_| self.value(depth)).collect()
    }

    /// Decodes a count and that many keys.
    fn keys(&mut self) -> Result<Vec<Key<'v>>, DecodeError<E>> {
        (0..self.count()?).map(|_| self.key()).collect()
    }

    /// Decodes a count and that many keys with their values, at this depth.
    #[allow(clippy::type_complexity, reason = "as above")]
    fn pairs(&mut self, depth: usize) -> Result<Vec<(Key<'v>, Value<'v>)>, DecodeError<E>> {
        (0..self.count()?)
            .map(|_| Ok((self.key()?, self.value(depth)?)))
            .collect()
    }

    /// Decodes a key, which `make_key` restores unless it is a built-in value.
    fn key(&mut self) -> Result<Key<'v>, DecodeError<E>> {
        let at = self.at;
        match self.byte()? {
            CELL => self.cell().map(Key::Immediate),
            kind => match Type::of(kind) {
                Some(kind @ (Type::Text | Type::Bytes | Type::Int)) => {
                    self.blob().map(|bytes| Key::Blob(kind, bytes))
                }
                Some(Type::Key | Type::Alias) => {
                    let exact = self.blob()?;
                    (self.make_key)(exact.all()).map_err(DecodeError::Key)
                }
                _ => Err(DecodeError::InvalidAt(at)),
            },
        }
    }

    /// Decodes a value with its contents, at this depth. Fails if the nesting is too deep, and if a record's class is
    /// unknown.
    fn value(&mut self, depth: usize) -> Result<Value<'v>, DecodeError<E>> {
        let at = self.at;
        let kind = match self.byte()? {
            CELL => return self.cell().map(Value::Immediate),
            kind => Type::of(kind).filter(|_| depth < DEPTH),
        };
        let depth = depth + 1;
        Ok(match kind.ok_or(DecodeError::InvalidAt(at))? {
            Type::Key | Type::Alias => return Err(DecodeError::InvalidAt(at)),
            kind @ (Type::Text | Type::Bytes | Type::Int | Type::Packed) => {
                Value::Blob(kind, self.blob()?)
            }
            Type::Tuple => Value::Tuple(self.values(depth)?),
            Type::FrozenSet => Value::FrozenSet(self.keys()?),
            Type::List => Value::List(self.values(depth)?),
            Type::Set => Value::Set(self.keys()?),
            Type::Dict => Value::Dict(self.pairs(depth)?),
            Type::Record => {
                let mut number = [0; 4];
                number.copy_from_slice(self.take(4)?);
                let number = u32::from_le_bytes(number);
                let class = self.classes.get(number as usize);
                let class = *class.ok_or(DecodeError::UnknownClass(number))?;
                let fields = self.values(depth)?;
                let extra = self.pairs(depth)?;
                Value::Record(class, fields, (!extra.is_empty()).then_some(extra))
            }
            Type::Buffer => Value::Buffer(self.blob()?, self.blob()?),
        })
    }
}
