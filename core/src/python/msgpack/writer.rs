//! Values to bytes.

use super::MAX_DEPTH;
use pyo3::ffi;
use pyo3::prelude::*;

/// The value has something in it that is not MessagePack's own.
#[derive(Debug)]
pub(in crate::python) struct Foreign;

type Written = Result<(), Foreign>;

/// Writes values behind what is there. After `Foreign` there may be part of one.
pub(in crate::python) struct Writer<'a> {
    out: &'a mut Vec<u8>,
    /// Bytes from this length on are written only while there is room for them.
    large: usize,
    /// How many of these there is room for; for one more they are foreign, and travel beside the body.
    room: usize,
}

impl<'a> Writer<'a> {
    pub(in crate::python) fn new(out: &'a mut Vec<u8>, large: usize, inside: usize) -> Self {
        Writer {
            out,
            large,
            room: inside - 1,
        }
    }

    /// Writes one value.
    #[inline]
    pub(in crate::python) fn value(&mut self, value: &Bound<'_, PyAny>) -> Written {
        // SAFETY: the caller holds the value, and with it the GIL.
        unsafe { self.put(value.as_ptr(), 0) }
    }

    /// Writes the first bytes of an array, whose items are to follow.
    #[inline]
    pub(in crate::python) fn array(&mut self, len: usize) -> Written {
        self.head(len, 0x90, 16, 0xdc)
    }

    /// Writes the first bytes of a map, whose keys and values are to follow.
    #[inline]
    pub(in crate::python) fn map(&mut self, len: usize) -> Written {
        self.head(len, 0x80, 16, 0xde)
    }

    /// Writes an integer in its shortest form.
    #[inline]
    pub(in crate::python) fn unsigned(&mut self, number: u64) {
        match number {
            0..0x80 => self.out.push(number as u8),
            0x80..0x100 => self.out.extend_from_slice(&[0xcc, number as u8]),
            0x100..0x1_0000 => self.tagged::<2, 3>(0xcd, (number as u16).to_be_bytes()),
            0x1_0000..0x1_0000_0000 => self.tagged::<4, 5>(0xce, (number as u32).to_be_bytes()),
            _ => self.tagged::<8, 9>(0xcf, number.to_be_bytes()),
        }
    }

    #[inline]
    fn negative(&mut self, number: i64) {
        match number {
            -0x20.. => self.out.push(number as u8),
            -0x80..-0x20 => self.out.extend_from_slice(&[0xd0, number as u8]),
            -0x8000..-0x80 => self.tagged::<2, 3>(0xd1, (number as i16).to_be_bytes()),
            -0x8000_0000..-0x8000 => self.tagged::<4, 5>(0xd2, (number as i32).to_be_bytes()),
            _ => self.tagged::<8, 9>(0xd3, number.to_be_bytes()),
        }
    }

    /// A tag and the `N` bytes behind it, `M` in all, in one go.
    #[inline]
    fn tagged<const N: usize, const M: usize>(&mut self, tag: u8, bytes: [u8; N]) {
        let mut all = [tag; M];
        all[1..].copy_from_slice(&bytes);
        self.out.extend_from_slice(&all);
    }

    /// The first bytes of a container: `short` with the length in it, if that is below `bound`; else `wide` or the tag
    /// after it.
    #[inline]
    fn head(&mut self, len: usize, short: u8, bound: usize, wide: u8) -> Written {
        if len < bound {
            self.out.push(short | len as u8);
        } else if let Ok(len) = u16::try_from(len) {
            self.tagged::<2, 3>(wide, len.to_be_bytes());
        } else {
            let len = u32::try_from(len).map_err(|_| Foreign)?;
            self.tagged::<4, 5>(wide + 1, len.to_be_bytes());
        }
        Ok(())
    }

    /// The first bytes of str (`wide` 0xd9) or bin (0xc4), and the bytes.
    #[inline]
    fn blob(&mut self, bytes: &[u8], wide: u8) -> Written {
        self.out.reserve(bytes.len() + 5);
        if let Ok(len) = u8::try_from(bytes.len()) {
            self.out.extend_from_slice(&[wide, len]);
        } else if let Ok(len) = u16::try_from(bytes.len()) {
            self.tagged::<2, 3>(wide + 1, len.to_be_bytes());
        } else {
            let len = u32::try_from(bytes.len()).map_err(|_| Foreign)?;
            self.tagged::<4, 5>(wide + 2, len.to_be_bytes());
        }
        self.out.extend_from_slice(bytes);
        Ok(())
    }

