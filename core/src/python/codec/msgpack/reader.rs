//! Reader of values, which may refer to buffers beside the bytes.

use crate::python::codec::msgpack::buffers::Buffers;
use crate::python::codec::msgpack::format::MAX_DEPTH;
use crate::python::codec::msgpack::interpreter_objects::{
    bytes_of, float, owned, signed, unsigned,
};
use crate::python::codec::msgpack::key_cache::{new_text, text_of_key};
use crate::python::codec::msgpack::type_spec::{
    ANY, Array, BOOL, BYTES, FLOAT, NONE, STR, Scalars, TypeSpec,
};
use crate::python::codec::msgpack::unreadable::{Read, Unreadable};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Functions that make a sequence of a length and set one of its items.
type Sequence = (
    unsafe extern "C" fn(ffi::Py_ssize_t) -> *mut ffi::PyObject,
    unsafe fn(*mut ffi::PyObject, ffi::Py_ssize_t, *mut ffi::PyObject),
);

const LIST: Sequence = (ffi::PyList_New, ffi::PyList_SET_ITEM);
const TUPLE: Sequence = (ffi::PyTuple_New, ffi::PyTuple_SET_ITEM);

/// Position of a value in its containers.
#[derive(Clone, Copy, Default)]
struct Position {
    /// Number of containers around the value.
    depth: u32,
    /// Number of values that follow it in these containers: there are at least as many bytes.
    owed: usize,
}

impl Position {
    /// Returns the position of a value in a container at this position, with `after` more values behind it there.
    #[inline]
    fn within(self, after: usize) -> Self {
        Position {
            depth: self.depth + 1,
            owed: self.owed + after,
        }
    }
}

/// Reads values from private bytes, one after the other.
pub(crate) struct Reader<'a, 'py> {
    pub(super) bytes: &'a [u8],
    /// The buffers beside the bytes, if there are any.
    pub(super) buffers: Option<&'a Buffers<'py>>,
    /// True if the values must not refer to a buffer, so that their arrays can be written.
    pub(super) owns: bool,
}

impl<'a, 'py> Reader<'a, 'py> {
    pub(crate) fn new(bytes: &'a [u8], buffers: Option<&'a Buffers<'py>>) -> Self {
        Reader {
            bytes,
            buffers,
            owns: false,
        }
    }

