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

/// How many bytes of a buffer count for a stream's credit as one of a body: they take no room in the ring.
const BUFFER_BYTES_PER_BYTE: usize = 16;

/// A body and the buffers that it refers to by their places in a list. Read as bytes, a parcel is its body.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct Parcel {
    #[pyo3(get)]
    body: Py<PyBytes>,
    /// None once they were dropped by `drop_buffers`.
    buffers: Mutex<Option<Py<PyTuple>>>,
    /// What it counts for.
    weight: usize,
    /// Why there is nothing to read, if so: this process has no room for it.
    lost: Option<Violation>,
}

/// What a body counts for in a stream's credit, with `bytes` of buffers beside it.
pub(crate) fn weight(body: usize, bytes: usize) -> usize {
    body.saturating_add(bytes / BUFFER_BYTES_PER_BYTE)
}

impl Parcel {
    /// One that came, and cannot be read: whoever tries is told why. All else that came is not harmed.
    pub(crate) fn lost(py: Python<'_>, why: Violation) -> Self {
        Parcel {
            body: PyBytes::new(py, b"").unbind(),
            buffers: Mutex::new(None),
            weight: 0,
            lost: Some(why),
        }
    }

    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.lost.map_or(Ok(()), |why| Err(unmapped_error(py, why)))
    }

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

    pub(crate) fn body<'a, 'py>(&'a self, py: Python<'py>) -> &'a Bound<'py, PyBytes> {
        self.body.bind(py)
    }

    /// Other objects with the same bytes, in the places of the buffers.
    pub(crate) fn set_buffers(&self, buffers: Bound<'_, PyTuple>) {
        let before = self.lock().replace(buffers.unbind());
        drop(before); // Not under the lock: it may run code.
    }

    fn lock(&self) -> MutexGuard<'_, Option<Py<PyTuple>>> {
        lock(&self.buffers)
    }
}

#[pymethods]
impl Parcel {
    /// `buffers`: objects with the buffer protocol, contiguous.
    #[new]
    fn new(py: Python<'_>, body: Bound<'_, PyBytes>, buffers: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffers = PyTuple::new(py, buffers.try_iter()?.collect::<PyResult<Vec<_>>>()?)?;
        let mut bytes = 0;
        for buffer in &buffers {
            bytes += ByteView::new(&buffer)?.len();
        }
        Ok(Parcel::from_parts(body, buffers, bytes))
    }

    /// The buffers; none once they were dropped. Raises Unmapped if they cannot be looked at.
    #[getter]
    pub(crate) fn buffers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        self.check(py)?;
        let buffers = self.lock().as_ref().map(|buffers| buffers.clone_ref(py));
        Ok(buffers.map_or_else(|| PyTuple::empty(py), |buffers| buffers.into_bound(py)))
    }

    /// Lets the buffers go: what has been made of them keeps those that it needs.
    fn drop_buffers(&self) {
        let buffers = self.lock().take();
        drop(buffers); // Not under the lock: it may run code.
    }

    /// Another body that refers to the same buffers.
    fn with_body(&self, py: Python<'_>, body: Bound<'_, PyBytes>) -> PyResult<Self> {
        let buffers = self.buffers(py)?;
        let weight = self.weight - self.body(py).as_bytes().len() + body.as_bytes().len();
        Ok(Parcel {
            weight,
            ..Parcel::from_parts(body, buffers, 0)
        })
    }

    /// What it counts for in a stream's credit, in bytes: its body, and a small part of its buffers.
    ///
    /// It has no `len()`: that would be taken for the size of its body, which `max_frame` limits.
    #[getter]
    #[pyo3(name = "weight")]
    fn counts_for(&self) -> usize {
        self.weight
    }

    unsafe fn __getbuffer__(
        slf: PyRef<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        if let Err(lost) = slf.check(slf.py()) {
            // SAFETY: `view` is the caller's to be filled; without an owner nothing is to be released.
            unsafe { (*view).obj = std::ptr::null_mut() };
            return Err(lost);
        }
        // SAFETY: `view` is the caller's to be filled; the bytes object becomes its owner.
        let failed = unsafe { ffi::PyObject_GetBuffer(slf.body.as_ptr(), view, flags) };
        check_status(slf.py(), failed)
    }
}

/// The bytes of an object, for as long as this lives. Whoever drops it holds the GIL.
pub(crate) struct ByteView {
    owner: Py<PyAny>,
    start: *const u8,
    len: usize,
    /// What was filled by the buffer protocol, and has to be released.
    view: Option<ffi::Py_buffer>,
}

// SAFETY: only its address and length are used without the GIL; it is dropped with it.
unsafe impl Send for ByteView {}
// SAFETY: as above.
unsafe impl Sync for ByteView {}

impl ByteView {
    /// The bytes that an object gives by the buffer protocol.
    pub(crate) fn new(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let mut view = ffi::Py_buffer::new();
        // SAFETY: `view` is ours to be filled, and is released once.
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

    /// Bytes that `owner` has for as long as it lives.
    ///
    /// # Safety
    /// So it is.
    pub(crate) unsafe fn of(owner: Bound<'_, PyAny>, start: *const u8, len: usize) -> Self {
        ByteView {
            owner: owner.unbind(),
            start,
            len,
            view: None,
        }
    }

    /// The object whose bytes they are.
    pub(crate) fn owner(&self) -> &Py<PyAny> {
        &self.owner
    }

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
