//! Values of a program: on their way into a store, and out of it.

use super::cell::{Cell, Content, Type};

/// A value that is written. It borrows what is large.
#[derive(Debug)]
pub enum Value<'v> {
    /// What fits into a cell.
    Immediate(Cell),
    /// Text, bytes, an int, or what a codec has made: the type says which.
    Blob(Type, Bytes<'v>),
    /// A tuple.
    Tuple(Vec<Value<'v>>),
    /// A frozenset.
    FrozenSet(Vec<Key<'v>>),
    /// A list.
    List(Vec<Value<'v>>),
    /// A dict.
    Dict(Vec<(Key<'v>, Value<'v>)>),
    /// A set.
    Set(Vec<Key<'v>>),
    /// An instance of a class: its fields, and the attributes beyond them if the class is open.
    Record(u32, Vec<Value<'v>>, Option<Vec<(Key<'v>, Value<'v>)>>),
    /// Bytes that are changed in place, and what a program says of them.
    Buffer(Bytes<'v>, Bytes<'v>),
}

/// Bytes of a value.
#[derive(Debug)]
pub enum Bytes<'v> {
    /// Those of somebody else.
    Borrowed(&'v [u8]),
    /// Those that were made for it.
    Owned(Vec<u8>),
}

impl Bytes<'_> {
    /// All of them.
    #[inline]
    pub fn all(&self) -> &[u8] {
        match self {
            Bytes::Borrowed(bytes) => bytes,
            Bytes::Owned(bytes) => bytes,
        }
    }
}

/// A key, or a member of a set.
#[derive(Debug)]
pub enum Key<'v> {
    /// What fits into a cell.
    Immediate(Cell),
    /// Text, bytes, or an int.
    Blob(Type, Bytes<'v>),
    /// Another value: the bytes by which it is compared, and those of which it is made again.
    Other(Vec<u8>, Vec<u8>),
    /// Another value that equals a text, bytes or a number: that, and the bytes of which it is made again.
    Alias(Box<Key<'v>>, Vec<u8>),
}

/// What keys are compared by.
#[derive(Debug)]
pub(in crate::store) enum Canonical<'k> {
    Word(u64),
    Blob(Type, &'k [u8]),
    Int(Vec<u8>),
}

impl PartialEq for Canonical<'_> {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Canonical::Word(one), Canonical::Word(other)) => one == other,
            // An int is the same one whether it was a float or not.
            _ => self.form() == other.form() && self.bytes() == other.bytes(),
        }
    }
}

/// The first byte of what a word is written as; of a blob it is the number of its type.
const WORD_TAG: u8 = 0;

impl<'k> Canonical<'k> {
    /// The bytes from which [`of_flat`](Self::of_flat) makes it again.
    pub fn to_bytes(&self) -> Vec<u8> {
        let (kind, word);
        let (first, bytes) = match self {
            Canonical::Word(found) => {
                word = found.to_le_bytes();
                (WORD_TAG, &word[..])
            }
            _ => {
                kind = self.form().map_or(WORD_TAG, |(kind, _)| kind as u8);
                (kind, self.bytes())
            }
        };
        [&[first], bytes].concat()
    }

    /// Reads such bytes; None if they are of no known form.
    pub fn from_bytes(bytes: &'k [u8]) -> Option<Self> {
        let (first, rest) = bytes.split_first()?;
        if *first == WORD_TAG {
            let cell = Cell(u64::from_le_bytes(rest.try_into().ok()?));
            return match cell.content() {
                None | Some(Content::At(..)) => None,
                Some(_) => Some(Canonical::of(cell)),
            };
        }
        match Type::of(*first) {
            Some(kind @ (Type::Text | Type::Bytes | Type::Int)) => {
                Some(Canonical::Blob(kind, rest))
            }
            _ => None,
        }
    }

    /// Of a word that is no reference.
    #[inline]
    pub fn of(cell: Cell) -> Self {
        let cell = cell.as_key();
        match cell.content() {
            Some(Content::Float(value)) if value.is_finite() && value == value.trunc() => {
                Canonical::Int(integral(value))
            }
            _ => Canonical::Word(cell.0),
        }
    }

    #[inline]
    pub fn hash(&self) -> u64 {
        match self {
            Canonical::Word(word) => mix(*word ^ SEED, FACTOR),
            Canonical::Blob(kind, bytes) => hash_bytes(*kind as u64, bytes),
            Canonical::Int(bytes) => hash_bytes(Type::Int as u64, bytes),
        }
    }

    /// The bytes of a blob.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Canonical::Word(_) => &[],
            Canonical::Blob(_, bytes) => bytes,
            Canonical::Int(bytes) => bytes,
        }
    }

    /// Of a blob: its type, and how many bytes.
    #[inline]
    pub fn form(&self) -> Option<(Type, u64)> {
        match self {
            Canonical::Word(_) => None,
            Canonical::Blob(kind, bytes) => Some((*kind, bytes.len() as u64)),
            Canonical::Int(bytes) => Some((Type::Int, bytes.len() as u64)),
        }
    }
}

