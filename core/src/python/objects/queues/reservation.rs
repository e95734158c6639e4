//! `Reservation`: memory of a queue that a program fills in place.

use crate::memory::mapping::MappingView;
use crate::objects::error::ObjectError;
use crate::objects::queue::QueueMembership;
use crate::python::codec::items::LargeItem;
use crate::python::objects::error::object_error;
use crate::python::objects::queues::waiting::{OWNER_LOCK_TIMEOUT, attempt, wait_to_put, was_put};
use crate::python::objects::shared_object::SharedObject;
use crate::python::support::export::{Export, Memory, export};
use crate::queue::Chunk;
use crate::sync::lock;
use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::os::raw::c_int;
use std::sync::{Arc, Mutex};

/// Memory of a queue for one item, which the program fills by the buffer protocol. `put_now` puts the item, `give_up`
/// frees the memory.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct Reservation {
    object: Py<SharedObject>,
    membership: Arc<QueueMembership>,
    chunk: Mutex<Option<Chunk>>,
    /// Bytes of the chunk that the item takes.
    used: u64,
    /// Keeps the memory mapped.
    _view: MappingView,
    address: usize,
    len: usize,
}

/// A request for the memory of an item, with the part of the item that the program does not fill.
pub(crate) struct ReservationRequest(LargeItem);

impl ReservationRequest {
    /// Makes a request for `len` raw bytes, or with `body` for the only buffer, of `len` bytes, of the value with this
    /// body. Raises ValueError for more bytes than any queue may hold.
    pub(crate) fn new(len: u64, body: Option<&[u8]>) -> PyResult<Self> {
        // So that no sum below exceeds the address space.
        let most = *crate::objects::memory::shape::QUEUE_BYTES.end();
        if len > most {
            let text = format!("{len} bytes are more than a queue may ever hold: {most}");
            return Err(PyValueError::new_err(text));
        }
        LargeItem::to_fill(len, body).map(ReservationRequest)
    }

    /// Reserves the memory, and returns its chunk; None if there is no memory now: the members that wait for room are
    /// woken once there is. Waits for the owner lock for at most `timeout` nanoseconds, and fails with `Changing` then.
    pub(crate) fn reserve(
        &self,
        membership: &QueueMembership,
        timeout: u64,
    ) -> Result<Option<Chunk>, ObjectError> {
        membership.reserve_chunk(self.0.room(), timeout)
    }

    /// Writes the part of the item that the program does not fill into the reserved chunk, and returns the reservation,
    /// which frees the chunk when it is dropped. Raises an error if the queue can no longer be used.
    pub(crate) fn write_to(
        self,
        py: Python<'_>,
        (object, membership): (&Py<SharedObject>, &Arc<QueueMembership>),
        chunk: Chunk,
    ) -> PyResult<Reservation> {
        let at = chunk.items();
        let to = membership.address_of(at, self.0.room());
        let to = to.map_err(|error| object_error(py, membership, error))?;
        let view = membership.view();
        let view = view.map_err(|error| object_error(py, membership, error))?;
        let (begin, len) = self.0.first_buffer(at);
        Ok(Reservation {
            object: object.clone_ref(py),
            membership: membership.clone(),
            chunk: Mutex::new(Some(chunk)),
            used: self.0.write(to, at, 0) as u64,
            _view: view,
            address: to.wrapping_add((begin - at) as usize).addr(),
            len: len as usize,
        })
    }
}

// SAFETY: mapped and writable for as long as this object.
unsafe impl Export for Reservation {
    /// Returns the memory that the program fills. The memory stays mapped after the item was put. Never fails.
    fn memory(&self) -> PyResult<Memory> {
        Ok(Memory {
            address: self.address,
            len: self.len,
            is_writable: true,
        })
    }
}

#[pymethods]
impl Reservation {
    /// Puts the item. Returns False if there is no room for another one: the memory stays reserved. Puts nothing if the
    /// memory is no longer reserved. Raises QueueShutDown.
    fn put_now(&self, py: Python<'_>) -> PyResult<bool> {
        let membership = &self.membership;
        let outcome = attempt(py, membership, |timeout| {
            membership.link_chunk(&mut lock(&self.chunk), self.used, timeout)
        })?;
        was_put(py, membership, outcome)
    }

    /// Returns True if there may be room for another item: a hint.
    fn may_put(&self) -> bool {
        self.membership.may_put(1)
    }

    /// Waits in a thread until the item is put. Returns True; False after the timeout, None if waits were stopped.
    /// Raises QueueShutDown.
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<bool>> {
        let queue = (self.object.get(), &*self.membership);
        wait_to_put(py, queue, 1, timeout, || {
            queue
                .1
                .link_chunk(&mut lock(&self.chunk), self.used, OWNER_LOCK_TIMEOUT)
        })
    }

    /// Frees the memory, unless the item was put. Idempotent. Ignores errors.
    fn give_up(&self, py: Python<'_>) {
        if let Some(chunk) = lock(&self.chunk).take() {
            // The next operation on the queue raises any error.
            let _ = py.detach(|| self.membership.free_chunk(chunk, OWNER_LOCK_TIMEOUT));
        }
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

impl Drop for Reservation {
    /// Frees the memory, unless the item was put. Waits, with the GIL, for at most `OWNER_LOCK_TIMEOUT`; otherwise the
    /// watcher frees the memory.
    fn drop(&mut self) {
        if !self.membership.is_here() {
            std::mem::forget(self.membership.clone()); // A forked child must release nothing of its parent's.
            return;
        }
        if let Some(chunk) = lock(&self.chunk).take() {
            let _ = self.membership.free_chunk(chunk, OWNER_LOCK_TIMEOUT);
        }
    }
}
