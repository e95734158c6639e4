//! `ThreadEndpoint`: an endpoint of a client for threads.

use crate::python::rpc::client::endpoint::Endpoint;
use crate::python::rpc::client::native_call::NativeCall;
use crate::python::rpc::client::thread_calls::ThreadCalls;
use crate::python::support::native_coroutine::Next;
use pyo3::PyClassInitializer;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// A function that calls an endpoint and waits for the result.
///
/// `function` and `finish` return the result. Calls take the native path while `stopped` is empty and the reconnector
/// has this `session`.
#[pyclass(frozen, extends = Endpoint, module = "shmrpc._core")]
pub struct ThreadEndpoint {
    calls: Py<ThreadCalls>,
    stopped: Py<PyList>,
    reconnector: Py<PyAny>,
    session: Py<PyAny>,
    /// Number of calls on the native path, modulo 2^32.
    native_calls: AtomicU32,
}

/// The number of native calls after which the client checks what its server sends besides replies.
const CALLS_PER_CHECK: u32 = 256;

impl ThreadEndpoint {
    /// Counts a call, and calls `look` of the reconnector once in `CALLS_PER_CHECK` calls. Returns true if calls must
    /// leave the native path, because the server wants its client to reconnect; false between two checks. Raises what
    /// `look` raises.
    #[inline]
    fn must_leave(&self, py: Python<'_>) -> PyResult<bool> {
        // Relaxed: under the GIL, and the exact count does not matter.
        let calls = self.native_calls.load(Relaxed).wrapping_add(1);
        self.native_calls.store(calls, Relaxed);
        if calls % CALLS_PER_CHECK != 0 {
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
        calls: Py<ThreadCalls>,
        native: Py<NativeCall>,
        function: Py<PyAny>,
        finish: Py<PyAny>,
        stopped: Py<PyList>,
        reconnector: Py<PyAny>,
        session: Py<PyAny>,
    ) -> PyClassInitializer<Self> {
        PyClassInitializer::from(Endpoint::new(native, function, finish)).add_subclass(
            ThreadEndpoint {
                calls,
                stopped,
                reconnector,
                session,
                native_calls: AtomicU32::new(0),
            },
        )
    }

    #[pyo3(signature = (*args, **kwargs))]
    fn __call__<'py>(
        slf: &Bound<'py, Self>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (py, this, base) = (slf.py(), slf.get(), slf.as_super().get());
        let session = this.reconnector.bind(py).getattr(intern!(py, "session"))?;
        if !this.stopped.bind(py).is_empty() || !session.is(&this.session) || this.must_leave(py)? {
            return base.function(py).call(args, kwargs);
        }
        match base.call(py, this.calls.get(), args, kwargs)? {
            // For threads, Python's side returns the result itself.
            Next::Return(result) | Next::Await(result) => Ok(result),
            Next::Yield(_) => unreachable!("a thread waits in its call"),
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.reconnector)?;
        visit.call(&self.session)
    }
}
