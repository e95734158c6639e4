//! `Endpoint`: a function that calls an endpoint, as Python sees it.

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyString;

/// What looks like a function of Python's, and is documented as that.
#[pyclass(frozen, subclass, weakref, module = "shmrpc._core")]
pub struct Endpoint {
    function: Py<PyAny>,
}

impl Endpoint {
    pub(super) fn new(function: Py<PyAny>) -> Self {
        Endpoint { function }
    }
}

/// Gives instances of these classes the documentation of their functions: PyO3 gives them that of the class.
pub(super) fn prepare(py: Python<'_>) -> PyResult<()> {
    let class = py.get_type::<Endpoint>();
    let documentation = class.getattr("documentation")?;
    for each in [
        class,
        py.get_type::<super::loop_endpoint::LoopEndpoint>(),
        py.get_type::<super::thread_endpoint::ThreadEndpoint>(),
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
        visit.call(&self.function)
    }
}
