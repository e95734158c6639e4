//! `CallCoroutine`: one call of an endpoint, as an event loop runs it.
//!
//! Most calls end in their first step, which is all in here. One that does not becomes a coroutine of Python's, to which
//! every further step goes.

use crate::python::rpc::client::endpoint::Led;
use crate::python::rpc::client::loop_endpoint::LoopEndpoint;
use crate::python::support::errors::with_none_raised;
use crate::python::support::step::{self, Awaited, Step, Thrown, send, told};
use crate::sync::lock;
use pyo3::exceptions::{PyAttributeError, PyRuntimeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::ffi::CString;
use std::sync::Mutex;

/// How far a call has come.
enum State {
    /// Nothing of it has run.
    New(Py<PyTuple>, Option<Py<PyDict>>),
    /// A step of it is running.
    Running,
    /// It is under way, with this id and this deadline, and its task has let the loop turn.
    InTurn(Py<PyTuple>, Option<Py<PyDict>>, (u64, Option<u64>)),
    /// It goes on in this coroutine.
    Further(Py<PyAny>),
    Ended,
}

/// A call that is awaited.
#[pyclass(frozen, weakref, freelist = 64, module = "shmrpc._core")]
pub struct CallCoroutine {
    endpoint: Py<LoopEndpoint>,
    /// Never held while Python code runs.
    state: Mutex<State>,
}

impl CallCoroutine {
    #[inline]
    pub(crate) fn new<'py>(
        endpoint: Bound<'py, LoopEndpoint>,
        args: Bound<'py, PyTuple>,
        kwargs: Option<Bound<'py, PyDict>>,
    ) -> Self {
        CallCoroutine {
            endpoint: endpoint.unbind(),
            state: Mutex::new(State::New(args.unbind(), kwargs.map(Bound::unbind))),
        }
    }

    #[inline]
    fn change(&self, to: State) -> State {
        std::mem::replace(&mut *lock(&self.state), to)
    }

    /// Runs the next step with what `send` brings.
    #[inline]
    fn advance<'py>(&self, py: Python<'py>, sent: &Bound<'py, PyAny>) -> PyResult<Step<'py>> {
        match self.change(State::Running) {
            State::New(args, kwargs) => {
                if !sent.is_none() {
                    self.change(State::New(args, kwargs));
                    let text = "can't send non-None value to a just-started coroutine";
                    return Err(pyo3::exceptions::PyTypeError::new_err(text));
                }
                let (args, kwargs) = bound(py, args, kwargs);
                let led = LoopEndpoint::begin(self.endpoint.bind(py), &args, kwargs.as_ref());
                self.led(led, args, kwargs)
            }
            State::InTurn(args, kwargs, under_way) => {
                let (args, kwargs) = bound(py, args, kwargs);
                let endpoint = self.endpoint.bind(py);
                let led = LoopEndpoint::go_on(endpoint, &args, kwargs.as_ref(), under_way);
                self.led(led, args, kwargs)
            }
            State::Further(further) => {
                self.go_on(further.into_bound(py), |further| send(further, sent))
            }
            other => Err(self.refuse(other)),
        }
    }

    /// Goes on with what the core's part of a step has led to.
    #[inline]
    fn led<'py>(
        &self,
        led: PyResult<Led<'py>>,
        args: Bound<'py, PyTuple>,
        kwargs: Option<Bound<'py, PyDict>>,
    ) -> PyResult<Step<'py>> {
        let py = args.py();
        match led {
            Ok(Led::Result(value)) => {
                self.change(State::Ended);
                Ok(Step::Returned(value))
            }
            Ok(Led::InTurn(id, deadline)) => {
                let kwargs = kwargs.map(Bound::unbind);
                self.change(State::InTurn(args.unbind(), kwargs, (id, deadline)));
                Ok(Step::Yielded(py.None().into_bound(py)))
            }
            Ok(Led::Further(further)) => self
                .go_on(further, |further| send(further, py.None().bind(py)))
                .map_err(|error| self.endpoint.get().failed(py, error)),
            Err(error) => {
                self.change(State::Ended);
                Err(error)
            }
        }
    }

    /// Runs a step of the coroutine that the call goes on in.
    fn go_on<'py>(
        &self,
        further: Bound<'py, PyAny>,
        step: impl FnOnce(&Bound<'py, PyAny>) -> PyResult<Step<'py>>,
    ) -> PyResult<Step<'py>> {
        let led = step(&further);
        let next = match &led {
            Ok(Step::Yielded(_)) => State::Further(further.unbind()),
            _ => State::Ended,
        };
        self.change(next);
        led
    }

    /// What was in this state is over.
    fn leave(&self, state: State) {
        if let State::InTurn(.., (id, _)) = state {
            self.endpoint.get().forget(id);
        }
    }

    /// The error for a step that cannot be made, in this state.
    #[cold]
    fn refuse(&self, state: State) -> PyErr {
        let ended = matches!(state, State::Ended);
        self.change(state);
        if ended {
            PyRuntimeError::new_err("cannot reuse already awaited coroutine")
        } else {
            PyValueError::new_err("coroutine already executing")
        }
    }

    /// The coroutine that the call goes on in, or AttributeError.
    fn further<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        let further = match &*lock(&self.state) {
            State::Further(further) => Some(further.clone_ref(py).into_bound(py)),
            _ => None,
        };
        further
            .ok_or_else(|| PyAttributeError::new_err(name.to_owned()))?
            .getattr(name)
    }
}