    /// # Safety
    /// `value` is alive, and the GIL is ours. So are the values in it for as long as no Python code runs, and in here
    /// none does.
    #[inline]
    unsafe fn put(&mut self, value: *mut ffi::PyObject, depth: u32) -> Written {
        // SAFETY: as above; the types are static.
        unsafe {
            if ffi::Py_TYPE(value) == &raw mut ffi::PyLong_Type {
                self.integer(value)
            } else {
                self.put_other(value, depth)
            }
        }
    }

    /// # Safety
    /// As in `put`.
    unsafe fn put_other(&mut self, value: *mut ffi::PyObject, depth: u32) -> Written {
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
                Err(Foreign)
            }
        }
    }

    /// # Safety
    /// As in `put`; `value` is an int.
    #[inline]
    unsafe fn integer(&mut self, value: *mut ffi::PyObject) -> Written {
        // SAFETY: as above.
        match unsafe { super::int::small(value) } {
            Some(number @ 0..) => self.unsigned(number as u64),
            Some(number) => self.negative(number),
            // SAFETY: as above.
            None => return unsafe { self.large_integer(value) },
        }
        Ok(())
    }

    /// # Safety
    /// As in `put`; `value` is an int.
    #[cold]
    unsafe fn large_integer(&mut self, value: *mut ffi::PyObject) -> Written {
        let mut overflow = 0;
        // SAFETY: as above. For an int there is no error but the overflow.
        let number = unsafe { ffi::PyLong_AsLongLongAndOverflow(value, &mut overflow) };
        match overflow {
            0 if number >= 0 => self.unsigned(number as u64),
            0 => self.negative(number),
            1 => {
                // SAFETY: as above.
                let number = unsafe { ffi::PyLong_AsUnsignedLongLong(value) };
                // SAFETY: the GIL is ours.
                if number == u64::MAX && unsafe { !ffi::PyErr_Occurred().is_null() } {
                    // SAFETY: the GIL is ours.
                    unsafe { ffi::PyErr_Clear() };
                    return Err(Foreign);
                }
                self.unsigned(number);
            }
            _ => return Err(Foreign),
        }
        Ok(())
    }

    /// # Safety
    /// As in `put`; `value` is a str.
    #[inline]
    unsafe fn text(&mut self, value: *mut ffi::PyObject) -> Written {
        let mut len = 0;
        // SAFETY: as above.
        let start = unsafe { ffi::PyUnicode_AsUTF8AndSize(value, &mut len) };
        if start.is_null() {
            // SAFETY: the GIL is ours. It has lone surrogates, or there is no memory.
            unsafe { ffi::PyErr_Clear() };
            return Err(Foreign);
        }
        // SAFETY: the bytes are the str's, which nobody changes.
        let bytes = unsafe { std::slice::from_raw_parts(start.cast::<u8>(), len as usize) };
        if bytes.len() < 32 {
            self.out.reserve(32);
            self.out.push(0xa0 | bytes.len() as u8);
            self.out.extend_from_slice(bytes);
            return Ok(());
        }
        self.blob(bytes, 0xd9)
    }

    /// # Safety
    /// As in `put`; `value` is of type bytes.
    #[inline]
    unsafe fn bytes(&mut self, value: *mut ffi::PyObject) -> Written {
        // SAFETY: as above; nobody changes its bytes.
        let bytes = unsafe {
            let start = ffi::PyBytes_AS_STRING(value).cast::<u8>();
            std::slice::from_raw_parts(start, ffi::PyBytes_Size(value) as usize)
        };
        if bytes.len() >= self.large {
            self.room = self.room.checked_sub(bytes.len()).ok_or(Foreign)?;
        }
        self.blob(bytes, 0xc4)
    }

    /// # Safety
    /// As in `put`; `value` is a list.
    unsafe fn list(&mut self, value: *mut ffi::PyObject, depth: u32) -> Written {
        if depth == MAX_DEPTH {
            return Err(Foreign);
        }
        // SAFETY: as above.
        let len = unsafe { ffi::PyList_GET_SIZE(value) };
        self.array(len as usize)?;
        for index in 0..len {
            // SAFETY: as above.
            unsafe { self.put(ffi::PyList_GET_ITEM(value, index), depth + 1)? };
        }
        Ok(())
    }

    /// # Safety
    /// As in `put`; `value` is a dict.
    unsafe fn dict(&mut self, value: *mut ffi::PyObject, depth: u32) -> Written {
        if depth == MAX_DEPTH {
            return Err(Foreign);
        }
        // SAFETY: as above.
        self.map(unsafe { ffi::PyDict_Size(value) } as usize)?;
        let mut place: ffi::Py_ssize_t = 0;
        let (mut key, mut item) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: as above.
        while unsafe { ffi::PyDict_Next(value, &mut place, &mut key, &mut item) } != 0 {
            // SAFETY: as above.
            unsafe {
                self.put(key, depth + 1)?;
                self.put(item, depth + 1)?;
            }
        }
        Ok(())
    }
}
