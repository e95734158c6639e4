//! Values to bytes, with large buffers beside them.

use super::seen::Seen;
use super::{ARRAY, BYTES, MAX_DEPTH, MEMORYVIEW};
use crate::memory::bytes::{append, append_from};
use crate::python::codec::numpy::{Array, Memory, NumPy};
use crate::python::codec::parcel::ByteView;
use crate::python::support::buffer::{Buffer, View};
use crate::python::support::scratch::Scratch;
use pyo3::PyTypeInfo;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use std::ffi::c_char;
use std::sync::atomic::{AtomicBool, Ordering};

/// The value has something in it that is not written here.
#[derive(Debug)]
pub(crate) struct Unsupported;

type Result<T = ()> = std::result::Result<T, Unsupported>;

/// Buffers beside a body up to which each is looked for among those that are there: one that stands twice in a value
/// travels once.
const MOST_BESIDE: usize = 64;

/// How values are written.
pub(crate) struct Rules {
    /// Bytes from this length on travel beside the body.
    pub(crate) large: usize,
    /// The same for an array, in bytes.
    pub(crate) large_array: usize,
    /// Whether NumPy's arrays are written here, and memoryviews. Relaxed, as all that read and write these have the GIL.
    pub(crate) arrays: AtomicBool,
    pub(crate) views: AtomicBool,
    /// Whether a list, a dict or an array that stands twice in a value makes it foreign: it is to arrive as one.
    pub(crate) whole: bool,
}

/// A body that is written, and the buffers that it refers to. Whoever drops it holds the GIL.
pub(crate) struct OutgoingBody {
    pub(crate) bytes: Scratch,
    pub(crate) buffers: Vec<ByteView>,
}

impl OutgoingBody {
    #[inline]
    pub(crate) fn new() -> Self {
        OutgoingBody {
            bytes: Scratch::new(),
            buffers: Vec::new(),
        }
    }

    #[inline]
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.buffers.clear();
    }
}

/// Writes values behind what is there. After `Unsupported` there may be part of one.
pub(crate) struct Writer<'a> {
    out: &'a mut Vec<u8>,
    buffers: &'a mut Vec<ByteView>,
    rules: &'a Rules,
    /// What may stand a second time in the value that is being written.
    seen: Seen,
}

impl<'a> Writer<'a> {
    #[inline]
    pub(crate) fn new(to: &'a mut OutgoingBody, rules: &'a Rules) -> Self {
        Writer {
            out: &mut to.bytes,
            buffers: &mut to.buffers,
            rules,
            seen: Seen::new(),
        }
    }

    /// Writes one value.
    #[inline]
    pub(crate) fn value(&mut self, value: &Bound<'_, PyAny>) -> Result {
        self.seen.clear();
        // SAFETY: the caller holds the value, and with it the GIL.
        unsafe { self.put(value.as_ptr(), 0) }
    }

    /// Writes an argument. Where values are kept whole, the items of a tuple are one value, and those of a list are
    /// one each.
    #[inline]
    pub(crate) fn argument(&mut self, value: &Bound<'_, PyAny>) -> Result {
        if self.rules.whole {
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

    /// Unsupported if `value`, which can be changed, stands a second time in a value that is to be kept whole.
    ///
    /// # Safety
    /// As in `put`.
    #[inline]
    unsafe fn first(&mut self, value: *mut ffi::PyObject) -> Result {
        // SAFETY: as above. What stands twice is referred to twice.
        if self.rules.whole && unsafe { ffi::Py_REFCNT(value) } > 1 && !self.seen.add(value.addr())
        {
            return Err(Unsupported);
        }
        Ok(())
    }

    /// Writes the first bytes of an array, whose items are to follow.
    #[inline]
    pub(crate) fn array(&mut self, len: usize) -> Result {
        self.head(len, 0x90, 16, 0xdc)
    }

    /// Writes the first bytes of a map, whose keys and values are to follow.
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

    /// The first bytes of str (`wide` 0xd9) or bin (0xc4), and the bytes.
    #[inline]
    fn blob(&mut self, bytes: &[u8], wide: u8) -> Result {
        self.out.reserve(bytes.len() + 5);
        self.blob_head(bytes.len(), wide)?;
        append(self.out, bytes);
        Ok(())
    }

    #[inline]
    fn blob_head(&mut self, len: usize, wide: u8) -> Result {
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

    /// # Safety
    /// `value` is alive, and the GIL is ours. So are the values in it for as long as no Python code runs, and in here
    /// none does.
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

    /// # Safety
    /// As in `put`.
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
                self.put_also(value, kind)
            }
        }
    }

