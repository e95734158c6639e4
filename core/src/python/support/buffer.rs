//! `Buffer`: a buffer in memory that both sides of a connection have mapped.

use crate::connection::buffer;
use crate::memory::bytes;
use crate::memory::extent::Extent;
use crate::memory::view::{self, Mode};
use crate::python::support::errors::unmapped_error;
use crate::python::support::export::{Export, Memory, export};
use crate::sync::lock;
use crate::violation::Violation;
use pyo3::exceptions::{PyBufferError, PyOSError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView};
use std::os::raw::{c_char, c_int};
use std::sync::{Arc, Mutex, Once};

/// The smallest number of bytes that are copied without the GIL.
pub(crate) const LONG: usize = 64 << 10;

const RELEASED: &str = "this buffer was released by release()";

/// A buffer in shared memory, by the buffer protocol. While it or a view of it lives, the memory is used for nothing
/// else.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct Buffer {
    /// None once `release` has released the memory.
    memory: Mutex<Option<buffer::Buffer>>,
    /// Stays mapped while views exist, even if the buffer is released.
    _extent: Arc<Extent>,
    address: usize,
    len: usize,
    is_writable: bool,
}

/// Makes the C library keep the memory of large freed objects for later ones. Idempotent.
///
/// The library learns from frees how much to keep: at first it keeps no block of 128 KiB or more. Then each bytes
/// object of a megabyte is a new mapping, and filling it costs a page fault for every page, several times as much as
/// the copy. A single free of the largest size that the library learns from, of memory that is never touched, is
/// enough.
fn keep_freed_memory() {
    /// The largest size that glibc learns from, without its own header.
    const MAX_LEARNED: usize = (32 << 20) - (64 << 10);
    static ONCE: Once = Once::new();
    // SAFETY: the block that is allocated is freed. The volatile write keeps the compiler from removing both.
    ONCE.call_once(|| unsafe {
        let memory = libc::malloc(MAX_LEARNED);
        if !memory.is_null() {
            memory.cast::<u8>().write_volatile(0);
            libc::free(memory);
        }
    });
}

/// Returns True if a value has the buffer protocol.
#[pyfunction]
pub fn is_buffer(value: &Bound<'_, PyAny>) -> bool {
    // SAFETY: the GIL is held.
    unsafe { ffi::PyObject_CheckBuffer(value.as_ptr()) != 0 }
}

/// Returns the address of a view's memory, for which Python has no function if the memory is read-only.
#[pyfunction]
pub fn address_of(view: &Bound<'_, PyMemoryView>) -> PyResult<usize> {
    let mut found = ffi::Py_buffer::new();
    // SAFETY: the GIL is held; this fills `found`, and releases it if that succeeded.
    unsafe {
        if ffi::PyObject_GetBuffer(view.as_ptr(), &mut found, ffi::PyBUF_FULL_RO) != 0 {
            return Err(PyErr::fetch(view.py()));
        }
        let address = found.buf.addr();
        ffi::PyBuffer_Release(&mut found);
        Ok(address)
    }
}

/// Returns a new bytes object of `len` bytes, all of which `fill` writes: without the GIL if there are at least `LONG`.
/// Raises MemoryError.
pub(crate) fn new_bytes<'py>(
    py: Python<'py>,
    len: usize,
    fill: impl FnOnce(*mut u8) + Send,
) -> PyResult<Bound<'py, PyBytes>> {
    let (bytes, to) = new_unfilled_bytes(py, len)?;
    let to = to.addr();
    if len < LONG {
        fill(to as *mut u8);
    } else {
        py.detach(|| fill(to as *mut u8));
    }
    Ok(bytes)
}

/// Returns a new bytes object that no other code has seen, and the address to which its bytes may be written, also
/// without the GIL. Raises MemoryError.
fn new_unfilled_bytes(py: Python<'_>, len: usize) -> PyResult<(Bound<'_, PyBytes>, *mut u8)> {
    if len >= LONG {
        keep_freed_memory();
    }
    // SAFETY: the result is a new object of this length, or null with an exception.
    unsafe {
        let made =
            ffi::PyBytes_FromStringAndSize(std::ptr::null::<c_char>(), len as ffi::Py_ssize_t);
        let bytes = Bound::from_owned_ptr_or_err(py, made)?.cast_into_unchecked::<PyBytes>();
        Ok((bytes, ffi::PyBytes_AsString(made).cast()))
    }
}

/// Returns a bytes object with a copy of private bytes. Keeps the GIL. Raises MemoryError.
pub(crate) fn copy_of<'py>(py: Python<'py>, from: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    let (made, to) = new_unfilled_bytes(py, from.len())?;
    // SAFETY: the object is as long, and no other code has it; of an empty one nothing is written.
    unsafe { bytes::copy(to, from.as_ptr(), from.len()) };
    Ok(made)
}

