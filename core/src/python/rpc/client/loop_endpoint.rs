//! `LoopEndpoint`: an endpoint of a client for an event loop, and `CallCoroutine`: one call of it.
//!
//! Most calls end in their first step, which runs only in the core. Any other call delegates to a coroutine of
//! Python's.

use crate::python::rpc::channel::{Channel, PipeliningExchange};
use crate::python::rpc::client::endpoint::Endpoint;
use crate::python::rpc::client::home_loop::HomeLoop;
use crate::python::rpc::client::native_call::{InFlightCall, NativeCall};
use crate::python::support::coroutine_slots;
use crate::python::support::errors::preserving_exception;
use crate::python::support::native_coroutine::{self, NativeCoroutine, Next, State, Traverse};
use crate::python::support::scratch::Scratch;
use crate::python::support::step::ThrowArguments;
use crate::sync::lock;
use pyo3::PyClassInitializer;
use pyo3::exceptions::{PyAttributeError, PyRuntimeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::ffi::CString;
use std::sync::Mutex;

/// A function that calls an endpoint and returns a coroutine.
///
/// `function` and `finish` return coroutines. `home` is the event loop of the client, and a function that raises the
/// error for a call in another loop. The endpoint calls `interrupted` with an exception that the first step of such a
/// coroutine raises, because a frame that the coroutine held may be lost, and `cancel` with the id of a call for which
/// no task waits.
#[pyclass(frozen, extends = Endpoint, module = "shmrpc._core")]
pub struct LoopEndpoint {
    channel: Py<Channel>,
    interrupted: Py<PyAny>,
    cancel: Py<PyAny>,
    home: HomeLoop,
}

#[pymethods]
impl LoopEndpoint {
    #[new]
    fn new(
        channel: Py<Channel>,
        native: Py<NativeCall>,
        function: Py<PyAny>,
        finish: Py<PyAny>,
        interrupted: Py<PyAny>,
        cancel: Py<PyAny>,
        home: (Bound<'_, PyAny>, Py<PyAny>),
    ) -> PyResult<PyClassInitializer<Self>> {
        let (event_loop, check) = home;
        let home = HomeLoop::new(event_loop.py(), event_loop.clone().unbind(), check)?;
        let endpoint = PyClassInitializer::from(Endpoint::new(native, function, finish));
        Ok(endpoint.add_subclass(LoopEndpoint {
            channel,
            interrupted,
            cancel,
            home,
        }))
    }

    /// Returns the coroutine of a call. Its first step checks the loop and sends the request.
    #[pyo3(signature = (*args, **kwargs))]
    fn __call__<'py>(
        slf: &Bound<'py, Self>,
        args: Bound<'py, PyTuple>,
        kwargs: Option<Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, CallCoroutine>> {
        let arguments = Arguments {
            args: args.unbind(),
            kwargs: kwargs.map(Bound::unbind),
        };
        let coroutine = CallCoroutine {
            endpoint: slf.clone().unbind(),
            state: Mutex::new(State::New(arguments)),
        };
        Bound::new(slf.py(), coroutine)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.interrupted)?;
        visit.call(&self.cancel)?;
        self.home.traverse(&visit)
    }
}

/// Arguments of a call.
pub(crate) struct Arguments {
    args: Py<PyTuple>,
    kwargs: Option<Py<PyDict>>,
}

impl Traverse for Arguments {
    fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.args)?;
        let kwargs = self.kwargs.as_ref();
        kwargs.map_or(Ok(()), |kwargs| visit.call(kwargs))
    }
}

/// A call in flight whose task has yielded to the event loop.
pub(crate) struct PipelinedCall {
    arguments: Arguments,
    call: InFlightCall,
}

impl Traverse for PipelinedCall {
    fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.arguments.traverse(visit)
    }
}

/// A call that can be awaited.
#[pyclass(frozen, weakref, freelist = 64, module = "shmrpc._core")]
pub struct CallCoroutine {
    endpoint: Py<LoopEndpoint>,
    state: Mutex<State<CallCoroutine>>,
}

impl NativeCoroutine for CallCoroutine {
    type Start = Arguments;
    type Suspended = PipelinedCall;

    const FINAL: State<Self> = State::Ended;

    #[inline]
    fn state(&self) -> &Mutex<State<Self>> {
        &self.state
    }

