//! `Block`: a buffer in memory that both sides of a connection have mapped.

use super::errors::unmapped;
use crate::connection::buffer::Buffer;
use crate::memory::extent::Extent;
use crate::memory::view::{self, Mode};
use crate::sync::lock;
use crate::violation::Violation;
use pyo3::exceptions::{PyBufferError, PyOSError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::os::raw::{c_char, c_int, c_void};
use std::sync::{Arc, Mutex, Once};

/// What is done for so many bytes or more is done without the GIL.
const LONG: usize = 64 << 10;

/// A buffer in shared memory, by the buffer protocol. As long as it lives, and any view of it, the
/// memory is not used for anything else.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct Block {
    /// None once it was given back early.
    memory: Mutex<Option<Buffer>>,
    /// Stays mapped for as long as there are views, whatever becomes of the block.
    _extent: Arc<Extent>,
    address: usize,
    len: usize,
    writable: bool,
}

/// Lets the C library keep the memory of large objects that are freed, for the next ones.
///
/// It learns from what is freed how much to keep: at first nothing of 128 KiB or more. Then each bytes
/// object of a megabyte is a new mapping, and filling it costs a page fault for every page, several
/// times as much as the copy. One free of its largest measure, which is never touched, teaches it.
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

/// A new bytes object, to be filled.
pub(super) fn bytes_of<'py>(
    py: Python<'py>,
    len: usize,
    fill: impl FnOnce(*mut u8) + Send,
) -> PyResult<Bound<'py, PyBytes>> {
    if len >= LONG {
        keep_freed_memory();
    }
    // SAFETY: a new object of this length, or an error; nobody else has seen it, so that it may be
    // written, and without the GIL too.
    unsafe {
        let made =
            ffi::PyBytes_FromStringAndSize(std::ptr::null::<c_char>(), len as ffi::Py_ssize_t);
        let bytes = Bound::from_owned_ptr_or_err(py, made)?.cast_into_unchecked::<PyBytes>();
        let to = ffi::PyBytes_AsString(made).addr();
        if len < LONG {
            fill(to as *mut u8);
        } else {
            py.detach(|| fill(to as *mut u8));
        }
        Ok(bytes)
    }
}

impl Block {
    pub(super) fn new(memory: Buffer, writable: bool) -> Self {
        Block {
            _extent: memory.extent().clone(),
            address: memory.address().addr(),
            len: memory.len(),
            writable,
            memory: Mutex::new(Some(memory)),
        }
    }

    fn with<R>(&self, use_it: impl FnOnce(&Buffer) -> PyResult<R>) -> PyResult<R> {
        let memory = lock(&self.memory);
        match &*memory {
            Some(memory) => use_it(memory),
            None => Err(PyValueError::new_err(
                "this memory was given back by release()",
            )),
        }
    }

    fn map(slf: &Bound<'_, Self>, mode: Mode) -> PyResult<View> {
        let py = slf.py();
        let (mapping, start) = slf.get().with(|memory| {
            memory.map(mode).map_err(|error| {
                let error = error.raw_os_error().unwrap_or(libc::EINVAL);
                let (number, size) = (memory.extent().number(), memory.len() as u64);
                let why = Violation::Unmapped {
                    number,
                    size,
                    error,
                };
                unmapped(py, error, &why.to_string())
            })
        })?;
        Ok(View {
            mapping,
            start,
            len: slf.get().len,
            _block: slf.clone().unbind(),
        })
    }
}

/// Copies out of shared memory into a new bytes object.
pub(super) fn copy_out<'py>(py: Python<'py>, memory: &Buffer) -> PyResult<Bound<'py, PyBytes>> {
    // SAFETY: it is as long as the memory.
    bytes_of(py, memory.len(), |to| unsafe { memory.read(to) })
}

#[pymethods]
impl Block {
    /// A copy.
    fn to_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        // Not under the lock: it must not be held while the GIL is waited for.
        self.with(|_| Ok(()))?;
        let (from, len) = (self.address, self.len);
        bytes_of(py, len, move |to| {
            // SAFETY: mapped for as long as this object, which the caller holds; `to` is as long.
            unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to, len) }
        })
    }

    /// The same bytes, writable: what is written is seen by nobody else. Raises Unmapped if there is no room for that.
    fn private(slf: &Bound<'_, Self>) -> PyResult<View> {
        Block::map(slf, Mode::Private)
    }

    /// The same bytes, writable: what is written is seen by whoever has sent them. Raises Unmapped as above.
    fn shared(slf: &Bound<'_, Self>) -> PyResult<View> {
        Block::map(slf, Mode::Shared)
    }

    /// Gives the memory back now. Views of it must not be used any more: what they show may change.
    fn release(&self) {
        let memory = lock(&self.memory).take();
        drop(memory);
    }

    /// Whether it was given back.
    #[getter]
    fn released(&self) -> bool {
        let memory = lock(&self.memory);
        memory.is_none()
    }

    fn __len__(&self) -> usize {
        self.len
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let block = slf.get();
        if block.released() {
            return Err(PyBufferError::new_err(
                "this memory was given back by release()",
            ));
        }
        // SAFETY: mapped for as long as the block, which the view keeps alive.
        unsafe {
            fill(
                view,
                slf.as_any(),
                block.address,
                block.len,
                block.writable,
                flags,
            )
        }
    }
}

/// Fills a view with memory that `owner` keeps.
///
/// # Safety
/// The memory is readable, and writable if so said, for as long as `owner` lives; `view` is to be filled.
unsafe fn fill(
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
        ) != 0
    };
    if failed {
        Err(PyErr::fetch(owner.py()))
    } else {
        Ok(())
    }
}

/// A writable mapping of a block, by the buffer protocol.
#[pyclass(frozen, weakref, module = "shmrpc._core")]
pub struct View {
    mapping: view::View,
    /// Where the block begins in it, in bytes.
    start: usize,
    len: usize,
    _block: Py<Block>,
}

#[pymethods]
impl View {
    /// From now on what is written stays here.
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
