//! `LoopEndpoint`: what a client of an event loop has for each endpoint.

use super::channel::{Channel, InTurn};
use super::coroutine::CallCoroutine;
use super::endpoint::{Endpoint, Led};
use super::scratch::Scratch;
use super::short_call::ShortCall;
use pyo3::PyClassInitializer;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

/// A function that calls an endpoint: its coroutine is made and run in here for as long as nothing has to wait.
///
/// `function` and `rest` give coroutines. If one raises before it has waited, `interrupted` is told of the exception: a
/// frame that was in its hands may be lost. `cancel` is told the id of a call that nobody waits for any more.
#[pyclass(frozen, extends = Endpoint, module = "shmrpc._core")]
pub struct LoopEndpoint {
    channel: Py<Channel>,
    interrupted: Py<PyAny>,
    cancel: Py<PyAny>,
}

impl LoopEndpoint {
    /// The first step of a call: its result, or the coroutine that goes on with it.
    #[inline]
    pub(super) fn begin<'py>(
        slf: &Bound<'py, Self>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Led<'py>> {
        let way = InTurn(slf.get().channel.get());
        slf.as_super().get().call(slf.py(), &way, args, kwargs)
    }

    /// The step of a call whose task has let the loop turn: `under_way` is its id and its deadline.
    #[inline]
    pub(super) fn go_on<'py>(
        slf: &Bound<'py, Self>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
        under_way: (u64, Option<u64>),
    ) -> PyResult<Led<'py>> {
        let mut body = Scratch::new();
        let channel = slf.get().channel.get();
        let answer = channel.answer_in_turn(slf.py(), under_way.0, &mut body);
        let endpoint = slf.as_super().get();
        endpoint.go_on(answer, &body, args, kwargs, under_way)
    }

    /// Nobody waits any more for a call that is asked for in turn. Whether its answer had come.
    pub(super) fn forget(&self, id: u64) -> bool {
        self.channel.get().forget(id)
    }

    /// Has the server told of that.
    pub(super) fn cancel(&self, py: Python<'_>, id: u64) -> PyResult<()> {
        self.cancel.bind(py).call1((id,)).map(drop)
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
}

#[pymethods]
impl LoopEndpoint {
    #[new]
    fn new(
        channel: Py<Channel>,
        short: Py<ShortCall>,
        function: Py<PyAny>,
        rest: Py<PyAny>,
        interrupted: Py<PyAny>,
        cancel: Py<PyAny>,
    ) -> PyClassInitializer<Self> {
        PyClassInitializer::from(Endpoint::new(short, function, rest)).add_subclass(LoopEndpoint {
            channel,
            interrupted,
            cancel,
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
        visit.call(&self.interrupted)?;
        visit.call(&self.cancel)
    }
}
