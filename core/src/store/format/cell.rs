//! A value, or a reference to one, in one word.
//!
//! ```text
//!   0                       empty
//!   bits 48-50 = 1          an int of 48 bits
//!              = 2, 3       text, bytes: up to 5 bytes in the low 40 bits, their number in bits 40-47
//!              = 4          0 None, 1 False, 2 True
//!              = 5          a reference to a block: its type in bits 40-47, its offset in the low 40 bits
//!   anything above          a float, all of whose bits are inverted; all NaNs are the same
//! ```

/// The least word that is a float. Below it, the inverted bits would be negative NaNs, which are not used.
const FLOATS: u64 = 1 << 51;
const TAG: u32 = 48;
const INT: u64 = 1;
const TEXT: u64 = 2;
const BYTES: u64 = 3;
const CONSTANT: u64 = 4;
const REFERENCE: u64 = 5;
/// The most bytes of a text that fits into a cell.
const SHORT: usize = 5;
const LOW: u64 = (1 << 40) - 1;

/// The type of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Type {
    /// Text in UTF-8.
    Text = 1,
    /// Bytes.
    Bytes = 2,
    /// An int of more than 48 bits: its two's complement bytes, little-endian.
    Int = 3,
    /// A tuple of cells.
    Tuple = 4,
    /// A frozenset of cells.
    FrozenSet = 5,
    /// Another value, encoded by a codec.
    Packed = 6,
    /// Another value as a key: the bytes by which it is compared, then its encoding.
    Key = 7,
    /// Another value that, as a key, equals a text, bytes or a number: the equal key, then its encoding.
    Alias = 8,
    /// A list.
    List = 16,
    /// A dict.
    Dict = 17,
    /// A set.
    Set = 18,
    /// An instance of a class.
    Record = 19,
    /// Bytes that are changed in place.
    Buffer = 20,
}

impl Type {
    const ALL: [Type; 13] = [
        Type::Text,
        Type::Bytes,
        Type::Int,
        Type::Tuple,
        Type::FrozenSet,
        Type::Packed,
        Type::Key,
        Type::Alias,
        Type::List,
        Type::Dict,
        Type::Set,
        Type::Record,
        Type::Buffer,
    ];

    /// Returns the type of this number; None if there is none.
    pub fn of(number: u8) -> Option<Self> {
        Type::ALL.into_iter().find(|each| *each as u8 == number)
    }

    /// Returns true if values of this type are changed in place and have a header.
    pub fn is_container(self) -> bool {
        self >= Type::List
    }
}

/// A word that holds a value or refers to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell(pub u64);

/// The decoded content of a cell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Content {
    /// Empty.
    Nothing,
    /// None.
    None,
    /// A bool.
    Bool(bool),
    /// An int.
    Int(i64),
    /// A float.
    Float(f64),
    /// Text of this many bytes.
    Text([u8; SHORT], usize),
    /// This many bytes.
    Bytes([u8; SHORT], usize),
    /// A reference to the block of this type at this offset.
    At(Type, u64),
}

impl Cell {
    /// The empty cell.
    pub const NOTHING: Cell = Cell(0);
    /// The cell of None.
    pub const NONE: Cell = Cell(CONSTANT << TAG);

    /// Encodes a bool.
    pub fn bool(value: bool) -> Self {
        Cell(CONSTANT << TAG | (1 + u64::from(value)))
    }

    /// Encodes an int. Returns None if it has more than 48 bits.
    #[inline]
    pub fn int(value: i64) -> Option<Self> {
        let fits = (value << 16) >> 16 == value;
        fits.then_some(Cell(INT << TAG | (value as u64 & ((1 << TAG) - 1))))
    }

    /// Encodes a float. All NaNs become the same one.
    #[inline]
    pub fn float(value: f64) -> Self {
        let bits = if value.is_nan() {
            f64::NAN.to_bits() & !(1 << 63)
        } else {
            value.to_bits()
        };
        Cell(!bits)
    }

    /// Encodes text. Returns None if it is too long.
    #[inline]
    pub fn text(bytes: &[u8]) -> Option<Self> {
        Self::short(TEXT, bytes)
    }

    /// Encodes bytes. Returns None if there are too many.
    #[inline]
    pub fn bytes(bytes: &[u8]) -> Option<Self> {
        Self::short(BYTES, bytes)
    }

    /// Encodes at most [`SHORT`] bytes with this tag. Returns None if there are more.
    #[inline]
    fn short(tag: u64, bytes: &[u8]) -> Option<Self> {
        if bytes.len() > SHORT {
            return None;
        }
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        let low = u64::from_le_bytes(word);
        Some(Cell(tag << TAG | (bytes.len() as u64) << 40 | low))
    }

    /// Encodes a reference to the block at an offset, of which only the low 40 bits are kept.
    #[inline]
    pub fn at(kind: Type, offset: u64) -> Self {
        Cell(REFERENCE << TAG | (kind as u64) << 40 | offset & LOW)
    }

