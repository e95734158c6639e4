//! `LoopEndpoint`: what a client of an event loop has for each endpoint.

use crate::python::rpc::channel::{Channel, InTurn};
use crate::python::rpc::client::coroutine::CallCoroutine;
use crate::python::rpc::client::endpoint::{Endpoint, Led};
use crate::python::rpc::client::short_call::ShortCall;
use crate::python::support::scratch::Scratch;
use crate::sync::this_thread;
use pyo3::PyClassInitializer;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

/// A function that calls an endpoint: its coroutine is made and run in here for as long as nothing has to wait.
///
/// `function` and `rest` give coroutines. `home`: the loop of the client, and what raises the error for a call in another one.
/// If one raises before it has waited, `interrupted` is told of the exception: a
/// frame that was in its hands may be lost. `cancel` is told the id of a call that nobody waits for any more.
#[pyclass(frozen, extends = Endpoint, module = "shmrpc._core")]
pub struct LoopEndpoint {
    channel: Py<Channel>,
    interrupted: Py<PyAny>,
    cancel: Py<PyAny>,
    home: Home,
}

/// The event loop of a client, and how a call sees that it runs there.
struct Home {
    event_loop: Py<PyAny>,
    thread: usize,
    /// The dictionary of the tasks that run, by their loops; None where CPython has none.
    tasks: Option<Py<PyDict>>,
    /// Raises the error for a call elsewhere.
    check: Py<PyAny>,
}

impl Home {
    fn new(py: Python<'_>, event_loop: Py<PyAny>, check: Py<PyAny>) -> PyResult<Self> {
        // To ask for the running loop costs a system call before CPython 3.14, which has no such dictionary.
        let tasks = py.import("asyncio.tasks")?.getattr("_current_tasks").ok();
        Ok(Home {
            event_loop,
            thread: this_thread(),
            tasks: tasks.and_then(|tasks| tasks.cast_into().ok().map(Bound::unbind)),
            check,
        })
    }

    /// Raises LocalProtocolError for a call in another loop or thread.
    #[inline]
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        if self.thread == this_thread()
            && let Some(tasks) = &self.tasks
            && tasks.bind(py).contains(&self.event_loop)?
        {
            return Ok(());
        }
        // No task runs in it here: it may be that a coroutine is driven by hand.
        self.check.bind(py).call0().map(drop)
    }
}

impl LoopEndpoint {
    /// The first step of a call: its result, or the coroutine that goes on with it.
    #[inline]
    pub(crate) fn begin<'py>(
        slf: &Bound<'py, Self>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Led<'py>> {
        slf.get().home.check(slf.py())?;
        let way = InTurn(slf.get().channel.get());
        slf.as_super().get().call(slf.py(), &way, args, kwargs)
    }

    /// The step of a call whose task has let the loop turn: `under_way` is its id and its deadline.
    #[inline]
    pub(crate) fn go_on<'py>(
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
    pub(crate) fn forget(&self, id: u64) -> bool {
        self.channel.get().forget(id)
    }

    /// Has the server told of that.
    pub(crate) fn cancel(&self, py: Python<'_>, id: u64) -> PyResult<()> {
        self.cancel.bind(py).call1((id,)).map(drop)
    }

    /// The first step of what goes on has raised.
    #[cold]
    pub(crate) fn failed(&self, py: Python<'_>, error: PyErr) -> PyErr {
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
        home: (Bound<'_, PyAny>, Py<PyAny>),
    ) -> PyResult<PyClassInitializer<Self>> {
        let (event_loop, check) = home;
        let home = Home::new(event_loop.py(), event_loop.clone().unbind(), check)?;
        let endpoint = PyClassInitializer::from(Endpoint::new(short, function, rest));
        Ok(endpoint.add_subclass(LoopEndpoint {
            channel,
            interrupted,
            cancel,
            home,
        }))
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
        visit.call(&self.cancel)?;
        visit.call(&self.home.event_loop)?;
        visit.call(&self.home.check)
    }
}
