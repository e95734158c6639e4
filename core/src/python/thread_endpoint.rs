//! `ThreadEndpoint`: what a client for threads has for each endpoint.

use super::calls::Calls;
use super::endpoint::Endpoint;
use super::short_call::{Outcome, ShortCall};
use crate::crash;
use pyo3::PyClassInitializer;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

/// A function that calls an endpoint and waits for the result.
///
/// `function` is the same in Python, for all that the short way is not for; it looks and is documented as that.
/// `rest(args, kwargs, id, begun, deadline)` goes on with a call: `begun` is one under way, or an exception. Short are the calls while
/// `stopped` is empty and the `session` of the reconnector is the one given.
#[pyclass(frozen, extends = Endpoint, module = "shmrpc._core")]
pub struct ThreadEndpoint {
    calls: Py<Calls>,
    short: Py<ShortCall>,
    function: Py<PyAny>,
    rest: Py<PyAny>,
    stopped: Py<PyList>,
    reconnector: Py<PyAny>,
    session: Py<PyAny>,
}

#[pymethods]
impl ThreadEndpoint {
    #[new]
    #[allow(clippy::too_many_arguments)] // In one place.
    fn new(
        py: Python<'_>,
        calls: Py<Calls>,
        short: Py<ShortCall>,
        function: Py<PyAny>,
        rest: Py<PyAny>,
        stopped: Py<PyList>,
        reconnector: Py<PyAny>,
        session: Py<PyAny>,
    ) -> PyClassInitializer<Self> {
        let base = Endpoint::new(function.clone_ref(py));
        PyClassInitializer::from(base).add_subclass(ThreadEndpoint {
            calls,
            short,
            function,
            rest,
            stopped,
            reconnector,
            session,
        })
    }

    #[pyo3(signature = (*args, **kwargs))]
    fn __call__<'py>(
        &self,
        py: Python<'py>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let session = self.reconnector.bind(py).getattr(intern!(py, "session"))?;
        if !self.stopped.bind(py).is_empty() || !session.is(&self.session) {
            return self.function.bind(py).call(args, kwargs);
        }
        match self.calls.get().call(py, self.short.get(), args, kwargs)? {
            Outcome::Result(value) => {
                crash::point!(AnswerRead);
                Ok(value)
            }
            Outcome::Foreign => self.function.bind(py).call(args, kwargs),
            Outcome::Begun(request, begun) => {
                let kwargs = kwargs.cloned().unwrap_or_else(|| PyDict::new(py));
                let rest = (args, kwargs, request.id, begun, request.deadline);
                self.rest.bind(py).call1(rest)
            }
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let objects = [&self.function, &self.rest, &self.reconnector, &self.session];
        objects.into_iter().try_for_each(|each| visit.call(each))?;
        visit.call(&self.short)
    }
}