    #[inline]
    fn start<'py>(
        &self,
        py: Python<'py>,
        arguments: Arguments,
    ) -> PyResult<Next<'py, PipelinedCall>> {
        let (args, kwargs) = arguments.into_bound(py);
        let endpoint = self.endpoint.bind(py);
        endpoint.get().home.check(py)?;
        let exchange = PipeliningExchange(endpoint.get().channel.get());
        let base = endpoint.as_super().get();
        let next = base.call(py, &exchange, &args, kwargs.as_ref())?;
        Ok(keep_arguments(next, args, kwargs))
    }

    #[inline]
    fn resume<'py>(
        &self,
        py: Python<'py>,
        suspended: PipelinedCall,
    ) -> PyResult<Next<'py, PipelinedCall>> {
        let (args, kwargs) = suspended.arguments.into_bound(py);
        let (endpoint, call) = (self.endpoint.bind(py), suspended.call);
        let mut body = Scratch::new();
        let channel = endpoint.get().channel.get();
        let reply = channel.pipelined_reply(py, call.id, &mut body);
        let base = endpoint.as_super().get();
        let next = base.proceed(reply, &body, &args, kwargs.as_ref(), call)?;
        Ok(keep_arguments(next, args, kwargs))
    }

    fn next<'py>(&self, _py: Python<'py>) -> PyResult<Next<'py, PipelinedCall>> {
        unreachable!("`receive` ends the call")
    }

    #[inline]
    fn receive<'py>(
        &self,
        _py: Python<'py>,
        result: PyResult<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        result.map(Some)
    }

    #[cold]
    fn first_step_failed(&self, py: Python<'_>, error: PyErr) -> PyErr {
        let error = error.into_value(py);
        match self.endpoint.get().interrupted.bind(py).call1((&error,)) {
            Ok(_) => PyErr::from_value(error.into_bound(py).into_any()),
            Err(other) => other,
        }
    }

    fn abandon(&self, suspended: PipelinedCall) {
        let channel = self.endpoint.get().channel.get();
        channel.forget(suspended.call.id);
    }

    fn cancel(&self, py: Python<'_>, suspended: PipelinedCall) -> PyResult<()> {
        let (endpoint, id) = (self.endpoint.get(), suspended.call.id);
        match endpoint.channel.get().forget(id) {
            true => Ok(()), // The reply had arrived.
            false => endpoint.cancel.bind(py).call1((id,)).map(drop),
        }
    }

    #[cold]
    fn misuse(has_ended: bool) -> PyErr {
        match has_ended {
            true => PyRuntimeError::new_err("cannot reuse already awaited coroutine"),
            false => PyValueError::new_err("coroutine already executing"),
        }
    }
}

impl Arguments {
    /// Returns the positional and the keyword arguments.
    #[inline]
    fn into_bound(self, py: Python<'_>) -> (Bound<'_, PyTuple>, Option<Bound<'_, PyDict>>) {
        let kwargs = self.kwargs.map(|kwargs| kwargs.into_bound(py));
        (self.args.into_bound(py), kwargs)
    }
}

/// Adds the arguments to a call whose task yields to the event loop.
#[inline]
fn keep_arguments<'py>(
    next: Next<'py, InFlightCall>,
    args: Bound<'py, PyTuple>,
    kwargs: Option<Bound<'py, PyDict>>,
) -> Next<'py, PipelinedCall> {
    match next {
        Next::Return(value) => Next::Return(value),
        Next::Await(coroutine) => Next::Await(coroutine),
        Next::Yield(call) => Next::Yield(PipelinedCall {
            arguments: Arguments {
                args: args.unbind(),
                kwargs: kwargs.map(Bound::unbind),
            },
            call,
        }),
    }
}

native_coroutine::methods!(CallCoroutine, [endpoint], {
    #[getter]
    fn __name__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.__qualname__(py)
    }

    #[getter]
    fn __qualname__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        qualified_name(self.endpoint.bind(py))
    }

    #[getter]
    fn cr_running(&self) -> bool {
        matches!(*lock(&self.state), State::Running)
    }

    #[getter]
    fn cr_await<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.attribute_of_delegate(py, "cr_await")
    }

    #[getter]
    fn cr_frame<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.attribute_of_delegate(py, "cr_frame")
    }

    #[getter]
    fn cr_code<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.attribute_of_delegate(py, "cr_code")
    }
});

impl CallCoroutine {
    /// Returns an attribute of the coroutine that the call delegates to. Raises AttributeError if there is none.
    fn attribute_of_delegate<'py>(
        &self,
        py: Python<'py>,
        name: &str,
    ) -> PyResult<Bound<'py, PyAny>> {
        let delegate = match &*lock(&self.state) {
            State::Delegated(delegate) => Some(delegate.clone_ref(py).into_bound(py)),
            _ => None,
        };
        delegate
            .ok_or_else(|| PyAttributeError::new_err(name.to_owned()))?
            .getattr(name)
    }
}

impl Drop for CallCoroutine {
    /// Forgets a pipelined call, without a cancel, and warns of a coroutine that was never awaited.
    fn drop(&mut self) {
        let state = self
            .state
            .get_mut()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        if let State::Suspended(suspended) = state {
            let channel = self.endpoint.get().channel.get();
            channel.forget(suspended.call.id);
        }
        if !matches!(state, State::New(_)) {
            return;
        }
        Python::attach(|py| {
            preserving_exception(py, || warn_unawaited(self.endpoint.bind(py)));
        });
    }
}

/// Returns the qualified name of the function, which warnings show.
fn qualified_name<'py>(endpoint: &Bound<'py, LoopEndpoint>) -> PyResult<Bound<'py, PyAny>> {
    let function = endpoint.as_super().get().function(endpoint.py());
    function.getattr("__qualname__")
}

/// Issues the RuntimeWarning for a coroutine that was never awaited. Never raises.
#[cold]
fn warn_unawaited(endpoint: &Bound<'_, LoopEndpoint>) {
    let py = endpoint.py();
    let Ok(name) = qualified_name(endpoint) else {
        return;
    };
    let category = py.get_type::<pyo3::exceptions::PyRuntimeWarning>();
    let Ok(text) = CString::new(format!("coroutine '{name}' was never awaited")) else {
        return;
    };
    if let Err(error) = PyErr::warn(py, &category, &text, 1) {
        error.write_unraisable(py, Some(&name)); // Warnings are errors here, and a destructor has no caller to raise to.
    }
}

/// Registers `CallCoroutine` as a `Coroutine`, and sets the slots by which the interpreter runs its steps directly.
pub(crate) fn register(py: Python<'_>) -> PyResult<()> {
    coroutine_slots::install::<CallCoroutine>(py);
    let abstract_class = py.import("collections.abc")?.getattr("Coroutine")?;
    let class = py.get_type::<CallCoroutine>();
    abstract_class.call_method1("register", (class,)).map(drop)
}
