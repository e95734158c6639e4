//! `Parcel`: a frame's body and the large buffers that travel beside it.

use crate::python::support::errors::{check_status, unmapped_error};
use crate::sync::lock;
use crate::violation::Violation;
use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use std::os::raw::c_int;
use std::sync::{Mutex, MutexGuard};

/// The number of bytes of a buffer that weigh as much as one byte of a body in a stream's credit: buffers take no room
/// in the ring.
const BUFFER_BYTES_PER_BYTE: usize = 16;

/// A body and the buffers that it refers to by their indices. By the buffer protocol, a parcel is its body.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct Parcel {
    #[pyo3(get)]
    body: Py<PyBytes>,
    /// None once they were dropped by `drop_buffers`.
    buffers: Mutex<Option<Py<PyTuple>>>,
    /// The weight in a stream's credit, in bytes.
    weight: usize,
    /// The reason for which this process has no room for the parcel; None for a readable parcel.
    lost: Option<Violation>,
}

/// Returns the weight of a body in a stream's credit, with `bytes` of buffers beside it.
pub(crate) fn weight(body: usize, bytes: usize) -> usize {
    body.saturating_add(bytes / BUFFER_BYTES_PER_BYTE)
}

impl Parcel {
    /// Returns a parcel that cannot be read. Each attempt to read it raises the reason; other frames are not affected.
    pub(crate) fn lost(py: Python<'_>, why: Violation) -> Self {
        Parcel {
            body: PyBytes::new(py, b"").unbind(),
            buffers: Mutex::new(None),
            weight: 0,
            lost: Some(why),
        }
    }

    /// Raises Unmapped if the parcel is lost.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.lost.map_or(Ok(()), |why| Err(unmapped_error(py, why)))
    }

    /// Returns a parcel of this body and these buffers, which have `bytes` bytes in all.
    pub(crate) fn from_parts(
        body: Bound<'_, PyBytes>,
        buffers: Bound<'_, PyTuple>,
        bytes: usize,
    ) -> Self {
        let weight = weight(body.as_bytes().len(), bytes);
        Parcel {
            body: body.unbind(),
            buffers: Mutex::new(Some(buffers.unbind())),
            weight,
            lost: None,
        }
    }

    /// Returns the body, which is empty for a lost parcel.
    pub(crate) fn body<'a, 'py>(&'a self, py: Python<'py>) -> &'a Bound<'py, PyBytes> {
        self.body.bind(py)
    }

    /// Replaces the buffers by other objects with the same bytes; the weight stays.
    pub(crate) fn set_buffers(&self, buffers: Bound<'_, PyTuple>) {
        let before = self.lock().replace(buffers.unbind());
        drop(before); // Not under the lock, because a destructor may run any code.
    }

    /// Locks the buffers.
    fn lock(&self) -> MutexGuard<'_, Option<Py<PyTuple>>> {
        lock(&self.buffers)
    }
}

#[pymethods]
impl Parcel {
    /// Makes a parcel. Raises TypeError if an object in `buffers` exports no contiguous bytes.
    #[new]
    fn new(py: Python<'_>, body: Bound<'_, PyBytes>, buffers: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffers = PyTuple::new(py, buffers.try_iter()?.collect::<PyResult<Vec<_>>>()?)?;
        let mut bytes = 0;
        for buffer in &buffers {
            bytes += ByteView::new(&buffer)?.len();
        }
        Ok(Parcel::from_parts(body, buffers, bytes))
    }

    /// The buffers, empty once they were dropped. Raises Unmapped if this process has no room for them.
    #[getter]
    pub(crate) fn buffers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        self.check(py)?;
        let buffers = self.lock().as_ref().map(|buffers| buffers.clone_ref(py));
        Ok(buffers.map_or_else(|| PyTuple::empty(py), |buffers| buffers.into_bound(py)))
    }

    /// Drops the buffers. Values that were made of the parcel keep those that they need.
    fn drop_buffers(&self) {
        let buffers = self.lock().take();
        drop(buffers); // Not under the lock, because a destructor may run any code.
    }

    /// Returns a parcel with another body and the same buffers.
    fn with_body(&self, py: Python<'_>, body: Bound<'_, PyBytes>) -> PyResult<Self> {
        let buffers = self.buffers(py)?;
        let weight = self.weight - self.body(py).as_bytes().len() + body.as_bytes().len();
        Ok(Parcel {
            weight,
            ..Parcel::from_parts(body, buffers, 0)
        })
    }

    /// The weight in a stream's credit, in bytes: the size of the body and a small part of the buffers.
    ///
    /// There is no `len()`, because readers would take it for the size of the body, which `max_frame` limits.
    #[getter]
    #[pyo3(name = "weight")]
    fn weight_in_credit(&self) -> usize {
        self.weight
    }

    unsafe fn __getbuffer__(
        slf: PyRef<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        if let Err(lost) = slf.check(slf.py()) {
            // SAFETY: `view` is the caller's to be filled; a view without an owner is not released.
            unsafe { (*view).obj = std::ptr::null_mut() };
            return Err(lost);
        }
        // SAFETY: `view` is the caller's to be filled; the bytes object becomes its owner.
        let failed = unsafe { ffi::PyObject_GetBuffer(slf.body.as_ptr(), view, flags) };
        check_status(slf.py(), failed)
    }
}

/// The bytes of an object, which this keeps alive. A view is dropped with the GIL.
pub(crate) struct ByteView {
    owner: Py<PyAny>,
    start: *const u8,
    len: usize,
    /// The view to release, if the buffer protocol filled one.
    view: Option<ffi::Py_buffer>,
}

// SAFETY: only its address and its length are used without the GIL; it is dropped with the GIL.
unsafe impl Send for ByteView {}
// SAFETY: as above.
unsafe impl Sync for ByteView {}

impl ByteView {
    /// Returns the bytes that an object exports by the buffer protocol. Raises TypeError if it exports no contiguous
    /// bytes.
    pub(crate) fn new(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let mut view = ffi::Py_buffer::new();
        // SAFETY: this fills `view`, which is released once.
        let failed =
            unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &mut view, ffi::PyBUF_SIMPLE) != 0 };
        if failed {
            let error = PyErr::fetch(object.py());
            let kind = object.get_type();
            let text = format!("expected a contiguous buffer of bytes, got {kind}: {error}");
            return Err(PyTypeError::new_err(text));
        }
        Ok(ByteView {
            owner: object.clone().unbind(),
            start: view.buf.cast_const().cast(),
            len: view.len as usize,
            view: Some(view),
        })
    }

    /// Returns bytes that `owner` has.
    ///
    /// # Safety
    /// `owner` has these bytes for as long as it lives.
    pub(crate) unsafe fn of(owner: Bound<'_, PyAny>, start: *const u8, len: usize) -> Self {
        ByteView {
            owner: owner.unbind(),
            start,
            len,
            view: None,
        }
    }

    /// Returns the object that has the bytes.
    pub(crate) fn owner(&self) -> &Py<PyAny> {
        &self.owner
    }

    /// Returns the address of the bytes, which is valid as long as the view.
    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.start
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for ByteView {
    fn drop(&mut self) {
        if let Some(view) = &mut self.view {
            // SAFETY: filled by `new`, and not released before.
            unsafe { ffi::PyBuffer_Release(view) };
        }
    }
}
