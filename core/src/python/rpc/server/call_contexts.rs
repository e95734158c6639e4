//! `Isolation`: each call in a context of its own, so that no call sees the context variables of another one.

use crate::clock;
use crate::crash;
use crate::sync::lock;
use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use std::sync::{Mutex, MutexGuard};

/// Calls between two looks at the clock.
const CALLS_PER_LOOK: usize = 16;

/// Enters copies of a context, one after the other.
///
/// `Context.run` does the same around a call, which costs about twice as much.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct Isolation {
    base: Mutex<Py<PyAny>>,
    /// The copy that the thread is in.
    entered: Mutex<Option<Py<PyAny>>>,
}

impl Isolation {
    fn entered(&self) -> MutexGuard<'_, Option<Py<PyAny>>> {
        lock(&self.entered)
    }
}

#[pymethods]
impl Isolation {
    /// For copies of this `contextvars.Context`.
    #[new]
    fn new(base: Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Isolation {
            base: Mutex::new(context(base)?),
            entered: Mutex::new(None),
        })
    }

    /// Copies this `contextvars.Context` from now on.
    fn rebase(&self, base: Bound<'_, PyAny>) -> PyResult<()> {
        let before = std::mem::replace(&mut *lock(&self.base), context(base)?);
        drop(before); // After the lock: what goes with it may run any code.
        Ok(())
    }

    /// Leaves the last copy, if the thread is in one, and enters a new one.
    pub(crate) fn renew(&self, py: Python<'_>) -> PyResult<()> {
        let mut entered = self.entered();
        let last = entered.take();
        exit(py, last.as_ref())?;
        let base = lock(&self.base).clone_ref(py);
        // SAFETY: `base` is a context, as `context` has seen. What comes back is a new reference, or null and an exception.
        let copy = unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyContext_Copy(base.as_ptr()))? };
        // SAFETY: it is a context, and nobody else knows it, so that nobody is in it.
        if unsafe { ffi::PyContext_Enter(copy.as_ptr()) } != 0 {
            return Err(PyErr::fetch(py));
        }
        *entered = Some(copy.unbind());
        drop(entered);
        drop(last); // After the lock: what goes with it may run any code.
        Ok(())
    }

    /// The copy that the thread is in; None if it is in none.
    fn current(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.entered().as_ref().map(|copy| copy.clone_ref(py))
    }

    /// Calls a function with each of the tuples of arguments from `results.len()` on, each time in a new copy, and appends the
    /// results; up to `until`, in nanoseconds. Raises what a call raises.
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
            if results.len() % CALLS_PER_LOOK == 0 && clock::now() > until {
                break;
            }
        }
        Ok(())
    }

    /// Leaves the last copy. If the thread is in none: nothing.
    fn leave(&self, py: Python<'_>) -> PyResult<()> {
        let last = self.entered().take();
        exit(py, last.as_ref())
    }
}

/// The context that this is; TypeError if it is none.
fn context(base: Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
    // SAFETY: `base` is a live object, whose type is all that is looked at.
    if unsafe { ffi::PyContext_CheckExact(base.as_ptr()) } == 0 {
        return Err(PyTypeError::new_err("expected a contextvars.Context"));
    }
    Ok(base.unbind())
}

/// Leaves a copy that `renew` has entered. RuntimeError if somebody has entered another one since, and is still there.
fn exit(py: Python<'_>, last: Option<&Py<PyAny>>) -> PyResult<()> {
    match last {
        // SAFETY: it is a context; whether it is the one that this thread is in, `PyContext_Exit` looks itself.
        Some(last) if unsafe { ffi::PyContext_Exit(last.as_ptr()) } != 0 => Err(PyErr::fetch(py)),
        _ => Ok(()),
    }
}
