//! `Endpoint`: a function that calls an endpoint, as Python sees it.

use crate::crash;
use crate::python::rpc::client::short_call::{Answer, Exchange, Outcome, ShortCall};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};

/// What looks like a function of Python's, and is documented as that.
///
/// `function` is the same in Python, for all that the short way is not for. `rest(args, kwargs, id, begun, deadline)` goes
/// on with a call: `begun` is what has come so far, or an exception.
#[pyclass(frozen, subclass, weakref, module = "shmrpc._core")]
pub struct Endpoint {
    short: Py<ShortCall>,
    function: Py<PyAny>,
    rest: Py<PyAny>,
}

/// What a call has led to.
pub(crate) enum Led<'py> {
    /// Its result.
    Result(Bound<'py, PyAny>),
    /// What Python's side has returned.
    Further(Bound<'py, PyAny>),
    /// It is asked for on the next turn of the loop: its id and its deadline.
    InTurn(u64, Option<u64>),
}

impl Endpoint {
    pub(crate) fn new(short: Py<ShortCall>, function: Py<PyAny>, rest: Py<PyAny>) -> Self {
        Endpoint {
            short,
            function,
            rest,
        }
    }

    /// The same in Python.
    #[inline]
    pub(crate) fn function<'py>(&self, py: Python<'py>) -> &Bound<'py, PyAny> {
        self.function.bind(py)
    }

    /// Makes a call, and has Python go on with what is not over then.
    #[inline]
    pub(crate) fn call<'py>(
        &self,
        py: Python<'py>,
        way: &impl Exchange,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Led<'py>> {
        let outcome = self.short.get().call(py, way, args, kwargs)?;
        self.led(py, outcome, args, kwargs)
    }

    /// Has Python go on with a call if it is not over.
    #[inline]
    fn led<'py>(
        &self,
        py: Python<'py>,
        outcome: Outcome<'py>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Led<'py>> {
        match outcome {
            Outcome::Result(value) => {
                crash::point!(AnswerRead);
                Ok(Led::Result(value))
            }
            Outcome::Foreign => self.function(py).call(args, kwargs).map(Led::Further),
            Outcome::Begun(id, deadline, begun) => {
                let kwargs = kwargs.cloned().unwrap_or_else(|| PyDict::new(py));
                let rest = (args, kwargs, id, begun, deadline);
                self.rest.bind(py).call1(rest).map(Led::Further)
            }
            Outcome::InTurn(id, deadline) => Ok(Led::InTurn(id, deadline)),
        }
    }

    /// Goes on with a call that was under way, by what has come of it.
    #[inline]
    pub(crate) fn go_on<'py>(
        &self,
        answer: PyResult<Answer<'py>>,
        body: &[u8],
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
        (id, deadline): (u64, Option<u64>),
    ) -> PyResult<Led<'py>> {
        let py = args.py();
        let short = self.short.get();
        let outcome = short.outcome(py, answer, body, id, deadline)?;
        self.led(py, outcome, args, kwargs)
    }
}

/// Gives instances of these classes the documentation of their functions: PyO3 gives them that of the class.
pub(crate) fn prepare(py: Python<'_>) -> PyResult<()> {
    let class = py.get_type::<Endpoint>();
    let documentation = class.getattr("documentation")?;
    for each in [
        class,
        py.get_type::<crate::python::rpc::client::loop_endpoint::LoopEndpoint>(),
        py.get_type::<crate::python::rpc::client::thread_endpoint::ThreadEndpoint>(),
    ] {
        each.setattr("__doc__", &documentation)?;
    }
    Ok(())
}

#[pymethods]
impl Endpoint {
    #[getter]
    fn documentation<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.function.bind(py).getattr("__doc__")
    }

    /// What `inspect` and `help()` believe.
    #[getter]
    fn __class__<'py>(&self, py: Python<'py>) -> Bound<'py, PyAny> {
        self.function.bind(py).get_type().into_any()
    }

    #[getter]
    fn __module__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.function.bind(py).getattr("__module__")
    }

    /// All else that a function has, its signature above all.
    fn __getattr__<'py>(
        &self,
        py: Python<'py>,
        name: &Bound<'py, PyString>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.function.bind(py).getattr(name)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.function.bind(py).repr()?.to_string())
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.short)?;
        visit.call(&self.function)?;
        visit.call(&self.rest)
    }
}
