//! `CallContexts`: a context for each call, so that no call sees the context variables of another call.

use crate::clock;
use crate::crash;
use crate::sync::lock;
use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use std::sync::{Mutex, MutexGuard};

/// The number of calls between two reads of the clock.
const CALLS_PER_CHECK: usize = 16;

/// Copies of a context, which a thread enters one after the other.
///
/// `Context.run` does the same around a call, at about twice the cost.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct CallContexts {
    base: Mutex<Py<PyAny>>,
    /// The copy that the thread has entered.
    entered: Mutex<Option<Py<PyAny>>>,
}

impl CallContexts {
    /// Locks the copy that the thread has entered.
    fn entered(&self) -> MutexGuard<'_, Option<Py<PyAny>>> {
        lock(&self.entered)
    }
}

#[pymethods]
impl CallContexts {
    /// Makes copies of this `contextvars.Context`. Raises TypeError for any other object.
    #[new]
    fn new(base: Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(CallContexts {
            base: Mutex::new(check_is_context(base)?),
            entered: Mutex::new(None),
        })
    }

    /// Makes copies of this `contextvars.Context` from the next `renew` on. Raises TypeError for any other object.
    fn rebase(&self, base: Bound<'_, PyAny>) -> PyResult<()> {
        let base = check_is_context(base)?;
        let before = std::mem::replace(&mut *lock(&self.base), base);
        drop(before); // After the lock, because a destructor may run any code.
        Ok(())
    }

    /// Leaves the copy that the thread has entered, if any, and enters a new copy. Raises RuntimeError as `exit` does:
    /// then no copy counts as entered.
    pub(crate) fn renew(&self, py: Python<'_>) -> PyResult<()> {
        // Not under the lock, because making an object, or its destructor, may run any code.
        let last = self.entered().take();
        exit(py, last.as_ref())?;
        let base = lock(&self.base).clone_ref(py);
        // SAFETY: `base` is a context, as `check_is_context` has checked. The result is a new reference, or null with
        // an exception.
        let copy = unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyContext_Copy(base.as_ptr()))? };
        // SAFETY: it is a context, and no thread can have entered it, because no other code has a reference.
        if unsafe { ffi::PyContext_Enter(copy.as_ptr()) } != 0 {
            return Err(PyErr::fetch(py));
        }
        let before = self.entered().replace(copy.unbind());
        drop((before, last));
        Ok(())
    }

    /// Returns the copy that the thread has entered; None if it has entered none.
    fn current(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.entered().as_ref().map(|copy| copy.clone_ref(py))
    }

    /// Calls a function with each tuple of arguments in `calls` that has no result so far, each in a new copy, and
    /// appends the results. Returns soon after the time `until`, in nanoseconds, also with calls left. The last copy
    /// stays entered. Raises what a call raises; the results before it are kept.
    fn call_each(
        &self,
        py: Python<'_>,
        function: &Bound<'_, PyAny>,
        calls: &Bound<'_, PyList>,
        results: &Bound<'_, PyList>,
        until: u64,
    ) -> PyResult<()> {
        while results.len() < calls.len() {
            self.renew(py)?;
            let arguments = calls.get_item(results.len())?.cast_into::<PyTuple>()?;
            results.append(function.call1(arguments)?)?;
            crash::point!(OneOfManyDone);
            if results.len() % CALLS_PER_CHECK == 0 && clock::now() > until {
                break;
            }
        }
        Ok(())
    }

    /// Leaves the copy that the thread has entered, if any. Raises RuntimeError as `exit` does.
    fn leave(&self, py: Python<'_>) -> PyResult<()> {
        let last = self.entered().take();
        exit(py, last.as_ref())
    }
}

/// Returns the object if it is a context. Raises TypeError if it is not.
fn check_is_context(base: Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
    // SAFETY: `base` is a live object, of which only the type is read.
    if unsafe { ffi::PyContext_CheckExact(base.as_ptr()) } == 0 {
        return Err(PyTypeError::new_err("expected a contextvars.Context"));
    }
    Ok(base.unbind())
}

/// Leaves a copy that `renew` has entered, if any. Raises RuntimeError if other code has entered another context since
/// then and has not left it.
fn exit(py: Python<'_>, last: Option<&Py<PyAny>>) -> PyResult<()> {
    match last {
        // SAFETY: it is a context; `PyContext_Exit` itself checks that this thread has entered it.
        Some(last) if unsafe { ffi::PyContext_Exit(last.as_ptr()) } != 0 => Err(PyErr::fetch(py)),
        _ => Ok(()),
    }
}