    /// # Safety
    /// As in `put`; `value` is an int.
    #[inline]
    unsafe fn integer(&mut self, value: *mut ffi::PyObject) -> Result {
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
                // SAFETY: the GIL is ours.
                if number == u64::MAX && unsafe { !ffi::PyErr_Occurred().is_null() } {
                    // SAFETY: the GIL is ours.
                    unsafe { ffi::PyErr_Clear() };
                    return Err(Unsupported);
                }
                self.unsigned(number);
            }
            _ => return Err(Unsupported),
        }
        Ok(())
    }

    /// # Safety
    /// As in `put`; `value` is a str.
    #[inline]
    unsafe fn text(&mut self, value: *mut ffi::PyObject) -> Result {
        let mut len = 0;
        // SAFETY: as above.
        let start = unsafe { ffi::PyUnicode_AsUTF8AndSize(value, &mut len) };
        if start.is_null() {
            // SAFETY: the GIL is ours. It has lone surrogates, or there is no memory.
            unsafe { ffi::PyErr_Clear() };
            return Err(Unsupported);
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
    unsafe fn bytes(&mut self, value: *mut ffi::PyObject) -> Result {
        // SAFETY: as above; nobody changes its bytes.
        let bytes = unsafe {
            let start = ffi::PyBytes_AS_STRING(value).cast::<u8>();
            std::slice::from_raw_parts(start, ffi::PyBytes_Size(value) as usize)
        };
        if bytes.len() >= self.rules.large {
            let flat = |owner: Bound<'_, PyAny>| {
                // SAFETY: the bytes are those of `value`.
                Ok(unsafe { ByteView::of(owner, bytes.as_ptr(), bytes.len()) })
            };
            // SAFETY: as above.
            let place = unsafe { self.place(value, flat)? };
            return self.extension(BYTES, |writer| writer.reference(place));
        }
        self.blob(bytes, 0xc4)
    }

    /// # Safety
    /// As in `put`; `kind` is the type of `value`.
    #[inline(never)]
    unsafe fn put_also(
        &mut self,
        value: *mut ffi::PyObject,
        kind: *mut ffi::PyTypeObject,
    ) -> Result {
        // SAFETY: the GIL is ours.
        let py = unsafe { Python::assume_attached() };
        if self.rules.arrays.load(Ordering::Relaxed) {
            let numpy = NumPy::known(py).ok_or(Unsupported)?;
            if numpy.is_array(kind) {
                // SAFETY: as above.
                return unsafe { self.ndarray(numpy, value) };
            }
        }
        if self.rules.views.load(Ordering::Relaxed) && kind == &raw mut ffi::PyMemoryView_Type {
            // SAFETY: as above.
            return unsafe { self.memoryview(value) };
        }
        Err(Unsupported)
    }

    /// # Safety
    /// As in `put`; `value` is an array of NumPy's.
    unsafe fn ndarray(&mut self, numpy: &'static NumPy, value: *mut ffi::PyObject) -> Result {
        // SAFETY: as above.
        unsafe { self.first(value)? };
        // SAFETY: as above.
        let array = unsafe { numpy.look(value) }.ok_or(Unsupported)?;
        // SAFETY: as above.
        let by_reference = array.len >= self.rules.large_array
            || array.len > 0 && unsafe { is_ours(numpy.memory(value))? };
        if by_reference {
            let flat = |owner: Bound<'_, PyAny>| {
                // SAFETY: the bytes are those of the array.
                Ok(unsafe { ByteView::of(owner, array.data, array.len) })
            };
            // SAFETY: as above.
            let place = unsafe { self.place(value, flat)? };
            return self.described(&array, |writer| writer.reference(place));
        }
        self.described(&array, |writer| {
            writer.blob_head(array.len, 0xc4)?;
            // SAFETY: the bytes are those of the array.
            unsafe { append_from(writer.out, array.data, array.len) };
            Ok(())
        })
    }

    /// The extension for an array, whose last item `data` writes.
    fn described(&mut self, array: &Array<'_>, data: impl FnOnce(&mut Self) -> Result) -> Result {
        self.extension(ARRAY, |writer| {
            writer.array(3)?;
            let text = array.dtype.text().as_bytes();
            writer.out.push(0xa0 | text.len() as u8);
            writer.out.extend_from_slice(text);
            writer.array(array.shape.len())?;
            for &length in array.shape {
                writer.unsigned(length as u64);
            }
            data(writer)
        })
    }

    /// # Safety
    /// As in `put`; `value` is a memoryview.
    unsafe fn memoryview(&mut self, value: *mut ffi::PyObject) -> Result {
        let mut view = ffi::Py_buffer::new();
        // SAFETY: as above; `view` is ours to be filled.
        if unsafe { ffi::PyObject_GetBuffer(value, &mut view, ffi::PyBUF_FULL_RO) } != 0 {
            // SAFETY: the GIL is ours. It was released.
            unsafe { ffi::PyErr_Clear() };
            return Err(Unsupported);
        }
        // SAFETY: a format is text that ends with 0; with an axis there is a stride.
        let plain = unsafe {
            view.ndim == 1
                && view.itemsize == 1
                && (view.format.is_null()
                    || *view.format == b'B' as c_char && *view.format.add(1) == 0)
                && view.suboffsets.is_null()
                && *view.strides == 1
        };
        let len = view.len as usize;
        // SAFETY: filled above.
        unsafe { ffi::PyBuffer_Release(&mut view) };
        if !plain || len < self.rules.large {
            return Err(Unsupported);
        }
        // SAFETY: as above.
        let place = unsafe {
            self.place(value, |owner| {
                ByteView::new(&owner).map_err(|_| Unsupported)
            })?
        };
        self.extension(MEMORYVIEW, |writer| writer.reference(place))
    }

    /// Puts what `flat` makes of `owner` beside the body, unless it is there already: its place.
    ///
    /// # Safety
    /// As in `put`.
    unsafe fn place(
        &mut self,
        owner: *mut ffi::PyObject,
        flat: impl FnOnce(Bound<'_, PyAny>) -> Result<ByteView>,
    ) -> Result<u64> {
        let mut known = self.buffers.iter();
        if let Some(place) = known.position(|each| each.owner().as_ptr() == owner) {
            return Ok(place as u64);
        }
        let count = self.buffers.len();
        if count == MOST_BESIDE {
            return Err(Unsupported);
        }
        // SAFETY: as above.
        let owner = unsafe { Bound::from_borrowed_ptr(Python::assume_attached(), owner) };
        self.buffers.push(flat(owner)?);
        Ok(count as u64)
    }

    /// The place of a buffer.
    fn reference(&mut self, place: u64) -> Result {
        self.unsigned(place);
        Ok(())
    }

    /// An extension, whose payload `write` writes.
    #[inline]
    fn extension(&mut self, code: u8, write: impl FnOnce(&mut Self) -> Result) -> Result {
        let start = self.out.len();
        write(self)?;
        let len = self.out.len() - start;
        let head: &[u8] = match len {
            1 => &[0xd4, code],
            2 => &[0xd5, code],
            4 => &[0xd6, code],
            8 => &[0xd7, code],
            16 => &[0xd8, code],
            0..0x100 => &[0xc7, len as u8, code],
            0x100..0x1_0000 => &[0xc8, (len >> 8) as u8, len as u8, code],
            _ => return Err(Unsupported),
        };
        self.out.splice(start..start, head.iter().copied());
        Ok(())
    }

    /// # Safety
    /// As in `put`; `value` is a list.
    unsafe fn list(&mut self, value: *mut ffi::PyObject, depth: u32) -> Result {
        if depth == MAX_DEPTH {
            return Err(Unsupported);
        }
        // SAFETY: as above.
        unsafe { self.first(value)? };
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
    unsafe fn dict(&mut self, value: *mut ffi::PyObject, depth: u32) -> Result {
        if depth == MAX_DEPTH {
            return Err(Unsupported);
        }
        // SAFETY: as above.
        unsafe { self.first(value)? };
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

/// Whether an array looks at memory that both sides have mapped; Unsupported if that is for Python to say.
fn is_ours(memory: Memory) -> Result<bool> {
    // SAFETY: the GIL is ours, or nobody could have looked at the array.
    let py = unsafe { Python::assume_attached() };
    match memory {
        Memory::Own => Ok(false),
        Memory::Of(kind) => {
            if kind == Buffer::type_object_raw(py) || kind == View::type_object_raw(py) {
                return Ok(true);
            }
            if kind == &raw mut ffi::PyBytes_Type {
                return Ok(false);
            }
            Err(Unsupported)
        }
    }
}
