//! `Endpoint`: a function that calls an endpoint.

use crate::crash;
use crate::python::codec::msgpack::outgoing_body::OutgoingBody;
use crate::python::rpc::client::native_call::{InFlightCall, NativeCall};
use crate::python::rpc::payload::Payload;
use crate::python::rpc::reply::{Exchange, Reply};
use crate::python::support::native_coroutine::Next;
use crate::python::support::scratch::Scratch;
use pyo3::PyTypeInfo;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};

/// A callable that calls an endpoint. It looks like the Python function of the endpoint, and has its documentation.
///
/// `function` does the same in Python, for calls that the native path does not support. `finish(args, kwargs, id,
/// begun, deadline)` continues a call that was begun: `begun` is what has arrived so far, or an exception.
#[pyclass(frozen, subclass, weakref, module = "shmrpc._core")]
pub struct Endpoint {
    native: Py<NativeCall>,
    function: Py<PyAny>,
    finish: Py<PyAny>,
}

impl Endpoint {
    pub(crate) fn new(native: Py<NativeCall>, function: Py<PyAny>, finish: Py<PyAny>) -> Self {
        Endpoint {
            native,
            function,
            finish,
        }
    }

    /// Returns the function that does the same in Python.
    #[inline]
    pub(crate) fn function<'py>(&self, py: Python<'py>) -> &Bound<'py, PyAny> {
        self.function.bind(py)
    }

    /// Makes a call. An error of `exchange` goes to `finish`, which raises or retries. Raises what the functions raise,
    /// and the error for a result that cannot be read.
    ///
    /// Returns the result (`Return`), what Python returns for a call that the native path cannot complete (`Await`), or
    /// the call in flight if its task yields to the event loop (`Yield`).
    #[inline]
    pub(crate) fn call<'py>(
        &self,
        py: Python<'py>,
        exchange: &impl Exchange,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Next<'py, InFlightCall>> {
        let (mut request_body, mut body) = (OutgoingBody::new(), Scratch::new());
        let native = self.native.get();
        let Some(request) = native.write_request(py, args, kwargs, &mut request_body)? else {
            return self.function(py).call(args, kwargs).map(Next::Await);
        };
        let (opcode, call) = (request.opcode, request.call);
        let payload = Payload::from_outgoing(&mut request_body);
        let reply = exchange.exchange(py, opcode, call.id, payload, &mut body);
        self.proceed(reply, &body, args, kwargs, call)
    }

    /// Continues a call with its reply; `body` is the buffer of a short reply. Returns and raises what
    /// [`call`](Self::call) does.
    #[inline]
    pub(crate) fn proceed<'py>(
        &self,
        reply: PyResult<Reply<'py>>,
        body: &[u8],
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
        call: InFlightCall,
    ) -> PyResult<Next<'py, InFlightCall>> {
        let (py, native) = (args.py(), self.native.get());
        let result = match reply {
            Ok(Reply::Short) => native.read_short(py, body)?,
            Ok(Reply::Plain(body)) => native.read_plain(py, body)?,
            Ok(Reply::Pipelined) => return Ok(Next::Yield(call)),
            Ok(Reply::Other(begun)) => return self.finish(begun, args, kwargs, call),
            Err(error) => {
                let error = error.into_value(py).into_bound(py).into_any();
                return self.finish(Some(error), args, kwargs, call);
            }
        };
        crash::point!(ReplyRead);
        Ok(Next::Return(result))
    }

    /// Lets Python continue a call that was begun. Returns what Python returns.
    fn finish<'py>(
        &self,
        begun: Option<Bound<'py, PyAny>>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
        call: InFlightCall,
    ) -> PyResult<Next<'py, InFlightCall>> {
        let py = args.py();
        let kwargs = kwargs.cloned().unwrap_or_else(|| PyDict::new(py));
        let arguments = (args, kwargs, call.id, begun, call.deadline);
        self.finish.bind(py).call1(arguments).map(Next::Await)
    }
}

/// Gives instances of a subclass the documentation of their functions: PyO3 would give them that of the class.
pub(crate) fn document<T: PyTypeInfo>(py: Python<'_>) -> PyResult<()> {
    let documentation = py.get_type::<Endpoint>().getattr("documentation")?;
    py.get_type::<T>().setattr("__doc__", documentation)
}

#[pymethods]
impl Endpoint {
    /// The documentation of the function.
    #[getter]
    fn documentation<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.function.bind(py).getattr("__doc__")
    }

    /// The class of functions, which `inspect` and `help()` look for.
    #[getter]
    fn __class__<'py>(&self, py: Python<'py>) -> Bound<'py, PyAny> {
        self.function.bind(py).get_type().into_any()
    }

    #[getter]
    fn __module__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.function.bind(py).getattr("__module__")
    }

    /// Returns any other attribute of the function, such as its signature.
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
        visit.call(&self.native)?;
        visit.call(&self.function)?;
        visit.call(&self.finish)
    }
}
