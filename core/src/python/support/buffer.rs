//! `Buffer`: a buffer in memory that both sides of a connection have mapped.

use crate::connection::buffer;
use crate::memory::bytes;
use crate::memory::extent::Extent;
use crate::memory::view::{self, Mode};
use crate::python::support::errors::{check_status, unmapped_error};
use crate::sync::lock;
use crate::violation::Violation;
use pyo3::exceptions::{PyBufferError, PyOSError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView};
use std::os::raw::{c_char, c_int, c_void};
use std::sync::{Arc, Mutex, Once};

/// Bytes from here on are copied without the GIL.
pub(crate) const LONG: usize = 64 << 10;

const GIVEN_BACK: &str = "this memory was given back by release()";

/// A buffer in shared memory, by the buffer protocol. As long as it lives, and any view of it, the memory is not used
/// for anything else.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct Buffer {
    /// None once it was given back by `release`.
    memory: Mutex<Option<buffer::Buffer>>,
    /// Stays mapped for as long as there are views, whatever becomes of the buffer.
    _extent: Arc<Extent>,
    address: usize,
    len: usize,
    writable: bool,
}

/// Lets the C library keep the memory of large objects that are freed, for the next ones.
///
/// It learns from what is freed how much to keep: at first nothing of 128 KiB or more. Then each bytes object of a
/// megabyte is a new mapping, and filling it costs a page fault for every page, several times as much as the copy. One
/// free of its largest measure, which is never touched, teaches it.
fn keep_freed_memory() {
    /// What glibc learns from at most, without its own header.
    const MOST: usize = (32 << 20) - (64 << 10);
    static ONCE: Once = Once::new();
    // SAFETY: what is allocated is freed. The volatile write keeps both from being left out.
    ONCE.call_once(|| unsafe {
        let memory = libc::malloc(MOST);
        if !memory.is_null() {
            memory.cast::<u8>().write_volatile(0);
            libc::free(memory);
        }
    });
}

/// Whether a value has the buffer protocol.
#[pyfunction]
pub fn is_buffer(value: &Bound<'_, PyAny>) -> bool {
    // SAFETY: the GIL is ours.
    unsafe { ffi::PyObject_CheckBuffer(value.as_ptr()) != 0 }
}

/// Where the memory of a view begins, which nothing in Python tells of memory that cannot be written.
#[pyfunction]
pub fn address_of(view: &Bound<'_, PyMemoryView>) -> PyResult<usize> {
    let mut found = ffi::Py_buffer::new();
    // SAFETY: the GIL is ours; `found` is ours to be filled, and is released if it was.
    unsafe {
        if ffi::PyObject_GetBuffer(view.as_ptr(), &mut found, ffi::PyBUF_FULL_RO) != 0 {
            return Err(PyErr::fetch(view.py()));
        }
        let address = found.buf.addr();
        ffi::PyBuffer_Release(&mut found);
        Ok(address)
    }
}

/// A new bytes object, to be filled.
pub(crate) fn bytes_of<'py>(
    py: Python<'py>,
    len: usize,
    fill: impl FnOnce(*mut u8) + Send,
) -> PyResult<Bound<'py, PyBytes>> {
    let (bytes, to) = unfilled(py, len)?;
    let to = to.addr();
    if len < LONG {
        fill(to as *mut u8);
    } else {
        py.detach(|| fill(to as *mut u8));
    }
    Ok(bytes)
}

/// A new bytes object that nobody else has seen, and where its bytes are to be written: also without the GIL.
fn unfilled(py: Python<'_>, len: usize) -> PyResult<(Bound<'_, PyBytes>, *mut u8)> {
    if len >= LONG {
        keep_freed_memory();
    }
    // SAFETY: a new object of this length, or an error.
    unsafe {
        let made =
            ffi::PyBytes_FromStringAndSize(std::ptr::null::<c_char>(), len as ffi::Py_ssize_t);
        let bytes = Bound::from_owned_ptr_or_err(py, made)?.cast_into_unchecked::<PyBytes>();
        Ok((bytes, ffi::PyBytes_AsString(made).cast()))
    }
}

/// A bytes object that is a copy of private bytes.
pub(crate) fn copy_of<'py>(py: Python<'py>, from: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    let (made, to) = unfilled(py, from.len())?;
    // SAFETY: it is as long, and nobody else has it; of an empty one nothing is written.
    unsafe { bytes::copy(to, from.as_ptr(), from.len()) };
    Ok(made)
}

impl Buffer {
    pub(crate) fn new(memory: buffer::Buffer, writable: bool) -> Self {
        Buffer {
            _extent: memory.extent().clone(),
            address: memory.address().addr(),
            len: memory.len(),
            writable,
            memory: Mutex::new(Some(memory)),
        }
    }

