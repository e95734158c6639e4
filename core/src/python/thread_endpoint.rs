//! `ThreadEndpoint`: what a client for threads has for each endpoint.

use super::calls::Calls;
use super::endpoint::{Endpoint, Led};
use super::short_call::ShortCall;
use pyo3::PyClassInitializer;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

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
        if !own.stopped.bind(py).is_empty() || !session.is(&own.session) {
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
