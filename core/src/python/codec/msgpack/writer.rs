//! Writer of values, with large buffers beside the bytes.

use crate::memory::bytes::append;
use crate::python::codec::msgpack::format::{BYTES_EXTENSION, MAX_DEPTH};
use crate::python::codec::msgpack::outgoing_body::OutgoingBody;
use crate::python::codec::msgpack::seen::SeenObjects;
use crate::python::codec::msgpack::small_int::small_int;
use crate::python::codec::msgpack::unsupported::{Result, Unsupported};
use crate::python::codec::parcel::ByteView;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use std::sync::atomic::AtomicBool;

/// Options of the writer.
pub(crate) struct Rules {
    /// Smallest length of bytes, in bytes, that travel beside the body.
    pub(crate) large: usize,
    /// The same for an array.
    pub(crate) large_array: usize,
    /// True if the core writes NumPy arrays, and memoryviews. Relaxed, because every access has the GIL.
    pub(crate) arrays: AtomicBool,
    pub(crate) views: AtomicBool,
    /// True if values keep their identity: a list, a dict or an array that occurs twice in a value makes it
    /// unsupported.
    pub(crate) keeps_identity: bool,
}

/// Writes values at the end of a body. After `Unsupported`, the body may end with a part of a value.
pub(crate) struct Writer<'a> {
    pub(super) out: &'a mut Vec<u8>,
    pub(super) buffers: &'a mut Vec<ByteView>,
    pub(super) rules: &'a Rules,
    /// Objects that may occur a second time in the current value.
    seen: SeenObjects,
}

impl<'a> Writer<'a> {
    #[inline]
    pub(crate) fn new(to: &'a mut OutgoingBody, rules: &'a Rules) -> Self {
        Writer {
            out: &mut to.bytes,
            buffers: &mut to.buffers,
            rules,
            seen: SeenObjects::new(),
        }
    }

    /// Writes one value. Fails if the value, or a value in it, is not supported.
    #[inline]
    pub(crate) fn value(&mut self, value: &Bound<'_, PyAny>) -> Result {
        self.seen.clear();
        // SAFETY: the caller holds the value, and with it the GIL.
        unsafe { self.put(value.as_ptr(), 0) }
    }

    /// Writes an argument. Where values keep their identity, the items of a tuple are one value, and those of a list
    /// are one value each. Fails as `value` does.
    #[inline]
    pub(crate) fn argument(&mut self, value: &Bound<'_, PyAny>) -> Result {
        if self.rules.keeps_identity {
            if let Ok(items) = value.cast_exact::<PyTuple>() {
                return self.items(items.as_slice());
            }
            if let Ok(items) = value.cast_exact::<PyList>() {
                self.array(items.len())?;
                return items.iter().try_for_each(|item| self.value(&item));
            }
        }
        self.value(value)
    }

