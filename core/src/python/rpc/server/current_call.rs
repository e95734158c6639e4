//! `CurrentCall`: the call that a thread's event loop runs.

use crate::sync::lock;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use std::sync::Mutex;

/// The call that a thread's event loop runs, from its frame to its reply. A context variable would cost more.
#[pyclass(frozen, module = "shmrpc._core")]
#[derive(Default)]
pub struct CurrentCall(Mutex<Frame>);

#[derive(Default)]
enum Frame {
    #[default]
    None,
    /// The object that Python has set.
    Object(Py<PyAny>),
    /// A request that the core runs.
    Request {
        key: Py<PyAny>,
        opcode: u32,
        id: u64,
        deadline: Option<u64>,
    },
}

impl CurrentCall {
    /// Replaces the frame.
    #[inline]
    fn set(&self, frame: Frame) {
        let before = std::mem::replace(&mut *lock(&self.0), frame);
        drop(before); // After the lock, because a destructor may run any code.
    }

    /// Makes a request of the client `key` the current call.
    #[inline]
    pub(crate) fn begin(&self, key: Py<PyAny>, opcode: u32, id: u64, deadline: Option<u64>) {
        self.set(Frame::Request {
            key,
            opcode,
            id,
            deadline,
        });
    }
}

#[pymethods]
impl CurrentCall {
    #[new]
    fn new() -> Self {
        CurrentCall::default()
    }

    /// The current call: (key, opcode, id, deadline) of a request that the core runs, or the object that Python has
    /// set; None between frames.
    #[getter]
    fn frame<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let (key, opcode, id, deadline) = match &*lock(&self.0) {
            Frame::None => return Ok(py.None().into_bound(py)),
            Frame::Object(frame) => return Ok(frame.bind(py).clone()),
            Frame::Request {
                key,
                opcode,
                id,
                deadline,
            } => (key.clone_ref(py), *opcode, *id, *deadline),
        };
        Ok((key, opcode, id, deadline).into_pyobject(py)?.into_any())
    }

    #[setter]
    fn set_frame(&self, frame: Bound<'_, PyAny>) {
        self.set(if frame.is_none() {
            Frame::None
        } else {
            Frame::Object(frame.unbind())
        });
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // If the lock is held, a user of the object holds it, and nothing here is garbage.
        let Ok(frame) = self.0.try_lock() else {
            return Ok(());
        };
        match &*frame {
            Frame::None => Ok(()),
            Frame::Object(frame) => visit.call(frame),
            Frame::Request { key, .. } => visit.call(key),
        }
    }
}
