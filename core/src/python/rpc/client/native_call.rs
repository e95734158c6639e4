//! `NativeCall`: the native path of a call, from the arguments to the result.
//!
//! The core writes the arguments into private bytes and from there into the ring, copies the reply out of the ring, and
//! reads it. The slow path, in Python, handles a value that MessagePack does not carry as it is, a call that has to
//! wait, and every failure.

use crate::clock;
use crate::crash;
use crate::python::codec::encoder::Encoder;
use crate::python::codec::msgpack::buffers::Buffers;
use crate::python::codec::msgpack::expected_type::ExpectedType;
use crate::python::codec::msgpack::outgoing_body::OutgoingBody;
use crate::python::codec::msgpack::reader::Reader;
use crate::python::codec::msgpack::unsupported::Unsupported;
use crate::python::rpc::body::Body;
use crate::python::rpc::client::call_ids::CallIds;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};

/// An endpoint of a connection, as the native path calls it.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct NativeCall {
    encoder: Py<Encoder>,
    ids: Py<CallIds>,
    /// Type of the result, if the core can read it.
    expected: Option<Py<ExpectedType>>,
    /// Reads the body of a result, and raises the error for a body that it cannot read.
    read: Py<PyAny>,
    /// Opcodes of a request with only positional arguments, with keyword arguments, and with a deadline.
    positional: u32,
    keywords: u32,
    timed: u32,
    /// Longest duration of a call, in nanoseconds.
    timeout: Option<u64>,
    /// The lead of this process's clock over the host's, in nanoseconds. Deadlines are times of the host's clock.
    clock_ahead: i64,
    /// Not empty if a call may inherit a deadline, which `nearest` then knows; None if calls inherit no deadlines.
    inheriting: Option<Py<PyList>>,
    /// Takes a call's own deadline, or None, and returns the earlier of this and the inherited deadline.
    nearest: Py<PyAny>,
}

/// A written request.
pub(crate) struct Request {
    pub(crate) opcode: u32,
    pub(crate) call: InFlightCall,
}

/// A call in flight.
#[derive(Clone, Copy)]
pub(crate) struct InFlightCall {
    pub(crate) id: u64,
    /// The instant by which the call must have ended, in nanoseconds.
    pub(crate) deadline: Option<u64>,
}

impl NativeCall {
    /// Writes a request to `body`, and returns its opcode and the call, with the next id. Returns None, and takes no
    /// id, if the native path does not support the call: `body` may hold a part of the request then. Raises what
    /// `nearest` raises.
    #[inline]
    pub(crate) fn write_request(
        &self,
        py: Python<'_>,
        args: &Bound<'_, PyTuple>,
        kwargs: Option<&Bound<'_, PyDict>>,
        body: &mut OutgoingBody,
    ) -> PyResult<Option<Request>> {
        let kwargs = kwargs.filter(|kwargs| !kwargs.is_empty());
        let deadline = self.deadline(py)?;
        if deadline.is_some() && kwargs.is_some() {
            return Ok(None);
        }
        let Ok(opcode) = self.write_body(args.as_slice(), kwargs, deadline, body) else {
            return Ok(None);
        };
        let id = self.ids.get().next();
        crash::point!(RequestWritten);
        Ok(Some(Request {
            opcode,
            call: InFlightCall { id, deadline },
        }))
    }

    /// Writes the body of a request, and returns the opcode. Fails if the core cannot write an argument: `body` may
    /// hold a part of the request then. The caller passes no deadline with `kwargs`.
    #[inline]
    fn write_body(
        &self,
        args: &[Bound<'_, PyAny>],
        kwargs: Option<&Bound<'_, PyDict>>,
        deadline: Option<u64>,
        body: &mut OutgoingBody,
    ) -> Result<u32, Unsupported> {
        let mut writer = self.encoder.get().writer(body)?;
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

    /// Returns the deadline of a call that begins now, its own or the inherited one, in nanoseconds of the host's
    /// clock; None if there is none. Raises what `nearest` raises.
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

    /// Returns the result in the bytes of a short reply. Raises the error for a body that cannot be read.
    #[inline]
    pub(crate) fn read_short<'py>(
        &self,
        py: Python<'py>,
        body: &[u8],
    ) -> PyResult<Bound<'py, PyAny>> {
        match self.read_natively(py, body, None) {
            Some(value) => Ok(value),
            None => self.read_slowly(PyBytes::new(py, body).into_any()),
        }
    }

    /// Returns the result in the body of a reply. Raises the error for a body that cannot be read.
    pub(crate) fn read_plain<'py>(
        &self,
        py: Python<'py>,
        body: Body<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let parts = body.parts();
        match parts.and_then(|(bytes, buffers)| self.read_natively(py, bytes, buffers)) {
            Some(value) => Ok(value),
            None => self.read_slowly(body.into_object(py)?),
        }
    }

    /// Returns the value of these bytes; None if the core cannot read it.
    #[inline]
    fn read_natively<'py>(
        &self,
        py: Python<'py>,
        body: &[u8],
        buffers: Option<&Buffers<'py>>,
    ) -> Option<Bound<'py, PyAny>> {
        Reader::decode(py, body, buffers, self.expected.as_ref()?.get().spec()).ok()
    }

    /// Returns the result in a body, read by Python. Raises the error for a body that cannot be read.
    fn read_slowly<'py>(&self, body: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.read.bind(body.py()).call1((body,))
    }
}

#[pymethods]
impl NativeCall {
    #[new]
    #[pyo3(signature = (*, encoder, ids, expected, read, positional, keywords, timed, timeout, clock_ahead, inheriting, nearest))]
    #[allow(clippy::too_many_arguments)] // By keyword alone, in one place.
    fn new(
        encoder: Py<Encoder>,
        ids: Py<CallIds>,
        expected: Option<Py<ExpectedType>>,
        read: Py<PyAny>,
        positional: u32,
        keywords: u32,
        timed: u32,
        timeout: Option<u64>,
        clock_ahead: i64,
        inheriting: Option<Py<PyList>>,
        nearest: Py<PyAny>,
    ) -> Self {
        NativeCall {
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
