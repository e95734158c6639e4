//! `Running`: what a thread's loop runs between taking a frame and answering it.

use crate::sync::lock;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use std::sync::Mutex;

/// A plain function's call is found here: to set a context variable for it would cost more.
#[pyclass(frozen, module = "shmrpc._core")]
#[derive(Default)]
pub struct Running(Mutex<Frame>);

#[derive(Default)]
enum Frame {
    #[default]
    None,
    /// What Python has said.
    Said(Py<PyAny>),
    /// A request that the core runs.
    Request {
        key: Py<PyAny>,
        opcode: u32,
        id: u64,
        deadline: Option<u64>,
    },
}

impl Running {
    #[inline]
    fn set(&self, frame: Frame) {
        let before = std::mem::replace(&mut *lock(&self.0), frame);
        drop(before); // After the lock: what goes with it may run any code.
    }

    /// A request of the client `key` is run from now on.
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
impl Running {
    #[new]
    fn new() -> Self {
        Running::default()
    }

    /// What is run: a request that the core runs as (key, opcode, id, deadline), else what was set; None between frames.
    #[getter]
    fn frame<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let (key, opcode, id, deadline) = match &*lock(&self.0) {
            Frame::None => return Ok(py.None().into_bound(py)),
            Frame::Said(frame) => return Ok(frame.bind(py).clone()),
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
            Frame::Said(frame.unbind())
        });
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // A lock that is held now is held by a user of ours: nothing is garbage then.
        let Ok(frame) = self.0.try_lock() else {
            return Ok(());
        };
        match &*frame {
            Frame::None => Ok(()),
            Frame::Said(frame) => visit.call(frame),
            Frame::Request { key, .. } => visit.call(key),
        }
    }
}
