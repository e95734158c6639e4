//! `ShortCall`: what most calls of an endpoint are, from the arguments to the result.
//!
//! The arguments are written into private bytes and from there into the ring; the answer is copied out of it and read.
//! What is foreign to MessagePack, what has to wait, and all that fails is for Python, which has written it all a second time,
//! for every case.

use crate::clock;
use crate::crash;
use crate::python::codec::encoder::Encoder;
use crate::python::codec::msgpack::expected::Expected;
use crate::python::codec::msgpack::reader::{Buffers, Reader};
use crate::python::codec::msgpack::writer::{Foreign, Written};
use crate::python::rpc::client::ids::Ids;
use crate::python::rpc::incoming::Body;
use crate::python::rpc::payload::Payload;
use crate::python::support::scratch::Scratch;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};

/// An endpoint of a connection, as the client's side of a short call needs it.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct ShortCall {
    encoder: Py<Encoder>,
    ids: Py<Ids>,
    /// The type of the result, if it is one of the plain ones.
    expected: Option<Py<Expected>>,
    /// Reads the body of a result, and raises what there is to say if it cannot.
    read: Py<PyAny>,
    /// The opcodes with positional arguments alone, with others too, and with a deadline.
    positional: u32,
    keywords: u32,
    timed: u32,
    /// How long a call may take, in nanoseconds.
    timeout: Option<u64>,
    /// By how much our clock is ahead of the host's, of which deadlines are, in nanoseconds.
    clock_ahead: i64,
    /// Not empty if there may be a deadline to inherit, which `nearest` knows then; None if none binds these calls.
    inheriting: Option<Py<PyList>>,
    /// Takes a call's own deadline, or None: the sooner one of it and that which is inherited.
    nearest: Py<PyAny>,
}

/// A request that has been written.
struct Request {
    opcode: u32,
    id: u64,
    /// The instant by which the call must have ended, in nanoseconds.
    deadline: Option<u64>,
}

