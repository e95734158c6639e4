//! `Reservation`: memory of a queue that this process fills.

use crate::memory::mapping::MappingView;
use crate::objects::error::ObjectError;
use crate::objects::queue::QueueMembership;
use crate::python::codec::items::Large;
use crate::python::objects::queues::queue::{PATIENCE, attempt, told, wait_to_put};
use crate::python::objects::shared_object::{SharedObject, failed};
use crate::python::support::buffer::fill;
use crate::queue::Chunk;
use crate::sync::lock;
use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::os::raw::c_int;
use std::sync::{Arc, Mutex};

/// Memory of a queue, writable by the buffer protocol, which is to be an item: put by `put_now`, or given up.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct Reservation {
    name: Py<SharedObject>,
    membership: Arc<QueueMembership>,
    chunk: Mutex<Option<Chunk>>,
    /// Bytes of the chunk that the item takes.
    used: u64,
    /// Keeps the memory mapped.
    _view: MappingView,
    address: usize,
    len: usize,
}

/// What memory is asked for, and what is in it besides what its user fills.
pub(crate) struct Plan(Large);

impl Plan {
    /// For `len` bytes; `body`, if there is one, is that of a value with this one buffer.
    pub(crate) fn new(len: u64, body: Option<&[u8]>) -> PyResult<Self> {
        // What no queue can hold; so that nothing below is more than there are addresses.
        let most = *crate::objects::memory::shape::QUEUE_BYTES.end();
        if len > most {
            let text = format!("{len} bytes are more than a queue may ever hold: {most}");
            return Err(PyValueError::new_err(text));
        }
        Large::to_fill(len, body).map(Plan)
    }

    /// Memory for it; None if there is none now.
    pub(crate) fn reserve(
        &self,
        membership: &QueueMembership,
        patience: u64,
    ) -> Result<Option<Chunk>, ObjectError> {
        membership.reserve_chunk(self.0.room(), patience)
    }

    /// Begins to fill it.
    pub(crate) fn begin(
        self,
        py: Python<'_>,
        (name, membership): (&Py<SharedObject>, &Arc<QueueMembership>),
        chunk: Chunk,
    ) -> PyResult<Reservation> {
        let at = chunk.items();
        let to = membership.address_of(at, self.0.room());
        let to = to.map_err(|error| failed(py, membership, error))?;
        let view = membership.view();
        let view = view.map_err(|error| failed(py, membership, error))?;
        let (begin, len) = self.0.first_buffer(at);
        Ok(Reservation {
            name: name.clone_ref(py),
            membership: membership.clone(),
            chunk: Mutex::new(Some(chunk)),
            used: self.0.write(to, at, 0) as u64,
            _view: view,
            address: to.wrapping_add((begin - at) as usize).addr(),
            len: len as usize,
        })
    }
}

#[pymethods]
impl Reservation {
    /// Puts it; False if there is no room for another item.
    fn put_now(&self, py: Python<'_>) -> PyResult<bool> {
        let membership = &self.membership;
        let put = attempt(py, membership, |patience| {
            membership.link_chunk(&mut lock(&self.chunk), self.used, patience)
        })?;
        told(py, membership, put)
    }

    /// Whether there may be room for another item: a hint.
    fn may_put(&self) -> bool {
        self.membership.may_put(1)
    }

    /// Waits until it is put, in a thread. False if the timeout is over, None if waits were stopped.
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<bool>> {
        let us = (self.name.get(), &*self.membership);
        wait_to_put(py, us, 1, timeout, || {
            us.1.link_chunk(&mut lock(&self.chunk), self.used, PATIENCE)
        })
    }

    /// Gives the memory up. Again, or once it was put: nothing.
    fn give_up(&self, py: Python<'_>) {
        if let Some(chunk) = lock(&self.chunk).take() {
            // What is wrong, whoever uses the queue next reads.
            let _ = py.detach(|| self.membership.free_chunk(chunk, PATIENCE));
        }
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let us = slf.get();
        // SAFETY: mapped and writable for as long as this object, which the view keeps alive.
        unsafe { fill(view, slf.as_any(), us.address, us.len, true, flags) }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if !self.membership.is_here() {
            std::mem::forget(self.membership.clone()); // A forked child takes nothing of the parent's down.
            return;
        }
        if let Some(chunk) = lock(&self.chunk).take() {
            let _ = self.membership.free_chunk(chunk, PATIENCE);
        }
    }
}