#[inline]
fn bound(
    py: Python<'_>,
    args: Py<PyTuple>,
    kwargs: Option<Py<PyDict>>,
) -> (Bound<'_, PyTuple>, Option<Bound<'_, PyDict>>) {
    let kwargs = kwargs.map(|kwargs| kwargs.into_bound(py));
    (args.into_bound(py), kwargs)
}

impl Awaited for CallCoroutine {
    #[inline]
    fn step<'py>(slf: &Bound<'py, Self>, sent: &Bound<'py, PyAny>) -> PyResult<Step<'py>> {
        slf.get().advance(slf.py(), sent)
    }
}

#[pymethods]
impl CallCoroutine {
    fn __await__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let none = py.None();
        told(self.advance(py, none.bind(py))?)
    }

    /// Runs on to the next point where it waits.
    fn send<'py>(&self, py: Python<'py>, value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        told(self.advance(py, value)?)
    }

    /// Raises an exception where it waits.
    #[pyo3(signature = (kind, value=None, traceback=None))]
    fn throw<'py>(
        &self,
        py: Python<'py>,
        kind: Bound<'py, PyAny>,
        value: Option<Bound<'py, PyAny>>,
        traceback: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let thrown = Thrown(kind, value, traceback);
        match self.change(State::Running) {
            State::New(..) => {
                self.change(State::Ended);
                Err(thrown.error()?)
            }
            State::InTurn(.., (id, _)) => {
                self.change(State::Ended);
                let endpoint = self.endpoint.get();
                if !endpoint.forget(id) {
                    endpoint.cancel(py, id)?;
                }
                Err(thrown.error()?)
            }
            State::Further(further) => told(self.go_on(further.into_bound(py), |further| {
                step::throw(further, thrown)
            })?),
            other => Err(self.refuse(other)),
        }
    }

    /// Ends it where it waits. Again: nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        match self.change(State::Running) {
            State::Further(further) => {
                let closed = further.bind(py).call_method0("close");
                self.change(State::Ended);
                closed.map(drop)
            }
            State::Running => Err(self.refuse(State::Running)),
            other => {
                self.change(State::Ended);
                self.leave(other);
                Ok(())
            }
        }
    }

    #[getter]
    fn __name__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.__qualname__(py)
    }

    #[getter]
    fn __qualname__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        name(self.endpoint.bind(py))
    }

    #[getter]
    fn cr_running(&self) -> bool {
        matches!(*lock(&self.state), State::Running)
    }

    #[getter]
    fn cr_await<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.further(py, "cr_await")
    }

    #[getter]
    fn cr_frame<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.further(py, "cr_frame")
    }

    #[getter]
    fn cr_code<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.further(py, "cr_code")
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.endpoint)?;
        // A lock that is held now is held by a user of ours: nothing is garbage then.
        let Ok(state) = self.state.try_lock() else {
            return Ok(());
        };
        match &*state {
            State::New(args, kwargs) | State::InTurn(args, kwargs, _) => {
                visit.call(args)?;
                kwargs.as_ref().map_or(Ok(()), |kwargs| visit.call(kwargs))
            }
            State::Further(further) => visit.call(further),
            State::Running | State::Ended => Ok(()),
        }
    }

    fn __clear__(&self) {
        let state = self.change(State::Ended);
        self.leave(state);
    }
}

impl Drop for CallCoroutine {
    /// Warns that it was never awaited, as of any coroutine.
    fn drop(&mut self) {
        let state = self
            .state
            .get_mut()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        if let State::InTurn(.., (id, _)) = state {
            self.endpoint.get().forget(*id);
        }
        if !matches!(state, State::New(..)) {
            return;
        }
        Python::attach(|py| {
            with_none_raised(py, || warn_unawaited(self.endpoint.bind(py)));
        });
    }
}

/// What warnings call it.
fn name<'py>(endpoint: &Bound<'py, LoopEndpoint>) -> PyResult<Bound<'py, PyAny>> {
    let function = endpoint.as_super().get().function(endpoint.py());
    function.getattr("__qualname__")
}

#[cold]
fn warn_unawaited(endpoint: &Bound<'_, LoopEndpoint>) {
    let py = endpoint.py();
    let Ok(name) = name(endpoint) else { return };
    let category = py.get_type::<pyo3::exceptions::PyRuntimeWarning>();
    let Ok(text) = CString::new(format!("coroutine '{name}' was never awaited")) else {
        return;
    };
    if let Err(error) = PyErr::warn(py, &category, &text, 1) {
        error.write_unraisable(py, Some(&name)); // Warnings are errors, and nobody is there to be told.
    }
}

/// Has it taken for a coroutine.
pub(crate) fn prepare(py: Python<'_>) -> PyResult<()> {
    step::prepare::<CallCoroutine>(py);
    let abstract_class = py.import("collections.abc")?.getattr("Coroutine")?;
    let class = py.get_type::<CallCoroutine>();
    abstract_class.call_method1("register", (class,)).map(drop)
}
