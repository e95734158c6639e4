//! What the core raises, and of what it is made.

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
    "The peer or the segment broke the rules; the channel must not be used any more."
);

pyo3::create_exception!(
    _core,
    PeerLeft,
    ChannelError,
    "The peer has left: its end of the bell is closed. Nothing was sent."
);

pyo3::create_exception!(
    _core,
    Overtaken,
    pyo3::exceptions::PyException,
    "Another thread has begun a call with a higher id. Nothing was sent: it may go with a new id."
);

pyo3::create_exception!(
    _core,
    Oversize,
    pyo3::exceptions::PyException,
    "The payload is over the channel's limit. Nothing was sent."
);

pyo3::create_exception!(
    _core,
    Backlog,
    pyo3::exceptions::PyException,
    "Too much waits already for the peer to read. Nothing was sent."
);

pyo3::create_exception!(
    _core,
    NoMemory,
    pyo3::exceptions::PyException,
    "There is no shared memory for this. `errno`: the system's reason, None if it is not the system's."
);

pyo3::create_exception!(
    _core,
    Unheard,
    NoMemory,
    "The peer cannot be told of new shared memory: it has closed its end, or is gone."
);

pyo3::create_exception!(
    _core,
    Unmapped,
    pyo3::exceptions::PyException,
    "This process has no room to map the memory that a frame's body or buffers lie in. `errno` says of what."
);

pub(crate) fn unmapped(py: Python<'_>, why: Violation) -> PyErr {
    with_errno(py, Unmapped::new_err(why.to_string()), why.own_limit())
}

/// The exception that a function of the C API has set, if it returned anything but 0.
pub(crate) fn succeeded(py: Python<'_>, failed: std::os::raw::c_int) -> PyResult<()> {
    match failed {
        0 => Ok(()),
        _ => Err(PyErr::fetch(py)),
    }
}

/// The exception, with the `errno` in its attribute.
fn with_errno(py: Python<'_>, error: PyErr, errno: Option<i32>) -> PyErr {
    match error.value(py).setattr(intern!(py, "errno"), errno) {
        Ok(()) => error,
        Err(other) => other,
    }
}

pub(crate) fn no_memory(py: Python<'_>, why: buffer_allocator::NoMemory) -> PyErr {
    let text = why.to_string();
    match why {
        buffer_allocator::NoMemory::Unheard { .. } => with_errno(py, Unheard::new_err(text), None),
        buffer_allocator::NoMemory::Limit { .. } => with_errno(py, NoMemory::new_err(text), None),
        buffer_allocator::NoMemory::System { error, .. } => {
            with_errno(py, NoMemory::new_err(text), error.raw_os_error())
        }
    }
}

pub(crate) fn unsent(error: SendError) -> PyErr {
    let text = error.to_string();
    match error {
        SendError::Closed | SendError::Violation(_) => ChannelError::new_err(text),
        SendError::PeerLeft => PeerLeft::new_err(text),
        SendError::Overtaken => Overtaken::new_err(text),
        SendError::Oversize { .. } => Oversize::new_err(text),
        SendError::Backlog { .. } => Backlog::new_err(text),
    }
}

pub(crate) fn broken(violation: Violation) -> PyErr {
    ChannelError::new_err(violation.to_string())
}

pub(crate) fn os_error(error: &io::Error) -> PyErr {
    PyOSError::new_err((error.raw_os_error(), error.to_string()))
}

/// Runs `act` for an object that is dropped, with no exception raised meanwhile: the object may go while the frame is unwound
/// that an exception has left, and to call Python then would lose that exception, or crash.
pub(crate) fn with_none_raised<R>(py: Python<'_>, act: impl FnOnce() -> R) -> R {
    let raised = PyErr::take(py);
    let done = act();
    if let Some(raised) = raised {
        raised.restore(py);
    }
    done
}