impl Buffer {
    /// Takes over `memory`, and releases it by `release` or when this is dropped. With `is_writable`, programs may
    /// write it by the buffer protocol.
    pub(crate) fn new(memory: buffer::Buffer, is_writable: bool) -> Self {
        Buffer {
            _extent: memory.extent().clone(),
            address: memory.address().addr(),
            len: memory.len(),
            is_writable,
            memory: Mutex::new(Some(memory)),
        }
    }

    /// Returns the address and the length of the memory; None once it was released.
    pub(crate) fn location(&self) -> Option<(*const u8, usize)> {
        (!self.released()).then_some((self.address as *const u8, self.len))
    }

    /// Calls `operate` with the memory, under its lock, and returns the result: `operate` must neither wait for the GIL
    /// nor run Python code. Raises ValueError once the memory was released.
    fn with<R>(&self, operate: impl FnOnce(&buffer::Buffer) -> R) -> PyResult<R> {
        let memory = lock(&self.memory);
        let memory = memory.as_ref();
        Ok(operate(
            memory.ok_or_else(|| PyValueError::new_err(RELEASED))?,
        ))
    }

    /// Returns a view of this mode. Raises ValueError once the memory was released, and Unmapped if this process has no
    /// room for the view.
    fn map(slf: &Bound<'_, Self>, mode: Mode) -> PyResult<View> {
        let py = slf.py();
        let mapped = slf.get().with(|memory| {
            memory.map(mode).map_err(|error| Violation::Unmapped {
                number: memory.extent().number(),
                size: memory.len() as u64,
                error: error.raw_os_error().unwrap_or(libc::EINVAL),
            })
        })?;
        // Not under the lock, because making the exception may run any code.
        let (mapping, start) = mapped.map_err(|why| unmapped_error(py, why))?;
        Ok(View {
            mapping,
            start,
            len: slf.get().len,
            _buffer: slf.clone().unbind(),
        })
    }
}

/// Returns a new bytes object with a copy of a buffer of shared memory.
pub(crate) fn copy_out<'py>(
    py: Python<'py>,
    memory: &buffer::Buffer,
) -> PyResult<Bound<'py, PyBytes>> {
    // SAFETY: the object is as long as the memory.
    new_bytes(py, memory.len(), |to| unsafe { memory.read(to) })
}

// SAFETY: mapped for as long as the buffer.
unsafe impl Export for Buffer {
    fn memory(&self) -> PyResult<Memory> {
        if self.released() {
            return Err(PyBufferError::new_err(RELEASED));
        }
        Ok(Memory {
            address: self.address,
            len: self.len,
            is_writable: self.is_writable,
        })
    }
}

#[pymethods]
impl Buffer {
    /// Returns a copy of the bytes. Raises ValueError once the memory was released.
    pub(crate) fn to_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        // Not under the lock, which must not be held while the thread waits for the GIL.
        self.with(|_| ())?;
        let (from, len) = (self.address, self.len);
        new_bytes(py, len, move |to| {
            // SAFETY: mapped for as long as this object, which the caller holds; `to` is as long.
            unsafe { bytes::copy(to, from as *const u8, len) }
        })
    }

    /// Returns a writable view whose changes stay in this process. Raises Unmapped if this process has no room for the
    /// view.
    fn private(slf: &Bound<'_, Self>) -> PyResult<View> {
        Buffer::map(slf, Mode::Private)
    }

    /// Returns a writable view whose changes the sender of the buffer sees. Raises Unmapped if this process has no room
    /// for the view.
    fn shared(slf: &Bound<'_, Self>) -> PyResult<View> {
        Buffer::map(slf, Mode::Shared)
    }

    /// Releases the memory now. The program must no longer use views of it, because their contents may change.
    /// Idempotent.
    fn release(&self) {
        let memory = lock(&self.memory).take();
        drop(memory);
    }

    /// True once the memory was released.
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
        // SAFETY: `view` is the caller's to be filled.
        unsafe { export(&slf, view, flags) }
    }
}

/// A writable mapping of a buffer, by the buffer protocol.
#[pyclass(frozen, weakref, module = "shmrpc._core")]
pub struct View {
    mapping: view::View,
    /// Offset of the buffer in the mapping, in bytes.
    start: usize,
    len: usize,
    _buffer: Py<Buffer>,
}

// SAFETY: mapped and writable for as long as this object.
unsafe impl Export for View {
    fn memory(&self) -> PyResult<Memory> {
        Ok(Memory {
            address: self.mapping.base().addr() + self.start,
            len: self.len,
            is_writable: true,
        })
    }
}

#[pymethods]
impl View {
    /// Makes later changes stay in this process. Raises OSError if the view cannot be mapped anew.
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
        // SAFETY: `view` is the caller's to be filled.
        unsafe { export(&slf, view, flags) }
    }
}
