//! Values on their way into a store and out of it.

use super::cell::{Cell, Content, Type};

/// A value to write. It borrows large parts.
#[derive(Debug)]
pub enum Value<'v> {
    /// A value that fits into a cell.
    Immediate(Cell),
    /// Text, bytes, an int or a packed value, by its type.
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
    /// An instance of a class: the number of the class, the fields, and the extra attributes if the class allows them.
    Record(u32, Vec<Value<'v>>, Option<Vec<(Key<'v>, Value<'v>)>>),
    /// A buffer that is changed in place: its metadata for the program, and its bytes.
    Buffer(Bytes<'v>, Bytes<'v>),
}

/// Bytes of a value.
#[derive(Debug)]
pub enum Bytes<'v> {
    /// Borrowed bytes.
    Borrowed(&'v [u8]),
    /// Owned bytes.
    Owned(Vec<u8>),
}

impl Bytes<'_> {
    /// Returns all bytes.
    #[inline]
    pub fn all(&self) -> &[u8] {
        match self {
            Bytes::Borrowed(bytes) => bytes,
            Bytes::Owned(bytes) => bytes,
        }
    }
}

/// A key of a dict, or a member of a set.
#[derive(Debug)]
pub enum Key<'v> {
    /// A key that fits into a cell.
    Immediate(Cell),
    /// Text, bytes, or an int.
    Blob(Type, Bytes<'v>),
    /// Another value: the bytes by which it is compared, and those from which it is restored.
    Other(Vec<u8>, Vec<u8>),
    /// Another value that equals a text, bytes or a number: the equal key, and the bytes from which it is restored.
    Alias(Box<Key<'v>>, Vec<u8>),
}

/// The form in which keys are compared.
#[derive(Debug)]
pub(in crate::store) enum Canonical<'k> {
    Word(u64),
    Blob(Type, &'k [u8]),
    Int(Vec<u8>),
}

impl PartialEq for Canonical<'_> {
    /// Returns true for keys that are equal in Python, such as 1 and 1.0.
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Canonical::Word(one), Canonical::Word(other)) => one == other,
            // Ints are equal, whether they were floats or not.
            _ => self.form() == other.form() && self.bytes() == other.bytes(),
        }
    }
}

/// The first byte of an encoded word. Of an encoded blob it is the number of its type.
const WORD_TAG: u8 = 0;

impl<'k> Canonical<'k> {
    /// Encodes the key for [`from_bytes`](Self::from_bytes).
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

    /// Decodes the bytes of [`to_bytes`](Self::to_bytes). Returns None if they are corrupt.
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

    /// Returns the compared form of an immediate cell.
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

    /// Returns the hash of the key, the same in all processes.
    #[inline]
    pub fn hash(&self) -> u64 {
        match self {
            Canonical::Word(word) => mix(*word ^ SEED, FACTOR),
            Canonical::Blob(kind, bytes) => hash_bytes(*kind as u64, bytes),
            Canonical::Int(bytes) => hash_bytes(Type::Int as u64, bytes),
        }
    }

    /// Returns the bytes of a blob or an int; no bytes for a word.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Canonical::Word(_) => &[],
            Canonical::Blob(_, bytes) => bytes,
            Canonical::Int(bytes) => bytes,
        }
    }

    /// Returns the type and the length of a blob or an int; None for a word.
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
    /// Returns the form in which the key is compared.
    #[inline]
    pub(in crate::store) fn canonical(&self) -> Canonical<'_> {
        match self {
            Key::Immediate(cell) => Canonical::of(*cell),
            Key::Blob(kind, bytes) => Canonical::Blob(*kind, bytes.all()),
            Key::Other(canonical, _) => Canonical::Blob(Type::Key, canonical),
            Key::Alias(equal, _) => equal.canonical(),
        }
    }

    /// Returns the same key without borrowed parts.
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

/// Returns the bytes of the int that equals a whole float of at least 2^47 or at most -2^47: two's complement,
/// little-endian, without redundant bytes.
fn integral(value: f64) -> Vec<u8> {
    let bits = value.abs().to_bits();
    let (mantissa, exponent) = (
        (bits & ((1 << 52) - 1)) | 1 << 52,
        (bits >> 52) as i64 - 1075,
    );
    // The value is at least 2^47, so the exponent is at least -5, and the bits shifted out are 0.
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

/// Drops redundant sign bytes at the end of an int in two's complement, little-endian. At least one byte stays.
pub fn trim(bytes: &mut Vec<u8>) {
    while let [.., before, last] = bytes[..]
        && (last == 0 && before < 0x80 || last == 0xff && before >= 0x80)
    {
        bytes.pop();
    }
}

const SEED: u64 = 0x9e37_79b9_7f4a_7c15;
const FACTOR: u64 = 0xd6e8_feb8_6659_fd93;

/// Multiplies two words and folds the product to one word.
#[inline]
fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// Hashes bytes by folded products, the same way in all processes.
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

/// A reference to a container in a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ContainerRef {
    /// The offset of its header.
    pub at: u64,
    /// Its id, which is never reused.
    pub id: u64,
}

impl StoredValue {
    /// Returns true for a few small values of built-in types, which become Python objects without running code of the
    /// program and without much memory.
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

/// A value copied out of a store.
#[derive(Clone, Debug, PartialEq)]
pub enum StoredValue {
    /// A value that fits into a cell.
    Immediate(Cell),
    /// Text, bytes, an int or a packed value, by its type. Of a key, the bytes from which it is restored.
    Blob(Type, Vec<u8>),
    /// A tuple.
    Tuple(Vec<StoredValue>),
    /// A frozenset.
    FrozenSet(Vec<StoredValue>),
    /// A reference to a container that was not copied: its type, its reference, and its class if it is a record.
    Container(Type, ContainerRef, u32),
    /// A list.
    List(Vec<StoredValue>),
    /// A dict.
    Dict(Vec<(StoredValue, StoredValue)>),
    /// A set.
    Set(Vec<StoredValue>),
    /// A record: its class, its fields, and its extra attributes.
    Record(u32, Vec<StoredValue>, Vec<(StoredValue, StoredValue)>),
    /// A buffer: its metadata for the program, and its bytes.
    Buffer(Vec<u8>, Vec<u8>),
}
