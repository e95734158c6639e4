//! `ThreadEndpoint`: what a client for threads has for each endpoint.

use crate::python::rpc::client::calls::Calls;
use crate::python::rpc::client::endpoint::{Endpoint, Led};
use crate::python::rpc::client::short_call::ShortCall;
use pyo3::PyClassInitializer;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// A function that calls an endpoint and waits for the result.
///
/// `function` and `rest` return it. Short are the calls while `stopped` is empty and the `session` of the reconnector is
/// the one given.
#[pyclass(frozen, extends = Endpoint, module = "shmrpc._core")]
pub struct ThreadEndpoint {
    calls: Py<Calls>,
    stopped: Py<PyList>,
    reconnector: Py<PyAny>,
    session: Py<PyAny>,
    calls_made: AtomicU32,
}

/// After so many short calls the client listens to what its server says beside the answers: a call does not look there.
const CALLS_BETWEEN_LOOKS: u32 = 256;

impl ThreadEndpoint {
    /// Returns true if calls must no longer go the short way, because the server wants its client elsewhere.
    #[inline]
    fn is_to_leave(&self, py: Python<'_>) -> PyResult<bool> {
        // Relaxed: under the GIL, and one more or less is as good.
        let made = self.calls_made.load(Relaxed).wrapping_add(1);
        self.calls_made.store(made, Relaxed);
        if made % CALLS_BETWEEN_LOOKS != 0 {
            return Ok(false);
        }
        let reconnector = self.reconnector.bind(py);
        reconnector.call_method0(intern!(py, "look"))?.is_truthy()
    }
}

#[pymethods]
impl ThreadEndpoint {
    #[new]
    fn new(
        calls: Py<Calls>,
        short: Py<ShortCall>,
        function: Py<PyAny>,
        rest: Py<PyAny>,
        stopped: Py<PyList>,
        reconnector: Py<PyAny>,
        session: Py<PyAny>,
    ) -> PyClassInitializer<Self> {
        PyClassInitializer::from(Endpoint::new(short, function, rest)).add_subclass(
            ThreadEndpoint {
                calls,
                stopped,
                reconnector,
                session,
                calls_made: AtomicU32::new(0),
            },
        )
    }

    #[pyo3(signature = (*args, **kwargs))]
    fn __call__<'py>(
        slf: &Bound<'py, Self>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (py, own, base) = (slf.py(), slf.get(), slf.as_super().get());
        let session = own.reconnector.bind(py).getattr(intern!(py, "session"))?;
        if !own.stopped.bind(py).is_empty() || !session.is(&own.session) || own.is_to_leave(py)? {
            return base.function(py).call(args, kwargs);
        }
        match base.call(py, own.calls.get(), args, kwargs)? {
            Led::Result(result) | Led::Further(result) => Ok(result),
            Led::InTurn(..) => unreachable!("a thread waits in its call"),
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.reconnector)?;
        visit.call(&self.session)
    }
}
