//! `ClientRequests`: the requests of a client that the core may run.

use crate::crash;
use crate::python::codec::msgpack::outgoing_body::OutgoingBody;
use crate::python::rpc::body::Body;
use crate::python::rpc::server::handler_table::{HandlerTable, WrittenResult};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::sync::atomic::{AtomicBool, Ordering};

/// The outcome of a request.
pub(crate) enum RequestOutcome<'py> {
    /// Python has to run the request. Nothing of it was done.
    Unsupported,
    /// The reply is written. Holds a result that takes long to free, so that the reply is sent first.
    Written(Option<Bound<'py, PyAny>>),
    /// The body of the reply.
    Encoded(Bound<'py, PyAny>),
    /// Nothing is left to do: the reply comes later, the call has no reply, or the call has failed and its reply was
    /// sent.
    Finished,
}

/// The requests of a client that the core may run, until this is closed.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct ClientRequests {
    handlers: Py<HandlerTable>,
    /// The running and the waiting calls, by id. A new call may not have the id of one of these.
    running: Py<PyDict>,
    waiting: Py<PyDict>,
    closed: AtomicBool,
}

#[pymethods]
impl ClientRequests {
    #[new]
    fn new(handlers: Py<HandlerTable>, running: Py<PyDict>, waiting: Py<PyDict>) -> Self {
        ClientRequests {
            handlers,
            running,
            waiting,
            closed: AtomicBool::new(false),
        }
    }

    /// Leaves all requests to Python from now on.
    fn close(&self) {
        // Relaxed: with the GIL.
        self.closed.store(true, Ordering::Relaxed);
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.handlers)?;
        visit.call(&self.running)?;
        visit.call(&self.waiting)
    }
}

impl ClientRequests {
    /// Runs a request of the client `key`, and writes the reply to `reply`. The body of the request is `whole`, or
    /// `short` without one. Drops `whole` once it is read: the values keep the buffers that they need. Returns the
    /// outcome. The outcome is `Unsupported`, and nothing has changed, if this is closed, if the core cannot run the
    /// handler or read the request, if the id is in use, or if the call has to wait for others of the client. After
    /// any other outcome the request is still the current call. Raises no error of the function: the error becomes the
    /// reply, or is recorded for a one-way call. Raises what Python's functions for this raise, and `is_full`.
    #[inline]
    #[allow(clippy::too_many_arguments)] // In one place.
    pub(crate) fn run<'py>(
        &self,
        py: Python<'py>,
        key: &Py<PyAny>,
        opcode: u32,
        id: u64,
        short: &[u8],
        whole: &mut Option<Body<'py>>,
        reply: &mut OutgoingBody,
    ) -> PyResult<RequestOutcome<'py>> {
        let handlers = self.handlers.get();
        if !handlers.is_native_request(opcode as u8) {
            return Ok(RequestOutcome::Unsupported);
        }
        let Some(handler) = handlers.handler((opcode >> 8) as usize) else {
            return Ok(RequestOutcome::Unsupported);
        };
        // Relaxed: with the GIL.
        if self.closed.load(Ordering::Relaxed) || self.is_id_in_use(py, id)? {
            return Ok(RequestOutcome::Unsupported);
        }
        if let Some(coroutines) = handler.coroutines()
            && coroutines.is_full(py, key)?
        {
            return Ok(RequestOutcome::Unsupported);
        }
        let parts = match whole {
            None => Some((short, None)),
            Some(whole) => whole.parts(),
        };
        let request = parts.and_then(|(body, buffers)| {
            handlers
                .read_request(py, handler, opcode as u8, body, buffers)
                .ok()
        });
        let Some(request) = request else {
            return Ok(RequestOutcome::Unsupported);
        };
        let weight = whole.take().map_or(short.len(), |whole| whole.weight());
        crash::point!(RequestRead);
        let deadline = request.deadline;
        handlers.set_current_call(key.clone_ref(py), opcode, id, deadline);
        let one_way = request.one_way;
        let called = handlers.call(py, handler, request);
        if one_way {
            if let Err(error) = called {
                handlers.note_one_way_failure(py, key, handler, error)?;
            }
            return Ok(RequestOutcome::Finished);
        }
        let outcome = called
            .and_then(|result| match handler.coroutines() {
                Some(coroutines) => coroutines.run(&result, key, handler, id, deadline, weight),
                None => Ok(Some(result)),
            })
            .and_then(|result| {
                let Some(result) = result else {
                    return Ok(RequestOutcome::Finished);
                };
                Ok(match handlers.write_result(handler, result, reply)? {
                    WrittenResult::Native(result) => RequestOutcome::Written(result),
                    WrittenResult::Encoded(body) => RequestOutcome::Encoded(body),
                })
            });
        match outcome {
            Ok(outcome) => Ok(outcome),
            Err(error) => {
                self.fail(py, key, id, error)?;
                Ok(RequestOutcome::Finished)
            }
        }
    }

    /// Sends `error` as the reply to the call `id` of the client `key`: see `HandlerTable::fail`.
    #[cold]
    pub(crate) fn fail(
        &self,
        py: Python<'_>,
        key: &Py<PyAny>,
        id: u64,
        error: PyErr,
    ) -> PyResult<()> {
        self.handlers.get().fail(py, key, id, error)
    }

    /// Returns true if a running or waiting call has this id.
    #[inline]
    fn is_id_in_use(&self, py: Python<'_>, id: u64) -> PyResult<bool> {
        let (running, waiting) = (self.running.bind(py), self.waiting.bind(py));
        if running.is_empty() && waiting.is_empty() {
            return Ok(false);
        }
        Ok(running.contains(id)? || waiting.contains(id)?)
    }
}
