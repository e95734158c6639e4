//! `MappedBytes`: bytes of a shared object.

use crate::python::support::export::{Export, Memory, export};
use pyo3::ffi;
use pyo3::prelude::*;
use std::any::Any;
use std::os::raw::c_int;

/// Bytes of a shared object, by the buffer protocol. They stay mapped for as long as this object or a view of it lives.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct MappedBytes {
    _owner: Box<dyn Any + Send + Sync>,
    address: usize,
    len: usize,
    is_writable: bool,
}

impl MappedBytes {
    /// Returns the `len` bytes at `address`, which `owner` keeps mapped.
    pub(crate) fn new(
        owner: impl Any + Send + Sync,
        (address, len): (usize, usize),
        is_writable: bool,
    ) -> Self {
        MappedBytes {
            _owner: Box::new(owner),
            address,
            len,
            is_writable,
        }
    }
}

// SAFETY: the owner keeps the memory mapped, and writable if `is_writable` is true.
unsafe impl Export for MappedBytes {
    fn memory(&self) -> PyResult<Memory> {
        Ok(Memory {
            address: self.address,
            len: self.len,
            is_writable: self.is_writable,
        })
    }
}

#[pymethods]
impl MappedBytes {
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        // SAFETY: `view` is the caller's to be filled.
        unsafe { export(&slf, view, flags) }
    }
}