/// What has come of a request for as long as it pays to look.
pub(crate) enum Answer<'py> {
    /// Its plain answer, which is in the caller's buffer.
    Short,
    /// Its plain answer.
    Plain(Body<'py>),
    /// Something else, as Python is told it.
    Further(Option<Bound<'py, PyAny>>),
    /// It is asked for on the next turn of the loop.
    InTurn,
}

impl<'py> Answer<'py> {
    /// As Python is told it; `body`: the buffer of a short one.
    pub(crate) fn told(self, py: Python<'py>, body: &[u8]) -> PyResult<Option<Bound<'py, PyAny>>> {
        Ok(match self {
            Answer::Short => Some(PyBytes::new(py, body).into_any()),
            Answer::Plain(body) => Some(body.into_object(py)?),
            Answer::Further(further) => further,
            Answer::InTurn => None,
        })
    }
}

/// What requests are sent by.
pub(crate) trait Exchange {
    /// Sends a request and looks for its answer for as long as that pays.
    fn look_for<'py>(
        &self,
        py: Python<'py>,
        opcode: u32,
        id: u64,
        payload: Payload<'_>,
        body: &mut Vec<u8>,
    ) -> PyResult<Answer<'py>>;
}

/// What has become of a call.
pub(crate) enum Outcome<'py> {
    Result(Bound<'py, PyAny>),
    /// The short way is not for it: nothing was sent.
    Foreign,
    /// It may be under way: its id, its deadline, and what has come so far or the exception that sending it has ended with.
    Begun(u64, Option<u64>, Option<Bound<'py, PyAny>>),
    /// It is under way, and asked for on the next turn of the loop: its id and its deadline.
    InTurn(u64, Option<u64>),
}

impl ShortCall {
    /// Makes a call.
    #[inline]
    pub(crate) fn call<'py>(
        &self,
        py: Python<'py>,
        way: &impl Exchange,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Outcome<'py>> {
        let (mut written, mut body) = (Written::new(), Scratch::new());
        let Some(request) = self.write(py, args, kwargs, &mut written)? else {
            return Ok(Outcome::Foreign);
        };
        let Request {
            opcode,
            id,
            deadline,
        } = request;
        let payload = Payload::of_written(&mut written);
        let answer = way.look_for(py, opcode, id, payload, &mut body);
        self.outcome(py, answer, &body, id, deadline)
    }

    /// What has become of a call, by its answer; `body`: the buffer of a short one.
    #[inline]
    pub(crate) fn outcome<'py>(
        &self,
        py: Python<'py>,
        answer: PyResult<Answer<'py>>,
        body: &[u8],
        id: u64,
        deadline: Option<u64>,
    ) -> PyResult<Outcome<'py>> {
        let begun = match answer {
            Ok(Answer::Short) => return self.result(py, body).map(Outcome::Result),
            Ok(Answer::Plain(body)) => return self.result_of(py, body).map(Outcome::Result),
            Ok(Answer::Further(further)) => further,
            Ok(Answer::InTurn) => return Ok(Outcome::InTurn(id, deadline)),
            Err(error) => Some(error.into_value(py).into_bound(py).into_any()),
        };
        Ok(Outcome::Begun(id, deadline, begun))
    }

    /// Writes a request; None if the short way is not for it.
    #[inline]
    fn write(
        &self,
        py: Python<'_>,
        args: &Bound<'_, PyTuple>,
        kwargs: Option<&Bound<'_, PyDict>>,
        written: &mut Written,
    ) -> PyResult<Option<Request>> {
        let kwargs = kwargs.filter(|kwargs| !kwargs.is_empty());
        let deadline = self.deadline(py)?;
        if deadline.is_some() && kwargs.is_some() {
            return Ok(None);
        }
        let Ok(opcode) = self.write_body(args.as_slice(), kwargs, deadline, written) else {
            return Ok(None);
        };
        let id = self.ids.get().next();
        crash::point!(RequestWritten);
        Ok(Some(Request {
            opcode,
            id,
            deadline,
        }))
    }

    #[inline]
    fn write_body(
        &self,
        args: &[Bound<'_, PyAny>],
        kwargs: Option<&Bound<'_, PyDict>>,
        deadline: Option<u64>,
        written: &mut Written,
    ) -> Result<u32, Foreign> {
        let mut writer = self.encoder.get().writer(written)?;
        if let Some(kwargs) = kwargs {
            writer.array(2)?;
            writer.array(args.len())?;
            args.iter().try_for_each(|value| writer.argument(value))?;
            writer.value(kwargs)?;
            return Ok(self.keywords);
        }
        writer.array(args.len() + usize::from(deadline.is_some()))?;
        if let Some(deadline) = deadline {
            writer.unsigned(deadline);
        }
        args.iter().try_for_each(|value| writer.argument(value))?;
        Ok(if deadline.is_some() {
            self.timed
        } else {
            self.positional
        })
    }

    #[inline]
    fn deadline(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        let own = self.timeout.map(|timeout| {
            clock::now()
                .saturating_add_signed(-self.clock_ahead)
                .saturating_add(timeout)
        });
        match &self.inheriting {
            Some(inheriting) if !inheriting.bind(py).is_empty() => {
                self.nearest.bind(py).call1((own,))?.extract()
            }
            _ => Ok(own),
        }
    }

    /// The result that an answer's bytes are.
    #[inline]
    fn result<'py>(&self, py: Python<'py>, body: &[u8]) -> PyResult<Bound<'py, PyAny>> {
        match self.known(py, body, None) {
            Some(value) => Ok(value),
            None => self.read(PyBytes::new(py, body).into_any()),
        }
    }

    /// The result that an answer's body is.
    fn result_of<'py>(&self, py: Python<'py>, body: Body<'py>) -> PyResult<Bound<'py, PyAny>> {
        let parts = body.parts();
        match parts.and_then(|(bytes, buffers)| self.known(py, bytes, buffers)) {
            Some(value) => Ok(value),
            None => self.read(body.into_object(py)?),
        }
    }

    /// The value that these bytes are, if the core can say so.
    #[inline]
    fn known<'py>(
        &self,
        py: Python<'py>,
        body: &[u8],
        buffers: Option<&Buffers<'py>>,
    ) -> Option<Bound<'py, PyAny>> {
        Reader::only(py, body, buffers, self.expected.as_ref()?.get()).ok()
    }

    fn read<'py>(&self, body: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.read.bind(body.py()).call1((body,))
    }
}

#[pymethods]
impl ShortCall {
    #[new]
    #[pyo3(signature = (*, encoder, ids, expected, read, positional, keywords, timed, timeout, clock_ahead, inheriting, nearest))]
    #[allow(clippy::too_many_arguments)] // By keyword alone, in one place.
    fn new(
        encoder: Py<Encoder>,
        ids: Py<Ids>,
        expected: Option<Py<Expected>>,
        read: Py<PyAny>,
        positional: u32,
        keywords: u32,
        timed: u32,
        timeout: Option<u64>,
        clock_ahead: i64,
        inheriting: Option<Py<PyList>>,
        nearest: Py<PyAny>,
    ) -> Self {
        ShortCall {
            encoder,
            ids,
            expected,
            read,
            positional,
            keywords,
            timed,
            timeout,
            clock_ahead,
            inheriting,
            nearest,
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.read)?;
        visit.call(&self.nearest)
    }
}