    /// Returns true if the word is no reference, also for an empty cell, and for a corrupt one, which is not detected.
    #[inline]
    pub fn is_immediate(self) -> bool {
        self.0 >= FLOATS || self.0 >> TAG != REFERENCE
    }

    /// Decodes the cell. Returns None if it is corrupt. The offset of a reference is not checked.
    #[inline]
    pub fn content(self) -> Option<Content> {
        if self.0 >= FLOATS {
            return Some(Content::Float(f64::from_bits(!self.0)));
        }
        let low = self.0 & ((1 << TAG) - 1);
        Some(match self.0 >> TAG {
            0 if low == 0 => Content::Nothing,
            INT => Content::Int(((low << 16) as i64) >> 16),
            TEXT | BYTES => {
                let count = (low >> 40) as usize;
                if count > SHORT {
                    return None;
                }
                let mut bytes = [0; SHORT];
                bytes.copy_from_slice(&low.to_le_bytes()[..SHORT]);
                match self.0 >> TAG {
                    TEXT => Content::Text(bytes, count),
                    _ => Content::Bytes(bytes, count),
                }
            }
            CONSTANT if low == 0 => Content::None,
            CONSTANT if low <= 2 => Content::Bool(low == 2),
            REFERENCE => Content::At(Type::of((low >> 40) as u8)?, low & LOW),
            _ => return None,
        })
    }

    /// Returns the cell that stands for all keys that are equal in Python: 1 for 1, 1.0 and True. A float becomes an
    /// int only if its value is whole and fits into 48 bits.
    #[inline]
    pub fn as_key(self) -> Cell {
        match self.content() {
            Some(Content::Float(value))
                if value == value.trunc() && value.abs() <= (1u64 << 47) as f64 =>
            {
                Cell::int(value as i64).unwrap_or(self)
            }
            Some(Content::Bool(value)) => Cell::int(i64::from(value)).unwrap_or(self),
            _ => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_survives_encoding() {
        for value in [0, 1, -1, 255, (1 << 47) - 1, -(1 << 47)] {
            assert_eq!(
                Cell::int(value).unwrap().content(),
                Some(Content::Int(value))
            );
        }
        assert_eq!(Cell::int(1 << 47), None);
        assert_eq!(Cell::int(i64::MIN), None);
        for value in [
            0.0,
            -0.0,
            1.5,
            f64::MAX,
            f64::MIN,
            f64::INFINITY,
            f64::NEG_INFINITY,
            5e-324,
        ] {
            let Some(Content::Float(found)) = Cell::float(value).content() else {
                panic!("{value} is no float");
            };
            assert_eq!(found.to_bits(), value.to_bits());
        }
        for nan in [
            f64::NAN,
            -f64::NAN,
            f64::from_bits(u64::MAX),
            f64::from_bits(0xfff8 << 48),
        ] {
            assert!(matches!(Cell::float(nan).content(), Some(Content::Float(x)) if x.is_nan()));
        }
        assert_eq!(
            Cell::text(b"abcde").unwrap().content(),
            Some(Content::Text(*b"abcde", 5))
        );
        assert_eq!(
            Cell::text(b"").unwrap().content(),
            Some(Content::Text([0; 5], 0))
        );
        assert_eq!(Cell::text(b"abcdef"), None);
        assert_eq!(Cell::NOTHING.content(), Some(Content::Nothing));
        assert_eq!(Cell::NONE.content(), Some(Content::None));
        assert_eq!(Cell::bool(true).content(), Some(Content::Bool(true)));
        let block = Cell::at(Type::Dict, 0x12_3456_7890);
        assert_eq!(
            block.content(),
            Some(Content::At(Type::Dict, 0x12_3456_7890))
        );
        assert!(!block.is_immediate() && Cell::float(-1.0).is_immediate());
    }

    #[test]
    fn corrupt_cells_have_no_content() {
        for word in [
            1,
            6 << 48,
            7 << 48,
            CONSTANT << TAG | 3,
            TEXT << TAG | 6 << 40,
            REFERENCE << TAG | 9 << 40,
        ] {
            assert_eq!(Cell(word).content(), None, "{word:#x}");
        }
    }

    #[test]
    fn numbers_that_are_equal_in_python_are_one_key() {
        let one = Cell::int(1).unwrap();
        assert_eq!(Cell::float(1.0).as_key(), one);
        assert_eq!(Cell::bool(true).as_key(), one);
        assert_eq!(Cell::float(-0.0).as_key(), Cell::int(0).unwrap());
        assert_eq!(Cell::float(1.5).as_key(), Cell::float(1.5));
        let least = -(1i64 << 47);
        assert_eq!(
            Cell::float(least as f64).as_key(),
            Cell::int(least).unwrap()
        );
    }
}
