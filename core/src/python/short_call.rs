//! `ShortCall`: what most calls of an endpoint are, from the arguments to the result.
//!
//! The arguments are written into private bytes and from there into the ring; the answer is copied out of it and read.
//! What is foreign to MessagePack, what has to wait, and all that fails is for Python, which has written it all a second time,
//! for every case.

use super::encoder::Encoder;
use super::ids::Ids;
use super::msgpack::expected::Expected;
use super::msgpack::reader::Reader;
use super::msgpack::writer::Foreign;
use crate::clock;
use crate::crash;
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
pub(super) struct Request {
    pub(super) opcode: u32,
    pub(super) id: u64,
    /// The instant by which the call must have ended, in nanoseconds.
    pub(super) deadline: Option<u64>,
}

/// What has become of a call.
pub(super) enum Outcome<'py> {
    Result(Bound<'py, PyAny>),
    /// The short way is not for it: nothing was sent.
    Foreign,
    /// It may be under way: with what has come so far, a frame or nothing, or with the exception that sending it has ended
    /// with.
    Begun(Request, Option<Bound<'py, PyAny>>),
}

impl ShortCall {
    /// Writes a request; None if the short way is not for it.
    #[inline]
    pub(super) fn write(
        &self,
        py: Python<'_>,
        args: &Bound<'_, PyTuple>,
        kwargs: Option<&Bound<'_, PyDict>>,
        body: &mut Vec<u8>,
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
        body: &mut Vec<u8>,
    ) -> Result<u32, Foreign> {
        let mut writer = self.encoder.get().writer(body)?;
        if let Some(kwargs) = kwargs {
            writer.array(2)?;
            writer.array(args.len())?;
            args.iter().try_for_each(|value| writer.value(value))?;
            writer.value(kwargs)?;
            return Ok(self.keywords);
        }
        writer.array(args.len() + usize::from(deadline.is_some()))?;
        if let Some(deadline) = deadline {
            writer.unsigned(deadline);
        }
        args.iter().try_for_each(|value| writer.value(value))?;
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
    pub(super) fn result<'py>(&self, py: Python<'py>, body: &[u8]) -> PyResult<Bound<'py, PyAny>> {
        match self.known(py, body) {
            Some(value) => Ok(value),
            None => self.read(PyBytes::new(py, body).as_any()),
        }
    }

    /// The result that an answer's body is: bytes, or a parcel.
    pub(super) fn result_of<'py>(&self, body: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let bytes = body.cast::<PyBytes>().ok();
        match bytes.and_then(|bytes| self.known(body.py(), bytes.as_bytes())) {
            Some(value) => Ok(value),
            None => self.read(body),
        }
    }

    /// The value that these bytes are, if the core can say so.
    #[inline]
    fn known<'py>(&self, py: Python<'py>, body: &[u8]) -> Option<Bound<'py, PyAny>> {
        Reader::only(py, body, self.expected.as_ref()?.get()).ok()
    }

    fn read<'py>(&self, body: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
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
