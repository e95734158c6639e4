//! `HandlerTable`: the endpoints whose calls the core itself runs, from the frame to the reply.
//!
//! These endpoints are functions of plain types that run in the event loop, without interceptors. Python runs all other
//! calls. It also runs a call of these endpoints whose request does not fit, because it has the error messages.

use crate::clock;
use crate::crash;
use crate::python::codec::encoder::Encoder;
use crate::python::codec::msgpack::buffers::Buffers;
use crate::python::codec::msgpack::outgoing_body::OutgoingBody;
use crate::python::codec::msgpack::reader::Reader;
use crate::python::codec::msgpack::unreadable::Unreadable;
use crate::python::rpc::server::call_contexts::CallContexts;
use crate::python::rpc::server::current_call::CurrentCall;
use crate::python::rpc::server::handler::{Arguments, Handler};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

/// The number of bytes of a body above which the result is freed only after the reply is sent.
const SLOW_TO_FREE: usize = 2048;

/// Handlers, the opcodes of their requests, and the parts that run the calls.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct HandlerTable {
    /// Handlers by the numbers of their endpoints; None where Python runs the calls.
    handlers: Vec<Option<Py<Handler>>>,
    encoder: Py<Encoder>,
    contexts: Py<CallContexts>,
    current_call: Py<CurrentCall>,
    /// Not empty once a request with a deadline was run.
    inheriting: Py<PyList>,
    /// The lead of this process's clock over the host's, in nanoseconds. Deadlines are times of the host's clock.
    clock_ahead: i64,
    /// Takes the endpoint's name and a result that the core cannot write, and returns the body.
    encode: Py<PyAny>,
    /// Sends the reply for a call that has failed: takes the client's key, the call's id and the exception.
    fail: Py<PyAny>,
    /// Records that a one-way call has failed: takes the client's key, the endpoint's name and the exception.
    note: Py<PyAny>,
    /// Low eight bits of the opcodes with only positional arguments, with keyword arguments, with a deadline, and with
    /// a header.
    positional: u8,
    keywords: u8,
    timed: u8,
    headed: u8,
}

/// The only key of the header of a one-way call. Python runs a call whose header has any other key.
const ONE_WAY: &[u8] = b"one_way";

#[pymethods]
impl HandlerTable {
    #[new]
    #[pyo3(signature = (handlers, *, encoder, contexts, current_call, inheriting, clock_ahead, encode, fail, note, positional, keywords, timed, headed))]
    #[allow(clippy::too_many_arguments)] // By keyword alone, in one place.
    fn new(
        handlers: Vec<Option<Py<Handler>>>,
        encoder: Py<Encoder>,
        contexts: Py<CallContexts>,
        current_call: Py<CurrentCall>,
        inheriting: Py<PyList>,
        clock_ahead: i64,
        encode: Py<PyAny>,
        fail: Py<PyAny>,
        note: Py<PyAny>,
        positional: u8,
        keywords: u8,
        timed: u8,
        headed: u8,
    ) -> Self {
        HandlerTable {
            handlers,
            encoder,
            contexts,
            current_call,
            inheriting,
            clock_ahead,
            encode,
            fail,
            note,
            positional,
            keywords,
            timed,
            headed,
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.handlers
            .iter()
            .flatten()
            .try_for_each(|each| visit.call(each))?;
        visit.call(&self.current_call)?;
        visit.call(&self.encode)?;
        visit.call(&self.fail)?;
        visit.call(&self.note)
    }
}

/// A request as it was read.
pub(crate) struct Request<'py> {
    arguments: Arguments,
    /// Names of the last arguments.
    names: Option<Bound<'py, PyTuple>>,
    pub(crate) deadline: Option<u64>,
    pub(crate) one_way: bool,
}

