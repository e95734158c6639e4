//! Values as bytes, to be kept in a file.
//!
//! Each begins with a byte. 0 is a cell that holds all of its value, and its 8 bytes follow; others are numbers of
//! [`Type`]s. Counts and lengths are u64, all numbers are in little-endian order:
//!
//! ```text
//!   text, bytes, int, packed        length, bytes
//!   key, alias                      length, bytes of which it is made again
//!   tuple, frozenset, list, set     count, values
//!   dict                            count, keys with their values
//!   record                          number of the class u32, count, fields, count, attributes with their values
//!   buffer                          length and bytes of what a program says of it, length, bytes
//! ```

use super::format::cell::{Cell, Content, Type};
use super::format::value::{Bytes, Found, Key, Value};
use std::collections::TryReserveError;

/// The greatest nesting of values: deeper than in any store, which checks by itself.
const DEPTH: usize = super::format::budget::COPIED;
const CELL: u8 = 0;

/// Appends a value, copied as a whole. An error if there is no memory for it.
pub fn write(found: &Found, out: &mut Vec<u8>) -> Result<(), TryReserveError> {
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
    fn pairs(out: &mut Vec<u8>, items: &[(Found, Found)]) -> Result<(), TryReserveError> {
        count(out, items.len())?;
        for (key, value) in items {
            write(key, out)?;
            write(value, out)?;
        }
        Ok(())
    }
    fn all(out: &mut Vec<u8>, items: &[Found]) -> Result<(), TryReserveError> {
        count(out, items.len())?;
        items.iter().try_for_each(|item| write(item, out))
    }
    let cell = |out: &mut Vec<u8>, cell: Cell| {
        put(out, &[CELL])?;
        put(out, &cell.0.to_le_bytes())
    };
    let kind = |out: &mut Vec<u8>, kind: Type| put(out, &[kind as u8]);
    match found {
        Found::Immediate(word) => cell(out, *word),
        Found::Blob(of, bytes) => {
            kind(out, *of)?;
            blob(out, bytes)
        }
        Found::Tuple(items) => {
            kind(out, Type::Tuple)?;
            all(out, items)
        }
        Found::FrozenSet(items) => {
            kind(out, Type::FrozenSet)?;
            all(out, items)
        }
        Found::List(items) => {
            kind(out, Type::List)?;
            all(out, items)
        }
        Found::Set(items) => {
            kind(out, Type::Set)?;
            all(out, items)
        }
        Found::Dict(items) => {
            kind(out, Type::Dict)?;
            pairs(out, items)
        }
        Found::Record(class, fields, extra) => {
            kind(out, Type::Record)?;
            put(out, &class.to_le_bytes())?;
            all(out, fields)?;
            pairs(out, extra)
        }
        Found::Buffer(said, bytes) => {
            kind(out, Type::Buffer)?;
            blob(out, said)?;
            blob(out, bytes)
        }
        // A whole copy has none.
        Found::Container(..) => cell(out, Cell::NONE),
    }
}

/// Why a value cannot be read.
#[derive(Debug)]
pub enum Unreadable<E> {
    /// No value begins at this byte.
    At(usize),
    /// There is no class of this number.
    Class(u32),
    /// What the function for keys says.
    Key(E),
}

/// Reads values, which borrow from the bytes.
pub struct Reader<'v, F> {
    bytes: &'v [u8],
    at: usize,
    /// The numbers that classes have in the store that is written to.
    classes: &'v [u32],
    /// Makes a key again of its bytes.
    again: F,
}

