//! `Block`: bytes that others have written, and that are looked at where they lie.

use crate::memory::bytes;
use crate::python::support::buffer::{bytes_of, fill};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes};
use std::any::Any;
use std::os::raw::c_int;
use std::sync::Arc;

/// Bytes of an item or a message, read-only. Their memory is not used for anything else while anybody refers to them.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct Block {
    /// Keeps the memory.
    _held: Arc<dyn Any + Send + Sync>,
    address: usize,
    len: usize,
    /// What they are of, for an error.
    what: &'static str,
}

impl Block {
    /// `held` keeps the bytes, an address and how many, mapped and as they are.
    pub(crate) fn new<H: Any + Send + Sync>(
        held: Arc<H>,
        (address, len): (usize, usize),
        what: &'static str,
    ) -> Self {
        Block {
            _held: held,
            address,
            len,
            what,
        }
    }

    /// Where it is mapped, and its length.
    pub(crate) fn place(&self) -> (*const u8, usize) {
        (self.address as *const u8, self.len)
    }
}

#[pymethods]
impl Block {
    /// A copy.
    pub(crate) fn to_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let from = self.address;
        // SAFETY: mapped for as long as it is held; `to` is as long.
        bytes_of(py, self.len, |to| unsafe {
            bytes::copy(to, from as *const u8, self.len);
        })
    }

    /// A writable copy.
    fn private<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyByteArray>> {
        PyByteArray::new_with(py, self.len, |to| {
            // SAFETY: as above; it is our own, and of this length.
            unsafe {
                let from = self.address as *const u8;
                bytes::copy(to.as_mut_ptr(), from, to.len());
            }
            Ok(())
        })
    }

    /// Not to be had: it is changed by nobody.
    fn shared(&self) -> PyResult<()> {
        let text = format!("{} cannot be written: copy it", self.what);
        Err(PyBufferError::new_err(text))
    }

    /// The end of what it is of, or of the last view, gives the memory back.
    fn release(&self) {}

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let us = slf.get();
        // SAFETY: mapped for as long as this object, which the view keeps alive.
        unsafe { fill(view, slf.as_any(), us.address, us.len, false, flags) }
    }
}