    /// Where it is mapped, and its length; None once it was given back.
    pub(crate) fn place(&self) -> Option<(*const u8, usize)> {
        (!self.released()).then_some((self.address as *const u8, self.len))
    }

    fn with<R>(&self, use_it: impl FnOnce(&buffer::Buffer) -> PyResult<R>) -> PyResult<R> {
        let memory = lock(&self.memory);
        use_it(
            memory
                .as_ref()
                .ok_or_else(|| PyValueError::new_err(GIVEN_BACK))?,
        )
    }

    fn map(slf: &Bound<'_, Self>, mode: Mode) -> PyResult<View> {
        let py = slf.py();
        let (mapping, start) = slf.get().with(|memory| {
            memory.map(mode).map_err(|error| {
                let why = Violation::Unmapped {
                    number: memory.extent().number(),
                    size: memory.len() as u64,
                    error: error.raw_os_error().unwrap_or(libc::EINVAL),
                };
                unmapped_error(py, why)
            })
        })?;
        Ok(View {
            mapping,
            start,
            len: slf.get().len,
            _buffer: slf.clone().unbind(),
        })
    }
}

/// Copies out of shared memory into a new bytes object.
pub(crate) fn copy_out<'py>(
    py: Python<'py>,
    memory: &buffer::Buffer,
) -> PyResult<Bound<'py, PyBytes>> {
    // SAFETY: it is as long as the memory.
    bytes_of(py, memory.len(), |to| unsafe { memory.read(to) })
}

#[pymethods]
impl Buffer {
    /// A copy.
    pub(crate) fn to_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        // Not under the lock: it must not be held while the GIL is waited for.
        self.with(|_| Ok(()))?;
        let (from, len) = (self.address, self.len);
        bytes_of(py, len, move |to| {
            // SAFETY: mapped for as long as this object, which the caller holds; `to` is as long.
            unsafe { bytes::copy(to, from as *const u8, len) }
        })
    }

    /// The same bytes, writable: what is written stays in this process. Raises Unmapped if there is no room for that.
    fn private(slf: &Bound<'_, Self>) -> PyResult<View> {
        Buffer::map(slf, Mode::Private)
    }

    /// The same bytes, writable: what is written is seen by the process that sent them. Raises Unmapped as above.
    fn shared(slf: &Bound<'_, Self>) -> PyResult<View> {
        Buffer::map(slf, Mode::Shared)
    }

    /// Gives the memory back now. Views of it must not be used any more: what they show may change.
    fn release(&self) {
        let memory = lock(&self.memory).take();
        drop(memory);
    }

    /// Whether it was given back.
    #[getter]
    fn released(&self) -> bool {
        lock(&self.memory).is_none()
    }

    fn __len__(&self) -> usize {
        self.len
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let buffer = slf.get();
        if buffer.released() {
            return Err(PyBufferError::new_err(GIVEN_BACK));
        }
        // SAFETY: mapped for as long as the buffer, which the view keeps alive.
        unsafe {
            fill(
                view,
                slf.as_any(),
                buffer.address,
                buffer.len,
                buffer.writable,
                flags,
            )
        }
    }
}

/// Fills a view with memory that `owner` keeps.
///
/// # Safety
/// The memory is readable, and writable if so said, for as long as `owner` lives; `view` is to be filled.
pub(crate) unsafe fn fill(
    view: *mut ffi::Py_buffer,
    owner: &Bound<'_, PyAny>,
    address: usize,
    len: usize,
    writable: bool,
    flags: c_int,
) -> PyResult<()> {
    // SAFETY: the caller's promise.
    let failed = unsafe {
        ffi::PyBuffer_FillInfo(
            view,
            owner.as_ptr(),
            address as *mut c_void,
            len as ffi::Py_ssize_t,
            c_int::from(!writable),
            flags,
        )
    };
    check_status(owner.py(), failed)
}

/// A writable mapping of a buffer, by the buffer protocol.
#[pyclass(frozen, weakref, module = "shmrpc._core")]
pub struct View {
    mapping: view::View,
    /// Where the buffer begins in it, in bytes.
    start: usize,
    len: usize,
    _buffer: Py<Buffer>,
}

#[pymethods]
impl View {
    /// Keeps what is written from now on in this process.
    fn detach(&self) -> PyResult<()> {
        self.mapping.detach().map_err(PyOSError::new_err)
    }

    fn __len__(&self) -> usize {
        self.len
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let us = slf.get();
        let address = us.mapping.base().addr() + us.start;
        // SAFETY: mapped and writable for as long as this object, which the view keeps alive.
        unsafe { fill(view, slf.as_any(), address, us.len, true, flags) }
    }
}
