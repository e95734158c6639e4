//! `InPlaceBytes`: bytes of an item or a message, read in place.

use crate::memory::bytes;
use crate::python::support::buffer::new_bytes;
use crate::python::support::export::{Export, Memory, export};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes};
use std::any::Any;
use std::os::raw::c_int;
use std::sync::Arc;

/// Read-only bytes of an item or a message, which another process has written. Their memory is used for nothing else
/// while this object or a view of it lives.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct InPlaceBytes {
    /// Owner of the memory.
    _owner: Arc<dyn Any + Send + Sync>,
    address: usize,
    len: usize,
    /// Name of the item or the message, for errors.
    source: &'static str,
}

impl InPlaceBytes {
    /// Returns the `len` bytes at `address`, which `owner` keeps mapped and unchanged.
    pub(crate) fn new<O: Any + Send + Sync>(
        owner: Arc<O>,
        (address, len): (usize, usize),
        source: &'static str,
    ) -> Self {
        InPlaceBytes {
            _owner: owner,
            address,
            len,
            source,
        }
    }

    /// Returns the address and the length of the bytes.
    pub(crate) fn location(&self) -> (*const u8, usize) {
        (self.address as *const u8, self.len)
    }
}

// SAFETY: the owner keeps the memory mapped.
unsafe impl Export for InPlaceBytes {
    fn memory(&self) -> PyResult<Memory> {
        Ok(Memory {
            address: self.address,
            len: self.len,
            is_writable: false,
        })
    }
}

#[pymethods]
impl InPlaceBytes {
    /// Returns a copy of the bytes.
    pub(crate) fn to_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let from = self.address;
        // SAFETY: mapped for as long as this object; `to` is as long.
        new_bytes(py, self.len, |to| unsafe {
            bytes::copy(to, from as *const u8, self.len);
        })
    }

    /// Returns a writable copy.
    fn private<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyByteArray>> {
        PyByteArray::new_with(py, self.len, |to| {
            // SAFETY: as above; `to` belongs to the new object and is of this length.
            unsafe {
                let from = self.address as *const u8;
                bytes::copy(to.as_mut_ptr(), from, to.len());
            }
            Ok(())
        })
    }

    /// Raises BufferError, because no process may change these bytes.
    fn shared(&self) -> PyResult<()> {
        let text = format!("{} cannot be written: copy it", self.source);
        Err(PyBufferError::new_err(text))
    }

    /// Does nothing: the memory is freed with the item or the message, or with the last view of it.
    fn release(&self) {}

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        // SAFETY: `view` is the caller's to be filled.
        unsafe { export(&slf, view, flags) }
    }
}