    /// Writes an array of items that are one value.
    fn items(&mut self, items: &[Bound<'_, PyAny>]) -> Result {
        self.seen.clear();
        self.array(items.len())?;
        // SAFETY: the caller holds the items, and with them the GIL.
        items
            .iter()
            .try_for_each(|item| unsafe { self.put(item.as_ptr(), 1) })
    }

    /// Fails if `value`, which is mutable, occurs a second time in a value that keeps its identity.
    ///
    /// # Safety
    /// The conditions of `put`.
    #[inline]
    pub(super) unsafe fn check_first_occurrence(&mut self, value: *mut ffi::PyObject) -> Result {
        if !self.rules.keeps_identity {
            return Ok(());
        }
        // SAFETY: as above. An object that occurs twice has two references, except among the arguments of a call from
        // CPython 3.14 on: its stack may borrow the one reference of a variable.
        let has_references = cfg!(Py_3_14) || unsafe { ffi::Py_REFCNT(value) } > 1;
        if has_references && !self.seen.add(value.addr()) {
            return Err(Unsupported);
        }
        Ok(())
    }

    /// Writes the head of an array, whose items follow.
    #[inline]
    pub(crate) fn array(&mut self, len: usize) -> Result {
        self.head(len, 0x90, 16, 0xdc)
    }

    /// Writes the head of a map, whose keys and values follow.
    #[inline]
    pub(crate) fn map(&mut self, len: usize) -> Result {
        self.head(len, 0x80, 16, 0xde)
    }

    /// Writes an integer in its shortest form.
    #[inline(always)] // Or it is called for each item of a list.
    pub(crate) fn unsigned(&mut self, number: u64) {
        match number {
            0..0x80 => self.out.push(number as u8),
            0x80..0x100 => self.out.extend_from_slice(&[0xcc, number as u8]),
            0x100..0x1_0000 => self.tagged::<2, 3>(0xcd, (number as u16).to_be_bytes()),
            0x1_0000..0x1_0000_0000 => self.tagged::<4, 5>(0xce, (number as u32).to_be_bytes()),
            _ => self.tagged::<8, 9>(0xcf, number.to_be_bytes()),
        }
    }

    /// Writes a negative integer in its shortest form.
    #[inline(always)]
    fn negative(&mut self, number: i64) {
        match number {
            -0x20.. => self.out.push(number as u8),
            -0x80..-0x20 => self.out.extend_from_slice(&[0xd0, number as u8]),
            -0x8000..-0x80 => self.tagged::<2, 3>(0xd1, (number as i16).to_be_bytes()),
            -0x8000_0000..-0x8000 => self.tagged::<4, 5>(0xd2, (number as i32).to_be_bytes()),
            _ => self.tagged::<8, 9>(0xd3, number.to_be_bytes()),
        }
    }

    /// Writes a tag and the `N` bytes behind it, `M` bytes in all, at once.
    #[inline]
    fn tagged<const N: usize, const M: usize>(&mut self, tag: u8, bytes: [u8; N]) {
        let mut all = [tag; M];
        all[1..].copy_from_slice(&bytes);
        self.out.extend_from_slice(&all);
    }

    /// Writes the head of a container: `short` with the length in it, if the length is below `bound`; else `wide` or
    /// the tag after it. Fails for 2^32 items or more.
    #[inline]
    fn head(&mut self, len: usize, short: u8, bound: usize, wide: u8) -> Result {
        if len < bound {
            self.out.push(short | len as u8);
        } else if let Ok(len) = u16::try_from(len) {
            self.tagged::<2, 3>(wide, len.to_be_bytes());
        } else {
            let len = u32::try_from(len).map_err(|_| Unsupported)?;
            self.tagged::<4, 5>(wide + 1, len.to_be_bytes());
        }
        Ok(())
    }

    /// Writes the head of a str (`wide` is 0xd9) or a bin (0xc4), and its bytes.
    #[inline]
    fn blob(&mut self, bytes: &[u8], wide: u8) -> Result {
        self.out.reserve(bytes.len() + 5);
        self.blob_head(bytes.len(), wide)?;
        append(self.out, bytes);
        Ok(())
    }

    /// Writes the head of a str or a bin, whose bytes follow: see [`blob`](Self::blob). The length has at least 8 bits:
    /// `text` writes the shorter head of a str below 32 bytes.
    #[inline]
    pub(super) fn blob_head(&mut self, len: usize, wide: u8) -> Result {
        if let Ok(len) = u8::try_from(len) {
            self.out.extend_from_slice(&[wide, len]);
        } else if let Ok(len) = u16::try_from(len) {
            self.tagged::<2, 3>(wide + 1, len.to_be_bytes());
        } else {
            let len = u32::try_from(len).map_err(|_| Unsupported)?;
            self.tagged::<4, 5>(wide + 2, len.to_be_bytes());
        }
        Ok(())
    }

    /// Writes a value with `depth` containers around it. Fails as `value` does.
    ///
    /// # Safety
    /// `value` is alive, and the GIL is held. The values in it stay alive while no Python code runs, and the writer
    /// runs none.
    #[inline]
    unsafe fn put(&mut self, value: *mut ffi::PyObject, depth: u32) -> Result {
        // SAFETY: as above; the types are static.
        unsafe {
            if ffi::Py_TYPE(value) == &raw mut ffi::PyLong_Type {
                self.integer(value)
            } else {
                self.put_other(value, depth)
            }
        }
    }

    /// Writes a value that is no int. Fails for a tuple, an instance of a subclass, and any type not listed here.
    ///
    /// # Safety
    /// The conditions of `put`.
    unsafe fn put_other(&mut self, value: *mut ffi::PyObject, depth: u32) -> Result {
        // SAFETY: as above; the types are static, and the macros are used on what is exactly of their type.
        unsafe {
            let kind = ffi::Py_TYPE(value);
            if kind == &raw mut ffi::PyUnicode_Type {
                self.text(value)
            } else if kind == &raw mut ffi::PyFloat_Type {
                self.tagged::<8, 9>(0xcb, ffi::PyFloat_AS_DOUBLE(value).to_be_bytes());
                Ok(())
            } else if kind == &raw mut ffi::PyList_Type {
                self.list(value, depth)
            } else if kind == &raw mut ffi::PyDict_Type {
                self.dict(value, depth)
            } else if value == ffi::Py_None() {
                self.out.push(0xc0);
                Ok(())
            } else if kind == &raw mut ffi::PyBool_Type {
                self.out
                    .push(if value == ffi::Py_True() { 0xc3 } else { 0xc2 });
                Ok(())
            } else if kind == &raw mut ffi::PyBytes_Type {
                self.bytes(value)
            } else {
                self.put_array_or_view(value, kind)
            }
        }
    }

    /// Writes an int. Fails outside of -2^63..2^64.
    ///
    /// # Safety
    /// The conditions of `put`; `value` is an int.
    #[inline]
    unsafe fn integer(&mut self, value: *mut ffi::PyObject) -> Result {
        // SAFETY: as above.
        match unsafe { small_int(value) } {
            Some(number @ 0..) => self.unsigned(number as u64),
            Some(number) => self.negative(number),
            // SAFETY: as above.
            None => return unsafe { self.large_integer(value) },
        }
        Ok(())
    }

    /// Writes an int of any size, for which `small_int` returns None. Fails outside of -2^63..2^64.
    ///
    /// # Safety
    /// The conditions of `put`; `value` is an int.
    #[cold]
    unsafe fn large_integer(&mut self, value: *mut ffi::PyObject) -> Result {
        let mut overflow = 0;
        // SAFETY: as above. For an int there is no error but the overflow.
        let number = unsafe { ffi::PyLong_AsLongLongAndOverflow(value, &mut overflow) };
        match overflow {
            0 if number >= 0 => self.unsigned(number as u64),
            0 => self.negative(number),
            1 => {
                // SAFETY: as above.
                let number = unsafe { ffi::PyLong_AsUnsignedLongLong(value) };
                // SAFETY: the GIL is held.
                if number == u64::MAX && unsafe { !ffi::PyErr_Occurred().is_null() } {
                    // SAFETY: the GIL is held.
                    unsafe { ffi::PyErr_Clear() };
                    return Err(Unsupported);
                }
                self.unsigned(number);
            }
            _ => return Err(Unsupported),
        }
        Ok(())
    }

    /// Writes a str. Fails if it has lone surrogates, or 2^32 bytes or more.
    ///
    /// # Safety
    /// The conditions of `put`; `value` is a str.
    #[inline]
    unsafe fn text(&mut self, value: *mut ffi::PyObject) -> Result {
        let mut len = 0;
        // SAFETY: as above.
        let start = unsafe { ffi::PyUnicode_AsUTF8AndSize(value, &mut len) };
        if start.is_null() {
            // SAFETY: the GIL is held. The str has lone surrogates, or there is no memory.
            unsafe { ffi::PyErr_Clear() };
            return Err(Unsupported);
        }
        // SAFETY: the bytes belong to the str, which never changes.
        let bytes = unsafe { std::slice::from_raw_parts(start.cast::<u8>(), len as usize) };
        if bytes.len() < 32 {
            self.out.reserve(32);
            self.out.push(0xa0 | bytes.len() as u8);
            self.out.extend_from_slice(bytes);
            return Ok(());
        }
        self.blob(bytes, 0xd9)
    }

    /// Writes a bytes object, in the body or, if it is large, as a buffer beside the body. Fails if there are too many
    /// buffers.
    ///
    /// # Safety
    /// The conditions of `put`; `value` is of type bytes.
    #[inline]
    unsafe fn bytes(&mut self, value: *mut ffi::PyObject) -> Result {
        // SAFETY: as above; its bytes never change.
        let bytes = unsafe {
            let start = ffi::PyBytes_AS_STRING(value).cast::<u8>();
            std::slice::from_raw_parts(start, ffi::PyBytes_Size(value) as usize)
        };
        if bytes.len() >= self.rules.large {
            let view_of = |owner: Bound<'_, PyAny>| {
                // SAFETY: the bytes are those of `value`.
                Ok(unsafe { ByteView::of(owner, bytes.as_ptr(), bytes.len()) })
            };
            // SAFETY: as above.
            let index = unsafe { self.add_buffer(value, view_of)? };
            return self.extension(BYTES_EXTENSION, |writer| writer.reference(index));
        }
        self.blob(bytes, 0xc4)
    }

