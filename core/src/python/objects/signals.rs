//! `Signals`: the operations of a signal.

use super::permits::check_no_further_arguments;
use crate::objects::signal::{SignalMembership, WAITERS};
use crate::python::objects::shared_object::SharedObject;
use crate::python::support::timeout::parse_timeout;
use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::sync::Arc;

/// The pending signals of an object.
///
/// `_wait_signal` takes a signal in one native step, because a handler of a system signal that raises in a Python frame
/// in between would lose the signal.
#[pyclass(frozen, subclass, weakref, module = "shmrpc._core")]
pub struct Signals {
    object: Py<SharedObject>,
    membership: Arc<SignalMembership>,
}

/// Returns the ValueError for an argument of any type that is no number of signals.
#[cold]
fn not_a_count_error(object: &SharedObject, count: &Bound<'_, PyAny>) -> PyErr {
    let text = format!(
        "{}: expected a number of signals, got {count}",
        object.describe()
    );
    PyValueError::new_err(text)
}

#[pymethods]
impl Signals {
    /// Makes the signals of this object.
    #[new]
    fn new(py: Python<'_>, object: Bound<'_, SharedObject>) -> PyResult<Self> {
        let membership = object.get().open_as::<SignalMembership>(py)?;
        Ok(Signals {
            object: object.unbind(),
            membership,
        })
    }

    /// Add signals, each of which ends one ``wait()``, here or in another process, now or later.
    ///
    /// Signals stay pending after their sender has ended, as long as a process has the name open. Raises ValueError for
    /// a ``count`` that is no integer of 0 or more, and if more than 2^62 signals would be pending.
    #[pyo3(signature = (count=None, *others, **options), text_signature = "($self, count=None)")]
    fn _signal(
        &self,
        py: Python<'_>,
        count: Option<Bound<'_, PyAny>>,
        others: &Bound<'_, PyTuple>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<()> {
        let object = self.object.get();
        let remedy = "signal() takes a number of signals alone";
        check_no_further_arguments(object, others, options, remedy)?;
        let count = match count {
            None => 1,
            Some(count) => count
                .extract()
                .map_err(|_| not_a_count_error(object, &count))?,
        };
        object.open(py)?;
        object.map_error(py, self.membership.signal(count))
    }

    /// Discard the pending signals, and return their number.
    fn drain(&self, py: Python<'_>) -> PyResult<u64> {
        let object = self.object.get();
        object.open(py)?;
        object.map_error(py, self.membership.drain())
    }

    /// Takes a pending signal. Returns False if no signal is pending.
    fn _try(&self, py: Python<'_>) -> PyResult<bool> {
        let object = self.object.get();
        object.open(py)?;
        object.map_error(py, self.membership.try_take_signal())
    }

    /// Wait for a signal for at most ``timeout`` seconds, and take it. Return True.
    ///
    /// Raises WaitTimeout, WaitStopped, SharedMemoryError if too many wait, and LocalProtocolError for a closed handle.
    #[pyo3(signature = (timeout=None, *others, **options), text_signature = "($self, timeout=None)")]
    fn _wait_signal(
        slf: &Bound<'_, Self>,
        timeout: Option<Bound<'_, PyAny>>,
        others: &Bound<'_, PyTuple>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<bool> {
        let (this, py) = (slf.get(), slf.py());
        let object = this.object.get();
        let remedy = "wait() takes a timeout in seconds alone; wait(timeout=0) does not wait";
        check_no_further_arguments(object, others, options, remedy)?;
        let timeout = timeout.as_ref().map(parse_timeout).transpose()?;
        if this._try(py)? {
            return Ok(true);
        }
        let take = |_| this.membership.try_take_signal();
        let waited = object.wait_in(py, WAITERS, timeout, take)?;
        if waited != Some(true) {
            let why = (waited, timeout, WAITERS);
            slf.call_method1(intern!(py, "_raise_wait_failed"), why)?;
        }
        Ok(true)
    }
}
