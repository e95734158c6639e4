//! Replies that come while the caller of a request looks for them, and the ways to send a request.

use crate::python::rpc::body::Body;
use crate::python::rpc::payload::Payload;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Result of a request while it paid to look for its reply.
pub(crate) enum Reply<'py> {
    /// A plain reply of a few bytes, in the caller's buffer.
    Short,
    /// A plain reply.
    Plain(Body<'py>),
    /// Anything else, in Python's form; None if nothing has come.
    Other(Option<Bound<'py, PyAny>>),
    /// Nothing so far: the task lets the event loop turn once, and looks again.
    Pipelined,
}

impl<'py> Reply<'py> {
    /// Returns the reply in Python's form; `body` is the buffer of a short one.
    pub(crate) fn into_object(
        self,
        py: Python<'py>,
        body: &[u8],
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        Ok(match self {
            Reply::Short => Some(PyBytes::new(py, body).into_any()),
            Reply::Plain(body) => Some(body.into_object(py)?),
            Reply::Other(other) => other,
            Reply::Pipelined => None,
        })
    }
}

/// A way to send requests.
pub(crate) trait Exchange {
    /// Sends a request and looks for its reply for as long as that pays.
    fn exchange<'py>(
        &self,
        py: Python<'py>,
        opcode: u32,
        id: u64,
        payload: Payload<'_>,
        body: &mut Vec<u8>,
    ) -> PyResult<Reply<'py>>;
}
