//! Objects of the interpreter that the reader makes: numbers and bytes.

use crate::python::codec::msgpack::type_spec::{ANY, FLOAT, INT, TypeSpec};
use crate::python::codec::msgpack::unreadable::{Read, Unreadable};
use pyo3::ffi;
use pyo3::prelude::*;

/// Returns an object that the interpreter has made. Fails if the interpreter had no memory.
///
/// # Safety
/// `made` is a new reference, or null with an exception.
pub(super) unsafe fn owned(py: Python<'_>, made: *mut ffi::PyObject) -> Read<Bound<'_, PyAny>> {
    // SAFETY: as above.
    unsafe { Bound::from_owned_ptr_or_err(py, made) }.map_err(|_| Unreadable)
}

/// Returns an int, or a float if no int is expected.
#[inline]
pub(super) fn unsigned<'py>(
    py: Python<'py>,
    expected: &TypeSpec,
    number: u64,
) -> Read<Bound<'py, PyAny>> {
    if expected.scalars & (INT | ANY) == 0 {
        return if expected.scalars & FLOAT != 0 {
            float(py, number as f64)
        } else {
            Err(Unreadable)
        };
    }
    // SAFETY: the GIL is held.
    unsafe { owned(py, ffi::PyLong_FromUnsignedLongLong(number)) }
}

/// Returns an int, or a float if no int is expected.
#[inline]
pub(super) fn signed<'py>(
    py: Python<'py>,
    expected: &TypeSpec,
    number: i64,
) -> Read<Bound<'py, PyAny>> {
    if expected.scalars & (INT | ANY) == 0 {
        return if expected.scalars & FLOAT != 0 {
            float(py, number as f64)
        } else {
            Err(Unreadable)
        };
    }
    // SAFETY: the GIL is held.
    unsafe { owned(py, ffi::PyLong_FromLongLong(number)) }
}

#[inline]
pub(super) fn float(py: Python<'_>, number: f64) -> Read<Bound<'_, PyAny>> {
    // SAFETY: the GIL is held.
    unsafe { owned(py, ffi::PyFloat_FromDouble(number)) }
}

/// Returns a bytes object with a copy of these bytes.
pub(super) fn bytes_of<'py>(py: Python<'py>, bytes: &[u8]) -> Read<Bound<'py, PyAny>> {
    let start = bytes.as_ptr().cast();
    // SAFETY: the GIL is held, and the bytes live for the time of the call.
    unsafe {
        owned(
            py,
            ffi::PyBytes_FromStringAndSize(start, bytes.len() as isize),
        )
    }
}
