//! Replies that arrive while their callers spin for them, and the ways to send a request.

use crate::python::rpc::body::Body;
use crate::python::rpc::payload::Payload;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// The reply of a request, as far as the caller has waited for it.
pub(crate) enum Reply<'py> {
    /// A plain reply of a few bytes, in the caller's buffer.
    Short,
    /// A plain reply.
    Plain(Body<'py>),
    /// Any other frame, as (opcode, id, payload), or the call in flight; None if nothing has arrived.
    Other(Option<Bound<'py, PyAny>>),
    /// Nothing so far: the task yields to the event loop for one iteration, and checks again.
    Pipelined,
}

impl<'py> Reply<'py> {
    /// Returns the reply as a Python object: the body of a plain reply, or the other object; None if nothing has
    /// arrived. `body` has a short reply.
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
    /// Sends a request, and spins for the reply, without the GIL, for as long as that is worthwhile. The payload of a
    /// short reply replaces `body`. Raises the error of a request that was not sent; and ChannelError, perhaps after it
    /// was sent, if the peer broke the rules.
    fn exchange<'py>(
        &self,
        py: Python<'py>,
        opcode: u32,
        id: u64,
        payload: Payload<'_>,
        body: &mut Vec<u8>,
    ) -> PyResult<Reply<'py>>;
}
