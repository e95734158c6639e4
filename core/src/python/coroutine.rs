//! `CallCoroutine`: one call of an endpoint, as an event loop runs it.
//!
//! Most calls end in their first step, which is all in here. One that does not becomes a coroutine of Python's, to which
//! every further step goes.

use super::endpoint::Led;
use super::loop_endpoint::LoopEndpoint;
use crate::sync::lock;
use pyo3::exceptions::{PyAttributeError, PyRuntimeError, PyStopIteration, PyValueError};
use pyo3::ffi;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::panic::PanicException;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple, PyType};
use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind};
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

/// What a step has led to.
enum Step<'py> {
    Yielded(Bound<'py, PyAny>),
    Returned(Bound<'py, PyAny>),
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
    pub(super) fn new<'py>(
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
    fn step<'py>(&self, py: Python<'py>, sent: &Bound<'py, PyAny>) -> PyResult<Step<'py>> {
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

/// Sends a value to a coroutine.
fn send<'py>(further: &Bound<'py, PyAny>, value: &Bound<'py, PyAny>) -> PyResult<Step<'py>> {
    let mut result = std::ptr::null_mut();
    // SAFETY: both objects live, and the GIL is ours. `result` gets a new reference, or null with an exception.
    unsafe {
        let led = ffi::PyIter_Send(further.as_ptr(), value.as_ptr(), &mut result);
        let result = Bound::from_owned_ptr_or_err(further.py(), result)?;
        Ok(match led {
            ffi::PySendResult::PYGEN_NEXT => Step::Yielded(result),
            _ => Step::Returned(result),
        })
    }
}

/// What a method of Python's that returned or raised has led to.
fn stepped<'py>(py: Python<'py>, done: PyResult<Bound<'py, PyAny>>) -> PyResult<Step<'py>> {
    match done {
        Ok(value) => Ok(Step::Yielded(value)),
        Err(error) if error.is_instance_of::<PyStopIteration>(py) => {
            Ok(Step::Returned(error.value(py).getattr("value")?))
        }
        Err(error) => Err(error),
    }
}

/// The same as Python code is told it: what was yielded, or StopIteration.
fn told<'py>(step: Step<'py>) -> PyResult<Bound<'py, PyAny>> {
    match step {
        Step::Yielded(value) => Ok(value),
        // In a tuple, or a result that is one would be taken for the arguments of the exception.
        Step::Returned(value) => Err(PyStopIteration::new_err((value.unbind(),))),
    }
}

#[pymethods]
impl CallCoroutine {
    fn __await__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let none = py.None();
        told(self.step(py, none.bind(py))?)
    }

    /// Runs on to the next point where it waits.
    fn send<'py>(&self, py: Python<'py>, value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        told(self.step(py, value)?)
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
        match self.change(State::Running) {
            State::New(..) => {
                self.change(State::Ended);
                Err(thrown(&kind, value, traceback)?)
            }
            State::InTurn(.., (id, _)) => {
                self.change(State::Ended);
                let endpoint = self.endpoint.get();
                if !endpoint.forget(id) {
                    endpoint.cancel(py, id)?;
                }
                Err(thrown(&kind, value, traceback)?)
            }
            State::Further(further) => {
                let step = self.go_on(further.into_bound(py), |further| {
                    let done = match (value, traceback) {
                        (None, None) => further.call_method1("throw", (kind,)),
                        (value, traceback) => {
                            further.call_method1("throw", (kind, value, traceback))
                        }
                    };
                    stepped(py, done)
                })?;
                told(step)
            }
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

/// The exception that `throw` was given.
fn thrown(
    kind: &Bound<'_, PyAny>,
    value: Option<Bound<'_, PyAny>>,
    traceback: Option<Bound<'_, PyAny>>,
) -> PyResult<PyErr> {
    let Ok(class) = kind.cast::<PyType>() else {
        return Ok(PyErr::from_value(kind.clone()));
    };
    let error = match value {
        None => class.call0()?,
        Some(value) if value.is_instance(class)? => value,
        Some(value) => class.call1((value,))?,
    };
    if let Some(traceback) = traceback.filter(|traceback| !traceback.is_none()) {
        error.setattr("__traceback__", traceback)?;
    }
    Ok(PyErr::from_value(error))
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
            let raised = PyErr::take(py);
            warn_unawaited(self.endpoint.bind(py));
            if let Some(raised) = raised {
                raised.restore(py);
            }
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

/// Has it taken for a coroutine, and lets the interpreter run a step without an exception for the result: PyO3 has no word
/// for that.
pub(super) fn prepare(py: Python<'_>) -> PyResult<()> {
    let class = py.get_type::<CallCoroutine>();
    // SAFETY: it is a type on the heap, whose slots for `await` lie in itself, and nobody uses it yet. The GIL is ours.
    unsafe {
        if let Some(slots) = (*class.as_type_ptr()).tp_as_async.as_mut() {
            slots.am_send = Some(am_send);
        }
    }
    let abstract_class = py.import("collections.abc")?.getattr("Coroutine")?;
    abstract_class.call_method1("register", (class,)).map(drop)
}

/// As `PyIter_Send` says it.
unsafe extern "C" fn am_send(
    coroutine: *mut ffi::PyObject,
    value: *mut ffi::PyObject,
    result: *mut *mut ffi::PyObject,
) -> ffi::PySendResult {
    // SAFETY: the interpreter calls this with the GIL, and with an instance of ours.
    let py = unsafe { Python::assume_attached() };
    // SAFETY: both live for the time of the call; `None` may be said as null.
    let (coroutine, value) = unsafe {
        let coroutine =
            Bound::from_borrowed_ptr(py, coroutine).cast_into_unchecked::<CallCoroutine>();
        let value = Bound::from_borrowed_ptr_or_opt(py, value);
        (coroutine, value.unwrap_or_else(|| py.None().into_bound(py)))
    };
    // A panic must not leave Rust by way of C.
    let step = AssertUnwindSafe(|| coroutine.get().step(py, &value));
    let step = catch_unwind(step).unwrap_or_else(|_| {
        let text = "a panic in the step of a call: see what was printed";
        Err(PanicException::new_err(text))
    });
    let (led, value) = match step {
        Ok(Step::Yielded(value)) => (ffi::PySendResult::PYGEN_NEXT, value.into_ptr()),
        Ok(Step::Returned(value)) => (ffi::PySendResult::PYGEN_RETURN, value.into_ptr()),
        Err(error) => {
            error.restore(py);
            (ffi::PySendResult::PYGEN_ERROR, std::ptr::null_mut())
        }
    };
    // SAFETY: the interpreter's own place for the result, which becomes its reference.
    unsafe { *result = value };
    led
}