/// The result of a call, as it is sent.
pub(crate) enum WrittenResult<'py> {
    /// The result is written. Holds a result that takes long to free, so that the reply is sent first.
    Native(Option<Bound<'py, PyAny>>),
    /// The body that Python has encoded.
    Encoded(Bound<'py, PyAny>),
}

impl HandlerTable {
    /// Returns the handler of the endpoint of this number; None if Python runs its calls, or if there is no such
    /// endpoint.
    #[inline]
    pub(crate) fn handler(&self, number: usize) -> Option<&Handler> {
        self.handlers
            .get(number)?
            .as_ref()
            .map(|handler| handler.get())
    }

    /// Makes a request the current call of this thread.
    #[inline]
    pub(crate) fn set_current_call(
        &self,
        key: Py<PyAny>,
        opcode: u32,
        id: u64,
        deadline: Option<u64>,
    ) {
        self.current_call.get().begin(key, opcode, id, deadline);
    }

    /// Sends the reply for a call that has failed. Raises what the function `fail` raises.
    #[cold]
    pub(crate) fn fail(
        &self,
        py: Python<'_>,
        key: &Py<PyAny>,
        id: u64,
        error: PyErr,
    ) -> PyResult<()> {
        let fail = self.fail.bind(py);
        fail.call1((key, id, error.into_value(py))).map(drop)
    }

    /// Records that a one-way call has failed. Raises what the function `note` raises.
    #[cold]
    pub(crate) fn note_one_way_failure(
        &self,
        py: Python<'_>,
        key: &Py<PyAny>,
        handler: &Handler,
        error: PyErr,
    ) -> PyResult<()> {
        let note = self.note.bind(py);
        note.call1((key, handler.name(), error.into_value(py)))
            .map(drop)
    }

    /// Reads a request of this kind, the low eight bits of its opcode. Fails if Python has to run the request, or to
    /// answer it because the deadline has passed.
    #[inline]
    pub(crate) fn read_request<'py>(
        &self,
        py: Python<'py>,
        handler: &Handler,
        kind: u8,
        body: &[u8],
        buffers: Option<&Buffers<'py>>,
    ) -> Result<Request<'py>, Unreadable> {
        let mut reader = Reader::new(body, buffers);
        let (mut names, mut deadline, mut one_way) = (None, None, false);
        let arguments = if kind == self.positional {
            let count = reader.array()?;
            handler.read_positional(py, &mut reader, count)?
        } else if kind == self.keywords {
            let (arguments, named) = handler.read_named(py, &mut reader)?;
            names = Some(named);
            arguments
        } else if kind == self.timed && !self.inheriting.bind(py).is_empty() {
            let count = reader.array()?.checked_sub(1).ok_or(Unreadable)?;
            let until = reader.unsigned()?;
            if clock::now().saturating_add_signed(-self.clock_ahead) >= until {
                return Err(Unreadable);
            }
            deadline = Some(until);
            handler.read_positional(py, &mut reader, count)?
        } else if kind == self.headed && handler.coroutines().is_none() {
            if reader.array()? != 3
                || reader.map()? != 1
                || reader.str()? != ONE_WAY
                || !reader.bool()?
            {
                return Err(Unreadable);
            }
            one_way = true;
            let count = reader.array()?;
            let arguments = handler.read_positional(py, &mut reader, count)?;
            if reader.map()? != 0 {
                return Err(Unreadable);
            }
            arguments
        } else {
            return Err(Unreadable);
        };
        reader.end()?;
        Ok(Request {
            arguments,
            names,
            deadline,
            one_way,
        })
    }

    /// Returns true if frames of this kind may be requests that the core runs.
    #[inline]
    pub(crate) fn is_native_request(&self, kind: u8) -> bool {
        [self.positional, self.keywords, self.timed, self.headed].contains(&kind)
    }

    /// Calls the function in a new context, which stays entered, and returns or raises its result. Raises RuntimeError
    /// if the last context cannot be left.
    #[inline]
    pub(crate) fn call<'py>(
        &self,
        py: Python<'py>,
        handler: &Handler,
        mut request: Request<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.contexts.get().renew(py)?;
        let function = handler.function(py);
        let result = request.arguments.call(function, request.names.as_ref());
        crash::point!(FunctionCalled);
        result
    }

    /// Writes a result to `reply`, whose contents it replaces, or returns the body that Python has encoded. Raises what
    /// `encode` raises.
    #[inline]
    pub(crate) fn write_result<'py>(
        &self,
        handler: &Handler,
        result: Bound<'py, PyAny>,
        reply: &mut OutgoingBody,
    ) -> PyResult<WrittenResult<'py>> {
        reply.clear();
        let written = if self.encoder.get().write(&result, reply).is_err() {
            reply.clear(); // The reply may hold buffers of the result.
            let encode = self.encode.bind(result.py());
            WrittenResult::Encoded(encode.call1((handler.name(), result))?)
        } else {
            let slow = reply.bytes.len() > SLOW_TO_FREE || !reply.buffers.is_empty();
            WrittenResult::Native(slow.then_some(result))
        };
        crash::point!(ResultWritten);
        Ok(written)
    }
}