    /// Writes a list. Fails if it is nested too deep, or if it occurs twice in a value that keeps its identity.
    ///
    /// # Safety
    /// The conditions of `put`; `value` is a list.
    unsafe fn list(&mut self, value: *mut ffi::PyObject, depth: u32) -> Result {
        if depth == MAX_DEPTH {
            return Err(Unsupported);
        }
        // SAFETY: as above.
        unsafe { self.check_first_occurrence(value)? };
        // SAFETY: as above.
        let len = unsafe { ffi::PyList_GET_SIZE(value) };
        self.array(len as usize)?;
        for index in 0..len {
            // SAFETY: as above.
            unsafe { self.put(ffi::PyList_GET_ITEM(value, index), depth + 1)? };
        }
        Ok(())
    }

    /// Writes a dict, whose keys are any values that `put` writes. Fails as [`list`](Self::list) does.
    ///
    /// # Safety
    /// The conditions of `put`; `value` is a dict.
    unsafe fn dict(&mut self, value: *mut ffi::PyObject, depth: u32) -> Result {
        if depth == MAX_DEPTH {
            return Err(Unsupported);
        }
        // SAFETY: as above.
        unsafe { self.check_first_occurrence(value)? };
        // SAFETY: as above.
        self.map(unsafe { ffi::PyDict_Size(value) } as usize)?;
        let mut position: ffi::Py_ssize_t = 0;
        let (mut key, mut item) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: as above.
        while unsafe { ffi::PyDict_Next(value, &mut position, &mut key, &mut item) } != 0 {
            // SAFETY: as above.
            unsafe {
                self.put(key, depth + 1)?;
                self.put(item, depth + 1)?;
            }
        }
        Ok(())
    }
}
