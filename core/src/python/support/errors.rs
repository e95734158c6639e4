//! Exceptions that the core raises, and the conversion of its errors into them.

use crate::connection::channel::SendError;
use crate::memory::buffer_allocator;
use crate::violation::Violation;
use pyo3::exceptions::PyOSError;
use pyo3::intern;
use pyo3::prelude::*;
use std::io;

pyo3::create_exception!(
    _core,
    ChannelError,
    pyo3::exceptions::PyException,
    "The channel is closed, or the peer or the segment broke the rules. The channel must no longer be used."
);

pyo3::create_exception!(
    _core,
    PeerLeft,
    ChannelError,
    "The peer has left: its end of the doorbell is closed. Nothing was sent."
);

pyo3::create_exception!(
    _core,
    Overtaken,
    pyo3::exceptions::PyException,
    "Another thread has begun a call with a higher id. Nothing was sent: send the request again with a new id."
);

pyo3::create_exception!(
    _core,
    Oversize,
    pyo3::exceptions::PyException,
    "The payload exceeds the channel's limit. Nothing was sent."
);

pyo3::create_exception!(
    _core,
    Backlog,
    pyo3::exceptions::PyException,
    "Too many frames already wait for the peer to read them. Nothing was sent."
);

pyo3::create_exception!(
    _core,
    NoMemory,
    pyo3::exceptions::PyException,
    "There is no shared memory for the request. `errno` is the system's reason, None for any other reason."
);

pyo3::create_exception!(
    _core,
    Unheard,
    NoMemory,
    "The message about new shared memory cannot reach the peer, which has closed its end or has ended."
);

pyo3::create_exception!(
    _core,
    Unmapped,
    pyo3::exceptions::PyException,
    "This process has no room to map the memory of a frame's body or buffers. `errno` is the limit that it has reached."
);

/// Returns the Unmapped for memory of a frame that this process cannot map.
pub(crate) fn unmapped_error(py: Python<'_>, reason: Violation) -> PyErr {
    with_errno(
        py,
        Unmapped::new_err(reason.to_string()),
        reason.own_limit(),
    )
}

/// Raises the exception that a function of the C API has set, unless its status is 0.
pub(crate) fn check_status(py: Python<'_>, status: std::os::raw::c_int) -> PyResult<()> {
    match status {
        0 => Ok(()),
        _ => Err(PyErr::fetch(py)),
    }
}

/// Returns the exception with the attribute `errno`, or the exception that setting the attribute has raised.
fn with_errno(py: Python<'_>, error: PyErr, errno: Option<i32>) -> PyErr {
    match error.value(py).setattr(intern!(py, "errno"), errno) {
        Ok(()) => error,
        Err(other) => other,
    }
}

/// Returns the error for shared memory that cannot be allocated: Unheard if the peer is gone, else NoMemory.
pub(crate) fn no_memory_error(py: Python<'_>, reason: buffer_allocator::AllocError) -> PyErr {
    let text = reason.to_string();
    match reason {
        buffer_allocator::AllocError::PeerClosed { .. } => {
            with_errno(py, Unheard::new_err(text), None)
        }
        buffer_allocator::AllocError::Limit { .. } => with_errno(py, NoMemory::new_err(text), None),
        buffer_allocator::AllocError::System { error, .. } => {
            with_errno(py, NoMemory::new_err(text), error.raw_os_error())
        }
    }
}

/// Returns the error for a frame that was not sent: PeerLeft, Overtaken, Oversize, Backlog, or ChannelError for a
/// closed channel or a violation.
pub(crate) fn send_error(error: SendError) -> PyErr {
    let text = error.to_string();
    match error {
        SendError::Closed | SendError::Violation(_) => ChannelError::new_err(text),
        SendError::PeerLeft => PeerLeft::new_err(text),
        SendError::Overtaken => Overtaken::new_err(text),
        SendError::Oversize { .. } => Oversize::new_err(text),
        SendError::Backlog { .. } => Backlog::new_err(text),
    }
}

/// Returns the ChannelError for a peer that broke the rules.
pub(crate) fn violation_error(violation: Violation) -> PyErr {
    ChannelError::new_err(violation.to_string())
}

/// Returns the OSError for an error of the system.
pub(crate) fn os_error(error: &io::Error) -> PyErr {
    PyOSError::new_err((error.raw_os_error(), error.to_string()))
}

/// Runs `action` in a destructor without a set exception, restores the exception afterwards, and returns the result.
/// The restored exception replaces one that `action` leaves set.
///
/// An object may be dropped while Python unwinds a frame that an exception has left. A call into Python then would lose
/// that exception, or crash.
pub(crate) fn preserving_exception<R>(py: Python<'_>, action: impl FnOnce() -> R) -> R {
    let exception = PyErr::take(py);
    let result = action();
    if let Some(exception) = exception {
        exception.restore(py);
    }
    result
}