impl Key<'_> {
    #[inline]
    pub(in crate::store) fn canonical(&self) -> Canonical<'_> {
        match self {
            Key::Immediate(cell) => Canonical::of(*cell),
            Key::Blob(kind, bytes) => Canonical::Blob(*kind, bytes.all()),
            Key::Other(canonical, _) => Canonical::Blob(Type::Key, canonical),
            Key::Alias(equal, _) => equal.canonical(),
        }
    }

    /// The same key, which borrows nothing.
    pub fn into_owned(self) -> Key<'static> {
        match self {
            Key::Immediate(cell) => Key::Immediate(cell),
            Key::Blob(kind, bytes) => Key::Blob(
                kind,
                Bytes::Owned(match bytes {
                    Bytes::Borrowed(bytes) => bytes.to_vec(),
                    Bytes::Owned(bytes) => bytes,
                }),
            ),
            Key::Other(canonical, exact) => Key::Other(canonical, exact),
            Key::Alias(equal, exact) => Key::Alias(Box::new(equal.into_owned()), exact),
        }
    }
}

/// The bytes of an int that a float is: as few as it takes, the least first, with a sign.
fn integral(value: f64) -> Vec<u8> {
    let bits = value.abs().to_bits();
    let (mantissa, exponent) = (
        (bits & ((1 << 52) - 1)) | 1 << 52,
        (bits >> 52) as i64 - 1075,
    );
    // At least 2^47, so that the exponent may be below 0 by 5 at most; then what is shifted out is 0.
    let (whole, shift) = match exponent {
        ..0 => (mantissa >> -exponent, 0),
        _ => (mantissa, exponent as usize),
    };
    let mut bytes = vec![0; shift / 8];
    bytes.extend_from_slice(&(u128::from(whole) << (shift % 8)).to_le_bytes());
    if value < 0.0 {
        let mut carry = true;
        for byte in &mut bytes {
            let (sum, over) = (!*byte).overflowing_add(u8::from(carry));
            (*byte, carry) = (sum, over);
        }
    }
    trim(&mut bytes);
    bytes
}

/// Drops the last bytes of an int that say nothing but the sign that is said before them.
pub fn trim(bytes: &mut Vec<u8>) {
    while let [.., before, last] = bytes[..]
        && (last == 0 && before < 0x80 || last == 0xff && before >= 0x80)
    {
        bytes.pop();
    }
}

const SEED: u64 = 0x9e37_79b9_7f4a_7c15;
const FACTOR: u64 = 0xd6e8_feb8_6659_fd93;

#[inline]
fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// A hash that all processes agree on, by folded products.
#[inline]
fn hash_bytes(kind: u64, bytes: &[u8]) -> u64 {
    let mut state = SEED ^ kind ^ (bytes.len() as u64) << 8;
    let mut chunks = bytes.chunks_exact(8);
    for chunk in &mut chunks {
        let mut word = [0; 8];
        word.copy_from_slice(chunk);
        state = mix(state ^ u64::from_le_bytes(word), FACTOR);
    }
    let rest = chunks.remainder();
    let mut word = [0; 8];
    word[..rest.len()].copy_from_slice(rest);
    mix(state ^ u64::from_le_bytes(word), SEED | 1)
}

/// A container in a store: where its head lies, and its number, which no other ever has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ContainerRef {
    /// Where its head lies.
    pub at: u64,
    /// Its number.
    pub id: u64,
}

impl StoredValue {
    /// Returns true for a few values of the core's own types, which become Python objects without running the program's code
    /// and without much memory.
    pub fn is_plain(&self) -> bool {
        fn is_plain(found: &StoredValue, left: &mut usize) -> bool {
            let Some(rest) = left.checked_sub(1) else {
                return false;
            };
            *left = rest;
            match found {
                StoredValue::Immediate(_) => true,
                StoredValue::Blob(Type::Text | Type::Bytes | Type::Int, bytes) => {
                    bytes.len() < 1 << 12
                }
                StoredValue::Tuple(items)
                | StoredValue::FrozenSet(items)
                | StoredValue::List(items) => items.iter().all(|item| is_plain(item, left)),
                StoredValue::Set(items) => items.iter().all(|item| is_plain(item, left)),
                StoredValue::Dict(items) => items
                    .iter()
                    .all(|(key, item)| is_plain(key, left) && is_plain(item, left)),
                _ => false,
            }
        }
        is_plain(self, &mut { 64 })
    }
}

/// A value as it was found in a store, copied.
#[derive(Clone, Debug, PartialEq)]
pub enum StoredValue {
    /// What fits into a cell.
    Immediate(Cell),
    /// Text, bytes, an int, or what a codec has made: the type says which. Of a key, the bytes of which it is made again.
    Blob(Type, Vec<u8>),
    /// A tuple.
    Tuple(Vec<StoredValue>),
    /// A frozenset.
    FrozenSet(Vec<StoredValue>),
    /// A container, which was not copied: its type, and its class if it is a record.
    Container(Type, ContainerRef, u32),
    /// A list, copied.
    List(Vec<StoredValue>),
    /// A dict, copied.
    Dict(Vec<(StoredValue, StoredValue)>),
    /// A set, copied.
    Set(Vec<StoredValue>),
    /// A record, copied: its class, its fields, and what it has beyond them.
    Record(u32, Vec<StoredValue>, Vec<(StoredValue, StoredValue)>),
    /// A buffer, copied: what a program says of it, and its bytes.
    Buffer(Vec<u8>, Vec<u8>),
}