    /// Returns the only value in these bytes. Fails if they hold anything else, or a value that is not of the expected
    /// type.
    #[inline]
    pub(crate) fn decode(
        py: Python<'py>,
        bytes: &'a [u8],
        buffers: Option<&'a Buffers<'py>>,
        expected: &TypeSpec,
    ) -> Read<Bound<'py, PyAny>> {
        let mut reader = Reader::new(bytes, buffers);
        let value = reader.value(py, expected)?;
        reader.end()?;
        Ok(value)
    }

    /// Does what `decode` does, for a receiver that may write the arrays: no part of the value refers to a buffer.
    pub(crate) fn decode_owned(
        py: Python<'py>,
        bytes: &'a [u8],
        buffers: Option<&'a Buffers<'py>>,
    ) -> Read<Bound<'py, PyAny>> {
        let mut reader = Reader::new(bytes, buffers);
        reader.owns = true;
        let value = reader.value(py, &TypeSpec::ANY)?;
        reader.end()?;
        Ok(value)
    }

    /// Reads the next value. Fails if the value is not of the expected type.
    #[inline]
    pub(crate) fn value(
        &mut self,
        py: Python<'py>,
        expected: &TypeSpec,
    ) -> Read<Bound<'py, PyAny>> {
        self.read(py, expected, Position::default())
    }

    /// Fails if any bytes are left.
    #[inline]
    pub(crate) fn end(&self) -> Read<()> {
        if self.bytes.is_empty() {
            Ok(())
        } else {
            Err(Unreadable)
        }
    }

    /// Reads the length of an array, whose items follow. Fails if there are fewer bytes than items.
    #[inline]
    pub(crate) fn array(&mut self) -> Read<usize> {
        self.container(0x90, 0xdc, 1)
    }

    /// Reads the length of a map, whose keys and values follow. Fails if there are fewer bytes than keys and values.
    #[inline]
    pub(crate) fn map(&mut self) -> Read<usize> {
        self.container(0x80, 0xde, 2)
    }

    /// Reads the length of a container. A container of up to 15 entries has one of the 16 tags from `short` on, a
    /// longer one has the tag `wide` or the next. Each entry has this many values.
    #[inline(always)]
    fn container(&mut self, short: u8, wide: u8, values: usize) -> Read<usize> {
        let tag = self.byte()?;
        let len = if tag & 0xf0 == short {
            usize::from(tag & 0x0f)
        } else if tag == wide {
            self.u16()?
        } else if tag == wide + 1 {
            self.u32()?
        } else {
            return Err(Unreadable);
        };
        self.check_len(len, values, 0)
    }

    /// Reads an integer that is not negative.
    #[inline]
    pub(crate) fn unsigned(&mut self) -> Read<u64> {
        let tag = self.byte()?;
        Ok(match tag {
            0x00..=0x7f => u64::from(tag),
            0xcc => u64::from(self.byte()?),
            0xcd => self.u16()? as u64,
            0xce => self.u32()? as u64,
            0xcf => u64::from_be_bytes(self.take()?),
            _ => return Err(Unreadable),
        })
    }

    /// Reads a bool.
    #[inline]
    pub(crate) fn bool(&mut self) -> Read<bool> {
        match self.byte()? {
            0xc2 => Ok(false),
            0xc3 => Ok(true),
            _ => Err(Unreadable),
        }
    }

    /// Reads the bytes of a str, without a check that they are UTF-8.
    #[inline]
    pub(crate) fn str(&mut self) -> Read<&'a [u8]> {
        let tag = self.byte()?;
        let len = match tag {
            0xa0..=0xbf => usize::from(tag & 0x1f),
            0xd9 => usize::from(self.byte()?),
            0xda => self.u16()?,
            0xdb => self.u32()?,
            _ => return Err(Unreadable),
        };
        self.run(len)
    }

    /// Returns the length `len` that a container claims. Fails unless enough bytes are left for so many entries of at
    /// least `least` bytes, besides the `owed` bytes. So nested containers do not claim the same bytes, and together
    /// have no more items than there are bytes.
    #[inline]
    fn check_len(&self, len: usize, least: usize, owed: usize) -> Read<usize> {
        if len <= self.bytes.len().saturating_sub(owed) / least {
            Ok(len)
        } else {
            Err(Unreadable)
        }
    }

    /// Reads the next byte.
    #[inline]
    pub(super) fn byte(&mut self) -> Read<u8> {
        let (&first, rest) = self.bytes.split_first().ok_or(Unreadable)?;
        self.bytes = rest;
        Ok(first)
    }

    /// Reads the next `len` bytes.
    #[inline]
    pub(super) fn run(&mut self, len: usize) -> Read<&'a [u8]> {
        if len > self.bytes.len() {
            return Err(Unreadable);
        }
        let (run, rest) = self.bytes.split_at(len);
        self.bytes = rest;
        Ok(run)
    }

    /// Reads the next `N` bytes.
    #[inline]
    fn take<const N: usize>(&mut self) -> Read<[u8; N]> {
        let (first, rest) = self.bytes.split_first_chunk().ok_or(Unreadable)?;
        self.bytes = rest;
        Ok(*first)
    }

    /// Reads a length of two bytes.
    #[inline]
    fn u16(&mut self) -> Read<usize> {
        Ok(usize::from(u16::from_be_bytes(self.take()?)))
    }

    /// Reads a length of four bytes.
    #[inline]
    fn u32(&mut self) -> Read<usize> {
        Ok(u32::from_be_bytes(self.take()?) as usize)
    }

    /// Reads the next value, at this position in its containers. Fails if the value is not of the expected type.
    fn read(
        &mut self,
        py: Python<'py>,
        expected: &TypeSpec,
        position: Position,
    ) -> Read<Bound<'py, PyAny>> {
        let tag = self.byte()?;
        let is = |kind: Scalars| expected.scalars & (kind | ANY) != 0;
        match tag {
            0x00..=0x7f => unsigned(py, expected, u64::from(tag)),
            0xe0..=0xff => signed(py, expected, i64::from(tag as i8)),
            0xa0..=0xbf if is(STR) => {
                new_text(py, self.run(usize::from(tag & 0x1f))?).ok_or(Unreadable)
            }
            0x90..=0x9f => self.items(py, expected, usize::from(tag & 0x0f), position),
            0x80..=0x8f => self.pairs(py, expected, usize::from(tag & 0x0f), position),
            0xc0 if is(NONE) => Ok(py.None().into_bound(py)),
            0xc2 | 0xc3 if is(BOOL) => Ok((tag == 0xc3)
                .into_pyobject(py)
                .unwrap_or_else(|never| match never {})
                .to_owned()
                .into_any()),
            0xca if is(FLOAT) => float(py, f64::from(f32::from_be_bytes(self.take()?))),
            0xcb if is(FLOAT) => float(py, f64::from_be_bytes(self.take()?)),
            0xcc => {
                let number = self.byte()?;
                unsigned(py, expected, u64::from(number))
            }
            0xcd => {
                let number = self.u16()?;
                unsigned(py, expected, number as u64)
            }
            0xce => {
                let number = self.u32()?;
                unsigned(py, expected, number as u64)
            }
            0xcf => unsigned(py, expected, u64::from_be_bytes(self.take()?)),
            0xd0 => signed(py, expected, i64::from(self.byte()? as i8)),
            0xd1 => signed(py, expected, i64::from(i16::from_be_bytes(self.take()?))),
            0xd2 => signed(py, expected, i64::from(i32::from_be_bytes(self.take()?))),
            0xd3 => signed(py, expected, i64::from_be_bytes(self.take()?)),
            0xd9..=0xdb if is(STR) => {
                let len = self.wide(tag - 0xd9)?;
                new_text(py, self.run(len)?).ok_or(Unreadable)
            }
            0xc4..=0xc6 if is(BYTES) => {
                let len = self.wide(tag - 0xc4)?;
                bytes_of(py, self.run(len)?)
            }
            0xdc | 0xdd => {
                let len = self.wide(tag - 0xdb)?;
                self.items(py, expected, len, position)
            }
            0xde | 0xdf => {
                let len = self.wide(tag - 0xdd)?;
                self.pairs(py, expected, len, position)
            }
            0xc7 => {
                let len = usize::from(self.byte()?);
                self.extension(py, expected, len)
            }
            0xc8 => {
                let len = self.u16()?;
                self.extension(py, expected, len)
            }
            0xd4..=0xd8 => self.extension(py, expected, 1 << (tag - 0xd4)),
            _ => Err(Unreadable),
        }
    }

    /// Reads a length of one, two or four bytes, for a `width` of 0, 1 or 2.
    #[inline]
    pub(super) fn wide(&mut self, width: u8) -> Read<usize> {
        match width {
            0 => Ok(usize::from(self.byte()?)),
            1 => self.u16(),
            _ => self.u32(),
        }
    }

    /// Reads an array of `len` items as a list or a tuple.
    fn items(
        &mut self,
        py: Python<'py>,
        expected: &TypeSpec,
        len: usize,
        position: Position,
    ) -> Read<Bound<'py, PyAny>> {
        let len = self.check_len(len, 1, position.owed)?;
        if position.depth == MAX_DEPTH {
            return Err(Unreadable);
        }
        match &expected.array {
            Some(Array::Each { of, is_list: true }) => {
                self.sequence(py, LIST, len, |_| of, position)
            }
            Some(Array::Each { of, is_list: false }) => {
                self.sequence(py, TUPLE, len, |_| of, position)
            }
            Some(Array::Fixed(items)) if items.len() == len => {
                self.sequence(py, TUPLE, len, |index| &*items[index], position)
            }
            None if expected.scalars & ANY != 0 => {
                self.sequence(py, LIST, len, |_| expected, position)
            }
            _ => Err(Unreadable),
        }
    }

    /// Reads a list or a tuple, made by `make`, whose items `set` sets.
    fn sequence<'e>(
        &mut self,
        py: Python<'py>,
        (make, set): Sequence,
        len: usize,
        spec_of: impl Fn(usize) -> &'e TypeSpec,
        position: Position,
    ) -> Read<Bound<'py, PyAny>> {
        // SAFETY: the GIL is held. The result is a new reference, or null with an exception. Each item is set once, and
        // takes over the reference. No other code knows the sequence, which can be freed with items that are not set.
        unsafe {
            let made = owned(py, make(len as isize))?;
            for index in 0..len {
                let item = self.read(py, spec_of(index), position.within(len - index - 1))?;
                set(made.as_ptr(), index as isize, item.into_ptr());
            }
            Ok(made)
        }
    }

    /// Reads a map of `len` entries as a dict.
    fn pairs(
        &mut self,
        py: Python<'py>,
        expected: &TypeSpec,
        len: usize,
        position: Position,
    ) -> Read<Bound<'py, PyAny>> {
        let len = self.check_len(len, 2, position.owed)?;
        if position.depth == MAX_DEPTH {
            return Err(Unreadable);
        }
        let (keys, values) = match &expected.map {
            Some((keys, values)) => (&**keys, &**values),
            None if expected.scalars & ANY != 0 => (expected, expected),
            None => return Err(Unreadable),
        };
        // SAFETY: the GIL is held.
        let dict = unsafe { owned(py, ffi::PyDict_New())? };
        let dict = dict.cast_into::<PyDict>().map_err(|_| Unreadable)?;
        for index in 0..len {
            let after = 2 * (len - index - 1);
            let name = match self.bytes.first() {
                Some(0xa0..=0xbf | 0xd9) if keys.scalars & (STR | ANY) != 0 => {
                    text_of_key(py, self.str()?).ok_or(Unreadable)?
                }
                // An array or a map is no valid key.
                Some(0x80..=0x9f | 0xdc..=0xdf) | None => return Err(Unreadable),
                Some(_) => self.read(py, keys, position.within(after + 1))?,
            };
            let value = self.read(py, values, position.within(after))?;
            dict.set_item(name, value).map_err(|_| Unreadable)?;
        }
        Ok(dict.into_any())
    }
}