impl<'v, E, F: Fn(&[u8]) -> Result<Key<'static>, E>> Reader<'v, F> {
    /// Reads these.
    pub fn new(bytes: &'v [u8], classes: &'v [u32], again: F) -> Self {
        Reader {
            bytes,
            at: 0,
            classes,
            again,
        }
    }

    /// The items of the dict that the bytes are.
    #[allow(
        clippy::type_complexity,
        reason = "items of a dict, as `Value` has them"
    )]
    pub fn dict(mut self) -> Result<Vec<(Key<'v>, Value<'v>)>, Unreadable<E>> {
        if self.byte()? != Type::Dict as u8 {
            return Err(Unreadable::At(0));
        }
        let items = self.pairs(0)?;
        match self.at == self.bytes.len() {
            true => Ok(items),
            false => Err(Unreadable::At(self.at)),
        }
    }

    fn take(&mut self, len: usize) -> Result<&'v [u8], Unreadable<E>> {
        let taken = self.bytes[self.at..].get(..len);
        let taken = taken.ok_or(Unreadable::At(self.at))?;
        self.at += len;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, Unreadable<E>> {
        Ok(self.take(1)?[0])
    }

    fn number(&mut self) -> Result<u64, Unreadable<E>> {
        let mut word = [0; 8];
        word.copy_from_slice(self.take(8)?);
        Ok(u64::from_le_bytes(word))
    }

    /// A count of what takes at least a byte each.
    fn count(&mut self) -> Result<usize, Unreadable<E>> {
        let (at, count) = (self.at, self.number()?);
        match usize::try_from(count) {
            Ok(count) if count <= self.bytes.len() - self.at => Ok(count),
            _ => Err(Unreadable::At(at)),
        }
    }

    fn blob(&mut self) -> Result<Bytes<'v>, Unreadable<E>> {
        let len = self.count()?;
        self.take(len).map(Bytes::Borrowed)
    }

    fn cell(&mut self) -> Result<Cell, Unreadable<E>> {
        let (at, cell) = (self.at, Cell(self.number()?));
        match cell.content() {
            Some(Content::At(..)) | None => Err(Unreadable::At(at)),
            Some(_) => Ok(cell),
        }
    }

    fn values(&mut self, depth: usize) -> Result<Vec<Value<'v>>, Unreadable<E>> {
        (0..self.count()?).map(|_| self.value(depth)).collect()
    }

    fn keys(&mut self) -> Result<Vec<Key<'v>>, Unreadable<E>> {
        (0..self.count()?).map(|_| self.key()).collect()
    }

    #[allow(clippy::type_complexity, reason = "as above")]
    fn pairs(&mut self, depth: usize) -> Result<Vec<(Key<'v>, Value<'v>)>, Unreadable<E>> {
        (0..self.count()?)
            .map(|_| Ok((self.key()?, self.value(depth)?)))
            .collect()
    }

    fn key(&mut self) -> Result<Key<'v>, Unreadable<E>> {
        let at = self.at;
        match self.byte()? {
            CELL => self.cell().map(Key::Immediate),
            kind => match Type::of(kind) {
                Some(kind @ (Type::Text | Type::Bytes | Type::Int)) => {
                    self.blob().map(|bytes| Key::Blob(kind, bytes))
                }
                Some(Type::Key | Type::Alias) => {
                    let exact = self.blob()?;
                    (self.again)(exact.all()).map_err(Unreadable::Key)
                }
                _ => Err(Unreadable::At(at)),
            },
        }
    }

    fn value(&mut self, depth: usize) -> Result<Value<'v>, Unreadable<E>> {
        let at = self.at;
        let kind = match self.byte()? {
            CELL => return self.cell().map(Value::Immediate),
            kind => Type::of(kind).filter(|_| depth < DEPTH),
        };
        let depth = depth + 1;
        Ok(match kind.ok_or(Unreadable::At(at))? {
            Type::Key | Type::Alias => return Err(Unreadable::At(at)),
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
                let class = *class.ok_or(Unreadable::Class(number))?;
                let fields = self.values(depth)?;
                let extra = self.pairs(depth)?;
                Value::Record(class, fields, (!extra.is_empty()).then_some(extra))
            }
            Type::Buffer => Value::Buffer(self.blob()?, self.blob()?),
        })
    }
}
