//! `TypeSpec`: a declared type of values that the reader checks.

use std::sync::Arc;

/// Types of single values, one bit each.
pub(super) type Scalars = u16;
pub(super) const NONE: Scalars = 1;
pub(super) const BOOL: Scalars = 2;
pub(super) const INT: Scalars = 4;
pub(super) const FLOAT: Scalars = 8;
pub(super) const STR: Scalars = 16;
pub(super) const BYTES: Scalars = 32;
/// Any type of MessagePack, arrays as lists and maps as dicts, and any extension that the reader supports.
pub(super) const ANY: Scalars = 64;
/// NumPy arrays.
pub(super) const NDARRAY: Scalars = 128;
/// Read-only views of contiguous bytes.
pub(super) const MEMORYVIEW: Scalars = 256;

/// Python type of an array.
pub(super) enum Array {
    /// A list or a tuple of any length, whose items all have this type.
    Each { of: Arc<TypeSpec>, is_list: bool },
    /// A tuple of items of these types.
    Fixed(Vec<Arc<TypeSpec>>),
}

/// A declared type.
pub(crate) struct TypeSpec {
    pub(super) scalars: Scalars,
    pub(super) array: Option<Array>,
    /// Types of the keys and the values of a dict.
    pub(super) map: Option<(Arc<TypeSpec>, Arc<TypeSpec>)>,
    /// Element types of a NumPy array; None for all of them.
    pub(super) dtypes: Option<Vec<String>>,
}

impl TypeSpec {
    /// Any value.
    pub(crate) const ANY: TypeSpec = TypeSpec {
        scalars: ANY,
        array: None,
        map: None,
        dtypes: None,
    };

    /// Returns the types of the items of a tuple; None for a tuple of any length, and for any other type.
    #[inline]
    pub(crate) fn items(&self) -> Option<&[Arc<TypeSpec>]> {
        match &self.array {
            Some(Array::Fixed(items)) => Some(items),
            _ => None,
        }
    }
}
