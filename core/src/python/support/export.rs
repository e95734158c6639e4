//! Export of memory by the buffer protocol.

use crate::python::support::errors::check_status;
use pyo3::PyClass;
use pyo3::ffi;
use pyo3::prelude::*;
use std::os::raw::{c_int, c_void};

/// Memory that an object exports.
pub(crate) struct Memory {
    pub(crate) address: usize,
    pub(crate) len: usize,
    pub(crate) is_writable: bool,
}

/// An object that exports memory.
///
/// # Safety
/// The memory is readable, and writable if `is_writable` is true, for as long as the object lives.
pub(crate) unsafe trait Export {
    /// Returns the memory. Raises BufferError if there is none.
    fn memory(&self) -> PyResult<Memory>;
}

/// Implements `__getbuffer__` of an object that exports memory. Raises BufferError if there is no memory, or if a
/// writable view of read-only memory is requested.
///
/// # Safety
/// The caller owns `view`, which this function fills.
pub(crate) unsafe fn export<T>(
    object: &Bound<'_, T>,
    view: *mut ffi::Py_buffer,
    flags: c_int,
) -> PyResult<()>
where
    T: Export + PyClass<Frozen = pyo3::pyclass::boolean_struct::True> + Sync,
{
    let memory = object.get().memory()?;
    // SAFETY: the caller lets this fill `view`, which keeps the object alive; the object keeps the memory.
    let status = unsafe {
        ffi::PyBuffer_FillInfo(
            view,
            object.as_ptr(),
            memory.address as *mut c_void,
            memory.len as ffi::Py_ssize_t,
            c_int::from(!memory.is_writable),
            flags,
        )
    };
    check_status(object.py(), status)
}
