//! Writing of extensions: large bytes, memoryviews and NumPy arrays, in the body or in buffers beside it.

use crate::memory::bytes::append_from;
use crate::python::codec::msgpack::format::{ARRAY_EXTENSION, MEMORYVIEW_EXTENSION};
use crate::python::codec::msgpack::unsupported::{Result, Unsupported};
use crate::python::codec::msgpack::writer::Writer;
use crate::python::codec::numpy::{Array, MemoryOwner, NumPy};
use crate::python::codec::parcel::ByteView;
use crate::python::support::buffer::{Buffer, View};
use pyo3::PyTypeInfo;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::c_char;
use std::sync::atomic::Ordering;

/// The maximum number of buffers beside a body. Each new buffer is compared with all of them, so that a buffer that
/// occurs twice in a value travels once.
const MAX_BUFFERS: usize = 64;

impl Writer<'_> {
    /// Writes a NumPy array or a memoryview, if the rules allow it.
    ///
    /// # Safety
    /// The conditions of `put`; `kind` is the type of `value`.
    #[inline(never)]
    pub(super) unsafe fn put_array_or_view(
        &mut self,
        value: *mut ffi::PyObject,
        kind: *mut ffi::PyTypeObject,
    ) -> Result {
        // SAFETY: the GIL is held.
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

    /// Writes a NumPy array in the body, or as a buffer beside the body if it is large or lies in memory that both
    /// sides have mapped. Fails if Python has to decide about its memory (`is_shared`).
    ///
    /// # Safety
    /// The conditions of `put`; `value` is an array of NumPy's.
    unsafe fn ndarray(&mut self, numpy: &'static NumPy, value: *mut ffi::PyObject) -> Result {
        // SAFETY: as above.
        unsafe { self.check_first_occurrence(value)? };
        // SAFETY: as above.
        let array = unsafe { numpy.describe(value) }.ok_or(Unsupported)?;
        // SAFETY: as above.
        let by_reference = array.len >= self.rules.large_array
            || array.len > 0 && unsafe { is_shared(numpy.memory_owner(value))? };
        if by_reference {
            let view_of = |owner: Bound<'_, PyAny>| {
                // SAFETY: the bytes are those of the array.
                Ok(unsafe { ByteView::of(owner, array.data, array.len) })
            };
            // SAFETY: as above.
            let index = unsafe { self.add_buffer(value, view_of)? };
            return self.array_extension(&array, |writer| writer.reference(index));
        }
        self.array_extension(&array, |writer| {
            writer.blob_head(array.len, 0xc4)?;
            // SAFETY: the bytes are those of the array.
            unsafe { append_from(writer.out, array.data, array.len) };
            Ok(())
        })
    }

    /// Writes the extension for an array, whose last item `data` writes.
    fn array_extension(
        &mut self,
        array: &Array<'_>,
        data: impl FnOnce(&mut Self) -> Result,
    ) -> Result {
        self.extension(ARRAY_EXTENSION, |writer| {
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

    /// Writes a large memoryview of contiguous bytes as a buffer beside the body. Fails for any other memoryview.
    ///
    /// # Safety
    /// The conditions of `put`; `value` is a memoryview.
    unsafe fn memoryview(&mut self, value: *mut ffi::PyObject) -> Result {
        let mut view = ffi::Py_buffer::new();
        // SAFETY: as above; `view` is ours to be filled.
        if unsafe { ffi::PyObject_GetBuffer(value, &mut view, ffi::PyBUF_FULL_RO) } != 0 {
            // SAFETY: the GIL is held. The view was released.
            unsafe { ffi::PyErr_Clear() };
            return Err(Unsupported);
        }
        // SAFETY: a format is a C string; with an axis there is a stride.
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
        let index = unsafe {
            self.add_buffer(value, |owner| {
                ByteView::new(&owner).map_err(|_| Unsupported)
            })?
        };
        self.extension(MEMORYVIEW_EXTENSION, |writer| writer.reference(index))
    }

    /// Adds the view that `view_of` returns for `owner` to the buffers, unless they have a view of that owner. Returns
    /// the index of the view. Fails if the buffers are too many, or as `view_of` does.
    ///
    /// # Safety
    /// The conditions of `put`.
    pub(super) unsafe fn add_buffer(
        &mut self,
        owner: *mut ffi::PyObject,
        view_of: impl FnOnce(Bound<'_, PyAny>) -> Result<ByteView>,
    ) -> Result<u64> {
        let mut known = self.buffers.iter();
        if let Some(index) = known.position(|each| each.owner().as_ptr() == owner) {
            return Ok(index as u64);
        }
        let count = self.buffers.len();
        if count == MAX_BUFFERS {
            return Err(Unsupported);
        }
        // SAFETY: as above.
        let owner = unsafe { Bound::from_borrowed_ptr(Python::assume_attached(), owner) };
        self.buffers.push(view_of(owner)?);
        Ok(count as u64)
    }

    /// Writes the index of a buffer as a plain integer, for the payload of an extension. Never fails.
    pub(super) fn reference(&mut self, index: u64) -> Result {
        self.unsigned(index);
        Ok(())
    }

    /// Writes an extension: the payload, which `write` writes, and the shortest head in front of the payload. Fails for
    /// a payload of 64 KiB or more.
    #[inline]
    pub(super) fn extension(
        &mut self,
        code: u8,
        write: impl FnOnce(&mut Self) -> Result,
    ) -> Result {
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
}

/// Returns true if an array refers to memory that both sides have mapped. Fails if Python has to decide.
fn is_shared(memory: MemoryOwner) -> Result<bool> {
    // SAFETY: the GIL is held, because the caller has read the array.
    let py = unsafe { Python::assume_attached() };
    match memory {
        MemoryOwner::Array => Ok(false),
        MemoryOwner::Object(kind) => {
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
