//! `LoopEndpoint`: what a client of an event loop has for each endpoint, and the coroutine of one call.

use super::channel::Channel;
use super::coroutine::CallCoroutine;
use super::endpoint::Endpoint;
use super::short_call::{Outcome, ShortCall};
use crate::crash;
use pyo3::PyClassInitializer;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

/// A function that calls an endpoint: its coroutine is made and run in here for as long as nothing has to wait.
///
/// `function` is the same in Python, for all that the short way is not for; it looks and is documented as that.
/// `rest(args, kwargs, id, begun, deadline)` goes on with a call: `begun` is a frame, None, or an exception. If it raises before
/// it has waited, `interrupted` is told of the exception: a frame that was in its hands may be lost.
#[pyclass(frozen, extends = Endpoint, module = "shmrpc._core")]
pub struct LoopEndpoint {
    channel: Py<Channel>,
    short: Py<ShortCall>,
    function: Py<PyAny>,
    rest: Py<PyAny>,
    interrupted: Py<PyAny>,
}

impl LoopEndpoint {
    /// The first step of a call: its result, or the coroutine that goes on with it.
    #[inline]
    pub(super) fn begin<'py>(
        &self,
        py: Python<'py>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Result<Bound<'py, PyAny>, Bound<'py, PyAny>>> {
        match self
            .channel
            .get()
            .call(py, self.short.get(), args, kwargs)?
        {
            Outcome::Result(value) => {
                crash::point!(AnswerRead);
                Ok(Ok(value))
            }
            Outcome::Foreign => self.function.bind(py).call(args, kwargs).map(Err),
            Outcome::Begun(request, begun) => {
                let kwargs = kwargs.cloned().unwrap_or_else(|| PyDict::new(py));
                let rest = (args, kwargs, request.id, begun, request.deadline);
                self.rest.bind(py).call1(rest).map(Err)
            }
        }
    }

    /// The first step of what goes on has raised.
    #[cold]
    pub(super) fn failed(&self, py: Python<'_>, error: PyErr) -> PyErr {
        let error = error.into_value(py);
        match self.interrupted.bind(py).call1((&error,)) {
            Ok(_) => PyErr::from_value(error.into_bound(py).into_any()),
            Err(other) => other,
        }
    }

    /// What warnings call it.
    pub(super) fn name<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.function.bind(py).getattr("__qualname__")
    }
}

#[pymethods]
impl LoopEndpoint {
    #[new]
    fn new(
        py: Python<'_>,
        channel: Py<Channel>,
        short: Py<ShortCall>,
        function: Py<PyAny>,
        rest: Py<PyAny>,
        interrupted: Py<PyAny>,
    ) -> PyClassInitializer<Self> {
        let base = Endpoint::new(function.clone_ref(py));
        PyClassInitializer::from(base).add_subclass(LoopEndpoint {
            channel,
            short,
            function,
            rest,
            interrupted,
        })
    }

    #[pyo3(signature = (*args, **kwargs))]
    fn __call__<'py>(
        slf: &Bound<'py, Self>,
        args: Bound<'py, PyTuple>,
        kwargs: Option<Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, CallCoroutine>> {
        Bound::new(slf.py(), CallCoroutine::new(slf.clone(), args, kwargs))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.short)?;
        visit.call(&self.function)?;
        visit.call(&self.rest)
    }
}
